"""True: what is listed as kept for backward is what the row of each op says, once, with whom it is shared."""

from __future__ import annotations

import io
import re
import threading
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import OpCase, flat, ours
from tests.ops.cases import CASES
from tinygrad_mem import memory, nn
from tinygrad_mem.nn import functional as F

# --- op by op -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in CASES if c.grad], ids=lambda case: case.name)
def test_each_op_keeps_what_its_row_says(case: OpCase):
    inputs = ours([np.asarray(a) for a in case.inputs(np.random.default_rng(3))], "float64")
    results: list = []

    def run(*args: Any) -> Any:
        results.extend(flat(case.run(*args)))
        return results

    rows = memory.saved(run, *inputs)
    formula = case.saved(*[t.array for t in inputs], *[t.array for t in results]) if case.saved else 0
    assert rows.total == formula
    assert all(row.line.startswith("tests/") for row in rows)


# --- the listing ----------------------------------------------------------------------------------------------------------


def test_the_listing_says_what_shape_dtype_bytes_shared_and_where():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    x = tm.ones(3, 6)
    text = io.StringIO()
    rows = memory.print_saved(model, x, file=text)
    assert [(row.op, row.name, row.shape, row.dtype, row.bytes, row.module) for row in rows] == [
        ("Linear", "x", (3, 6), "float32", 72, "Sequential.0"),
        ("ReLU", "y", (3, 5), "float32", 60, "Sequential.1"),
        ("Linear", "x", (3, 5), "float32", 60, "Sequential.2"),
        ("Linear", "weight", (2, 5), "float32", 40, "Sequential.2"),
    ]
    assert [row.shared for row in rows] == [("argument 0",), ("Linear.x",), ("ReLU.y",), ("parameter 2.weight",)]
    assert rows.total == 72 + 60 + 40
    lines = text.getvalue().splitlines()
    assert lines[0].split() == ["op", "saves", "shape", "dtype", "bytes", "shared", "with", "module", "line"]
    assert lines[2].split()[:6] == ["ReLU", "y", "[3,", "5]", "float32", "60"]
    assert all(re.search(rf"float32  {row.bytes:5}  ", line) for row, line in zip(rows, lines[1:-1], strict=True))
    assert lines[-1] == "172 bytes (172 B) are saved for backward; shared memory is counted once"
    assert all("test_saved.py" in row.line for row in rows)


def test_what_was_let_go_is_not_listed():
    w = tm.ones(4, requires_grad=True)

    def fn() -> Any:
        (w.exp() * 2).sum().backward()
        return w.tanh()

    assert [(row.op, row.name) for row in memory.saved(fn)] == [("Tanh", "y")]
    with tm.no_grad():
        assert memory.saved(lambda: w.exp()) == []


def test_a_view_counts_for_what_it_keeps_alive():
    x = tm.ones(1000, 4, requires_grad=True)
    rows = memory.saved(lambda: (x * 2)[:1].square())
    assert [(row.shape, row.bytes) for row in rows if row.op == "Square"] == [((1, 4), 16_000)]


def test_what_a_hook_packed_is_what_is_listed():
    x = tm.ones(100, requires_grad=True)
    with tm.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        rows = memory.saved(lambda: x.exp())
    assert [(row.op, row.dtype, row.bytes) for row in rows] == [("Exp", "float16", 200)]


def test_cross_entropy_keeps_the_scores_and_two_numbers_a_sample():
    x, target = tm.zeros(64, 10, requires_grad=True), tm.zeros(64, dtype=tm.int64)
    rows = memory.saved(lambda: F.cross_entropy(x, target))
    assert {row.name for row in rows} >= {"x", "target"}


def test_of_equal_rows_the_one_that_was_let_go_goes():
    """A loop runs the same op at the same line: what is let go is known by its memory."""
    x, kept = tm.ones(100, requires_grad=True), []

    def loop() -> Any:
        for wide in (False, True):
            kept.append((tm.cat([x, x]) if wide else x * 1)[:100].square())
        del kept[0]
        return kept

    assert [(row.op, row.shape, row.bytes) for row in memory.saved(loop)] == [("Square", (100,), 800)]


def test_memory_of_others_is_counted_once():
    mine = np.ones((4, 5), np.float32)
    x, y = tm.from_numpy(mine), tm.from_numpy(mine[1:2])
    w = tm.ones(5, requires_grad=True)
    rows = memory.saved(lambda: (w * x).sum() + (w * y).sum())
    numpy = [row for row in rows if row.bytes == mine.nbytes]
    assert [row.first for row in numpy] == [True, False]
    assert rows.total == mine.nbytes


def test_what_other_threads_save_is_not_listed():
    ready, go = threading.Event(), threading.Event()
    kept: list = []

    def other() -> None:
        ready.wait()
        kept.append(tm.ones(7, requires_grad=True).exp())
        go.set()

    def mine() -> Any:
        ready.set()
        go.wait()
        return tm.ones(3, requires_grad=True).tanh()

    thread = threading.Thread(target=other)
    thread.start()
    rows = memory.saved(mine)
    thread.join()
    assert [row.op for row in rows] == ["Tanh"]
