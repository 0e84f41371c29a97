"""``torch._foreach_NAME``: an operation on each tensor of a list, in a loop. Published optimizers use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..functional.norms import vector_norm

_NAMES = (
    "abs add addcdiv addcmul ceil clamp_max clamp_min cos div exp floor lerp log log10 log1p maximum minimum mul neg pow "
    "reciprocal round rsqrt sigmoid sign sin sqrt sub tanh"
)
_BOUNDS = {"maximum": "clamp_min", "minimum": "clamp_max"}  # those take numbers too
_VALUED = ("addcdiv", "addcmul")  # their third argument is a factor


def _on_one(name: str) -> Callable[..., Any]:
    """The operation on one tensor, in place where the name ends so."""
    plain = name.rstrip("_")
    method = getattr(Tensor, _BOUNDS.get(plain, plain) + name[len(plain) :])
    if plain not in _VALUED:
        return method
    return lambda t, a, b, value=1: method(t, a, b, value=value)


def _foreach(name: str, one: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Sequence[Tensor], *args: Any, **kwargs: Any) -> Sequence[Tensor]:
        lists = [a if isinstance(a, (tuple, list)) else [a] * len(self) for a in args]
        if not self or any(len(a) != len(self) for a in lists):
            raise ShapeError(
                f"_foreach_{name}: lists of one length, of at least one tensor, found {len(self)} and {[*map(len, lists)]}"
            )
        made = [one(*parts, **kwargs) for parts in zip(self, *lists, strict=True)]
        return self if name.endswith("_") else tuple(made)

    call.__name__ = f"_foreach_{name}"
    call.__doc__ = f"``{name}`` of each tensor; other arguments are for all of them, or lists with one for each."
    return call


FOREACH = {f"_foreach_{name}": _foreach(name, _on_one(name)) for plain in _NAMES.split() for name in (plain, f"{plain}_")}
FOREACH.update(
    {f"_foreach_{name}": _foreach(name, _on_one(name)) for name in ("clone", "copy_", "zero_", "max")},
    _foreach_norm=_foreach("norm", vector_norm),
)
"""Name -> function. The package has them all."""
