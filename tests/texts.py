"""Text that comes with Python: the docstrings of the standard library. Nothing is downloaded."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import numpy as np


def load_docstrings(least: int = 800) -> list[str]:
    """The docstrings of modules, classes and functions in the first files of the standard library: at least ``least``.

    They differ between versions of Python. Files that cannot be read are skipped.

    Raises:
        FileNotFoundError: this Python came without its library's source.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found: list[str] = []
    for path in sorted(root.glob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        named = [n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))]
        found += [text for text in map(ast.get_docstring, named) if text]
        if len(found) >= least:
            break
    if not found:
        raise FileNotFoundError(f"there is no Python source with documentation strings in {root}")
    return found


def encode(text: str) -> np.ndarray:
    """The bytes of a text as tokens below 256, uint8."""
    return np.frombuffer(text.encode("utf-8"), np.uint8)
