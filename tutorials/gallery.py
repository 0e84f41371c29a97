"""All lessons as pages: ``python tutorials/gallery.py [folder]`` runs each and writes text, code, output and pictures as HTML.

The pages load nothing but their own pictures; ``index.html`` is the contents. Each lesson runs in a process of its own, as
``python 01_....py`` would. A lesson that fails ends the command, and the pages that are there already stay as they are.
"""

from __future__ import annotations

import contextlib
import html
import io
import multiprocessing
import os
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
PICTURES = "TINYGRAD_MEM_PICTURES"  # as lesson.py reads it
STYLES = {"light": "xcode", "dark": "github-dark"}  # pygments' names
_COLUMNS = re.compile(r"[┃│━─]|\S  +\S")
_DRAWN = re.compile(r"^\(picture (\S+\.png)\)\n", re.M)


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


def markdown(text: str) -> str:
    return MarkdownIt("commonmark", {"html": False}).enable("table").render(text)


def code(source: str) -> str:
    return highlight(source, PythonLexer(), HtmlFormatter(cssclass="code", wrapcode=True)) if source else ""


def output(printed: str) -> str:
    """What a cell printed; where it drew a picture, the picture."""
    parts = _DRAWN.split(printed)
    drawn = [f'<p><img src="{name}" alt="picture {name.removesuffix(".png")}"></p>' for name in parts[1::2]]
    return "".join(piece for pair in zip(map(lines, parts[::2]), [*drawn, ""], strict=True) for piece in pair)


def lines(printed: str) -> str:
    """Printed text: sentences are wrapped; lines that stand in columns are not, and scroll where there is no room for them."""
    groups = groupby(printed.strip("\n").splitlines(), key=lambda line: bool(_COLUMNS.search(line)))
    texts = [(columns, html.escape("\n".join(group))) for columns, group in groups]
    shown = [
        f'<span class="columns" tabindex="0">{text}</span>' if columns else f"<span>{text}</span>" for columns, text in texts
    ]
    return f'<pre class="output">{"".join(shown)}</pre>' if shown else ""


def run(path: Path, folder: Path) -> str:
    """Run a lesson cell by cell, its pictures into ``folder``; the page's content."""
    os.environ[PICTURES], sys.argv = str(folder), [str(path)]
    sys.path.insert(0, str(HERE))
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    content, solution = [], False
    for text, line, source in cells(path.read_text(encoding="utf-8")):
        if text and source.startswith("## Solution"):
            solution, source = True, source.removeprefix("## Solution")
            content.append("<details><summary>Solution</summary>")
        if text:
            content.append(markdown(source))
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + source, str(path), "exec"), names)  # the lines that the tracker names are the script's
        content.append(code(source) + output(printed.getvalue()))
    content += ["</details>"] if solution else []
    return "\n".join([*content, f'<p class="ending">{html.escape(names["RESULT"].ending)}</p>'])


def page(title: str, content: str, links: list[tuple[str, str]]) -> str:
    """A whole page; ``links`` are (where, words)."""
    styles = "\n".join(
        f"@media (prefers-color-scheme: {scheme}) {{ {HtmlFormatter(style=style).get_style_defs('.code')} }}"
        for scheme, style in STYLES.items()
    )
    shown = "".join(f'<a href="{where}">{html.escape(words)}</a>' for where, words in links)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,"><title>{html.escape(title)}</title>
<style>{styles}
{(HERE / "gallery.css").read_text(encoding="utf-8")}</style></head>
<body><nav>{shown}</nav><main>{content}</main><nav>{shown}</nav></body></html>
"""


def title(path: Path) -> str:
    """A lesson's first heading."""
    first = cells(path.read_text(encoding="utf-8"))[0].source.splitlines()[0]
    return first.removeprefix("# ")


def contents(lessons: list[Path]) -> str:
    """``README.md`` as a page: links to the lessons that were run lead to their pages, by title; its other links are text."""
    text = (lessons[0].parent / "README.md").read_text(encoding="utf-8")
    pages = {path.name: f"[{title(path)}]({path.stem}.html)" for path in lessons}
    return markdown(re.sub(r"\[([^]]+)\]\(([^)]+)\)", lambda link: pages.get(link[2], link[1]), text))


def gallery(folder: Path, lessons: list[Path]) -> None:
    """Write a page for each lesson, and the contents, into ``folder``.

    Raises:
        Exception: what a lesson raised; nothing in ``folder`` was changed.
    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        Progress(TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()) as progress,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as workers,
    ):
        made, task = Path(scratch), progress.add_task("lessons", total=len(lessons))
        for number, path in enumerate(lessons):
            progress.update(task, description=path.stem)
            links = [("index.html", "Contents")]
            links += [
                (f"{other.stem}.html", title(other)) for other in lessons[max(number - 1, 0) : number + 2] if other != path
            ]
            content = workers.submit(run, path, made).result()
            (made / f"{path.stem}.html").write_text(page(title(path), content, links), encoding="utf-8")
            progress.advance(task)
        (made / "index.html").write_text(page("Lessons", contents(lessons), []), encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        for file in made.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "gallery")
    gallery(target, sorted(HERE.glob("[0-9][0-9]_*.py")))
    print(f"wrote {target / 'index.html'}")
