"""The result of :func:`.advise`: the memory of a program with each change, and a table of it for a terminal (rich)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import needs
from ..memory.sizes import bytes_text

_WIDE = 110  # columns that a terminal needs for costs in the table
_ROOMY = 80  # a wider terminal has room for the bytes saved beside the bytes left


@dataclass
class Advised:
    """A program with changes.

    Attributes:
        names: the names of the changes; empty for the program as it is.
        peak: ``torch.cuda.max_memory_allocated()``, in bytes.
        peak_reserved: the most bytes that the allocator reserved.
        saved, saved_reserved: the bytes by which the two peaks fall; negative if they rise.
        unknown: by how many bytes the peaks may differ, more or less, as of :attr:`.Prediction.unknown`.
        fits: True if the card surely has memory for every request; ``None`` if no capacity was given, or if what is unknown
            decides.
        cost: the price of the saved bytes, in words.
        numbers: how the program's results change, in words.
        code: the lines to write.
        source: pages that explain the changes.
        refused: the reason why the change is not possible; the sizes are 0 then.
        batch_size: the largest batch that fits, if it was searched for; else 0.
    """

    names: list[str]
    peak: int = 0
    peak_reserved: int = 0
    saved: int = 0
    saved_reserved: int = 0
    unknown: int = 0
    fits: bool | None = None
    cost: str = ""
    numbers: str = "the same"
    code: str = ""
    source: list[str] = field(default_factory=list)
    refused: str = ""
    batch_size: int = 0

    @property
    def name(self) -> str:
        """The names of the changes in one line."""
        return " + ".join(self.names) or "as it is"


@dataclass
class Advice:
    """The effects of changes on a program.

    Attributes:
        plain: the program as it is.
        rows: each change alone; the one that saves most comes first.
        together: the best combinations.
        batch: rows about the batch size.
        refused: changes that do not apply, with the reason.
        capacity: bytes of the card, or ``None``.
        notes: the assumptions of the predictions.
    """

    plain: Advised
    rows: list[Advised]
    together: list[Advised]
    batch: list[Advised]
    refused: list[Advised]
    capacity: int | None
    notes: list[str]

    def row(self, *names: str) -> Advised:
        """The row of these changes.

        Raises:
            KeyError: there is none.
        """
        for row in [self.plain, *self.rows, *self.together, *self.batch, *self.refused]:
            if row.names == list(names):
                return row
        raise KeyError(" + ".join(names))

    def table(self, width: int = 128) -> str:
        """A table to print: bytes saved, their cost, and the code to write; then the changes that do not apply.

        Raises:
            ModuleNotFoundError: rich is missing: ``pip install rich``.
        """
        needs("rich", "a table")
        from rich.table import Table
        from rich.text import Text

        from ..memory.render.terminal import text

        card = "" if self.capacity is None else f", on a card with {bytes_text(self.capacity)}"
        shown = Table(title=Text(f"what would help{card}"), title_justify="left", title_style="bold")
        shown.add_column("change", overflow="fold", ratio=3)
        roomy, wide = width >= _ROOMY, width >= _WIDE
        for name in ("peak", "saved", "reserved", "saved") if roomy else ("peak", "reserved"):
            shown.add_column(name, justify="right", no_wrap=True)
        if self.capacity is not None:
            shown.add_column("fits", no_wrap=True)
        if wide:
            shown.add_column("cost", overflow="fold", ratio=4)
        for group in ([self.plain], self.rows, self.together, [row for row in self.batch if not row.refused]):
            for row in group:
                cells = _cells(row, self.capacity is not None, roomy)
                shown.add_row(*(Text(cell) for cell in (cells if wide else cells[:-1])))
            if group:
                shown.add_section()
        return text(shown, width) + _below(self, costs=not wide)


def _cells(row: Advised, card: bool, roomy: bool) -> list[str]:
    saved = [bytes_text(row.saved), bytes_text(row.saved_reserved)] if row.names else ["", ""]
    sizes = [bytes_text(row.peak), saved[0], bytes_text(row.peak_reserved), saved[1]][:: 1 if roomy else 2]
    fits = [{True: "yes", False: "no", None: "perhaps"}[row.fits]] if card else []
    return [row.name, *sizes, *fits, _cost(row)]


def _cost(row: Advised) -> str:
    return "; ".join(filter(None, [row.cost, "" if row.numbers == "the same" else f"numbers: {row.numbers}"]))


def _below(advice: Advice, costs: bool) -> str:
    """The code to write, and the changes that were not tried. ``costs``: add the costs, for which the table has no room."""
    lines = ["", "To write:"]
    for row in advice.rows:
        if row.saved > 0 or row.saved_reserved > 0:
            lines += [f"  {row.name}:", *(f"    {line}" for line in row.code.splitlines()), f"    {row.source[0]}"]
            lines += [f"    costs: {_cost(row)}"] * costs
    refused = [row for row in (*advice.batch, *advice.refused) if row.refused]
    if refused:
        lines += ["", "Not tried, or not possible:", *(f"  {row.name}: {row.refused}" for row in refused)]
    return "\n".join([*lines, *(f"Note: {note}" for note in advice.notes), ""])
