"""The state of parameters in optimizers: its arrays, and how they are made and loaded."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import scope
from ..autograd.capsule import on_host
from ..autograd.tensor import Tensor
from ..dtypes import arithmetic, as_dtype, is_floating, is_half
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, NotOfferedError
from ..functional.refusal import hint_for
from .loading import like

_NUMBERS = ("step", "mu_product", "seed")  # the entries of a parameter's state that are no arrays

MASTER = "master_weight"
"""The key of a parameter's float32 copy in its state."""

OURS = ("master_weights", "state_dtype", "adamw", "seed")
"""Options that PyTorch's optimizers do not have. A group has them only if they are set, so that state dicts stay PyTorch's."""


Betas = tuple[float, float]
"""The shares of the old values in the running means of the gradient and of its square."""


class StateArray(NamedTuple):
    """The description of a state array of a parameter.

    Attributes:
        value: its initial value; ``None``: a copy of the parameter.
        root: in float16, keep the square root. This is for means of squares: the square of a gradient of 1e-4 is 0 in float16,
            and its root can be kept.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    value: float | None = 0.0
    root: bool = False

    def is_root(self) -> bool:
        """Return whether the array holds roots."""
        return self.root and self.dtype == np.float16


def has_master(group: dict[str, Any], p: Tensor) -> bool:
    """True if ``p`` has a float32 copy: its group has ``master_weights``, and ``p`` is of half precision."""
    return bool(group.get("master_weights")) and is_half(p.dtype)


def check(group: dict[str, Any], half_state: bool, rule: str) -> None:
    """Check that options are numbers, and check ``state_dtype``, whose name, which files can hold, takes its place.

    Raises:
        ArgumentTypeError: an option is a tensor, and not the learning rate.
        DTypeError: ``state_dtype`` is not floating.
        NotOfferedError: the optimizer does not offer ``state_dtype``.
        ArgumentError: ``master_weights`` is not a bool.
    """
    for name, value in group.items():
        values = value if isinstance(value, (tuple, list)) else (value,)
        if name not in ("params", "lr") and any(isinstance(each, Tensor) for each in values):
            raise ArgumentTypeError(f"{rule}: expected numbers as {name}, found a tensor: give its .item()")
    if not isinstance(group.get("master_weights", False), bool):
        raise ArgumentError(f"master_weights: expected True or False, found {group['master_weights']!r}")
    if group.get("state_dtype") is None:
        return
    if not half_state:
        raise NotOfferedError(f"{rule}: state_dtype is not offered; it is for SGD with momentum, Adam, AdamW and Lion")
    dtype = as_dtype(group["state_dtype"])
    if not is_floating(dtype):
        raise DTypeError(f"state_dtype: expected a floating dtype, found {dtype}")
    group["state_dtype"] = dtype.name


def made(kept: StateArray, p: Tensor, name: str) -> Tensor:
    """Make a state array, and report it to the tracker."""
    array = p.device.empty(kept.shape, kept.dtype)
    if kept.value is None:
        p.device.kernels.copy(p.array, out=array)
    else:
        p.device.kernels.fill(kept.value**0.5 if kept.is_root() else kept.value, out=array)
    return report_state(Tensor._wrap(array, p.device), p, name)


def report_state(state: Tensor, p: Tensor | None, name: str) -> Tensor:
    """Report to listeners that ``state`` belongs to ``p``, and return it. It is cut over ranks as the parameter is."""
    if p is not None and p._shard is not None and state.array.shape == p.array.shape:
        state._shard = p._shard
    scope.report_role(state.array, "MASTER_WEIGHT" if name == MASTER else "OPTIMIZER_STATE", state, p)
    return state


def tensors(values: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """(name, tensor) for each tensor of a parameter's state, those in lists too."""
    each = [(name, v) for name, value in values.items() for v in (value if isinstance(value, list) else [value])]
    return [(name, v) for name, v in each if isinstance(v, Tensor)]


def saved(values: dict[str, Any], squares: tuple[str, ...]) -> dict[str, Any]:
    """A parameter's state for a state dict: of mean squares whose roots are kept in float16, the squares in float32.

    Else the dict itself, as in PyTorch: its step count and its arrays are of the same moment whenever they are read.
    """
    roots = [name for name in squares if isinstance(values.get(name), Tensor) and values[name].dtype == np.float16]
    return values | {name: values[name].float().square_() for name in roots} if roots else values


def all_loaded(values: dict[str, Any], p: Tensor, kept: dict[str, StateArray], roots: bool, known: bool) -> dict[str, Any]:
    """The state of ``p`` from a state dict: see :func:`loaded`.

    Args:
        known: whether ``kept`` has all that the rule keeps, so that arrays of other names are another rule's.

    Raises:
        ArgumentError: its arrays are not those of ``kept``: the missing ones would be new, among old ones.
    """
    found = [name for name, value in values.items() if hasattr(value, "shape") and name not in _NUMBERS]
    needed = [name for name in kept if name != MASTER]
    if known and found and not set(needed) <= set(found) <= set(kept) | {MASTER}:
        raise ArgumentError(
            f"loaded state dict: a parameter of shape {list(p.shape)} has {', '.join(found)}, and here it needs "
            f"{', '.join(needed) or 'nothing'}: the dict is of another optimizer, or of other options"
        )
    return {name: loaded(name, value, p, kept.get(name), roots) for name, value in values.items()}


