"""``python -m tests.benchmarks.estimates``: what an estimate of each published language model costs, at 131,072 tokens.

It is the whole command, with Python's start and all imports, in processor seconds: the least of some turns. Beside it stands
the same where all layers run: ``memory/unroll.py`` runs a few of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tinygrad_mem.models.published import PUBLISHED

GOAL = 2.0
"""An estimate is to take less than so many processor seconds."""
HOW = {
    "a plain step": ["--precision", "bfloat16"],
    "LoRA, recomputed": ["--lora", "16", "--recompute", "every-block", "--precision", "bfloat16", "--optimizer", "adamw8bit"],
}
MAIN = "from tinygrad_mem.cli import main, estimate_run\nif {whole}: estimate_run.repeated = lambda *_: None\nmain()"


def seconds(file: Path, how: list[str], whole: bool, turns: int) -> float:
    """The least processor seconds of an estimate."""
    command = [sys.executable, "-c", MAIN.format(whole=whole), "estimate", str(file), "--tokens", "131072", *how]
    found = []
    for _ in range(turns):
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
    return min(found)


def main() -> None:
    """Print a row a model."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.estimates", description=__doc__)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", default="", help="part of a model's name")
    options = parser.parse_args()
    table = Table(title=f"processor seconds of an estimate at 131,072 tokens; goal: {GOAL:g}")
    for column in ("model", *(f"{name}{more}" for name in HOW for more in (", all layers run", ""))):
        table.add_column(column, justify="left" if column == "model" else "right")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        for name in [each for each in PUBLISHED if options.only in each]:
            file.write_text(json.dumps(PUBLISHED[name] | {"max_position_embeddings": 131_072}))
            found = [f"{seconds(file, how, whole, options.turns):.2f}" for how in HOW.values() for whole in (True, False)]
            table.add_row(name, *found)
            print(f"  {name}", *found, file=sys.stderr, flush=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
