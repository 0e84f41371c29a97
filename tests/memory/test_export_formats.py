"""What other programs read of a track: each file says what the track says, checked by the programs' own code or rules."""

from __future__ import annotations

import csv
import io
import json
import pickle
import pickletools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.cuda import _memory_viz as viz

import tinygrad_mem as tm
from tests.memory.test_exact import Program, programs
from tests.memory.test_export import events
from tests.memory.test_log import row, write
from tests.networks import WORKLOADS
from tests.profiles import examples
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device
from tinygrad_mem.memory import Category, Kind, Log, Track
from tinygrad_mem.memory import log as log_module
from tinygrad_mem.memory.export import FORMATS

CHANGES = (Kind.OLDER, Kind.MALLOC, Kind.FREE)


@pytest.fixture(scope="module", autouse=True)
def short_chunks() -> Iterator[None]:
    """Logs of several chunks: what stands at the end of one must stand at the beginning of the next."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_module, "_CHUNK", 16)
        yield


def written(track: Track, format: str) -> bytes:
    file = io.BytesIO()
    FORMATS[format].write(track.log, file)
    return file.getvalue()


@pytest.fixture(scope="module")
def lenet(short_chunks: None) -> Track:
    """Two training steps of LeNet, and all that is made for them."""
    with memory.track() as track:
        step = WORKLOADS[1].build(tm)
        step()
        memory.mark('a mark, "quoted"\nand in two lines, ' + "long " * 100)
        step()
    return track


def random_track(where: str, program: list, before: bool) -> Track:
    with device(where):
        run = Program(where) if before else None
        with memory.track(where) as track:
            run = run or Program(where)
            for what, a, b in program:
                run.run(what, a, b)
    return track


# --- CSV ------------------------------------------------------------------------------------------------------------------


def table(track: Track) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(written(track, "csv").decode(), newline="")))


def check_table(track: Track) -> None:
    rows, timeline = table(track), track.timeline()
    assert len(rows) == len(track.log)
    for position, number in enumerate(timeline.event.tolist()):
        found = {c: int(rows[number][c]) for c in Category}
        assert {c: size for c, size in found.items() if size} == timeline[position].by_category
        assert int(rows[number]["used"]) == timeline[position].used
    assert max((int(r["used"]) for r in rows), default=0) == (track.peak if len(timeline) else 0)


@settings(max_examples=examples(15))
@given(programs, st.booleans())
def test_the_tables_sums_are_the_tracks(program: list, before: bool):
    check_table(random_track("cpu", program, before))


def test_the_table_says_what_each_event_says_and_whose_blocks_there_are(lenet: Track):
    rows = table(lenet)
    for number, (found, event) in enumerate(zip(rows, lenet.log, strict=True)):
        said = {name: str(getattr(event, name)) for name in event._fields if name not in ("kind", "time")}
        said |= {"event": str(number), "kind": event.kind.name.lower(), "time_ns": str(event.time)}
        assert {name: found[name] for name in said} == said
    last = {r["block"]: r for r in rows[: lenet.at_peak().index + 1] if r["block"]}
    sizes = {r["block"]: int(r["rounded"]) for r in rows if r["kind"] in ("malloc", "older")}  # what other tests left as well
    found = defaultdict(int)
    for block, r in last.items():
        if r["category"]:
            found[Category(r["category"])] += sizes[block]
    assert found == lenet.at_peak().by_category


@given(events)
def test_any_text_stands_in_one_cell(rows: list):
    log = write(rows)
    found = table(Track.of(log))
    texts = [(r["phase"], r["module"], r["op"], r["line"], r["note"]) for r in found]
    escaped = [tuple(t.encode("utf-8", "backslashreplace").decode() for t in (*row[5:9], row[10])) for row in rows]
    assert texts == escaped


# --- Perfetto -------------------------------------------------------------------------------------------------------------


def trace_events(track: Track) -> list[dict[str, Any]]:
    whole = json.loads(written(track, "trace"))
    assert whole["displayTimeUnit"] == "ns"
    return whole["traceEvents"]


def slices(found: list[dict]) -> Iterator[tuple[int, float, tuple[str, ...]]]:
    """What is open in a thread after each event that begins or ends a slice; each end names what it ends."""
    stands: dict[int, list[str]] = defaultdict(list)
    last: dict[int, float] = {}
    for event in found:
        if event["ph"] in "BE":
            thread, time = event["tid"], event["ts"]
            assert time >= last.get(thread, 0.0), "a thread's slices are in order"
            last[thread] = time
            if event["ph"] == "B":
                stands[thread].append(event["name"])
            else:
                assert stands[thread].pop() == event["name"]
            yield thread, time, tuple(stands[thread])
    assert not any(stands.values()), "what began has ended"


def check_trace(track: Track) -> None:
    found, timeline = trace_events(track), track.timeline()
    counters: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for event in found:
        assert event["ph"] in {"M", "C", "B", "E", "i"}
        assert event["pid"] == 1
        assert event["name"]
        if event["ph"] == "C":
            counters[event["name"]].append((event["ts"], event["args"]["bytes"]))
    time = timeline.time / 1000
    for category in timeline.categories:
        size = timeline.bytes(category)
        changed = np.flatnonzero(np.diff(size, prepend=0))
        expected = list(zip(np.round(time[changed], 3).tolist(), size[changed].tolist(), strict=True))
        assert counters.pop(category.value, []) == expected
    changed = np.flatnonzero(np.diff(timeline.used, prepend=0))
    assert [size for _, size in counters.pop("in use", [])] == timeline.used[changed].tolist()
    reserved = counters.pop("reserved", [(0.0, 0)])
    assert reserved[-1][1] == track.pool("end").reserved
    assert not counters
    list(slices(found))


@settings(max_examples=examples(15))
@given(programs, st.booleans())
def test_the_traces_counters_are_the_timeline(program: list, before: bool):
    check_trace(random_track("cpu", program, before))


def test_the_reserved_counter_goes_on_from_chunk_to_chunk():
    kinds = [Kind.RESERVE, Kind.MARK, Kind.RESERVE, Kind.RELEASE] * 10
    rows = [row(kind, 512, 512 * (i + 1), time=i, note="m") for i, kind in enumerate(kinds)]
    found = [e["args"]["bytes"] for e in trace_events(Track.of(write(rows))) if e["name"] == "reserved"]
    signs = {Kind.RESERVE: 1, Kind.RELEASE: -1}
    assert found == np.cumsum([signs[k] * 512 * (i + 1) for i, k in enumerate(kinds) if k in signs]).tolist()


def test_phases_modules_and_ops_are_slices_in_each_other(lenet: Track):
    found = trace_events(lenet)
    stands = {inside for _, _, inside in slices(found)}
    for phase in ("forward", "backward"):
        assert (phase, "LeNet", "LeNet.conv1", "Conv") in stands
    assert any(inside[0] == "optimizer" for inside in stands if inside)
    (mark,) = [event for event in found if event["ph"] == "i"]
    assert (mark["name"], mark["s"]) == (lenet.marks[0].text, "g")
    assert mark["ts"] == round(lenet.marks[0].time / 1000, 3)
    names = {e["name"]: e["args"]["name"] for e in found if e["ph"] == "M"}
    assert names == {"process_name": "memory of cpu", "thread_name": "thread 0"}


def test_a_slice_lasts_from_its_first_event_to_the_next_one_elsewhere():
    def at(time: int, phase: str, module: str, op: str, thread: int = 7) -> tuple:
        return (int(Kind.MALLOC), time, 512 * (time + 1), 512, 512, phase, module, op, "", "TEMPORARY", "", thread)

    rows = [
        at(1000, "forward", "a.b", "Exp"),
        at(2000, "forward", "a.b", "Exp"),
        at(2500, "user", "", "", thread=8),  # another thread's events are in its own slices
        at(3000, "forward", "a.c", "Exp"),
        at(4000, "forward", "", "Sum"),
        at(5000, "user", "", ""),
        at(6000, "user", "", "Sum"),
    ]
    track = Track.of(write(rows))
    assert list(slices(trace_events(track))) == [
        (1, 1.0, ("forward",)),
        (1, 1.0, ("forward", "a")),
        (1, 1.0, ("forward", "a", "a.b")),
        (1, 1.0, ("forward", "a", "a.b", "Exp")),
        (1, 3.0, ("forward", "a", "a.b")),
        (1, 3.0, ("forward", "a")),
        (1, 3.0, ("forward", "a", "a.c")),
        (1, 3.0, ("forward", "a", "a.c", "Exp")),
        (1, 4.0, ("forward", "a", "a.c")),
        (1, 4.0, ("forward", "a")),
        (1, 4.0, ("forward",)),
        (1, 4.0, ("forward", "Sum")),
        (1, 5.0, ("forward",)),
        (1, 5.0, ()),
        (1, 6.0, ("Sum",)),
        (1, 6.0, ()),
    ]


# --- PyTorch's snapshot ---------------------------------------------------------------------------------------------------

KNOWN = "PROTO MARK STOP NONE LONG1 SHORT_BINUNICODE BINUNICODE EMPTY_LIST APPEND EMPTY_DICT SETITEMS TUPLE2 MEMOIZE BINGET"
KNOWN = {*KNOWN.split(), "LONG_BINGET"}  # of the page's own unpickler; it knows some more


def snapshot(track: Track) -> dict[str, Any]:
    content = written(track, "snapshot")
    assert {opcode.name for opcode, _, _ in pickletools.genops(content)} <= KNOWN
    return pickle.loads(content)


def page_curve(found: dict) -> list[int]:
    """Bytes that the page's timeline shows after each alloc and free: what is freed or there without an alloc was there."""
    (trace,) = found["device_traces"]
    live, changes, initial = {}, [], 0
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
            changes.append(event["size"])
        elif event["action"] == "free_completed":
            if live.pop(event["addr"], None) is None:
                initial += event["size"]
            changes.append(-event["size"])
    for block in blocks(found):
        if block["state"] == "active_allocated" and block["address"] not in live:
            initial += block["requested_size"]
    return (initial + np.cumsum(changes)).tolist()


