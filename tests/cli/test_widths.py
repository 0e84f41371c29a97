"""Tables in a terminal of 60 or of 80 columns: no line is wider, and every number is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.profiles import some
from tests.pytorch.faults import TooLarge
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


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_line_is_too_wide_and_no_number_is_cut(command: list[str], snapshot: Path):
    command = [str(snapshot) if word == "FILE" else word for word in command]
    shown = {width: CliRunner().invoke(app, command, env={"COLUMNS": str(width)}).stdout for width in (*NARROW, 200)}
    for width in NARROW:
        assert shown[width].strip()
        assert [line for line in shown[width].splitlines() if len(line) > width] == []
        assert set(NUMBER.findall(shown[width])) <= set(NUMBER.findall(shown[200])), "a number was cut"


@pytest.mark.parametrize("command", ["estimate", "explore"])
def test_the_help_of_a_command_keeps_to_the_terminal(command: str):
    program = [sys.executable, "-m", "tinygrad_mem", command, "--help"]
    shown = subprocess.run(program, capture_output=True, text=True, check=True, env={"COLUMNS": "60"}).stdout
    assert [line for line in shown.splitlines() if len(line) > 60] == []
