"""What each kernel needs of a GPU, as its compilers say. ``python -m tests.emulated.kernels`` writes ``docs/kernels.md``.

That takes minutes. So it also writes which sources it compiled: a run of the tests compiles those that are new, and some of the
others. What those need may not be more than the page says. ``pytest --thorough`` compiles everything, and compares the page.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tests import profiles

from . import build, nvidia
from .nvidia import ARCHITECTURES, Needs, Source

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kernels.md"
COMPILED = Path(__file__).with_name("compiled.txt")
REGISTERS, SHARED = 65_536, 49_152  # of a block: what every GPU has
OF_CUPY = ("elementwise, by CuPy", "reductions, by CuPy")

_WAVES = "CUDA reduces large numbers with a table of 32 or 40 bytes"
_PLACES = "the place in each of CuPy's arrays is found through an array of indices"
_CORNERS = "up to four corners of a place along each of three axes, with weights and slopes"
IN_MEMORY = {f"tinygrad_mem_{name}": _WAVES for name in ("sin_backward", "cos_backward", "normal")}
IN_MEMORY |= {f"tinygrad_mem_{name}": _PLACES for name in ("prod_at", "amax_at", "amin_at")}
IN_MEMORY |= {f"tinygrad_mem_{name}": _CORNERS for name in ("grid_sample", "grid_sample_input", "grid_sample_grid")}
IN_MEMORY |= {f"cupy_{name}__float{n}_float{n}": _WAVES for name in ("sin", "cos", "tan") for n in (16, 32, 64)}
"""Kernel -> why it keeps an array of each thread in memory."""

_HEAD = """# What each kernel needs

Speed cannot be measured without a GPU, but NVIDIA's compilers report what a kernel needs: registers per thread, shared memory
per block, and bytes of registers that were spilled into memory because there were too few. Every kernel is compiled for sm_70,
sm_80, sm_90 and sm_100 in every dtype in which it is offered; the numbers of a row are the largest of all dtypes. The last two
rows are the kernels that CuPy generates. The second column has the most threads per block with which a kernel is launched.

{spilled}

Compiled on {date} with {compilers}: {count:,} sources.

`python -m tests.emulated.kernels` writes this page. `pytest` compiles what is new since then, and some of the rest, and finds
whatever needs more than is written here; `pytest --thorough` compiles everything.

"""
_ARRAYS = """
Some keep an array of each thread in memory, in bytes:

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
def sources() -> list[Source]:
    """Whatever the library offers, in every dtype."""
    return nvidia.distinct(Source(text, tuple(defines)) for text, defines in found()["sources"])


def compilers() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in build.WHEELS)


@cache
def compiled() -> dict[str, str]:
    """The sources of the page by name, with ``"refused"`` where a compiler refused one. None was seen by other compilers."""
    first, *lines = COMPILED.read_text(encoding="utf-8").splitlines()
    return {line[:16]: line[17:] for line in lines} if first == compilers() else {}


def known(source: Source) -> bool:
    return name(source) in compiled()


def name(source: Source) -> str:
    """Of a source in the list."""
    return nvidia.name_of(source)[:16]


def new(some: Iterable[Source]) -> list[Source]:
    """Those that were not compiled for the page."""
    return [source for source in some if not known(source)]


@cache
def results() -> tuple[dict[str, str], dict[int, dict[str, Needs]]]:
    """(who wants a kernel that a compiler refuses, and what that says), (what each kernel needs at most on each architecture).

    Of what is new, and of some of the rest; in a thorough run of everything.
    """
    asked = [*new(sources()), *[*filter(known, sources())][:: profiles.every(100)]]
    refused, most = nvidia.examined(asked)
    refused = {source: "when the page was written" for source in sources() if compiled().get(name(source))} | refused
    askers = {text: who for (text, _), who in zip(found()["sources"], found()["askers"], strict=True)}
    return {askers[source.text]: said for source, said in refused.items()}, most


def threads(name: str) -> int:
    """Of the largest block with which a kernel was launched."""
    return found()["launched"].get(name, (0, 0))[1]


def row_of(name: str) -> str:
    """The row of the page in which a kernel is."""
    return f"`{name}`" if name in raw_kernels() else OF_CUPY[threads(name) > 128]


def rows(most: dict[int, dict[str, Needs]]) -> dict[str, list[int]]:
    """Row -> threads a block, registers on each architecture, shared bytes, spilled bytes on each architecture."""
    table: dict[str, list[int]] = {}
    for name in sorted(set().union(*most.values()), key=lambda name: (row_of(name) in OF_CUPY, name)):
        each = [of_all[name] for of_all in most.values()]
        row = [threads(name), *(n.registers for n in each), max(n.shared for n in each), *(n.spilled for n in each)]
        table[row_of(name)] = [*map(max, table.get(row_of(name), row), row)]
    return table


def arrays(most: dict[int, dict[str, Needs]]) -> dict[str, list[int]]:
    """Kernel -> bytes of each thread in memory on each architecture, of kernels that have such."""
    names = sorted(name for name in set().union(*most.values()) if any(of_all[name].stack for of_all in most.values()))
    return {f"`{name}`": [of_all[name].stack for of_all in most.values()] for name in names}


def _table(head: list[str], lines: Iterable[list[Any]]) -> str:
    marks = ["---", *["---:" for _ in head[1:]]]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in (head, marks, *lines))


def page(most: dict[int, dict[str, Needs]], date: str) -> str:
    """The text of the page."""
    table, kinds = rows(most), [f"sm_{architecture}" for architecture in ARCHITECTURES]
    spilling = [row for row, numbers in table.items() if any(numbers[6:])]
    spilled = f"Registers are spilled by: {', '.join(spilling) or 'none, on any of the four'}."
    text = _HEAD.format(spilled=spilled, date=date, compilers=compilers(), count=len(sources()))
    columns = [
        "threads a block",
        *(f"registers {kind}" for kind in kinds),
        "shared bytes",
        *(f"spilled {kind}" for kind in kinds),
    ]
    text += _table(["kernel", *columns], ([row, *numbers] for row, numbers in table.items()))
    lines = ([name, *numbers, IN_MEMORY.get(name.strip("`"), "")] for name, numbers in arrays(most).items())
    return text + _ARRAYS + _table(["kernel", *kinds, "why"], lines)


def written() -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """:func:`rows` and :func:`arrays`, as they stand on the page."""
    parts = PAGE.read_text(encoding="utf-8").split(_ARRAYS)
    cells = [re.findall(r"^\| (.*?) \| (\d.*) \|$", part, flags=re.M) for part in parts]
    table, memory = (
        {name: [int(n) for n in re.findall(r"(?<=\| )\d+(?= \|)", f"| {rest} |")] for name, rest in c} for c in cells
    )
    return table, {name: numbers[: len(ARCHITECTURES)] for name, numbers in memory.items()}


def write() -> None:
    """Compile everything; write the page, and the names of what was compiled."""
    refused, most = nvidia.examined(sources())
    PAGE.write_text(page(most, time.strftime("%Y-%m-%d", time.gmtime())), encoding="utf-8")
    lines = sorted(f"{name(source)} refused" if source in refused else name(source) for source in sources())
    COMPILED.write_text("\n".join([compilers(), *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    write()
