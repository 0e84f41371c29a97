"""The log: compact, in order, written from anywhere, read back as it was written."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.interrupt import interrupted
from tinygrad_mem import memory
from tinygrad_mem.memory import Category, Kind, Log
from tinygrad_mem.memory import log as log_module
from tinygrad_mem.memory.log import RECORD

text = st.text(max_size=5)
number = st.integers(0, 2**62)
events = st.lists(
    st.tuples(st.sampled_from([int(k) for k in Kind]), number, number, number, number, *[text] * 6, st.integers(0, 3)),
    max_size=40,
)


def write(rows: list) -> Log:
    log = Log("cpu")
    for row in rows:
        log.write(row)
    return log


@given(events)
def test_what_is_read_is_what_was_written(rows: list):
    log = write(rows)
    threads = list(dict.fromkeys(row[-1] for row in rows))
    assert len(log) == len(rows)
    assert [tuple(event)[:-1] for event in log] == [row[:-1] for row in rows]
    assert [event.thread for event in log] == [threads.index(row[-1]) for row in rows]
    assert log.column("time").tolist() == [row[1] for row in rows]
    some = np.arange(0, len(rows), 3)
    assert [tuple(e) for e in log.select(some)] == [tuple(log[i]) for i in some.tolist()]
    with pytest.raises(IndexError, match=f"expected an event below {len(rows)}, found {len(rows)}"):
        log[len(rows)]


@given(events, events)
def test_packed_events_are_read_back_with_their_own_codes(first: list, second: list):
    one, two = write(first), write(second)
    together = Log("cpu")
    for log in (one, two):
        for chunk in log.chunks():
            together.extend(chunk, np.array(together.codes(log.texts)))
    together.write((int(Kind.MARK), 1, 0, 0, 0, "user", "", "", "", "", "end", 0))
    assert [tuple(e)[:-1] for e in together][:-1] == [tuple(e)[:-1] for e in [*one, *two]]
    assert together[len(together) - 1].note == "end"


def test_many_events_are_compact_and_keep_their_order():
    log, count = Log("cpu"), 200_000
    for i in range(count):
        log.write((1, i, 512 * i, 700, 1024, "forward", f"m{i % 7}", "Conv", "a.py:1 f", "TEMPORARY", "", 1))
        if not i & 255:
            log.settle()
    assert sum(chunk.nbytes for chunk in log.chunks()) == count * RECORD.itemsize
    assert RECORD.itemsize * 10_000_000 < 1 << 30
    assert (log.column("time") == np.arange(count)).all()
    assert len(log.texts) < 20
    assert all(len(chunk) <= 1 << 16 for chunk in log.chunks())


def test_any_column_may_say_something_new_after_very_many_texts():
    count = 1 << 16
    rows = [(int(Kind.MARK), i, 0, 0, 0, "user", "", "", "", "", f"step {i}", 0) for i in range(count)]
    log = write([*rows, (int(Kind.MARK), count, 0, 0, 0, "backward", "m", "Op", "a.py:1 f", "INPUT", "end", 0)])
    assert log[count][5:11] == ("backward", "m", "Op", "a.py:1 f", "INPUT", "end")


def test_threads_lose_nothing_while_somebody_reads():
    log, each = Log("cpu"), 20_000

    def work(name: int) -> None:
        for i in range(each):
            log.write((1, i, 0, 0, 0, "user", str(name), "", "", "", "", name))
            if not i & 63:
                log.settle()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(log) <= 4 * each
    assert len(log) == 4 * each
    module = log.column("module")
    for name in range(4):
        mine = log.column("time")[module == log.texts.index(str(name))]
        assert (mine == np.arange(each)).all(), "each thread's events keep their order"


def row(kind: Kind, address: int = 0, rounded: int = 0, role: str = "", **more: Any) -> tuple:
    texts = [more.get(name, "") for name in ("phase", "module", "op", "line")]
    return int(kind), more.get("time", 0), address, rounded, rounded, *texts, role, more.get("note", ""), 0


def test_attribution_is_a_pure_function_of_the_log():
    """Events that nobody ever ran: what each does to the bytes, step by step."""
    log = write(
        [
            row(Kind.OLDER, 0, 5120),  # ten blocks are there; one of them is known by its address
            row(Kind.OLDER, 512, 1024),
            row(Kind.ENTER, 512, role="PARAMETER"),
            row(Kind.MALLOC, 4096, 2048, "TEMPORARY", op="Exp"),
            row(Kind.ENTER, 4096, role="ACTIVATION", op="Exp", note="y"),
            row(Kind.ENTER, 4096, role="ACTIVATION", op="Mul", note="x"),
            row(Kind.LEAVE, 4096, role="ACTIVATION", op="Exp", note="y"),
            row(Kind.ENTER, 512, role="ACTIVATION", op="Mul", note="y"),
            row(Kind.LEAVE, 512, role="PARAMETER"),
            row(Kind.LEAVE, 512, role="ACTIVATION", op="Mul", note="y"),
            row(Kind.LEAVE, 4096, role="ACTIVATION", op="Mul", note="x"),
            row(Kind.NAME, 4096, note="net.y"),
            row(Kind.FREE, 9999 * 512, 512),  # one of the ten
            row(Kind.MARK, note="here"),
            row(Kind.FREE, 4096, 2048),
            row(Kind.LEAVE, 4096, role="GRADIENT"),  # it is gone
            row(Kind.OUTSIDE, rounded=1 << 30),
            row(Kind.OUTSIDE, rounded=1 << 20),
        ]
    )
    track = memory.Track.of(log)
    old, new = Category.UNTRACKED, Category.TEMPORARY
    found = [(m.index, m.by_category) for m in track.timeline()]
    assert found == [
        (0, {old: 5120}),
        (2, {old: 4096, Category.PARAMETER: 1024}),
        (3, {old: 4096, Category.PARAMETER: 1024, new: 2048}),
        (4, {old: 4096, Category.PARAMETER: 1024, Category.ACTIVATION: 2048}),
        (8, {old: 4096, Category.ACTIVATION: 3072}),
        (9, {old: 5120, Category.ACTIVATION: 2048}),
        (10, {old: 5120, new: 2048}),
        (12, {old: 4608, new: 2048}),
        (14, {old: 4608}),
    ]
    assert track.peak == 7168
    assert not track.running
    (known, made) = sorted(track.blocks(), key=lambda b: b.address)
    assert (made.name, made.died, made.holders) == ("net.y", 14, [])
    assert [h.note for b in track.live(6) for h in b.holders if b.address == 4096] == ["x"]
    assert known.died is None
    assert track.marks[0].index == 13
    assert track.outside() == 1 << 30


def test_an_empty_log():
    track = memory.Track.of(Log("cpu"))
    assert len(track.timeline()) == 0
    assert list(track.blocks()) == []
    assert track.marks == []
    assert (track.peak, track.by_category(), track.by_op(at="end"), track.live(), track.pool().used) == (0, {}, {}, [], 0)
    with pytest.raises(ValueError, match="nothing was allocated"):
        track.at_peak()


def test_an_interrupt_at_any_point_loses_no_event(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while events are packed: each of them is there afterwards, once, and in order."""
    monkeypatch.setattr(log_module, "_BATCH", 4)
    monkeypatch.setattr(log_module, "_CHUNK", 6)
    point, reached = 0, ["begin"]
    while reached:
        point += 1
        log = Log("cpu")
        rows = [(1, i, 0, 0, 0, "user", f"m{i % 3}", "", f"{i}", "", "", 7) for i in range(15)]
        with interrupted(point, log_module) as reached:
            for row in rows:
                try:
                    log.write(row)
                    log.settle()
                except KeyboardInterrupt:
                    assert reached
            with contextlib.suppress(KeyboardInterrupt):
                assert len(log) == 15
        assert [tuple(event)[:-1] for event in log] == [row[:-1] for row in rows], f"interrupted at {reached}"
    assert point > 100
