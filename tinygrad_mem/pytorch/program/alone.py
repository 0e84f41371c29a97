"""The memory that an op takes beside its results, on PyTorch's CPU: learned by running it once, alone, on this machine.

The op gets real tensors of the same shapes, strides and dtypes, full of 0. PyTorch's CPU allocator reports each block that is
allocated and freed meanwhile: oneDNN's packed weights and workspaces, im2col's columns, copies to another dtype. Only this one
op's memory is needed. Later predictions of this process use the result, and so do other processes: see :mod:`.remembered`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ...files import cache_folder
from ...interrupts import context
from ...memory.sizes import bytes_text
from . import by_values
from .described import AloneCall, Given, Made, Within, givens, results_only, storage_bytes, tensors_in
from .dispatcher import operators
from .remembered import Remembered
from .smaller import FACTORIES, as_cut, by_rule, cut_call, smaller

_autograd: Any = torch.autograd
aten = torch.ops.aten
_C: Any = torch._C
_LINE = 64  # bytes: PyTorch's CPU allocator begins blocks at multiples of it
_PLAIN = 1 << 20  # bytes: smaller storages are PyTorch's own; pages of larger ones are taken when they are written
NO_LARGER = {*operators("native_batch_norm native_batch_norm_backward _native_batch_norm_legit convolution_backward cat")}
"""Ops whose results are no larger than their arguments together, all in memory of their own."""
_learned: dict[tuple[AloneCall, tuple], Within] = {}
_before_results: dict[AloneCall, Within | None] = {}
_KEPT = 20_000  # calls that a process keeps, as many as the file of :mod:`.remembered`
_NEW = Within(0, 0)
_remembered = cache(Remembered)


class Alone:
    """Runs ops alone.

    Args:
        share: of the machine's free memory: an op that needs more is not run.

    Attributes:
        remembered: what this process and earlier ones have learned.
    """

    def __init__(self, share: float = 0.5) -> None:
        self.share = share
        for found in (_learned, _before_results):
            if len(found) > _KEPT:  # each shape of a batch is a call of its own
                found.clear()
        self.remembered = _remembered(cache_folder())

    def first(self, call: AloneCall, args: tuple, kwargs: dict[str, Any]) -> Within | None:
        """The memory of a call, if it can be known before the results are; else ``None``."""
        found = _before_results.get(call, _NEW)
        if found is _NEW:
            same = smaller(call)
            found = same and same.whole(*[self.within(each, args, kwargs, ()) for each in same.calls])
            found = found or by_rule(call) or self.remembered.get(call)
            most = _most_bytes(call.func, args)
            if found is None and most is not None:
                return self.within(call, args, kwargs, (), most)
            _before_results[call] = found
        return found

    def within(self, call: AloneCall, args: tuple, kwargs: dict[str, Any], results: Any, most: int = 0) -> Within:
        """The memory of a call; the first call of its kind is run to measure it.

        Args:
            args, kwargs: what it got; only numbers and the like are read.
            results: what it returned to the prediction.
            most: bytes that it makes at most, if ``results`` does not have them yet.
        """
        key = call, tuple(tuple(t.shape) for t in tensors_in(results))
        found = _learned.get(key)
        if found is None:
            found = self._from_results(call, args, kwargs, results) or self.remembered.get(call)
            made = most or sum(storage_bytes(t) for t in tensors_in(results))
            why = "" if found else self._why_not_run(call, made)
            if why:
                return Within(made, made, unknown=why)
            found = _learned[key] = found or _learn(call, args, kwargs, made)
            self.remembered.add(call, found)
            _before_results[call] = None if found.unknown else found
        return found

    def _from_results(self, call: AloneCall, args: tuple, kwargs: dict[str, Any], results: Any) -> Within | None:
        """The memory of a call that follows from its results, or from those of a smaller one."""
        if call.func in FACTORIES:
            return results_only(tuple(map(Made.of, tensors_in(results))))
        cut = cut_call(call)
        return as_cut(self.within(cut, args, kwargs, ()), results) if cut is not None else None

    def _why_not_run(self, call: AloneCall, made: int) -> str:
        """The reason why the call, with results of ``made`` bytes, cannot be run now; ``""``: it can."""
        needed = sum(given.bytes for given in givens((call.args, call.kwargs))) + 2 * made
        if needed > self.share * free_memory():
            return f"it needs {bytes_text(needed)} and the machine has {bytes_text(free_memory())} free"
        return "a profiler runs" if _autograd._profiler_enabled() else ""


def _most_bytes(func: Any, args: tuple) -> int | None:
    """Bytes that the results have at most in memory of their own; ``None``: only their formulas show that."""
    if func in NO_LARGER or func._schema.name.endswith("_"):  # in place
        return 0
    if func is not aten.convolution.default or args[6]:
        return None
    x, weight, _, _, padding, *_ = args
    if len(padding) == 1:  # one number for all axes
        padding = list(padding) * len(x.shape[2:])
    sides = [side + 2 * pad for side, pad in zip(x.shape[2:], padding, strict=True)]
    return x.shape[0] * weight.shape[0] * prod(sides) * x.element_size()


def _learn(call: AloneCall, args: tuple, kwargs: dict[str, Any], made: int) -> Within:
    try:
        with _by_itself():
            found = run_alone(call, args, kwargs)
            if by_values.depends(call.func, args):
                return found._replace(more=max(0, run_alone(call, args, kwargs, most=True).peak - found.peak))
            return found
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
        return Within(made, made, unknown=f"alone it fails: {str(error).splitlines()[0]}")


def as_made(results: Any, found: Within, args: tuple) -> Any:
    """The results of a prediction, corrected where formulas are wrong: layouts, dtypes, opaque workspaces, shared memory."""
    if isinstance(results, torch.Tensor) and found.made == (None,):
        return results
    leaves, structure = tree_flatten(results)
    if len(leaves) != len(found.made):
        return results
    met, wrong = {t.untyped_storage()._cdata for t in tensors_in(args)}, []
    for number, (leaf, made) in enumerate(zip(leaves, found.made, strict=True)):
        if isinstance(leaf, torch.Tensor) and made is not None:
            storage = leaf.untyped_storage()._cdata
            if storage in met or made != Made.of(leaf):
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
    """Run without the modes of the prediction, and keep the program's random state and warnings unchanged."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


