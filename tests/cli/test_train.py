"""The main job, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def train(*options: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tinygrad_mem", "train", *options]
    environment = {**os.environ, "COLUMNS": "200", "TERM": "dumb"}  # messages on one line
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, env=environment)


def test_the_main_job_reaches_97_percent(tmp_path):
    done = train("--picture", str(tmp_path / "step.png"))
    assert done.returncode == 0, done.stderr
    found = re.search(r"test accuracy ([\d.]+)% after", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) >= 97.0
    assert (tmp_path / "step.png").stat().st_size > 10_000
    rows = {name: int(size.replace(",", "")) for name, size in re.findall(r"│ ([a-z ]+?) +│ +([\d,]+) │", done.stdout)}
    total = rows.pop("in use at the peak")
    assert {"parameters", "optimizer state", "activations", "inputs"} <= set(rows)
    assert sum(rows.values()) == total


def test_the_same_seed_gives_the_same_run():
    first, second = (train("--epochs", "1", "--seed", "3", "--optimizer", "sgd") for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr
    pattern = r"test accuracy [\d.]+%"
    assert re.findall(pattern, first.stdout) == re.findall(pattern, second.stdout)


def write_cifar10(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = rng.integers(0, 256, (20, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())


def test_it_reads_cifar10_from_its_own_files(tmp_path):
    write_cifar10(tmp_path)
    done = train("--data", "cifar10", "--data-dir", str(tmp_path), "--epochs", "1", "--batch-size", "16")
    assert done.returncode == 0, done.stderr
    assert "100 training images, 20 held out, [3, 32, 32] each" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "mnist"], "give their folder with --data-dir"),
        (["--data", "mnist", "--data-dir", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--batch-size", "0"], "--batch-size"),
        (["--device", "gpu"], "expected one of"),
        (["--optimizer", "lion"], "lion"),
        (["--batch-size", "100000"], "larger than"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(options: list[str], message: str):
    done = train(*options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