def loaded_group(group: dict[str, Any], new: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The parameters of ``group`` with the options of a state dict's group. What it lacks is a default, or as in ``group``."""
    options = {key: copy.deepcopy(value) for key, value in new.items() if key != "params"}
    if "param_names" in group:
        options.setdefault("param_names", group["param_names"])
    missing = {key: value for key, value in defaults.items() if key not in options}
    ours = {key: group[key] for key in OURS if key in group and key not in options}
    return {"params": group["params"], **missing, **ours, **options}


def loaded(name: str, value: Any, p: Tensor, kept: StateArray | None, roots: bool) -> Any:
    """Load one entry of a state dict. Numbers stay numbers; tensors of any framework are copied to the device of ``p``.

    Args:
        roots: whether the dict's mean squares in float16 are roots, as in older dicts with ``state_dtype``.

    Raises:
        ArgumentError: the array has another shape than the state array.
        ArgumentTypeError: it should be an array, or a number, and is not.
    """
    if name in _NUMBERS:
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
    given = roots and str(value.dtype).removeprefix("torch.") == "float16"
    turned = kept.root and given != kept.is_root()  # a root is given and a square needed, or the reverse
    if isinstance(value, Tensor) and value.device is p.device and not turned:
        p.device.kernels.copy(value.array, out=array)
    elif p.device.kind != "meta":
        host = on_host(value.detach().cpu() if hasattr(value, "detach") else value)
        if turned:
            host = np.asarray(np.square(host, dtype=kept.dtype) if given else np.sqrt(host))
        p.device.upload(host.astype(array.dtype), array)
    return Tensor._wrap(array, p.device)


def parameters(params: Any) -> tuple[list[Tensor], list[str]]:
    """The tensors in a group's ``"params"``, and their names: of all tensors, or of none."""
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
            raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}{hint_for(p)}")
        if not (p.is_leaf or p._retains_grad):
            raise ValueError("can't optimize a non-leaf Tensor: give its leaves, or a detach().requires_grad_() of it")
    return tensors, names


def check_beside(new: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Raises: ValueError: ``new`` shares a parameter with another group, or only one of them has names for parameters."""
    ids = {id(p) for p in new["params"]}
    if len(ids) != len(new["params"]):
        warnings.warn("optimizer contains a parameter group with duplicate parameters: each is updated twice", stacklevel=4)
    for group in groups:
        if ("param_names" in new) != ("param_names" in group):
            found = "with" if "param_names" in new else "without"
            raise ValueError(
                "all optimizer param groups should be with/without names. "
                f"cannot add param group {found} names to the optimizer"
            )
        if not ids.isdisjoint(id(p) for p in group["params"]):
            raise ValueError("some parameters appear in more than one parameter group")


def check_rates(lr: float, eps: float, weight_decay: float, betas: Betas = (0.0, 0.0)) -> None:
    """Check the options of adaptive optimizers; the messages are PyTorch's."""
    not_negative(lr=lr, eps=eps)
    if not isinstance(betas, Iterable):
        raise TypeError(f"betas: expected two numbers, such as (0.9, 0.999), found {betas!r}")
    for index, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
    not_negative(weight_decay=weight_decay)


def refuse_shards(rule: str, params: Iterable[Tensor]) -> None:
    """Refuse parameters that are cut over ranks, for a rule that needs all elements of a parameter.

    Raises:
        NotOfferedError: one is.
    """
    for p in params:
        if p._shard is not None:
            raise NotOfferedError(
                f"{rule}: {p._shard.name} is divided over ranks, and the rule needs all of its elements: use an optimizer that "
                "updates each element by itself, such as AdamW, or leave the parameter whole"
            )


def not_negative(**rates: float) -> None:
    """Refuse a negative or nan rate; the messages are PyTorch's."""
    for name, value in rates.items():
        if not value >= 0.0:
            words = {"lr": "learning rate", "eps": "epsilon value"}.get(name, f"{name} value")
            raise ValueError(f"Invalid {words}: {value}")


def options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The options of a group, from the ``locals()`` of a constructor: all arguments but the parameters.

    Options that PyTorch does not have are left out if they are not set, so that groups print and save as PyTorch's.
    """
    none = ("self", "params", "__class__", *[name for name in OURS if not arguments.get(name)])
    return {name: value for name, value in arguments.items() if name not in none}


def tick(state: dict[str, Any]) -> int:
    """Count a step of a parameter; the first is 1."""
    state["step"] = state.get("step", 0) + 1
    return state["step"]


def bytes_of(dtype: np.dtype, *shapes: tuple[int, ...]) -> int:
    """The bytes of arrays of these shapes, one behind the other."""
    return sum(prod(shape) for shape in shapes) * dtype.itemsize


def cut(work: Any, dtype: np.dtype, *shapes: tuple[int, ...]) -> list[Any]:
    """Arrays of these shapes in the workspace, which has at least :func:`bytes_of` them."""
    found, start = [], 0
    for shape in shapes:
        end = start + bytes_of(dtype, shape)
        found.append(work[start:end].view(dtype).reshape(shape))
        start = end
    return found