def run_alone(call: AloneCall, args: tuple, kwargs: dict[str, Any], most: bool = False) -> Within:
    """The memory of a call, from running it now on tensors of zeros, or on what :func:`.by_values.fill` writes."""
    fill = _Fill()
    real = [fill(value, given) for value, given in zip(args, call.args, strict=True)]
    named = {key: fill(kwargs[key], given) for key, given in call.kwargs}
    by_values.made_by_forward(call.func, real)
    by_values.fill(call.func, fill.made, most)
    by_values.choose(call.func, real, most)
    by_values.fit(call.func, real, named)
    older = {t.untyped_storage()._cdata for t in fill.made}
    events: list[int] = []
    with allocator_events(events):
        results = call.func(*real, **named)
    sums = [0, *accumulate(events)]
    if min(sums) < 0:
        raise RuntimeError("it gives back memory that was there before, whose size PyTorch's profiler may get wrong")
    return Within(max(sums), sums[-1], tuple(_made_of(leaf, older) for leaf in tree_leaves(results)))


def _made_of(result: Any, older: set[int]) -> Made | None:
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return None
    storage = result.untyped_storage()._cdata
    if storage in older:
        return None
    older.add(storage)
    return Made.of(result)


@context
def allocator_events(into: list[int]) -> Iterator[None]:
    """Add this thread's requests of PyTorch's CPU allocator to ``into``, in order: bytes, below 0 for bytes that are freed."""
    quiet = _C._profiler._ExperimentalConfig()
    config = _autograd.ProfilerConfig(_autograd.ProfilerState.CPU, False, True, False, False, False, quiet)
    _autograd._enable_profiler_legacy(config)
    try:
        yield
    finally:
        for thread in _autograd._disable_profiler_legacy():
            into.extend(event.cpu_memory_usage() for event in thread if event.kind() == "memory_alloc")


def measured(run: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a real call on the CPU, and its temporary bytes at their most. (0 under a profiler, which hides them.)"""
    if _autograd._profiler_enabled():
        return run(), 0
    events: list[int] = []
    with allocator_events(events):
        made = run()
    return made, max(accumulate(events), default=0) - sum(events)


class _Fill:
    """Makes real arguments: tensors of zeros, which are valid as indices too."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []

    def __call__(self, value: Any, given: Any) -> Any:
        if isinstance(given, Given):
            tensor = self.made[given.same] if given.same >= 0 else _zeros(given)
            self.made.append(tensor)
            return tensor
        if isinstance(value, (list, tuple)):
            return [self(*each) for each in zip(value, given, strict=True)]
        return None if isinstance(value, torch.Generator) else value


def _zeros(given: Given) -> torch.Tensor:
    size = given.bytes
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
