"""L-BFGS beside PyTorch's, iteration by iteration; its state, its bytes, and what is left when a step fails."""

from __future__ import annotations

import copy
import gc
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lbfgs import _strong_wolfe

import tinygrad_mem as tm
from tests.memory.test_predict import measured
from tests.profiles import every, examples, pairs
from tests.sturdy.test_failing_steps import failing_at
from tinygrad_mem import memory, optim, techniques
from tinygrad_mem.errors import ArgumentError, ArgumentTypeError, DataDependenceError, NotOfferedError
from tinygrad_mem.memory import Category
from tinygrad_mem.memory.alive import alive
from tinygrad_mem.optim.line_search import LinePoint, strong_wolfe

SHAPES = ((4, 3), (3,), ())
X, Y = np.random.default_rng(1).standard_normal((10, 4)), np.arange(10) % 3
WOLFE = {"line_search_fn": "strong_wolfe"}


def softmax(lib: Any, a: Any, b: Any, c: Any, kind: str) -> Any:
    x, y = lib.tensor(X.astype(kind)), lib.tensor(Y)
    return lib.nn.functional.cross_entropy(x @ a * c + b, y) + 0.01 * (a.square().sum() + c.square())


def valley(lib: Any, a: Any, b: Any, c: Any, kind: str) -> Any:
    x = lib.cat([a.reshape(-1), b, c.reshape(1)])
    return (10 * (x[1:] - x[:-1].square()).square() + (1 - x[:-1]).square()).sum()


def waves(lib: Any, a: Any, b: Any, c: Any, kind: str) -> Any:
    return a.square().square().sum() + b.sin().sum() + (a.sum(0) * b).sum().square() + (c - 2).square()


def flat(lib: Any, a: Any, b: Any, c: Any, kind: str) -> Any:
    return (a * 1e-12).sum() + (b * 0).sum() + c * 0


def steep(lib: Any, a: Any, b: Any, c: Any, kind: str) -> Any:
    return a.exp().sum() * 50 + (b * 3).cosh().sum() + (c * 4).square()


LOSSES = [softmax, valley, waves, flat, steep]


class Run:
    """A problem, its optimizer in one of the two libraries, and how often the loss was evaluated."""

    def __init__(self, lib: Any, loss: Any, kind: str = "float64", seed: int = 0, **options: Any) -> None:
        rng = np.random.default_rng(seed)
        arrays = [np.asarray(rng.standard_normal(shape)).astype(kind) for shape in SHAPES]
        self.lib, self.loss, self.kind, self.calls = lib, loss, kind, 0
        self.parameters = [lib.tensor(array).requires_grad_() for array in arrays]
        self.rule = lib.optim.LBFGS(self.parameters, **options)

    def closure(self) -> Any:
        self.calls += 1
        self.rule.zero_grad()
        loss = self.loss(self.lib, *self.parameters, self.kind)
        loss.backward()
        return loss

    def step(self) -> float:
        return self.rule.step(self.closure).item()

    def values(self) -> list[np.ndarray]:
        return [p.detach().numpy().copy() for p in self.parameters]

    def state(self) -> dict[str, Any]:
        return plain(self.rule.state_dict()["state"].get(0, {}))


