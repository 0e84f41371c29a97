"""The site: ``python docs/site/build.py [FOLDER]`` writes static pages that load nothing from elsewhere.

It has the README, the lessons with what they print and draw, the explorer, the report of all tips, the questions of the clinic,
the pages of ``docs``, and a reference made of docstrings. Each lesson runs in a process of its own. A link that leads nowhere
ends the command, and so does a lesson that fails.
"""

from __future__ import annotations

import argparse
import ast
import html
import logging
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import explorer
import lessons
from mkdocs.commands.build import build as mkdocs_build
from mkdocs.config import load_config
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "tinygrad_mem"
ALL = tuple(sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py")))
ROOMS = (
    "functional",
    "nn",
    "optim",
    "amp",
    "recompute",
    "techniques",
    "memory",
    "plan",
    "pytorch",
    "distributed",
    "models",
    "data",
)
"""The folders of the library whose public names have a reference."""
WIDE = ("claims.md", "pytorch_kernels.md", "techniques.md")
"""Pages of one wide table, which has the room of the navigation beside it too."""
_CODE = re.compile(r"(```.*?```|<pre.*?</pre>)", re.S)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


class Source:
    """The Markdown that mkdocs reads. ``places`` says which file of the project is which page."""

    def __init__(self, folder: Path, chosen: Sequence[Path], rooms: Sequence[str]) -> None:
        self.folder, self.modules = folder, list(_modules(rooms))
        self.places = {ROOT / "README.md": "index.md", ROOT / "CHANGELOG.md": "changelog.md"}
        self.places |= {ROOT / "CONTRIBUTING.md": "contributing.md", ROOT / "tutorials" / "README.md": "lessons/all.md"}
        self.places |= {path: path.name for path in sorted((ROOT / "docs").glob("*.md"))}
        self.places |= {path: f"lessons/{path.stem}.md" for path in chosen}
        self.places |= {path: _reference_place(path) for path in self.modules}

    def write(self, place: str, text: str) -> None:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def page(self, path: Path, text: str | None = None) -> None:
        """A page of a file of the project; ``text`` is its Markdown, if that is not what the file holds.

        Raises:
            FileNotFoundError: a link leads to no file of the project.
        """
        parts = _CODE.split(path.read_text(encoding="utf-8") if text is None else text)
        parts[::2] = [self._linked(part, path, self.places[path]) for part in parts[::2]]
        head = "---\nhide: [navigation, toc]\n---\n\n" if self.places[path] in WIDE else ""
        self.write(self.places[path], head + "".join(parts))

    def _linked(self, text: str, path: Path, place: str) -> str:
        """Text whose links lead to pages of the site and to copied pictures. A link to a file that has no page is text."""

        def link(found: re.Match) -> str:
            picture, words, target, anchor = found.groups()
            if ":" in target:
                return found[0]
            if not (to := (path.parent / target).resolve()).exists():
                raise FileNotFoundError(f"{path} links to {target}, which does not exist")
            if picture:
                (self.folder / "pictures").mkdir(parents=True, exist_ok=True)
                shutil.copyfile(to, self.folder / "pictures" / to.name)
                return f"![{words}]({os.path.relpath(f'pictures/{to.name}', Path(place).parent)})"
            known = self.places.get(to)
            return f"[{words}]({os.path.relpath(known, Path(place).parent)}{anchor or ''})" if known else words

        return _LINK.sub(link, text)


def _modules(rooms: Sequence[str]) -> Iterator[Path]:
    """The files of the rooms that have public names with docstrings."""
    for room in rooms:
        for path in sorted((LIBRARY / room).rglob("*.py")):
            named = (
                n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef | ast.ClassDef)
            )
            if any(not node.name.startswith("_") and ast.get_docstring(node) for node in named):
                yield path


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _reference_place(path: Path) -> str:
    return f"reference/{_name(path).removeprefix('tinygrad_mem.').replace('.', '/')}.md"


def _reference(source: Source) -> list[dict]:
    """A page for each module; the part of the navigation that lists them, by room."""
    rooms: dict[str, list] = {}
    for path in source.modules:
        name, place = _name(path), source.places[path]
        source.write(place, f"# {name}\n\n::: {name}\n")
        rooms.setdefault(name.split(".")[1], []).append({name.removeprefix("tinygrad_mem."): place})
    return [{room: pages} for room, pages in rooms.items()]


