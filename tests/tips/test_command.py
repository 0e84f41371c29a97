"""``python -m tinygrad_mem tips``: the table, wide and narrow, what is refused, what comes between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.cli import tips as command
from tinygrad_mem.cli.app import app
from tinygrad_mem.devices import Pool
from tinygrad_mem.tips import TIPS


@pytest.fixture(autouse=True)
def own_pool() -> Iterator[None]:
    """What other tests have left alive is no part of what is measured."""
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    yield
    cpu.pool = before


MEASURED: dict[tuple[str, str], Any] = {}


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tip is measured once for all tests of what is shown of it."""
    real = command.measure

    def measure(tip: Any, device: str) -> Any:
        if (tip.name, device) not in MEASURED:
            MEASURED[tip.name, device] = real(tip, device)
        return MEASURED[tip.name, device]

    monkeypatch.setattr(command, "measure", measure)


def tips(*arguments: str, columns: int = 100):
    return CliRunner().invoke(app, ["tips", *arguments], env={"COLUMNS": str(columns)})


@pytest.mark.usefixtures("once")
def test_json_has_both_numbers_of_every_effect():
    ran = tips("--tip", "sgd", "--tip", "zero_grad", "--json")
    assert ran.exit_code == 0
    first, second = json.loads(ran.stdout)
    assert (first["tip"], first["verdict"], len(second["cases"])) == ("sgd", "saves", 2)
    assert (first["technique"], second["technique"]) == ("light_optimizers", None)
    for case in (*first["cases"], *second["cases"]):
        assert case["predicted_exactly"]
        for name in ("peak", "saved", "temporary"):
            assert case[name] == case["predicted"][name]
            assert case[name]["after"] - case[name]["before"] == case[name]["change"]


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_the_table_fits_its_terminal_and_keeps_its_numbers(columns: int):
    ran = tips("--tip", "momentum", columns=columns)
    assert ran.exit_code == 0
    assert max(map(len, ran.stdout.splitlines())) <= columns
    (row,) = json.loads(tips("--tip", "momentum", "--json").stdout)
    (case,) = row["cases"]
    for number in (case["peak"]["change"], case["saved"]["change"]):
        assert f"{number:+,}" in ran.stdout
    assert "all 2 runs are as predicted, to the byte" in " ".join(ran.stdout.split())


@pytest.mark.usefixtures("once")
def test_one_tip_has_its_timelines_and_its_reason():
    ran = tips("--tip", "momentum")
    text = " ".join(ran.stdout.split())
    assert "lighter optimizers (optim.AdamW8bit" in text
    assert "Lessons: tutorials/11_optimizers.py." in text
    assert "before: " in ran.stdout
    assert "after: " in ran.stdout
    assert "optimizer state -2.5" in ran.stdout
    assert "█" in ran.stdout


