"""Every op keeps every promise of ``ops/base.py``: one row, all tests."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import TOLERANCE, OpCase, against_torch, flat, ours, values
from tests.ops.cases import CASES
from tests.predicted import difference
from tests.profiles import on_devices, share_of_each, some
from tests.witness import numpy_allocations
from tinygrad_mem.autograd.core import Node
from tinygrad_mem.devices import device
from tinygrad_mem.ops.base import Op

SMALL = 64  # bytes: NumPy's scalars and index tuples; inputs of every row are larger, so a temporary of their size is seen


def of(rows: list[OpCase]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", rows, ids=lambda case: case.name)


cases, differentiable = of(CASES), of([c for c in CASES if c.grad])


def arrays_of(case: OpCase) -> list[np.ndarray]:
    return [np.asarray(a) for a in case.inputs(np.random.default_rng(3))]


def seeds_for(results: list) -> list:
    rng = np.random.default_rng(5)
    return [tm.tensor(rng.standard_normal(tuple(r.shape)).astype(r.dtype), device=r.device) for r in results]


def step(case: OpCase, inputs: list) -> tuple[list, list]:
    """Forward and backward; the results that carry a gradient, and the gradients of the inputs."""
    results = [r for r in flat(case.run(*inputs)) if r.requires_grad]
    if results:
        tm.autograd.backward(results, seeds_for(results))
    return results, [t.grad for t in inputs]


def nodes_of(results: list) -> list[Node]:
    seen: dict[int, Node] = {}
    stack = [r.grad_fn for r in results if r.grad_fn is not None]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen[id(node)] = node
            stack += [edge[0] for edge in node.edges if edge is not None and isinstance(edge[0], Node)]
    return list(seen.values())


def memory_root(array: Any) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_names_are_unique():
    assert [name for name, count in Counter(c.name for c in CASES).items() if count > 1] == []


def test_every_op_has_a_row():
    covered = {"Transfer"}  # between devices: tests/devices/test_transfer.py
    covered |= {name for case in CASES for name in ([case.op] if isinstance(case.op, str) else case.op)}
    concrete = {name: op for name, op in Op.registry.items() if not op.__subclasses__()}
    ours = {name for name, op in concrete.items() if op.__module__.startswith("tinygrad_mem.ops")}
    assert sorted(ours - covered) == [], "ops without an OpCase in tests/ops/cases/"
    assert sorted(covered - set(Op.registry)) == [], "rows for ops that do not exist"


EXACT = [case for case in CASES if case.exact]
NUMBERS = [(case, "float64", dev) for dev in ("cpu", "cuda") for case in EXACT]
# test_formulas.py compares each kernel in float32 with its formula: of each op a usual run takes half of the rows here.
HALF = share_of_each(EXACT, 2, lambda case: str(case.op))
NUMBERS += [(case, "float32", dev) for dev in some(("cpu", "cuda"), ("cpu",)) for case in HALF]


def name_of(value: OpCase | str) -> str:
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize(("case", "dtype", "dev"), on_devices(NUMBERS), ids=name_of)
def test_equals_pytorch(case: OpCase, dtype: str, dev: str):
    """Of random values a test of their own compares the distributions."""
    tolerance = case.tolerance if dtype == "float32" and case.tolerance else TOLERANCE[dtype]
    against_torch(case.run, case.reference, arrays_of(case), dtype, dev, case.grad, tolerance)


@of(share_of_each([c for c in CASES if c.grad and c.exact and c.smooth], 2, lambda case: f"{case.op}, differences"))
def test_gradcheck(case: OpCase):
    """Of what is random or rounded finite differences say nothing."""
    inputs = ours(arrays_of(case), "float64")
    assert tm.autograd.gradcheck(case.run, inputs, fast_mode=True)


def answers(case: OpCase, inputs: list) -> list[np.ndarray | None]:
    """The results and the gradients; the inputs keep their values and their versions."""
    before, versions = [values(t).copy() for t in inputs], [t._version for t in inputs]
    results = flat(case.run(*inputs))
    found: list[np.ndarray | None] = [values(r).copy() for r in results]
    graded = [r for r in results if r.requires_grad]
    if graded:
        tm.autograd.backward(graded, seeds_for(graded))
    for t, b, v in zip(inputs, before, versions, strict=True):
        np.testing.assert_array_equal(values(t), b, err_msg="an input was written")
        assert t._version == v
    return found + [None if t.grad is None else values(t.grad) for t in inputs]


TURNED = [(case, "cpu") for case in CASES]
TURNED += [(case, "cuda") for case in share_of_each(CASES, 2, lambda case: f"{case.op}, turned")]


@pytest.mark.parametrize(("case", "dev"), on_devices(TURNED), ids=name_of)
def test_non_contiguous_inputs_and_no_input_is_written(case: OpCase, dev: str):
    arrays = arrays_of(case)
    plain = ours(arrays, "float64", dev, case.grad)
    turned = []
    for a, t in zip(arrays, plain, strict=True):
        view = tm.tensor(np.ascontiguousarray(values(t).T), device=dev).permute(*reversed(range(a.ndim))).detach()
        turned.append(view.requires_grad_() if t.requires_grad else view)
    generator = device(dev).generator
    before = generator.state
    expected = answers(case, plain)
    generator.state = before
    for f, e in zip(answers(case, turned), expected, strict=True):
        assert (f is None) == (e is None)
        if f is not None and e is not None:
            np.testing.assert_allclose(f, e, rtol=1e-10, atol=1e-10)


@differentiable
def test_a_gradient_that_goes_down_in_memory(case: OpCase, dev: str):
    """The gradient that comes through a flip: a view of negative strides, into which the op's backward may write."""
    found, generator = [], device(dev).generator
    before = generator.state
    for through in (False, True):
        generator.state = before
        inputs = ours(arrays_of(case), "float64", dev)
        results = [r for r in flat(case.run(*inputs)) if r.requires_grad]
        seeds = seeds_for(results)
        ends = [r.flip(tuple(range(r.ndim))) if through else r for r in results]
        weights = [seed.flip(tuple(range(seed.ndim))) if through else seed for seed in seeds]
        tm.autograd.backward([(end * weight).sum() for end, weight in zip(ends, weights, strict=True)])
        found.append([None if t.grad is None else values(t.grad) for t in inputs])
    for straight, flipped in zip(*found, strict=True):
        np.testing.assert_allclose(flipped, straight, rtol=1e-10, atol=1e-12) if straight is not None else None


