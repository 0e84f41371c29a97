"""A stand-in for ``torch.func``: published files import its functions, and seldom call them."""

from .. import absent as _absent
from .refused import refused

_NAMES = "vmap grad grad_and_value vjp jvp linearize jacrev jacfwd hessian functional_call stack_module_state"
_INSTEAD = (
    "call the module itself; `autograd.grad(outputs, inputs)` gives gradients of anything, and a batch is one dimension more: "
    "operations broadcast"
)
globals().update(refused("func", _NAMES, _INSTEAD))
__getattr__ = _absent.refuses("func")
