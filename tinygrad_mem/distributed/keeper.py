"""The process between ``mpiexec`` and one rank of ``launch``. It is run as a file, and imports the standard library alone.

MPI's launchers end all ranks as soon as one process fails, before it is known which one, or why. The keeper is
that process: it starts the rank as a child, records how it ends, and stays until ``launch`` releases all of them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

FOLDER = "TINYGRAD_MEM_LAUNCH"
"""The variable that tells a rank the folder of its launch's named pipes."""
_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")  # of MPICH, of Open MPI, of launchers with PMIx
_TURN = 0.02  # seconds between two looks
_PATIENCE = 2.0  # seconds that a rank has for its end when it is asked to
_PR_SET_PDEATHSIG = 1


def note(rank: int, what: str, number: int = 0) -> None:
    """Tell ``launch`` that this rank ``started`` (process), ``fails``, ``ended`` (status) or was ``killed`` (signal).

    Notes arrive in the order in which they were written. Without ``launch`` nothing happens.
    """
    if FOLDER in os.environ:
        with suppress(OSError):  # launch is gone
            pipe = os.open(f"{os.environ[FOLDER]}/notes", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, f"{rank} {what} {number}\n".encode())
            os.close(pipe)


def _ends_with_keeper() -> None:
    """In the child: if the keeper is killed, so is the rank."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _held(lifeline: int) -> bool:
    """True as long as ``launch`` is there and holds its end of the pipe."""
    try:
        return os.read(lifeline, 1) != b""
    except BlockingIOError:
        return True


def _end(child: subprocess.Popen) -> None:
    """End a rank and the processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_PATIENCE)


def main(*command: str) -> None:
    """Run ``command`` as the rank that MPI's launcher tells."""
    folder, rank = os.environ[FOLDER], next(int(os.environ[name]) for name in _RANK if name in os.environ)
    lifeline = os.open(f"{folder}/lifeline", os.O_RDONLY | os.O_NONBLOCK)
    with open(f"{folder}/{rank}.out", "wb") as out, open(f"{folder}/{rank}.err", "wb") as err:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            close_fds=False,  # MPI has a socket among them
            start_new_session=True, preexec_fn=_ends_with_keeper,
        )  # fmt: skip
    note(rank, "started", child.pid)
    reported = False
    while _held(lifeline):
        if not reported and child.poll() is not None:
            reported = True
            note(rank, "ended" if child.returncode >= 0 else "killed", abs(child.returncode))
        time.sleep(_TURN)
    _end(child)


if __name__ == "__main__":
    main(*sys.argv[1:])
