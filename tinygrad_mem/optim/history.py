"""The state of L-BFGS from a state dict: its vectors, and the numbers that belong to them."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError
from . import loading
from .state import StateArray
from .state import loaded as one

_VECTORS = ("d", "prev_flat_grad")
_LISTS = ("old_dirs", "old_stps", "ro")
_NUMBERS = ("t", "H_diag", "prev_loss")


def loaded(values: dict[str, Any], p: Tensor, size: int) -> dict[str, Any]:
    """Copy the state in ``values``, of any framework, to the device of ``p``; 0-d tensors become numbers.

    Args:
        p: the first parameter, whose dtype and device all vectors have.
        size: the number of elements of all parameters.

    Raises:
        ArgumentError: something is missing, or has another length.
        ArgumentTypeError: something has another type.
    """
    kept = StateArray((size,), p.dtype)
    made = {name: value for name, value in values.items() if name not in (*_VECTORS, *_LISTS, *_NUMBERS, "al")}
    for name in ("func_evals", "n_iter"):
        made[name] = int(_number(name, values.get(name, 0)))
    if not made["n_iter"]:
        return made  # no iteration was made: PyTorch may have saved the names, without vectors
    loading.mapping("state[...]", values, (*_VECTORS, *_LISTS, *_NUMBERS))
    for name in _VECTORS:
        made[name] = _vector(name, values[name], p, kept)
    for name in _NUMBERS:
        made[name] = _number(name, values[name])
    for name in (*_LISTS, "al"):
        loading.like(f"state[...][{name!r}]", values.get(name, []), [], same_length=False)
    lengths = {name: len(values[name]) for name in _LISTS}
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"loaded state dict: old_dirs, old_stps and ro should have one length, found {lengths}")
    made["old_dirs"] = [_vector("old_dirs", each, p, kept) for each in values["old_dirs"]]
    made["old_stps"] = [_vector("old_stps", each, p, kept) for each in values["old_stps"]]
    made["ro"] = [_number("ro", each) for each in values["ro"]]
    made["al"] = [None if each is None else _number("al", each) for each in values.get("al", [])]
    return made


def _vector(name: str, value: Any, p: Tensor, kept: StateArray) -> Any:
    if not hasattr(value, "shape"):
        raise ArgumentTypeError(f"state[...][{name!r}]: expected a tensor of {kept.shape[0]:,} elements, found {value!r:.60}")
    return one(name, value, p, kept, False)


def _number(name: str, value: Any) -> float:
    loading.like(f"state[...][{name!r}]", value, 0.0)
    return value.item() if hasattr(value, "item") else value
