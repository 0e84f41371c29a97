"""``FloatTensor``, ``LongTensor`` and their family: old names of a dtype on a device, as constructors and as types."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.tensor import Tensor
from ..errors import ArgumentTypeError
from . import creation
from .convert import LETTERS
from .door import public

__all__ = (
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor",
    "LongTensor", "ShortTensor", "TensorType",
)  # fmt: skip


class TensorType(type):
    """The class of ``FloatTensor`` and its family.

    ``FloatTensor(2, 3)`` is uninitialised, ``FloatTensor([1, 2])`` a copy of numbers; ``isinstance(x, FloatTensor)`` asks for
    the dtype and the kind of device. Prefer ``tensor(..., dtype=..., device=...)``.
    """

    dtype: np.dtype
    kind: str

    def __call__(cls, *data: Any, device: Any = None) -> Tensor:
        """A new tensor of this dtype, from sizes or from data, as ``Tensor`` makes it."""
        where, data = cls.kind if device is None else device, tuple(map(dtypes.size_or_data, data))
        if all(isinstance(n, int) for n in data):
            return creation.empty(*(data or (0,)), dtype=cls.dtype, device=where)
        if len(data) != 1:
            raise ArgumentTypeError(f"{cls.__name__}: expected sizes, or one sequence of numbers, found {len(data)} arguments")
        if type(data[0]).__name__ == "Size":
            return creation.empty(*data[0], dtype=cls.dtype, device=where)
        return creation.tensor(data[0], dtype=cls.dtype, device=where)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor) and value.dtype == cls.dtype and value.device.kind in (cls.kind, "meta")


def family(kind: str) -> dict[str, TensorType]:
    """``FloatTensor`` and its family for one kind of device, by name."""
    doc = f"A tensor on {kind} of one dtype; see :class:`TensorType`."
    return {
        f"{name}Tensor": TensorType(f"{name}Tensor", (), {"dtype": dtypes.as_dtype(of), "kind": kind, "__doc__": doc})
        for name, of in LETTERS.items()
    }


_cpu = family("cpu")
FloatTensor, DoubleTensor, HalfTensor = _cpu["FloatTensor"], _cpu["DoubleTensor"], _cpu["HalfTensor"]
BFloat16Tensor, LongTensor, IntTensor = _cpu["BFloat16Tensor"], _cpu["LongTensor"], _cpu["IntTensor"]
ShortTensor, CharTensor = _cpu["ShortTensor"], _cpu["CharTensor"]
ByteTensor, BoolTensor = _cpu["ByteTensor"], _cpu["BoolTensor"]


@public("torch")
def set_default_tensor_type(t: Any) -> None:
    """Set the default dtype and device of new tensors to those of ``FloatTensor`` or one of its family, or of its name.

    Raises:
        ArgumentTypeError: it is none of them.
        DTypeError: its dtype is not floating.
    """
    name = t if isinstance(t, str) else t.__name__ if isinstance(t, TensorType) else ""
    letters = name.rpartition(".")[2].removesuffix("Tensor")
    if letters not in LETTERS or not name.endswith("Tensor"):
        raise ArgumentTypeError(f"set_default_tensor_type: expected FloatTensor or one of its family, found {t!r}")
    dtypes.set_default_dtype(dtypes.as_dtype(LETTERS[letters]))
    kind = t.kind if isinstance(t, TensorType) else "cuda" if ".cuda." in name else "cpu"
    creation.set_default_device(None if kind == "cpu" else kind)
