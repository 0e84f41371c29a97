"""The memory that an op takes beside its results, on PyTorch's CPU: learned by running it once, alone, on this machine.

The op gets real tensors of the same shapes, strides and dtypes, full of zeros. PyTorch's CPU allocator tells each block that is
taken and given back meanwhile: oneDNN's packed weights and workspaces, im2col's columns, copies to another dtype. Only this one
op's memory is needed.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ...interrupts import context
from ...memory.sizes import bytes_text
from .opaque import made_by_forward

_autograd: Any = torch.autograd
_C: Any = torch._C
_LINE = 64  # bytes: PyTorch's CPU allocator begins blocks at multiples of it
_PLAIN = (
    1 << 20
)  # bytes: smaller storages are PyTorch's own, larger ones are pages that the machine gives when they are written
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


class Made(NamedTuple):
    """A result in memory of its own, as it really is; ``size`` is its storage's, in bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    size: int

    def fits(self, tensor: torch.Tensor) -> bool:
        """True if the tensor is so."""
        return self == Made(tuple(tensor.shape), tensor.stride(), tensor.dtype, _bytes(tensor))


class Within(NamedTuple):
    """The memory of an op while it runs, in bytes above those at its start.

    Attributes:
        peak: the most at once, results included.
        kept: at its end: its results.
        made: what it returns, in order; ``None`` for what is no tensor, or shares memory with an argument
            or an earlier result.
        unknown: why it is not known; ``""``: it is.
    """

    peak: int
    kept: int
    made: tuple[Made | None, ...] = ()
    unknown: str = ""


class AloneCall(NamedTuple):
    """A call of an op, with all that decides what it takes."""

    func: Any
    args: tuple
    kwargs: tuple
    grad: bool
    threads: int


_learned: dict[tuple[AloneCall, tuple], Within] = {}


