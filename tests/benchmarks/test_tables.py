"""What the benchmarks' tables say: rows add up, kinds and costs are right, goals are met or not. No test depends on time."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.benchmarks import __main__ as command
from tests.benchmarks import bytecodes, growth, kinds, profile, storage, turns
from tests.benchmarks.costs import Cost, Limits, cost_of
from tests.networks import SEVEN
from tests.profiles import some
from tinygrad_mem.kernels import numpy as kernels

ROOT = Path(__file__).parents[2]
NAMES = [each.name for each in SEVEN]
CHECKS = {"check_rows", "check_target"}  # of values, in the passage; no kind of work


def small(name: str) -> Any:
    """A network with a batch of 2."""
    found = next(each for each in turns.chosen("", [profile.WITH_DROPOUT]) if each.name == name)
    return replace(found, shape=(2, *found.shape[1:]))


@pytest.mark.parametrize("name", some([*NAMES, profile.WITH_DROPOUT.name], ["LeNet", "LSTM of characters, 64 steps"]))
def test_rows_of_a_profile_add_up_to_the_steps(name: str):
    found = profile.profile_of(small(name), 0.0)
    rows = found.rows()
    assert sum(ours for _, ours, _, _ in rows) == pytest.approx(found.ours)
    assert sum(theirs for _, _, theirs, _ in rows) == pytest.approx(sum(found.theirs.values()))
    assert all(ours >= 0 and theirs >= 0 and best >= 0 for _, ours, theirs, best in rows)
    lost = [ours - theirs for _, ours, theirs, _ in rows]
    assert lost == sorted(lost, reverse=True)
    products = kinds.STEPS_AND_PRODUCTS if "LSTM" in name else kinds.PRODUCTS
    assert {kind for kind, *_ in rows} >= {products, "optimizer", "loss", kinds.OUTSIDE}
    assert kinds.BOTH_GRADIENTS not in found.theirs
    shown = [row[0] for row in profile.by_kind(found)]
    assert shown == [*[row[0] for row in rows], profile.STEP]


def test_the_steps_of_pytorch_add_up():
    """Of each step: the kinds of all that happened in it, once."""
    step = small("LeNet").build(torch)
    steps = profile._their_steps(step)
    assert steps
    for seconds, found in steps:
        assert sum(found.values()) == pytest.approx(seconds)
        assert found[kinds.BOTH_GRADIENTS] > 0


@pytest.mark.parametrize("name", [*NAMES, profile.WITH_DROPOUT.name])
def test_each_kernel_of_the_networks_has_a_kind(name: str):
    used: set[str] = set()
    device, workload = tm.device("meta"), small(name)
    step = workload.build(tm, "meta")
    with profile.watching(device, lambda name, kernel, args, kwargs: used.add(name)):
        step()
    assert len(used) > 8
    assert ("dropout" in used) == (name in ("VGG16 224x224", profile.WITH_DROPOUT.name))
    assert {kernel for kernel in used if kinds.kind_of(kernel) == kinds.OTHER} <= CHECKS
    assert type(device.kernels).__name__ == "NullKernels", "they are watched no longer"


def event(name: str, own: float, *children: Any) -> Any:
    return SimpleNamespace(name=name, self_cpu_time_total=own * 1e6, cpu_children=children)


def test_what_an_op_calls_is_its_work():
    dense = event("aten::linear", 1, event("aten::addmm", 10, event("aten::copy_", 100)))
    added = event("aten::sum", 1000, event("aten::empty", 10_000))
    update = event("Optimizer.step#SGD.step", 1e5, event("aten::add_", 1e6), event("aten::mul_", 1e6))
    unknown = event("aten::cosh", 1e7)
    found = profile.their_kinds(event(profile.STEP, 1e8, dense, added, update, unknown))
    assert found == pytest.approx(
        {
            kinds.OUTSIDE: 1 + 1e5 + 1e8,
            "products": 110,
            "sums, copies, additions": 11_000,
            "optimizer": 2e6,
            kinds.OTHER: 1e7,
        }
    )


def test_no_backward_op_of_pytorchs_counts_as_its_forward():
    """Of the kinds that have one row for each: the backward of max pooling was in the row of the forward."""
    apart = {"convolutions", "pooling", kinds.BOTH_GRADIENTS, "pooling backward"}
    found = {schema.name: kinds.kind_of_theirs(schema.name, None) for schema in torch._C._jit_get_all_schemas()}
    found = {name: kind for name, kind in found.items() if kind in apart}
    assert found["aten::max_pool2d_with_indices_backward"] == "pooling backward"
    for name, kind in found.items():
        assert (kind in (kinds.BOTH_GRADIENTS, "pooling backward")) == ("_backward" in name), (name, kind)


def test_a_kernel_within_another_counts_once_and_one_in_another_thread_apart(monkeypatch: pytest.MonkeyPatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(profile.time, "perf_counter", lambda: now.seconds)

    def inner(seconds: float) -> None:
        now.seconds += seconds

    clock = profile.Clock()

    def outer() -> None:
        now.seconds += 1
        clock("inner", inner, (10.0,), {})
        thread = threading.Thread(target=clock, args=("inner", inner, (100.0,), {}))
        thread.start()
        thread.join()

    clock("outer", outer, (), {})
    clock("outer", inner, (1000.0,), {})
    rows = {name: (row.calls, row.seconds, row.beside) for name, row in clock.kernels.items()}
    assert rows == {"inner": (2, 10.0, 100.0), "outer": (2, 1101.0, 0.0)}


def test_shares_of_the_limit_are_numbers():
    """A kernel that reads and writes 8 of 10 bytes a second in 2 s is at 40% of the limit; half of it happened beside."""
    row = profile.Kernel(1, 1.0, 1.0, Cost(8, 100))
    found = profile.Profile("a network", {"relu": row}, 4.0, {"ReLU": 0.5}, Limits(10.0, 1000.0))
    assert found.rows() == [(kinds.OUTSIDE, 3.0, 0.0, 0.0), ("ReLU", 1.0, 0.5, pytest.approx(0.4))]
    assert list(profile.by_kernel(found)) == [("relu", "1", "1000.00", "1000.00", "0.0", "40%", "5%")]
    assert list(profile.by_kind(found))[-1] == (profile.STEP, "4000.00", "500.00", "3500.00", "ratio 8.00")


def test_rows_with_equal_losses_are_in_order_of_their_names():
    """Their order was that of a set of strings, which is another one in each process."""
    found = profile.Profile("a network", {}, 8.0, dict.fromkeys("hgfedcba", 1.0), Limits(10.0, 1000.0))
    assert [kind for kind, *_ in found.rows()] == [kinds.OUTSIDE, *"abcdefgh"]


def test_what_is_over_a_goal():
    """Seconds beyond the goal's part of PyTorch's, at most three kinds; the MLP may take 0.8."""
    seconds = {"relu": 1.0, "matmul": 5.0, "add": 0.5, "sgd_step": 2.0, "gelu": 3.0}
    rows = {name: profile.Kernel(1, spent, 0.0, Cost(10, 0)) for name, spent in seconds.items()}
    theirs = {"ReLU": 0.5, "products": 4.0, "optimizer": 4.0, "gelu": 3.0}
    found = profile.Profile("MLP", rows, 11.5, theirs, Limits(10.0, 1000.0))
    over = profile.over_the_goal(found)
    assert over == [
        ("MLP", "products", "5000.0 ms", "4000.0 ms", "1800.0 ms", "20%", "25%"),
        ("MLP", "ReLU", "1000.0 ms", "500.0 ms", "600.0 ms", "100%", "200%"),
        ("MLP", "gelu", "3000.0 ms", "3000.0 ms", "600.0 ms", "33%", "33%"),
    ]
    assert profile.in_markdown(profile.OVER_SHOWN, over).splitlines()[1:3] == [
        "|---|---|---:|---:|---:|---:|---:|",
        "| MLP | products | 5000.0 ms | 4000.0 ms | 1800.0 ms | 20% | 25% |",
    ]
    assert profile.over_the_goal(replace(found, name="a network without a goal")) == []
    assert profile.over_the_goal(replace(found, theirs={"products": 1e3})) == [], "all are below a hundredth of the step"


def in_page(title: str) -> list[list[str]]:
    """The rows of the table of docs/benchmarks.md whose first line begins so."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    table = page[page.index(f"\n| {title} |") :].strip().partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_page_says_where_each_missed_goal_is_lost():
    """The networks with rows are those over their goals, which are the command's; of each row the numbers agree."""
    first = {name.split()[0]: goal for name, goal in command.GOALS.items()}
    ratios = {row[0].split()[0].strip(","): (float(row[3]), float(row[5])) for row in in_page("one training step") if row[3]}
    assert {name: goal for name, (goal, _) in ratios.items()} == first
    rows = in_page(" | ".join(profile.OVER_SHOWN))
    assert {row[0] for row in rows} == {name for name, (goal, ratio) in ratios.items() if ratio > goal}
    known = {kinds.OUTSIDE, kinds.STEPS_AND_PRODUCTS, *[kind.name for kind in kinds.KINDS]}
    for name, kind, *times, share, _ in rows:
        ours, theirs, over = (float(each.removesuffix(" ms")) for each in times)
        assert kind in known
        assert over == pytest.approx(ours - first[name] * theirs, abs=0.1001)
        assert (share == "") == (kind in (kinds.OUTSIDE, kinds.WAITS))
    for name in first:
        over = [float(row[4].removesuffix(" ms")) for row in rows if row[0] == name]
        assert over == sorted(over, reverse=True)
        assert len(over) <= profile.MOST


