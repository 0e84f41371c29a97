"""Rows of the table, and the requests that a row finds in one call beside the op's results, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch

from ....interrupts import context
from ...cards import GraphicsCard

Rule = Callable[["KernelCall"], None]
LONG = 8  # bytes of an index, and of an address
_CUDNN = {(2, 5): 90100, (2, 7): 90501, (2, 8): 91002, (2, 11): 91900, (2, 12): 92000}
"""The cuDNN that the wheel on PyPI requires, from a version of PyTorch on. Source: the wheels' ``Requires-Dist``."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, and the PyTorch that runs on it, as kernels ask for them. By default an A100 and the PyTorch that is installed.

    ``deterministic`` and ``benchmark`` read PyTorch's own switches.

    Attributes:
        capability: compute capability; ``(9, 0)`` is Hopper.
        processors: how many multiprocessors it has.
        threads: how many threads run at once on each of them.
        version: of PyTorch, ``(2, 13)``: what libraries take has changed between versions.
        cudnn: version of cuDNN, as ``torch.backends.cudnn.version()``; by default that of the wheel on PyPI.
        settings: environment variables, such as ``{"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}``; by default this process's.
    """

    capability: tuple[int, int] = (8, 0)
    processors: int = 108
    threads: int = 2048
    version: tuple[int, int] = (int(torch.__version__.split(".")[0]), int(torch.__version__.split(".")[1]))
    cudnn: int = 0
    settings: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def __post_init__(self) -> None:
        if not self.cudnn:
            wheel = max((first for first in _CUDNN if first <= self.version), default=min(_CUDNN))
            object.__setattr__(self, "cudnn", _CUDNN[wheel])

    @classmethod
    def of(cls, card: GraphicsCard, version: str = "") -> Gpu:
        """A card with a version of PyTorch; ``""``: the one that is installed."""
        major, minor = (version or torch.__version__).split(".")[:2]
        return cls(card.capability, card.processors, card.threads, (int(major), int(minor)))

    @property
    def benchmark(self) -> bool:
        """``torch.backends.cudnn.benchmark``."""
        return torch.backends.cudnn.benchmark

    @property
    def deterministic(self) -> bool:
        """``torch.use_deterministic_algorithms`` is on."""
        return torch.are_deterministic_algorithms_enabled()


class Request(NamedTuple):
    """One event beside an op's results.

    Attributes:
        kind: ``"ask"``: a block is asked for, and ends with the op where no ``"free"`` says otherwise; ``"keep"``: it is asked
            for and lives as long as the process; ``"free"``: the block ends; ``"result"``: now the op asks for a result.
        block: number of the block in this call, or of the result.
        size: bytes.
        role: ``"WORKSPACE"`` or ``"TEMPORARY"``.
    """

    kind: str
    block: int
    size: int = 0
    role: str = ""


class Bound(NamedTuple):
    """A thing that is not known of a call: about ``size`` bytes more at most, and why."""

    size: int
    why: str


class Requests(NamedTuple):
    """The requests of a call beside its results.

    Attributes:
        steps: in order. Results that no step names are asked for before the first one. Blocks that nothing has freed end with
            the op, the newest first.
        bounds: what is not known.
    """

    steps: tuple[Request, ...] = ()
    bounds: tuple[Bound, ...] = ()

    def events(self, count: int) -> Iterator[Request]:
        """All events of a call with ``count`` results: each result once, and the end of each block that ends with the op."""
        named = {step.block for step in self.steps if step.kind == "result"}
        live: list[int] = []
        yield from (Request("result", index) for index in range(count) if index not in named)
        for step in self.steps:
            if step.kind == "ask":
                live.append(step.block)
            elif step.kind == "free":
                live.remove(step.block)
            if step.kind != "result" or step.block < count:
                yield step
        yield from (Request("free", block) for block in reversed(live))


NOTHING = Requests()


class KernelRow(NamedTuple):
    """A row of the table.

    Attributes:
        ops: ``"sum"`` for all overloads, ``"sum.dim_IntList"`` for one.
        takes: the formula, in words.
        source: file and function.
        seen: recordings in which it was found; ``""``: derived from sources only.
        rule: the function.
    """

    ops: tuple[str, ...]
    takes: str
    source: str
    seen: str
    rule: Rule


ROWS: dict[str, KernelRow] = {}


def row(ops: str, takes: str, source: str, seen: str = "") -> Callable[[Rule], Rule]:
    """Add a function of a call to the table.

    Args:
        ops: with spaces between them.
        source: files of PyTorch below ``aten/src/ATen/native``, if they do not begin with ``aten``, and functions in them.
    """

    def add(rule: Rule) -> Rule:
        found = KernelRow(tuple(ops.split()), takes, source, seen, rule)
        for op in found.ops:
            if op in ROWS:
                raise ValueError(f"{op} has a row: {ROWS[op].rule.__name__}")
            ROWS[op] = found
        return rule

    return add


class KernelCall:
    """A call of an op on a GPU, for a row to read, and to say what it asks for.

    Attributes:
        gpu: the GPU.
        outs: its results.
        thread: the thread that calls, ``"main"`` or ``"autograd"``: each has library handles of its own.
        kept: what the process has, by key: workspaces of handles.
    """

    def __init__(self, func: Any, args: tuple, kwargs: Mapping, outs: list, gpu: Gpu, thread: str, kept: dict) -> None:
        self.func, self.outs, self.gpu, self.thread, self.kept = func, outs, gpu, thread, kept
        self.steps: list[Request] = []
        self.bounds: list[Bound] = []
        self._given, self._next = named(func, args, kwargs), 0

    @property
    def name(self) -> str:
        """The op's, without its overload: ``"aten::sum"``."""
        return self.func._schema.name

    def __getitem__(self, name: str) -> Any:
        """The argument with this name of the op's schema."""
        return self._given[name]

    def get(self, name: str, other: Any = None) -> Any:
        """The argument with this name, or ``other`` where the op has none."""
        return self._given.get(name, other)

    def ask(self, *sizes: int, role: str = "WORKSPACE") -> int:
        """Ask for blocks of these sizes, until the op ends or :meth:`free`; return the last one's number. 0 bytes: no block."""
        for size in sizes:
            self._step("ask", size, role)
        return self._next

    def temporary(self, *sizes: int) -> int:
        """Blocks of tensors, as by :meth:`ask`."""
        return self.ask(*sizes, role="TEMPORARY")

    def keep(self, key: Any, size: int) -> None:
        """A block that the process keeps under ``key``; it is asked for once."""
        if (self.thread, key) not in self.kept:
            self.kept[self.thread, key] = size
            self._step("keep", size)

    def _step(self, kind: str, size: int, role: str = "WORKSPACE") -> None:
        self._next += 1
        if size > 0:
            self.steps.append(Request(kind, self._next, size, role))

    def free(self, *blocks: int) -> None:
        """These blocks end now."""
        asked = {step.block for step in self.steps if step.kind == "ask"}
        self.steps.extend(Request("free", block) for block in blocks if block in asked)

    def once(self, size: int, role: str = "WORKSPACE") -> None:
        """A block that ends before the next request."""
        self.free(self.ask(size, role=role))

    @context
    def within(self) -> Iterator[None]:
        """An op inside this op: blocks asked for in this region end with it, the newest first."""
        before = len(self.steps)
        yield
        steps = self.steps[before:]
        ended = {step.block for step in steps if step.kind == "free"}
        self.free(*[step.block for step in reversed(steps) if step.kind == "ask" and step.block not in ended])

    def result(self, *indices: int) -> None:
        """Now the op asks for these results; before its first step for those that are not named."""
        self.steps.extend(Request("result", index) for index in indices)

    def bound(self, size: int, why: str) -> None:
        """``size`` bytes more may be asked for."""
        self.bounds.append(Bound(size, why))

    def contiguous(self, tensor: torch.Tensor, order: torch.memory_format = torch.contiguous_format) -> int:
        """A copy of a tensor that is not contiguous in this order."""
        return self.temporary(0 if tensor.is_contiguous(memory_format=order) else nbytes(tensor))

    def copies(self, *names: str) -> None:
        """A copy of each of these arguments that is a tensor, and not contiguous."""
        for name in names:
            if isinstance(self.get(name), torch.Tensor):
                self.contiguous(self[name])


def named(func: Any, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, with those that are not given."""
    return {
        each.name: args[place] if place < len(args) else kwargs.get(each.name, each.default_value)
        for place, each in enumerate(func._schema.arguments)
    }


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return prod(tensor.shape) * tensor.element_size()


def on_host(tensor: torch.Tensor) -> bool:
    """True for a tensor that is not on the GPU."""
    return getattr(tensor, "fake_device", tensor.device).type == "cpu"


def accumulated(dtype: torch.dtype) -> int:
    """Bytes of the type in which a GPU accumulates ``dtype``."""
    return max(4, dtype.itemsize) if dtype.is_floating_point or dtype.is_complex else 8


def one_axis(axes: Iterable[tuple[int, int]]) -> bool:
    """True if axes, each a stride and a size, the outermost first, can be seen as one."""
    return all(outer[0] == inner[0] * inner[1] for outer, inner in pairwise(axis for axis in axes if axis[1] != 1))


def dense(tensor: torch.Tensor) -> bool:
    """True if the elements fill their memory without gaps, in any order, and none is there twice."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def up(size: int, step: int) -> int:
    """``size / step``, rounded up."""
    return -(-size // step)
