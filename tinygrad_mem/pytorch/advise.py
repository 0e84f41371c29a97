"""``advise``: it predicts a PyTorch program again with each change that can be made from outside, alone and combined."""

from __future__ import annotations

import inspect
import warnings
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from ..memory.sizes import parse_bytes
from .advice import Advice, Advised
from .cards import GraphicsCard, card_of
from .demand import Demand, Served
from .predict import Prediction, in_words, predicted

if TYPE_CHECKING:
    from .changes import ProgramChange
    from .program.seen import Seen

BATCH = ("batch_size", "batch", "bs", "micro_batch_size", "per_device_train_batch_size")
"""The names of the argument that is taken for the batch size."""
_MOST = 1 << 20


def advise(
    run: Callable[..., Any],
    *args: Any,
    device: str = "cuda",
    gpu: str = "",
    settings: str = "",
    capacity: int | str | None = None,
    version: str = "",
    **kwargs: Any,
) -> Advice:
    """Predict ``run(*args, **kwargs)`` with each change that needs none of its code, alone and in the best combinations.

    Every saving is predicted for this program; none comes from a table. ``run`` is as for :func:`.predict`. If it has an
    argument ``batch_size`` and a ``capacity`` is given, the largest batch that fits is searched for.

    Args:
        device: the device that is predicted.
        gpu: the card, as for :func:`.predict`; its memory is the ``capacity`` if none is given.
        settings: settings of PyTorch's CUDA allocator, for the program as it is and for each change.
        capacity: the card's memory, in bytes or as text such as ``"24 GiB"``.
        version: of the PyTorch on the GPU's machine, as for :func:`.predict`.

    Raises:
        ValueError: :func:`.predict` raises it for the program as it is; or ``capacity`` is not a size.
    """
    card = card_of(gpu)
    room = parse_bytes(capacity) if capacity is not None else card.room if gpu else None
    trials = Trials(run, args, kwargs, device, settings, card, room, version)
    changes = trials.begin()
    reasons = {change.name: change.why_not(trials.seen, device) for change in changes}
    refused = [
        Advised([each.name], cost=each.cost, code=each.code, source=[each.source], refused=reasons[each.name])
        for each in changes
        if reasons[each.name]
    ]
    tried = [trials.row([change]) for change in changes if not reasons[change.name]]
    refused += [row for row in tried if row.refused]
    rows = sorted((row for row in tried if not row.refused), key=_size)
    helping = [trials.changes[row.names[0]] for row in rows if _size(row) < _size(trials.plain)]
    together = trials.together(helping)
    batch = trials.batches([*rows, *together])
    return Advice(trials.plain, rows, together, batch, refused, room, trials.notes)


def _size(row: Advised) -> tuple[int, int]:
    return row.peak_reserved, row.peak


class _Demanded(NamedTuple):
    """A program that was predicted, on a card that never refuses."""

    demand: Demand
    looks: bool  # see Prediction.looks
    notes: list[str]
    unknown: int  # bytes, more or less; see Prediction.unknown
    paid: dict[str, str]  # the name of a change -> its price