def test_the_products_of_an_lstm_are_in_one_row_with_its_steps():
    """As in PyTorch's one op: its row of products, of the other layers alone, would be compared with all of ours."""
    rows = {name: profile.Kernel(1, spent, 0.0, Cost(10, 0)) for name, spent in {"lstm": 2.0, "add_product": 3.0}.items()}
    found = profile.Profile("LSTM", rows, 7.0, {kinds.STEPS: 3.0, kinds.PRODUCTS: 1.0}, Limits(10.0, 1000.0))
    assert found.rows() == [(kinds.OUTSIDE, 2.0, 0.0, 0.0), (kinds.STEPS_AND_PRODUCTS, 5.0, 4.0, 2.0)]
    found = replace(found, theirs={kinds.PRODUCTS: 1.0})
    assert {kind for kind, *_ in found.rows()} == {kinds.OUTSIDE, kinds.STEPS, kinds.PRODUCTS}


def test_costs_are_bytes_and_multiplications():
    def cost(name: str, *args: Any, **kwargs: Any) -> Cost:
        return cost_of(name, getattr(kernels, name), args, kwargs)

    x, row, y = np.ones((4, 6), np.float32), np.ones((1, 6), np.float32), np.empty((4, 6), np.float32)
    assert cost("copy", x, out=y) == (2 * x.nbytes, 0)
    assert cost("add", x, np.broadcast_to(row, x.shape), out=y) == (2 * x.nbytes + row.nbytes, 0)
    assert cost("multiply", x, x, out=y) == (2 * x.nbytes, 0)
    assert cost("relu", x, out=x) == (2 * x.nbytes, 0)
    assert cost("matmul", x, y.T, np.empty(99, np.uint8), out=np.empty((4, 4), np.float32)) == (4 * (24 + 24 + 16), 4 * 4 * 6)
    image, weight, after = np.ones((2, 3, 5, 5)), np.ones((4, 3, 3, 3)), np.ones((2, 4, 5, 5))
    sizes = ((1, 1), (1, 1), (1, 1), 1)
    plain = 2 * 4 * 25 * 3 * 9
    assert cost("conv_forward", image, weight, None, *sizes, None, out=after).multiplications == plain
    assert cost("conv_backward_input", after, weight, None, *sizes, None, out=image).multiplications == plain
    assert cost("conv_backward_weight", after, image, *sizes, None, out=weight).multiplications == plain
    p, g, buf = (np.ones(10, np.float32) for _ in range(3))
    assert cost("sgd_step", p, g, buf, 0.1, 0.9, 0.0, 0.0, False, False) == (5 * p.nbytes, 0)
    table, index = np.ones((1000, 8), np.float32), np.arange(3)
    assert cost("embedding", table, index, out=np.empty((3, 8), np.float32)) == (2 * 3 * 8 * 4 + index.nbytes, 0)


