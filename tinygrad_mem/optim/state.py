"""State of parameters in optimizers: the arrays that there should be, how they are made, and how they are read back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from .. import scope
from ..autograd.capsule import on_host
from ..autograd.tensor import Tensor
from ..dtypes import arithmetic, as_dtype, is_floating, is_half
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, NotOfferedError
from .loading import like

MASTER = "master_weight"
"""The key of a parameter's float32 copy in its state."""

OURS = ("master_weights", "state_dtype")
"""Options that PyTorch's optimizers have not: a group has them only where they are set, so that state dicts stay PyTorch's."""


class StateArray(NamedTuple):
    """An array that is to be kept of a parameter.

    Attributes:
        value: what it begins with; ``None``: the parameter's own values.
        root: where it is kept in float16, it is kept as its square root. Means of squares are: the square of a gradient of
            1e-4 is 0 in float16, its root is 1e-4 again.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    value: float | None = 0.0
    root: bool = False


def has_master(group: dict[str, Any], p: Tensor) -> bool:
    """Whether the group wants a float32 copy of ``p``: one that is float32 or wider is its own."""
    return bool(group.get("master_weights")) and is_half(p.dtype)


def check(group: dict[str, Any], half_state: bool, rule: str) -> None:
    """Refuse options of ours that make no sense, and write the dtype by its name, which files can hold.

    Raises:
        DTypeError: ``state_dtype`` is not floating.
        NotOfferedError: the rule keeps nothing that may be kept in half precision.
        ArgumentError: ``master_weights`` is not a bool.
    """
    if not isinstance(group.get("master_weights", False), bool):
        raise ArgumentError(f"master_weights: expected True or False, found {group['master_weights']!r}")
    if group.get("state_dtype") is None:
        return
    if not half_state:
        raise NotOfferedError(f"{rule}: state_dtype is not offered; it is for SGD with momentum, Adam and AdamW")
    dtype = as_dtype(group["state_dtype"])
    if not is_floating(dtype):
        raise DTypeError(f"state_dtype: expected a floating dtype, found {dtype}")
    group["state_dtype"] = dtype.name


def made(kept: StateArray, p: Tensor, name: str) -> Tensor:
    """A new array of a parameter's state, and the tracker told what it is."""
    array = p.device.empty(kept.shape, kept.dtype)
    if kept.value is None:
        p.device.kernels.copy(p.array, out=array)
    else:
        p.device.kernels.fill(kept.value, out=array)
    return report_state(Tensor._wrap(array, p.device), p, name)


def report_state(state: Tensor, p: Tensor | None, name: str) -> Tensor:
    """``state``, once listeners know that it is ``p``'s."""
    for listener in scope.listeners:
        listener.role(state.array, "MASTER_WEIGHT" if name == MASTER else "OPTIMIZER_STATE", state, p)
    return state


def loaded(name: str, value: Any, p: Tensor, kept: StateArray | None) -> Any:
    """One entry of a state dict: numbers stay numbers, tensors (of any framework) are copied to where ``p`` lives.

    Raises:
        ArgumentError: the array is not of the shape that the rule keeps.
        ArgumentTypeError: it is no array, or no number.
    """
    if name in ("step", "mu_product"):
        like(f"state[...][{name!r}]", value, 0.0)
        return float(value) if hasattr(value, "shape") else value
    if not hasattr(value, "shape"):
        if kept is not None and value is not None:
            raise ArgumentTypeError(f"state[...][{name!r}]: expected a tensor of shape {list(kept.shape)}, found {value!r:.60}")
        return value
    if kept is None:
        kept = StateArray(tuple(value.shape), arithmetic(p.dtype))
    if tuple(value.shape) != kept.shape:
        raise ArgumentError(
            f"loaded state dict: {name} of a parameter of shape {list(p.shape)} should have shape {list(kept.shape)}, "
            f"found {list(value.shape)}"
        )
    array = p.device.empty(kept.shape, kept.dtype)
    turned = kept.root and _half(value) != (kept.dtype == np.float16)  # a root where a square is wanted, or the reverse
    if isinstance(value, Tensor) and value.device is p.device and not turned:
        p.device.kernels.copy(value.array, out=array)
    elif p.device.type != "meta":
        host = on_host(value.detach().cpu() if hasattr(value, "detach") else value)
        if turned:
            host = np.square(host, dtype=kept.dtype) if _half(value) else np.sqrt(host)
        p.device.upload(host.astype(array.dtype), array)
    return Tensor._wrap(array, p.device)


def _half(value: Any) -> bool:
    return str(value.dtype).removeprefix("torch.") == "float16"


def parameters(params: Any) -> tuple[list[Tensor], list[str]]:
    """The tensors and their names (none or all) of what a group gives as ``"params"``."""
    if isinstance(params, set):
        raise TypeError(
            "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets will "
            "change between runs. Please use a list instead."
        )
    entries = [params] if isinstance(params, Tensor) else list(params) if isinstance(params, Iterable) else [params]
    names = [entry[0] for entry in entries if isinstance(entry, tuple)]
    tensors = [entry[1] if isinstance(entry, tuple) else entry for entry in entries]
    if names and len(names) != len(tensors):
        raise ValueError("all optimizer params should be with/without names. Some param names are missing")
    for p in tensors:
        if not isinstance(p, Tensor):
            raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
        if not (p.is_leaf or p._retains_grad):
            raise ValueError("can't optimize a non-leaf Tensor: give its leaves, or a detach().requires_grad_() of it")
    return tensors, names


def check_rates(lr: float, eps: float, weight_decay: float, betas: tuple[float, float] = (0.0, 0.0)) -> None:
    """Check the options of the adaptive rules, in PyTorch's words."""
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not eps >= 0.0:
        raise ValueError(f"Invalid epsilon value: {eps}")
    for index, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
    if not weight_decay >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {weight_decay}")
