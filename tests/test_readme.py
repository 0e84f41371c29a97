"""The front door says only what is true: its code runs, its commands are the ones that CI runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_test_command_is_what_ci_runs():
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert command in README.splitlines()


def test_both_commands_make_their_own_environment():
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv .venv && ")]
    assert len(commands) == 2
    assert any("-m tinygrad_mem train" in line for line in commands)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, flags=re.S), ids=lambda b: b.splitlines()[0][:40])
def test_python_blocks_print_what_they_say(block: str):
    """A block runs as it stands; a comment behind ``print(...)`` is what it printed."""
    said = [line.split("  # ", 1)[1] for line in block.splitlines() if line.startswith("print(") and "  # " in line]
    ran = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == said


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)", README))
def test_links_lead_somewhere(link: str):
    assert (ROOT / link).exists()
