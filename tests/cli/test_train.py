"""The main job, as a user runs it."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tinygrad_mem as tm
from tests.cli import inside
from tests.profiles import some
from tinygrad_mem import memory
from tinygrad_mem.cli import train as job
from tinygrad_mem.cli.app import app
from tinygrad_mem.cli.networks import OPTIMIZERS
from tinygrad_mem.models.digits import DigitsCNN


def train(*options: str) -> subprocess.CompletedProcess:
    return inside.run("train", *options, columns=200)  # messages on one line


def test_the_main_job_reaches_97_percent(tmp_path):
    """On a terminal of 60 columns, which it fits."""
    code, shown, errors = on_a_terminal(60, "--picture", str(tmp_path / "step.png"))
    assert code == 0, errors
    assert "…" not in shown
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown).replace("\r", "\n")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 60
    assert any(re.search(r"264/264 .* loss [\d.]+  accuracy [\d.]+%", line) for line in lines)
    found = re.search(r"test accuracy ([\d.]+)% after", shown)
    assert found is not None, shown
    assert float(found[1]) >= 97.0
    assert (tmp_path / "step.png").stat().st_size > 10_000
    rows = {name: int(size.replace(",", "")) for name, size in re.findall(r"│ ([a-z ]+?) +│ +([\d,]+) │", shown)}
    total = rows.pop("in use")
    assert {"parameters", "optimizer state", "activations", "inputs"} <= set(rows)
    assert sum(rows.values()) == total


def test_the_same_seed_gives_the_same_run():
    first, second = (train("--epochs", "1", "--seed", "3", "--optimizer", "sgd") for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr
    pattern = r"accuracy [\d.]+%"
    assert re.findall(pattern, first.stdout) == re.findall(pattern, second.stdout)


@pytest.mark.parametrize("optimizer", some(list(OPTIMIZERS), ["adalomo"]))
def test_every_optimizer_learns(optimizer: str):
    """With the rate that the command has for it."""
    done = train("--epochs", "2", "--optimizer", optimizer)
    assert done.returncode == 0, done.stderr
    found = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) >= 85


def test_a_training_of_one_step_has_a_table_too():
    done = train("--batch-size", "1437", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert "│ parameters" in done.stdout


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
        (["--optimizer", "tiger"], "tiger"),
        (["--batch-size", "100000"], "larger than"),
        (["--device", "meta"], "no values"),
        (["--picture", "/nowhere/at/all/step.png"], "there is no folder /nowhere/at/all"),
        (["--picture", "/"], "is a folder"),
        (["--picture", "step.docx"], "'docx' is none of"),
        (["--picture", "step"], "has no ending"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(options: list[str], message: str):
    done = train(*options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "epoch" not in done.stdout, "it is refused before the training, not after it"


def write_mnist(folder: Path, count: int, held_out: int) -> None:
    """MNIST in its own format: the images packed, the labels plain."""
    rng = np.random.default_rng(0)
    for prefix, n in (("train", count), ("t10k", held_out)):
        for name, shape in ((f"{prefix}-images-idx3-ubyte", (n, 28, 28)), (f"{prefix}-labels-idx1-ubyte", (n,))):
            header = struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)
            values = rng.integers(0, 256, shape, dtype=np.uint8)
            data = header + (values if len(shape) > 1 else values % 10).tobytes()
            (folder / f"{name}.gz").write_bytes(gzip.compress(data)) if len(shape) > 1 else (folder / name).write_bytes(data)


def test_it_reads_mnist_from_its_own_files(tmp_path):
    write_mnist(tmp_path, 96, 16)
    options = ["--data", "mnist", "--data-dir", str(tmp_path), "--epochs", "2", "--batch-size", "32", "--optimizer", "adamw"]
    done = train(*options)
    assert done.returncode == 0, done.stderr
    assert "mnist: 96 training images, 16 held out, [1, 28, 28] each" in done.stdout


def test_a_held_out_set_without_images_is_refused(tmp_path):
    write_mnist(tmp_path, 96, 0)
    done = train("--data", "mnist", "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert "no held-out images" in done.stderr


def without_dropout(**options: int) -> DigitsCNN:
    model = DigitsCNN(**options)
    model.dropout.p = 0.0
    return model


def watched(device: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], memory.Track, str]:
    """The main job in this process: the losses of its steps, its track, and what it says."""
    losses, tracks, step, report = [], [], job.DigitsTraining.step, job._report
    tm.manual_seed(0)
    weights = without_dropout(channels=1, size=28).state_dict()  # devices draw other numbers

    def model(**options: int) -> DigitsCNN:
        made = without_dropout(**options)
        made.load_state_dict(weights)
        return made

    def seen(*args: Any) -> float:
        losses.append(step(*args))
        return losses[-1]

    with monkeypatch.context() as patch:
        patch.setattr(job.DigitsTraining, "step", seen)
        patch.setattr(job, "DigitsCNN", model)
        patch.setattr(job, "_report", lambda watch, *rest: tracks.append(watch) or report(watch, *rest))
        options = ["--data", "mnist", "--data-dir", str(folder), "--epochs", "1", "--batch-size", "8"]
        done = CliRunner().invoke(app, ["train", "--device", device, *options], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    return losses, tracks[0], done.output


def two_steps() -> None:
    """The main job's, of images that are on the device."""
    model, rule = without_dropout(channels=1, size=28), partial(job._optimizer, "adam")
    training = job.DigitsTraining(model, rule, "float32", tm.device("cuda"))
    for _ in range(job.TRACKED_STEPS):
        training.step(tm.zeros(8, 1, 28, 28), tm.zeros(8, dtype=tm.int64))


