"""``python -m tests.benchmarks --profile NETWORK``: where a training step's time goes, ours beside PyTorch's, by kinds of work.

Ours: each kernel timed in place, in the thread that waits for it. PyTorch's: its profiler. The rows are those of the fastest of
several steps each, in turns, so they add up to a step that was run. The step is a little slower than without a profile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile
from torch.utils._python_dispatch import TorchDispatchMode

import tinygrad_mem as tm
from tests.benchmarks.costs import NOTHING, Cost, Limits, cost_of
from tests.benchmarks.kinds import (
    BOTH_GRADIENTS,
    INPUTS,
    OUTSIDE,
    PRODUCTS,
    STEPS,
    STEPS_AND_PRODUCTS,
    WEIGHTS,
    kind_of,
    kind_of_theirs,
)
from tests.benchmarks.turns import GOALS, chosen, turn
from tests.networks import SEVEN, Workload
from tinygrad_mem.cli import choices
from tinygrad_mem.kernels.numpy.fast import threads

SIDE = 1024  # of the matrices of the product that is the limit
COPIED = 1 << 24  # numbers of the copy that is the limit: 64 MiB
STEP = "the step"
WITH_DROPOUT = replace(SEVEN[-1], name="transformer with dropout", arguments=SEVEN[-1].arguments | {"dropout": 0.1})


@dataclass
class Kernel:
    """What a kernel did in one step."""

    calls: int = 0
    seconds: float = 0.0
    beside: float = 0.0  # seconds in other threads, which are no part of the step's
    cost: Cost = NOTHING

    @property
    def spent(self) -> float:
        """Seconds in all threads."""
        return self.seconds + self.beside

    def at_limit(self, limits: Limits) -> float:
        """Seconds that the machine needs at least for what was done in this thread."""
        return self.cost.at_limit(limits) * self.seconds / self.spent if self.seconds else 0.0


@dataclass
class Profile:
    """A step of each engine.

    Attributes:
        kernels: ours, by name.
        ours: seconds of our step; those beyond the kernels are outside of them.
        theirs: seconds of PyTorch's step, by kind; they add up to the step.
        limits: the machine's, measured between the steps.
    """

    name: str
    kernels: dict[str, Kernel]
    ours: float
    theirs: dict[str, float]
    limits: Limits

    def rows(self) -> list[tuple[str, float, float, float]]:
        """(kind, our seconds, PyTorch's, seconds of ours at the machine's limit): the largest loss first, then by name."""
        mine, theirs, best = (defaultdict(float) for _ in range(3))
        joined: dict[str, str] = {PRODUCTS: STEPS_AND_PRODUCTS, STEPS: STEPS_AND_PRODUCTS} if STEPS in self.theirs else {}
        for name, kernel in self.kernels.items():
            kind = kind_of(name)
            mine[joined.get(kind, kind)] += kernel.seconds
            best[joined.get(kind, kind)] += kernel.at_limit(self.limits)
        mine[OUTSIDE] += self.ours - sum(mine.values())
        for kind, spent in self.theirs.items():
            theirs[joined.get(kind, kind)] += spent
        rows = [(kind, mine[kind], theirs[kind], best[kind]) for kind in {*mine, *theirs}]
        return sorted(rows, key=lambda row: (row[2] - row[1], row[0]))


class Watched:
    """The kernels of a device, each of which ``call(name, kernel, args, kwargs)`` runs; sizes are asked as usual."""

    def __init__(self, kernels: Any, call: Callable[..., Any]) -> None:
        self._kernels, self._call = kernels, call

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)
        if not name.endswith("_workspace"):
            kernel = partial(self._call, name, kernel)
        setattr(self, name, kernel)
        return kernel


@contextmanager
def watching(device: Any, call: Callable[..., Any]) -> Iterator[None]:
    """Inside, ``call`` runs the kernels of ``device``."""
    kernels = device.kernels
    device.kernels = Watched(kernels, lambda name, kernel, *args, **kwargs: call(name, kernel, args, kwargs))
    try:
        yield
    finally:
        device.kernels = kernels


@dataclass
class Clock:
    """Seconds of each kernel, without those of kernels that it runs itself: what a wait does meanwhile is no wait."""

    kernels: dict[str, Kernel] = field(default_factory=lambda: defaultdict(Kernel))
    owner: int = field(default_factory=threading.get_ident)
    _inside: threading.local = field(default_factory=threading.local)
    _lock: Any = field(default_factory=threading.Lock)

    def __call__(self, name: str, kernel: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        outer, self._inside.seconds = getattr(self._inside, "seconds", 0.0), 0.0
        start = time.perf_counter()
        try:
            return kernel(*args, **kwargs)
        finally:
            spent = time.perf_counter() - start
            own = spent - self._inside.seconds
            self._inside.seconds = outer + spent
            with self._lock:
                row = self.kernels[name]
                row.calls += 1
                if threading.get_ident() == self.owner:
                    row.seconds += own
                else:
                    row.beside += own


@dataclass
class Costs:
    """The cost of each kernel, from its arguments."""

    found: dict[str, Cost] = field(default_factory=lambda: defaultdict(lambda: NOTHING))

    def __call__(self, name: str, kernel: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        more, before = cost_of(name, kernel, args, kwargs), self.found[name]
        self.found[name] = Cost(before.bytes + more.bytes, before.multiplications + more.multiplications)
        return kernel(*args, **kwargs)


def profile_of(workload: Workload, seconds: float) -> Profile:
    """Profile a network's step on the CPU, for about ``seconds``."""
    device, step, other = tm.device("cpu"), workload.build(tm), workload.build(torch)
    costs = Costs()
    with watching(device, costs):
        step()
    share = _share_of_inputs(other)
    ours: list[tuple[float, dict[str, Kernel]]] = []
    theirs: list[tuple[float, dict[str, float]]] = []
    began, best = time.perf_counter(), Limits(0.0, 0.0)
    while not ours or time.perf_counter() - began < seconds:
        turn(lambda: _timed(step, device), ours.append)
        theirs += _their_steps(other)
        best = Limits(*map(max, best, limits(device)))
    spent, kernels = min(ours, key=lambda found: found[0])
    for name, row in kernels.items():
        row.cost = costs.found[name]
    kinds = min(theirs, key=lambda found: found[0])[1]
    both = kinds.pop(BOTH_GRADIENTS, 0.0)
    if both:
        kinds |= {INPUTS: share * both, WEIGHTS: (1 - share) * both}
    return Profile(workload.name, dict(kernels), spent, kinds, best)