class Trials:
    """The predictions of one program.

    Attributes:
        changes: those that may apply, by name, in the order in which they are made.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        args: tuple,
        kwargs: dict[str, Any],
        device: str,
        settings: str,
        card: GraphicsCard,
        room: int | None,
        version: str = "",
    ) -> None:
        self.run, self.args, self.kwargs = run, args, kwargs
        self.device, self.settings, self.card, self.room, self.version = device, settings, card, room, version
        self.plain, self.notes = Advised([]), [""]
        self.seen: Seen
        self.changes: dict[str, ProgramChange] = {}
        self._rows: dict[tuple[str, ...], Advised] = {}
        self._runs: dict[tuple, _Demanded] = {}
        self._refused = self._catches = False  # a request was refused; the program continues after that

    def begin(self) -> list[ProgramChange]:
        """Predict the program as it is, observe it, and list the changes that apply."""
        predicted(lambda: None, self.device)  # raises if PyTorch is missing
        from .changes import changes
        from .program.seen import Seen

        self.seen = Seen()
        self.notes = self._ran([], None, look=True).notes
        self._measure(self.plain, [], None)
        found = changes(self.seen)
        self.changes = {change.name: change for change in found}
        return found

    def row(self, changes: list[ProgramChange]) -> Advised:
        """The program with these changes."""
        names = tuple(change.name for change in changes)
        if names not in self._rows:
            self._rows[names] = self._row(changes)
        return self._rows[names]

    def _row(self, changes: list[ProgramChange]) -> Advised:
        row = Advised([change.name for change in changes], code="\n".join(change.code for change in changes))
        row.source = [change.source for change in changes]
        try:
            self._measure(row, changes, None)
        except Exception as error:  # a change can make the user's program fail in any way
            said = str(error).partition("\n")[0]
            row.refused = f"the program fails with it: {type(error).__name__}: {said}"
            return row
        paid = self._ran(changes, None).paid
        row.cost = "; ".join(dict.fromkeys(paid.get(change.name, change.cost) for change in changes))
        row.numbers = max(changes, key=lambda change: (change.price, change.numbers != "the same")).numbers
        return row

    def _measure(self, row: Advised, changes: list[ProgramChange], batch: tuple[str, int] | None) -> None:
        """Fill in the bytes of a row."""
        found = self._served(changes, None, batch)
        row.peak, row.peak_reserved = found.peak, found.peak_reserved
        if row.names:
            row.saved, row.saved_reserved = self.plain.peak - row.peak, self.plain.peak_reserved - row.peak_reserved
        row.unknown = self._ran(changes, batch).unknown
        if self.room is not None:
            perhaps = None if row.unknown and self._fits(changes, batch, row.unknown) else False
            row.fits = self._fits(changes, batch) or perhaps

    def _fits(self, changes: list[ProgramChange], batch: tuple[str, int] | None, more: int = 0) -> bool:
        """True if the program surely fits; with ``more`` bytes on the card, and what is not known small: perhaps."""
        assert self.room is not None
        room = self.room + (more or -self._ran(changes, batch).unknown)
        fits = room > 0 and self._served(changes, room, batch).fits
        if not fits and not self._refused:
            self._refused = True
            self._catches = self._predict(changes, self._settings(changes), room, batch).fits and self.device != "cpu"
            return self._catches
        return fits

    def _served(self, changes: list[ProgramChange], capacity: int | None, batch: tuple[str, int] | None) -> Served:
        """The requests of the program with these changes, served on a card with ``capacity`` bytes."""
        run, settings = self._ran(changes, batch), self._settings(changes)
        if not run.looks and not self._catches:
            return run.demand.served(settings, capacity)
        found = self._predict(changes, settings, capacity, batch)  # it may do something else there
        room = capacity if self.device == "cpu" and capacity is not None else found.peak
        return Served(found.peak, found.peak_reserved, found.fits and found.peak <= room)

    def _settings(self, changes: list[ProgramChange]) -> str:
        return ",".join(filter(None, [self.settings, *(change.settings for change in changes)]))

    def _ran(self, changes: list[ProgramChange], batch: tuple[str, int] | None, look: bool = False) -> _Demanded:
        """The requests of a program with these changes. Those of the allocator's settings change nothing of it."""
        if batch == self._batch():
            batch = None
        key = tuple(change.name for change in changes if not change.settings), batch
        if key not in self._runs:
            found = self._predict(changes, self.settings, None, batch, look)
            paid = {change.name: change.paid(self.seen) for change in changes}
            notes = [*found.notes, *in_words(found.unknown)]
            self._runs[key] = _Demanded(
                Demand.of(found.log, found.streams), found.looks, notes, sum(found.unknown.values()), paid
            )
        return self._runs[key]

    def _predict(
        self,
        changes: list[ProgramChange],
        settings: str,
        capacity: int | None,
        batch: tuple[str, int] | None,
        look: bool = False,
    ) -> Prediction:
        """Make the changes inside the prediction, and run the program. With ``look``, also observe it."""

        def changed() -> None:
            with ExitStack() as stack:
                for change in changes:
                    stack.enter_context(change.made(self.device))
                if look:
                    stack.enter_context(self.seen.watching())
                self._call(batch)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about the way in which the changes are made
            return predicted(changed, self.device, settings, self.card, capacity, version=self.version)

    def _call(self, batch: tuple[str, int] | None) -> None:
        if batch is None:
            self.run(*self.args, **self.kwargs)
            return
        given = inspect.signature(self.run).bind(*self.args, **self.kwargs)
        given.arguments[batch[0]] = batch[1]
        self.run(*given.args, **given.kwargs)

    # --- together ---------------------------------------------------------------------------------------------------------

    def together(self, helping: list[ProgramChange]) -> list[Advised]:
        """The best combinations: the cheapest that fits, the best that keeps the numbers, and the best of all. A change stays
        only if it saves."""
        least = self._cheapest(helping) if self.room is not None and not self.plain.fits else []
        exact = self._most([change for change in helping if change.price < 3])
        found = [self.row(each) for each in (least, exact, self._most(helping)) if len(each) > 1]
        return list({tuple(row.names): row for row in found if not row.refused}.values())

    def _most(self, helping: list[ProgramChange]) -> list[ProgramChange]:
        """Add changes one by one, beginning with the most effective. A change stays if it lowers the peak further."""
        taken: list[ProgramChange] = []
        best = self.plain
        for change in helping:
            if any(change.kinds & other.kinds for other in taken):
                continue
            row = self.row(self._ordered([*taken, change]))
            if not row.refused and _size(row) < _size(best):
                taken, best = self._ordered([*taken, change]), row
        return taken

    def _cheapest(self, helping: list[ProgramChange]) -> list[ProgramChange]:
        """The cheapest changes with which the program fits, without superfluous ones; empty if it never fits."""
        for price in sorted({change.price for change in helping}):
            taken = self._most([change for change in helping if change.price <= price])
            if taken and self.row(taken).fits:
                for change in sorted(taken, key=lambda each: -each.price):
                    fewer = [each for each in taken if each is not change]
                    taken = fewer if fewer and self.row(fewer).fits else taken
                return taken
        return []

    def _ordered(self, changes: list[ProgramChange]) -> list[ProgramChange]:
        """The changes in the order in which they are made."""
        places = [*self.changes]
        return sorted(changes, key=lambda change: places.index(change.name))

    # --- batch size -------------------------------------------------------------------------------------------------------

    def batches(self, rows: list[Advised]) -> list[Advised]:
        """The largest batch that fits, for the program as it is and with the changes that keep its numbers."""
        name, given = self._batch()
        why = "" if self.room is not None else "give a capacity: the largest batch that fits is found by bisection"
        if not name:
            why = f"run has no argument for it: add an argument {BATCH[0]}, and make batches of that size"
        if why:
            return [Advised(["largest batch"], refused=why)]
        made = [(row, [self.changes[each] for each in row.names]) for row in sorted(rows, key=_size)]
        exact = [changes for row, changes in made if _size(row) < _size(self.plain) and all(c.price < 3 for c in changes)]
        return [self._largest(name, given, changes) for changes in ([], *exact[:1])]

    def _batch(self) -> tuple[str, int]:
        """The name of the argument for the batch size, and its value; ``""`` if there is none."""
        bound = inspect.signature(self.run).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        found = ((name, bound.arguments[name]) for name in BATCH if isinstance(bound.arguments.get(name), int))
        return next(found, ("", 0))

    def _largest(self, name: str, given: int, changes: list[ProgramChange]) -> Advised:
        good = self._search(name, max(1, given), changes)
        names = [f"{name}={good}", *(change.name for change in changes)]
        if not good:
            return Advised(["largest batch", *names[1:]], refused=f"not even {name}=1 fits")
        row = Advised(names, batch_size=good, code=f"{name}={good}")
        self._measure(row, changes, (name, good))
        row.numbers = "the same" if good == given else "another batch size: the learning rate may need a change"
        row.cost = "nothing" if good >= given else f"gradients of {-(-given // good)} batches, accumulated for one of {given}"
        return row

    def _search(self, name: str, size: int, changes: list[ProgramChange]) -> int:
        """The largest batch that fits; 0 if none does. It was predicted to fit, and the next one not to."""
        good, bad, tried = 0, _MOST + 1, [size]
        while bad - good > 1:
            if self._fits(changes, (name, size)):
                good = size
            else:
                bad = size
            size = min(2 * good, _MOST) if good and bad > _MOST else (good + bad) // 2
            guess = self._guess(name, tried[-2:], changes) if len(tried) > 1 else None
            if guess is not None and good <= guess <= bad:  # the guess, or the nearest size that is not known yet
                size = min(max(guess, good + 1), bad - 1)
            tried.append(size)
        return good

    def _guess(self, name: str, tried: list[int], changes: list[ProgramChange]) -> int | None:
        """The largest batch that fits if each request is on the line through its sizes with two batches; ``None``: unknown."""
        first, second = (self._ran(changes, (name, size)) for size in tried)
        if first.looks or not first.demand.alike(second.demand):
            return None
        room = (self.room or 0) - second.unknown

        def fits(size: int) -> bool:
            there = first.demand.at(size, second.demand, *tried)
            return there.served(self._settings(changes), room).fits

        return bisect_left(range(1, _MOST + 1), True, key=lambda size: not fits(size))
