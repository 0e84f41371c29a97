"""The memory of every rank of a program: those that cannot differ are predicted once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from .attribution import Category
from .render.peaks import peaks
from .sizes import bytes_text
from .timeline import When
from .track import Track

T = TypeVar("T")
_RUNS = 4  # runs of ranks that are written out


class Alike(NamedTuple):
    """Ranks whose runs ask for the same bytes, and the track of one of them; the peak is that from ``since`` on."""

    ranks: tuple[int, ...]
    track: Track
    since: When = 0

    @property
    def used(self) -> dict[Category, int]:
        """Bytes in use at the peak of each of these ranks, by category."""
        return self.track.at_peak(self.since).by_category if len(self.track.timeline()) else {}

    @property
    def peak(self) -> int:
        """Most bytes in use at any moment, on each of these ranks."""
        return sum(self.used.values())

    @property
    def reserved(self) -> int:
        """The bytes that the pool of each of these ranks holds in the end."""
        return self.track.pool("end").reserved if len(self.track.timeline()) else 0


class Grid(NamedTuple):
    """The first mesh that a program made of all ranks."""

    names: tuple[str, ...]
    ranks: np.ndarray


class AllRanks(list[Alike]):
    """All ranks of a program, in groups of those that are alike; ``print`` it to see the peak of each.

    Attributes:
        grid: the mesh of the ranks, if the program made one.
    """

    def __init__(self, found: Iterable[Alike] = (), grid: Grid | None = None) -> None:
        super().__init__(found)
        self.grid = grid

    def since(self, moment: When) -> AllRanks:
        """The same ranks with their peaks from ``moment`` on, such as the text of a mark when the model has been made."""
        return AllRanks([each._replace(since=moment) for each in self], self.grid)

    def place(self, alike: Alike) -> str:
        """The place of these ranks in the mesh, such as ``pp 0, tp 0-3``, without dimensions along which they are everywhere.

        It is ``""`` without a mesh, or if they are no box of it.
        """
        if self.grid is None:
            return ""
        places = np.argwhere(np.isin(self.grid.ranks, alike.ranks))
        along = [np.unique(column).tolist() for column in places.T]
        if np.prod([len(each) for each in along]) != len(alike.ranks):
            return ""
        sizes = self.grid.ranks.shape
        named = zip(self.grid.names, along, sizes, strict=True)
        return ", ".join(f"{name} {in_runs(each)}" for name, each, size in named if len(each) < size)

    def label(self, alike: Alike) -> str:
        """The ranks, and where they are."""
        count, runs = len(alike.ranks), in_runs(alike.ranks)
        text = f"{count} ranks: {runs}" if "..." in runs else f"rank{'s' * (count > 1)} {runs}"
        return f"{text} ({place})" if (place := self.place(alike)) else text

    def plot(self, path: Path | str, *, title: str = "") -> None:
        """Write a picture (png, svg or pdf by the ending of ``path``): a bar for each different rank, its peak by category.

        Raises:
            ValueError: no rank allocates anything, or no picture format has the ending.
            ModuleNotFoundError: matplotlib is missing: ``pip install matplotlib``.
        """
        peaks(path, [self.label(each) for each in self], [each.used for each in self], title)

    def __str__(self) -> str:
        lines = [
            f"{self.label(each)}: peak {bytes_text(each.peak)}, reserved {bytes_text(each.reserved)}"
            + "".join(
                f"{', ' if i else ': '}{name} {bytes_text(size)}"
                for i, (name, size) in enumerate(sorted(each.used.items(), key=lambda item: -item[1]))
            )
            for each in self
        ]
        return "\n".join(lines)


def in_runs(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: ``0-3, 8``; of many runs the first two and the last."""
    edges = [0, *(i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1), len(numbers)]
    runs = [f"{numbers[a]}-{numbers[b - 1]}" if b - a > 1 else str(numbers[a]) for a, b in pairwise(edges)]
    return ", ".join(runs if len(runs) <= _RUNS else [*runs[:2], "...", runs[-1]])


def check_asked(run: Any, rank: int, world_size: int | None, ranks: str | None) -> None:
    """Raises: ArgumentError: arguments of a prediction name no function, no rank, or all of an unknown number."""
    if not callable(run):
        raise ArgumentTypeError(f"predict: expected a function that makes a network and trains it, found {run!r:.80}")
    if not (world_size is None and rank == 0) and not 0 <= rank < (world_size or 0):
        raise ArgumentError(f"predict: found rank={rank} and world_size={world_size}: give both, with 0 <= rank < world_size")
    if ranks is not None and (ranks != "all" or world_size is None):
        raise ArgumentError(f"predict: ranks={ranks!r}, world_size={world_size}: give ranks='all' with a world_size")


def of_all(predict: Callable[[int], tuple[Track, Any]], size: int) -> AllRanks:
    """The ranks from 0 to ``size - 1``, in groups of those that are alike.

    Args:
        predict: the track of a rank, and the device of its dry run.
    """
    found = AllRanks()
    for ranks, track, meta in different(predict, size):
        if not found and meta.mesh is not None:
            found.grid = Grid(*meta.mesh)
        found.append(Alike(ranks, track))
    return found


def different(predict: Callable[[int], tuple[T, Any]], size: int) -> Iterator[tuple[tuple[int, ...], T, Any]]:
    """Predict one rank of each group of ranks that are alike: the ranks, and what ``predict`` found for the first of them.

    Args:
        predict: something about a rank, and the device of its dry run, which knows what depended on the rank: arrays of the
            answers that every rank would have got. Ranks with the same answers in all of them run alike.
    """
    rest = np.arange(size)
    while rest.size:
        rank = int(rest[0])
        result, meta = predict(rank)
        same = np.ones(size, bool)
        for answer in meta.answers.values():
            same &= answer == answer[rank]
        yield tuple(rest[same[rest]].tolist()), result, meta
        rest = rest[~same[rest]]
