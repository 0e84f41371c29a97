"""The names of PyTorch that the library uses, all of which the oldest supported version has.

``python -m tests.pytorch.torch_names``, run with that version, writes ``torch_names.txt``. A test looks there for each name
that the library uses. Ask with ``getattr`` for what came later.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import torch

OLDEST = "2.11"
FILE = Path(__file__).with_suffix(".txt")
LIBRARY = Path(__file__).parents[2] / "tinygrad_mem"
_NOT_ATTRIBUTES = ("torch.ops.", "torch.classes.")


def used() -> set[str]:
    """Names that are imported from PyTorch's modules, and attributes of ``torch``."""
    found: set[str] = set()
    for path in LIBRARY.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "torch" in text:
            for node in ast.walk(ast.parse(text)):
                found |= _names(node)
    return {name for name in found if not name.startswith(_NOT_ATTRIBUTES)}


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ImportFrom) and not node.level and str(node.module).split(".")[0] == "torch":
        return {f"{node.module}.{each.name}" for each in node.names}
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return {".".join(["torch", *reversed(parts)])} if parts and isinstance(node, ast.Name) and node.id == "torch" else set()


def exists(name: str) -> bool:
    """Whether PyTorch has this name, as an attribute or as a module."""
    place: object = torch
    parts = name.split(".")
    for number, part in enumerate(parts[1:], 2):
        try:
            place = getattr(place, part) if hasattr(place, part) else importlib.import_module(".".join(parts[:number]))
        except ImportError:
            return False
    return True


def main() -> None:
    """Write the names, if this PyTorch has all of them."""
    if not torch.__version__.startswith(f"{OLDEST}."):
        sys.exit(f"expected PyTorch {OLDEST}, the oldest that is supported; found {torch.__version__}")
    names = sorted(used())
    if newer := [name for name in names if not exists(name)]:
        sys.exit(f"PyTorch {OLDEST} has no {', '.join(newer)}")
    FILE.write_text("\n".join(names) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
