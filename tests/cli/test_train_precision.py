"""``train --precision``: each learns the digits as well as float32 does."""

from __future__ import annotations

import re
from functools import cache

import pytest
from rich.console import Console

from tests.profiles import every
from tinygrad_mem.cli import train

SEEDS, EPOCHS = range(1 + 2 // every(2)), 3


@cache
def said(precision: str) -> list[str]:
    """What each seed's run prints."""
    found = []
    for seed in SEEDS:
        before, train.console = train.console, Console(width=120)
        try:
            with train.console.capture() as text:
                train.run(
                    device="cpu",
                    batch_size=64,
                    epochs=EPOCHS,
                    seed=seed,
                    optimizer="adam",
                    precision=precision,
                    data="digits",
                    data_dir=None,
                    picture=None,
                )
        finally:
            train.console = before
        found.append(text.get())
    return found


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
