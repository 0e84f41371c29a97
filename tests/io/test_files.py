"""Every file appears whole or not at all, whoever is killed, whatever fails; FIFOs, devices and links stay what they are."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import files, memory
from tinygrad_mem.data.tokens import write_tokens
from tinygrad_mem.files import replacing
from tinygrad_mem.plan import show
from tinygrad_mem.tips import report

PACKAGE = Path(tm.__file__).parent


@pytest.fixture(scope="module")
def track() -> memory.Track:
    with memory.track() as track:
        tm.zeros(1000)
    return track


@dataclass(frozen=True)
class Point:
    """As much of a plan's choice as its picture needs."""

    time: float
    peak: int
    choice: Any = field(default_factory=lambda: SimpleNamespace(names=()), compare=False)


PLAIN, SMALLER = Point(1.0, 1 << 20), Point(2.0, 1 << 19)
FRONT: Any = [PLAIN, SMALLER], SMALLER, PLAIN, 1 << 19


WRITERS: dict[str, tuple[str, Callable[[memory.Track, Path], Any]]] = {
    "save": ("safetensors", lambda track, path: tm.save({"a": tm.arange(100)}, path)),
    "json": ("json", lambda track, path: track.save(path)),
    "csv": ("csv.gz", lambda track, path: track.save(path)),
    "trace": ("trace.json", lambda track, path: track.save(path)),
    "snapshot": ("pickle", lambda track, path: track.save(path)),
    "page": ("html", lambda track, path: track.to_html(path)),
    "picture": ("png", lambda track, path: track.plot(path)),
    "front": ("png", lambda track, path: show.plot(*FRONT, path)),
    "tips": ("html", lambda track, path: report.write([], path)),
    "tokens": ("bin", lambda track, path: write_tokens(path, [np.arange(50), np.arange(20)])),
}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest, track: memory.Track) -> tuple[str, Callable[[Path], Any]]:
    ending, write = WRITERS[request.param]
    return ending, lambda path: write(track, path)