def plain(value: Any) -> Any:
    """Tensors as arrays, and those without dimensions as numbers."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if hasattr(value, "detach"):
        return value.item() if value.ndim == 0 else value.detach().numpy().copy()
    return value


def turned(state: dict[str, Any], lib: Any) -> dict[str, Any]:
    """The state dict with the tensors of the other library."""

    def turn(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turn(each) for key, each in value.items()}
        if isinstance(value, list):
            return [turn(each) for each in value]
        return lib.tensor(value.detach().numpy()) if hasattr(value, "detach") else value

    return turn(state)


def assert_close(found: Any, wanted: Any, rtol: float, where: str = "state") -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            assert_close(found[key], wanted[key], rtol, f"{where}[{key!r}]")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for a, b in zip(found, wanted, strict=True):
            assert_close(a, b, rtol, where)
    elif wanted is None:
        assert found is None, where
    else:
        scale = np.abs(wanted).max() if np.size(wanted) else 0
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * scale, err_msg=where)


def both(loss: Any, **options: Any) -> tuple[Run, Run]:
    return Run(tm, loss, **options), Run(torch, loss, **options)


# --- PyTorch's numbers ------------------------------------------------------------------------------------------------------


OPTIONS = [
    {"lr": 0.1, "max_iter": 6},
    WOLFE | {"max_iter": 6},
    WOLFE | {"history_size": 2, "max_iter": 8},
    {"lr": 0.05, "history_size": 1, "max_iter": 4},
    WOLFE | {"max_eval": 3, "lr": 5},
    WOLFE | {"max_eval": 1, "max_iter": 3},
    {"lr": 0.1, "max_eval": 2},
    {"lr": 0.1, "max_iter": 0},
    {"lr": 0},
    {"lr": 0.2, "tolerance_grad": 1.0, "max_iter": 5},
    WOLFE | {"tolerance_change": 0.1},
    {"tolerance_grad": -1.0, "tolerance_change": -1.0, "max_iter": 3, "lr": 0.01},
]


@pytest.mark.parametrize(
    ("loss", "options"),
    pairs(LOSSES, OPTIONS),
    ids=lambda each: "-".join(f"{k}={v}" for k, v in each.items()) if isinstance(each, dict) else each.__name__,
)
def test_steps_equal_pytorch(loss: Any, options: dict[str, Any]):
    ours, theirs = both(loss, **options)
    for _ in range(3):
        assert_close(ours.step(), theirs.step(), 1e-9)
        assert ours.calls == theirs.calls
        assert_close(ours.values(), theirs.values(), 1e-7)
        mine, other = ours.state(), theirs.state()
        assert (mine["n_iter"], mine["func_evals"]) == (other["n_iter"], other["func_evals"])


def test_the_search_tries_pytorchs_steps_along_any_line():
    """Along lines with several valleys, where a bracket has to be narrowed. Both see the same losses and slopes."""
    rng, counts = np.random.default_rng(0), []
    while len(counts) < examples(100):
        sizes, rates, shifts = rng.uniform(-2, 2, 3), rng.choice([0.5, 1, 3, 9], 3), rng.uniform(0, 6, 3)
        first, most = rng.choice([1e-3, 0.1, 1.0, 5.0]), int(rng.choice([0, 1, 2, 3, 25]))

        def line(t: Any) -> tuple[float, float]:
            x = float(t)
            waves, slopes = np.sin(rates * x + shifts), rates * np.cos(rates * x + shifts)  # noqa: B023  # called at once
            return float(sizes @ waves + 0.05 * x * x), float(sizes @ slopes + 0.1 * x)  # noqa: B023

        loss, slope = line(0)
        if slope >= 0:
            continue
        ours: list[float] = []
        theirs: list[float] = []

        def evaluate(t: Any, keep: Any) -> LinePoint:
            ours.append(float(t))  # noqa: B023
            at, along = line(t)
            return LinePoint(t, at, tm.tensor(along), np.float64(along))

        def objective(x: Any, t: Any, d: Any) -> tuple[float, torch.Tensor]:
            theirs.append(float(t))  # noqa: B023
            at, along = line(t)
            return at, torch.tensor([along], dtype=torch.float64)

        found = strong_wolfe(evaluate, LinePoint(0.0, loss, tm.tensor(slope), np.float64(slope)), first, 1.0, most)
        g = torch.tensor([slope], dtype=torch.float64)
        _, _, step, _ = _strong_wolfe(objective, [0.0], first, torch.ones(1).double(), loss, g, g[0], max_ls=most)
        np.testing.assert_allclose([*ours, found.t], [*theirs, float(step)], rtol=1e-7)
        counts.append(len(ours))
    assert max(counts) > 3


def _begin_like(run: Run, theirs: Run, apart: float) -> None:
    """Give a run PyTorch's state, and its parameters times 1 + ``apart``."""
    with run.lib.no_grad():
        for p, q in zip(run.parameters, theirs.parameters, strict=True):
            p.copy_(run.lib.tensor(q.detach().numpy() * q.new_tensor(1 + apart).numpy()))
    run.rule.load_state_dict(turned(copy.deepcopy(theirs.rule.state_dict()), run.lib))