class Alone:
    """Runs ops alone.

    Args:
        share: of the machine's free memory: an op that needs more is not run.
    """

    def __init__(self, share: float = 0.5) -> None:
        self.share = share

    def call(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> AloneCall | None:
        """The call of an op, as it is before the op runs. ``None``: the op returns views, which take nothing."""
        returns = func._schema.returns
        if returns and all(each.alias_info is not None and not each.alias_info.is_write for each in returns):
            return None
        describe = _Describe(exact=torch.Tag.pointwise not in func.tags)
        given = tuple(map(describe, args)), tuple((key, describe(kwargs[key])) for key in sorted(kwargs))
        return AloneCall(func, *given, describe.exact and torch.is_grad_enabled(), torch.get_num_threads())

    def within(self, call: AloneCall, args: tuple, kwargs: dict[str, Any], results: Any) -> Within:
        """The memory of a call, learned the first time that such a call is met.

        Args:
            args, kwargs: what it got; only numbers and the like are read.
            results: what it returned to the prediction.
        """
        key = call, tuple(tuple(t.shape) for t in _tensors(results))
        found = _learned.get(key)
        if found is None:
            found = _learned[key] = self._learn(call, args, kwargs, results)
        return found

    def _learn(self, call: AloneCall, args: tuple, kwargs: dict[str, Any], results: Any) -> Within:
        made = sum(_bytes(t) for t in _tensors(results))
        needed = sum(_bytes(t) for t in _tensors((args, kwargs))) + 2 * made
        if needed > self.share * free_memory():
            return Within(
                made, made, unknown=f"it needs {bytes_text(needed)} and the machine has {bytes_text(free_memory())} free"
            )
        if _autograd._profiler_enabled():
            return Within(made, made, unknown="a profiler runs")
        try:
            with _by_itself():
                return _run(call, args, kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            return Within(made, made, unknown=f"alone it fails: {str(error).splitlines()[0]}")


class _Describe:
    """Turns arguments into what can be compared. ``exact``: every number counts, and what is trained."""

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


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def as_made(results: Any, found: Within, args: tuple) -> Any:
    """The results of a prediction, those replaced that its formulas got wrong: layouts, dtypes, opaque workspaces, twins."""
    if isinstance(results, torch.Tensor) and found.made == (None,):
        return results
    leaves, structure = tree_flatten(results)
    if len(leaves) != len(found.made):
        return results
    met, wrong = {t.untyped_storage()._cdata for t in _tensors(args)}, []
    for number, (leaf, made) in enumerate(zip(leaves, found.made, strict=True)):
        if isinstance(leaf, torch.Tensor) and made is not None:
            storage = leaf.untyped_storage()._cdata
            if storage in met or not made.fits(leaf):
                wrong.append(number)
            met.add(storage)
    if not wrong:
        return results
    for number in wrong:
        made = found.made[number]
        leaves[number] = torch.empty_strided(made.sizes, made.strides, dtype=made.dtype)
        leaves[number].untyped_storage().resize_(made.size)
    return tree_unflatten(leaves, structure)


# --- running --------------------------------------------------------------------------------------------------------------


@context
def _by_itself() -> Iterator[None]:
    """Without the modes of the prediction; the random state and the warnings of the program are left alone."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


def _run(call: AloneCall, args: tuple, kwargs: dict[str, Any]) -> Within:
    fill = _Fill()
    real = [fill(value, told) for value, told in zip(args, call.args, strict=True)]
    named = {key: fill(kwargs[key], told) for key, told in call.kwargs}
    made_by_forward(call.func, real)
    older = {t.untyped_storage()._cdata for t in fill.made}
    events: list[int] = []
    with allocator_events(events):
        results = call.func(*real, **named)
    sums = [0, *accumulate(events)]
    return Within(max(sums), sums[-1], tuple(_made(leaf, older) for leaf in tree_leaves(results)))


def _made(result: Any, older: set[int]) -> Made | None:
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return None
    storage = result.untyped_storage()._cdata
    if storage in older:
        return None
    older.add(storage)
    return Made(tuple(result.shape), result.stride(), result.dtype, _bytes(result))


@context
def allocator_events(into: list[int]) -> Iterator[None]:
    """Add to ``into`` what this thread asks of PyTorch's CPU allocator, in order: bytes, below 0 for those given back."""
    quiet = _C._profiler._ExperimentalConfig()
    config = _autograd.ProfilerConfig(_autograd.ProfilerState.CPU, False, True, False, False, False, quiet)
    _autograd._enable_profiler_legacy(config)
    try:
        yield
    finally:
        for thread in _autograd._disable_profiler_legacy():
            into.extend(event.cpu_memory_usage() for event in thread if event.kind() == "memory_alloc")


class _Fill:
    """Makes real arguments: tensors of zeros, which are valid as indices too."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []

    def __call__(self, value: Any, told: Any) -> Any:
        if isinstance(told, Given):
            tensor = self.made[told.same] if told.same >= 0 else _zeros(told)
            self.made.append(tensor)
            return tensor
        if isinstance(value, (list, tuple)):
            return [self(*each) for each in zip(value, told, strict=True)]
        return None if isinstance(value, torch.Generator) else value


def _zeros(given: Given) -> torch.Tensor:
    last = sum((size - 1) * stride for size, stride in zip(given.sizes, given.strides, strict=True))
    size = given.offset + (last + 1) * given.dtype.itemsize if 0 not in given.sizes else given.offset
    if size <= _PLAIN:
        storage = torch.zeros(size, dtype=torch.uint8).untyped_storage()
    else:
        pages = np.zeros(size + _LINE, np.uint8)  # not written, they take no memory
        begin = -pages.ctypes.data % _LINE
        storage = torch.from_numpy(pages[begin : begin + size]).untyped_storage()
    made = torch.empty(0, dtype=given.dtype)
    made.set_(storage, given.offset // given.dtype.itemsize, given.sizes, given.strides)
    return made.requires_grad_(given.trained)


def free_memory() -> int:
    """Bytes of the machine that are free now."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 30