@differentiable
def test_gradients_share_no_memory(case: OpCase):
    inputs = ours(arrays_of(case), "float64")
    results = [r for r in flat(case.run(*inputs)) if r.requires_grad]
    seeds = seeds_for(results)
    kept = [s.array.copy() for s in seeds]
    tm.autograd.backward(results, seeds)
    for seed, before in zip(seeds, kept, strict=True):
        np.testing.assert_array_equal(seed.array, before, err_msg="backward wrote into a gradient that the caller owns")
    grads = [t.grad for t in inputs if t.grad is not None]
    assert grads, "no gradient arrived"
    for grad in grads:
        assert grad.array.flags.writeable
        for other in [*[t.array for t in inputs], *[r.array for r in results], *[s.array for s in seeds]]:
            assert not np.shares_memory(grad.array, other), "a gradient is a window on somebody else's memory"
    for a, b in combinations(grads, 2):
        assert not np.shares_memory(a.array, b.array), "two gradients share memory"


@differentiable
def test_a_gradient_alone_is_what_it_is_beside_others_and_costs_no_other(case: OpCase, monkeypatch: pytest.MonkeyPatch):
    arrays = arrays_of(case)
    tm.manual_seed(0)
    _, together = step(case, ours(arrays, "float64"))
    floating = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    run_backward, vain = Node.run_backward, []

    def watched(node: Node, *grads: Any, owned: bool) -> tuple:
        given = [None if g is None else memory_root(g) for g in grads]
        found = run_backward(node, *grads, owned=owned)
        for i, (g, need) in enumerate(zip(found, node.needs, strict=False)):
            if not need and isinstance(g, np.ndarray) and not any(memory_root(g) is each for each in given):
                vain.append(f"{node.op.__name__}: input {i}")
        return found

    monkeypatch.setattr(Node, "run_backward", watched)
    for wanted in floating if len(floating) > 1 else ():
        tm.manual_seed(0)
        inputs = ours(arrays, "float64")
        for i in floating:
            inputs[i].requires_grad_(i == wanted)
        _, alone = step(case, inputs)
        assert vain == [], "gradients that nobody wants were computed"
        if together[wanted] is None:
            assert alone[wanted] is None
        else:
            np.testing.assert_allclose(values(alone[wanted]), values(together[wanted]), rtol=1e-12, atol=1e-14)


