"""The amount of code that a newcomer must read to understand a part of the library: files, lines and hops.

``python -m tests.reading`` prints the table, and the lines of each room when issue 21 counted them and now. With ``--write`` it
also writes the first table, and the lengths of files, into ``docs/architecture.md``. A test holds that page to them.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
LIBRARY = ROOT / "tinygrad_mem"
HEAD = "| to understand | files | lines | of them code | hops | can be skipped at first |"
LENGTH = re.compile(r"(\]\(\.\./(?P<path>tinygrad_mem/[\w/]+\.py)\) \| )(?P<lines>[\d,]+)( \|)")


class Part(NamedTuple):
    """One part of the library, as a newcomer reads it.

    Attributes:
        name: what is to be understood.
        steps: ``path:definition``, in the order of reading. Each time that the path changes is a hop.
        beside: files that a first reader may skip.
        before: files, lines and hops that issue 21 counted on 23 November 2026; ``None`` where it counted something else.
    """

    name: str
    steps: tuple[str, ...]
    beside: tuple[str, ...]
    before: tuple[int | None, int | None, int | None]


PARTS = (
    Part(
        "one op, end to end (`relu`)",
        ("functional/activation:relu", "autograd/core:apply", "ops/activation:ReLU", "kernels/numpy/piecewise:relu"),
        ("ops/base", "functional/door", "functional/refusal"),
        (9, 1897, 6),
    ),
    Part(
        "the tape",
        ("autograd/core:Node", "autograd/core:apply", "autograd/core:Walk", "autograd/core:accumulate"),
        ("autograd/gradients", "autograd/node_hooks"),
        (7, 1824, None),
    ),
    Part(
        "the tracker",
        (
            "memory/listener:Recorder",
            "memory/log:Log",
            "memory/attribution:attribution",
            "memory/timeline:Timeline",
            "memory/record:Record",
        ),
        ("memory/track", "memory/blocks", "memory/census", "source"),
        (8, 1497, 4),
    ),
    Part(
        "`conv2d`",
        ("functional/conv:conv2d", "ops/conv:Conv", "kernels/numpy/conv:conv_forward"),
        (
            "kernels/numpy/fast/conv_geometry",
            "kernels/numpy/fast/windows",
            "kernels/numpy/fast/conv_columns",
            "kernels/numpy/fast/conv_tiles",
            "kernels/numpy/fast/conv_rows",
            "kernels/numpy/fast/conv_taps",
            "kernels/numpy/fast/conv_depthwise",
            "kernels/numpy/fast/winograd_slab",
            "kernels/numpy/fast/conv_winograd",
        ),
        (None, None, None),
    ),
)


def path_of(step: str) -> Path:
    """Return the file of ``path:definition`` or ``path``."""
    return LIBRARY / f"{step.partition(':')[0]}.py"


def definitions(path: Path) -> set[str]:
    """Return the functions, classes and methods (``Class.method``) that a file defines."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def code_lines(path: Path) -> int:
    """Return the number of lines with code: neither blank, nor comment, nor docstring."""
    text = path.read_text(encoding="utf-8")
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in skipped]
    found = {number for token in tokens for number in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def table() -> list[str]:
    """Return the lines of the table, in Markdown."""
    found = [HEAD, "|---|---:|---:|---:|---:|---|"]
    for part in PARTS:
        files = list(dict.fromkeys(map(path_of, part.steps)))
        walked = [step.partition(":")[0] for step in part.steps]
        counted = len(files), sum(map(lines, files)), sum(a != b for a, b in pairwise(walked))
        shown = [f"{now:,}" + (f" ({was:,})" if was else "") for now, was in zip(counted, part.before, strict=True)]
        beside = list(map(path_of, part.beside))
        cells = (
            part.name,
            *shown[:2],
            f"{sum(map(code_lines, files)):,}",
            shown[2],
            f"{len(beside)} files, {sum(map(lines, beside)):,} lines",
        )
        found.append("| " + " | ".join(cells) + " |")
    return found


THEN = {
    "kernels": 14963, "functional": 7757, "nn": 6180, "ops": 4928, "memory": 4315, "autograd": 3371, "tips": 2264,
    "optim": 2258, "plan": 1862, "recompute": 1732, "data": 1524, "cli": 1209, "techniques": 1166, "models": 1117,
    "devices": 1058, "amp": 847, "utils": 452, "cuda": 104, "backends": 62, "single files": 1816,
}  # fmt: skip
"""Lines of each room in commit 7f14aed, of whose 58,985 issue 21 says "59,000 today"."""
_OPTIMIZERS = "adam_mini apollo four_bit galore lbfgs line_search lion lomo muon projected"
ADDED = {
    "PyTorch's own memory": "pytorch/* utils/torch_* cli/snapshot* cli/estimate_torch* cli/torch_programs* cli/users* "
    "cli/one_by_one*",
    "several processes": "distributed/* models/parallel* models/mesh_plan* plan/divided* tips/ranks* memory/ranks* "
    "cli/*_ranks* cli/*_mesh* cli/launch*",
    "language models": "models/configuration* models/key_values* models/llama* models/published* models/rotary* "
    "models/weights* memory/unroll* cli/estimate_layers*",
    "optimizers for little memory": " ".join(f"optim/{name}.py" for name in _OPTIMIZERS.split()),
    "LoRA, quantized and paged state": "techniques/lora* techniques/paged* techniques/quantized* kernels/*/block_codes* "
    "kernels/*/rank_one* kernels/code_tables*",
    "published figures": "claims/* cli/claims*",
    "the clinic": "clinic/* cli/clinic*",
    "distributions": "distributions/*",
    "the page to change a step by hand": "explore/* cli/explore*",
    "stand-ins": "stand_ins/*",
}
"""Patterns of the files that later issues brought. A file belongs to the first pattern that it matches."""


def room_of(path: str) -> str:
    """Return the room of a file, or what it was added for."""
    added = next((what for what, patterns in ADDED.items() if any(fnmatch(path, each) for each in patterns.split())), "")
    return added or (path.partition("/")[0] if "/" in path else "single files")


def rooms() -> list[str]:
    """Return the lines of a table: rooms then and now, without what later issues added; then these additions."""
    now = dict.fromkeys([*THEN, *ADDED], 0)
    for path in LIBRARY.rglob("*.py"):
        now[room_of(path.relative_to(LIBRARY).as_posix())] += lines(path)
    old = sum(now[room] for room in THEN)
    found = ["| room | lines then | lines now |", "|---|---:|---:|"]
    found += [f"| {room} | {then:,} | {now[room]:,} |" for room, then in THEN.items()]
    found.append(f"| these rooms | {sum(THEN.values()):,} | {old:,} |")
    found += [f"| added: {what} | | {now[what]:,} |" for what in sorted(ADDED, key=lambda what: -now[what])]
    return [*found, f"| all | {sum(THEN.values()):,} | {sum(now.values()):,} |"]


def written(page: str) -> str:
    """Return the page with the lengths and the table of today."""
    page = LENGTH.sub(lambda found: f"{found[1]}{lines(ROOT / found['path']):,}{found[4]}", page)
    old = page.splitlines()
    begin = old.index(HEAD)
    end = next((i for i in range(begin, len(old)) if not old[i].startswith("|")), len(old))
    return "\n".join([*old[:begin], *table(), *old[end:]]) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(*table(), "", *rooms(), sep="\n")
