"""A track of a PyTorch snapshot answers as one of ours."""

from __future__ import annotations

import gzip
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tinygrad_mem import memory, pytorch
from tinygrad_mem.errors import FileFormatError, OutOfMemoryError
from tinygrad_mem.memory import Category, Track
from tinygrad_mem.memory.sizes import bytes_text
from tinygrad_mem.pytorch.facts import log_of
from tinygrad_mem.pytorch.recording import Action
from tinygrad_mem.pytorch.stacks import Origins
from tinygrad_mem.pytorch.unpickle import Stacks

from .built import MIB, Program, Training
from .recorded import NAMES, recording

BASE = 1 << 45


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_of_a_real_run_is_what_pytorch_counted(name):
    """The allocator's model, which places each block where the GPU's run had it, counts as ``torch.cuda.memory_allocated``."""
    found = recording(name)
    track, replayed = Track.of(log_of(found, Origins(Stacks()))), pytorch.replay(found)
    assert replayed.as_recorded == replayed.allocations > 1000
    assert track.peak == replayed.peak_allocated
    used = {number: bytes for number, bytes, _ in replayed.timeline.tolist()}
    assert track.timeline().used[-1] == used[max(used)]
    assert sum(segment.size for segment in found.segments) == track.pool("end").reserved


def test_a_training_run(tmp_path):
    """Four layers of 4 MiB, a head with 6 MiB of logits, Adam: what each block is is told from its stack and its life."""
    run = Training().run(3)
    track = pytorch.load(run.write(tmp_path / "snapshot.pickle"))
    assert track.peak == pytorch.replay(tmp_path / "snapshot.pickle").peak_allocated
    assert track.device == "cuda:0"
    assert track.by_category("end") == {Category.PARAMETER: 16 * MIB, Category.OPTIMIZER_STATE: 32 * MIB}
    assert track.by_category("peak") == {
        Category.PARAMETER: 16 * MIB,
        Category.OPTIMIZER_STATE: 32 * MIB,
        Category.GRADIENT: 17 * MIB,  # what is left of a free block of 5 MiB is too short to be one of its own
        Category.TEMPORARY: 16 * MIB,
        Category.INPUT: MIB // 2,
    }
    assert track.at_peak().phase == "optimizer"
    assert track.by_line("peak")["train.py:24 main"] == 48 * MIB
    assert track.by_op("peak") == {
        "zeros_like": 32 * MIB,
        "_to_copy": 16 * MIB + MIB // 2,
        "mm": 17 * MIB,
        "_foreach_sqrt": 16 * MIB,
    }


def test_a_track_of_ours_comes_back_whole(tmp_path):
    """PyTorch's format has no place for roles, names and marks: they stand beside it, and every answer is the track's."""
    with memory.track("meta") as ours:
        model = tm.nn.Sequential(tm.nn.Linear(300, 200, device="meta"), tm.nn.ReLU(), tm.nn.Linear(200, 10, device="meta"))
        optimizer = tm.optim.Adam(model.parameters())
        for number in range(3):
            ours.mark(f"step {number}")
            optimizer.zero_grad()
            model(tm.zeros(32, 300, device="meta")).square().mean().backward()
            optimizer.step()
    ours.save(tmp_path / "x.pickle")
    back = pytorch.load(tmp_path / "x.pickle")
    assert list(back.log) == list(ours.log)
    assert back.device == ours.device == "meta"
    for question in ("peak", "marks"):
        assert getattr(back, question) == getattr(ours, question)
    for at in ("peak", "end", "step 1"):
        for question in ("live", "pool", "by_category", "by_module", "by_op", "by_line"):
            assert getattr(back, question)(at) == getattr(ours, question)(at)
    assert str(back.compare(ours)) == str(ours.compare(back))


@pytest.mark.parametrize("texts", [[5], ["?"], ["AAAA"], ["H4sIAAAAAAAAAw=="], []])
def test_a_damaged_track_of_ours_is_refused(tmp_path, texts):
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [], "tinygrad_mem_track": texts}, 4))
    with pytest.raises(FileFormatError, match=r"damaged|not a track|not whole"):
        pytorch.load(path)


