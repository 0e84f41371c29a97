"""NumPy's arrays of values that a prediction does not have: ``tensor.cpu().numpy()``, as metrics need it.

They follow the rule of unknown numbers: what a program computes from such an array with NumPy is unknown too, and no branch may
depend on it. A function whose result is as long as values say is refused. NumPy copies such an array into a plain one, or uses
it as an index, without asking; then the values are ones, as they are for other libraries, and a note says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from ...autograd.unknown import FINITE, INDEX, Unknown, stated
from ...errors import DataDependenceError
from .fake import without_modes
from .places import owner
from .unknown import UnknownNumber
from .watch import Watch

_ONES = (
    "an array of NumPy's has ones for values that are not known. What NumPy's functions compute from it stays unknown, but "
    "other libraries read the ones, and so does a plain array: one that it is copied into, or that it is an index of. A branch "
    "on these ones, or a size that is computed from them, is not noticed"
)
TO_NUMPY = "Leave out of the prediction what NumPy does with it, such as plots and metrics: its memory is not PyTorch's"
_NUMPY = str(Path(np.__file__).parent)
_MOST = 1 << 24  # elements
_KINDS = "biufc"
_ASKED = {np.isfinite: True, np.isnan: False, np.isinf: False}
_OF_VALUES = {
    *["argwhere", "bincount", "compress", "extract", "flatnonzero", "intersect1d", "nonzero", "setdiff1d", "setxor1d"],
    *["trim_zeros", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"],
}
"""Functions with a result that is as long as values say."""
_OF_SIZES = {"array_split", "delete", "insert", "pad", "repeat", "split", "tile"}
"""Functions with such a result if an argument after the first is not known."""


def array(watch: Watch, tensor: torch.Tensor) -> UnknownArray:
    """``tensor.numpy()`` of values that are not known."""
    if tensor.numel() > _MOST:
        _refuse(f"numpy() of {tensor.numel():,} elements")
    with torch._C.DisableTorchFunction():
        place, shape, dtype, trained = watch.local(tensor).device, tuple(tensor.shape), tensor.dtype, tensor.requires_grad
    if place.type != "cpu":
        raise TypeError(f"can't convert {place} device type tensor to numpy. Use Tensor.cpu() first.")
    with without_modes():  # PyTorch's own errors
        kind = torch.ones((), dtype=dtype, requires_grad=trained).numpy().dtype
    watch.note(f"{watch.places.line()}: {_ONES}")
    made = np.ndarray.__new__(UnknownArray, shape, kind)
    made.view(np.ndarray).fill(1)
    made.watch, made.shares = watch, tensor
    return made


def from_numpy(watch: Watch, own: Callable[[Any], torch.Tensor], data: Any) -> torch.Tensor:
    """``torch.from_numpy``: of values that are not known the tensor has none."""
    made = own(data)
    if isinstance(data, UnknownArray):
        watch.numbers.written(made)
        storage: Any = made.untyped_storage()
        storage.read = data  # whose memory it is
    return made


def _refuse(what: str) -> NoReturn:
    raise DataDependenceError(f"{what}: its result depends on values, which are not known in a prediction. {TO_NUMPY}")


def _followed(made: Any, watch: Watch) -> Any:
    """A result of NumPy's that was computed from values that are not known."""
    if type(made) in (list, tuple):
        return type(made)([_followed(each, watch) for each in made])
    if not isinstance(made, (np.ndarray, np.generic, bool, int, float, complex)) or np.asarray(made).dtype.kind not in _KINDS:
        return made
    if np.ndim(made) == 0:
        return UnknownNumber.of(np.asarray(made).dtype.kind, watch)
    array: Any = np.asarray(made).view(UnknownArray)
    array.watch = watch
    return array


def _library_asks() -> bool:
    """True if another library calls NumPy."""
    frame: Any = sys._getframe(2)
    while frame.f_code.co_filename.startswith(_NUMPY):
        frame = frame.f_back
    path = frame.f_code.co_filename
    return owner(path) == 1 and not path.startswith("<")  # of a notebook


