"""The page of how well optimizers learn: it is of these rules, and of numbers that a training gives again."""

from __future__ import annotations

import re

import pytest

from tests.optim import accuracy
from tests.profiles import some


def written() -> dict[str, list[float]]:
    """Name -> digits, rate, text, rate, state."""
    rows = re.findall(r"^\| `(.*?)` \| (.*) \|$", accuracy.PAGE.read_text(encoding="utf-8"), flags=re.M)
    return {name: [float(cell.rstrip("%")) for cell in rest.split(" | ")] for name, rest in rows}


def test_the_page_is_of_these_rules():
    assert {name: (row[1], row[3]) for name, row in written().items()} == {
        name: (fast, slow) for name, (_, fast, slow) in accuracy.RULES.items()
    }
    found = {name: tuple(row[i] / (100 if i == 0 else 1) for i in (0, 2, 4)) for name, row in written().items()}
    lines = accuracy.page(found).splitlines()[2:]
    python = re.compile(r"\(Python 3\.\d+\)")
    assert [python.sub("", line) for line in lines] == [
        python.sub("", line) for line in accuracy.PAGE.read_text(encoding="utf-8").splitlines()[2:]
    ]


@pytest.mark.parametrize("name", some(list(accuracy.RULES), ["Lomo(clip_grad_value=1.0)"]))
def test_digits_are_learned_as_the_page_says(name: str):
    made, fast, _ = accuracy.RULES[name]
    assert abs(accuracy.digits(made, fast) - written()[name][0] / 100) < 0.02


@pytest.mark.parametrize("name", some(list(accuracy.RULES), []))
def test_text_is_learned_as_the_page_says(name: str):
    """Of another Python the text is another."""
    made, _, slow = accuracy.RULES[name]
    bits, state = accuracy.text(made, slow)
    assert abs(bits - written()[name][2]) < 0.4
    assert abs(state - written()[name][4]) < 1e-3
