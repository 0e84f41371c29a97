"""What each kernel needs of a GPU, as its compilers say. ``python -m tests.emulated.kernels`` writes ``docs/kernels.md``."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from . import build, nvidia
from .nvidia import Needs, Source

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kernels.md"
REGISTERS, SHARED = 65_536, 49_152  # of a block: what every GPU has
_HEAD = """# What each kernel needs

Speed cannot be measured without a GPU, but NVIDIA's compilers say what a kernel needs: registers a thread, shared memory a
block, bytes of stack, and bytes of registers that were spilled into memory because there were too few. Every kernel is asked
for in every dtype in which it is offered. Raw kernels are compiled for sm_70, sm_80, sm_90 and sm_100; those that CuPy writes
(the last two rows) for sm_80, and read by the compiler's front end for the others. The numbers are of sm_80, and of each row
the largest of all dtypes. A block has at most so many threads when the kernel is launched.

`python -m tests.emulated.kernels` writes this page; a test compares it.

"""


@cache
def found() -> dict[str, Any]:
    """What ``offered.py`` found."""
    return json.loads(build.offered().read_text(encoding="utf-8"))


def raw_kernels() -> set[str]:
    """The kernels whose source is in the library."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tinygrad_mem" / "kernels" / "cupy").glob("*.py")]
    return set(re.findall(r'extern "C" __global__ void (\w+)\(', "\n".join(texts)))


@cache
def results() -> tuple[dict[str, str], dict[str, Needs]]:
    """(who wants a kernel that a compiler refuses, and what that says), (what each kernel needs at most)."""
    askers = {text: who for (text, _), who in zip(found()["sources"], found()["askers"], strict=True)}
    refused, most = nvidia.examined([Source(text, tuple(defines)) for text, defines in found()["sources"]])
    return {askers[source.text]: said for source, said in refused.items()}, most


def threads(name: str) -> int:
    """Of the largest block with which a kernel was launched."""
    return found()["launched"].get(name, (0, 0))[1]


def page() -> str:
    """The text of the page."""
    _, most = results()
    rows, raw = [], raw_kernels()
    for name in sorted(raw & most.keys()):
        rows.append((f"`{name}`", threads(name), *most[name]))
    for kind, block in (("elementwise, by CuPy", 128), ("reductions, by CuPy", 512)):
        those = [name for name in most if name not in raw and (threads(name) > 128) == (block > 128)]
        rows.append((kind, max(map(threads, those)), *(max(most[name][i] for name in those) for i in range(4))))
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    head = [
        "| kernel | threads a block | registers | shared bytes | stack bytes | spilled bytes |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    return _HEAD + "\n".join([*head, *lines]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
