"""The user's source line: the innermost frame on the stack that is not in this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType

_PACKAGE = str(Path(__file__).parent) + os.sep
_USERS = tuple(_PACKAGE + room + os.sep for room in ("models", "cli"))  # these are written as users would write them
# By the ids of code objects, which are kept, so that ids stay unique: a function of another file may be equal to this one, and
# the hash of code is that of all its constants.
_engines: dict[int, tuple[bool, CodeType]] = {}
_lines: dict[tuple[int, int], str] = {}


def source_line() -> str:
    """File, line and function, as ``"train.py:12 step"``. The file is relative if it is below the working directory."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        here = id(code)
        known = _engines.get(here)
        if not (is_engine(code) if known is None else known[0]):
            key = here, frame.f_lasti
            line = _lines.get(key)
            if line is None:
                line = _lines[key] = source_name(code, frame.f_lineno)
            return line
        frame = frame.f_back
    return ""


def source_name(code: CodeType, line: int) -> str:
    """``"train.py:12 step"``."""
    return f"{_short(code.co_filename)}:{line} {code.co_name}"


def is_engine(code: CodeType) -> bool:
    """True for code of this package, except its networks and commands, which are written as users would write them."""
    name = code.co_filename
    answer = name.startswith(_PACKAGE) and not name.startswith(_USERS)
    _engines[id(code)] = answer, code
    return answer


def _short(filename: str) -> str:
    for root in (os.getcwd() + os.sep, os.path.dirname(_PACKAGE[:-1]) + os.sep):
        if filename.startswith(root):
            return filename[len(root) :]
    return filename
