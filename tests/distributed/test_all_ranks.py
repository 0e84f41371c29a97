"""The peaks of all ranks of a prediction, told and drawn: which are alike, their place in the mesh, bytes by category."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.memory.ranks import Alike, AllRanks, Grid, in_runs


def run():
    """Stage s of 3 keeps 3 - s micro-batches."""
    dist.init_process_group()
    mesh = dist.init_device_mesh("cpu", (3, 2), mesh_dim_names=("pp", "dp"))
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU())
    losses = [model(tm.zeros(64, 64)).sum() for _ in range(3 - mesh.get_local_rank("pp"))]
    for loss in losses:
        loss.backward()


def test_ranks_are_reported_with_their_place_and_their_bytes():
    found = memory.predict(run, world_size=6, ranks="all")
    assert [each.ranks for each in found] == [(0, 1), (2, 3), (4, 5)]
    assert [found.label(each) for each in found] == ["ranks 0-1 (pp 0)", "ranks 2-3 (pp 1)", "ranks 4-5 (pp 2)"]
    matrix = 64 * 64 * 4
    for stage, each in enumerate(found):
        assert each.peak == each.track.peak == sum(each.used.values())
        assert each.used[memory.Category.PARAMETER] == matrix
        assert each.used[memory.Category.INPUT] == (3 - stage) * matrix
        assert each.reserved == each.track.pool("end").reserved >= each.peak
    last = found[-1]
    lines = str(found).splitlines()
    assert lines[-1].startswith(f"ranks 4-5 (pp 2): peak {last.peak / 1024:.2f} KiB, reserved {last.reserved / 1024:.2f} KiB: ")
    assert "parameters 16.00 KiB" in lines[-1]
    assert len(lines) == 3


def test_peaks_from_a_mark_on():
    def train():
        dist.init_process_group()
        tm.zeros(1 << 20)
        memory.mark("made")
        tm.zeros(1000)

    found = memory.predict(train, world_size=2, ranks="all")
    assert found[0].peak == 4 << 20
    (later,) = found.since("made")
    assert (later.peak, later.ranks) == (4096, (0, 1))
    with pytest.raises(ValueError, match="track: no mark 'trained'; the marks are 'made'"):
        print(found.since("trained"))


def test_a_rank_that_allocates_nothing_has_no_peak(tmp_path: Path):
    def members():
        dist.init_process_group()
        if dist.new_group([1]) is not dist.GroupMember.NON_GROUP_MEMBER:
            tm.zeros(1000)

    found = memory.predict(members, world_size=2, ranks="all")
    assert [(each.peak, each.reserved > 0) for each in found] == [(0, False), (4096, True)]
    assert str(found).splitlines() == [
        "rank 0: peak 0 B, reserved 0 B",
        "rank 1: peak 4.00 KiB, reserved 4.00 KiB: inputs 4.00 KiB",
    ]
    found.plot(tmp_path / "one.svg")
    with pytest.raises(ValueError, match="plot: there is nothing to draw: no rank allocated anything"):
        AllRanks(found[:1]).plot(tmp_path / "none.svg")


def test_places_that_are_a_box_of_the_mesh_are_named():
    grid = Grid(("pp", "dp", "tp"), np.arange(24).reshape(2, 3, 4))
    track = memory.Track("meta")

    def place(*ranks: int) -> str:
        return AllRanks([], grid).place(Alike(ranks, track))

    assert place(*range(24)) == ""
    assert place(*range(12)) == "pp 0"
    assert place(*range(12, 16), *range(16, 20)) == "pp 1, dp 0-1"
    assert place(5) == "pp 0, dp 1, tp 1"
    assert place(0, 2, 12, 14) == "dp 0, tp 0, 2"
    assert place(0, 5) == ""  # no box
    assert AllRanks([]).place(Alike((0,), track)) == ""


def test_runs_of_numbers():
    assert in_runs([3]) == "3"
    assert in_runs([0, 1, 2, 5]) == "0-2, 5"
    assert in_runs(range(0, 1024, 8)) == "0, 8, ..., 1016"


def test_the_picture_says_the_same(tmp_path: Path):
    found = memory.predict(run, world_size=6, ranks="all")
    found.plot(tmp_path / "ranks.svg", title="three stages")
    words = [text.strip() for text in re.findall(r"<!-- (.*?) -->", (tmp_path / "ranks.svg").read_text())]
    assert {"three stages", "KiB in use at the peak", *(found.label(each) for each in found)} <= set(words)
    assert {f"{each.peak / 1024:.2f} KiB" for each in found} <= set(words)
    assert {category.value for each in found for category in each.used} <= set(words)


def test_of_many_bars_some_are_labelled(tmp_path: Path):
    def each_other():
        dist.init_process_group()
        tm.zeros(128 * (1 + dist.get_rank()))

    found = memory.predict(each_other, world_size=100, ranks="all")
    assert len(found) == 100
    found.plot(tmp_path / "many.svg")
    words = [text.strip() for text in re.findall(r"<!-- (.*?) -->", (tmp_path / "many.svg").read_text())]
    assert [word for word in words if word.startswith("rank ")] == [f"rank {i}" for i in range(0, 100, 3)]