def _lessons(source: Source, chosen: Sequence[Path]) -> list:
    """Run each lesson, write its page; the contents have a picture, the level and the minutes of each."""
    cards, nav = [], []
    with (
        Progress(TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()) as progress,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as workers,
    ):
        task = progress.add_task("lessons", total=len(chosen))
        for path in chosen:
            progress.update(task, description=path.stem)
            (source.folder / "lessons").mkdir(exist_ok=True)
            text = workers.submit(lessons.run, path, source.folder / "lessons").result()
            source.page(path, text)
            drawn = re.search(r'<img src="([^"]+)"', text)
            picture = f'<img src="{drawn[1]}" alt="" loading="lazy">' if drawn else ""
            name = html.escape(lessons.title(path))
            needs = f"{lessons.level(path)}, {lessons.minutes(path)} min"
            cards.append(f'<a href="{path.stem}.html">{picture}{name}<small>{needs}</small></a>')
            nav.append({lessons.title(path): source.places[path]})
            progress.advance(task)
    source.page(ROOT / "tutorials" / "README.md")
    text = f'# Lessons\n\n<div class="lessons">{"".join(cards)}</div>\n\n[What each teaches, and ends with](all.md)\n'
    source.write("lessons/index.md", text)
    return ["lessons/index.md", {"Contents and techniques": "lessons/all.md"}, *nav]


def _printed(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tinygrad_mem", *command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def _clinic() -> str:
    """The questions of the clinic, with their answers below."""
    from tinygrad_mem.clinic import CASES

    parts = ["# The clinic\n\nQuestions that people asked about memory. Guess first.\n"]
    for case in CASES.values():
        choices = "\n".join(f"{number}. {choice}" for number, choice in enumerate(case.choices, 1))
        answer = html.escape(_printed("clinic", case.name, "--answer"))
        parts.append(f"## {case.name.replace('_', ' ')}\n\n{case.question}\n\n{choices}\n")
        parts.append(f"[Where it was asked]({case.link})\n")
        parts.append(f'<details><summary>The answer</summary><pre class="output" tabindex="0">{answer}</pre></details>\n')
    return "\n".join(parts)


def _link_to_explorer(start: Path) -> None:
    """The start page leads to what the README cannot show: a page to try."""
    link = "**[Change a training step by hand](explorer.html)**, and see its memory follow."
    title, first, rest = start.read_text(encoding="utf-8").split("\n\n", 2)
    start.write_text("\n\n".join([title, first, link, rest]), encoding="utf-8")


def build(
    folder: Path,
    chosen: Sequence[Path] = ALL,
    tips: Sequence[str] = (),
    clinic: bool = True,
    rooms: Sequence[str] = ROOMS,
    explore: Callable[[Path], None] = explorer.write,
) -> None:
    """Write the site into ``folder``, whole or not at all.

    Args:
        chosen: the lessons that run; there are no pages of others.
        tips: the tips of the report; all if there are none.
        clinic: whether the clinic's cases run.
        rooms: the folders of the library that have a reference.
        explore: writes the explorer into a folder.

    Raises:
        Exception: what a lesson raised, or mkdocs found wrong; nothing in ``folder`` was changed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Source(Path(scratch) / "docs", chosen, rooms), Path(scratch) / "site"
        for path in (path for path in source.places if path.suffix == ".md" and path.parent in (ROOT, ROOT / "docs")):
            source.page(path)
        _link_to_explorer(source.folder / "index.md")
        for name in ("site.css", "site.js"):
            shutil.copyfile(Path(__file__).parent / name, source.folder / name)
        nav: list = [{"Start": "index.md"}, {"Lessons": _lessons(source, chosen)}]
        _printed("tips", "--html", str(source.folder / "tips.html"), *(word for tip in tips for word in ("--tip", tip)))
        explore(source.folder)
        nav += [{"Explorer": "explorer.html"}, {"Tips": "tips.html"}]
        if clinic:
            source.write("clinic.md", _clinic())
            nav.append({"Clinic": "clinic.md"})
        nav.append({"Claims": "claims.md"})
        pages = [place for path, place in source.places.items() if path.parent == ROOT / "docs" and path.stem != "claims"]
        nav += [{"About": [*pages, "contributing.md", "changelog.md"]}, {"Reference": _reference(source)}]
        logging.getLogger("mkdocs").setLevel(logging.WARNING)
        settings = {"docs_dir": str(source.folder), "site_dir": str(made), "nav": nav, "strict": True}
        mkdocs_build(load_config(str(Path(__file__).parent / "mkdocs.yml"), **settings))
        shutil.copytree(made, folder, dirs_exist_ok=True)


def main(words: Sequence[str] | None = None) -> None:
    """The command: the folder is its one word."""
    parser = argparse.ArgumentParser(description="Write the site: static pages that load nothing from elsewhere.")
    parser.add_argument("folder", nargs="?", default="site", help="where to write it (default: site)")
    target = Path(parser.parse_args(words).folder).resolve()
    build(target)
    print(f"wrote {target / 'index.html'}")


if __name__ == "__main__":
    main()
