"""``torch.types``: names of types, for annotations."""

from __future__ import annotations

from builtins import bool as _bool
from builtins import float as _float
from builtins import int as _int
from collections.abc import Sequence
from os import PathLike
from typing import IO, Any

from .autograd import Size as Size
from .autograd import Tensor as Tensor
from .devices import device as device
from .dtypes import dtype as dtype

Number = _int | _float | _bool
Device = device | str | _int | None
_size = Size | list[_int] | tuple[_int, ...]
_dtype, _device = dtype, device
_TensorOrTensors = Tensor | Sequence[Tensor]
FileLike = str | PathLike[str] | IO[Any]
