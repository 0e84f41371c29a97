"""Bytes a parameter: what the table in ``optim`` says of each optimizer, what it keeps, and what a network's estimate tells."""

from __future__ import annotations

import itertools
import re

import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, optim
from tinygrad_mem.cli.app import Update
from tinygrad_mem.cli.networks import OPTIMIZERS
from tinygrad_mem.memory import Category

N, M = 1024, 2048


def table() -> list[tuple[str, float]]:
    """(how it is made, bytes a parameter) of each optimizer in the docstring's table."""
    rows = []
    for line in (optim.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 2 and cells[0].startswith("`"):
            rows += [(made, eval(cells[1].partition(",")[0], {"n": N, "m": M})) for made in re.findall(r"`([^`]*)`", cells[0])]
    return rows


def kept(made: str, dtype: tm.dtype, masters: bool) -> dict[Category, int]:
    name, _, options = made.partition("(")
    narrow = tm.bfloat16 if dtype == tm.bfloat16 else tm.float16
    options = eval(f"dict({options or ')'}", {"float16": narrow})

    def step() -> None:
        p = tm.zeros(N, M, dtype=dtype, requires_grad=True)
        rule = getattr(optim, name)([p], lr=1e-3, **options, **({"master_weights": True} if masters else {}))
        p.grad = tm.zeros(N, M, dtype=dtype)
        rule.step()
        memory.mark("stepped")

    return memory.predict(step).by_category("stepped")


def test_every_optimizer_is_in_the_table():
    classes = {n for n, c in vars(optim).items() if isinstance(c, type) and issubclass(c, optim.Optimizer)} - {"Optimizer"}
    apart = {"SparseAdam", "LBFGS"}  # of sparse gradients: test_sparse.py; of a closure: test_lbfgs.py
    assert {made.partition("(")[0] for made, _ in table()} == classes - apart


@pytest.mark.parametrize(("made", "expected"), table(), ids=lambda v: v if isinstance(v, str) else "")
def test_the_table_is_true(made: str, expected: float):
    """Without a float32 copy, moments in half precision are of half precision too."""
    as_said = "state_dtype" in made or "bit" in made or made.startswith(("Adafactor", "AdaLomo", "GaLore", "APOLLO"))
    for dtype, masters in [(tm.float32, False), *itertools.product((tm.float16, tm.bfloat16), (False, True))]:
        found = kept(made, dtype, masters)
        halved = not as_said and dtype != tm.float32 and not masters
        half = expected - 2 if made == "AdamMini" else expected / 2  # its mean squares stay float32
        assert found.get(Category.OPTIMIZER_STATE, 0) / (N * M) == (half if halved else expected)
        assert found.get(Category.MASTER_WEIGHT, 0) / (N * M) == (4 if masters else 0)


def test_the_estimate_knows_them_all():
    assert [u.value for u in Update] == list(OPTIMIZERS)
    made = {type(rule([tm.zeros(1, requires_grad=True)])).__name__ for rule in OPTIMIZERS.values()}
    assert made == {made.partition("(")[0] for made, _ in table()}
