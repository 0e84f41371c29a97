"""True, op by op: the "Saves" sentence of every op's docstring is computed, and is what the op keeps, to the byte."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import OpCase, flat
from tests.memory.saves import Piece, pieces, recorded
from tests.ops.cases import CASES
from tests.profiles import every, share_of_each
from tinygrad_mem import memory
from tinygrad_mem.ops.base import Op

NAMED = {name for case in CASES for name in ([case.op] if isinstance(case.op, str) else case.op)} | {"Transfer"}
OURS = [op for name, op in sorted(Op.registry.items()) if op.differentiable and name in NAMED]


@pytest.mark.parametrize("op", OURS, ids=lambda op: op.__name__)
def test_the_docstring_of_every_op_says_what_it_saves(op: type[Op]):
    named = {piece.name for piece in pieces(op)}
    assert bool(named) == bool(op.saves), f"it says that it saves {named or 'nothing'}, and declares {op.saves}"


def tensors(case: OpCase, wanted: int | None, dtype: str) -> list[tm.Tensor] | None:
    """The row's inputs; all floating ones require grad, or only the one of that number."""
    made, number = [], 0
    for array in map(np.asarray, case.inputs(np.random.default_rng(3))):
        t = tm.tensor(array.astype(dtype) if array.dtype.kind == "f" else array)
        if array.dtype.kind == "f":
            t.requires_grad_(wanted in (None, number))
            number += 1
        made.append(t)
    return None if wanted is not None and wanted >= number else made


ROWS = [(case, "float32") for case in CASES if case.grad]
ROWS += [(case, "float64") for case in share_of_each([case for case, _ in ROWS], 3, lambda case: str(case.op))]


@pytest.mark.parametrize(("case", "dtype"), ROWS, ids=lambda each: each if isinstance(each, str) else each.name)
def test_each_op_keeps_what_its_docstring_says(case: OpCase, dtype: str):
    """With gradients wanted of all inputs, and of each alone: in a usual run this only in float32."""
    seen = 0
    for wanted in (None, 0, 1, 2)[:: 1 if dtype == "float32" else every(4)]:
        inputs = tensors(case, wanted, dtype)
        if inputs is None:
            continue
        results: list = []

        def run(*args: Any, results: list = results) -> Any:
            results.extend(flat(case.run(*args)))
            return results

        with recorded() as runs:
            rows = memory.saved(run, *inputs)
        for each in runs:
            expected, what = (
                each.expected(),
                f"{each.op.__name__}, gradients of {[n for n, need in each.needs.items() if need]}",
            )
            sizes = {name: array.nbytes for name, array in each.saved.items()}
            assert Counter(sizes.values()) == Counter(size for size, _ in expected), f"{what}: it saved {sizes}"
            for _, array in expected:
                assert array is None or any(array is kept for kept in each.saved.values()), f"{what}: a copy was saved"
            seen += 1
        found = Counter((each.op.__name__, name) for each in runs for name in each.saved)
        assert not Counter((row.op, row.name) for row in rows) - found, "print_saved lists what no op saved"
        del results[:], runs
    assert seen, "nothing was recorded"


def test_sentences_that_cannot_be_read_are_errors():
    class Mute(Op):
        """x."""

    class Vague(Op):
        """x. Saves whatever it likes."""

    class Clear(Op):
        """x. Saves x, the weight if x needs a gradient, and lse (``4 * min(1, 2)`` bytes) if ``kind: int``: all, and more."""

    try:
        with pytest.raises(ValueError, match="Mute: its docstring has no"):
            pieces(Mute)
        with pytest.raises(ValueError, match=r"'Saves \.\.\. whatever it likes \.\.\.' is not in the words"):
            pieces(Vague)
        assert pieces(Clear) == [
            Piece("x", "", "True"),
            Piece("weight", "", "needs['x']"),
            Piece("lse", "4 * min(1, 2)", "kind: int"),
        ]
    finally:
        for op in (Mute, Vague, Clear):
            del Op.registry[op.__name__]
