"""The front door says only what is true: its code runs, its commands are the ones that CI runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tinygrad_mem
from tinygrad_mem.cli.networks import OPTIMIZERS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_test_command_is_what_ci_runs():
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1].removesuffix(' "$@"')
    assert command in README.splitlines()


def test_both_commands_make_their_own_environment():
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv .venv && ")]
    assert len(commands) == 2
    assert commands[0].endswith("-m tinygrad_mem tips")


BLOCKS = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", README, flags=re.S)


@pytest.mark.parametrize(("block", "printed"), BLOCKS, ids=[block.splitlines()[-1][:40] for block, _ in BLOCKS])
def test_python_blocks_print_what_they_say(block: str, printed: str):
    """A block runs as it stands; it prints the comments behind its ``print(...)``, or the block that follows it."""
    said = [line.split("  # ", 1)[1] for line in block.splitlines() if line.startswith("print(") and "  # " in line]
    ran = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == (printed.splitlines() or said)


@pytest.mark.parametrize("line", re.findall(r"^python -m (tinygrad_mem .*)$", README, flags=re.M))
def test_other_commands_run(line: str):
    ran = subprocess.run([sys.executable, "-m", *shlex.split(line)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)", README))
def test_links_lead_somewhere(link: str):
    assert (ROOT / link).exists()


@pytest.mark.parametrize(("file", "line"), [("CITATION.cff", r"^version: (.+)$"), ("README.md", r"^  version = \{(.+)\},$")])
def test_a_citation_names_this_version(file: str, line: str):
    assert re.findall(line, (ROOT / file).read_text(encoding="utf-8"), re.M) == [tinygrad_mem.__version__]


def test_the_number_of_optimizers():
    assert f"`--optimizer` ({len(OPTIMIZERS)} of them)" in README
