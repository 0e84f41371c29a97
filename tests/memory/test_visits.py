"""Between any two bytecodes of a track that is read, of a log that is packed and of a limit that begins or ends, a handler may
ask the same: nothing hangs, both answers are right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.devices import Pool
from tinygrad_mem.memory import attribution, log

from .interrupt import visited


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    made = Pool("cpu")
    monkeypatch.setattr(tm.device("cpu"), "pool", made)
    return made


def run() -> None:
    held = [tm.ones(1000) for _ in range(4)]
    del held[1]
    (held[0].requires_grad_() * held[1]).sum().backward()


@pytest.mark.parametrize("visit_too", [False, True], ids=["reads", "reads and allocates"])
def test_a_track_that_is_read_while_it_is_read(pool: Pool, visit_too: bool, reliability: Callable[[str, int], None]) -> None:
    with memory.track("cpu") as track:
        run()
        wanted = track.peak, len(track.timeline())
    answers: list[int] = []

    def visit() -> None:
        if visit_too:
            tm.ones(10)
        answers.append(track.peak)

    track._timeline = None
    with visited(visit, attribution, log, every=7) as places:
        assert track.peak == wanted[0]
    assert len(places) > 30
    assert set(answers) == {wanted[0]}
    assert len(track.timeline()) == wanted[1]
    assert len(track.timeline().attribution.block) == sum(1 for _ in track.log)
    reliability("runs of other code between two bytecodes of a track that is read", len(places))


def test_a_log_that_is_packed_keeps_each_event_once(pool: Pool, reliability: Callable[[str, int], None]) -> None:
    with memory.track("cpu") as track:
        for _ in range(20):
            run()
        seen: list[int] = []
        with visited(lambda: seen.append(sum(len(chunk) for chunk in track.log.chunks())), log) as places:
            track.log.pack()
        assert len(places) > 10
        assert seen == sorted(seen)
        events = list(track.log)
    assert len({(event.time, event.kind, event.address) for event in events}) == len(events)
    reliability("runs of other code between two bytecodes of a track that is read", len(places))


def test_a_limit_inside_the_beginning_and_the_end_of_another(pool: Pool, reliability: Callable[[str, int], None]) -> None:
    total = 0

    def visit() -> None:
        with memory.limit("1 MiB", "cpu"):
            assert 0 < pool.get_limit() <= 1 << 20

    for own in (0, 3 << 20):
        pool.set_limit(own)
        with visited(visit, sys.modules[memory.limit.__module__]) as places:
            with memory.limit("2 MiB", "cpu"):
                assert pool.get_limit() == 2 << 20
            assert pool.get_limit() == own
        total += len(places)
        assert memory.limit._open == {}
    assert total > 100
    pool.set_limit(0)
    reliability("runs of other code between two bytecodes of a limit", total)