@pytest.mark.cuda
def test_on_a_gpu_it_learns_what_the_cpu_does_with_the_bytes_that_were_predicted(tmp_path, gpu_pool, monkeypatch):
    """Rounding grows: Adam divides by the size of each gradient, and makes a whole step of one that is nothing but rounding.

    Weights that differ by half an ulp move the CPU's own three losses by up to 1e-7, 1.6e-5 and 1.1e-4 of themselves.
    """
    write_mnist(tmp_path, 24, 8)
    (on_cpu, _, _), (losses, track, said) = (watched(device, tmp_path, monkeypatch) for device in ("cpu", "cuda"))
    for ours, theirs, allowed in zip(losses, on_cpu, (1e-5, 1e-4, 1e-3), strict=True):
        assert ours == pytest.approx(theirs, rel=allowed)
    assert track.peak == memory.predict(two_steps, like="cuda").peak
    assert f"{max(track.by_category().values()):,}" in said
    assert re.search(r"s on cuda:0, [\d,]+ parameters", said)


def on_a_terminal(columns: int, *options: str, interrupt: bool = False) -> tuple[int, str, str]:
    """The main job on a terminal of that width: its status, what the terminal shows, what comes on stderr."""
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "tinygrad_mem", "train", *options]
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    running = subprocess.Popen(
        command, stdout=inside, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=hears_ctrl_c
    )
    os.close(inside)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if interrupt and b"epoch   3" in shown:
            running.send_signal(signal.SIGINT)
            interrupt = False
    os.close(terminal)
    _, errors = running.communicate(timeout=60)
    return running.returncode, shown.decode(), errors


def hears_ctrl_c() -> None:
    """In a child of a run in the background, which would not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_it_quietly():
    code, shown, errors = on_a_terminal(80, "--epochs", "500", interrupt=True)
    assert code == 130
    assert "Traceback" not in errors
    assert shown.rstrip().endswith("\x1b[?25h"), "the cursor is hidden still"


def test_json_has_the_numbers_of_the_table():
    done = train("--epochs", "1", "--seed", "3", "--json")
    found, table = json.loads(done.stdout), train("--epochs", "1", "--seed", "3").stdout
    assert f"{found['accuracy']:.2%}" in table
    assert sum(found["by_category"].values()) == found["peak"]
    for size in (found["peak"], *found["by_category"].values()):
        assert f" {size:,} " in table
    assert f"({found['phase']})" in table


@pytest.mark.parametrize(
    "command",
    [
        ["tips", "--tip", "eval", "--html"],
        ["claims", "--html"],
        ["snapshot", "x", "--html"],
        ["tips", "--tip", "eval", "--picture"],
        ["train", "--picture"],
        ["plan", "lenet", "--picture"],
        ["estimate", "lenet", "--ranks", "2", "--picture"],
    ],
)
def test_a_file_that_cannot_be_written_is_found_before_the_work(command: list[str], tmp_path: Path):
    def refused(path: Path) -> str:
        done = CliRunner().invoke(app, [*command, "" if path == Path() else str(path)])
        assert done.exit_code == 2
        assert done.stdout == ""
        return done.stderr

    assert f"there is no folder {tmp_path / 'no'}" in refused(tmp_path / "no" / "x.png")
    assert "is a folder: name a file in it" in refused(tmp_path)
    if command[0] != "tips":  # its --html '' is no page
        assert f"{command[-1]} . is a folder: name a file in it" in refused(Path(""))
