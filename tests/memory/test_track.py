"""The track: its categories add up to the pool's own count, at every event."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.networks import WORKLOADS
from tinygrad_mem import memory, scope
from tinygrad_mem.devices import device
from tinygrad_mem.memory import Category


class _Counts(scope.Listener):
    """The pool's own used bytes after each event, heard beside the log."""

    def __init__(self, device: tm.device) -> None:
        self.device, self.used, self.live = device, [], 0

    def malloc(self, device, address, requested, rounded):
        if device == str(self.device):
            self.live += rounded
            self.used.append(self.live)

    def free(self, device, address, rounded):
        if device == str(self.device):
            self.live -= rounded
            self.used.append(self.live)


def test_categories_add_up_to_used_bytes_at_every_event():
    pool = device("cpu").pool
    counts = _Counts(device("cpu"))
    older = counts.live = pool.used_bytes()
    scope.listen(counts)
    try:
        with memory.track() as track:
            step = WORKLOADS[1].build(tm)
            step()
            step()
            inside = pool.used_bytes()
    finally:
        scope.unlisten(counts)
    timeline = track.timeline()
    kinds = track.log.column("kind")[timeline.event]
    changes = timeline.used[(kinds == memory.Kind.MALLOC) | (kinds == memory.Kind.FREE)]
    assert changes.tolist() == counts.used[: len(changes)]
    assert all(sum(m.by_category.values()) == m.used for m in timeline)
    assert timeline[-1].used == inside
    assert track.peak == max(counts.used)
    assert timeline[-1].by_category.get(Category.UNTRACKED, 0) == older


def test_categories_of_a_training_step_are_what_the_formulas_say():
    with memory.track() as track:
        step = WORKLOADS[0].build(tm)
        step()
        step()
    peak = track.at_peak().by_category
    parameters = sum(-(-p.nbytes // 512) * 512 for p in step.model.parameters())
    assert peak[Category.PARAMETER] == parameters
    assert peak[Category.OPTIMIZER_STATE] == 2 * parameters  # Adam keeps two moments
    assert peak[Category.GRADIENT] <= parameters
    assert peak[Category.INPUT] == 256 * 784 * 4 + 256 * 8


def test_what_was_there_before_is_named_so():
    t = tm.tensor(np.ones(1000, np.float32))
    before = device("cpu").pool.used_bytes()
    with memory.track() as track:
        u = tm.tensor(np.ones(1000, np.float32))
    assert track.at_peak().by_category == {Category.UNTRACKED: before, Category.INPUT: 4096}
    with memory.track() as track:
        del t, u
    assert track.timeline()[-1].by_category.get(Category.UNTRACKED, 0) == before - 4096


def test_a_track_runs_once():
    with memory.track() as track:
        tm.tensor([1.0])
    with pytest.raises(RuntimeError, match="has run already"):
        track.__enter__()


def test_an_empty_track_has_no_peak():
    with memory.track() as track:
        pass
    with pytest.raises(ValueError, match="nothing was allocated"):
        track.at_peak()


def test_the_picture_is_written(tmp_path):
    from tinygrad_mem.memory.render.picture import plot

    with memory.track() as track:
        step = WORKLOADS[1].build(tm)
        step()
    plot(track.timeline(), tmp_path / "step.png", title="LeNet")
    assert (tmp_path / "step.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(ValueError, match="empty"):
        plot([], tmp_path / "none.png", title="")