def _timed(step: Callable[[], Any], device: Any) -> tuple[float, dict[str, Kernel]]:
    clock = Clock()
    with watching(device, clock):
        start = time.perf_counter()
        step()
        return time.perf_counter() - start, clock.kernels


def _their_steps(step: Callable[[], Any]) -> list[tuple[float, dict[str, float]]]:
    """(seconds, seconds by kind) of each step of a turn that counts."""
    found: list[Any] = []

    def one() -> None:
        with record_function(STEP):
            step()

    with torch_profile(activities=[ProfilerActivity.CPU]) as profiler:
        turn(one, found.append)
    steps = [event for event in profiler.events() or () if event.name == STEP][-len(found) :]
    return [(event.cpu_time_total / 1e6, their_kinds(event)) for event in steps]


def their_kinds(event: Any) -> dict[str, float]:
    """Seconds by kind of an event of PyTorch's profiler and of all that happened within it."""
    kinds: Counter[str] = Counter()
    left = [(event, None)]
    while left:
        event, inside = left.pop()
        kind = kind_of_theirs(event.name, inside)
        kinds[OUTSIDE if event.name.startswith("Optimizer.") else kind] += event.self_cpu_time_total / 1e6
        left += [(child, kind) for child in event.cpu_children]
    return dict(kinds)


class _Gradients(TorchDispatchMode):
    """Times both gradients of each convolution apart, which PyTorch computes in one op."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = [0.0, 0.0]  # of inputs, of weights and biases

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            asked = args[-1]
            for i, mask in enumerate(([asked[0], False, False], [False, *asked[1:]])):
                if any(mask):
                    runs = [_seconds(lambda mask=mask: func(*args[:-1], mask)) for _ in range(3)]
                    self.seconds[i] += min(runs)
        return func(*args, **(kwargs or {}))


def _share_of_inputs(step: Callable[[], Any]) -> float:
    """The part of the time of PyTorch's convolutions' gradients that is the inputs'."""
    step()
    with _Gradients() as gradients:
        step()
    return gradients.seconds[0] / (sum(gradients.seconds) or 1.0)


def limits(device: Any) -> Limits:
    """The machine's limits, the best of several runs of our own kernels on all threads."""
    a, b = (np.ones(COPIED, np.float32) for _ in range(2))
    copied = min(_seconds(lambda: device.kernels.copy(a, out=b)) for _ in range(3))
    x, y = (np.ones((SIDE, SIDE), np.float32) for _ in range(2))
    multiplied = min(_seconds(lambda: device.kernels.matmul(x, x, None, out=y)) for _ in range(10))
    return Limits(2 * a.nbytes / copied, SIDE**3 / multiplied)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


# --- what is shown


def show(profile: Profile, console: Console) -> None:
    """The table of kinds, the table of kernels, and the machine's limits."""
    console.print(_table(f"{profile.name}: milliseconds of a step, the largest loss first", KINDS_SHOWN, by_kind(profile)))
    console.print(_table(f"{profile.name}: our kernels, milliseconds", KERNELS_SHOWN, by_kernel(profile)))
    copy, product = profile.limits
    console.print(
        f"The limit: copies of {4 * COPIED >> 20} MiB read and write {copy / 1e9:,.1f} GB/s, products of {SIDE} x {SIDE} "
        f"matrices do {product / 1e9:,.0f} G multiplications/s.\n",
        highlight=False,
    )