def _plain(value: Any) -> Any:
    """A value with ones in place of what is not known, for NumPy's C code."""
    if isinstance(value, UnknownArray):
        return value.view(np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)([_plain(each) for each in value])
    return stated(value)


def _is_unknown(value: Any) -> bool:
    return any(map(_is_unknown, value)) if isinstance(value, (list, tuple)) else isinstance(value, (Unknown, UnknownArray))


def _method(name: str) -> Callable[..., Any]:
    """A method of NumPy's in C, whose result is not known."""

    def method(self: UnknownArray, *args: Any, **kwargs: Any) -> Any:
        named = {key: _plain(each) for key, each in kwargs.items()}
        if _library_asks():
            return getattr(self.view(np.ndarray), name)(*_plain(args), **named)
        _check(name, args, kwargs)
        return _followed(getattr(self.view(np.ndarray), name)(*_plain(args), **named), self.watch)

    return method


def _check(name: str, others: Any, kwargs: dict[str, Any]) -> None:
    """Refuse a function whose result is as long as values say; ``others``: its arguments after the first."""
    by_mask = name == "where" and not others and not kwargs
    if name in _OF_VALUES or by_mask or (name in _OF_SIZES and _is_unknown([*others, *kwargs.values()])):
        _refuse(f"np.{name}")


class UnknownArray(np.ndarray):
    """The values of a tensor of a prediction. In memory it has ones.

    Attributes:
        shares: the tensor whose memory the array would be in a real run. The array, or a view of it, keeps the tensor alive.
    """

    watch: Watch
    shares: torch.Tensor

    def __array_finalize__(self, source: Any) -> None:
        self.watch = getattr(source, "watch", None)  # type: ignore[assignment]

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        watch: Any = next(each.watch for each in (*inputs, *out) if isinstance(each, UnknownArray))
        options = {key: _plain(each) for key, each in options.items()}
        with np.errstate(all="ignore"):  # of ones
            made = getattr(function, method)(*_plain(inputs), **options)
        if _library_asks():
            return made
        if function in _ASKED:
            watch.note(f"{watch.places.line()}: {FINITE}")
            return np.full_like(made, _ASKED[function])
        return _followed(made, watch)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        library = _library_asks()
        if not library:
            _check(function.__name__, args[1:], kwargs)
        with np.errstate(all="ignore"):
            made = function(*_plain(args), **{key: _plain(each) for key, each in kwargs.items()})
        return made if library else _followed(made, self.watch)

    def __getitem__(self, index: Any) -> Any:
        if _library_asks():
            return self.view(np.ndarray)[_plain(index)]
        places = index if isinstance(index, tuple) else (index,)
        if any(isinstance(each, UnknownArray) and each.dtype == np.bool_ for each in places):
            _refuse("a mask of an array")
        places = tuple([np.zeros(each.shape, np.intp) if isinstance(each, UnknownArray) else each for each in places])
        return _followed(self.view(np.ndarray)[places], self.watch)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Values that are not known stay so."""

    def item(self, *place: Any) -> Any:
        return UnknownNumber.of(np.asarray(self.view(np.ndarray).item(*place)).dtype.kind, self.watch)

    def tolist(self) -> Any:
        if _library_asks():
            return self.view(np.ndarray).tolist()
        return np.full(self.shape, UnknownNumber.of(self.dtype.kind, self.watch), object).tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> NoReturn:
        UnknownNumber.of(self.dtype.kind, self.watch).refuse(INDEX)

    def __contains__(self, value: Any) -> NoReturn:
        UnknownNumber.of(self.dtype.kind, self.watch).refuse("a comparison")

    def __repr__(self) -> str:
        return f"array(unknown, shape={self.shape}, dtype={self.dtype})"

    __str__ = __repr__
    __hash__ = None  # type: ignore[assignment]


for _name in (
    *["argmax", "argmin", "argsort", "choose", "compress", "dot"],
    *["nonzero", "repeat", "round", "searchsorted", "take", "trace"],
):
    setattr(UnknownArray, _name, _method(_name))
