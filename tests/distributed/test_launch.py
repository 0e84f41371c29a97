"""``python -m tinygrad_mem launch``: output by rank, how ranks fail, and that nothing is left of them."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.distributed.ranks import ENVIRONMENT, PROGRAMS, launch, launched, why_not
from tests.profiles import pairs
from tinygrad_mem.cli.app import app
from tinygrad_mem.distributed import launch as launching
from tinygrad_mem.distributed.presence import Presence

HOW = {  # what a rank does -> what the others say of it; R is its rank
    "raises": r"rank R failed while rank \d waited in all_reduce.*: ValueError: my batch is broken",
    "memory": r"rank R failed while rank \d waited in all_reduce.*: OutOfMemoryError: out of memory on cpu: asked for 4",
    "other": r"ranks do not do the same: .*rank R: barrier",
    "shape": r"ranks do not do the same: .*rank R: all_reduce\(sum\) of float32 \[5\]",
    "dtype": r"ranks do not do the same: .*rank R: all_reduce\(sum\) of float64 \[3\]",
    "early": r"rank R ended while rank \d waited in all_reduce",
    "early, of all": r"ranks do not do the same: .*rank R: the end of the program",
    "killed": r"rank R \(process \d+\) is gone: it was killed, or ended without a word",
    "silent": r"rank R \(process \d+\) is gone: it was killed, or ended without a word",
    "late": r"rank \d has waited 3 seconds for rank R in all_reduce.*\. The process of rank R is there\. If that",
    "late, elsewhere": r"rank \d has waited 3 seconds for rank R in all_reduce.* it cannot be seen whether rank R lives\.",
}


def gone(pid: int) -> bool:
    """True if there is no such process, or if it has ended and nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def processes(said: str) -> list[int]:
    return [int(each) for each in re.findall(r"process (\d+)", said)]


def numbers(what: str, said: str) -> list[float]:
    return [float(each) for each in re.findall(rf"{what} ([\d.e-]+)", said)]


def all_gone(pids: list[int]) -> bool:
    """Whether they end; the limit ends what hangs."""
    began = time.monotonic()
    while not all(map(gone, pids)) and time.monotonic() - began < 60:
        time.sleep(0.05)
    return all(map(gone, pids))


def lines_of(rank: int, text: str) -> str:
    return "\n".join(line.removeprefix(f"[{rank}] ") for line in text.splitlines() if line.startswith(f"[{rank}] "))


@pytest.fixture
def launch_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """As ``launched``, with the launcher in this process, whose start would take a third of the time."""

    def start(ranks: int, program: str, *args: str, grace: float = 60) -> tuple[int, str, str]:
        if why_not():
            pytest.skip(why_not())
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        status = launching.launch(ranks, [sys.executable, str(PROGRAMS / f"{program}.py"), *args], grace)
        return status, *capfd.readouterr()

    return start


@pytest.mark.parametrize(("how", "ranks"), pairs(list(HOW), [2, 3]))
def test_each_rank_ends_with_an_error_that_names_the_one_to_blame(how: str, ranks: int, launch_here: Callable):
    late = how.startswith("late")
    status, said, errors = launch_here(ranks, "sturdy", how, grace=2 if late else 60)
    took, bad = time.monotonic() - numbers("fails at", said)[0], ranks // 2
    busy = 100 * max(numbers("a round takes", said))  # a round takes milliseconds, but on a machine that does much else
    assert took < max(10, busy) + 3 * late, "all ranks have ended in time"
    assert status == (128 + signal.SIGKILL if how == "killed" else 1), errors
    for rank in range(ranks):
        if rank != bad:
            assert re.search(f"RankError: .*{HOW[how].replace('R', str(bad))}", lines_of(rank, errors)), (rank, errors)
    if how == "killed":
        assert f"launch: rank {bad} was killed by SIGKILL; the system does that to a process when memory runs out" in errors
        assert "failed first" not in errors
    else:
        (first,) = re.findall(r"launch: rank (\d) failed first\. Its error:", errors)
        assert int(first) == bad or how not in ("raises", "memory")
        again = errors.partition("Its error:\n")[2]
        assert f"[{first}] Traceback (most recent call last):" in again
        assert f"rank {bad}" in again or how in ("raises", "memory")
    assert (f"launch: rank {bad} did not end within 2 seconds, and was ended" in errors) == late
    assert len(processes(said)) == ranks
    assert all_gone(processes(said))


@pytest.mark.parametrize(("error", "first"), [("tinygrad_mem.errors.RankError: rank 1 is gone", 1), ("ValueError: mine", 2)])
def test_who_saw_that_a_rank_was_killed_did_not_fail_first(
    error: str, first: int, tmp_path: Path, capfd: pytest.CaptureFixture
):
    ranks = launching._Launch(tmp_path, 3, 5)
    for line in ("2 fails 1", "1 killed 9", "2 ended 1"):
        ranks._handle("notes", line.encode())
    ranks._handle("2.err", f"{error}\n".encode())
    assert ranks._verdict(0) == {1: 137, 2: 1}[first]
    assert ("rank 2 failed first" in capfd.readouterr().err) == (first == 2)


