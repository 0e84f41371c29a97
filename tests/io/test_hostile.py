"""Damaged and hostile files of each format that is read: they load as the format says or are refused, in few bytes."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import os
import random
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import tinygrad_mem as tm
from tests.profiles import every
from tinygrad_mem import files, memory
from tinygrad_mem.data.cifar10 import read_batch
from tinygrad_mem.data.mnist import read_idx
from tinygrad_mem.errors import FileFormatError
from tinygrad_mem.plan import Times

POOL = tm.device("cpu").pool
MUTANTS = 500 // every(2)  # of each format


def saved(obj: Any) -> bytes:
    file = io.BytesIO()
    tm.save(obj, file)
    return file.getvalue()


def framed(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def plain() -> bytes:
    return saved({"w": tm.arange(6).reshape(2, 3), "b": tm.ones(2, dtype=tm.float16), "m": tm.tensor([True, False])})


def described() -> bytes:
    state = {0: {"step": 3, "exp_avg": tm.ones(2)}, "x": [1, (2, None), {"lr": 0.5, "a": "ü"}]}
    return saved({"state": state, "tied": [tm.zeros(3)] * 2})


def tracked(folder: Path) -> bytes:
    with memory.track() as track:
        kept = tm.zeros(100)
        memory.mark("ü\n")
        (kept + 1).sum()
    track.save(folder / "track.json")
    return (folder / "track.json").read_bytes()


def idx() -> bytes:
    return struct.pack(">IIII", 0x803, 3, 4, 5) + bytes(range(60))


def batch() -> bytes:
    return b"".join(bytes([label]) + bytes(3072) for label in (0, 9))


VALUES = [
    *(
        "[]",
        "{}",
        "-1",
        "0",
        "1.0",
        "true",
        "null",
        '""',
        '"\\ud800"',
        "NaN",
        "-Infinity",
        "1e400",
        "[0,0]",
        "[[]]",
        '[{"a":[]}]',
    ),
    *(str(1 << n) for n in (31, 62, 63, 64, 70)),
    *("9" * 5000, "[" * 990, "[" * 990 + "]" * 990, '{"a":' * 990, "[" + "0," * 100 + "0]", '{"a":1,"a":2}', '{"$tensor":"w"}'),
]


def restated(text: str, luck: random.Random) -> str:
    """JSON in which one value, name or pair is another; maybe no JSON any more."""
    place = object()
    found = json.loads(text)
    nodes: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, item in list(node.items() if isinstance(node, dict) else enumerate(node)):
            nodes.append((node, key))
            if isinstance(item, (dict, list)):
                walk(item)

    walk(found)
    node, key = luck.choice(nodes)
    how = luck.randrange(4)
    if how == 0 and isinstance(node, dict):
        node[luck.choice(["", "__metadata__", "dtype", "$pairs", "$tuple", "w"])] = node.pop(key)
    elif how == 1:
        del node[key]
    elif how == 2:
        other, its = luck.choice(nodes)
        node[key] = other.get(its) if isinstance(other, dict) else (other[its : its + 1] or [0])[0]
        try:
            return json.dumps(found)
        except ValueError:  # it contains itself now
            return text[::-1]
    else:
        node[key] = mark = f"{id(place)}"
        return json.dumps(found).replace(f'"{mark}"', luck.choice(VALUES))
    return json.dumps(found)


def restated_header(content: bytes, luck: random.Random) -> bytes:
    """A safetensors file with another header, or another description in its metadata, of the right length."""
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length].decode(), content[8 + length :]
    found = json.loads(header)
    if "__metadata__" in found and luck.random() < 0.6:
        found["__metadata__"]["tinygrad_mem"] = restated(found["__metadata__"]["tinygrad_mem"], luck)
        return framed(json.dumps(found).encode(), data)
    return framed(restated(header, luck).encode(errors="surrogatepass"), data)


def restated_line(content: bytes, luck: random.Random) -> bytes:
    """A track with another line of events, or another first line."""
    head, line, *end = content.split(b"\n")
    if luck.random() < 0.2:
        head = restated(head.decode() + "]}", luck).encode()[:-2]
    else:
        line = restated(line.decode(), luck).encode()
    return b"\n".join([head, line, *end])


def restated_sizes(content: bytes, luck: random.Random) -> bytes:
    """Another number in the first words."""
    at = 4 * luck.randrange(4)
    return content[:at] + struct.pack(">I", luck.choice([0, 1, 2, 1 << 31, (1 << 32) - 1])) + content[at + 4 :]


def damaged(content: bytes, luck: random.Random) -> bytes:
    """Bits that turned over, pieces that are gone, double or from elsewhere, an end that is missing or too long."""
    mutant = bytearray(content)
    for _ in range(luck.randint(1, 3)):
        at = luck.randrange(len(mutant) or 1)
        how = luck.randrange(6)
        if how == 0 and mutant:
            mutant[at] ^= 1 << luck.randrange(8)
        elif how == 1:
            mutant[at : at + luck.randint(0, 2)] = luck.choice(VALUES[:20]).encode()
        elif how == 2:
            del mutant[at : at + luck.randint(1, 9)]
        elif how == 3:
            del mutant[at:]
        elif how == 4:
            mutant += luck.randbytes(luck.randint(1, 9))
        else:
            other = luck.randrange(len(mutant) or 1)
            mutant[at:at] = mutant[other : other + luck.randint(1, 40)]
    return bytes(mutant)


def from_library(content: bytes, found: Any) -> None:
    """Whatever we make of a plain file, the safetensors library makes of it too."""
    theirs = safetensors.numpy.load(content)
    assert theirs.keys() == found.keys()
    assert all(theirs[name].tobytes() == found[name].numpy().tobytes() for name in theirs)
    assert all(theirs[name].shape == tuple(found[name].shape) for name in theirs)


def asked(content: bytes, track: memory.Track) -> None:
    """A track that was read can be asked, shown and written."""
    if len(track.timeline()):
        track.table("line")
        track.compare(track)
    saved = memory.Track.of(track.log)
    assert len(list(saved.blocks())) <= len(track.log)


def nothing(content: bytes, found: Any) -> None:
    pass


Format = tuple[
    Callable[[Path], bytes], Callable[[bytes, random.Random], bytes], Callable[[Path], Any], Callable[[bytes, Any], None]
]
FORMATS: dict[str, Format] = {
    "plain.safetensors": (lambda folder: plain(), restated_header, tm.load, from_library),
    "ours.safetensors": (lambda folder: described(), restated_header, tm.load, lambda content, found: saved(found)),
    "track.json": (tracked, restated_line, memory.load, asked),
    "track.json.gz": (tracked, restated_line, memory.load, asked),
    "images.idx": (lambda folder: idx(), restated_sizes, lambda path: read_idx(path, 3), nothing),
    "images.idx.gz": (lambda folder: idx(), restated_sizes, lambda path: read_idx(path, 3), nothing),
    "batch.bin": (lambda folder: batch(), restated_sizes, read_batch, nothing),
}


def mutants(name: str, whole: bytes) -> Iterator[bytes]:
    """Damaged files of a format, always the same ones; of packed ones, half are damaged before they are packed."""
    restate, luck, packed = FORMATS[name][1], random.Random(0), name.endswith(".gz")
    for number in range(MUTANTS):
        change = restate if number % 2 else damaged
        if not packed:
            yield change(whole, luck)
        elif number % 4 < 2:
            yield gzip.compress(change(whole, luck), 1, mtime=0)
        else:
            yield damaged(gzip.compress(whole, 1, mtime=0), luck)


@pytest.mark.parametrize("name", FORMATS)
def test_a_mutant_loads_as_its_format_says_or_is_refused(name: str, tmp_path: Path, reliability: Any):
    make, _, load, check = FORMATS[name]
    path, whole = tmp_path / name, make(tmp_path)
    path.write_bytes(gzip.compress(whole) if name.endswith(".gz") else whole)
    load(path)
    before, refused = POOL.used_bytes(), 0
    for content in mutants(name, whole):
        path.write_bytes(content)
        try:
            check(content, load(path))
        except FileFormatError:
            refused += 1
        assert POOL.used_bytes() == before
    assert MUTANTS // 4 < refused < MUTANTS
    reliability("mutated files", MUTANTS)


MANY = 30_000
EVENTS = b'{"format":"tinygrad_mem.track","version":1,"device":"cpu","events":3,"chunks":[\n'
COLUMNS = ("kind", "time", "address", "requested", "rounded", "phase", "module", "op", "line", "role", "note", "thread")


def line(**columns: str) -> bytes:
    """A track with a line of events."""
    shown = ",".join(f'"{name}":{columns.get(name, "[0,0,0]")}' for name in ("texts", *COLUMNS))
    return EVENTS + f"{{{shown}}}\n]}}\n".encode()


def entries(count: int) -> bytes:
    return b"{" + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(count)) + b"}"


GARBAGE: dict[str, tuple[str, bytes]] = {
    "empty lists": ("x.safetensors", framed(b'{"a":[' + b"[]," * MANY + b"[]]}")),
    "empty lists in an entry": ("x.safetensors", framed(b'{"a":{"dtype":[' + b"[]," * MANY + b"[]]}}")),
    "empty entries": ("x.safetensors", framed(b"{" + b",".join(b'"%d":{}' % i for i in range(MANY)) + b"}")),
    "one entry too many": ("x.safetensors", framed(entries(MANY // 10)[:-1] + b',"a":[]}')),
    "a deep entry": ("x.safetensors", framed(b'{"a":' * MANY)),
    "a long name": ("x.safetensors", framed(b'{"' + b"a" * MANY * 10 + b'":[]}')),
    "a long shape": ("x.safetensors", framed(b'{"a":{"shape":[' + b"0," * MANY + b"0]}}")),
    "a damaged description": (
        "x.safetensors",
        framed(json.dumps({"__metadata__": {"tinygrad_mem": "[" + '{"a":1},' * MANY + '{"$tensor":"b"}]'}}).encode()),
    ),
    "a track of empty lists": ("x.json", line(texts="[" + "[]," * MANY + "[]]")),
    "a track of empty lists that are no column": ("x.json", EVENTS + b"[" + b"[]," * MANY + b"[]]\n]}\n"),
    "a first line of empty lists": ("x.json", EVENTS[:-11] + b'"x":[' + b"[]," * MANY + b'[]],"chunks":[\n]}\n'),
    "texts in a column": ("x.json", line(texts='[""]', time='["' + "a" * MANY + '"' + ',""' * MANY + "]")),
    "a text without end": ("x.json", EVENTS + b'{"texts":["' + b'\\"' * MANY + b"\n]}\n"),
    "packed lists": ("x.json", gzip.compress(EVENTS + b"[" + b"[]," * MANY)),
    "a picture without pixels": ("x.idx", struct.pack(">IIII", 0x803, 1 << 31, 1 << 31, 1 << 31) + bytes(50 * MANY)),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_takes_no_more_memory_than_a_few_times_its_bytes(name: str, tmp_path: Path):
    ending, content = GARBAGE[name]
    path = tmp_path / ending
    path.write_bytes(content)
    load = {"x.safetensors": tm.load, "x.json": memory.load, "x.idx": lambda path: read_idx(path, 3)}[ending]
    before = POOL.used_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError) as caught:
            load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000
    assert peak < 20 * len(content) + (1 << 18) + 2 * io.DEFAULT_BUFFER_SIZE  # 8 KiB, and 128 KiB since Python 3.14
    assert POOL.used_bytes() == before


def test_what_is_whole_takes_no_more_than_its_objects(tmp_path: Path):
    path = tmp_path / "lists"
    tm.save([[] for _ in range(MANY)], path)
    size = path.stat().st_size
    tracemalloc.start()
    try:
        found = tm.load(path)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [[]] * MANY
    assert peak < now + 8 * size


BOMBS = {
    "images.idx.gz": struct.pack(">IIII", 0x803, 1 << 10, 1 << 10, 4) + bytes(4 << 20),
    "track.json.gz": line(texts='["' + "a" * (4 << 20) + '"]').replace(b":3,", b":9,"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_unpacks_without_end_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "_UNPACKED", 1 << 16)
    (tmp_path / name).write_bytes(gzip.compress(BOMBS[name]))
    with pytest.raises(FileFormatError, match="unpacks to more than"):
        FORMATS[name][2](tmp_path / name)


@pytest.mark.parametrize(
    "content", ["[" * 5000, '{"a":[NaN,1]}', '{"a":[1,1e999]}', '{"a":[-1,1]}', '{"a":[' + "9" * 400 + ",1]}", "\xff"]
)
def test_damaged_times_are_measured_again(content: str, tmp_path: Path):
    times = Times("cpu", tmp_path)
    assert times._file is not None
    times._file.write_bytes(content.encode("latin-1"))
    assert Times("cpu", tmp_path)._written == {}


def test_a_name_that_no_text_can_hold_is_restored(tmp_path: Path):
    state = {"\ud800": tm.ones(2), "ok": {"\udcff": tm.zeros(1)}, "path": "\udc80"}
    tm.save(state, tmp_path / "file")
    found = tm.load(tmp_path / "file")
    assert list(found) == list(state)
    assert found["\ud800"].tolist() == [1.0, 1.0]
    assert found["path"] == "\udc80"
    entry = b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    with pytest.raises(FileFormatError, match="surrogates not allowed"):
        tm.load(io.BytesIO(framed(entry)))


def test_depth(tmp_path: Path):
    """What can be saved can be loaded; what is deeper is refused on both sides."""

    def nested(depth: int, kind: Callable[[Any], Any]) -> Any:
        found: Any = 1
        for _ in range(depth):
            found = kind(found)
        return found

    for kind in (lambda x: [x], lambda x: (x,), lambda x: {"a": x}, lambda x: {1: x}):
        tm.save(nested(200, kind), tmp_path / "file")
        assert tm.load(tmp_path / "file") == nested(200, kind)
        with pytest.raises(TypeError, match="nested more than 200 deep"):
            tm.save(nested(201, kind), tmp_path / "file")
    for depth in (900, 5000, 100_000):
        header = json.dumps({"__metadata__": {"tinygrad_mem": "[" * depth + "]" * depth}}).encode()
        with contextlib.suppress(FileFormatError):  # how deep Python can go differs between its versions
            tm.load(io.BytesIO(framed(header)))


@pytest.mark.parametrize("shape", [[0, 1 << 62], [0, 1 << 63], [1 << 40, 1 << 40, 0], [0, 10**4000], [0, (1 << 61) - 1]])
def test_an_empty_tensor_of_a_shape_that_no_array_has(shape: list):
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    text = (
        json.dumps(entry)
        if max(shape) < 1 << 70
        else json.dumps(entry | {"shape": [0]}).replace("[0]", "[0, 1" + "0" * 4000 + "]")
    )
    content = framed(b'{"a":' + text.encode() + b"}")
    if 4 * math.prod(n or 1 for n in shape) < 1 << 63:
        assert list(tm.load(io.BytesIO(content))["a"].shape) == shape
        return
    with pytest.raises(FileFormatError, match="shape"):
        tm.load(io.BytesIO(content))


def test_a_fifo_is_read(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=lambda: tm.save({"a": tm.arange(20_000)}, tmp_path / "fifo"), daemon=True)
    writer.start()
    assert np.array_equal(tm.load(tmp_path / "fifo")["a"].numpy(), np.arange(20_000))
    writer.join(60)
