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
from .grad_mode import enable_grad as enable_grad
from .grad_mode import inference_mode as inference_mode
from .grad_mode import is_grad_enabled as is_grad_enabled
from .grad_mode import is_inference_mode_enabled as is_inference_mode_enabled
from .grad_mode import no_grad as no_grad
from .grad_mode import set_grad_enabled as set_grad_enabled
from .gradcheck import gradcheck as gradcheck
from .inplace import apply_ as apply_
from .shape import Size as Size
from .tensor import Tensor as Tensor

__getattr__ = _absent.refuses("autograd")
