"""Run a program of this folder on several ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.profiles import every, some

RANKS = some([2, 4], [4])
"""How many ranks a program runs on. Four stand for two, but in a thorough run."""
BESIDE_TORCH = some([2, 4], [2])
"""The same for programs in which each rank imports PyTorch, which takes longer than all else there."""
PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TINYGRAD_MEM_THREADS": "1",
    "PYTHONUNBUFFERED": "",
    "THOROUGH_PROGRAMS": "1" if every(2) == 1 else "",
    "PYTHONPATH": str(ROOT),
}


def mpiexec() -> str | None:
    """The launcher of the installed wheel, else that of the machine."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@cache
def why_not() -> str:
    """Why no ranks can be started here; "" if they can."""
    found = mpiexec()
    if found is None:
        return "there is no mpiexec: pip install mpi4py mpich"
    try:
        said = subprocess.run(
            [found, "-n", "2", sys.executable, "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mpiexec does not start here: {error}"
    return "" if "".join(said.stdout.split()) == "22" else f"mpiexec does not start here: {(said.stderr or said.stdout)[:200]}"


def run(
    ranks: int, program: str, *args: str, timeout: float = 120, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess:
    """What ``programs/PROGRAM.py`` prints and how it ends, on so many ranks."""
    if why_not():
        pytest.skip(why_not())
    command = [str(mpiexec()), *options, "-n", str(ranks), sys.executable, str(PROGRAMS / f"{program}.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=os.environ | ENVIRONMENT)


def passes(ranks: int, program: str, *args: str, **more) -> str:
    """Run it; it must end well. Returns what it printed."""
    done = run(ranks, program, *args, **more)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    return done.stdout


def launch(ranks: int, program: str, *args: str, grace: float = 60) -> subprocess.Popen:
    """Begin ``python -m tinygrad_mem launch`` of ``programs/PROGRAM.py``. The grace is long: other programs may be busy."""
    if why_not():
        pytest.skip(why_not())
    command = [sys.executable, "-m", "tinygrad_mem", "launch", "-n", str(ranks), "--grace", str(grace)]
    command += [str(PROGRAMS / f"{program}.py"), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT)


def launched(ranks: int, program: str, *args: str, **more) -> tuple[int, str, str]:
    """The exit status of such a launch, and what it printed to both streams."""
    with launch(ranks, program, *args, **more) as process:
        try:
            said, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    return process.returncode, said, errors
