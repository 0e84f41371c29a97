"""The user's source line: the innermost frame on the stack that is not the engine's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_USERS = tuple(_PACKAGE + room + os.sep for room in ("models", "cli"))  # they are written as users write
_engines: dict[CodeType, bool] = {}
_lines: dict[tuple[CodeType, int], str] = {}


def source_line() -> str:
    """``"train.py:12 step"``: the file (relative, where it is below the working directory), line, function; or ``""``."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        engine = _engines.get(code)
        if engine is None:
            engine = is_engine(code)
        if not engine:
            key = code, frame.f_lasti
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
    """Whether the code is this package's own, and not a network or a command that users would write like this."""
    name = code.co_filename
    _engines[code] = answer = name.startswith(_PACKAGE) and not name.startswith(_USERS)
    return answer


def _short(filename: str) -> str:
    for root in (os.getcwd() + os.sep, os.path.dirname(_PACKAGE[:-1]) + os.sep):
        if filename.startswith(root):
            return filename[len(root) :]
    return filename
