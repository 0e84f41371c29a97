"""``docs/architecture.md`` is true: its links lead somewhere, lengths are right to 10%, rooms have the ranks of the test."""

from __future__ import annotations

import ast
import re

import pytest

from tests.reading import (
    ADDED,
    HEAD,
    LENGTH,
    LIBRARY,
    PAGE,
    PARTS,
    ROOT,
    THEN,
    code_lines,
    definitions,
    lines,
    path_of,
    room_of,
    rooms,
    table,
    written,
)  # fmt: skip
from tests.test_architecture import RANKS

TEXT = PAGE.read_text(encoding="utf-8")
LINKS = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", TEXT)
TEN = LENGTH.findall(TEXT)


@pytest.mark.parametrize(("text", "target"), LINKS, ids=[f"{text}-{number}" for number, (text, _) in enumerate(LINKS)])
def test_a_link_leads_to_a_file_and_to_what_it_names(text: str, target: str):
    path = (PAGE.parent / target).resolve()
    assert path.exists()
    name = text.strip("`")
    if "/" not in name:
        assert name in definitions(path) or re.search(rf"^{name} = ", path.read_text(), flags=re.M), f"{path} has no {name}"
    else:
        assert path.as_posix().endswith(name)


def test_lengths_are_right_to_a_tenth():
    assert len(TEN) == 10
    for found in LENGTH.finditer(TEXT):
        said, counted = int(found["lines"].replace(",", "")), lines(ROOT / found["path"])
        assert abs(said - counted) <= counted / 10, f"{found['path']}: run python -m tests.reading --write"


def numbers(row: str) -> list[int]:
    """The numbers of a row, but for those in its first cell."""
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", row.partition("|")[2].partition("|")[2])]


def test_the_table_of_what_must_be_read_is_right_to_a_tenth():
    shown = TEXT.splitlines()
    begin = shown.index(HEAD)
    for said, counted in zip(shown[begin : begin + len(PARTS) + 2], table(), strict=True):
        for a, b in zip(numbers(said), numbers(counted), strict=True):
            assert abs(a - b) <= b / 10, "run python -m tests.reading --write"
        assert said.split("|")[1] == counted.split("|")[1]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_each_step_is_there(part):
    for step in part.steps:
        assert step.partition(":")[2] in definitions(path_of(step)), step
    assert all(path_of(each).exists() for each in part.beside)
    assert not set(part.beside) & {step.partition(":")[0] for step in part.steps}


def test_the_tape_needs_the_files_beside_it_and_the_tensor_that_users_hold():
    here = path_of("autograd/core")
    found = ast.walk(ast.parse(here.read_text(encoding="utf-8")))
    room = {each.module for each in found if isinstance(each, ast.ImportFrom) and each.level == 1 and each.module}
    (tape,) = [part for part in PARTS if part.name == "the tape"]
    assert room == {each.removeprefix("autograd/") for each in tape.beside} | {"tensor"}


def test_the_page_is_rewritten_without_a_change_of_words():
    digits = re.compile(r"[\d,]+")
    assert digits.sub("", written(TEXT)) == digits.sub("", TEXT)
    assert written(TEXT.replace("| 420 |", "| 1 |")) == written(TEXT)


def test_lines_of_code_are_neither_blank_nor_comment_nor_docstring(tmp_path):
    path = tmp_path / "some.py"
    path.write_text('"""Two\nlines."""\n\nx = 1  # one\n# none\n\n\ndef f():\n    """No."""\n    return """\n    three"""\n')
    assert (lines(path), code_lines(path)) == (11, 4)
    assert definitions(path) == {"f"}


def test_the_rooms_have_the_ranks_of_the_test():
    rooms = {}
    for row in TEXT.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) > 3 and cells[1].isdecimal():
            for name in cells[2].split(","):
                rooms[name.strip().strip("`/")] = int(cells[1])
    assert rooms == RANKS


def test_contributing_sends_the_reader_here():
    assert "](docs/architecture.md)" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_lines_of_rooms_are_those_of_all_files():
    paths = list(LIBRARY.rglob("*.py"))
    found = {row.split("|")[1].strip(): numbers(row) for row in rooms()}
    assert found["all"] == [sum(THEN.values()), sum(map(lines, paths))] == [58985, found["all"][1]]
    assert {room_of(path.relative_to(LIBRARY).as_posix()) for path in paths} == {*THEN, *ADDED}
    assert found["techniques"][1] == sum(
        lines(path) for path in paths if path.parent.name == "techniques" and path.stem not in ("lora", "paged", "quantized")
    )
    for pattern in " ".join(ADDED.values()).split():
        assert list(LIBRARY.glob(pattern)), f"no file is {pattern}"