@settings(max_examples=examples(60))
@given(
    loss=st.sampled_from(LOSSES),
    kind=st.sampled_from(["float64", "float64", "float32"]),
    seed=st.integers(0, 1000),
    lr=st.sampled_from([1, 0.5, 0.1, 1e-3, 3.0]),
    most=st.integers(1, 4),
    evaluations=st.one_of(st.none(), st.integers(1, 12)),
    size=st.integers(1, 4),
    search=st.booleans(),
)
def test_each_step_from_pytorchs_state_is_pytorchs(
    loss: Any, kind: str, seed: int, lr: float, most: int, evaluations: int | None, size: int, search: bool
):
    """Rounding grows along a path. So each step begins with PyTorch's parameters and PyTorch's state, and ends with both.

    A steep step may turn rounding alone into other parameters: then PyTorch's step from parameters that differ in the last
    digits shows it.
    """
    options: dict[str, Any] = {"lr": lr, "max_iter": most, "max_eval": evaluations, "history_size": size}
    if kind == "float32":
        options["max_iter"], rtol = 1, 1e-3
    else:
        rtol = 1e-6
    options |= {"kind": kind, "seed": seed, "line_search_fn": "strong_wolfe" if search else None}
    ours, theirs = both(loss, **options)
    for _ in range(4):
        shaken = Run(torch, loss, **options)
        _begin_like(ours, theirs, 0)
        _begin_like(shaken, theirs, 1e-15 if kind == "float64" else 1e-7)
        mine, other, _ = ours.step(), theirs.step(), shaken.step()
        if not all(np.isfinite(v).all() and np.abs(v).max() < 1e3 for v in theirs.values()) or not np.isfinite(other):
            return  # both have left the ground on which numbers mean something
        if any(
            np.abs(a - b).max() > rtol / 10 * np.abs(b).max() for a, b in zip(shaken.values(), theirs.values(), strict=True)
        ):
            return  # so has this step
        assert_close(mine, other, rtol)
        if kind == "float64":
            assert ours.calls == theirs.calls
            assert_close(ours.values(), theirs.values(), rtol)


def test_a_state_goes_to_pytorch_and_back():
    for first, second in ((tm, torch), (torch, tm)):
        one, other = Run(first, valley, **WOLFE, max_iter=5), Run(second, valley, **WOLFE, max_iter=5)
        one.step()
        with second.no_grad():
            for p, values in zip(other.parameters, one.values(), strict=True):
                p.copy_(second.tensor(values))
        other.rule.load_state_dict(turned(copy.deepcopy(one.rule.state_dict()), second))
        assert other.state().keys() == one.state().keys()
        assert_close(other.state(), one.state(), 0)
        for _ in range(2):
            assert_close(other.step(), one.step(), 1e-9)
        assert_close(other.values(), one.values(), 1e-7)
        assert_close(other.state(), one.state(), 1e-5)
        assert other.rule.state_dict()["param_groups"] == one.rule.state_dict()["param_groups"]


def test_a_state_of_a_step_that_found_nothing_to_do():
    theirs = Run(torch, flat)
    theirs.step()
    ours = Run(tm, flat)
    ours.rule.load_state_dict(theirs.rule.state_dict())
    ours.step()
    assert ours.state() == {"func_evals": 2, "n_iter": 0}


def test_a_copy_and_a_file_go_on_alike(tmp_path: Any):
    one = Run(tm, waves, **WOLFE, max_iter=4)
    one.step()
    tm.save(one.rule.state_dict(), tmp_path / "state")
    other = Run(tm, waves, **WOLFE, max_iter=4)
    with tm.no_grad():
        for p, values in zip(other.parameters, one.values(), strict=True):
            p.copy_(tm.tensor(values))
    other.rule.load_state_dict(tm.load(tmp_path / "state"))
    one.step()
    other.step()
    assert_close(other.values(), one.values(), 0)
    assert_close(other.state(), one.state(), 0)


