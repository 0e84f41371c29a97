"""Tables in the terminal and summaries in notebooks: they add up to the track's bytes, and names are text."""

from __future__ import annotations

import re
import sys

import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, nn


@pytest.fixture(scope="module")
def track() -> memory.Track:
    with memory.track() as track:
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(30)])
        model(tm.randn(8, 64)).sum().backward()
        memory.mark("end of step")
    return track


def numbers(table: str) -> list[int]:
    """The second column: the bytes of each row."""
    return [int(found.replace(",", "")) for found in re.findall(r"│ +([\d,]+) │", table)]


@pytest.mark.parametrize("by", ["category", "module", "op", "line"])
@pytest.mark.parametrize("at", [None, "end of step"])
def test_rows_add_up_to_the_bytes_in_use(track: memory.Track, by: str, at: str | None):
    *rows, total = numbers(track.table(by, at, rows=5))
    assert total == sum(getattr(track, f"by_{by}")(at).values())
    assert sum(rows) == total
    assert len(rows) <= 6
    assert rows[: min(len(rows), 5)] == sorted(rows[:5], reverse=True)


def test_what_is_left_out_is_counted(track: memory.Track):
    names = len(track.by_module())
    assert f"{names - 5:,} smaller ones" in track.table("module", rows=5)
    assert "smaller ones" not in track.table("module", rows=names)
    assert "at end of step" in track.table(at=track.marks[0])


def test_lines_fit_and_names_are_text(track: memory.Track):
    assert max(map(len, track.table("line").splitlines())) <= 100
    with memory.track() as other:
        model = nn.Sequential()
        model.add_module("[red]x[/red]", nn.Linear(2, 2))
        kept = model(tm.ones(3, 2))
    assert kept.shape == (3, 2)
    assert "[red]x[/red]" in other.table("module")


def test_marks_and_the_most_between_them():
    with memory.track() as track:
        older = memory.memory_allocated()
        kept = tm.zeros(1024)
        memory.mark("kept")
        tm.zeros(4096)
        memory.mark("gone")
        memory.mark("")
    rows = [re.findall(r"│ +([\d,]+)(?= │)", line) for line in track.table("mark").splitlines() if line.startswith("│")]
    assert kept.nbytes == 4096
    found = [[int(number.replace(",", "")) - older for number in row] for row in rows]
    assert found == [[4096, 4096], [4096, 20480], [4096, 4096]]
    assert "(no text)" in track.table("mark")


def test_a_comparison_adds_up():
    tracks = []
    for batch in (64, 16):
        with memory.track() as track:
            model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(10)])
            model(tm.randn(batch, 64)).sum().backward()
        tracks.append(track)
    found = tracks[0].compare(tracks[1])
    rows = [re.findall(r"│ +([+-]?[\d,]+)(?= │)", line) for line in found.table(("large", "small"), rows=3).splitlines()]
    numbers = [[int(number.replace(",", "")) for number in row] for row in rows if row]
    assert numbers[0] == [found.peak.before, found.peak.after, found.peak.change]
    assert numbers[1][2] == found.saved.change
    assert len(numbers) == 3 + 3 + 1
    assert sum(row[2] for row in numbers[3:]) == found.peak.change
    assert "smaller changes" in found.table(rows=3)
    assert "smaller changes" not in found.table(rows=100)


def test_refusals(track: memory.Track, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="'op', 'line' or 'mark', found 'colour'"):
        track.table("colour")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="needs matplotlib, which is not installed: pip install matplotlib"):
        track.plot("nowhere")


def test_a_notebook_shows_the_curve_and_the_peak(track: memory.Track):
    shown = track._repr_html_()
    assert f"{track.peak:,} bytes" in shown
    sizes = track.by_category("peak")
    for category, size in sizes.items():
        assert category.value in shown
        assert f">{size:,}<" in shown
    assert shown.count("<polygon") == len(track.timeline().categories)
    heights = [float(y) for y in re.findall(r"\d,(-?[\d.]+)", " ".join(re.findall(r'points="([^"]*)"', shown)))]
    assert min(heights) == 0.0
    assert max(heights) == 160.0
    assert "<script" not in shown
    assert len(shown) < 1 << 18
    assert "nothing was allocated" in memory.Track.of(memory.Log("cpu"))._repr_html_()
