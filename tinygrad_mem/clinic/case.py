"""A case of the clinic: a question, a program that shows it, the same program fixed, and the formula of the bytes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from .. import memory
from ..memory import Track
from ..pytorch import Replay, replay

__all__ = ("Case", "Finding", "Program", "Run", "examine")


@dataclass(frozen=True)
class Program:
    """A program, and the allocator that it meets.

    Attributes:
        run: the program; it makes all that it uses.
        settings: of PyTorch's allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``, which then serves the program's requests;
            ``None``: bytes in use are asked for, and no allocator's.
        capacity: bytes of the card; ``None``: as many as are asked for.
    """

    run: Callable[[], None]
    settings: str | None = None
    capacity: int | None = None

    def source(self) -> str:
        """The code."""
        return textwrap.dedent(inspect.getsource(self.run)).rstrip()


@dataclass(frozen=True)
class Run:
    """A program that was run on ``meta``: the bytes are those of the CPU, and nothing is computed.

    Attributes:
        track: its blocks.
        replay: its requests in PyTorch's allocator; ``None`` where the case is not about an allocator.
    """

    track: Track
    replay: Replay | None = None

    @property
    def peak(self) -> int:
        """The most bytes in use; with an allocator, the most that it took from the driver."""
        return self.track.peak if self.replay is None else self.replay.peak_reserved

    @property
    def died(self) -> bool:
        """True if the card was too small."""
        return self.replay is not None and bool(self.replay.out_of_memory)

    def at(self, mark: str, *categories: memory.Category) -> int:
        """The bytes in use at a mark, of these categories, or of all."""
        found = self.track.by_category(mark)
        return sum(size for category, size in found.items() if category in categories or not categories)

    def peak_until(self, mark: str) -> int:
        """The most bytes in use from the beginning to a mark."""
        event = next(each.index for each in self.track.marks if each.text == mark)
        line = self.track.timeline()
        return int(line.used[line.event < event].max())


@dataclass(frozen=True)
class Finding:
    """The answer, with the numbers of this run.

    Attributes:
        cause, fix: in a few sentences.
        formula: how the bytes come about, such as ``"3 x 4 x 1,024 x 256"``.
        by_formula: the bytes that it gives.
        measured: the same bytes, as the run had them.
        what: which bytes these are.
    """

    cause: str
    fix: str
    what: str
    formula: str
    by_formula: int
    measured: int


@dataclass(frozen=True)
class Case:
    """One question.

    Attributes:
        name: of the file.
        question: as people ask it.
        choices: causes to guess from.
        right: the number of the right one, from 0.
        before, after: the program that shows it, and the fixed one.
        explain: makes the answer from the run of ``before``.
        thread: where it was asked, on GitHub, such as ``"pytorch/pytorch/issues/78731"``.
        reports: what the thread says, in our words. Its numbers are quoted: nothing here computes them.
    """

    question: str
    choices: tuple[str, ...]
    right: int
    before: Program
    after: Program
    explain: Callable[[Run], Finding]
    thread: str
    reports: str

    @property
    def name(self) -> str:
        """The name of the file, and of the case on the command line."""
        return self.explain.__module__.rpartition(".")[2]

    @property
    def link(self) -> str:
        """The address of the thread."""
        return f"https://github.com/{self.thread}"


def run(program: Program) -> Run:
    """Run a program without memory and without arithmetic, and its requests through PyTorch's allocator if it names one."""
    track = memory.predict(program.run, like="cpu")
    served = None if program.settings is None else replay(track, program.settings, program.capacity)
    return Run(track, served)


def examine(case: Case) -> tuple[Run, Run, Finding]:
    """Run both programs, and explain: (before, after, the answer)."""
    before = run(case.before)
    return before, run(case.after), case.explain(before)