@pytest.mark.parametrize("options", [{"lr": 0.1}, WOLFE], ids=["", "wolfe"])
def test_parameters_without_gradients_and_with_sparse_ones(options: dict[str, Any]):
    rng, found = np.random.default_rng(0), []
    table, unused = rng.standard_normal((5, 2)), rng.standard_normal(3)
    for lib in (tm, torch):
        rows, alone = lib.nn.Embedding(5, 2, sparse=True, _weight=lib.tensor(table)), lib.tensor(unused).requires_grad_()
        rule = lib.optim.LBFGS([*rows.parameters(), alone], max_iter=5, **options)

        def closure(lib: Any = lib, rows: Any = rows, rule: Any = rule) -> Any:
            rule.zero_grad()
            loss = (rows(lib.tensor([1, 3, 1])) - 1).square().square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            rule.step(closure)
        found.append([rows.weight.detach().numpy(), alone.detach().numpy()])
    assert_close(found[0], found[1], 1e-9)


@pytest.mark.parametrize("whole", [False, True])
def test_a_transposed_parameter_and_a_closure_that_gives_a_number_or_one_element(whole: bool):
    found = []
    for lib in (tm, torch):
        p = lib.tensor(np.arange(6.0).reshape(2, 3)).t().requires_grad_()
        q = p.detach().clone().contiguous().requires_grad_() if lib is torch else p
        rule = lib.optim.LBFGS([q], max_iter=4, lr=0.1)

        def closure(lib: Any = lib, q: Any = q, rule: Any = rule) -> Any:
            rule.zero_grad()
            loss = ((q - lib.tensor([3.0, 1.0], dtype=lib.float64)).square() * lib.tensor([[1.0], [2.0], [3.0]])).sum()
            loss.backward()
            return loss.view(1) if whole else loss.item()

        assert isinstance(rule.step(closure), lib.Tensor if whole else float)
        found.append(q.detach().numpy())
    assert_close(found[0], found[1], 1e-12)


@pytest.mark.parametrize("dtype", [tm.float16, tm.bfloat16])
def test_half_precision_descends(dtype: Any):
    p = tm.tensor([3.0, -2.0, 1.0], dtype=dtype).requires_grad_()
    rule = optim.LBFGS([p], max_iter=4, lr=0.5)

    def closure() -> Any:
        rule.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    first = rule.step(closure).item()
    assert closure().item() < first / 4
    assert rule.state[p]["d"].dtype == dtype


# --- bytes ------------------------------------------------------------------------------------------------------------------


def train(options: dict[str, Any], steps: int = 1, width: int = 512, easy: bool = False) -> Callable[[], None]:
    """A run that needs all its iterations, or, if it is ``easy``, few."""

    def run() -> None:
        p = tm.linspace(-2.0, 2.0, width, dtype=tm.float64).clone().requires_grad_()
        rule = optim.LBFGS([p], **options)
        scale = tm.ones(width, dtype=tm.float64) if easy else tm.linspace(1.0, 900.0, width, dtype=tm.float64)

        def closure() -> Any:
            rule.zero_grad()
            loss = (p.square() * scale).sum()
            loss.backward()
            return loss

        for _ in range(steps):
            rule.step(closure)
        memory.mark("stepped")

    return run


@pytest.mark.parametrize("iterations", [1, 2, 5, 12])
@pytest.mark.parametrize("options", [{"lr": 1e-2}, WOLFE], ids=["", "wolfe"])
@pytest.mark.parametrize("steps", [1, 3])
def test_what_is_kept_is_what_the_docstring_says_and_is_predicted(iterations: int, options: dict[str, Any], steps: int):
    options = options | {"max_iter": iterations, "history_size": 4, "tolerance_change": -1.0, "max_eval": 1000}
    found = measured(train(options, steps))
    with pytest.warns(UserWarning, match="LBFGS.step decides by values"):
        said = memory.predict(train(options, steps))
    kept = 2 * min(iterations * steps - 1, 4) + 2
    assert found.by_category("stepped")[Category.OPTIMIZER_STATE] == kept * 512 * 8
    assert said.by_category("stepped") == found.by_category("stepped")
    assert said.peak == found.peak
    assert said.by_category("peak") == found.by_category("peak")


@pytest.mark.parametrize("options", [{"lr": 1e-2}, WOLFE], ids=["", "wolfe"])
def test_an_iteration_takes_what_the_docstring_says(options: dict[str, Any]):
    """At the peak, which is before the move or inside a closure of the search: all that the optimizer has, in vectors."""
    width, options = 1 << 16, options | {"max_iter": 12, "history_size": 4, "tolerance_change": -1.0, "max_eval": 1000}
    with pytest.warns(UserWarning, match="LBFGS"):
        track = memory.predict(train(options, width=width))
    vectors = track.peak / (width * 8)
    kept, others = 2 * 4 + 2, 3  # of others: the parameter, the scale and the gradient
    if options.get("line_search_fn"):
        kept, others = kept + 3, 4  # there is no gradient yet, and the closure has two results
    assert int(vectors) == kept + 4 + others


