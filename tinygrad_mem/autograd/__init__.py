"""The tensor, the tape and backward (``core.py``): ``tinygrad_mem.autograd`` has PyTorch's names."""

from .. import absent as _absent
from . import graph as graph
from .backward import backward as backward
from .backward import grad as grad
from .core import Node as Node
from .core import apply as apply
from .function import Function as Function
from .function import FunctionContext as FunctionContext
from .function import Variable as Variable
from .function import once_differentiable as once_differentiable
from .grad_mode import *
from .gradcheck import gradcheck as gradcheck
from .inplace import apply_ as apply_
from .shape import Size as Size
from .tensor import Tensor as Tensor

__getattr__ = _absent.refuses("autograd")