def test_owners_and_sentences(tmp_path):
    """A snapshot knows no modules: an owner is the op at its line, or the part of a step where no frame is the program's."""
    track = pytorch.load(Training().run(2).write(tmp_path / "x.pickle"))
    assert {block.owner for block in track.live("peak")} == {
        "zeros_like at train.py:24 main",
        "_foreach_sqrt at train.py:24 main",
        "_to_copy at train.py:10 main",
        "_to_copy at train.py:20 main",
        "mm",
    }
    track.plot(tmp_path / "x.svg")
    assert f"<!-- {bytes_text(track.by_line()['train.py:24 main'])}  train.py:24 main -->" in (tmp_path / "x.svg").read_text()
    by_category = {block.category: track.explain(block) for block in track.live("peak")}
    assert by_category[Category.PARAMETER] == (
        "It is 4,194,304 bytes of parameters, made by _to_copy at train.py:10 main (user); it is there at the end; "
        "its category is sure: Module.to moved it: a parameter or buffer."
    )
    assert "(backward); it was freed at train.py:25 main (user), " in by_category[Category.GRADIENT]
    python = pytorch.load(Training(native=False).run(2).write(tmp_path / "x.pickle"))
    assert {block.owner for block in python.live("peak") if not block.line} == {"asked for in backward"}
    nothing = pytorch.load(Training(stacks=False).run(2).write(tmp_path / "x.pickle"))
    assert {block.owner for block in nothing.live("peak")} == {"not known"}


def events(*rows: tuple[str, int, int]) -> list[dict]:
    """Events at addresses of a segment, in units of 512 bytes."""
    where = {"oom": "device_free"}
    return [
        {"action": action, where.get(action, "addr"): BASE + 512 * at, "size": 512 * size, "stream": 0, "frames": []}
        for action, at, size in rows
    ]


def load(tmp_path, *traces: list[dict], segments: tuple[dict, ...] = (), packed: bool = False) -> Track:
    path = tmp_path / "snapshot.pickle"
    data = pickle.dumps({"segments": list(segments), "device_traces": list(traces)}, 4)
    path.write_bytes(gzip.compress(data) if packed else data)
    return pytorch.load(path)


def test_an_out_of_memory_error_is_a_mark(tmp_path):
    program = Training(capacity=100 * MIB)
    program.run(1)
    with pytest.raises(OutOfMemoryError):
        program.alloc(60 * MIB)
    track = pytorch.load(program.write(tmp_path / "x.pickle"))
    (mark,) = track.marks
    assert mark.text == "out of memory: 60.00 MiB asked, the driver had 20.00 MiB left"
    assert track.by_category(mark) == {Category.PARAMETER: 16 * MIB, Category.OPTIMIZER_STATE: 32 * MIB}
    assert track.pool("end").reserved == 80 * MIB


def test_devices_packed_files_and_files_without_events(tmp_path):
    first, second = events(("alloc", 0, 2)), events(("alloc", 0, 3), ("alloc", 8, 4))
    with pytest.raises(ValueError, match="choose a device: of 2 devices 2 have events"):
        load(tmp_path, first, second)
    path = tmp_path / "snapshot.pickle"
    assert [pytorch.load(path, device).peak for device in (0, 1)] == [1024, 7 * 512]
    assert pytorch.load(path, 1).device == "cuda:1"
    assert load(tmp_path, first, packed=True).peak == 1024
    with pytest.raises(ValueError, match="of 0 devices none has events"):
        load(tmp_path)