def test_goals_are_met_or_missed(capsys: pytest.CaptureFixture):
    assert set(command.GOALS) == set(NAMES)
    rows = [
        {"name": "MLP", "times": (8e-3, 1e-2)},
        {"name": "LeNet", "times": (1.3e-2, 1e-2)},
        {"name": "a + b", "times": (2, 1)},
    ]
    command.show({"BLAS as found": rows}, "cpu")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert lines == [
        ["MLP", "0.80", "8.0 ms", "10.0 ms", "0.80 met"],
        ["LeNet", "1.20", "13.0 ms", "10.0 ms", "1.30 missed"],
        ["a + b", "", "2000.0 ms", "1000.0 ms", "2.00"],
    ]
    command.show({"BLAS as found": rows}, "cuda")
    assert "goal" not in capsys.readouterr().out, "they are the CPU's"


def test_a_name_that_no_network_has_is_refused():
    assert [each.name for each in turns.chosen("vgg16-")] == ["VGG16-BN 32x32"]
    with pytest.raises(SystemExit, match="no network's name contains 'alexnet'; there are: MLP, LeNet"):
        turns.chosen("alexnet")


def test_a_busy_machine_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(turns.os, "cpu_count", lambda: 2)
    for load in (0.9, 3.5):
        monkeypatch.setattr(turns.os, "getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        turns.warn_if_busy()
    assert capsys.readouterr().err == "Other work is running (load 3.5): these ratios mean little.\n"


def test_networks_grow(monkeypatch: pytest.MonkeyPatch):
    """Each that has an argument for it gets wider and deeper, and every step runs in both engines' shapes."""
    parameters = lambda workload: sum(p.numel() for p in workload.build(tm, "meta").model.parameters())  # noqa: E731
    for workload in SEVEN:
        found = dict(growth.grown(workload))
        assert {f"batch {n}" for n in growth.BATCHES} - set(found) <= {f"batch {workload.shape[0]}"}
        for what in set(found) & {"twice the width", "twice the depth"}:
            assert parameters(found[what]) > 1.2 * parameters(workload)
            found[what].build(tm, "meta")()
    monkeypatch.setattr(growth, "BATCHES", (1, 2, 4))
    monkeypatch.setattr(growth, "LONGEST", 0.0)
    assert growth.ratios("lenet", 0.0)["LeNet"] == {
        growth.AS_IT_IS: pytest.approx(1, rel=1e6),
        "batch 1": pytest.approx(1, rel=1e6),
        "batch 2": None,
        "batch 4": None,
    }


def test_a_table_of_growth_says_where_a_ratio_does_not_stay():
    assert growth.where_not([1.2, 0.9], [1.0, 1.0], [1, 2]) == ""
    assert growth.where_not([1.3, 0.7], [1.0, 1.0], [1, 2]) == "1 thread: slower, 1.30 times; 2 threads: faster, 0.70 times"
    assert growth.where_not([None, 2.0], [1.0, 1.0], [1, 2]) == "2 threads: slower, 2.00 times"


@pytest.mark.parametrize("name", some(NAMES, ["LeNet", "LSTM of characters, 64 steps"]))
def test_all_numbers_of_a_step_are_stored_in_half(name: str):
    step = storage.stored(small(name), tm, "bfloat16")
    assert {p.dtype for p in step.model.parameters()} == {tm.bfloat16}
    assert step().dtype == tm.bfloat16
    states = [value for state in step.optimizer.state.values() for value in state.values() if getattr(value, "ndim", 0)]
    assert states
    assert {value.dtype for value in states} == {tm.bfloat16}
    assert {p.grad.dtype for p in step.model.parameters()} == {tm.bfloat16}


def test_what_pytorch_does_not_do_is_reported(monkeypatch: pytest.MonkeyPatch):
    def refusing(workload: Any, framework: Any, dtype: str) -> Any:
        def step() -> None:
            raise RuntimeError("\"addmm\" not implemented for 'Half'\nand more")

        return step

    monkeypatch.setattr(storage, "stored", refusing)
    cells = list(storage.row(small("LeNet"), 0.0))
    assert cells == ["", "does not: \"addmm\" not implemented for 'Half'", ""] * len(storage.DTYPES)


def test_bytecodes_are_counted_by_function():
    """The same twice; of an op that saves nothing fewer than of one that saves."""
    a, b = tm.ones(3, requires_grad=True), tm.ones(3, requires_grad=True)
    (add, calls), again, (mul, _) = (bytecodes.counted(run) for run in (lambda: a + b, lambda: a + b, lambda: a * b))
    assert again == (add, calls)
    assert calls["autograd.core.apply"] == calls["ops.elementwise.Add.forward"] == 1
    assert 0 < add["autograd.core.apply"] < add.total() < mul.total()
