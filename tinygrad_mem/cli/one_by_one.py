"""The words and bars that commands show while they work; and commands that work through a list: they print each result at once,
keep results on Ctrl-C, and end with a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from ..errors import ArgumentError
from ..interrupts import context
from ..starting import INTERRUPTED
from ..text import visible
from .outputs import words as words_of

T = TypeVar("T")
R = TypeVar("R")


def check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that there is not."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known := list(known), 3)
            offer = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
            raise ArgumentError(f"there is no {what} {name!r}: {offer}")


@context
def telling(console: Console, first: str = "") -> Iterator[Callable[[str], None]]:
    """Show on a terminal, in one line, what is being done. Yields a function that changes the text."""
    with console.status(first) as status:
        yield status.update if console.is_terminal else lambda what: None


def progress(console: Console, name: str, *more: TextColumn, **options: Any) -> Progress:
    """A bar with the number of what is done and the time. On a narrow terminal, only the bar shrinks.

    Args:
        name: the text before the bar, in rich's form.
        more: texts after the time.
    """
    done, seconds = (kind(table_column=Column(no_wrap=True)) for kind in (MofNCompleteColumn, TimeElapsedColumn))
    return Progress(TextColumn(name), BarColumn(), done, seconds, *more, console=console, **options)


def one_by_one(
    command: str, items: Sequence[T], work: Callable[[T], R], name: Callable[[T], str], words: Callable[[R], str]
) -> tuple[list[R], bool]:
    """The results of ``work`` on each item until the end or until Ctrl-C, and whether it was pressed.

    Args:
        command: its name, for the message of an interrupt.
        name: of an item, for the line that is printed when it is done.
        words: what that line says of the result.
    """
    found: list[R] = []
    console = Console(stderr=True)
    try:
        with progress(console, "{task.fields[name]:<26}", disable=not console.is_terminal, transient=True) as bar:
            task = bar.add_task(command, total=len(items), name="")
            for item in items:
                bar.update(task, name=name(item))
                found.append(work(item))
                bar.advance(task)
                said = f"{len(found)} of {len(items)}: {name(item)}: {words(found[-1])}"
                bar.console.print(Text(visible(said)), soft_wrap=True)
    except KeyboardInterrupt:
        return found, True
    return found, False


def ended(
    command: str, rows: Sequence[Any], total: int, interrupted: bool, page: Path | None, write: Callable[..., None]
) -> int:
    """Write the page of the rows, or print why that failed: the results are printed already. Returns the exit status.

    Args:
        total: how many rows there would be without an interrupt.
        page: ``None``: no page.
        write: writes ``rows`` to a path.
    """
    errors, status = Console(stderr=True), 0
    if page is not None and rows:
        try:
            write(rows, page)
            errors.print(f"wrote {page}", highlight=False, markup=False)
        except OSError as error:
            errors.print(f"{command}: no page: {words_of(error)}", highlight=False, markup=False)
            status = 1
    if interrupted:
        errors.print(f"{command}: interrupted: {len(rows)} of {total} {command} are done", highlight=False)
    return INTERRUPTED if interrupted else status
