"""Switches that scripts set for PyTorch's libraries: they may be set here, and change nothing.

One is our own: :class:`accumulate_in`.
"""

from . import cuda as cuda
from . import cudnn as cudnn
from . import mps as mps
from . import precision as precision
from .accumulation import accumulate_in as accumulate_in
