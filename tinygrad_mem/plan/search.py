"""The search for the fastest choice of techniques that fits: choices run on ``meta``."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product

from ..memory.predict import dry_run
from . import chains
from .activations import Writable
from .choice import Choice
from .runs import Point, Recipe, Runs
from .techniques import (
    LEVELS,
    Accumulation,
    Applied,
    Autocast,
    Compression,
    InBackward,
    InPlace,
    Offload,
    Recompute,
    Tiles,
    reason_against,
    tileable,
)
from .times import OpCall, OpCounts, Times

POINTS = 12  # of the front
FEW = 8  # of so few choices, all are tried
SECOND_LOOKS = 3  # choices to try before the one that bisection found
NEAR = 1.1  # times a budget: if the smallest peak is larger, no other choice is tried
ALIKE = 0.998  # of a peak: a choice that saves less is not shown
TILES = (4, 16, 64)  # of a sequence
PARTS = (2, 4, 8, 16, 32, 64, 128)
BITS = (8, 4, 2)
Series = list[tuple[Applied, ...]]


class Search(Runs):
    """The search over choices for one recipe.

    Techniques that take no time are tried first everywhere, and removed from the result if it fits without them. For each set
    of the other techniques, recompute is searched. Sets are ordered in series; later sets save more and change more.

    Args:
        allow: names of the techniques that may be used.
        always: techniques that every choice has.
    """

    def __init__(
        self,
        recipe: Recipe,
        times: Times,
        like: str,
        allow: Sequence[str],
        progress: Callable[[str], None],
        always: tuple[Applied, ...] = (),
    ) -> None:
        super().__init__(recipe, times, like, progress)
        self.allow, self.always = tuple(allow), always
        self._ways: dict[int, list[tuple[int, float, tuple[Recompute, ...]]]] = {}
        self.plain = self.point(Choice(always))

    def share(self, other: Search) -> None:
        """Take over what does not depend on the techniques that every choice has."""
        self.__dict__["free"], self._ways = other.free, other._ways

    @cached_property
    def free(self) -> tuple[Applied, ...]:
        """The techniques that take no time and change no number."""
        found: list[Applied] = []
        if InPlace.name in self.allow:
            writable = Writable()
            self.look(Choice(), writable.watch, writable)
            found += [InPlace(writable.paths)] if writable.paths else []
        return (*found, InBackward()) if InBackward.name in self.allow else tuple(found)

    @cached_property
    def series(self) -> list[Series]:
        """The sets of techniques to combine with recompute and the free ones; those that change numbers least come first."""
        parts: list[Accumulation] = []
        if Accumulation.name in self.allow:
            with dry_run():
                samples = len(self.recipe.batch()[1])
            parts = [Accumulation(n) for n in PARTS if n <= samples]
        bits = [Compression(n) for n in BITS] if Compression.name in self.allow else []
        inputs, offload = ([Offload(only)] if Offload.name in self.allow else [] for only in (True, False))
        tiles = self._tiles() if Tiles.name in self.allow else []
        autocast = [Autocast(self.like)] if Autocast.name in self.allow else []
        combined: list[tuple[Sequence[Applied], ...]] = [
            *((), (inputs,), (offload,), (tiles,), (parts,)),
            *((inputs, tiles), (offload, tiles), (tiles[-1:], parts), (offload, parts)),
            *((autocast,), (bits,)),
            *((offload, autocast), (autocast, bits[:1]), (parts, autocast), (parts, bits[:1])),
        ]
        return [each for each in (list(product(*some)) for some in combined) if each]

    def _tiles(self) -> list[Applied]:
        """Tiles of the tokens, which are the second axis of the inputs, for the modules that can compute in tiles."""
        with dry_run():
            inputs, _ = self.recipe.batch()
            paths = tileable(self.recipe.model())
        return [Tiles(paths, tokens) for tokens in dict.fromkeys(-(-inputs.shape[1] // n) for n in TILES)]

    def choices(self, base: tuple[Applied, ...]) -> list[Choice]:
        """All ways to recompute, combined with ``base`` and the free techniques; the fastest first."""
        base = (*base, *self.always)
        free = [each for each in self.free if not any(reason_against(each, other) for other in base)]
        return [Choice((*recompute, *free, *base)) for _, _, recompute in self._recomputing(base)]

    def _recomputing(self, base: tuple[Applied, ...]) -> list[tuple[int, float, tuple[Recompute, ...]]]:
        """Ways to recompute, the fastest first, each with a lower peak than those before it (by the costs of the chains).

        They depend on the batch size. The other techniques in ``base`` shrink everything that is kept alike.
        """
        if Recompute.name not in self.allow:
            return [(0, 0.0, ())]
        split = tuple(each for each in base if isinstance(each, Accumulation))
        parts = Choice(split).parts
        if parts not in self._ways:
            writing = tuple(each for each in self.free if isinstance(each, InPlace))
            self._ways[parts] = self._chains(Choice((*writing, *split)))
        return self._ways[parts]

    def _chains(self, choice: Choice) -> list[tuple[int, float, tuple[Recompute, ...]]]:
        counts, found = OpCounts(), list[chains.Found]()
        root = self.look(choice, lambda model: chains.watch(model, found), counts)
        calls = Counter(each.path for each in found)
        once = [each for each in found if calls[each.path] == choice.parts]
        first = list({each.path: each for each in reversed(once)}.values())[::-1]
        per_part: Counter[tuple[str, OpCall]] = Counter({key: max(n // choice.parts, 1) for key, n in counts.ran.items()})
        ways = [(c.path, chains.ways(c, per_part, self.times, root)) for c in first if c.usable]
        return chains.combined([(path, *each) for path, each in ways if each is not None])

    def cheapest(self, budget: int) -> Choice | None:
        """The fastest choice that fits; among equal ones that with the fewest techniques. ``None`` if nothing fits.

        Techniques that change numbers more are searched only if nothing else fits.
        """
        if self.fits(self.plain.choice, budget):
            return self.plain.choice
        if budget < self.plain.kept:
            return None  # no technique here makes parameters or optimizer state smaller
        best: Choice | None = None
        for series in self.series:
            level = Choice((*series[-1], *self.always)).numbers
            if best is not None and LEVELS.index(level) > LEVELS.index(best.numbers):
                break
            fitting = next(filter(None, (self._fitting(base, budget, best) for base in self._shrinking(series))), None)
            best = fitting or best
        if best is None:
            self.smallest()  # all that have run are tried: with peaks that differ little, the pool's pieces decide
            known = sorted(self.points.values(), key=lambda point: (LEVELS.index(point.choice.numbers), point.time))
            best = next((point.choice for point in known if self.fits(point.choice, budget)), None)
        best = self._from_less(best, budget)
        return None if best is None else self._simplest(best, budget)

    def _from_less(self, best: Choice | None, budget: int) -> Choice | None:
        """``best``, or a faster choice that fitted a smaller budget: bisection may have missed it for this one."""
        known = {choice for choice, size in self._enough if size < budget}
        for choice in sorted(known, key=lambda choice: self.point(choice).time):
            if best is not None and self.point(choice).time >= self.point(best).time:
                break
            allowed = best is None or LEVELS.index(choice.numbers) <= LEVELS.index(best.numbers)
            if allowed and self.fits(choice, budget):
                return choice
        return best

    def _shrinking(self, series: Series) -> Iterator[tuple[Applied, ...]]:
        """The sets of a series, until one saves nothing over the set before it."""
        least = float("inf")
        for base in series:
            yield base
            peak = self.point(self.choices(base)[-1]).peak
            if peak > ALIKE * least:
                return
            least = peak

    def _simplest(self, best: Choice, budget: int) -> Choice:
        """``best``, or a choice that is as fast, fits, changes numbers no more and uses fewer techniques."""
        for technique in reversed(self.free):
            fewer = best.without(technique.name)
            if fewer != best and self.fits(fewer, budget):
                best = fewer
        known = [c for c in self.points if LEVELS.index(c.numbers) <= LEVELS.index(best.numbers)]
        fitting = [best, *(choice for choice in known if self.known_to_fit(choice, budget))]
        return min(fitting, key=lambda c: (round(self.point(c).time / self.plain.time, 3), len(c.names)))

    def _fitting(self, base: tuple[Applied, ...], budget: int, best: Choice | None) -> Choice | None:
        """The fastest way to recompute with ``base`` that fits; ``None`` if none does, or if ``best`` is as fast."""
        ordered = self.choices(base)
        if _packs(base):
            fitting = [choice for choice in _ends_and_middle(ordered) if self.fits(choice, budget)]
            found = min(fitting, key=lambda choice: self.point(choice).time, default=None)
        elif best is not None and self.point(ordered[0]).time >= self.point(best).time:
            return None  # and the others take longer
        else:
            found = self._first_fit(ordered, budget) or self._with_less(ordered, budget)
        slower = found is not None and best is not None and self.point(found).time >= self.point(best).time
        return None if slower else found

    def _with_less(self, ordered: list[Choice], budget: int) -> Choice | None:
        """The first that fits without one of the free techniques: the pool's pieces differ then, and may be better."""
        for technique in self.free:
            fewer = list(dict.fromkeys(choice.without(technique.name) for choice in ordered))
            if fewer != ordered and (found := self._first_fit(fewer, budget)) is not None:
                return found
        return None

    def _first_fit(self, ordered: list[Choice], budget: int) -> Choice | None:
        """The first that fits. Of many it is found by bisection, because later ones mostly need less memory."""
        high = len(ordered) - 1
        if high < FEW:
            return next((choice for choice in ordered if self.fits(choice, budget)), None)
        if not self.fits(ordered[high], budget):
            if self.point(ordered[high]).peak > NEAR * budget:
                return None
            return next((choice for choice in ordered[-4:-1] if self.fits(choice, budget)), None)
        high = bisect_left(ordered, True, 0, high, key=lambda choice: self.fits(choice, budget))
        earlier = sorted({high * i // SECOND_LOOKS for i in range(SECOND_LOOKS)} - {high})
        return next((ordered[i] for i in earlier if self.fits(ordered[i], budget)), ordered[high])

    def front(self) -> list[Point]:
        """The best trade-offs of peak and time, from the fastest to the smallest."""
        for series in self.series:
            for base in self._shrinking(series):
                ordered = self.choices(base)
                spread = _spread([peak for peak, _, _ in self._recomputing(base)], 2 if base else POINTS)
                for choice in _ends_and_middle(ordered) if _packs(base) else [ordered[i] for i in spread]:
                    self.point(choice)
        for point in undominated(self.points.values()):
            for technique in reversed(self.free):
                self.point(point.choice.without(technique.name))
        return undominated(self.points.values())

    def smallest(self) -> Point:
        """The choice with the lowest peak."""
        for series in self.series:
            for base in self._shrinking(series):
                for choice in self.choices(base)[-1 if base else -3 :]:
                    self.point(choice)
        return min(self.points.values(), key=lambda point: (point.peak, point.time))


def _packs(base: tuple[Applied, ...]) -> bool:
    """True if kept arrays are offloaded or compressed; recomputed ones are not, so recomputing more may need more."""
    return any(isinstance(each, (Offload, Compression)) for each in base)


def _ends_and_middle(ordered: list[Choice]) -> list[Choice]:
    """The ends and the middle."""
    return [ordered[i] for i in sorted({0, (len(ordered) - 1) // 2, len(ordered) - 1})]


def _spread(peaks: list[int], points: int) -> list[int]:
    """Positions in falling ``peaks``, the ends among them, at about even steps of bytes."""
    step = (peaks[0] - peaks[-1]) / (points - 1)
    found = [0]
    for i, peak in enumerate(peaks):
        if i == len(peaks) - 1 or (step and peaks[found[-1]] - peak >= step):
            found.append(i)
    return list(dict.fromkeys(found))


def undominated(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats in both peak and time; of similar ones, the one with the fewest techniques."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.time, len(p.choice.names), p.peak)):
        if not found or point.peak < ALIKE * found[-1].peak:
            found.append(point)
    return found
