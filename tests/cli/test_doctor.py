"""``python -m tinygrad_mem doctor``: it says what there is, what is missing, and what to do; numbers are measured."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

import tinygrad_mem as tm
from tinygrad_mem.cli import checks, doctor
from tinygrad_mem.cli.app import app
from tinygrad_mem.cli.calls import CALLS
from tinygrad_mem.cli.checks import Check

PROJECT = Path(tm.__file__).parents[1] / "pyproject.toml"


def run(
    monkeypatch: pytest.MonkeyPatch, rates: dict[str, float] | None = None, found: tuple[Check, ...] = (), columns: int = 100
):
    """The command, with measurements and results of checks as given: ``test_checks.py`` is about the checks themselves."""
    monkeypatch.setattr(doctor, "blas_rates", lambda: rates if rates is not None else {"": 100.0, "ZEN": 105.0})
    monkeypatch.setattr(checks, "run", lambda device: iter(found))
    return CliRunner().invoke(app, ["doctor"], env={"COLUMNS": str(columns)})


def test_it_names_versions_devices_pools_and_libraries(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYGRAD_MEM_CACHE", "here")
    x = tm.empty(3 << 20, dtype=tm.uint8)
    ran = run(monkeypatch)
    assert ran.exit_code == 0, ran.output
    for words in (
        tm.__version__,
        "openblas",
        "OpenBLAS's choice",
        "cpu",
        "meta",
        "TINYGRAD_MEM_CACHE",
        "here: folder of the",
        "safetensors",
    ):
        assert words in ran.stdout
    row = next(line for line in ran.stdout.splitlines() if line.startswith("│ cpu ") and "ready" in line)
    assert doctor.bytes_text(x.device.pool.used_bytes()) in row
    assert ("so the cpu alone is checked." in ran.stdout) != tm.cuda.is_available()
    assert ("checks of cuda:0" in ran.stdout) == tm.cuda.is_available()


@pytest.mark.parametrize("columns", [60, 80])
def test_what_is_copied_stands_on_one_line(monkeypatch: pytest.MonkeyPatch, columns: int):
    """Commands and problems, on a narrow terminal too; nothing else is wider than it, but for the names of libraries."""
    true, problem = doctor._version, f"conv2d, float16: the result is off by 3e-01 of its largest; {'x' * 70}"
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "checkpoint-schedules" else true(name))
    ran = run(monkeypatch, found=(Check("results", 2, "calls", [problem], 0.1),), columns=columns)
    lines = ran.stdout.splitlines()
    assert "test: pip install 'checkpoint-schedules>=1.0.4'" in lines
    assert problem in lines
    if not tm.cuda.is_available():
        assert any(line.startswith("cuda: ") and line.endswith("so the cpu alone is checked.") for line in lines)
    assert max(len(line) for line in lines if line.startswith(("│", "┃"))) <= columns
    if columns == 80:
        rows = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
        assert all(row[0].strip() for row in rows), "a row has a second line"


def test_what_is_wrong_is_reported_with_its_number(monkeypatch: pytest.MonkeyPatch):
    wrong = Check("results", 114, "calls", ["silu, float32: the result is off", "gelu, float32: KeyError: 'X'"], 1.25)
    fine = Check("offload", 1, "run", [], 0.5)
    ran = run(monkeypatch, found=(wrong, fine))
    assert ran.exit_code == 1
    row = next(line for line in ran.stdout.splitlines() if line.startswith("│ results"))
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["results", "114 calls", "2", "1.2"]
    for words in (*wrong.problems, "2 wrong on cpu: please report it, with all that is printed here."):
        assert words in ran.stdout.splitlines()
    healthy = run(monkeypatch, found=(fine,))
    assert (healthy.exit_code, "Nothing is wrong." in healthy.stdout) == (0, True)


def test_json_has_what_is_printed(monkeypatch: pytest.MonkeyPatch):
    wrong = Check("results", 114, "calls", ["silu, float32: the result is off"], 1.25)
    monkeypatch.setattr(doctor, "blas_rates", lambda: {"": 100.0, "ZEN": 150.0})
    monkeypatch.setattr(checks, "run", lambda device: iter((wrong,)))
    ran = CliRunner().invoke(app, ["doctor", "--json"])
    assert ran.exit_code == 1
    found = json.loads(ran.stdout)
    assert found["machine"]["tinygrad_mem"] == tm.__version__
    assert found["gflops"] == {"OpenBLAS's choice": 100.0, "ZEN": 150.0}
    assert found["advice"].startswith("OPENBLAS_CORETYPE=ZEN")
    assert found["checks"]["cpu"] == [
        {"name": "results", "tried": 114, "what": "calls", "problems": wrong.problems, "seconds": 1.25}
    ]
    assert {each["needs"] for each in found["libraries"]} == {need.wanted for need in doctor.needs()}
    assert (found["cuda"] is None) == tm.cuda.is_available()


@pytest.mark.cuda
def test_a_report_names_the_gpu_and_its_versions(monkeypatch: pytest.MonkeyPatch):
    import cupy

    ran = run(monkeypatch)
    for words in (cupy.__version__, tm.cuda.get_device_name(), "driver ", "runtime ", "compute capability"):
        assert words in ran.stdout


def test_a_checkout_that_is_not_installed_is_checked_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "PACKAGE", "tinygrad_mem_of_nobody")
    ran = run(monkeypatch)
    assert ran.exit_code == 0, ran.output
    assert "This checkout is not installed, so its extras are not known: pip install -e ." in ran.stdout


def test_every_extra_of_the_project_is_looked_at():
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    asked = {Requirement(line).name for lines in extras.values() for line in lines} - {"tinygrad_mem"}
    found = {need.asked.name: need for need in doctor.needs()}
    assert set(found) == asked
    for name, need in found.items():
        assert any(Requirement(line).name == name for line in extras[need.extra]), f"{name} is not in [{need.extra}] itself"
    assert found["rich"].found == importlib.metadata.version("rich")
    assert not found["rich"].problem


def test_what_is_missing_or_old_comes_with_a_command(monkeypatch: pytest.MonkeyPatch):
    versions = {"safetensors": None, "matplotlib": "1.0"}
    true = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: versions[name] if name in versions else true(name))
    ran = run(monkeypatch)
    assert "pip install 'safetensors>=0.5'" in ran.stdout
    assert "pip install -U 'matplotlib>=3.9'" in ran.stdout
    assert ran.exit_code == 1, "an old library is a fault; one that is missing is a choice"
    versions.pop("matplotlib")
    assert run(monkeypatch).exit_code == 0


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ({"": 100.0, "ZEN": 105.0}, "No other kernels"),
        ({"": 100.0, "HASWELL": 90.0, "ZEN": 150.0}, "OPENBLAS_CORETYPE=ZEN, set before Python starts, is 1.50 times"),
        ({}, "No other kernels"),
    ],
)
def test_advice_follows_the_measurement(monkeypatch: pytest.MonkeyPatch, rates: dict[str, float], words: str):
    assert words in run(monkeypatch, rates).stdout


def test_kernels_are_measured_and_only_those_that_the_cpu_can_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "ROUNDS", 1)
    monkeypatch.setattr(doctor, "CORE_TYPES", {"HASWELL": ("AVX2",), "NONE": ("an instruction of 2050",)})
    rates = doctor.blas_rates()
    assert set(rates) <= {"", "HASWELL"}
    assert all(1 < rate < 1e5 for rate in rates.values())


@pytest.mark.cuda
def test_a_wheel_checks_a_gpu_from_any_folder(emulated: object, tmp_path: Path):
    """What a wheel has, in a folder of its own: the checkout, its other tests and its documents are not there."""
    shutil.copytree(PROJECT.parent / "tinygrad_mem", tmp_path / "tinygrad_mem")  # with what Python has compiled
    for folder in ("tinygrad_mem-0.dist-info", "tests", "elsewhere"):
        (tmp_path / folder).mkdir()
    metadata = importlib.metadata.distribution("tinygrad_mem").read_text("METADATA")
    (tmp_path / "tinygrad_mem-0.dist-info" / "METADATA").write_text(metadata or "")
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "emulated").symlink_to(PROJECT.parent / "tests" / "emulated")
    (tmp_path / "run.py").write_text("from tinygrad_mem.cli import doctor, main\ndoctor.ROUNDS = 0\nmain()\n")  # no rates
    command = [sys.executable, "-m", "tests.emulated", str(tmp_path / "run.py"), "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    ran = subprocess.run(command, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for words in ("checks of cpu", "checks of cuda:0", "emulated GPU", "CUDA", f"{len(CALLS) * len(checks.ALLOWED)} calls"):
        assert words in ran.stdout
    assert ran.stdout.splitlines().count("Nothing is wrong.") == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []
