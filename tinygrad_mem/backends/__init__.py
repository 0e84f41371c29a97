"""Switches that scripts set for PyTorch's libraries: they may be set here, and change nothing.

One is our own: :class:`accumulate_in`.
"""

from ..stand_ins import backends_cuda as cuda
from ..stand_ins import backends_cudnn as cudnn
from ..stand_ins import backends_mps as mps
from . import precision as precision
from .accumulation import accumulate_in as accumulate_in
