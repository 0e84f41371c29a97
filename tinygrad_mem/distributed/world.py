"""All processes that ``mpiexec`` started: the transfers in progress between them, and the processes that have failed.

A rank that ends with an error tells all others. A waiting rank looks for such messages, and whether the ranks for which it
waits are still running, if they are on its machine. So every rank ends with an error that names the rank that failed.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import sys
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np

from ..errors import RankError
from ..interrupts import reentrant
from .group import Work, named
from .keeper import note
from .presence import Presence

LONGEST = 2048
"""The most bytes of a header, and of what a rank says of its end."""
_GREETING = 31_999  # the tag of the first message, which is sent before there is a communicator of ours
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")  # variables in which launchers tell how many ranks they started
_LOOK = 0.05  # seconds between two looks at the other ranks
_FAILS, _ENDED = 0, 1  # tags of the channel: a rank fails; it is at the end of its program
_NOTHING = np.empty(0, np.uint8)
_FILE = "tinygrad_mem-{:x}"
_CERTAIN = 20  # looks after which nothing more comes from a rank that is at the end of its program
_PATIENCE = 50  # turns without a pause: most collectives are over by then


def mpi() -> Any:
    """The module ``mpi4py.MPI``. We end MPI ourselves: after an error no rank may wait for the others."""
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI


class PendingWork(Work):
    """Work that is advanced by turns: each step of ``steps`` yields the ranks that it waits for."""

    def __init__(self, world: World, steps: Iterator[list[int]], what: str, timeout: float, arrays: tuple) -> None:
        super().__init__(*arrays)
        self._world, self._steps, self.what, self._timeout = world, steps, what, timeout
        self.waits_for: list[int] = []
        self.looks = 0  # while it waits for a rank that is at the end of its program
        self.done, self.error = False, None

    def advance(self) -> None:
        """Go as far as possible without waiting."""
        try:
            self.waits_for = next(self._steps)
        except StopIteration:
            self.done = True
        except Exception as error:
            self.done, self.error = True, error.with_traceback(None)  # its frames would keep alive whatever waits here

    def is_completed(self) -> bool:
        self._world.advance()
        return self.done

    def wait(self, timeout: Any = None) -> bool:
        self._world.wait(self, timeout.total_seconds() if isinstance(timeout, timedelta) else self._timeout)
        self._arrays = ()
        if self.error is not None:
            raise self.error
        return True


class World:
    """The processes of the program, and the channel on which they say that they fail."""

    _only: World | None = None

    def __init__(self, timeout: float) -> None:
        self._pending: list[PendingWork] = []
        self._lock = reentrant()
        self._failed: RankError | None = None
        self._ending = self._at_end = False
        self._ended: set[int] = set()  # ranks that have said that they are at the end of their program
        self.group: Any = None  # the group of all: ``mpi.world_group``
        self.comm = mpi().COMM_WORLD
        self.rank = self.comm.rank
        started = next((int(os.environ[name]) for name in _SIZES if name in os.environ), self.comm.size)
        if started != self.comm.size:
            raise RankError(
                f"init_process_group: mpiexec started {started} ranks, and mpi4py finds {self.comm.size}: they belong to "
                f"different MPIs. mpi4py uses {mpi().Get_library_version().splitlines()[0].strip()}: start the ranks with the "
                "mpiexec of that one"
            )
        self._channel: Any = None
        self._greet(timeout)
        self._channel = self.comm.Dup()
        self._hook, sys.excepthook = sys.excepthook, self._uncaught
        atexit.register(self._end)

    @classmethod
    def here(cls, timeout: float) -> World:
        """The one object of this process."""
        if cls._only is None:
            cls._only = cls(timeout)
        return cls._only

    def _greet(self, timeout: float) -> None:
        """Learn the machine, the process and the file of each rank. From then on the ranks of a machine see each other."""
        mine = zlib.crc32(socket.gethostname().encode()), os.getpid(), secrets.randbits(63)
        self._presence = Presence(_FILE.format(mine[2]))
        self._places = self._exchanged(mine, timeout)
        for rank, (host, _, number) in enumerate(self._places):
            if rank != self.rank and host == mine[0]:
                self._presence.watch(rank, _FILE.format(number))
        self._exchanged(mine, timeout)  # all have opened the files
        self._presence.hide()

    def _exchanged(self, mine: tuple[int, ...], timeout: float) -> np.ndarray:
        """A row of numbers from each rank. Here no call of MPI may wait for a rank: errors are not checked yet."""
        others = [i for i in range(self.comm.size) if i != self.rank]
        places = np.zeros((self.comm.size, len(mine)), np.int64)
        places[self.rank] = mine
        requests = [self.comm.Irecv(places[i], i, _GREETING) for i in others]
        requests += [self.comm.Isend(places[self.rank], i, _GREETING) for i in others]

        def steps() -> Iterator[list[int]]:
            while waiting := [i for i, request in zip(others, requests, strict=False) if not request.Test()]:
                yield waiting
            mpi().Request.Waitall(requests)

        self.add(PendingWork(self, steps(), "init_process_group", timeout, ())).wait()
        return places

    # --- work under way

    def add(self, work: PendingWork) -> PendingWork:
        """Begin ``work``."""
        if self._failed is not None:
            raise self._failed
        with self._lock:
            self._pending.append(work)
        self.advance()
        return work

    def advance(self) -> None:
        """Advance all work by a turn, in the order in which it began."""
        with self._lock:
            for work in self._pending:
                work.advance()
            self._pending = [work for work in self._pending if not work.done]

    def wait(self, work: PendingWork, timeout: float) -> None:
        """Advance all work until ``work`` is done."""
        began, turns = time.monotonic(), 0
        looked = began
        while not work.done:
            self.advance()
            if work.done:
                return
            turns += 1
            if turns < _PATIENCE:
                time.sleep(0)  # other processes may need this core
                continue
            time.sleep(min(1e-3, 1e-6 * turns))
            now = time.monotonic()
            if now - looked > _LOOK:
                looked = now
                self._look(work)
            if now - began > timeout:
                self._fail(
                    f"rank {self.rank} has waited {timeout:g} seconds for {named(work.waits_for)} in {work.what}. "
                    f"{self._presence_text(work.waits_for)}If that is not enough, give init_process_group a longer timeout",
                    work.waits_for[0] if len(work.waits_for) == 1 else None,
                )

    # --- failures

    def _fail(self, why: str, rank: int | None) -> NoReturn:
        """Raise, now and whenever this process begins other work: another rank failed."""
        self._failed = RankError(why, rank)
        raise self._failed

    def _look(self, work: PendingWork) -> None:
        """Raise if another rank has said that it fails, or if its process is gone."""
        MPI, status = mpi(), mpi().Status()
        if self._channel is not None and self._channel.Iprobe(MPI.ANY_SOURCE, _FAILS, status):
            said = np.empty(LONGEST, np.uint8)
            self._channel.Recv(said, status.Get_source(), _FAILS, status)
            text, rank = bytes(said[: status.Get_count(MPI.BYTE)]).decode(errors="replace"), status.Get_source()
            self._fail(f"rank {rank} failed while rank {self.rank} waited in {work.what}: {text}", rank)
        self._look_for_ends(work)
        for rank in list(work.waits_for):
            if self._presence.sees(rank) is False and not work.done:
                self.advance()  # the messages that it sent before it ended may be enough
                if work.done or rank not in work.waits_for:
                    continue
                self._fail(
                    f"rank {rank} (process {self._places[rank, 1]}) is gone: it was killed, or ended without a word, while "
                    f"rank {self.rank} waited in {work.what}",
                    rank,
                )

    def _presence_text(self, ranks: list[int]) -> str:
        """A sentence that says which of these ranks still run, and of which this is unknown."""
        others = [rank for rank in ranks if rank != self.rank]
        there = [rank for rank in others if self._presence.sees(rank)]
        unseen = [rank for rank in others if self._presence.sees(rank) is None]
        said = f"The process of {named(there)} is there. " if there else ""
        return said + (f"From here it cannot be seen whether {named(unseen)} lives. " if unseen else "")

    def _look_for_ends(self, work: PendingWork) -> None:
        """Raise if a rank for which we wait is at the end of its program. (A collective of all ranks finds that itself.)"""
        MPI, status = mpi(), mpi().Status()
        while self._channel is not None and self._channel.Iprobe(MPI.ANY_SOURCE, _ENDED, status):
            self._channel.Recv(_NOTHING, status.Get_source(), _ENDED)
            self._ended.add(status.Get_source())
        ended = [rank for rank in work.waits_for if rank in self._ended]
        work.looks = work.looks + 1 if ended else 0
        if work.looks > _CERTAIN and not self._at_end:
            self._fail(
                f"{named(ended)} ended while rank {self.rank} waited in {work.what}. All ranks of a group must call the same "
                "collectives in the same order",
                ended[0],
            )

    def tell(self, why: str) -> None:
        """Say to all others that this rank ends with an error. It is said once."""
        if self._ending:
            return
        self._ending = True
        text = np.frombuffer(why.encode()[:LONGEST], np.uint8)
        for rank in range(self.comm.size):
            if rank != self.rank:
                self._channel.Isend(text, rank, _FAILS)

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._hook(kind, error, trace)
        note(self.rank, "fails")  # before others fail because of it
        self.tell(f"{kind.__name__}: {error}")

    def _end(self) -> None:
        """At the end of the program: end MPI when all ranks are there; after an error, end at once."""
        if not self._ending and self._failed is None:
            try:
                if self.group is not None:
                    self._at_end = True
                    for rank in range(self.comm.size) if not self._pending else ():  # work under way may still send
                        if rank != self.rank:
                            self._channel.Isend(_NOTHING, rank, _ENDED)
                    self.group.end().wait()
                mpi().Finalize()
                return
            except RankError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
