"""Tables, pictures and pages of a track."""

from __future__ import annotations

from ..record import Record
from ..timeline import Mark, When
from .notebook import summary as summary
from .page import to_html as to_html
from .picture import plot as plot


def table(self: Record, by: str = "category", at: When = None, rows: int = 20) -> str:
    """The bytes at a moment by ``"category"``, ``"module"``, ``"op"`` or ``"line"``, as a table to print.

    The largest come first; those beyond ``rows`` are one row, so that the rows add up to the bytes in use. By ``"mark"``:
    one row for each mark, with the most bytes in use since the mark before.

    Raises:
        ValueError: ``by`` is none of these.
        ModuleNotFoundError: rich is missing: ``pip install rich``.
    """
    if by not in ("category", "module", "op", "line", "mark"):
        raise ValueError(f"table: expected by='category', 'module', 'op', 'line' or 'mark', found {by!r}")
    from .terminal import bytes_table, marks_table, text

    if by == "mark":
        return text(marks_table(self, f"{self.device} at its marks"))
    if by == "category" and any(block.deduced for block in self.live(at)):  # a row for each certainty
        sizes = self._totals(at, lambda block: block.kind)
    else:
        sizes = {str(name): size for name, size in getattr(self, f"by_{by}")(at).items()}
    named = at.text if isinstance(at, Mark) else at if isinstance(at, str) else f"event {self._event(at)}"
    when = "at the peak" if at in (None, "peak") else f"at {named}"
    return text(bytes_table(sizes, by, f"{self.device} {when}", rows))
