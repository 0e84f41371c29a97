"""Switches that scripts set for PyTorch's libraries. They can be set here, and change nothing.

Only :class:`accumulate_in`, which PyTorch does not have, has an effect.
"""

from ..stand_ins import backends_cuda as cuda
from ..stand_ins import backends_cudnn as cudnn
from ..stand_ins import backends_mps as mps
from . import precision as precision
from .accumulation import accumulate_in as accumulate_in
