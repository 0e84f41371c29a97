"""Weights as a direction and a length: ``weight = g * v / |v|``, computed at each use.

Source: Salimans and Kingma, *Weight normalization*, 2016.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ...autograd.grad_mode import no_grad
from ...autograd.shape import normalize_dim
from ...autograd.tensor import Tensor
from ...errors import ArgumentError
from ...functional import elementwise, reduce
from ..module import Module
from ..parameter import Parameter

M = TypeVar("M", bound=Module)


def _length(v: Tensor, dim: int | None) -> Tensor:
    """The norm of v over all dimensions but ``dim``, with ``keepdim``; of all of v for ``None`` (or -1, as in PyTorch)."""
    if dim is None or dim == -1:
        return reduce.norm(v)
    others = [a for a in range(v.ndim) if a != normalize_dim(dim, v.ndim)]
    return reduce.norm(v, 2, others, keepdim=True) if others else v.abs()


def _weight(g: Tensor, v: Tensor, dim: int | None) -> Tensor:
    return elementwise.mul(v, elementwise.div(g, _length(v, dim)))


class WeightNorm:
    """The forward pre-hook of :func:`weight_norm`."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, dim

    def compute_weight(self, module: Module) -> Tensor:
        """The weight for the module's present length and direction."""
        return _weight(getattr(module, self.name + "_g"), getattr(module, self.name + "_v"), self.dim)

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Replace the parameter ``name`` by ``name_g``, its length, and ``name_v``, its direction; both are trained.

    The weight is computed before each forward. Saves: what a norm, a division and a product save: three times the weight.

    Args:
        dim: each entry of this dimension has its own length; ``None``: one length for all.

    Raises:
        RuntimeError: it was done already.
        ValueError: there is no such parameter, or it is computed from others already.
    """
    if hook_of(module, WeightNorm, name) is not None:
        raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
    weight = parameter_of(module, name)
    with no_grad():
        length = _length(weight, dim)
        del module._parameters[name]
        module.register_parameter(name + "_g", Parameter(length.clone()))
        module.register_parameter(name + "_v", Parameter(weight.detach()))
    hook = WeightNorm(name, dim)
    setattr(module, name, hook.compute_weight(module))
    module.register_forward_pre_hook(hook)
    return module


def parameter_of(module: Module, name: str) -> Parameter:
    """The parameter ``name``. Raises: ValueError: there is none."""
    found = module._parameters.get(name)
    if found is None:
        here = ", ".join(module._parameters) or "none"
        raise ArgumentError(f"{type(module).__name__} does not have a parameter '{name}' to compute from others; it has {here}")
    return found


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Replace length and direction by one parameter again. Raises: ValueError: :func:`weight_norm` was not called."""
    return remove_hook(module, WeightNorm, "weight_norm", name, ("_g", "_v"))


def hook_of(module: Module, kind: type, name: str) -> Any:
    """The key and the forward pre-hook of this kind that computes the parameter ``name``; ``None`` if there is none."""
    for key, (hook, _) in module._forward_pre_hooks.items():
        if isinstance(hook, kind) and hook.name == name:  # type: ignore[attr-defined]
            return key, hook
    return None


def remove_hook(module: M, kind: type, called: str, name: str, parts: tuple[str, ...]) -> M:
    """Remove the hook of this kind. Its present result becomes the parameter ``name``, in place of the parts.

    Raises:
        ValueError: there is no such hook.
    """
    found = hook_of(module, kind, name)
    if found is None:
        raise ArgumentError(f"{called} of '{name}' not found in {module}")
    key, hook = found
    with no_grad():
        weight = hook.compute_weight(module)
    for part in ("", *parts):
        delattr(module, name + part)
    del module._forward_pre_hooks[key]
    module.register_parameter(name, Parameter(weight))
    return module


class WeightParts(Module):
    """Length (``original0``) and direction (``original1``) of a weight. A call returns the weight."""

    original0: Parameter
    original1: Parameter

    def __init__(self, weight: Tensor, dim: int | None) -> None:
        super().__init__()
        self.dim = dim
        with no_grad():
            self.original0 = Parameter(_length(weight, dim).clone(), weight.requires_grad)
            self.original1 = Parameter(weight.detach(), weight.requires_grad)

    def right_inverse(self, value: Tensor) -> None:
        """Set length and direction to those of ``value``."""
        with no_grad():
            self.original0.data, self.original1.data = _length(value, self.dim).clone(), value.detach()

    def forward(self) -> Tensor:
        return _weight(self.original0, self.original1, self.dim)
