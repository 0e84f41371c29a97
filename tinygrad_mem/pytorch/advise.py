"""``advise``: it predicts a PyTorch program again with each change that can be made from outside, alone and combined."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..memory.sizes import parse_bytes
from .advice import Advice, Advised
from .cards import GraphicsCard, card_of
from .predict import Prediction, predicted

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

    Raises:
        ValueError: :func:`.predict` raises it for the program as it is; or ``capacity`` is not a size.
    """
    card = card_of(gpu)
    room = parse_bytes(capacity) if capacity is not None else card.room if gpu else None
    trials = _Trials(run, args, kwargs, device, settings, card, room)
    changes = trials.begin()
    reasons = {change.name: change.why_not(trials.seen, device) for change in changes}
    refused = [_refused(change, reasons[change.name]) for change in changes if reasons[change.name]]
    rows = [trials.row([change]) for change in changes if not reasons[change.name]]
    refused += [row for row in rows if row.refused]
    rows = sorted((row for row in rows if not row.refused), key=_size)
    by_name = {change.name: change for change in changes}
    helping = [by_name[row.names[0]] for row in rows if _size(row) < _size(trials.plain)]
    together = trials.together(helping)
    batch = trials.batches([*rows, *together])
    return Advice(trials.plain, rows, together, batch, refused, room, trials.notes)


def _size(row: Advised) -> tuple[int, int]:
    return row.peak_reserved, row.peak


def _refused(change: ProgramChange, why: str) -> Advised:
    return Advised([change.name], cost=change.cost, code=change.code, source=[change.source], refused=why)


