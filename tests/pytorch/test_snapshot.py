"""Snapshots: every version of the format is read, and nothing else; no code of a file is ever run."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import pickletools
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tinygrad_mem import pytorch
from tinygrad_mem.errors import FileFormatError
from tinygrad_mem.memory import track
from tinygrad_mem.pytorch import unpickle
from tinygrad_mem.pytorch.recording import Action
from tinygrad_mem.pytorch.unpickle import Reader

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.tuples(inner),
    max_leaves=20,
)
FRAMES = [{"filename": f"train{i}.py", "line": i, "name": f"step{i}"} for i in range(400)]


def load(data: bytes) -> object:
    return Reader(io.BytesIO(data), "x.pickle", lambda device, events: None).read()


@pytest.mark.parametrize("chunk", [1 << 16, 1 << 22])
def test_a_text_may_be_longer_than_what_is_read_at_once(chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unpickle, "_CHUNK", chunk)
    value = {"a": "x" * 700_000, "b": ["y" * size for size in (0, 1, 255, 256, 3000)], "c": 7}
    assert load(pickle.dumps(value, 4)) == value


@given(value=PLAIN, protocol=st.integers(2, pickle.HIGHEST_PROTOCOL), optimized=st.booleans())
@example(value=[1] * 3000, protocol=4, optimized=False)
@example(value={str(i): i for i in range(3000)}, protocol=2, optimized=True)
def test_plain_containers_are_what_pickle_reads(value, protocol, optimized):
    # "frames" and "device_traces" are read for what they are in a snapshot
    if {"frames", "device_traces"} & set(str(value).split("'")):
        return
    data = pickle.dumps(value, protocol)
    data = pickletools.optimize(data) if optimized else data
    assert load(data) == value == pickle.loads(data)


def event(action: str, address: int, size: int, frames: list, **more) -> dict:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames, "time_us": 5 + size, **more}


def snapshot(events: list[dict], *others: list[dict], **more) -> dict:
    block = {"size": 2 << 20, "requested_size": 0, "state": "inactive", "address": 1 << 45, "frames": []}
    segment = {"device": 0, "address": 1 << 45, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": [block]}
    return {"segments": [segment], "device_traces": [events, *others], **more}


def written(tmp_path, whole: object, protocol: int = 4):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(whole, protocol))
    return path


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("count", [1, 2, 999, 1000, 1001, 4321])
def test_events_are_read_whatever_their_number(tmp_path, protocol, count):
    """Pickle hands lists over a thousand at a time, and a single item otherwise; events of the same keys are read at once."""
    stacks = [[FRAMES[(7 * i + j) % 400] for j in range(i % 40)] for i in range(60)]
    events = [
        event(("alloc", "free_requested")[i % 2], (1 << 45) + 512 * i, i << (i % 20), list(stacks[i % 60]))
        for i in range(count)
    ]
    for number, each in enumerate(events):
        if number % 97 == 5:
            each["compile_context"] = f"context {number}"
    found = pytorch.read(written(tmp_path, snapshot(events, []), protocol))
    recording = found.of(0)
    assert recording.events["address"].tolist() == [each["addr"] for each in events]
    assert recording.events["size"].tolist() == [each["size"] for each in events]
    assert recording.events["time"].tolist() == [each["time_us"] for each in events]
    assert recording.events["action"].tolist() == [Action[each["action"].upper()] for each in events]
    frames = [[found.stacks.frames[frame] for frame in found.stacks.stacks[number]] for number in recording.events["stack"]]
    assert frames == [[(f["filename"], f["line"], f["name"]) for f in each["frames"]] for each in events]


def test_several_devices_each_have_their_events(tmp_path):
    first, second = [event("alloc", 1 << 45, 5, FRAMES[:2])], [event("alloc", 1 << 46, 6, FRAMES[1:3]) for _ in range(3)]
    path = written(tmp_path, snapshot(first, second, []))
    with pytest.raises(ValueError, match=r"choose a device: of 2 devices 2 have events: 0, 1"):
        pytorch.read(path).of()
    assert [len(pytorch.read(path).of(device).events) for device in (0, 1)] == [1, 3]
    assert pytorch.replay(path, device=0).allocations == 1
    with pytest.raises(ValueError, match="it has no device 4; it has 0, 1"):
        pytorch.replay(path, device=4)


def test_older_formats(tmp_path):
    """Blocks without addresses, requests and stacks, with a history; a list of segments alone; events without a time."""
    whole = snapshot([{"action": "alloc", "addr": 1 << 45, "size": 7, "stream": 0}])
    whole["segments"][0]["blocks"] = [
        {"size": 512, "state": "active_allocated", "history": [{"addr": 1 << 45, "real_size": 7, "frames": FRAMES[:3]}]},
        {"size": (2 << 20) - 512, "state": "inactive"},
    ]
    blocks = pytorch.read(written(tmp_path, whole)).of(0).segments[0].blocks
    assert [(b.address, b.size, b.requested) for b in blocks] == [
        (1 << 45, 512, 7),
        ((1 << 45) + 512, (2 << 20) - 512, (2 << 20) - 512),
    ]
    assert blocks[0].stack > 0
    assert len(pytorch.read(written(tmp_path, whole["segments"])).of(0).segments) == 1


def test_settings_are_the_recorded_ones(tmp_path):
    events = [event("alloc", 1 << 45, 5 << 20, [])]
    for said, meant in (("max_split_size_mb:64", "max_split_size_mb:64"), (None, "")):
        path = written(tmp_path, snapshot(events, allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": said}))
        assert pytorch.replay(path).settings == meant


@pytest.mark.parametrize("said", ["backend:cudaMallocAsync", "of_a_later_version:1"])
def test_recorded_settings_that_are_not_known_are_refused(tmp_path, said):
    """They are not taken for none: the blocks may lie otherwise under them."""
    events = [event("alloc", 1 << 45, 5 << 20, [])]
    path = written(tmp_path, snapshot(events, allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": said}))
    assert pytorch.read(path).of().settings == said
    for settings in (None, ""):
        with pytest.raises(ValueError, match=f"the program ran with settings '{said}', which are not modelled"):
            pytorch.replay(path, settings)


def test_an_out_of_memory_event_and_another_card(tmp_path):
    """What failed then fails in the replay; on a larger card it does not."""
    mib = 1 << 20
    events = [
        {"action": "segment_alloc", "addr": 1 << 45, "size": 60 * mib, "stream": 0, "frames": []},
        event("alloc", 1 << 45, 60 * mib, []),
        {"action": "oom", "device_free": 10 * mib, "size": 30 * mib, "stream": 0, "frames": []},
    ]
    path = written(tmp_path, {"segments": [], "device_traces": [events]})
    assert pytorch.replay(path).out_of_memory == [2]
    assert pytorch.replay(path, capacity=80 * mib).out_of_memory == [2]
    fits = pytorch.replay(path, capacity=90 * mib)
    assert (fits.out_of_memory, fits.peak_reserved) == ([], 90 * mib)
    assert pytorch.replay(path, capacity=50 * mib).out_of_memory == [1]  # and the other one fits then


def test_gzip_and_progress(tmp_path):
    path = written(tmp_path, snapshot([event("alloc", 1 << 45, 5, FRAMES[:5]) for _ in range(20)]))
    packed = tmp_path / "snapshot.pickle.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    seen: list[int] = []
    assert len(pytorch.read(packed, seen.append).of(0).events) == 20
    assert sum(seen) == path.stat().st_size


def test_a_track_of_ours_and_its_snapshot_ask_for_the_same(tmp_path):
    with track("meta") as seen:
        model = tm.nn.Sequential(*(tm.nn.Linear(300, 300, device="meta") for _ in range(4)))
        optimizer = tm.optim.Adam(model.parameters())
        for batch in (32, 64, 96):
            optimizer.zero_grad()
            model(tm.zeros(batch, 300, device="meta")).square().mean().backward()
            optimizer.step()
    seen.save(tmp_path / "x.pickle")
    ours, theirs = pytorch.replay(seen), pytorch.replay(tmp_path / "x.pickle")
    assert ours.peak_allocated == theirs.peak_allocated == seen.peak
    assert ours.peak_reserved == theirs.peak_reserved >= seen.peak
    assert ours.allocations == theirs.allocations > 50


# --- what is no snapshot --------------------------------------------------------------------------------------------------


class Calls:
    def __reduce__(self):
        return os.system, ("touch /tmp/tinygrad_mem_was_here",)


def nested(depth: int) -> bytes:
    return b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b"."


HOSTILE = {
    "code": (pickle.dumps({"segments": [Calls()]}), "would run code when it is loaded .* Nothing was run"),
    "code, old protocol": (pickle.dumps(Calls(), 0), "a pickle of protocol 2 or later"),
    "a class": (pickle.dumps(tm.nn.Linear), "would run code"),
    "a set": (pickle.dumps({"segments": {1}}), "would run code|no instruction"),
    "lists in lists": (nested(100_000), "wait for their container"),
    "marks": (b"\x80\x04" + b"(" * 10_000 + b".", "nested more than 64 deep"),
    "dicts in dicts": (b"\x80\x04" + b"}" * 30_000 + b".", "wait for their container"),
    "a long text": (b"\x80\x04X\xff\xff\xff\x7fabc", "a text of 2,147,483,647 bytes"),
    "a long number": (b"\x80\x04\x8a\xff" + b"\x01" * 255 + b".", "a number of 255 bytes"),
    "truncated": (pickle.dumps(snapshot([event("alloc", 1, 2, FRAMES)] * 5))[:-200], "damaged or incomplete"),
    "empty": (b"", "damaged or incomplete"),
    "text": (b"Hello, this is a text and no pickle", "it is not a file of torch.cuda.memory._dump_snapshot"),
    "another pickle": (pickle.dumps({"weights": [1, 2]}), "not a memory snapshot: it has no segments"),
    "segments are none": (pickle.dumps({"segments": [5]}), "a segment is damaged"),
    "an event is none": (pickle.dumps({"segments": [], "device_traces": [[5, 6]]}), "an event after number 0 is damaged"),
    "an address is text": (pickle.dumps(snapshot([event("alloc", "x", 1, [])])), "is damaged"),
    "a negative size": (pickle.dumps(snapshot([event("alloc", 1, -1, [])])), "is damaged"),
    "frames are none": (pickle.dumps(snapshot([event("alloc", 1, 1, [3, 4])])), "a frame is a dict"),
    "a lone pop": (b"\x80\x04e.", "damaged"),
    "a memory of nothing": (b"\x80\x04h\x05.", "damaged"),
    "values left over": (b"\x80\x04NN.", "values are left over"),
    "keys without values": (b"\x80\x04}(Nu.", "keys and values belong to no dict"),
    "a list as a key": (b"\x80\x04}(]Nu.", "damaged"),
    "bad utf-8": (b"\x80\x04\x8c\x02\xff\xfe.", "damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_snapshot_is_refused_in_words(tmp_path, name):
    data, why = HOSTILE[name]
    path = tmp_path / "x.pickle"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=why):
        pytorch.read(path)
    assert not os.path.exists("/tmp/tinygrad_mem_was_here")


@given(data=st.binary(max_size=200), at=st.integers(0, 1000), kind=st.sampled_from(["cut", "put", "raw"]))
def test_damaged_files_are_refused_or_read(data, at, kind):
    """Nothing but FileFormatError, whatever the bytes are."""
    good = pickle.dumps(snapshot([event("alloc", 1 << 45, 5, FRAMES[:9]) for _ in range(30)], []))
    at %= len(good)
    made = {
        "cut": good[:at] + good[at + len(data) :],
        "put": good[:at] + data + good[at + len(data) :],
        "raw": b"\x80\x04" + data,
    }[kind]
    try:
        load(made)
    except FileFormatError as refused:
        error = refused
    else:
        return
    assert str(error).startswith("x.pickle: ")


def test_nothing_is_imported():
    code = "import sys; from tinygrad_mem import pytorch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
