"""The static picture says what the track knows: categories, phases, the peak and who had its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import tinygrad_mem as tm
from tests.profiles import some
from tinygrad_mem import memory, nn, scope
from tinygrad_mem.devices import Pool
from tinygrad_mem.interrupts import context
from tinygrad_mem.memory.render import picture
from tinygrad_mem.memory.render.picture import drawing
from tinygrad_mem.memory.sizes import bytes_text
from tinygrad_mem.text import visible


def texts(path: Path) -> list[str]:
    """The words of an svg, in order; matplotlib writes them into comments beside the glyphs."""
    return [text.strip() for text in re.findall(r"<!-- (.*?) -->", path.read_text())]


def test_the_picture_says_what_the_track_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tm.device("cpu"), "pool", Pool("cpu"))  # what other tests keep leaves less room for words
    with memory.track() as track:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        nn.functional.cross_entropy(model(tm.randn(16, 3, 16, 16)), tm.randint(0, 10, (16,))).backward()
        optimizer.step()
    track.plot(tmp_path / "step.svg", title="one step")
    words = texts(tmp_path / "step.svg")
    assert {c.value for c in track.timeline().categories} <= set(words)
    assert {"one step", "forward", "backward"} <= set(words)
    (peak,) = [text for text in words if text.startswith("peak ")]
    assert peak == f"peak {bytes_text(track.peak)}"
    owner, size = next(iter(track.by_module("peak").items()))
    assert f"{bytes_text(size)}  {owner or 'no module'}" in words
    track.plot(tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_two_runs_stand_beside_each_other_on_one_scale(tmp_path: Path):
    tracks = []
    for size in (1 << 20, 1 << 18):
        with memory.track() as track:
            tm.zeros(size)
        tracks.append(track)
    tracks[0].plot(tmp_path / "pair.svg", tracks[1], title="a smaller one")
    words = texts(tmp_path / "pair.svg")
    assert {"a smaller one", "before", "after", *(f"peak {bytes_text(track.peak)}" for track in tracks)} <= set(words)
    assert words.count("MiB") == 1
    with pytest.raises(ValueError, match="the timeline is empty"):
        tracks[0].plot(tmp_path / "none.png", memory.Track.of(memory.Log("cpu")))


@pytest.mark.parametrize("runs", [1, 2])
def test_names_of_phases_have_room(runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """None reaches over its phase, whatever the width of the phases is."""
    seen: list[int] = []

    @context
    def measured(*args: Any) -> Iterator[Any]:
        with drawing(*args) as figure:
            yield figure
            figure.canvas.draw()
            for axes in figure.axes:
                boxes = sorted(text.get_window_extent().intervalx.tolist() for text in axes.texts if text.get_fontsize() == 9)
                edges = axes.get_window_extent().intervalx.tolist()
                assert all(a[1] < b[0] for a, b in pairwise([[edges[0]] * 2, *boxes, [edges[1]] * 2]))
                seen.append(len(boxes))

    monkeypatch.setattr(picture, "drawing", measured)
    for repeats in (2, 3):  # just too few and just enough
        with memory.track() as track:
            for phase in ("user", "optimizer", "forward"):
                with scope.phase(phase):
                    for _ in range(repeats if phase == "optimizer" else 10):
                        tm.zeros(3)
        track.plot(tmp_path / "x.png", *[track] * (runs - 1))
    assert min(seen) < max(seen) == 3


def test_a_picture_without_a_title_is_named_after_its_run(tmp_path: Path):
    with memory.track() as track:
        nn.Linear(3, 4)(tm.ones(2, 3))
    track.plot(tmp_path / "x.svg")
    assert "Linear: forward on cpu" in texts(tmp_path / "x.svg")


def test_a_long_run_is_drawn_by_its_extremes(tmp_path: Path):
    with memory.track() as track:
        for i in range(4000):
            tm.zeros(200 + (i == 1234) * 10_000)
    track.plot(tmp_path / "long.svg")
    assert f"peak {bytes_text(track.peak)}" in texts(tmp_path / "long.svg")
    assert (tmp_path / "long.svg").stat().st_size < 1 << 20


def test_refusals(tmp_path: Path):
    with pytest.raises(ValueError, match="the timeline is empty"):
        memory.Track.of(memory.Log("cpu")).plot(tmp_path / "none.png")
    with memory.track() as track:
        tm.zeros(3)
    with pytest.raises(ValueError, match="wrong"):
        track.plot(tmp_path / "picture.wrong")


HOSTILE = ["$", "$x_{", "\\frac{$x$}", "100% of $5 & $6", "x\x1b[31m\x9b0m", "\u202eneve\0", "\ud800", "\U0001f642 \u5c42"]


DRAWN = [(name, ending) for ending in ("svg", "png") for name in HOSTILE]


@pytest.mark.parametrize(("name", "ending"), some(DRAWN, DRAWN[: len(HOSTILE) + 2]), ids=lambda value: ascii(value)[1:-1])
def test_any_text_is_drawn_as_it_is(name: str, ending: str, tmp_path: Path):
    with memory.track() as track:
        model = nn.Sequential()
        model.add_module(name, nn.Linear(4, 4))
        model(tm.ones(2, 4)).sum().backward()
    path = tmp_path / f"hostile.{ending}"
    track.plot(path, title=f"of {name}")
    if ending == "svg":
        ElementTree.parse(path)
        shown = f"of {visible(name)}"
        assert shown.isprintable()
        assert shown.replace("&", "&amp;") in texts(path)
        assert "Oblique" not in path.read_text(encoding="utf-8"), "a formula would be in italics"


def test_the_users_settings_of_matplotlib_are_left_alone(tmp_path: Path):
    import matplotlib

    with memory.track() as track:
        tm.zeros(3)
    with matplotlib.rc_context({"text.parse_math": True, "backend": "template"}):
        track.plot(tmp_path / "step")
        assert matplotlib.rcParams["text.parse_math"]
        assert matplotlib.get_backend() == "template"
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
