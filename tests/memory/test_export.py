"""A track in a file: what is read back answers as the live one; what is damaged, foreign or hostile is refused in words."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.memory.test_exact import Program, programs
from tests.memory.test_log import row, write
from tests.networks import WORKLOADS
from tests.profiles import examples
from tinygrad_mem import interrupts, memory
from tinygrad_mem.devices import Pool, device
from tinygrad_mem.errors import FileFormatError
from tinygrad_mem.memory import Kind, Log, Track
from tinygrad_mem.memory import log as log_module
from tinygrad_mem.memory.attribution import CODE
from tinygrad_mem.memory.export import FORMATS, native
from tinygrad_mem.memory.log import RECORD

number = st.integers(0, 1 << 62)
text = st.sampled_from(["", "a", "b.c", 'say "x",\n', "ünï", "train.py:3 f", "\udcff"]) | st.text(max_size=4)
role = st.sampled_from(["", *CODE])
event = st.tuples(st.sampled_from([int(k) for k in Kind]), *[number] * 4, *[text] * 4, role, text, st.integers(0, 2))
events = st.lists(event, max_size=30)


def reread(track: Track, path: Path) -> Track:
    track.save(path)
    return memory.load(path)


def answers(track: Track) -> list[Any]:
    """Everything that a track can be asked, at its peak, its end, its marks and somewhere in between."""
    timeline = track.timeline()
    found: list[Any] = [track.device, track.marks, track.outside(), list(track.log), list(timeline), list(track.blocks())]
    moments = ["end", *track.marks, len(track.log) // 2]
    if len(timeline):
        found += [track.peak, track.at_peak(), track.compare(track), track.replay(2)]
        moments += ["peak"]
    for at in moments if len(track.log) else []:
        found += [by(at) for by in (track.by_category, track.by_module, track.by_op, track.by_line, track.live, track.pool)]
    return found


@pytest.mark.parametrize("where", ["cpu", "meta"])
@settings(max_examples=examples(25))
@given(programs, st.booleans(), st.sampled_from([".json", ".json.gz"]))
def test_what_is_read_back_answers_as_the_live_track(tmp_path_factory: Any, where: str, program: list, before: bool, end: str):
    with device(where):
        run = Program(where) if before else None
        with memory.track(where) as track:
            run = run or Program(where)
            for number, (what, a, b) in enumerate(program):
                run.run(what, a, b)
                memory.mark(f"after {number} {what}")
    loaded = reread(track, tmp_path_factory.mktemp("track") / f"run{end}")
    assert answers(loaded) == answers(track)
    assert not loaded.running


def test_two_steps_of_a_network_and_what_a_loaded_track_cannot_know(tmp_path: Path):
    with memory.track() as track:
        step = WORKLOADS[1].build(tm)
        step()
        memory.mark("between")
        step()
    loaded = reread(track, tmp_path / "lenet.json")
    assert answers(loaded) == answers(track)
    changed = loaded.compare(track)
    assert changed.peak.change == changed.saved.change == changed.temporary.change == 0
    assert not changed.appeared + changed.vanished + changed.moved
    with pytest.raises(ValueError, match="explain: "):
        loaded.explain(step.x)
    with pytest.raises(RuntimeError, match="not running"):
        loaded.mark("late")


@settings(max_examples=examples(15))
@given(events, st.integers(1, 9))
def test_any_log_survives_the_way_there_and_back(tmp_path_factory: Any, rows: list, length: int):
    log = write(rows)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(native, "_EVENTS", length)  # several lines
        loaded = reread(Track.of(log), tmp_path_factory.mktemp("log") / "run.json").log
    assert list(loaded) == list(log)
    assert loaded.texts[: len(log.texts)] == log.texts


def test_a_file_is_json_for_everybody_and_the_same_each_time(tmp_path: Path):
    log = write([row(Kind.MALLOC, 512 * i, 512, "TEMPORARY", op="Exp", time=i) for i in range(100)])
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        Track.of(log).save(tmp_path / name)
    whole = json.loads((tmp_path / "a.json").read_text())
    assert whole["format"] == "tinygrad_mem.track"
    assert (whole["events"], whole["device"]) == (100, "cpu")
    (chunk,) = whole["chunks"]
    assert chunk["texts"] == ["", "Exp", "TEMPORARY"]
    assert chunk["time"] == list(range(100))
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert packed == (tmp_path / "b.json.gz").read_bytes()
    assert packed[4:8] == bytes(4), "no time stamp"


def test_a_track_of_a_device_that_is_not_here_can_be_read(tmp_path: Path):
    log = Log("cuda:7")
    log.write(row(Kind.MALLOC, 512, 512, "INPUT"))
    loaded = reread(Track.of(log), tmp_path / "run.json")
    assert (loaded.device, loaded.peak) == ("cuda:7", 512)


def test_a_running_track_is_written_as_it_is_now(tmp_path: Path):
    with memory.track() as track:
        kept = [tm.ones(1000)]
        for format, each in FORMATS.items():
            track.save(tmp_path / f"now{each.ending}", format)
        count = len(track.log)
        kept.append(tm.ones(1000))
    assert len(memory.load(tmp_path / "now.json").log) == count < len(track.log)


# --- formats and files ----------------------------------------------------------------------------------------------------


def test_the_ending_or_the_argument_names_the_format(tmp_path: Path):
    track = Track.of(write([row(Kind.MALLOC, 512, 512, "TEMPORARY")]))
    begins = {"json": b'{"format"', "csv": b"event,", "trace": b'{"traceEvents"', "snapshot": b"\x80\x04"}
    assert begins.keys() == FORMATS.keys()
    for format, start in begins.items():
        ending = FORMATS[format].ending
        for name in (f"run{ending}", f"RUN{ending.upper()}", ending[1:]):
            track.save(tmp_path / name)
            assert (tmp_path / name).read_bytes().startswith(start), name
        track.save(str(tmp_path / "any.thing"), format=format)
        assert (tmp_path / "any.thing").read_bytes().startswith(start)
        if FORMATS[format].packs:
            track.save(tmp_path / f"run{ending}.gz")
            assert gzip.decompress((tmp_path / f"run{ending}.gz").read_bytes()) == (tmp_path / f"run{ending}").read_bytes()
    with pytest.raises(ValueError, match=r"ending of 'run.parquet' names no format. The endings are .trace.json \(Perf"):
        track.save(tmp_path / "run.parquet")
    with pytest.raises(ValueError, match="no format 'pickle'; the formats are trace, json, csv, snapshot"):
        track.save(tmp_path / "run", format="pickle")
    with pytest.raises(ValueError, match=r"memory_viz cannot read a gzip file; remove .gz from"):
        track.save(tmp_path / "run.pickle.gz")


@pytest.mark.parametrize("format", FORMATS)
def test_a_failed_export_leaves_what_stood_there(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch):
    path, log = tmp_path / "run", write([row(Kind.MALLOC, 512, 512, "TEMPORARY")])
    path.write_text("what stood there")
    chunks = list(log.chunks())

    def fail(self: Log) -> Any:
        yield from chunks
        raise OSError("the disk is full")

    monkeypatch.setattr(Log, "chunks", fail)
    with pytest.raises(OSError, match="the disk is full"):
        Track.of(log).save(path, format)
    assert path.read_text() == "what stood there"
    assert os.listdir(tmp_path) == ["run"]
    monkeypatch.undo()
    Track.of(log).save(path, format)
    assert path.read_bytes() != b"what stood there"


def most(use: Callable[[], Any]) -> int:
    """Most bytes that Python and NumPy had at once for it."""
    tracemalloc.start()
    try:
        use()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@functools.cache
def long(events: int) -> Log:
    """A log in chunks of 1,024 events; it is read and not changed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_module, "_CHUNK", 1 << 10)
        log = Log("cpu")
        for i in range(events // 2):
            where = ("forward", f"m{i % 7}", "Conv", "a.py:1 f")
            log.write((int(Kind.MALLOC), i, 512 * (i % 9 + 1), 500, 512, *where, "TEMPORARY", "", 1))
            log.write((int(Kind.FREE), i, 512 * (i % 9 + 1), 0, 512, *where, "", "", 1))
        assert len(log) == events
    return log


@pytest.mark.parametrize("format", FORMATS)
def test_a_long_log_is_streamed(tmp_path: Path, format: str):
    """An event more needs at most 64 bytes more, the snapshot's table of blocks; as Python's objects it would be 2,000."""
    sizes = 1 << 11, 1 << 12
    few, many = (most(functools.partial(Track.of(long(size)).save, tmp_path / "run", format)) for size in sizes)
    assert few < 20 << 20
    assert many - few < 64 * (sizes[1] - sizes[0])


def test_loading_is_streamed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Beyond the log itself there is no more than one line as Python's objects."""
    monkeypatch.setattr(native, "_EVENTS", 1 << 12)
    Track.of(long(1 << 15)).save(tmp_path / "run.json.gz")
    assert most(lambda: memory.load(tmp_path / "run.json.gz")) < RECORD.itemsize * (1 << 15) + (4 << 20)


# --- what is not a track --------------------------------------------------------------------------------------------------


def refused(path: Path, content: bytes, match: str) -> None:
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=match):
        memory.load(path)