NOTES = (
    "Of the limit: the time that the machine needs at least for the bytes or the multiplications, whichever is more. Arrays "
    "that are still in a cache may go beyond it, and so may convolutions with fewer multiplications than the plain sum has.",
    "Beside: in another thread, while this one works; the wait for it in the end is a row.",
    "PyTorch's op for both gradients of a convolution is divided as they take alone; its LSTM is one op, with its "
    "products: there, products are in the row of the steps.",
)
KINDS_SHOWN = ("kind of work", "ours", "PyTorch", "lost", "of the limit")
KERNELS_SHOWN = ("kernel", "calls", "ms", "beside", "MB", "of a\ncopy", "of a\nproduct")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title)
    for column in columns:
        first = column == columns[0]
        table.add_column(column, justify="left" if first else "right", no_wrap=first)
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == STEP else None)
    return table


OVER_SHOWN = ("network", "kind of work", "ours", "PyTorch", "over the goal", "of the limit", "PyTorch's")
MOST = 3  # rows of a network
_LEAST = 0.01  # part of PyTorch's step below which a kind has no row


def over_the_goal(profile: Profile) -> list[Sequence[str]]:
    """The kinds of work that take most beyond the goal's part of PyTorch's time: rows of a table in docs/benchmarks.md.

    The share of the limit that PyTorch's kernels reach is of what ours read, write and multiply.
    """
    goal = GOALS.get(profile.name)
    if goal is None:
        return []
    rows = [(ours - goal * theirs, kind, ours, theirs, best) for kind, ours, theirs, best in profile.rows()]
    return [
        (profile.name.split()[0], kind, *map(_rounded, (ours, theirs, more)), _share(best, ours), _share(best, theirs))
        for more, kind, ours, theirs, best in sorted(rows, reverse=True)[:MOST]
        if more >= _LEAST * sum(profile.theirs.values())
    ]


def _rounded(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _share(best: float, seconds: float) -> str:
    return f"{best / seconds:.0%}" if best and seconds else ""


def in_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown; the first two columns are words, the others numbers."""
    head, *lines = ["| " + " | ".join(row) + " |" for row in (columns, *rows)]
    return "\n".join([head, "|---|---|" + "---:|" * (len(columns) - 2), *lines])


def machine() -> str:
    """The processor, the width of its vectors, threads of ours and of PyTorch's, OpenBLAS's kernels."""
    count = f"{threads.threads()} threads of ours, {torch.get_num_threads()} of PyTorch's"
    return f"{choices.processor()}, vectors of {choices.vector_bits()} bits; {count}; " + "; ".join(choices.libraries())


def by_kind(profile: Profile) -> Iterator[Sequence[str]]:
    """Rows of the table of kinds: the last one is the step, which the others add up to."""
    for kind, ours, theirs, best in profile.rows():
        yield kind, _ms(ours), _ms(theirs), _ms(ours - theirs), _share(best, ours)
    theirs = sum(profile.theirs.values())
    yield STEP, _ms(profile.ours), _ms(theirs), _ms(profile.ours - theirs), f"ratio {profile.ours / theirs:.2f}"


def by_kernel(profile: Profile) -> Iterator[Sequence[str]]:
    """Rows of the table of our kernels, the longest first; those below a thousandth of the step are left out."""
    copy, product = profile.limits
    for name, kernel in sorted(profile.kernels.items(), key=lambda item: -item[1].spent):
        spent, cost = kernel.spent, kernel.cost
        if spent > 1e-3 * profile.ours:
            moved = f"{cost.bytes / copy / spent:.0%}" if cost.bytes else ""
            multiplied = f"{cost.multiplications / product / spent:.0%}" if cost.multiplications else ""
            beside = _ms(kernel.beside) if kernel.beside else ""
            yield name, str(kernel.calls), _ms(kernel.seconds), beside, f"{cost.bytes / 1e6:,.1f}", moved, multiplied


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def main(only: str, seconds: float) -> None:
    """Print the profiles of the networks whose names contain ``only``, and of a transformer with dropout."""
    torch.set_num_threads(os.cpu_count() or 1)
    console, over = Console(), []
    for workload in chosen(only, [WITH_DROPOUT]):
        with Console(stderr=True).status(f"{workload.name}: steps of both engines in turns"):
            found = profile_of(workload, seconds)
        show(found, console)
        over += over_the_goal(found)
    console.print(machine(), *NOTES, sep="\n", highlight=False)
    print(f"\nWhat is over the goals, as docs/benchmarks.md has it:\n\n{in_markdown(OVER_SHOWN, over)}")
