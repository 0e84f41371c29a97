"""Sequences in batches: every sample once, alike lengths together, padding to the longest, files and streams of tokens."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem import memory
from tinygrad_mem.utils.data import (
    BucketBatchSampler,
    DataLoader,
    PadCollate,
    Padded,
    TokenBatchSampler,
    TokenFile,
    TokenStream,
    pack_collate,
    write_tokens,
)

some_lengths = st.lists(st.integers(0, 30), max_size=40)


@given(lengths=some_lengths, size=st.integers(1, 7), shuffle=st.booleans())
def test_buckets_have_every_sample_once(lengths: list[int], size: int, shuffle: bool):
    sampler = BucketBatchSampler(lengths, size, shuffle, generator=tm.Generator().manual_seed(3))
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert len(sampler) == len(batches)
    spans = sorted((min(lengths[i] for i in b), max(lengths[i] for i in b)) for b in batches)
    assert all(a[1] <= b[0] for a, b in pairwise(spans)), "lengths of two batches overlap"
    dropped = list(BucketBatchSampler(lengths, size, shuffle, drop_last=True))
    assert len(dropped) == len(lengths) // size
    assert all(len(batch) == size for batch in dropped)


@given(lengths=some_lengths, budget=st.integers(30, 100), shuffle=st.booleans())
def test_a_budget_of_tokens(lengths: list[int], budget: int, shuffle: bool):
    sampler = TokenBatchSampler(lengths, budget, shuffle)
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert len(sampler) == len(batches)
    for batch in batches:
        assert len(batch) * max(lengths[i] for i in batch) <= budget
    if batches:
        assert len(list(TokenBatchSampler(lengths, budget, shuffle, drop_last=True))) == len(batches) - 1


def test_passes_are_drawn_anew_and_seeds_repeat_them():
    lengths = np.random.default_rng(0).integers(1, 50, 200)
    for make in (lambda g: BucketBatchSampler(lengths, 8, generator=g), lambda g: TokenBatchSampler(lengths, 200, generator=g)):
        sampler = make(tm.Generator().manual_seed(1))
        first, second = list(sampler), list(sampler)
        assert first != second
        assert list(make(tm.Generator().manual_seed(1))) == first
    assert list(BucketBatchSampler([3, 1, 2], 1, shuffle=False)) == [[1], [2], [0]]
    ties = np.arange(200) % 3 + 1
    assert sum(BucketBatchSampler(ties, 7, shuffle=False), []) == sorted(range(200), key=lambda i: ties[i])  # noqa: RUF017


def test_a_loader_of_buckets_pads_to_the_longest_of_the_batch():
    rng = np.random.default_rng(0)
    data = [rng.integers(1, 9, n) for n in (3, 9, 4, 1, 10, 8)]
    loader = DataLoader(data, batch_sampler=BucketBatchSampler([len(d) for d in data], 2), collate_fn=PadCollate())  # type: ignore[arg-type]
    seen = 0
    for batch in loader:
        tokens, lengths = values(batch.tokens), values(batch.lengths)
        assert tokens.shape == (2, lengths.max())
        np.testing.assert_array_equal(values(batch.padding_mask), np.arange(tokens.shape[1]) >= lengths[:, None])
        for row, length in zip(tokens, lengths, strict=True):
            assert any(len(d) == length and (row[:length] == d).all() for d in data)
            assert not row[length:].any()
            seen += 1
    assert seen == 6


def test_padding_of_tuples_dicts_and_labels():
    samples = [(np.array([1, 2, 3]), [4.0], 7), (np.array([5]), [1.0, 2.0, 3.0], 8)]
    tokens, values_, label = PadCollate(-100, multiple_of=4)(samples)
    assert values(tokens.tokens).tolist() == [[1, 2, 3, -100], [5, -100, -100, -100]]
    assert values(values_.tokens)[0].tolist() == [4.0, -100.0, -100.0, -100.0]
    assert values(values_.lengths).tolist() == [1, 3]
    assert values(label).tolist() == [7, 8]
    named = PadCollate()([{"x": tm.ones(2, 3), "name": "a"}, {"x": tm.zeros(4, 3), "name": "b"}])
    assert tuple(named["x"].tokens.shape) == (2, 4, 3)
    assert named["name"] == ["a", "b"]


def test_packing_keeps_no_padding():
    packed = pack_collate([np.array([1, 2]), np.array([3]), np.array([], np.int64), np.array([4, 5, 6])])
    assert values(packed.tokens).tolist() == [1, 2, 3, 4, 5, 6]
    assert values(packed.cu_seqlens).tolist() == [0, 2, 3, 3, 6]
    assert packed.cu_seqlens.dtype == tm.int32
    assert packed.longest == 3


# --- files and streams ----------------------------------------------------------------------------------------------------


def test_a_file_of_tokens_in_windows(tmp_path: Path):
    path = tmp_path / "train.bin"
    assert write_tokens(path, (np.arange(i, i + 10) for i in range(0, 100, 10))) == 100
    assert path.stat().st_size == 200
    windows = TokenFile(path, 8)
    assert len(windows) == 12
    for i in (0, 5, 11, -1):
        x, y = windows[i]
        start = (i % 12) * 8
        assert values(x).tolist() == list(range(start, start + 8))
        assert values(y).tolist() == list(range(start + 1, start + 9))
        assert x.dtype == tm.int64
    assert len(TokenFile(path, 8, stride=1)) == 92
    x, _ = pickle.loads(pickle.dumps(windows))[1]
    assert values(x)[0] == 8
    batches = list(DataLoader(TokenFile(path, 8), batch_size=4))
    assert [tuple(x.shape) for x, _ in batches] == [(4, 8)] * 3
    with pytest.raises(IndexError, match="window 12 is out of range"):
        windows[12]


def test_a_file_larger_than_what_is_read_takes_no_memory(tmp_path: Path):
    """64 MiB of tokens; a pass over some windows holds a few kilobytes of them."""
    path = tmp_path / "large.bin"
    write_tokens(path, (np.full(1 << 21, i, np.uint16) for i in range(16)))
    windows = TokenFile(path, 1024)

    def read() -> int:
        return sum(int(windows[i][0][0].item()) for i in range(0, len(windows), 997))

    tracemalloc.start()
    assert read() > 0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    older = memory.memory_allocated()  # what other tests keep
    with memory.track() as track:
        read()
    assert track.timeline().used.max() - older <= 4 * 8192


LARGER = """
import os, re, resource, sys
from pathlib import Path
import numpy as np
from tinygrad_mem.utils.data import TokenFile

