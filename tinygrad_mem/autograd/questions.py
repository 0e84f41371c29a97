"""Questions of a program for a number that is not known: who asks, and which of them have an answer without a value.

- A check that raises an error passes: ``assert x > 0``, ``if x > 9: raise ValueError``.
- A value is the best so far, as the first one of each run is: ``if loss < best: best = loss``, ``if is_best: save()``,
  ``best = max(accuracy, best)`` of tensors.

Else it is a decision, which is refused.
"""

from __future__ import annotations

import ast
import dis
import linecache
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from ..source import is_engine

PASSED = "a check that raises an error was assumed to pass: values are not known"
BEST = "a value was assumed to be the best so far, as the first one is: what is done with the best is done each time"
MOST = 1000
"""How often a value is the best so far at one place: a loop that ends when values get worse would not end."""
_WRAPPERS = "torch/_tensor.py", "torch/overrides.py"
_FORMATTING = {
    (each.opcode, each.arg) for each in dis.get_instructions(compile("a % b; a %= b", "", "exec")) if each.opname == "BINARY_OP"
}


class _Here(threading.local):
    def __init__(self) -> None:
        self.answers: Counter[tuple[CodeType, int]] = Counter()


_here = _Here()


def reader() -> FrameType:
    """The frame that reads a value: the innermost one outside of this library and of PyTorch's wrappers of functions."""
    frame: Any = sys._getframe(1)
    while is_engine(frame.f_code) or frame.f_code.co_filename.replace("\\", "/").endswith(_WRAPPERS):
        frame = frame.f_back
    return frame


def prints(frame: FrameType) -> bool:
    """True if the frame puts a number into a text with ``%``: for a number on the left, no plain number is needed."""
    code = frame.f_code.co_code
    return (code[frame.f_lasti], code[frame.f_lasti + 1]) in _FORMATTING


# --- checks ---------------------------------------------------------------------------------------------------------------

_BRANCHES = re.compile(r"JUMP.*IF_(TRUE|FALSE)")
_ENDS = re.compile(r"JUMP_BACKWARD|IF_|FOR_ITER|RETURN|YIELD|SEND|RERAISE")
_RAISED = re.compile(r"(Error|Exception)$")


def assumed(frame: FrameType) -> tuple[bool, str] | None:
    """The answer to the condition that ``frame`` asks for, and what is assumed by it; ``None``: it has none.

    A check is a condition after whose other answer an error is raised, with no condition between them.
    """
    answer = _check(frame.f_code, frame.f_lasti)
    if answer is not None:
        return answer, PASSED
    answer = _best(frame.f_code, frame.f_lasti)
    if answer is None:
        return None
    _here.answers[frame.f_code, frame.f_lasti] += 1
    return None if _here.answers[frame.f_code, frame.f_lasti] > MOST else (answer, BEST)


def forget_answers() -> None:
    """Begin to count answers: a prediction begins in this thread."""
    _here.answers = Counter()


def is_kept(frame: FrameType) -> bool:
    """True if ``frame`` gives the result of its comparison a name, and decides nothing yet: ``is_best = loss < best``."""
    return _kept(frame.f_code, frame.f_lasti)


@lru_cache(1000)
def _kept(code: CodeType, asked: int) -> bool:
    steps = dis.get_instructions(code)
    return any(step.offset == asked and next(steps).opname.startswith("STORE_") for step in steps)


@lru_cache(1000)
def _check(code: CodeType, asked: int) -> bool | None:
    steps = list(dis.get_instructions(code))
    places = {step.offset: number for number, step in enumerate(steps)}
    at = places.get(asked, 0)
    while steps[at].opname in ("COMPARE_OP", "TO_BOOL", "EXTENDED_ARG"):  # what decides stands behind it
        at += 1
    branch = _BRANCHES.search(steps[at].opname)
    if branch is None:
        return None
    jumping, going_on = _raises(steps, places, places[steps[at].argval]), _raises(steps, places, at + 1)
    return None if jumping == going_on else (branch[1] == "TRUE") is going_on


def _raises(steps: list[dis.Instruction], places: dict[int, int], at: int) -> bool:
    """True if an error is raised from this step on, whatever values are."""
    named = False
    while not _ENDS.search(steps[at].opname):
        step = steps[at]
        if step.opname == "RAISE_VARARGS":
            return named
        name = "" if step.opname == "LOAD_CONST" else getattr(step.argval, "__name__", str(step.argval))
        named = named or "ASSERTION" in step.opname or _RAISED.search(name) is not None
        at = places[step.argval] if step.opname.startswith("JUMP") else at + 1
    return False


# --- the best so far ------------------------------------------------------------------------------------------------------


@lru_cache(1000)
def _best(code: CodeType, asked: int) -> bool | None:
    """The answer by which a value is the best so far; ``None``: the condition asks for something else, or has no source."""
    before = [step for step in dis.get_instructions(code) if step.offset <= asked]
    while "JUMP" in before[-1].opname or before[-1].opname in ("TO_BOOL", "EXTENDED_ARG"):  # what is asked stands before it
        before.pop()
    place = before[-1].positions
    if place is None or None in place:
        return None
    for each in _statements("".join(linecache.getlines(code.co_filename))):
        if isinstance(each, ast.Assign):
            if _spans(each.value, place) and _is_larger(each):
                return False  # of tensors, the first is taken
            continue
        for part in _parts(each.test):
            if _spans(part, place):
                return _answer(part, each)
    return None


def _answer(part: ast.expr, statement: ast.If) -> bool | None:
    """The answer to a part of a condition by which the best so far is kept, or by which ``is_best`` is true."""
    if isinstance(part, (ast.Name, ast.Attribute)):
        return True if re.search("best|improved", ast.unparse(part).rpartition(".")[2]) else None
    if not isinstance(part, ast.Compare) or len(part.ops) > 1:
        return None
    sides = [ast.unparse(part.left), ast.unparse(part.comparators[0])]
    then, otherwise = (any(_keeps(each, sides) for each in body) for body in (statement.body, statement.orelse))
    return None if then == otherwise else then


@lru_cache(20)
def _statements(source: str) -> list[ast.Assign | ast.If]:
    """The assignments and the ``if`` statements of a file."""
    try:
        return [each for each in ast.walk(ast.parse(source)) if isinstance(each, (ast.Assign, ast.If))]
    except SyntaxError:  # of a notebook, for example
        return []


def _is_larger(statement: ast.Assign) -> bool:
    """True for ``best = max(accuracy, best)``."""
    call = statement.value
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("max", "min"):
        return False
    return ast.unparse(statement.targets[0]) in map(ast.unparse, call.args)


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """The conditions of which ``and`` and ``or`` make one."""
    if isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _parts(each)
    else:
        yield test


def _spans(node: ast.expr, place: dis.Positions) -> bool:
    return (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == place


def _keeps(statement: ast.stmt, sides: list[str]) -> bool:
    """True if the statement makes one side of a comparison the other: ``best = loss``, ``best = loss.item()``."""
    if not isinstance(statement, ast.Assign):
        return False
    parts = [ast.unparse(each) for each in ast.walk(statement.value) if isinstance(each, ast.expr)]
    targets = [part for each in statement.targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return any(ast.unparse(each) == here and there in parts for each in targets for here, there in (sides, sides[::-1]))
