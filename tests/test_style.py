"""The linters that a contributor runs are tests: what they find fails the suite. So do words that have a plainer one."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", [["ruff", "check", "."], ["ruff", "format", "--check", "."]], ids=lambda c: c[1])
def test_linter_is_content(command: list[str]):
    found = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


MISTAKES = """
from tinygrad_mem.ops.base import Context
from tinygrad_mem.optim.optimizer import Device

def op(ctx: Context, x):
    ctx.kernels.relu(x, out=x)
    ctx.kernels.relux(x, out=x)
    ctx.kernels.exp(x, x, out=x)

def rule(device: Device, p, g):
    device.kernels.sgd_steps(p, g)
"""


CHECKED = ("tinygrad_mem", "tests/benchmarks")


def test_type_checker_is_content(request: pytest.FixtureRequest, tmp_path: Path):
    """It finds nothing in our sources and benchmarks, and each mistake in calls of kernels, which an editor can follow, too.

    It takes half a minute: it is not asked again about files and libraries with which it was content.
    """
    cache, key = getattr(request.config, "cache", None), "tinygrad_mem/pyright was content with"
    seen = fingerprint(ROOT)
    if cache is not None and cache.get(key, None) == seen:
        return
    mistakes = tmp_path / "mistakes.py"
    mistakes.write_text(MISTAKES)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *CHECKED, str(mistakes)]
    room = {"NODE_OPTIONS": "--max-semi-space-size=128"}  # it makes many objects: with room for them, it collects less often
    answer = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | room).stdout)
    assert answer["summary"]["filesAnalyzed"] > sum(len(list((ROOT / folder).rglob("*.py"))) for folder in CHECKED)
    found = [(Path(each["file"]), each["range"]["start"]["line"], each["message"]) for each in answer["generalDiagnostics"]]
    assert [each for each in found if each[0] != mistakes] == []
    lines = [MISTAKES.splitlines()[line].strip() for _, line, _ in found]
    assert lines == [line.strip() for line in MISTAKES.splitlines() if any(w in line for w in ("relux", "exp", "sgd_steps"))]
    if cache is not None:
        cache.set(key, seen)


def fingerprint(root: Path) -> str:
    """What the type checker's answer depends on: our sources and settings, and the installed libraries."""
    found = hashlib.sha256("\n".join(sorted(f"{each.name} {each.version}" for each in distributions())).encode())
    for path in [root / "pyproject.toml", *sorted(path for folder in CHECKED for path in (root / folder).rglob("*.py*"))]:
        if path.suffix in (".py", ".pyi", ".toml"):
            found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def test_a_change_is_seen(tmp_path: Path):
    package = tmp_path / "tinygrad_mem"
    package.mkdir()
    (tmp_path / CHECKED[1]).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    found = {fingerprint(tmp_path)}
    changes = [("a.py", "x = 1"), ("a.py", "x = 2"), ("b.pyi", "x: int"), ("../pyproject.toml", "[tool.pyright]")]
    for name, text in (*changes, (f"../{CHECKED[1]}/d.py", "x = 3")):
        (package / name).write_text(text)
        found.add(fingerprint(tmp_path))
    (package / "a.py").rename(package / "c.py")
    found.add(fingerprint(tmp_path))
    assert len(found) == 7
    assert fingerprint(tmp_path) in found


# --- words ------------------------------------------------------------------------------------------------------------------

SAY_INSTEAD = {
    r"dies|died|dying": "is freed, ends, fails",
    r"births?": "allocation",
    r"fates?": "what happens to it",
    r"in vain": "without need",
    r"surviv\w+": "stays, is kept",
    r"cures?|cured|curing": "fix, fixed",
    r"hear|hears|heard": "is informed, notices",
    r"foretold|foretells?|foresees?": "predicted",
    r"let go|lets go": "free, release",
    r"tells? of": "is about, describes",
    r"or the like, found": "such as",
    r"is how many": "is the number of",
}
"""Words that were replaced in the library, the lessons and the pages. Each says of memory or of programs what is true of
people, or needs explaining.
"""
SAID = {re.compile(rf"\b({word})\b", re.I): instead for word, instead in SAY_INSTEAD.items()}
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").glob("*.md"))
TEXTS = sorted([*(ROOT / "tinygrad_mem").rglob("*.py"), *(ROOT / "tutorials").glob("*.py")])


def texts(source: str) -> Iterator[str]:
    """The comments of a Python source, and its strings of several words."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def found_in(text: str) -> list[str]:
    """The words of a text that have a plainer one, with it. Names in backquotes are left out."""
    plain = re.sub(r"``.*?``|`[^`]*`", "", text)
    return [f"{match[0]}: {instead}" for word, instead in SAID.items() if (match := word.search(plain))]


def test_sources_use_plain_words():
    found = [
        (str(path.relative_to(ROOT)), text[:80], words)
        for path in TEXTS
        if any(word.search(source := path.read_text(encoding="utf-8")) for word in SAID)  # most files have none of them
        for text in texts(source)
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