@differentiable
def test_saved_bytes(case: OpCase):
    arrays = arrays_of(case)
    inputs = ours(arrays, "float64")
    results = flat(case.run(*inputs))
    nodes = nodes_of(results)
    wanted = {case.op} if isinstance(case.op, str) else set(case.op)
    assert wanted <= {node.op.__name__ for node in nodes}, "the row's op was not recorded"
    saved = {id(memory_root(a)): memory_root(a).nbytes for node in nodes for a in node.saved.values()}
    for node in nodes:
        assert set(node.saved) <= set(node.op.saves), f"{node.op.__name__} saves {set(node.saved)}, declares {node.op.saves}"
        hidden = [k for k, v in vars(node).items() if isinstance(v, np.ndarray) and k != "target"]
        assert hidden == [], f"{node.op.__name__} keeps arrays on ctx: {hidden}"
    formula = case.saved(*[t.array for t in inputs], *[r.array for r in results]) if case.saved else 0
    assert sum(saved.values()) == formula


@differentiable
def test_backward_frees_what_was_saved(case: OpCase):
    inputs = ours(arrays_of(case), "float64")
    results = flat(case.run(*inputs))
    nodes = nodes_of(results)
    kept = any(n.saved for n in nodes)
    wanted = [r for r in results if r.requires_grad]
    tm.autograd.backward(wanted, seeds_for(wanted))
    assert [n for n in nodes if n.saved] == []
    if kept:  # what saved nothing can be walked again, as in PyTorch
        with pytest.raises(tm.errors.GraphError, match="second time"):
            tm.autograd.backward(wanted, seeds_for(wanted))


@pytest.mark.parametrize("dtype", some(["float32", "float64"], ["float64"]))
@cases
def test_a_prediction_is_the_run_event_by_event(case: OpCase, dtype: str, reliability: Callable[[str, int], None]):
    """In float64 of inputs that are not contiguous: the harder half. The other is a thorough run's: its bytes are those that
    ``tests/memory/test_predicted.py`` has of each public function.
    """

    def run() -> None:
        tm.manual_seed(0)
        inputs = ours(arrays_of(case), dtype, grad=case.grad)
        if dtype == "float64":
            turned = [t.detach().permute(*reversed(range(t.ndim))).contiguous() for t in inputs]
            turned = [t.permute(*reversed(range(t.ndim))) for t in turned]
            inputs = [t.requires_grad_(i.requires_grad) for t, i in zip(turned, inputs, strict=True)]
        step(case, inputs)

    run()  # what rows make once is no part of it
    try:
        found = difference(run)
    except tm.errors.DataDependenceError:
        pytest.skip("its shape depends on values: refused on meta, in words")
    assert found == ""
    reliability("rows of ops predicted event by event", 1)


@cases
def test_kernels_allocate_nothing(case: OpCase):
    for inputs in (ours(arrays_of(case), "float64", "cpu", case.grad), ours(arrays_of(case), "float64", "cpu", case.grad)):
        with numpy_allocations() as sizes:
            results = [r for r in flat(case.run(*inputs)) if r.requires_grad]
            forward = [n for n in sizes if n > SMALL]
        seeds = seeds_for(results)
        with numpy_allocations() as sizes:
            if results:
                tm.autograd.backward(results, seeds)
            backward = [n for n in sizes if n > SMALL]
    assert (forward, backward) == ([], []), "NumPy allocated in forward, in backward, so many bytes: take them through ctx"


@cases
def test_leaves_nothing_behind(case: OpCase):
    pool = device("cpu").pool
    step(case, ours(arrays_of(case), "float64", "cpu", case.grad))
    gc.disable()  # garbage of earlier tests is there before and after
    try:
        before = pool.used_bytes()
        step(case, ours(arrays_of(case), "float64", "cpu", case.grad))
        assert pool.used_bytes() == before, "something of the step is still alive; a reference cycle?"
    finally:
        gc.enable()
