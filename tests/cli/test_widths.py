"""Tables in a terminal of 60 or of 80 columns: no line is wider, and every number is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import tinygrad_mem as tm
from tests.profiles import some
from tests.pytorch.faults import TooLarge
from tinygrad_mem.claims import CLAIMS
from tinygrad_mem.claims.claim import Counted, Judged
from tinygrad_mem.claims.show import found_text, table
from tinygrad_mem.cli.app import app

NARROW = some([60, 80], [60])
NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+")
COMMANDS = [
    ["estimate", "resnet20"],
    ["estimate", "llama-3.1-8b", "--tokens", "4096"],  # the largest numbers
    ["estimate", "resnet20", "--ranks", "4", "--zero", "2"],
    ["estimate", "llama-3-8b", "--ranks", "4", "--tensor", "2", "--pipeline", "2", "--tokens", "512"],
    ["snapshot", "FILE"],
    ["snapshot", "FILE", "--what-if"],
    ["tips", "--tip", "del"],
    ["claims", "trl-3678"],
    ["claims", "--about", "zero-states"],
    ["clinic"],
]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("widths") / "s.pickle"
    TooLarge(capacity=170 << 20).run(30).write(path)
    return path


@cache
def shown_in(width: int, *command: str) -> str:
    return CliRunner().invoke(app, command, env={"COLUMNS": str(width)}).stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_line_is_too_wide_and_no_number_is_cut(command: list[str], snapshot: Path):
    command = [str(snapshot) if word == "FILE" else word for word in command]
    shown = {width: shown_in(width, *command) for width in (*NARROW, 200)}
    for width in NARROW:
        assert shown[width].strip()
        assert [line for line in shown[width].splitlines() if len(line) > width] == []
        assert set(NUMBER.findall(shown[width])) <= set(NUMBER.findall(shown[200])), "a number was cut"


@pytest.mark.parametrize("command", [c for c in COMMANDS if "--ranks" in c], ids=" ".join)
def test_in_fewer_columns_than_a_table_needs_the_terminal_wraps_it(command: list[str]):
    """At 40 columns, 61,361,111,040 was printed as 61,361,111,…"""
    assert shown_in(40, *command) == shown_in(60, *command)


@pytest.mark.parametrize("width", [60, 70, 80, 99, 100, 120])
def test_the_table_of_all_claims_has_each_figure_whole(width: int):
    """At 80 columns the units were cut off, and at 100 the numbers too."""
    rows = [Judged(claim, Counted(claim.stated.value), None) for claim in CLAIMS.values()]
    console = Console(width=width)
    with console.capture() as shown:
        console.print(table(rows, width))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    for judged in rows:
        for text in (judged.claim.stated.text, *found_text(judged).split(", ")):
            assert any(text in line for line in lines), text


@pytest.mark.parametrize("command", [["resnet50", "--batch-size", "1024"], ["llama-3-8b", "--batch-size", "1"]], ids=" ".join)
def test_in_40_columns_an_estimate_leaves_columns_out_and_cuts_none(command: list[str]):
    narrow, wide = (shown_in(width, "estimate", *command) for width in (40, 200))
    assert [line for line in narrow.splitlines() if len(line) > 40] == []
    assert set(NUMBER.findall(narrow)) <= set(NUMBER.findall(wide)), "a number was cut"
    assert not re.search(r"\d,\s*$|…", narrow, re.MULTILINE), "a number or a word was cut"
    peak = narrow[narrow.index("the peak") :]
    assert all(word in peak for word in ("activations", "parameters", "optimizer state", "peak used"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no file that is always full")
@pytest.mark.parametrize("command", [["estimate", "lenet"], ["clinic"], ["doctor"]], ids=" ".join)
def test_output_to_a_full_disk_ends_with_a_sentence(command: list[str]):
    program = [sys.executable, "-m", "tinygrad_mem", *command]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, f"{command[0]}: No space left on device\n")


@pytest.mark.skipif(tm.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["tips", "train"])
def test_a_gpu_that_is_not_there_is_refused_at_once(command: str):
    """It was refused for each of the tips, and the status was 0."""
    ran = CliRunner().invoke(app, [command, "--device", "cuda"])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"{command}: device cuda:0: ")


@pytest.mark.parametrize("command", ["estimate", "explore"])
def test_the_help_of_a_command_keeps_to_the_terminal(command: str):
    program = [sys.executable, "-m", "tinygrad_mem", command, "--help"]
    shown = subprocess.run(program, capture_output=True, text=True, check=True, env={"COLUMNS": "60"}).stdout
    assert [line for line in shown.splitlines() if len(line) > 60] == []
