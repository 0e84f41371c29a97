"""Ctrl-C in a command, from its first import on: one line and status 130."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tinygrad_mem
from tests.cli.inside import run
from tests.cli.test_train import hears_ctrl_c
from tests.profiles import pairs

IMPORTED = ["numpy", "tinygrad_mem.nn", "rich", "tinygrad_mem.cli.app", "tinygrad_mem.cli.doctor"]
SENDS = """
import signal, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {wanted!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="its signals are other ones")
@pytest.mark.parametrize(("wanted", "started"), pairs(IMPORTED, ["-m", "script"]))
def test_while_it_imports(wanted: str, started: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sitecustomize.py").write_text(SENDS.format(wanted=wanted))
    script = tmp_path / "bin" / "tinygrad_mem"
    script.parent.mkdir()
    script.write_text("from tinygrad_mem.cli import main\nmain()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(tinygrad_mem.__file__).parents[1]}")
    command = ["-m", "tinygrad_mem"] if started == "-m" else [str(script)]
    done = subprocess.run(
        [sys.executable, *command, "doctor"], capture_output=True, text=True, timeout=120, preexec_fn=hears_ctrl_c, cwd=tmp_path
    )
    said = "doctor" if wanted.endswith("doctor") else "tinygrad_mem"
    assert (done.returncode, done.stderr, done.stdout) == (130, f"{said}: interrupted\n", "")


def test_while_it_works(monkeypatch: pytest.MonkeyPatch):
    def interrupted(**options: object) -> None:
        raise KeyboardInterrupt

    from tinygrad_mem.cli import doctor

    monkeypatch.setattr(doctor, "run", interrupted)
    done = run("doctor")
    assert (done.returncode, done.stderr) == (130, "doctor: interrupted\n")


def test_another_program_keeps_its_own_end():
    code = "import sys; import tinygrad_mem; assert sys.excepthook is sys.__excepthook__"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
