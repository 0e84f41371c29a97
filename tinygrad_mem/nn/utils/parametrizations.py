"""``torch.nn.utils.parametrizations``: weights that are computed from other parameters."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from ... import absent as _absent
from ...autograd.tensor import Tensor
from ...errors import ArgumentError
from ..module import Module
from .parametrize import compute_by, is_parametrized, register_parametrization
from .spectral_norm import SpectralPart, default_dim
from .weight_norm import WeightParts, parameter_of

M = TypeVar("M", bound=Module)


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """``module.name`` becomes ``g * v / |v|``, computed at each use.

    g and v are the parameters ``parametrizations.NAME.original0`` and ``original1``. A state dict may have the names that
    ``nn.utils.weight_norm`` gives them.

    Saves: what a norm, a division and a product save: three times the weight.

    Args:
        dim: each entry of this dimension has its own length; ``None``: one length for all.

    Raises:
        RuntimeError: it was done already.
        ValueError: there is no such parameter, or another function computes it already.
    """
    if is_parametrized(module, name):
        raise RuntimeError(
            f"{name} of {type(module).__name__} is parametrized already: call parametrize.remove_parametrizations first"
        )
    parts = WeightParts(parameter_of(module, name), dim)
    del module._parameters[name]
    module._register_load_state_dict_pre_hook(partial(_rename_older, name))
    return compute_by(module, name, parts)


def _rename_older(name: str, state_dict: Any, prefix: str, *_: Any) -> None:
    """Give the parts in a state dict of ``nn.utils.weight_norm`` their names here."""
    for number, part in enumerate("gv"):
        if (key := f"{prefix}{name}_{part}") in state_dict:
            state_dict[f"{prefix}parametrizations.{name}.original{number}"] = state_dict.pop(key)


def spectral_norm(
    module: M, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> M:
    """``module.name`` becomes ``original`` over its largest singular value, computed at each use.

    In training, each use updates the estimate of that value by ``n_power_iterations`` of the power method.

    Saves: what a product with a vector, a dot product and a division save: the weight once more, u and v.

    Args:
        eps: a lower bound for the length of vectors.
        dim: the axis of the weight's outputs; by default 0, or 1 for a transposed convolution.

    Raises:
        ValueError: there is no such parameter, or ``n_power_iterations`` is below 1.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    part = SpectralPart(weight, n_power_iterations, default_dim(module) if dim is None else dim, eps)
    return register_parametrization(module, name, part)


__getattr__ = _absent.refuses("nn.utils.parametrizations")