def test_a_tip_without_room_says_so_and_the_others_go_on():
    with memory.limit("12 MiB"):
        ran = tips("--tip", "sgd", "--tip", "no_grad")
    assert ran.exit_code == 0
    assert "out of memory" in ran.stdout
    assert "sgd" in ran.stdout
    assert "1 saves" in " ".join(ran.stdout.split())


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of the address space that holds")
def test_a_machine_with_too_little_memory_says_so_and_goes_on():
    """The system's own refusal, not a limit of ours: batches of 512 images in 640 MiB."""
    bound = "import resource, runpy; resource.setrlimit(resource.RLIMIT_AS, (640 << 20, 640 << 20));"
    run = "runpy.run_module('tinygrad_mem', run_name='__main__')"
    ran = subprocess.run(
        [sys.executable, "-c", bound + run, "tips", "--tip", "item", "--tip", "lora", "--batch-size", "512", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread of it takes room of its own
    )
    assert ran.returncode == 0, ran.stderr
    item, lora = json.loads(ran.stdout)
    assert (item["tip"], item["verdict"]) == ("item", "out of memory")
    assert (lora["tip"], lora["verdict"]) == ("lora", "saves")


@pytest.mark.usefixtures("once")
def test_an_interrupt_prints_what_is_done(monkeypatch: pytest.MonkeyPatch):
    real, seen = command.measure, []

    def measure(tip, device):
        if seen:
            raise KeyboardInterrupt
        seen.append(tip.name)
        return real(tip, device)

    monkeypatch.setattr(command, "measure", measure)
    ran = tips("--tip", "sgd", "--tip", "momentum")
    assert ran.exit_code == 130
    assert "1 of 2 tips are done" in ran.output
    assert seen[0] in ran.stdout
    assert "Traceback" not in ran.output


@pytest.mark.usefixtures("once")
def test_the_biggest_effects_come_first_and_the_rest_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    chosen = {name: TIPS[name] for name in ("empty_cache", "momentum", "lora", "sgd")}
    monkeypatch.setattr(command, "TIPS", chosen)
    monkeypatch.setattr(command, "BIGGEST", 2)
    short = tips("--html", "")
    table = short.stdout.split("Myths")[0]
    assert table.index("lora") < table.index("sgd")
    assert "momentum" not in table
    assert "Myths, which change nothing: empty_cache." in short.stdout
    assert "2 tips with the biggest effects; --all shows every case of all" in " ".join(short.stdout.split())
    whole = tips("--html", "", "--all")
    assert [name for name in whole.stdout.split() if name in chosen] == list(chosen)
    assert "--all" not in whole.stdout
    assert [line.split(": ")[1:] for line in short.stderr.splitlines()][:2] == [["empty_cache", "myth"], ["momentum", "saves"]]


def hears_ctrl_c() -> None:
    """In a child of a run in the background, which would not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_with_130_and_without_a_traceback(tmp_path: Path):
    """The real signal, without a terminal; the page has what was done."""
    command = [sys.executable, "-m", "tinygrad_mem", "tips", "--html", str(tmp_path / "page.html"), "--batch-size", "2"]
    ran = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c)
    assert ran.stderr is not None
    first = ran.stderr.readline()
    assert first == f"1 of {len(TIPS)}: inplace_activation: myth\n"
    ran.send_signal(signal.SIGINT)
    printed, said = ran.communicate(timeout=60)
    assert ran.returncode == 130, said
    assert "inplace_activation" in printed
    assert "tips: interrupted: " in said
    assert "Traceback" not in said
    assert "inplace_activation" in (tmp_path / "page.html").read_text()


def _locked(tmp_path: Path) -> Path:
    """A folder in which nobody may write; root may write in any of a disk, and in none of the kernel's."""
    tmp_path.chmod(0o555)
    return tmp_path if os.geteuid() else Path("/sys")


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_where_the_page_cannot_be_written_the_table_is_printed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody asked for this page: it is no reason to measure nothing."""
    monkeypatch.chdir(_locked(tmp_path))
    monkeypatch.setattr(command, "TIPS", {"sgd": TIPS["sgd"]})
    ran = tips()
    assert ran.exit_code == 1
    assert "sgd" in ran.stdout
    assert "tips: no page: " in ran.stderr
    assert "Permission denied" in ran.stderr
    assert "Traceback" not in ran.output


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_nothing_else_is_written_where_nothing_may_be(tmp_path: Path):
    """Neither the planner's times nor a library's settings need a folder: a home and a cache that are locked change nothing."""
    locked = str(_locked(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-m", "tinygrad_mem", "tips", "--tip", "bigger_gpu", "--batch-size", "4", "--network", "lenet"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={
            **os.environ,
            "HOME": locked,
            "XDG_CACHE_HOME": locked,
            "TINYGRAD_MEM_CACHE": f"{locked}/times",
            "MPLCONFIGDIR": locked,
        },
    )
    assert ran.returncode == 0, ran.stderr
    assert "bigger_gpu" in ran.stdout
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tip", "pray"], "there is no tip 'pray': there are inplace_activation"),
        (["--network", "resnet21"], "no network 'resnet21'"),
        (["--input", "3x32x32"], "--input describes a sample of your network: name the network with --network"),
        (["--tip", "del", "--network", "resnet20"], "about a network of its own"),
        (["--device", "meta"], "tips on meta have bytes and no numbers"),
        (["--batch-size", "1"], "batch-size"),
    ],
)
def test_bad_input_is_status_2_and_a_message(arguments: list[str], message: str):
    ran = tips(*arguments)
    assert ran.exit_code == 2
    assert message in ran.output
    assert "Traceback" not in ran.output


def test_a_network_of_the_users():
    ran = tips("--tip", "item", "--network", "resnet20", "--input", "3x8x8", "--batch-size", "4", "--json")
    (row,) = json.loads(ran.stdout)
    assert row["verdict"] == "saves only when"