@settings(max_examples=examples(25))
@given(
    rate=st.sampled_from([1, 0.3, 1e-3]),
    most=st.integers(1, 8),
    size=st.integers(1, 5),
    evaluations=st.integers(1, 12),
    search=st.booleans(),
    easy=st.booleans(),
    steps=st.integers(1, 3),
)
def test_no_run_needs_more_than_its_prediction(
    rate: float, most: int, size: int, evaluations: int, search: bool, easy: bool, steps: int
):
    options: dict[str, Any] = {"lr": rate, "max_iter": most, "history_size": size, "max_eval": evaluations}
    run = train(options | (WOLFE if search else {}), steps, 64, easy)
    with warnings.catch_warnings(action="ignore"):
        said = memory.predict(run)
    assert measured(run).peak <= said.peak


def test_a_track_that_begins_later_knows_the_history():
    run = Run(tm, valley, max_iter=5, lr=0.01)
    run.step()
    with memory.track("cpu") as track:
        memory.mark("now")
    vectors = [v for _, v in optim.state.tensors(run.rule.state[run.parameters[0]])]
    assert len(vectors) == 2 * 4 + 2
    rounded = sum(-(-v.nbytes // 512) * 512 for v in vectors)
    assert track.by_category("now")[Category.OPTIMIZER_STATE] >= rounded


def test_a_tensor_without_values_is_refused_outside_of_a_prediction():
    p = tm.zeros(3, device="meta").requires_grad_()
    rule = optim.LBFGS([p])

    def closure() -> Any:
        loss = p.square().sum()
        loss.backward()
        return loss

    with pytest.raises(DataDependenceError, match="has a shape"):
        rule.step(closure)


def test_a_closure_that_decides_by_its_loss_is_refused_in_a_prediction():
    def run() -> None:
        p = tm.rand(3).requires_grad_()
        rule = optim.LBFGS([p])

        def closure() -> Any:
            loss = p.square().sum()
            if loss.item() > 1:
                loss.backward()
            return loss

        rule.step(closure)

    with warnings.catch_warnings(action="ignore"), pytest.raises(DataDependenceError, match=r"test_lbfgs\.py:.*comparison"):
        memory.predict(run)


# --- failures ---------------------------------------------------------------------------------------------------------------


def iterations_of(options: dict[str, Any]) -> list[tuple[list, dict]]:
    """Parameters and state after 0, 1, 2, ... iterations of one step."""
    found = []
    for most in range(options["max_iter"] + 1):
        run = Run(tm, steep, **{**options, "max_iter": most})
        if most:
            run.step()
        found.append((run.values(), run.state()))
    return found


def place(run: Run, wanted: list[tuple[list, dict]]) -> int | None:
    """After which iteration a run stands; counts of evaluations and scratch aside."""
    for number, (values, state) in enumerate(wanted):
        mine, other = ({k: v for k, v in each.items() if k not in ("func_evals", "al")} for each in (run.state(), state))
        if repr((run.values(), mine)) == repr((values, other)):
            return number
    return None


def vectors() -> set[int]:
    """The live vectors of all parameters: those of the optimizer. What else lives may be held by the user's frames."""
    return {id(v) for v in alive({tm.Tensor}) if v.shape == (16,)}


@pytest.mark.parametrize("kind", ["closure", "memory"])
@pytest.mark.parametrize("options", [{"lr": 0.01}, WOLFE | {"lr": 3}], ids=["", "wolfe"])
def test_a_step_that_fails_ends_after_a_complete_iteration(
    options: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch, reliability: Callable[[str, int], None]
):
    options = options | {"max_iter": 4, "max_eval": 100, "tolerance_change": -1.0}
    wanted, places, failed = iterations_of(options), set(), 0
    for count in itertools.count(1, every(3) if kind == "memory" else 1):  # of the allocations a third
        gc.collect()
        run = Run(tm, steep, **options)
        before = vectors()
        error = KeyboardInterrupt() if kind == "closure" else tm.OutOfMemoryError("cpu", 4, 0, 0, 0)
        reached: list = []

        def closure(run: Run = run, reached: list = reached, error: Any = error, count: int = count) -> Any:
            loss = run.closure()
            if run.calls == count:
                reached.append(True)
                raise error
            return loss

        try:
            if kind == "closure":
                run.rule.step(closure)
            else:
                with failing_at(count, error, monkeypatch, "cpu") as reached:
                    run.step()
        except (KeyboardInterrupt, tm.OutOfMemoryError) as caught:
            assert caught is error  # noqa: PT017 (it is held on purpose: its traceback must pin nothing)
            failed += 1
            at = place(run, wanted)
            assert at is not None, f"{kind} {count}: parameters and state do not belong together"
            places.add(at)
            run.rule.zero_grad()
            held = optim.state.tensors(run.rule.state.get(run.parameters[0], {}))
            assert vectors() - before == {id(v) for _, v in held}, f"{kind} {count}"
            del held, run, closure, error  # so that no number of theirs is used again below
            continue
        if not reached:
            break
    assert {0, 1, 2, 3} <= places
    assert repr(run.values()) == repr(wanted[-1][0])
    reliability("steps of L-BFGS that failed, each left after a complete iteration", failed)


def test_a_failed_step_can_be_made_again():
    """With one iteration a step, all of it or nothing is done: the next step is the one that failed."""
    undisturbed = Run(tm, steep, **WOLFE, lr=3, max_iter=1)
    run = Run(tm, steep, **WOLFE, lr=3, max_iter=1)
    for _ in range(3):
        undisturbed.step()
        left = [2]

        def closure(left: list = left) -> Any:
            left[0] -= 1
            if not left[0]:
                raise ValueError("mine")
            return run.closure()

        with pytest.raises(ValueError, match="mine"):
            run.rule.step(closure)
        run.step()
        assert repr(run.values()) == repr(undisturbed.values())


# --- refusals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda p: optim.LBFGS([p], lr=-1), ValueError, "Invalid learning rate: -1"),
        (lambda p: optim.LBFGS([p], lr=tm.ones(2)), ValueError, "Tensor lr must be 1-element"),
        (lambda p: optim.LBFGS([p], line_search_fn="armijo"), ArgumentError, "only 'strong_wolfe' is supported, found"),
        (lambda p: optim.LBFGS([p], history_size=0), ArgumentError, "history_size: expected 1 or more, found 0"),
        (lambda p: optim.LBFGS([{"params": [p]}, {"params": []}]), ValueError, "doesn't support per-parameter options"),
        (lambda p: optim.LBFGS([{"params": [p], "master_weights": True}]), NotOfferedError, "master_weights is not offered"),
        (lambda p: optim.LBFGS([p]).step(), ArgumentTypeError, "expected a closure .* found None"),
        (lambda p: optim.LBFGS([p]).step(lambda: None), ArgumentTypeError, "returns the loss, a number, found None"),
        (lambda p: optim.LBFGS([p, p.double().detach()]).step(lambda: 1.0), ArgumentError, "one dtype and one device, found"),
        (lambda p: techniques.optimizer_in_backward(optim.LBFGS([p])), NotOfferedError, "LBFGS evaluates the loss several"),
    ],
)
def test_refusals(build: Any, error: type, match: str):
    with pytest.raises(error, match=match):
        build(tm.ones(2, requires_grad=True))


@pytest.mark.parametrize("missing", ["d", "t", "old_dirs", "ro", "H_diag", "prev_flat_grad"])
def test_a_state_dict_without_a_part_is_refused(missing: str):
    run = Run(tm, waves, max_iter=3)
    run.step()
    state = copy.deepcopy(run.rule.state_dict())
    del state["state"][0][missing]
    with pytest.raises(ArgumentError, match=f"'{missing}' is missing"):
        run.rule.load_state_dict(state)


def test_a_history_of_two_lengths_is_refused():
    run = Run(tm, waves, max_iter=3)
    run.step()
    state = copy.deepcopy(run.rule.state_dict())
    state["state"][0]["ro"].pop()
    with pytest.raises(ArgumentError, match="old_dirs, old_stps and ro should have one length"):
        run.rule.load_state_dict(state)