class _Trials:
    """The predictions of one program."""

    def __init__(
        self,
        run: Callable[..., Any],
        args: tuple,
        kwargs: dict[str, Any],
        device: str,
        settings: str,
        card: GraphicsCard,
        room: int | None,
    ) -> None:
        self.run, self.args, self.kwargs = run, args, kwargs
        self.device, self.settings, self.card, self.room = device, settings, card, room
        self.plain, self.notes = Advised([]), [""]
        self.seen: Seen
        self._rows: dict[tuple[str, ...], Advised] = {}

    def begin(self) -> list[ProgramChange]:
        """Predict the program as it is, observe it, and list the changes that apply."""
        predicted(lambda: None, self.device)  # raises if PyTorch is missing
        from .changes import changes
        from .program.seen import Seen

        self.seen = Seen()
        found = self._predict([], None, look=True)
        self.notes = list(found.notes)
        self.plain = Advised([], found.peak, found.peak_reserved, fits=self._fits(found, []))
        return changes(self.seen)

    def row(self, changes: list[ProgramChange]) -> Advised:
        """Predict the program with these changes."""
        names = tuple(change.name for change in changes)
        if names not in self._rows:
            self._rows[names] = self._row(changes)
        return self._rows[names]

    def _row(self, changes: list[ProgramChange]) -> Advised:
        row = Advised([change.name for change in changes], code="\n".join(change.code for change in changes))
        row.source = [change.source for change in changes]
        try:
            found = self._predict(changes, None)
            row.cost = "; ".join(dict.fromkeys(change.paid(self.seen) for change in changes))
            row.fits = self._fits(found, changes)
        except Exception as error:  # a change can make the user's program fail in any way
            said = str(error).partition("\n")[0]
            row.refused = f"the program fails with it: {type(error).__name__}: {said}"
            return row
        row.peak, row.peak_reserved = found.peak, found.peak_reserved
        row.saved, row.saved_reserved = self.plain.peak - row.peak, self.plain.peak_reserved - row.peak_reserved
        row.numbers = max(changes, key=lambda change: (change.price, change.numbers != "the same")).numbers
        return row

    def _predict(
        self, changes: list[ProgramChange], capacity: int | None, look: bool = False, batch: tuple[str, int] | None = None
    ) -> Prediction:
        """Make the changes inside the prediction, and run the program. With ``seen``, also observe it."""

        def changed() -> None:
            with ExitStack() as stack:
                for change in changes:
                    stack.enter_context(change.made(self.device))
                if look:
                    stack.enter_context(self.seen.watching())
                self._call(batch)

        settings = ",".join(filter(None, [self.settings, *(change.settings for change in changes)]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about the way in which the changes are made
            return predicted(changed, self.device, settings, self.card, capacity)

    def _call(self, batch: tuple[str, int] | None) -> None:
        if batch is None:
            self.run(*self.args, **self.kwargs)
            return
        given = inspect.signature(self.run).bind(*self.args, **self.kwargs)
        given.arguments[batch[0]] = batch[1]
        self.run(*given.args, **given.kwargs)

    def _fits(self, found: Prediction, changes: list[ProgramChange], batch: tuple[str, int] | None = None) -> bool | None:
        """True if the card has room. If the reserved bytes exceed it, the allocator may still release some of them."""
        if self.room is None:
            return None
        if found.peak_reserved <= self.room:
            return True
        return found.peak <= self.room and self._predict(changes, self.room, batch=batch).fits

    # --- together ---------------------------------------------------------------------------------------------------------

    def together(self, helping: list[ProgramChange]) -> list[Advised]:
        """The best combinations: the cheapest that fits, the best that keeps the numbers, and the best of all. A change stays
        only if it saves."""
        least = self._cheapest(helping) if self.room is not None and not self.plain.fits else []
        exact = self._most([change for change in helping if change.price < 3])
        found = [self.row(each) for each in (least, exact, self._most(helping)) if len(each) > 1]
        return list({tuple(row.names): row for row in found if not row.refused}.values())

    def _most(self, helping: list[ProgramChange]) -> list[ProgramChange]:
        """Add changes one by one, the one that saves most first. A change stays if it saves something beside those before
        it."""
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
        from .changes import changes as every

        places = {change.name: place for place, change in enumerate(every(self.seen))}
        return sorted(changes, key=lambda change: places[change.name])

    # --- batch size -------------------------------------------------------------------------------------------------------

    def batches(self, rows: list[Advised]) -> list[Advised]:
        """The largest batch that fits, for the program as it is and with the changes that keep its numbers."""
        name, given = self._batch()
        why = "" if self.room is not None else "give a capacity: the largest batch that fits is found by bisection"
        if not name:
            why = f"run has no argument for it: add an argument {BATCH[0]}, and make batches of that size"
        if why:
            return [Advised(["largest batch"], refused=why)]
        from .changes import changes

        by_name = {change.name: change for change in changes(self.seen)}
        kept = [row for row in rows if _size(row) < _size(self.plain) and all(by_name[each].price < 3 for each in row.names)]
        tried = [self.plain, *sorted(kept, key=_size)[:1]]
        return [self._largest(name, given, [by_name[each] for each in row.names]) for row in tried]

    def _batch(self) -> tuple[str, int]:
        """The name of the argument for the batch size, and its value; ``""`` if there is none."""
        bound = inspect.signature(self.run).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        found = ((name, bound.arguments[name]) for name in BATCH if isinstance(bound.arguments.get(name), int))
        return next(found, ("", 0))

    def _largest(self, name: str, given: int, changes: list[ProgramChange]) -> Advised:
        good, bad, size = 0, _MOST + 1, max(1, given)
        fitting: list[tuple[int, Prediction]] = []
        failed = 0
        while bad - good > 1:
            found = self._predict(changes, self.room, batch=(name, size))
            if found.fits:
                good = size
                fitting.append((size, found))
            else:
                bad, failed = size, failed + 1
            size = self._guess(fitting[-2:], good, bad, failed)
        names = [f"{name}={good}", *(change.name for change in changes)]
        if not good:
            return Advised(["largest batch", *names[1:]], refused=f"not even {name}=1 fits")
        found = fitting[-1][1]
        row = Advised(names, found.peak, found.peak_reserved, fits=True, batch_size=good, code=f"{name}={good}")
        row.saved, row.saved_reserved = self.plain.peak - row.peak, self.plain.peak_reserved - row.peak_reserved
        row.numbers = "the same" if good == given else "of another batch: the learning rate may need a change"
        row.cost = "nothing" if good >= given else f"{-(-given // good)} steps, gathered, for one of {given}"
        return row

    def _guess(self, fitting: list[tuple[int, Prediction]], good: int, bad: int, failed: int) -> int:
        """The next batch to try, between ``good`` and ``bad``: where the line through the last two that fit leaves no room;
        below one that did not fit, in growing steps."""
        if len(fitting) < 2:
            return min(2 * good, _MOST) if good and bad > _MOST else (good + bad) // 2
        (less, before), (more, after) = fitting
        grown = after.peak_reserved - before.peak_reserved
        guess = (
            2 * good if grown <= 0 or self.room is None else more + (self.room - after.peak_reserved) * (more - less) // grown
        )
        if guess >= bad:
            guess = bad - 2**failed if bad - 2**failed > good else (good + bad) // 2
        return min(max(guess, good + 1), bad - 1, _MOST)
