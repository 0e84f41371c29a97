"""``estimate`` for PyTorch programs: PyTorch's own bytes on a GPU that is not there, and on which cards they fit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ArgumentError, TinygradMemError
from ..memory.sizes import bytes_text
from ..pytorch.advise import advise
from ..pytorch.cards import CARDS, COMMON, CONTEXT, USUAL, GraphicsCard, card_of
from ..pytorch.predict import Prediction, in_words, predicted
from ..text import visible
from .estimate_options import EstimateOptions
from .one_by_one import telling
from .screen import screen, table
from .torch_programs import TorchProgram
from .users import forgotten

EXPANDABLE = "expandable_segments:True"
_FITS, _EDGE, _NOT = "fits", "may fit", "does not fit"


@dataclass
class CardAnswer:
    """The answer for one card.

    Attributes:
        capacity: bytes that CUDA says it has; of a budget, what PyTorch may have.
        peak_allocated, peak_reserved: with the kernels of this card.
        fits: ``"fits"``, ``"fits with expandable_segments:True"``, ``"may fit"`` (the context, or what is not known, decides)
            or ``"does not fit"``.
        lacking: allocated bytes that are too many; 0: it fits, or its pieces do not.
        unknown: by how many bytes the peak may differ, more or less.
    """

    card: str
    sold_as: int | None
    capacity: int
    peak_allocated: int
    peak_reserved: int
    fits: str
    lacking: int
    unknown: int


@dataclass
class TorchEstimate:
    """The memory of a PyTorch program, in bytes.

    Attributes:
        gpu: the card whose kernels run; ``""`` on the CPU.
        place: its rank, and how many processes there are; ``None``: it is alone.
        peak_allocated, peak_reserved: as ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved`` say.
        driver: what the driver shows at least and at most, with the context and libraries; ``None`` on the CPU.
        biggest: the largest blocks at the peak: owner, category, line and bytes of each.
        peak: the phase, module, op and line in the program where most is in use.
        loss: the loss of the step; ``""``: the program's own.
        budget_answer: as for a card; ``fits`` is true if it fits as it is.
        parameters, trained: 0 if the program is a function.
        unknown: as :attr:`.Prediction.unknown`: why bytes cannot be known without a GPU, and by how many it may differ.
    """

    network: str
    device: str
    gpu: str
    place: tuple[int, int] | None
    batch_size: int | None
    peak_allocated: int
    peak_reserved: int
    driver: tuple[int, int] | None
    by_category: dict[str, int]
    biggest: list[dict[str, Any]]
    peak: dict[str, str]
    loss: str
    parameters: int
    trained: int
    cards: list[CardAnswer]
    budget: int | None
    budget_answer: str
    fits: bool | None
    notes: list[str]
    unknown: dict[str, int]


def run(asked: EstimateOptions) -> int:
    """Predict and print. Returns 1 if it does not fit the budget or the card, else 0."""
    room, gpu = asked.room, asked.gpu
    if asked.device not in (None, "cuda", "cpu"):
        raise ArgumentError(f"--device {asked.device!r}: a PyTorch program is predicted for cuda or cpu")
    if gpu is not None and asked.device == "cpu":
        raise ArgumentError("--gpu and --device cpu exclude each other: give one of them")
    cards = [card_of(gpu)] if gpu is not None else [card for card in CARDS if card.name in COMMON]
    if asked.advise and asked.place is not None:
        raise ArgumentError("--advise works for one process: leave --ranks out")
    program = TorchProgram(asked)
    with telling(Console(stderr=True), "predicting") as tell:
        found, advice = _estimate(_Predictions(program, tell), cards[0] if gpu is not None else USUAL, room, cards), None
        if asked.advise:
            tell("predicting again with each change that could help")
            with redirect_stdout(sys.stderr), forgotten(program.module):
                advice = advise(program, device=program.device, gpu=gpu or "", capacity=room)
    if asked.as_json:
        rows = {} if advice is None else {"advice": [asdict(row) for row in (*advice.rows, *advice.together)]}
        print(json.dumps(asdict(found) | rows, indent=2))
    else:
        console = screen(highlight=False)
        _show(found, console)
        if advice is not None:
            print(advice.table(console.width))
    return int(found.fits is False or (gpu is not None and found.cards[0].fits in (_EDGE, _NOT)))


class _Predictions:
    """The predictions of one program. ``tell`` shows what is being predicted."""

    def __init__(self, program: TorchProgram, tell: Callable[[str], None]) -> None:
        self.program, self._tell = program, tell
        self._found: dict[tuple, Prediction] = {}

    def of(self, card: GraphicsCard) -> Prediction:
        """The program on such a card that never refuses; cards with the same kernels share a prediction."""
        kernels = card.capability, card.processors
        if kernels not in self._found:
            self._found[kernels] = self._predict(card)
        return self._found[kernels]

    def answer(self, card: GraphicsCard, budget: int | None = None) -> CardAnswer:
        """The answer for a card, or for a budget of bytes that PyTorch may have of it.

        Where the bytes alone do not tell, the program is predicted again within what the card has.
        """
        track, context = self.of(card), CONTEXT if budget is None else (0, 0)
        capacity, unknown = card.bytes if budget is None else budget, sum(track.unknown.values())
        least, most = capacity - context[1] - unknown, capacity - context[0] + unknown  # surely left for PyTorch, and perhaps
        lacking = max(track.peak - least, 0)
        if max(track.peak_reserved, track.peak) <= least:
            fits = _FITS
        elif track.peak > most:
            fits = _NOT
        elif track.device == "cpu":
            fits = _EDGE
        elif not lacking and self._predict(card, "", least).fits:
            fits = _FITS
        elif not lacking and self._predict(card, EXPANDABLE, least).fits:
            fits = f"{_FITS} with {EXPANDABLE}"
        else:
            fits = _EDGE if least < most and self._predict(card, "", most).fits else _NOT
        return CardAnswer(card.name, card.sold_as, capacity, track.peak, track.peak_reserved, fits, lacking, unknown)

    def _predict(self, card: GraphicsCard, settings: str = "", capacity: int | None = None) -> Prediction:
        """The prediction. What the program prints goes to stderr; its errors name its line."""
        program, within = self.program, "" if capacity is None else f" within {bytes_text(capacity)}"
        self._tell(f"predicting for {card.name}{within} {settings}")
        try:
            with redirect_stdout(sys.stderr), forgotten(program.module):
                return predicted(program, program.device, settings, card, capacity, program.asked.place)
        except ArgumentError:
            raise
        except TinygradMemError as error:
            raise ArgumentError(str(error).removeprefix("predict: ")) from error
        except Exception as error:
            from ..pytorch.program.places import users_line

            message = f"{type(error).__name__}: {error}"
            raise ArgumentError(
                f"{program.asked.network} fails at {users_line(error)}: {message}\n"
                "Fix this line. If it runs on a GPU, the prediction lacks something: --traceback shows where"
            ) from error


def _estimate(made: _Predictions, usual: GraphicsCard, room: int | None, cards: list[GraphicsCard]) -> TorchEstimate:
    """The answer: in detail for the card ``usual``, in a line for each of ``cards``."""
    program, asked, track = made.program, made.program.asked, made.of(usual)
    if not len(track.timeline()):
        raise ArgumentError(f"{asked.network} asked for no memory on {program.device}: does it put its model and data there?")
    moment = track.at_peak()
    event = track.log[moment.index]
    gpu = program.device == "cuda"
    budget = None if room is None else made.answer(usual, room)
    categories = sorted(((c.value, size) for c, size in moment.by_category.items() if size), key=lambda row: -row[1])
    return TorchEstimate(
        network=asked.network,
        device=program.device,
        gpu=usual.name if gpu else "",
        place=asked.place,
        batch_size=asked.batch if program.steps else None,
        peak_allocated=moment.used,
        peak_reserved=track.peak_reserved,
        driver=(track.peak_reserved + CONTEXT[0], track.peak_reserved + CONTEXT[1]) if gpu else None,
        by_category=dict(categories),
        biggest=[
            {"owner": each.owner, "category": each.category.value, "line": _users(each.line), "bytes": each.rounded}
            for each in track.live(moment)[:5]
        ],
        peak={"phase": event.phase, "module": event.module, "op": event.op, "line": _users(event.line)},
        loss=program.loss,
        parameters=program.parameters,
        trained=program.trained,
        cards=[made.answer(card) for card in cards] if gpu else [],
        budget=room,
        budget_answer="" if budget is None else budget.fits,
        fits=None if budget is None else budget.fits == _FITS,
        notes=[*program.notes, *track.notes],
        unknown=track.unknown,
    )


def _users(line: str) -> str:
    """A line of a library as from its folder, and none of this command's own."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        line = line.removeprefix(folder + "/")
    return "" if line.startswith(("typer/", "click/", "<")) else line


