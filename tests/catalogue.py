"""The tables of techniques in ``docs/techniques.md`` and ``tutorials/README.md``, made from the catalogue.

``python -m tests.catalogue --write`` writes both; without ``--write`` it prints them. A test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tinygrad_mem.techniques import TABLE, Technique

ROOT = Path(__file__).parents[1]
HEAD = "| technique | use |"
COLUMNS = {
    "docs/techniques.md": ("technique", "use", "what becomes smaller", "price", "the numbers", "lessons"),
    "tutorials/README.md": ("technique", "use", "lessons", "tips", "not together with", "in PyTorch"),
}
"""Page -> the columns of its table."""


def table(page: str) -> list[str]:
    """Return the lines of the page's table: a row for each technique."""
    columns = COLUMNS[page]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    to_lessons = "../tutorials/" if page == "docs/techniques.md" else ""
    cells = [_cells(row, to_lessons) for row in TABLE.values()]
    return [*lines, *("| " + " | ".join(row[column] for column in columns) + " |" for row in cells)]


def _cells(row: Technique, to_lessons: str) -> dict[str, str]:
    """Return column -> text."""
    rivals = [*row.not_with, *(other.name for other in TABLE.values() if row.name in other.not_with)]
    return {
        "technique": row.title,
        "use": _code(row.use),
        "what becomes smaller": row.memory,
        "price": row.price,
        "the numbers": row.equal,
        "lessons": _listed([f"[{name[:2]}]({to_lessons}{name}.py)" for name in row.lessons]),
        "tips": _code(row.tips),
        "not together with": _listed([TABLE[name].title for name in rivals]),
        "in PyTorch": _code((row.pytorch,) if row.pytorch else ()),
    }


def _code(names: tuple[str, ...]) -> str:
    return _listed([f"`{name}`" for name in names])


def _listed(parts: list[str]) -> str:
    return ", ".join(parts) or "none"


def replaced(page: str, lines: list[str]) -> str:
    """Return the page with its table of techniques replaced.

    Raises:
        ValueError: the page has no such table.
    """
    old = page.splitlines()
    begin = next((i for i, line in enumerate(old) if line.startswith(HEAD)), None)
    if begin is None:
        raise ValueError(f"the page has no table that begins with {HEAD!r}")
    end = next((i for i in range(begin, len(old)) if not old[i].startswith("|")), len(old))
    return "\n".join([*old[:begin], *lines, *old[end:]]) + "\n"


def main() -> None:
    """Write the tables into the pages, or print them."""
    for name in COLUMNS:
        if "--write" in sys.argv:
            path = ROOT / name
            path.write_text(replaced(path.read_text(encoding="utf-8"), table(name)), encoding="utf-8")
        else:
            print(name, *table(name), sep="\n")


if __name__ == "__main__":
    main()
