"""Writing files so that no partial file is left, unpacking gzip files up to a limit, and the user's cache folder."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from .errors import FileFormatError

try:
    import fcntl
except ImportError:  # Windows, where a file that is open can be neither renamed nor deleted
    fcntl = None

T = TypeVar("T")
_LONGEST = 230  # most bytes of a name that leave room for the ending of a temporary file
_YOUNG = 60.0  # seconds: without locks, a younger temporary file may still be in use
_UNPACKED, _RATIO = 1 << 26, 100  # allowed bytes after unpacking, and as a multiple of the file's size (real files: 10)
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


def cache_folder() -> Path | None:
    """The folder of what was measured: ``TINYGRAD_MEM_CACHE`` (empty: ``None``), or the user's cache folder."""
    named = os.environ.get("TINYGRAD_MEM_CACHE")
    if named is not None:
        return Path(named) if named else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinygrad_mem"


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[IO[bytes]]:
    """A file to write, which replaces ``path`` when it is complete. If writing fails, ``path`` is unchanged.

    The new file has the permissions of the old one, and its owner if that is allowed. If ``path`` is a link, its target is
    replaced. A FIFO or a device is written in place. A process that is killed leaves a temporary file; the next call for
    ``path`` removes it.

    Raises:
        OSError: it cannot be written; the error names ``path``.
    """
    path = os.fsdecode(path)
    there = _found(path)
    if there is not None and not stat.S_ISREG(there.st_mode):
        with open(path, "wb") as file:
            yield file
        return
    target = os.path.realpath(path)
    remove_leftovers(target)
    temporary = ""
    try:
        # a new name each time: who took the file of an older name for a leftover may remove that name at any later time
        while (begun := _begin(temporary := f"{_stem(target)}.{secrets.token_hex(8)}.tmp", there)) is None:
            pass
        with begun as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                os.replace(temporary, target)  # before its lock is gone
        if fcntl is None:
            os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            error.filename, error.filename2 = path, None
        raise


def _found(path: str) -> os.stat_result | None:
    """The status of the existing file. A regular file without permission to write raises the error of ``open``."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(there.st_mode):
        with open(path, "r+b"):
            pass
    return there


def _begin(temporary: str, there: os.stat_result | None) -> IO[bytes] | None:
    """Open the temporary file, locked, with the owner and the permissions of the old file.

    Returns ``None`` if another process removed it as a leftover before it was locked.
    """
    mode = 0o666 if there is None else stat.S_IMODE(there.st_mode) & 0o777
    file = open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115 (it is returned)
    try:
        if _lock(file) is not False and os.path.exists(temporary):
            if there is not None and fcntl is not None:
                _give(file.fileno(), there, mode)
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    return None


def _give(file: int, there: os.stat_result, mode: int) -> None:
    for owner in ((-1, there.st_gid), (there.st_uid, -1)):
        with contextlib.suppress(OSError):  # only root may give files away
            os.fchown(file, *owner)
    os.fchmod(file, mode)


def _lock(file: IO[bytes]) -> bool | None:
    """Lock the file. Returns False if another process has the lock, ``None`` if this system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _stem(target: str) -> str:
    """The beginning of the names of temporary files for ``target``."""
    folder, name = os.path.split(target)
    return os.path.join(folder, name if len(os.fsencode(name)) <= _LONGEST else name[: _LONGEST // 4])


def remove_leftovers(path: str | os.PathLike) -> None:
    """Remove the temporary files that processes left which were killed while they replaced ``path``."""
    target = os.fsdecode(path)
    folder, stem = os.path.split(_stem(target))
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(stem) and _TEMPORARY.fullmatch(entry.name, len(stem)):
                with contextlib.suppress(OSError):  # it belongs to another process, or is removed already
                    _remove_leftover(entry.path)


def _remove_leftover(temporary: str) -> None:
    """Remove a temporary file unless it is being written."""
    if fcntl is None:
        if time.time() - os.stat(temporary).st_mtime > _YOUNG:
            os.unlink(temporary)
        return
    with open(temporary, "r+b") as file:
        if _lock(file):
            os.unlink(temporary)


class _Unpacking(gzip.GzipFile):
    """See :func:`unpacking`."""

    def __init__(self, file: IO[bytes], what: str, most: int) -> None:
        super().__init__(fileobj=file)
        self._what, self._most, self._seen = what, most, 0

    def read(self, size: int | None = -1) -> bytes:
        return self._counted(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._counted(super().readline(size))

    def _counted(self, piece: bytes) -> bytes:
        self._seen += len(piece)
        if self._seen > self._most:
            raise FileFormatError(f"{self._what}: unpacks to more than {self._most:,} bytes, as no file of this kind does")
        return piece


def unpacking(file: IO[bytes], what: str) -> IO[bytes]:
    """A reader of a gzip file, with ``read(size)`` and ``readline(size)``; ``what`` is the file's name, for messages.

    Raises:
        FileFormatError: it unpacks to more than a hundred times its size (and 64 MiB), as a file meant to fill the memory does.
    """
    most = max(_UNPACKED, _RATIO * os.fstat(file.fileno()).st_size)
    return _Unpacking(file, what, most)  # type: ignore[return-value]


def unpacked(file: IO[bytes], what: str, read: Callable[[IO[bytes]], T]) -> T:
    """``read`` of the file, through :func:`unpacking` if it is packed. Raises: FileFormatError: also if it is damaged."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    try:
        return read(unpacking(file, what) if packed else file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileFormatError(f"{what}: the gzip file is damaged or incomplete: {error}") from None
