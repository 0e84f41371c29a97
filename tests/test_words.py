"""Words of our texts: docstrings, messages and comments of the library, the lessons and the pages say it plainly.

Each word here was replaced everywhere, because it says of memory or programs what is true of people, or needs explaining.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAY_INSTEAD = {
    r"dies|died|dying": "is freed, ends, fails",
    r"births?": "allocation",
    r"cures?|cured|curing": "fix, fixed",
    r"hear|hears|heard": "is informed, notices",
    r"foretold|foretells?|foresees?": "predicted",
    r"let go|lets go": "free, release",
    r"tells? of": "is about, describes",
    r"or the like, found": "such as",
    r"is how many": "is the number of",
}
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").glob("*.md"))
SOURCES = sorted([*(ROOT / "tinygrad_mem").rglob("*.py"), *(ROOT / "tutorials").glob("*.py")])


def texts(source: str) -> Iterator[str]:
    """The comments of a Python source, and its strings of several words."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def found_in(text: str) -> list[str]:
    """The words of a text that have a plainer one, with it."""
    plain = re.sub(r"``.*?``|`[^`]*`", "", text)
    pairs = ((word, re.search(rf"\b({word})\b", plain, re.I)) for word in SAY_INSTEAD)
    return [f"{match[0]}: {SAY_INSTEAD[word]}" for word, match in pairs if match]


def test_sources_use_plain_words():
    found = [
        (str(path.relative_to(ROOT)), text[:80], words)
        for path in SOURCES
        for text in texts(path.read_text(encoding="utf-8"))
        if (words := found_in(text))
    ]
    assert found == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_uses_plain_words(path: Path):
    assert found_in(path.read_text(encoding="utf-8")) == []


def test_the_words_are_found():
    assert found_in("until the gradient dies") == ["dies: is freed, ends, fails"]
    assert found_in("the shape ``(birth,)`` and a `cure`") == []
    assert list(texts('x = "two words"  # cured\ny = "one"\n')) == ["# cured", "two words"]
