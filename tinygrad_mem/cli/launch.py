"""``python -m tinygrad_mem launch``: a program on several ranks of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from ..distributed.launch import launch
from ..errors import ArgumentError


def run(*, script: Path, arguments: list[str], ranks: int, grace: float) -> int:
    """Run the program. Returns its exit status."""
    if script.is_dir():
        raise ArgumentError(f"{script} is a folder: name a Python file in it")
    if not script.exists():
        raise ArgumentError(f"there is no file {script}")
    return launch(ranks, [sys.executable, str(script), *arguments], grace)
