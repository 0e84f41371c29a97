"""Descriptions of a call on the CPU, with all that memory depends on, and of the memory that it takes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

_C: Any = torch._C
_LINE = 64  # bytes: PyTorch's CPU allocator begins blocks at multiples of it
_DRAWS = {"aten::uniform_", "aten::normal_"}  # whose bounds, and whose spread, change no memory
_TELLING = {0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, math.inf, -math.inf}  # numbers by which pointwise ops choose a way


class Given(NamedTuple):
    """A tensor that an op gets.

    Attributes:
        offset: bytes from a line of the cache to its first element.
        same: the number of the earlier tensor that it is; -1: it is a new one.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    trained: bool
    same: int

    @property
    def bytes(self) -> int:
        """Bytes from the start of the cache line of its first element to its end."""
        return self.offset + _length(self.sizes, self.strides) * self.dtype.itemsize


class Made(NamedTuple):
    """A result in memory of its own, as it really is; ``size`` is its storage's, in bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    size: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Made:
        """A tensor as such a result."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, storage_bytes(tensor))

    @property
    def needed(self) -> int:
        """Bytes from its first element to the end of its last."""
        return _length(self.sizes, self.strides) * self.dtype.itemsize


def _length(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first one in memory to the last one."""
    return 0 if 0 in sizes else 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


class Within(NamedTuple):
    """The memory of an op while it runs, in bytes above those at its start.

    Attributes:
        peak: the most at once, results included.
        kept: at its end: its results.
        made: its results, in order; ``None`` for one that is not a tensor, or shares memory with an argument or an earlier
            result.
        unknown: the reason why the memory is not known; ``""``: it is known.
        more: bytes that the peak may be above that, for other values of the arguments.
    """

    peak: int
    kept: int
    made: tuple[Made | None, ...] = ()
    unknown: str = ""
    more: int = 0


class AloneCall(NamedTuple):
    """A call of an op, with all that decides what it takes; ``settings``: of PyTorch, see :func:`settings_now`."""

    func: Any
    args: tuple
    kwargs: tuple
    settings: tuple


def described(func: Any, args: tuple, kwargs: dict[str, Any]) -> AloneCall | None:
    """A call of an op, as it is before the op runs. ``None``: the op makes views, or turns its argument into one."""
    known = _EXACT.get(id(func)) or _EXACT.setdefault(id(func), (func, _exact(func)))
    if known[1] is None:
        return None
    describe = _Describe(known[1])
    given = tuple(map(describe, args))  # before those with names: tensors that are met again are numbered
    named = tuple((key, describe(kwargs[key])) for key in sorted(kwargs)) if kwargs else ()
    return AloneCall(func, given, named, settings_now(describe.exact))


_EXACT: dict[int, tuple[Any, bool | None]] = {}  # by the id of the op, which is kept: PyTorch hashes ops slowly


def _exact(func: Any) -> bool | None:
    """True if memory may depend on every number in the arguments of a call; ``None``: the op makes views."""
    returns = func._schema.returns
    if torch.Tag.inplace_view in func.tags:
        return None
    if returns and all(each.alias_info is not None and not each.alias_info.is_write for each in returns):
        return None
    return torch.Tag.pointwise not in func.tags and func._schema.name not in _DRAWS


def settings_now(exact: bool) -> tuple:
    """The settings that choose kernels; ``exact``: whether gradients are recorded, too."""
    return (
        exact and torch.is_grad_enabled(),
        torch.get_num_threads(),
        _C._get_mkldnn_enabled(),
        _C._get_nnpack_enabled(),
        _C._get_deterministic_algorithms(),
        *[_C._get_fp32_precision_getter("mkldnn", op) for op in ("conv", "matmul", "rnn")],
        torch.get_default_dtype(),
    )


def givens(values: Any) -> list[Given]:
    """All tensors in described arguments."""
    if isinstance(values, Given):
        return [values]
    return [each for value in values for each in givens(value)] if isinstance(values, tuple) else []


def results_only(made: tuple[Made | None, ...]) -> Within:
    """The memory of an op that takes nothing beside these results."""
    size = sum(each.size for each in made if each is not None)
    return Within(size, size, made)


class _Describe:
    """Converts arguments to comparable values. ``exact``: with every number, and with what requires a gradient."""

    def __init__(self, exact: bool) -> None:
        self.exact, self._count = exact, 0
        self._met: dict[int, int] = {}  # the number of each tensor, by its id

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self, value))
        if isinstance(value, torch.Generator):
            return torch.Generator
        if type(value) is float and not self.exact and value not in _TELLING:
            return float, math.copysign(0.25, value)
        return type(value), value

    def _tensor(self, tensor: torch.Tensor) -> Given:
        same = self._met.get(id(tensor), -1)
        self._met.setdefault(id(tensor), self._count)
        self._count += 1
        offset = int(tensor.storage_offset()) * tensor.element_size() % _LINE
        return Given(tuple(tensor.shape), tensor.stride(), tensor.dtype, offset, self.exact and tensor.requires_grad, same)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """All tensors in arguments, or in results."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def storage_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's storage."""
    return tensor.untyped_storage().nbytes()
