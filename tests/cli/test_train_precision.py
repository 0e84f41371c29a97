"""``train --precision``: each learns the digits as well as float32 does."""

from __future__ import annotations

import re
from functools import cache

import pytest
from typer.testing import CliRunner

from tests.profiles import every
from tinygrad_mem.cli.app import app

SEEDS, EPOCHS = range(1 + 2 // every(3)), 3


@cache
def said(precision: str) -> list[str]:
    """What each seed's run prints."""
    options = ["train", "--epochs", str(EPOCHS), "--precision", precision]
    ran = [CliRunner().invoke(app, [*options, "--seed", str(seed)], env={"COLUMNS": "120"}) for seed in SEEDS]
    assert all(each.exit_code == 0 for each in ran)
    return [each.output for each in ran]


def accuracies(precision: str) -> list[float]:
    """On the held-out images, in percent, for each seed."""
    return [float(number) for text in said(precision) for number in re.findall(r"test accuracy ([\d.]+)%", text)]


@pytest.mark.parametrize("precision", ["autocast", "half"])
def test_it_learns_as_well_as_float32(precision: str):
    ours, reference = accuracies(precision), accuracies("float32")
    assert len(ours) == len(reference) == len(SEEDS)
    assert sum(reference) / len(SEEDS) >= 95
    assert abs(sum(ours) - sum(reference)) / len(SEEDS) <= 0.5, (ours, reference)


def test_the_table_says_what_each_keeps():
    for precision in ("float32", "autocast", "half"):
        text = said(precision)[0]
        assert ("casts of weights" in text) == (precision == "autocast")
        assert ("master weights" in text) == (precision == "half")