def blocks(found: dict) -> list[dict]:
    return [block for segment in found["segments"] for block in segment["blocks"]]


def page_history(found: dict) -> None:
    """The page goes back from the end to the beginning: at every step each block lies in a segment."""
    (trace,) = found["device_traces"]
    segments = {s["address"]: s["total_size"] for s in found["segments"]}
    live = {b["address"]: b["size"] for b in blocks(found) if b["state"] == "active_allocated"}
    for event in reversed(trace):
        assert all(any(s <= a and a + size <= s + segments[s] for s in segments) for a, size in live.items())
        address, size = event["addr"], event["size"]
        match event["action"]:
            case "alloc":
                assert live.pop(address) == size
            case "free_completed":
                assert address not in live
                live[address] = size
            case "free_requested":
                assert live[address] == size
            case "segment_alloc":
                assert segments.pop(address) == size
            case "segment_free":
                assert address not in segments
                segments[address] = size


def check_snapshot(track: Track) -> dict:
    found = snapshot(track)
    page_history(found)
    viz.segsum(found)  # asserts that the blocks fill their segments
    (trace,) = found["device_traces"]
    assert any(event["category"] == "unknown" for event in trace), "else the page fails"
    assert not any(event["user_metadata"].get("tensor", "a").endswith("of ") for event in trace), "nobody's gradient"
    if len(track.log):
        assert sum(s["total_size"] for s in found["segments"]) == track.pool("end").reserved
        used = sum(b["size"] for b in blocks(found) if b["state"] == "active_allocated")
        assert used == sum(track.by_category("end").values())
    kinds, timeline = track.log.column("kind"), track.timeline()
    changed = np.isin(kinds[timeline.event], (Kind.MALLOC, Kind.FREE))
    curve, expected = page_curve(found), timeline.used[changed].tolist()
    assert curve[len(curve) - len(expected) :] == expected, "the page's curve is the track's"
    return found