def most():  # kibibytes. On Linux ru_maxrss is at least what the process had that started this one
    status = Path("/proc/self/status")
    said = re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text() if status.exists() else "")
    return int(said[1]) if said else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

path, memory = sys.argv[1], os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
tokens = memory  # of two bytes each: twice as much as the machine has
with open(path, "wb") as file:  # most of it is a hole, which takes no place on the disk
    file.truncate(2 * tokens)
    for start in (0, tokens // 2, tokens - 1024):
        file.seek(2 * start)
        file.write(np.arange(1, 1025, dtype=np.uint16).tobytes())
windows = TokenFile(path, 256)
x, _ = windows[0]
before = most()
found = [int(windows[i][0][0].item()) for i in (0, tokens // 2 // 256, len(windows) - 3)]
for i in range(0, len(windows), len(windows) // 100):
    windows[i]
print(os.path.getsize(path) > 1.9 * memory, found, most() - before)
"""


def test_a_file_larger_than_the_machines_memory(tmp_path: Path):
    run = [sys.executable, "-c", LARGER, str(tmp_path / "larger.bin")]
    ran = subprocess.run(run, capture_output=True, text=True, check=True)
    seen, grown = ran.stdout.rsplit(maxsplit=1)
    assert seen == "True [1, 1, 1]"
    assert int(grown) < 16 << 10, "kibibytes: the pages around each of 100 windows"


@given(sizes=st.lists(st.integers(0, 30), max_size=12), length=st.integers(1, 9))
def test_a_stream_gives_the_windows_of_what_it_reads(sizes: list[int], length: int):
    total = sum(sizes)

    def chunks() -> Iterator[np.ndarray]:
        start = 0
        for size in sizes:
            yield np.arange(start, start + size)
            start += size

    stream = TokenStream(chunks, length)
    for _ in range(2):  # each pass begins anew
        found = list(stream)
        assert len(found) == max(total - 1, 0) // length
        for i, (x, y) in enumerate(found):
            assert values(x).tolist() == list(range(i * length, (i + 1) * length))
            assert values(y).tolist() == list(range(i * length + 1, (i + 1) * length + 1))


STREAM = """
import tracemalloc
import numpy as np
from tinygrad_mem.utils.data import TokenStream

def chunks():
    for _ in range(50):
        yield np.zeros(1 << 16, np.uint16)  # 128 KiB; as int64, 512

for _ in TokenStream(chunks, 1000):  # the first window imports kernels, and makes tables
    break
tracemalloc.start()
print(sum(1 for _ in TokenStream(chunks, 1000)), tracemalloc.get_traced_memory()[1])
"""


def test_a_stream_holds_one_chunk():
    """In a process of its own: what others allocate meanwhile is not the stream's."""
    ran = subprocess.run([sys.executable, "-c", STREAM], capture_output=True, text=True, check=True)
    count, peak = map(int, ran.stdout.split())
    assert count == (50 * (1 << 16) - 1) // 1000
    assert 512 << 10 < peak < 1 << 20  # all chunks are 25 MiB


def _write(tmp_path: Path, count: int) -> Path:
    write_tokens(tmp_path / "x.bin", [np.arange(count)])
    return tmp_path / "x.bin"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: BucketBatchSampler([1, 2], 0), ValueError, "batch_size should be a positive integer value"),
        (lambda p: BucketBatchSampler([1, -2], 1), ValueError, "lengths are a row of whole numbers"),
        (lambda p: BucketBatchSampler([0.5], 1), ValueError, "lengths are a row of whole numbers"),
        (lambda p: TokenBatchSampler([1, 20, 3], 10), ValueError, "sequence 1 has 20 tokens, more than max_tokens=10"),
        (lambda p: PadCollate()([np.ones((2, 3)), np.ones((2, 4))]), ValueError, "differ in their lengths only"),
        (lambda p: pack_collate([np.ones(2), np.array([1])]), ValueError, "differ in their lengths only"),
        (lambda p: PadCollate(multiple_of=0), ValueError, "multiple_of should be a positive integer"),
        (lambda p: TokenFile(_write(p, 8), 8), ValueError, "has 8 tokens; a window of 8 and its targets need 9"),
        (lambda p: TokenFile(_write(p, 9), 4, dtype=np.uint32), ValueError, "no whole number of uint32"),
        (lambda p: TokenFile(p / "none.bin", 4), FileNotFoundError, "none.bin"),
        (lambda p: write_tokens(p / "y.bin", [[70000]]), ValueError, "uint16 cannot hold 70000"),
        (lambda p: TokenStream(list, 0), ValueError, "length should be positive"),
    ],
)
def test_refused(call: Any, error: type[Exception], message: str, tmp_path: Path):
    with pytest.raises(error, match=message):
        call(tmp_path)
    assert not list(tmp_path.glob("*.part"))
    assert not (tmp_path / "y.bin").exists(), "half a file"


def test_a_mask_is_where_the_tokens_are():
    batch = Padded(tm.zeros(2, 3, device="meta"), tm.tensor([3, 1]))
    assert batch.padding_mask.device.type == "meta"
    assert batch.padding_mask.shape == (2, 3)