class Attack:
    """What a hostile pickle does when somebody loads it."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("it-ran",))


def test_foreign_files_are_named_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    track = Track.of(write([row(Kind.MALLOC, 512, 512, "TEMPORARY")]))
    path = tmp_path / "run.json"
    refused(path, pickle.dumps(Attack()), "looks like a pickle.*never reads.*memory.load reads what Track.save wrote as .json")
    refused(path, gzip.compress(pickle.dumps(Attack())), "looks like a pickle")
    assert not (tmp_path / "it-ran").exists()
    for format, match in (("snapshot", "looks like a pickle"), ("trace", "it is a trace for Perfetto"), ("csv", "is a table")):
        track.save(path, format)
        refused(path, path.read_bytes(), match)
    refused(path, b"", "it is empty")
    refused(path, b"[1, 2]\n", r"it begins with b'\[1, 2\]")
    refused(path, np.random.default_rng(0).bytes(1000), "it begins with")
    with pytest.raises(FileNotFoundError):
        memory.load(tmp_path / "nothing.json")


def small(tmp_path: Path) -> bytes:
    rows = [row(Kind.MALLOC, 512, 1024, "INPUT", op="Exp"), row(Kind.ENTER, 512, role="GRADIENT"), row(Kind.FREE, 512, 1024)]
    Track.of(write(rows)).save(tmp_path / "small.json")
    return (tmp_path / "small.json").read_bytes()


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path):
    whole = small(tmp_path)
    for length in range(len(whole)):
        refused(tmp_path / "cut.json", whole[:length], "is not|damaged|is incomplete")
        packed = gzip.compress(whole)
        if length < len(packed):
            refused(tmp_path / "cut.json.gz", packed[:length], "is not|damaged|is incomplete")
    refused(tmp_path / "cut.json", whole[: whole.rindex(b"]}")], "is incomplete: it ends after 3 of 3 events")


@settings(max_examples=examples(300))
@given(st.data())
def test_a_damaged_file_is_refused_or_is_a_track_of_other_numbers(tmp_path_factory: Any, data: Any):
    folder = tmp_path_factory.mktemp("damaged")
    whole = bytearray(small(folder))
    if data.draw(st.booleans()):
        whole = bytearray(gzip.compress(bytes(whole), mtime=0))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.sampled_from(b'0189-,.[]{}"e\n\\n\xff\x00') | st.integers(0, 255))
    (folder / "run.json").write_bytes(whole)
    with contextlib.suppress(FileFormatError):
        assert len(answers(memory.load(folder / "run.json"))) > 6


DAMAGE = {
    "a version of tomorrow": ('"version":1', '"version":2', "has version 2, this program reads 1; use the newer"),
    "more events than there are": ('"events":3', '"events":4', "does not have the 4 events"),
    "fewer events than there are": ('"events":3', '"events":2', "does not have the 2 events"),
    "more events than can be": ('"events":3', '"events":99999999999', "first line is damaged: 99999999999 events"),
    "events as text": ('"events":3', '"events":"3"', "first line is damaged"),
    "a device that is none": ('"device":"cpu"', '"device":["cpu"]', "first line is damaged"),
    "a kind that is none": ('"kind":[1', '"kind":[10', "'kind' is not a column of 3 numbers below 10"),
    "a negative size": ('"rounded":[1024', '"rounded":[-1', "'rounded' is not a column"),
    "a size beyond all memory": ('"rounded":[1024', '"rounded":[9223372036854775807', "'rounded' is not a column"),
    "a fraction": ('"time":[0', '"time":[0.5', "'time' is not a column"),
    "a number of many digits": ('"time":[0', '"time":[' + "1" * 5000, "from number 0 on are damaged"),
    "a missing value": ('"time":[0,', '"time":[', "'time' is not a column"),
    "a list in a list": ('"time":[0,0,0]', '"time":[[0],[0],[0]]', "expected one object of columns in a line"),
    "lists of different lengths": ('"time":[0,0,0]', '"time":[[0],[0,1],[0]]', "from number 0 on are damaged"),
    "nothing": ('"time":[0,0,0]', '"time":null', "'time' is not a column"),
    "a text that is not there": ('"op":[1', '"op":[9', "'op' is not a column of 3 numbers below 4"),
    "texts that are none": ('"texts":[""', '"texts":[0', "expected a list of texts"),
    "a role that is none": ("GRADIENT", "CONTRABAND", "unknown role 'CONTRABAND'"),
    "a column too few": ('"thread"', '"needle"', "damaged: 'thread'"),
    "something behind the end": ("\n]}\n", "\n]}\n[]", "does not have the 3 events that its first line says"),
    "depth": ('"chunks":[\n{', '"chunks":[\n' + "[" * 100_000, "from number 0 on are damaged"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_hostile_files_are_refused_in_words(tmp_path: Path, name: str):
    before, after, match = DAMAGE[name]
    whole = small(tmp_path).decode()
    assert before in whole
    refused(tmp_path / "hostile.json", whole.replace(before, after, 1).encode(), match)


def test_a_line_without_events_is_refused(tmp_path: Path):
    head, chunk, *end = small(tmp_path).split(b"\n")
    empty = json.dumps({"texts": [], **{name: [] for name in json.loads(chunk) if name != "texts"}}).encode()
    refused(tmp_path / "hostile.json", b"\n".join([head, empty + b",", chunk, *end]), "'kind' is not a column of 0 numbers")


def test_a_line_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A small packed file can hold one line of many gigabytes."""
    monkeypatch.setattr(native, "_LINE", 4096)
    head = small(tmp_path).split(b"\n")[0] + b"\n"
    refused(tmp_path / "bomb.json.gz", gzip.compress(head + b"[" * 10_000_000), "is incomplete: it ends after 0 of 3 events")
    refused(tmp_path / "bomb.json.gz", gzip.compress(head[:-1] + b" " * 10_000_000), "is incomplete: it ends after 0")


def test_a_block_that_was_taken_aside_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A finalizer that asks for memory inside a request gets a segment of its own, whose address is far from all others."""
    pool = Pool("cpu")
    monkeypatch.setattr(device("cpu"), "pool", pool)
    with memory.track() as track:
        first = pool.malloc(1000)
        with interrupts.lock:
            pool._latest = None
            aside = [pool.malloc(1000), pool.malloc(1000)]
    assert min(block.chunk.address for block in aside) - first.chunk.address > 1 << 60
    track.save(tmp_path / "run.json")
    assert memory.load(tmp_path / "run.json").peak == track.peak == 3072
