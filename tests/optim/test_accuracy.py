"""The page of how well optimizers learn: it is of these rules, and of numbers that a training gives again."""

from __future__ import annotations

import re

import pytest

from tests.optim import accuracy
from tests.profiles import some


def written() -> dict[str, list[float]]:
    """Name -> digits, spread, rate, text, spread, rate, state."""
    rows = re.findall(r"^\| `(.*?)` \| (.*) \|$", accuracy.PAGE.read_text(encoding="utf-8"), flags=re.M)
    return {name: [float(cell.rstrip("%")) for cell in re.split(r" \| | ± ", rest)] for name, rest in rows}


def test_the_page_is_of_these_rules():
    assert {name: (row[2], row[5]) for name, row in written().items()} == {
        name: (fast, slow) for name, (_, fast, slow) in accuracy.RULES.items()
    }
    found = {name: accuracy.Found(row[0] / 100, row[1] / 100, row[3], row[4], row[6]) for name, row in written().items()}
    python = re.compile(r"\(Python 3\.\d+\)")
    assert python.sub("", accuracy.page(found)) == python.sub("", accuracy.PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", some(list(accuracy.RULES), ["Lomo, max_norm=1.0"]))
def test_digits_are_learned_as_the_page_says(name: str):
    share, spread, rate, *_ = written()[name]
    assert abs(accuracy.digits(name, accuracy.SEEDS[0], rate) - share / 100) < spread / 100 + 0.01


@pytest.mark.parametrize("name", some(list(accuracy.RULES), []))
def test_text_is_learned_as_the_page_says(name: str):
    """Of another Python the text is another."""
    *_, mean, spread, rate, kept = written()[name]
    bits, state = accuracy.text(name, accuracy.SEEDS[0], rate)
    assert abs(bits - mean) < spread + 0.3
    assert abs(state - kept) < 1e-3
