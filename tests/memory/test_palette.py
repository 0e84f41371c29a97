"""Colours: one for each category, the same in every picture and page, and none of them for anything else."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np

from tinygrad_mem.memory import Category
from tinygrad_mem.memory.render.palette import COLOURS, LINES

ROOT = Path(__file__).parents[2]


def lab(colour: str) -> np.ndarray:
    """A colour (#rrggbb, sRGB) in CIE Lab, white point D65."""
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ linear / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str) -> float:
    return float(np.linalg.norm(lab(one) - lab(other)))


def test_each_category_has_a_colour_of_its_own():
    assert set(COLOURS) == set(Category)
    assert min(distance(a, b) for a, b in combinations(COLOURS.values(), 2)) > 15


def test_a_line_looks_like_no_category_and_like_no_other_line():
    assert min(distance(line, colour) for line in LINES for colour in COLOURS.values()) > 25
    assert min(distance(a, b) for a, b in combinations(LINES, 2)) > 25
    assert max(lab(line)[0] for line in LINES) < 60  # on white


def test_colours_stand_in_the_palette_alone():
    """Everywhere else there are names and greys. A lesson gives a category's colour to what it calls by its name alone."""
    for path in [*(ROOT / "tinygrad_mem").rglob("*.py"), *(ROOT / "tutorials").glob("*.py")]:
        if path.name == "palette.py":
            continue
        text = path.read_text(encoding="utf-8")
        for colour in re.findall(r"[\"'](#[0-9A-Fa-f]{6})[\"']", text):
            assert len({colour[i : i + 2] for i in (1, 3, 5)}) == 1, (
                f"{path.name}: {colour} is neither a grey nor in palette.py"
            )
        if path.parent.name == "tutorials":
            for line in text.splitlines():
                assert "COLOURS[" not in line or "label=category.value" in line, f"{path.name}: {line.strip()}"