def test_a_fifo_and_a_device_are_written_in_place(writer: tuple, tmp_path: Path):
    ending, write = writer
    write(tmp_path / f"file.{ending}")
    whole = (tmp_path / f"file.{ending}").read_bytes()
    fifo, read = tmp_path / f"fifo.{ending}", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    write(fifo)
    reader.join(60)  # for ever, if the FIFO was replaced
    assert read == [whole]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    null = tmp_path / f"null.{ending}"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices are made by root")
    write(null)
    assert stat.S_ISCHR(null.stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_that_is_replaced_keeps_its_permissions_and_links_to_it(writer: tuple, tmp_path: Path):
    ending, write = writer
    path, link = tmp_path / f"file.{ending}", tmp_path / f"link.{ending}"
    path.write_bytes(b"old")
    path.chmod(0o600)
    link.symlink_to(path.name)
    write(link)
    assert link.is_symlink()
    assert not path.read_bytes().startswith(b"old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(tmp_path.iterdir()) == [path, link]


WRITES = re.compile(
    r"""\bopen\([^)]*["'][wxa]b?\+?b?["']|\b(write_text|write_bytes|tofile|mkstemp|NamedTemporaryFile|os\.(replace|open|rename))\("""
)


def test_nothing_else_writes_files():
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if WRITES.search(path.read_text())}
    pipes = {"distributed/launch.py", "distributed/keeper.py"}  # what ranks print, in a temporary folder
    locks = {"distributed/presence.py"}  # an empty file that says that a process lives
    assert found == {"files.py"} | pipes | locks


@contextlib.contextmanager
def masked(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def put(path: Path | str, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_permissions_and_owners(mask: int, tmp_path: Path):
    new, old = tmp_path / "new", tmp_path / "old"
    with masked(mask):
        put(new, b"x")
        assert stat.S_IMODE(new.stat().st_mode) == 0o666 & ~mask
        for mode in (0o600, 0o644, 0o664, 0o755):
            old.write_bytes(b"")
            old.chmod(mode)
            if os.getuid() == 0:
                os.chown(old, 12345, 54321)
            before = old.stat()
            put(old, b"x")
            assert (old.stat().st_mode, old.stat().st_uid, old.stat().st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert old.stat().st_ino != before.st_ino


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_may_not_be_replaced(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o444)
    with pytest.raises(PermissionError, match=str(path)):
        put(path, b"new")
    assert path.read_bytes() == b"old"


def test_what_cannot_be_written_is_named(tmp_path: Path):
    for path, kind in ((tmp_path, IsADirectoryError), (tmp_path / "none" / "file", FileNotFoundError)):
        with pytest.raises(kind) as caught:
            put(path, b"x")
        assert caught.value.filename == str(path)
        assert caught.value.filename2 is None
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop") as loop:
        put(tmp_path / "loop", b"x")
    assert loop.value.errno == errno.ELOOP


@pytest.mark.parametrize("name", ["a" * 255, "ü" * 127, "層" * 85, "x y\n$", "-", "[a]*?"], ids=range(6))
def test_any_name_that_a_file_can_have(name: str, tmp_path: Path):
    for content in (b"one", b"two"):
        put(tmp_path / name, content)
        assert (tmp_path / name).read_bytes() == content
    (tmp_path / "link").symlink_to(tmp_path / "later")
    put(tmp_path / "link", b"three")
    assert (tmp_path / "later").read_bytes() == b"three"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_save_that_is_killed_anywhere_leaves_the_old_file_or_the_new_one(tmp_path: Path, reliability: Any):
    command = [sys.executable, "-m", "tests.io.killed", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    reliability("saves that were killed before a line of ours", int(done.stdout))


def test_saves_at_once_do_not_clear_each_others_temporaries(tmp_path: Path):
    path = tmp_path / "file"
    with replacing(path) as outer:
        outer.write(b"outer")
        put(path, b"inner")
        assert path.read_bytes() == b"inner"
    assert path.read_bytes() == b"outer"
    contents = [bytes([number]) * 100_000 for number in range(4)]

    def many(content: bytes) -> None:
        for _ in range(25):
            put(path, content)

    threads = [threading.Thread(target=many, args=[content]) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_that_vanished_before_it_was_locked_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lock, begun = files._lock, []

    def late(file: Any) -> bool | None:
        if not begun:
            os.unlink(file.name)  # another process took it for a leftover
        begun.append(file.name)
        return lock(file)

    monkeypatch.setattr(files, "_lock", late)
    put(tmp_path / "file", b"x")
    assert len(begun) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_removes_a_temporary_late_removes_no_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another process takes it for a leftover, locks it, and comes to delete its name only when this one has begun again."""
    lock, begun = files._lock, []

    def late(file: Any) -> bool | None:
        begun.append(file.name)
        return lock(file) if len(begun) > 1 else False

    monkeypatch.setattr(files, "_lock", late)
    with replacing(tmp_path / "file") as file:
        file.write(b"x")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(begun[0])
    assert (tmp_path / "file").read_bytes() == b"x"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_others_files_are_no_leftovers(tmp_path: Path):
    names = ["file.0123456789abcdef.tmp.old", "file.0123456789ABCDEF.tmp", "file.tmp", "xfile.0123456789abcdef.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "file.0123456789abcdef.tmp").write_bytes(b"")
    put(tmp_path / "file", b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "file"])


def test_where_there_are_no_locks_only_old_temporaries_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "fcntl", None)
    young, old = (tmp_path / f"file.{digit * 16}.tmp" for digit in "01")
    for leftover in (young, old):
        leftover.write_bytes(b"")
    os.utime(old, (0, 0))
    put(tmp_path / "file", b"x")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file", young]


@contextlib.contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """As on a full disk: what is written beyond ``size`` bytes fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, reliability: Any):
    path, state = tmp_path / "model", {"w": tm.ones(3000), "b": tm.ones(3000, dtype=tm.float16)}
    tm.save(state, path)
    before = path.read_bytes()
    sizes = range(0, len(before), 97)
    for size in sizes:
        with files_end_at(size), pytest.raises(OSError, match="File too large"):
            tm.save({"w": tm.zeros(3000), "b": tm.zeros(3000, dtype=tm.float16)}, path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]
    reliability("saves onto a disk that is full", len(sizes))


def test_a_raw_file_object_gets_every_byte():
    """An unbuffered file may take a part of what it is given (Linux: 2 GiB at most)."""
    taken = bytearray()

    class Slow(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            taken.extend(memoryview(data)[:1000])
            return min(len(data), 1000)

    state, whole = {"w": tm.arange(5000)}, io.BytesIO()
    tm.save(state, whole)
    raw = Slow()
    tm.save(state, raw)
    assert bytes(taken) == whole.getvalue()
    assert not raw.closed
