"""A lesson as a page of the site: its text, its code, and what the code prints and draws when it runs."""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

PICTURES = "TINYGRAD_MEM_PICTURES"  # as lesson.py reads it
_LEVELS = {"basic": range(1, 5), "intermediate": range(5, 17), "advanced": range(17, 23)}
_COLUMNS = re.compile(r"[┃│━─]|\S  +\S")
_DRAWN = re.compile(r"^\(picture (\S+)\.png\)\n", re.M)


class Cell(NamedTuple):
    """A cell of a script in percent format: its source, from which line on, and whether it is text."""

    text: bool
    line: int
    source: str


def cells(script: str) -> list[Cell]:
    """The cells of a script; text without its comment signs."""
    lines = script.splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("# %%")]
    found = []
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        text, body = "[markdown]" in lines[begin], lines[begin + 1 : end]
        found.append(
            Cell(text, begin + 1, "\n".join([re.sub("^# ?", "", line) for line in body] if text else body).strip("\n"))
        )
    return found


def title(path: Path) -> str:
    """A lesson's first heading."""
    first = cells(path.read_text(encoding="utf-8"))[0].source.splitlines()[0]
    return first.removeprefix("# ")


def minutes(path: Path) -> int:
    """Minutes to read a lesson: 150 words of text and code each."""
    return max(1, round(len(path.read_text(encoding="utf-8").split()) / 150))


def level(path: Path) -> str:
    """What a lesson needs of its reader: nothing before it, the basic ones, or most of the others.

    Raises:
        KeyError: its number has no level.
    """
    levels = {number: name for name, numbers in _LEVELS.items() for number in numbers}
    return levels[int(path.name[:2])]


def code(source: str) -> str:
    return f"```python\n{source}\n```" if source else ""


def output(printed: str, shown: dict[str, str]) -> str:
    """What a cell printed; where it drew a picture, the picture. ``shown``: what each picture shows, by its name."""
    parts = _DRAWN.split(printed)
    drawn = [f'<p><img src="{name}.png" alt="{html.escape(shown[name])}" loading="lazy"></p>' for name in parts[1::2]]
    return "\n\n".join(piece for pair in zip(map(lines, parts[::2]), [*drawn, ""], strict=True) for piece in pair if piece)


def lines(printed: str) -> str:
    """Printed text: sentences are wrapped; lines that stand in columns are not, and scroll where there is no room for them."""
    groups = groupby(printed.strip("\n").splitlines(), key=lambda line: bool(_COLUMNS.search(line)))
    texts = [(columns, html.escape("\n".join(group))) for columns, group in groups]
    shown = [
        f'<span class="columns" tabindex="0">{text}</span>' if columns else f"<span>{text}</span>" for columns, text in texts
    ]
    return f'<pre class="output">{"".join(shown)}</pre>' if shown else ""


def run(path: Path, folder: Path) -> str:
    """Run a lesson cell by cell, its pictures into ``folder``; the page in Markdown. It wants a process of its own.

    Raises:
        Exception: what the lesson raised.
    """
    os.environ[PICTURES], sys.argv = str(folder), [str(path)]
    sys.path.insert(0, str(Path(__file__).parents[2] / "tutorials"))
    import lesson  # pyright: ignore[reportMissingImports]  # of the tutorials: the scripts share it

    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    content, solution = [], False
    for text, line, source in cells(path.read_text(encoding="utf-8")):
        if text and source.startswith("## Solution"):
            solution, source = True, source.removeprefix("## Solution")
            content.append('<details markdown="1"><summary>Solution</summary>')
        if text:
            content.append(source)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + source, str(path), "exec"), names)  # the lines that the tracker names are the script's
        content += [code(source), output(printed.getvalue(), lesson.SHOWN)]
    content += ["</details>"] if solution else []
    return "\n\n".join([*content, f'<p class="ending">{html.escape(names["RESULT"].ending)}</p>', ""])
