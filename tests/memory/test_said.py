"""True, function by function: what the docstring of every public function says after "Saves:" is what a call of it keeps.

The phrases are few, and each has one formula here; a docstring that says it in other words, or does not say it and keeps
something, fails. A function that refers to another (``In-place :func:`exp```) keeps what that one says. What a function made
of several ops keeps is the sum of what these say, each of which is computed in ``test_saves.py``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import flat
from tests.sturdy.calls import CALLS, Call, Of
from tests.sturdy.misuse import function
from tinygrad_mem import memory

Formula = Callable[[list, list, dict[str, Any]], int]  # of the tensors given, those that come out, and the arguments


def every(tensors: list) -> int:
    """Bytes of all, of each once."""
    return sum(t.nbytes for t in {id(t): t for t in tensors}.values())


def whole(tensors: list) -> int:
    """Bytes of those that are integers or bools."""
    return sum(t.nbytes for t in tensors if not t.is_floating_point())


PHRASES: dict[str, Formula | None] = {
    "nothing": lambda x, y, how: 0,
    "no array": lambda x, y, how: 0,
    "input": lambda x, y, how: x[0].nbytes,
    "the input": lambda x, y, how: x[0].nbytes,
    "output": lambda x, y, how: y[0].nbytes,
    "the output": lambda x, y, how: y[0].nbytes,
    "the output, which the next layer usually keeps anyway": lambda x, y, how: y[0].nbytes,
    "input and output": lambda x, y, how: (
        x[0].nbytes + y[0].nbytes if len(y) == 1 else 8 * y[1].numel()
    ),  # max and min along dim
    "input and both outputs": lambda x, y, how: x[0].nbytes + every(y),
    "both": lambda x, y, how: every(x[:2]),
    "both, and the weight": lambda x, y, how: every(x),
    "both, and the weights": lambda x, y, how: every(x),
    "input and weight": lambda x, y, how: every(x),
    "index": lambda x, y, how: whole(x),
    "the indices": lambda x, y, how: whole(x),
    "the condition, one byte an element": lambda x, y, how: whole(x),
    "the mask, one byte an element": lambda x, y, how: whole(x),
    "a mask, one byte an element": lambda x, y, how: x[0].numel(),
    "the indices, 8 bytes each": lambda x, y, how: 8 * y[-1].numel(),
    "the indices, 8 bytes an element": lambda x, y, how: 8 * y[-1].numel(),
    "each factor that the other's gradient needs": lambda x, y, how: every(x) if len(x) > 1 else 0,
    "each for the other's gradient": lambda x, y, how: every(x),
    "tensor1 and tensor2, each for the other's gradient": lambda x, y, how: every(x[1:]),
    "weight, and both tensors if weight needs a gradient": lambda x, y, how: every(x) if len(x) > 2 else 0,
    "tensor2, and tensor1 if tensor2 needs a gradient": lambda x, y, how: every(x[1:]),
    "input and the means": lambda x, y, how: x[0].nbytes + y[0].nbytes,
    "input, the means and the output": lambda x, y, how: x[0].nbytes + 2 * y[0].nbytes,
    "other, and input if other needs a gradient": lambda x, y, how: (
        every(x) if len(x) > 1 and "rounding_mode" not in how else 0
    ),
    "both if other needs a gradient": lambda x, y, how: every(x) if len(x) > 1 else 0,
    "both tensors, and the output if the exponent needs a gradient": lambda x, y, how: (
        every(x) + (y[0].nbytes if len(x) > 1 else 0)
    ),
    "input (for the weight's gradient) and weight (for the input's)": lambda x, y, how: x[0].nbytes + x[1].nbytes,
    "input, 1 number a row, and weight": lambda x, y, how: x[0].nbytes + 4 * x[0].size(0) + x[1].nbytes,
    "input, 2 numbers a row, and weight": lambda x, y, how: x[0].nbytes + 8 * x[0].size(0) + x[1].nbytes,
    "input, 2 numbers a (sample, channel), and weight": lambda x, y, how: (
        x[0].nbytes + 8 * x[0].size(0) * x[0].size(1) + x[1].nbytes
    ),
    "one byte an output (two for windows of more than 256 entries)": lambda x, y, how: y[0].numel(),
    "input, 2 numbers a channel, and weight": lambda x, y, how: x[0].nbytes + 8 * x[0].size(1) + every(x[3:4]),
    "input, 2 numbers a (sample, group), and weight": lambda x, y, how: (
        x[0].nbytes + 8 * x[0].size(0) * how["num_groups"] + x[1].nbytes
    ),
    "one byte an output where the sizes are multiples, else the int64 positions": lambda x, y, how: (
        y[0].numel() * (8 if any(n % m for n, m in zip(x[0].shape[2:], y[0].shape[2:], strict=True)) else 1)
    ),
    "each matrix for the other's gradient": lambda x, y, how: every(x[1:]),
    "those two, for each other's gradient": lambda x, y, how: every(x[1:]),
    "the index of each, 8 bytes": lambda x, y, how: 8 * y[0].numel(),
    "the index, joined into one where there are several": lambda x, y, how: max((whole([t]) for t in x), default=0),
    "the noise, where std is one": lambda x, y, how: x[-1].nbytes,
    "tanh's output": lambda x, y, how: y[0].nbytes,
    "both halves' views and the sigmoid": lambda x, y, how: x[0].nbytes + y[0].nbytes,
    "the difference and the norm": lambda x, y, how: x[0].nbytes + (y[0].nbytes if how.get("p") != 1 else 0),
    "the target and 4 bytes": lambda x, y, how: whole(x) + 4,
    "query, key, value, the mask, the output, and one number a row": lambda x, y, how: (
        every(x) + every(y) + 4 * y[0].numel() // y[0].size(-1)
    ),
    "both, their norms, and both divided by them": None,
    "the indices, the offsets, the weights per sample, and the table if these need a gradient": lambda x, y, how: every(x[:1]),
    "the input, the target, and 4 bytes a sample": None,
    "the input, the targets, and 24 bytes a sample": lambda x, y, how: every(x) + 24 * x[0].size(1),
    "a mask, one byte an element, and what a division saves": None,
    "the grid, and the input if the grid needs a gradient": lambda x, y, how: every(x[:2]),
    "places of the output": lambda x, y, how: y[0].nbytes // len(y[0]) // y[0].size(-1) * (y[0].size(-1) + 1),
    "tables of the way back": None,
    "what the products save": None,
    "what its parts save": None,
}


def tensor(value: Any, rng: np.random.Generator, made: list) -> Any:
    """The argument with tensors in it, all of which are put into ``made``; floating ones have a gradient and may be written."""
    if isinstance(value, Of):
        t = tm.tensor(value.array(rng))
        made.append(t.requires_grad_().clone() if value.kind == "f" else t)
        return made[-1]
    if isinstance(value, (tuple, list)):
        return type(value)([tensor(part, rng, made) for part in value])
    return getattr(tm, value) if value in ("float64", "int64") else value


def said(name: str) -> str | None:
    """The phrase after "Saves:" in a docstring, or in that of the function that it refers to."""
    doc = " ".join(inspect.cleandoc(function(tm, name).__doc__ or "").split())
    found = re.search(r"Saves:? (?!and raises)(.+?)(?:[.:;](?: |$))", doc)
    other = re.search(r":func:`(\w+)`", doc)
    if found and not found[1].startswith("as :func:"):
        return found[1]
    if other is None or name.endswith(f".{other[1]}") or other[1] == name:
        return None
    prefix = name.rpartition(".")[0]
    for place in dict.fromkeys((prefix, "", "F", "T")):
        full = f"{place}.{other[1]}" if place else other[1]
        try:
            function(tm, full)
        except AttributeError:
            continue
        return said(full)
    return None


@pytest.mark.parametrize("call", CALLS, ids=[f"{n}-{c.name}" for n, c in enumerate(CALLS)])
def test_a_call_keeps_what_the_docstring_says(call: Call):
    rng, x = np.random.default_rng(0), []
    args = [tensor(value, rng, x) for value in call.args]
    kwargs = {key: tensor(value, rng, x) for key, value in call.kwargs.items()}
    how = inspect.signature(function(tm, call.name)).bind(*args, **kwargs).arguments
    y: list = []

    def run() -> Any:
        y.extend(flat(function(tm, call.name)(*args, **kwargs)))
        return y

    try:
        rows = memory.saved(run)
    except NotImplementedError:
        pytest.skip("a gradient that is not offered")
    phrase = said(call.name)
    if phrase is None:
        assert rows.total == 0, f"it keeps {[(r.op, r.name, r.bytes) for r in rows]}: let its docstring say so after 'Saves:'"
        return
    assert phrase in PHRASES, f"'Saves: {phrase}' is in no words of this file; use one of them, or give it a formula"
    formula = PHRASES[phrase]
    if formula is not None:
        assert rows.total == formula(x, y, how), f"'Saves: {phrase}', found {[(r.op, r.name, r.bytes) for r in rows]}"


def test_words_that_nobody_knows_and_silence_are_errors(monkeypatch: pytest.MonkeyPatch):
    call = next(c for c in CALLS if c.name == "exp")
    for doc, words in (("e. Saves: a lot.", "is in no words of this file"), ("e.", "let its docstring say so")):
        monkeypatch.setattr(tm.exp, "__doc__", doc)
        with pytest.raises(AssertionError, match=words):
            test_a_call_keeps_what_the_docstring_says(call)
    monkeypatch.setattr(tm.exp, "__doc__", "e. Saves: nothing.")
    with pytest.raises(AssertionError, match="Exp"):
        test_a_call_keeps_what_the_docstring_says(call)
