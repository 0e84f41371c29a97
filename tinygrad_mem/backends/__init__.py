"""Switches that scripts set for PyTorch's libraries: they may be set here, and change nothing."""

from . import cuda as cuda
from . import cudnn as cudnn
from . import mps as mps
