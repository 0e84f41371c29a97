"""The table of techniques: each has its tests, each is where it says, and pairs that do not go together say so."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import tinygrad_mem as tm
from tinygrad_mem.techniques import TABLE, Technique

HERE = Path(__file__).parent
SHARED = {"table", "combinations", "myths", "against_pytorch"}
WANTED = {
    "equal": ("identical", "equal", "bit_for_bit"),
    "bytes": ("bytes", "peak"),
    "the big networks": ("big_networks",),
    "pytorch": ("pytorch",),
}


def named_in(name: str) -> list[str]:
    tree = ast.parse((HERE / f"test_{name}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_every_technique_has_its_tests_and_every_test_its_technique():
    files = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")} - SHARED
    assert files == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("what", WANTED)
def test_they_show_what_each_technique_must_show(name: str, what: str):
    found = named_in(name)
    assert any(word in test for test in found for word in WANTED[what]), f"no test of {what} among {found}"


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_it_is_where_the_table_says_and_says_its_memory_and_its_price(row: Technique):
    for path in row.use:
        found: Any = tm
        for part in path.split("."):
            found = getattr(found, part)
        for word in ("Memory:", "Price:", "Do not use when:"):
            assert word in (found.__doc__ or ""), f"{path} does not say: {word}"


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_pairs_that_do_not_go_together_are_told_from_both_sides(row: Technique):
    for other in row.not_with:
        assert row.name in TABLE[other].not_with
