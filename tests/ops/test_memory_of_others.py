"""No op answers with what its memory held before: every row twice, on new memory that is full of the one junk or of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import OpCase, flat, ours, values
from tests.ops.cases import CASES
from tinygrad_mem.devices import device
from tinygrad_mem.errors import TinygradMemError
from tinygrad_mem.kernels.numpy.fast.threads import SCRATCH, scratch

JUNK = (0xFF, 0x2B)  # as floats nan and 6e-13, as integers -1 and 43


def inputs_of(case: OpCase) -> list[list[np.ndarray]]:
    """The row's, and the same without elements: along the first axis of all that share its size, and along the last."""
    base = [np.asarray(a) for a in case.inputs(np.random.default_rng(3))]
    found = [base]
    for axis in (0, -1):
        sizes = {a.shape[axis] for a in base if a.ndim}
        for size in sizes:
            found.append([a.take(range(0), axis) if a.ndim and a.shape[axis] == size else a for a in base])
    return found


def answers(case: OpCase, arrays: list[np.ndarray], junk: int) -> list[bytes] | str:
    """Results and gradients, byte for byte; or that the row refuses them."""
    scratch((SCRATCH,), np.uint8).fill(junk)
    generator = device("cpu").generator
    generator.manual_seed(0)
    inputs = ours(arrays, "float32", grad=case.grad)
    try:
        results = flat(case.run(*inputs))
        graph = [r for r in results if r.requires_grad]
        if graph:
            tm.autograd.backward(graph, [tm.ones(*r.shape, dtype=r.dtype) for r in graph])
    except (TinygradMemError, ValueError, IndexError, ZeroDivisionError) as error:
        return type(error).__name__
    grads = [t.grad for t in inputs if t.grad is not None]
    return [values(t).tobytes() for t in (*results, *grads)]


@pytest.mark.parametrize("part", range(8))
def test_answers_are_those_of_any_memory(part: int, monkeypatch: pytest.MonkeyPatch, reliability: Any):
    cpu = type(device("cpu"))
    empty, junk, tried = cpu.empty, [0], 0

    def poisoned(self: Any, shape: tuple, dtype: Any) -> Any:
        array = empty(self, shape, dtype)
        if array.size:
            array.reshape(-1).view(np.uint8).fill(junk[0])
        return array

    monkeypatch.setattr(cpu, "empty", poisoned)
    wrong = []
    for case in CASES[part::8]:
        for arrays in inputs_of(case):
            found = []
            for junk[0] in JUNK:
                found.append(answers(case, arrays, junk[0]))
            tried += 1
            if found[0] != found[1]:
                wrong.append(f"{case.name} {[a.shape for a in arrays]}")
    assert wrong == [], "these answer with what the memory held before"
    reliability("ops on memory with random contents", tried)


def test_the_junk_is_seen(monkeypatch: pytest.MonkeyPatch):
    """The net itself: an op that writes nothing is found."""
    case = OpCase("forgetful", "Add", lambda x: tm.empty(3), lambda x: x, lambda rng: [np.ones(3)], grad=False)
    cpu = type(device("cpu"))
    empty = cpu.empty
    found = []
    for junk in JUNK:

        def poisoned(self: Any, shape: tuple, dtype: Any, junk: int = junk) -> Any:
            array = empty(self, shape, dtype)
            array.reshape(-1).view(np.uint8).fill(junk)
            return array

        monkeypatch.setattr(cpu, "empty", poisoned)
        found.append(answers(case, [np.ones(3)], junk))
    assert found[0] != found[1]
