"""The search on several ranks: the ways to divide a model, each with the techniques of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import ArgumentError, GraphError, NotOfferedError, TinygradMemError, clear_frames
from .choice import Choice
from .runs import Point, Recipe
from .search import Search, undominated
from .techniques import LEVELS, OVER_RANKS, Replicated
from .times import Times


class Divided:
    """One search for each way to divide the model. A recipe's batch is that of one rank.

    Attributes:
        refused: a way to divide the model that is not possible -> why: some optimizers need whole parameters.
        plain: the first way that is possible, without other techniques: data parallel.
    """

    def __init__(self, recipe: Recipe, times: Times, like: str, allow: Sequence[str], progress: Callable[[str], None]) -> None:
        self.recipe, self.times, self.like, self.allow = recipe, times, like, tuple(allow)
        self._searches: dict[type, Search] = {}
        self.refused: dict[Replicated, str] = {}
        errors: list[TinygradMemError] = []
        for way in [kind(recipe.ranks) for kind in OVER_RANKS if kind.name in allow]:
            try:
                made = Search(recipe, times, like, allow, progress, (way,))
            except (ArgumentError, GraphError, NotOfferedError) as error:
                clear_frames(error)
                errors.append(error)
                self.refused[way] = str(error)
                continue
            if self._searches:
                made.share(next(iter(self._searches.values())))
            self._searches[type(way)] = made
        if not self._searches:
            raise errors[0]
        self.plain: Point = next(iter(self._searches.values())).plain

    @property
    def tried(self) -> list[Point]:
        """All choices that have run."""
        return [point for search in self._searches.values() for point in search.tried]

    def point(self, choice: Choice) -> Point:
        """The needs of the step with ``choice``."""
        return self._search_of(choice).point(choice)

    def train(self, choice: Choice) -> None:
        """As :meth:`Runs.train`."""
        self._search_of(choice).train(choice)

    def _search_of(self, choice: Choice) -> Search:
        return next(self._searches[type(each)] for each in choice.techniques if isinstance(each, Replicated))

    def cheapest(self, budget: int) -> Choice | None:
        """The fastest choice that fits, sending included. Choices that change numbers less are preferred."""
        best: Point | None = None
        for search in sorted(self._searches.values(), key=lambda search: search.plain.time):
            if best is not None and search.plain.time >= best.time and best.choice.numbers == search.plain.choice.numbers:
                break  # all its other choices take longer
            choice = search.cheapest(budget)
            found = None if choice is None else search.point(choice)
            if found is not None and (best is None or _order(found) < _order(best)):
                best = found
        return None if best is None else best.choice

    def front(self) -> list[Point]:
        """The best trade-offs of peak and time, from the fastest to the smallest."""
        return undominated(point for search in self._searches.values() for point in search.front())

    def smallest(self) -> Point:
        """The choice with the lowest peak."""
        return min((search.smallest() for search in self._searches.values()), key=lambda point: (point.peak, point.time))


def _order(point: Point) -> tuple[int, float]:
    return LEVELS.index(point.choice.numbers), point.time