# --- the screen -----------------------------------------------------------------------------------------------------------


def _show(found: TorchEstimate, console: Console) -> None:
    batch = "" if found.batch_size is None else f", batch {found.batch_size}"
    if found.place is not None:
        batch += ", rank {} of {}".format(*found.place)
    console.print(Text(visible(f"{found.network}{batch}, predicted for {found.gpu or 'the CPU'}"), "bold"))
    if found.loss:
        trained = "" if found.trained == found.parameters else f", {found.trained:,} of them trained"
        console.print(Text(f"Two training steps; {found.parameters:,} parameters{trained}; the loss is {found.loss}."))
    gpu = found.driver is not None
    totals = table("peak", ">bytes", ">in short", *["in PyTorch"] * gpu)
    peaks = [("allocated", found.peak_allocated), ("reserved", found.peak_reserved)]
    for name, size in peaks if gpu else peaks[:1]:
        totals.add_row(name, f"{size:,}", bytes_text(size), *[f"max_memory_{name}"] * gpu)
    console.print(totals)
    if found.driver is not None:
        low, high, least, most = (bytes_text(size) for size in (*found.driver, *CONTEXT))
        console.print(f"nvidia-smi shows {low} to {high}: context and libraries were {least} to {most} in ten reports.")
    peak = found.peak
    place = " ".join(part for part in (peak["module"], peak["op"]) if part)
    line = f" at {peak['line']}" if peak["line"] else ""
    phase = "your code" if peak["phase"] == "user" else peak["phase"]
    console.print(Text(visible(f"The peak is in {phase}: {place or 'no op'}{line}.")))
    categories, biggest = table("at the peak", ">bytes", ">in short"), table("the biggest blocks", ">bytes", "allocated at")
    for name, size in found.by_category.items():
        categories.add_row(name, f"{size:,}", bytes_text(size))
    for block in found.biggest:
        biggest.add_row(Text(visible(block["owner"])), f"{block['bytes']:,}", Text(visible(block["line"])))
    for each in (categories, biggest, *([_cards(found)] if found.cards else [])):
        console.print()
        console.print(each)
    for note in (*found.notes, *in_words(found.unknown)):
        console.print(Text(visible(f"* {note}")))
    if found.budget is not None:
        console.print(Text(f"A budget of {found.budget:,} bytes for PyTorch: {found.budget_answer}.", "bold"))


def _cards(found: TorchEstimate) -> Table:
    cards = table("card", ">has", ">allocated", "")
    for verdict in found.cards:
        name = f"{verdict.card}, {verdict.sold_as} GB" if f"{verdict.sold_as}GB" not in verdict.card else verdict.card
        lacking = f": {bytes_text(verdict.lacking)} too many" if verdict.lacking and verdict.fits == _NOT else ""
        parts = "context, libraries and what is not known" if verdict.unknown else "context and libraries"
        edge = f", if {parts} are small" if verdict.fits == _EDGE else ""
        answer = Text(f"{verdict.fits}{lacking}{edge}", {_FITS: "green", _NOT: "red"}.get(verdict.fits, "yellow"))
        cards.add_row(name, bytes_text(verdict.capacity), bytes_text(verdict.peak_allocated), answer)
    return cards