@pytest.mark.parametrize("where", ["cpu", "meta"])
@settings(max_examples=examples(15))
@given(programs, st.booleans())
def test_the_page_shows_the_tracks_curve_and_every_block_in_its_segment(where: str, program: list, before: bool):
    check_snapshot(random_track(where, program, before))


def test_pytorchs_own_viewer_reads_categories_frames_and_names(lenet: Track, tmp_path: Path):
    found = check_snapshot(lenet)
    (trace,) = found["device_traces"]
    allocs = [event for event in trace if event["action"] == "alloc"]
    assert {a["category"] for a in allocs} >= {"parameter", "optimizer_state", "gradient", "activation", "input", "temporary"}
    parameters = [a for a in allocs if a["category"] == "parameter"]
    assert sum(a["size"] for a in parameters) == lenet.at_peak().by_category[Category.PARAMETER]
    names = {a["user_metadata"]["tensor"] for a in allocs if "tensor" in a["user_metadata"]}
    assert {f"{of}LeNet.conv1.weight" for of in ("", "gradient of ", "state of ")} <= names
    conv = [a for a in allocs if a["frames"] and a["frames"][0]["name"] == "Conv" and a["category"] == "workspace"]
    assert {a["frames"][0]["filename"] for a in conv} == {"LeNet.conv1", "LeNet.conv2"}
    assert {a["frames"][1]["name"] for a in conv} == {"forward"}
    assert all(a["frames"][1]["filename"].endswith(".py") and a["frames"][1]["line"] > 0 for a in conv)
    marks = [(e["user_metadata"]["mark"], e["time_us"]) for e in trace if "mark" in e["user_metadata"]]
    assert marks == [(lenet.marks[0].text, lenet.marks[0].time // 1000)]
    html = viz.trace_plot(found)
    assert "MemoryViz.js" in html
    assert "Allocator State History" in viz.segment_plot(found)
    assert f"{len(trace)} entries" in viz.trace(found)
    flames = viz.memory(found, format_flamegraph=lambda lines: lines)
    assert any("active_allocated" in line and "lenet.py" in line for line in flames.splitlines())
    assert "seg_" in viz.segments(found, format_flamegraph=lambda lines: lines)
    sums = viz.segsum(found)
    assert f"segments: {len(found['segments'])}" in sums


def test_every_category_has_one_of_the_pages_ten_colours():
    shared = {Category.WEIGHT_CAST: "activation", Category.COMMUNICATION: "temporary", Category.UNKNOWN: "unknown"}
    shown = [c for c in Category if c not in shared]
    rows = [row(Kind.MALLOC, 512 * (i + 1), 512, c.name) for i, c in enumerate(shown)]
    (trace,) = snapshot(Track.of(write(rows)))["device_traces"]
    assert len({event["category"] for event in trace}) == len(shown) == 10
    for category, colour in shared.items():
        (trace,) = snapshot(Track.of(write([row(Kind.MALLOC, 512, 512, category.name)])))["device_traces"]
        assert trace[0]["category"] == colour


def test_a_log_that_does_not_know_its_segments():
    """As on a GPU: older bytes that nobody can tell apart, and a cache given back in silence."""
    rows = [
        row(Kind.RESERVE, 0, 8192),  # the pool had that when the track began
        row(Kind.OLDER, 0, 4096),
        row(Kind.OLDER, 1024, 512),  # of these, met later
        row(Kind.ENTER, 1024, role="PARAMETER"),
        row(Kind.FREE, 8192, 1024),  # of these too, and never met
        row(Kind.RESERVE, 1 << 20, 2048),
        row(Kind.MALLOC, 1 << 20, 1024, "TEMPORARY"),
        row(Kind.RESERVE, 1 << 21, 4096),
        row(Kind.MALLOC, 1 << 21, 4096, "TEMPORARY"),
        row(Kind.FREE, 1 << 21, 4096),
        row(Kind.RELEASE, 0, 4096),
    ]
    track = Track.of(write(rows))
    found = check_snapshot(track)
    assert {s["address"] for s in found["segments"]} >= {1024, 1 << 20}
    assert 1 << 21 not in {s["address"] for s in found["segments"]}, "nothing lives in it, so it is what went"
    assert track.pool("end").reserved == 8192 + 2048
    (loose,) = [b for b in blocks(found) if b["requested_size"] == 4096 - 512 - 1024]
    assert loose["state"] == "active_allocated"
    rows += [row(Kind.RESERVE, 1 << 22, 4096), row(Kind.MALLOC, 1 << 22, 512, "INPUT"), row(Kind.FREE, 1 << 22, 512)]
    found = check_snapshot(Track.of(write(rows)))
    assert 1 << 22 in {s["address"] for s in found["segments"]}, "as many bytes went as were said to go, not more"


def test_an_older_segment_that_is_given_back_is_known_from_then_on():
    rows = [
        row(Kind.RESERVE, 0, 2048),
        row(Kind.OLDER, 0, 1024),
        row(Kind.OLDER, 4096, 1024),
        row(Kind.FREE, 4096, 1024),
        row(Kind.RELEASE, 4096, 2048),
    ]
    found = check_snapshot(Track.of(write(rows)))
    assert found["segments"] == []


def test_a_missed_free_does_not_put_two_blocks_in_one_place():
    rows = [row(Kind.RESERVE, 512, 1024), row(Kind.MALLOC, 512, 1024, "INPUT"), row(Kind.MALLOC, 1024, 512, "INPUT")]
    found = snapshot(Track.of(write(rows)))
    assert [(b["address"], b["size"]) for b in blocks(found)] == [(512, 1024)]
    viz.segsum(found)


@given(events)
def test_any_log_becomes_a_snapshot_a_trace_and_a_table(rows: list):
    track = Track.of(write([(r[0], r[1], r[2], r[3] >> 20, r[4] >> 20, *r[5:]) for r in rows]))
    assert len(snapshot(track)["device_traces"]) == 1
    kinds = Counter((event["ph"], event["tid"]) for event in trace_events(track) if event["ph"] in "BE")
    assert all(kinds["B", thread] == kinds["E", thread] for _, thread in kinds)
    assert len(table(track)) == len(rows)


def test_nothing_happened():
    track = Track.of(Log("cpu"))
    assert snapshot(track)["segments"] == []
    assert len(table(track)) == 0
    assert [event["ph"] for event in trace_events(track)] == ["M"]


def test_what_a_frame_says():
    with memory.track() as track:
        kept = nn.Linear(4, 4)(tm.ones(2, 4))
        bare = tm.ones(3)
    (trace,) = snapshot(track)["device_traces"]
    last = [event for event in trace if event["action"] == "alloc"][-2:]
    assert last[0]["frames"][0]["name"] == "Linear"
    assert last[1]["frames"][-1]["name"] == "test_what_a_frame_says"
    assert last[1]["frames"][-1]["filename"].endswith("test_export_formats.py")
    del kept, bare