def test_a_process_that_has_ended_is_seen_before_anybody_asks_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While it lives, it is seen; its children are not taken for it; what cannot be seen is not guessed."""
    monkeypatch.setattr("tinygrad_mem.distributed.presence.gettempdir", lambda: str(tmp_path))
    program = f"""if True:
        import os, sys, time
        from tinygrad_mem.distributed import presence
        presence.gettempdir = lambda: {str(tmp_path)!r}
        mine = presence.Presence("theirs")
        print("locked", flush=True)
        sys.stdin.readline()
        mine.hide()
        if os.fork() == 0:
            time.sleep(60)
        print("hidden", flush=True)
        time.sleep(60)
        """
    ours = Presence("ours")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        env=os.environ | ENVIRONMENT, start_new_session=True,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "locked\n"
            ours.watch(1, "theirs")
            ours.watch(2, "nobody's")
            child.stdin.write("\n")
            assert child.stdout.readline() == "hidden\n"
            assert [path.name for path in tmp_path.iterdir()] == ["ours"]
            assert [ours.sees(rank) for rank in (0, 1, 2)] == [None, True, None]
            os.kill(child.pid, signal.SIGKILL)
            while not gone(child.pid):
                time.sleep(0.01)
            os.kill(child.pid, 0)  # it can still be signalled
            assert ours.sees(1) is False
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_ranks_that_end_well_end_well(launch_here: Callable):
    status, said, errors = launch_here(3, "sturdy", "fine")
    assert (status, errors) == (0, "")
    assert sorted(line for line in said.splitlines() if "end" in line) == [f"[{rank}] the end" for rank in range(3)]


def test_each_line_is_whole_and_begins_with_its_rank():
    status, said, errors = launched(3, "plain", "prints", "-n", "--ranks", "two words")
    assert status == 0
    for rank in range(3):
        assert lines_of(rank, said).split("\n") == [str(rank) * 4000] * 200 + ["é \x1b['-n', '--ranks', 'two words']"]
    assert sorted(errors.splitlines()) == [f"[{rank}] no end" for rank in range(3)]


def test_the_status_is_that_of_the_rank_that_failed():
    status, _, errors = launched(2, "plain", "ends")
    assert status == 7
    assert errors == "[1] I end\nlaunch: rank 1 failed first. Its error:\n[1] I end\n"


def test_a_rank_that_fails_before_it_joins_ends_all(launch_here: Callable):
    status, said, errors = launch_here(2, "plain", "before", grace=1)
    assert status == 1
    assert "launch: rank 1 failed first" in errors
    assert errors.rstrip().endswith("launch: rank 0 did not end within 1 seconds, and was ended")
    assert "[1] ValueError: before it joins" in errors
    assert all_gone(processes(said))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_all_ranks_and_what_they_started(number: signal.Signals):
    with launch(2, "plain", "sleeps") as process:
        assert process.stdout is not None
        pids = processes("".join(process.stdout.readline() for _ in range(4)))
        assert len(pids) == 4
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert all_gone(pids)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert errors == f"launch: {number.name}: all ranks were ended\n"


def test_the_end_of_the_launcher_ends_all():
    with launch(2, "plain", "sleeps") as process:
        assert process.stdout is not None
        pids = processes("".join(process.stdout.readline() for _ in range(4)))
        (mpiexec,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(mpiexec), signal.SIGKILL)
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "launch: mpiexec ended with status -9 before the ranks did, and all were ended" in errors
    assert all_gone(pids)


def test_a_launcher_that_does_not_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    broken = tmp_path / "mpiexec"
    broken.write_text("#!/bin/sh\necho no slots for you\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(launching, "launcher", lambda: str(broken))
    assert launching.launch(2, [sys.executable, "-c", ""]) == 3
    assert capfd.readouterr().err == (
        "launch: mpiexec ended with status 3, and ranks 0, 1 had not started\nno slots for you\n"
        "Check that it runs: mpiexec -n 2 hostname\n"
    )


def test_what_is_missing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="launch: expected one rank or more, found 0"):
        launching.launch(0, ["true"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotImplementedError, match=r"there is no mpiexec, the launcher of MPI: pip install mpich"):
        launching.launcher()
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ModuleNotFoundError, match="python -m tinygrad_mem launch needs mpi4py"):
        launching.launcher()


@pytest.mark.parametrize(
    ("script", "said"), [("nowhere.py", "there is no file nowhere.py"), (".", ". is a folder: name a Python file in it")]
)
def test_a_script_that_is_not_there_is_reported(script: str, said: str):
    done = CliRunner().invoke(app, ["launch", "-n", "2", script])
    assert (done.exit_code, done.stderr) == (2, f"launch: {said}\n")


def test_ranks_of_another_mpi_are_reported():
    """Started by one MPI's launcher, a library of another finds one rank."""
    command = [sys.executable, str(PROGRAMS / "sturdy.py"), "fine"]
    told = os.environ | ENVIRONMENT | {"OMPI_COMM_WORLD_SIZE": "4"}
    done = subprocess.run(command, capture_output=True, text=True, env=told, timeout=120)
    assert done.returncode == 1
    assert "mpiexec started 4 ranks, and mpi4py finds 1: they belong to different MPIs. mpi4py uses " in done.stderr
