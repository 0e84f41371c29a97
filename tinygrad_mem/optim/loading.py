"""Checks of a state dict before it is loaded: each value must have the type of the value that it replaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, MissingKeyError


def mapping(what: str, found: Any, keys: Iterable[str] = ()) -> None:
    """Raises: ArgumentTypeError: ``found`` is no dict. MissingKeyError: it lacks a key."""
    if not isinstance(found, Mapping):
        raise ArgumentTypeError(f"{what}: expected a dict, found {type(found).__name__}; give what state_dict() returned")
    for key in keys:
        if key not in found:
            listed = ", ".join(map(repr, list(found)[:8])) or "nothing"
            raise MissingKeyError(
                f"{what}: {key!r} is missing, found {listed}; give what state_dict() of the same kind returned"
            )


def group_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a parameter group, without its parameters and their names."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def like(what: str, found: Any, mine: Any, same_length: bool = True) -> None:
    """Check that ``found`` has the type of ``mine``: a number for a number, a list for a list, and so on.

    If ``mine`` is ``None``, anything is accepted; in a list, ``None`` or a number. For a bool, ``None`` is accepted too.

    Raises:
        ArgumentTypeError: the type is another.
        ArgumentError: a list has another length.
    """
    if isinstance(mine, Sequence) and not isinstance(mine, str):
        if not isinstance(found, Sequence) or isinstance(found, str):
            raise _wrong_type(what, "a list", found)
        if same_length and len(found) != len(mine):
            raise ArgumentError(f"{what}: expected {len(mine)} of them, found {len(found)}; load what the same setting saved")
        for i, each in enumerate(found if mine else ()):
            wanted = mine[min(i, len(mine) - 1)]
            like(f"{what}[{i}]", each, 0.0 if wanted is None and each is not None else wanted)
    elif isinstance(mine, bool):
        if not (found is None or isinstance(found, (bool, np.bool_))):
            raise _wrong_type(what, "True or False", found)
    elif is_number(mine):
        if not is_number(found):
            raise _wrong_type(what, "a number", found)
    elif isinstance(mine, Mapping):
        if not isinstance(found, Mapping):
            raise _wrong_type(what, "a dict", found)
    elif isinstance(mine, str) and not isinstance(found, str):
        raise _wrong_type(what, "a text", found)


def is_number(x: Any) -> bool:
    """True if ``x`` is a real number, or an array or tensor of one."""
    if isinstance(x, Number):
        return not isinstance(x, (complex, np.complexfloating))
    return hasattr(x, "item") and getattr(x, "ndim", 1) == 0


def _wrong_type(what: str, kind: str, found: Any) -> ArgumentTypeError:
    return ArgumentTypeError(f"{what}: expected {kind}, found {found!r:.60} of type {type(found).__name__}")


def is_ours(rule: object) -> bool:
    """False for optimizers of others, which may have options and state of any kind."""
    return type(rule).__module__.startswith(f"{__package__}.")


def of_optimizer(rule: str, state_dict: Any, groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
    """Check the state dict of an optimizer against its groups, and against the types of its options in ``defaults``.

    Raises:
        ArgumentTypeError: something has a wrong type.
        ArgumentError: a key is missing, or the groups do not match.
    """
    mapping(f"{rule}.load_state_dict", state_dict, ("state", "param_groups"))
    saved = state_dict["param_groups"]
    if not isinstance(saved, (list, tuple)):
        raise _wrong_type("param_groups", "a list", saved)
    if len(saved) != len(groups):
        found = f"{len(groups)} here, {len(saved)} in the dict"
        raise ArgumentError(f"loaded state dict has a different number of parameter groups: {found}")
    for i, (new, group) in enumerate(zip(saved, groups, strict=True)):
        where = f"param_groups[{i}]"
        mapping(where, new, ("params",))
        numbers = new["params"]
        if not isinstance(numbers, (list, tuple)) or not all(isinstance(n, (int, str)) for n in numbers):
            raise _wrong_type(f"{where}['params']", "a list of the numbers of parameters", numbers)
        if len(numbers) != len(group["params"]):
            raise ArgumentError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's group: "
                f"{where} has {len(group['params'])} parameters here, {len(numbers)} in the dict"
            )
        for key in defaults:
            if key in new:
                like(f"{where}[{key!r}]", new[key], defaults[key])
            elif isinstance(defaults[key], (float, int, tuple)) and not isinstance(defaults[key], bool):
                raise ArgumentError(
                    f"{rule}: {where} of the dict has no {key!r}, so it is of another optimizer; load what a state_dict() of "
                    f"{rule} returned"
                )
    mapping("state", state_dict["state"])
    for number, values in state_dict["state"].items():
        mapping(f"state[{number!r}]", values)


def of_schedule(rule: str, state_dict: Any, mine: dict[str, Any]) -> None:
    """Check the state dict of a schedule against ``mine``, the schedule's own values.

    Raises:
        ArgumentTypeError: it is not a dict, or a value has another type.
        ArgumentError: a list has another length; lists of milestones may.
    """
    mapping(f"{rule}.load_state_dict", state_dict)
    for key in state_dict.keys() & mine.keys() - {"default_min_lr"}:  # None in PyTorch, and never read
        like(f"{rule}.load_state_dict: {key!r}", state_dict[key], mine[key], same_length="milestones" not in key)