def test_older_formats_name_neither_times_nor_requests(tmp_path):
    """PyTorch 2.0: blocks have a history, and no address; events have no time."""
    blocks = [
        {"size": 1024, "state": "active_allocated", "history": [{"addr": BASE, "real_size": 600, "frames": []}]},
        {"size": (2 << 20) - 1024, "state": "inactive"},
    ]
    segment = {"device": 0, "address": BASE, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": blocks}
    track = load(tmp_path, events(("alloc", 8, 1), ("free_requested", 8, 1), ("free_completed", 8, 1)), segments=(segment,))
    assert (track.peak, track.by_category("end")) == (1536, {Category.UNTRACKED: 1024})
    assert track.pool("end").reserved == 2 << 20
    assert [block.requested for block in track.live("end")] == [600]


def test_recordings_that_leave_out_kinds_of_events(tmp_path):
    """``skip_actions`` of PyTorch's recorder: without requests a block ends where it is free, without both where its address
    is asked for again."""
    rows = [("alloc", 0, 2), ("free_requested", 0, 2), ("free_completed", 0, 2), ("alloc", 0, 1), ("alloc", 4, 1)]
    for left_out in ((), ("free_requested",), ("free_completed",), ("free_requested", "free_completed")):
        track = load(tmp_path, events(*(row for row in rows if row[0] not in left_out)))
        assert track.peak == 1024
        assert track.by_category("end") == {Category.UNKNOWN: 1024}


def test_a_block_that_another_stream_uses_ends_when_its_tensor_does(tmp_path):
    """As ``torch.cuda.memory_allocated`` counts; its address is free later."""
    track = load(tmp_path, events(("alloc", 0, 2), ("free_requested", 0, 2), ("alloc", 8, 1), ("free_completed", 0, 2)))
    assert track.timeline().used.tolist() == [1024, 0, 512]


@pytest.mark.parametrize("size", [1 << 49, (1 << 63) - 1])
def test_numbers_that_no_card_has_are_refused(tmp_path, size):
    with pytest.raises(FileFormatError, match=r"snapshot\.pickle: it is damaged: no card has"):
        load(tmp_path, [{"action": "alloc", "addr": BASE, "size": size, "stream": 0}])


ACTIONS = [action.name.lower() for action in Action if action is not Action.OTHER] + ["something_new"]


@given(rows=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 6), st.integers(0, 6)), max_size=25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_events_that_fit_together_in_no_way(tmp_path, rows):
    """Damaged recordings, or of the middle of a run: bytes add up at each event, and no two blocks have one address."""
    if not rows:
        return
    track = load(tmp_path, events(*rows))
    line = track.timeline()
    assert (line.used >= 0).all()
    assert line.used.tolist() == np.sum([line.bytes(each) for each in Category], axis=0).tolist()
    for moment in (0, len(track.log) // 2, len(track.log)):
        live = track.live(moment)
        assert sum(block.rounded for block in live) == sum(track.by_category(moment).values())
        assert len({block.address for block in live}) == len(live)


SETTINGS = ["", "max_split_size_mb:21", "roundup_power2_divisions:4", "expandable_segments:True"]
SIZES = st.one_of(st.integers(1, 4 * MIB), st.integers(1, 60 * MIB), st.sampled_from([512, MIB, MIB + 1, 10 * MIB, 20 * MIB]))


@given(
    program=st.lists(st.one_of(SIZES, st.integers(-20, -1)), min_size=1, max_size=40),
    begin=st.integers(0, 20),
    chosen=st.sampled_from(SETTINGS),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_are_those_that_the_allocator_counts(tmp_path, program, begin, chosen):
    """At each event of any program, under any settings; where the recording begins late, if what was there then stays."""
    run, live, counted, sure = Program(chosen), [], [], True
    for number, size in enumerate(program):
        if number == begin:
            run.record()
            counted = []
        if size > 0:
            live.append((number, run.alloc(size)))
        elif live:
            born, address = live.pop(size % len(live))
            sure &= born >= begin or number < begin  # else the block may be longer than the event says
            run.free(address)
        else:
            continue
        counted.append(run.allocator.stats.current("allocated_bytes"))
    if run.events and sure:
        track = pytorch.load(run.write(tmp_path / "x.pickle"))
        assert track.timeline().used[-len(counted) :].tolist() == counted
        assert track.pool("end").reserved == run.allocator.stats.current("reserved_bytes")


def test_memory_that_loading_takes(tmp_path):
    """At most 110 bytes an event, beside the 4 MiB of the file that are read at once: its facts, what is told, and the log."""
    run = Training()
    run.layers = 50
    run.run(2)
    first = list(run.events)
    run.record()
    run.one_step()
    run.events = first + [dict(event) for _ in range(30) for event in run.events]  # a step leaves the allocator as it was
    path = run.write(tmp_path / "x.pickle")
    count = len(run.events)
    del run, first
    tracemalloc.start()
    try:
        track = pytorch.load(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count > 20_000
    assert 20 * len(track.log) < most < 110 * count + 8 * MIB
