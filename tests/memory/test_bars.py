"""Stacked bars in a terminal: heights, the scale that pictures share, which colour is what, and pictures of nothing."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.memory.render.bars import Bars, draw, of_track

LOW = Bars("low", {"a": np.arange(9), "b": np.full(9, 8)}, {"a": "red", "b": "blue"})
HIGH = Bars("high", {"a": np.full(4, 32)}, {"a": "red"})


def drawn(*bars: Bars, width: int, height: int = 4) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    draw(bars, console, height)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_layers_are_stacked():
    """8 bytes of b on 0 to 8 of a: half the height, and up to all of it."""
    assert drawn(LOW, width=22)[:5] == [
        "low",
        "      16 B      ▂▄▆█",
        "            ▂▄▆█████",
        "           █████████",
        "         0 █████████",
    ]


def test_one_scale_for_all():
    """16 of 32 bytes fill the lower half."""
    lines = drawn(LOW, HIGH, width=40)
    assert lines[0] == "low"
    low, high = lines[1:5], lines[lines.index("high") + 1 :][:4]
    assert "█" not in low[0] + low[1]
    assert "█" in low[2]
    assert all("█" in line for line in high)
    assert lines.count("█ a   █ b") == 1


@pytest.mark.parametrize("width", range(18, 60))
def test_a_line_of_the_legend_ends_between_two_names(width: int):
    """rich broke it between the colour and its name."""
    names = ["optimizer state", "gradients", "workspace", "b"]
    lines = drawn(Bars("", dict.fromkeys(names, np.full(4, 32)), dict.fromkeys(names, "red")), width=width)
    legend = [line for line in lines if any(name in line for name in names)]
    assert max(map(len, legend)) <= width
    assert sorted("   ".join(legend).split("   ")) == sorted(f"█ {name}" for name in names)


def test_beside_each_other_where_there_is_room():
    first = drawn(LOW, HIGH, width=80)[0]
    assert first.index("low") < first.index("high")


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_track_fits_its_terminal(width: int):
    def step() -> None:
        x = tm.ones(1000, requires_grad=True)
        x.square().sum().backward()

    track = memory.predict(step)
    bars = of_track(track, "step")
    assert int(bars.total.max()) == track.peak
    assert list(bars.total) == list(track.timeline().used)
    lines = drawn(bars, width=width)
    assert max(map(len, lines)) <= width
    assert f"{track.peak / 1024:.2f} KiB" in lines[1]


def test_nothing_is_a_title():
    assert drawn(of_track(memory.predict(lambda: None), "nothing"), width=40)[0] == "nothing"
