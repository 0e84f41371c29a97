"""Every optimizer through one net: groups, frozen parameters, sparse gradients, dtypes, a checkpoint into another run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.optim.light import rule
from tinygrad_mem import optim

NAMES = sorted(name for name, kind in vars(optim).items() if isinstance(kind, type) and issubclass(kind, optim.Optimizer))
NAMES.remove("Optimizer")
every = pytest.mark.parametrize("name", NAMES)
grouped = pytest.mark.parametrize("name", [name for name in NAMES if name != "LBFGS"])  # which has one group
SPARSE = {"SGD", "Adagrad", "SparseAdam", "LBFGS"}
HALF_STATE = {"SGD", "Adam", "AdamW", "Lion"}


def made(name: str, params: Any, **options: Any) -> Any:
    return rule(name)(params, lr=0.1, **options)


def values(*shapes: tuple[int, ...], dtype: Any = tm.float32) -> list[tm.Tensor]:
    rng = np.random.default_rng(5)
    return [tm.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype).requires_grad_() for shape in shapes]


def step(name: str, o: Any, params: list[tm.Tensor], seed: int = 0) -> None:
    """A step with gradients of its own; of a table its rows 0 and 2, where the rule takes nothing else."""
    for i, p in enumerate(params):
        g = np.random.default_rng([seed, i]).standard_normal(p.shape).astype(np.float32)
        if name == "SparseAdam":
            p.grad = None
            rows = tm.nn.functional.embedding(tm.tensor([0, 2]), p, sparse=True)
            (rows * tm.tensor(g[[0, 2]]).to(p.dtype)).sum().backward()
        else:
            p.grad = tm.tensor(g).to(p.dtype)
    o.step(*([lambda: tm.tensor(1.0)] if o.needs_closure else []))


def same(found: list[tm.Tensor], wanted: list[tm.Tensor]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a.detach().float().numpy(), b.detach().float().numpy())


SHAPES = [(70, 90), (50, 3)]


@every
@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_negative_rates_are_refused(name: str, wrong: float):
    asked = {key: each.default for key, each in inspect.signature(rule(name)).parameters.items()}
    for key in asked.keys() & {
        "lr",
        "eps",
        "weight_decay",
        "momentum",
        "betas",
        "alpha",
        "lr_decay",
        "initial_accumulator_value",
    }:
        if (name, key) == ("Muon", "eps"):
            continue  # PyTorch takes any
        given = tuple(wrong if type(each) is float else each for each in asked[key]) if type(asked[key]) is tuple else wrong
        with pytest.raises(ValueError, match=r"Invalid|should|expected"):
            rule(name)(values((3, 4)), **{"lr": 0.1, key: given})
    for key in asked.keys() & ({"weight_decay"} if name == "SparseAdam" else {"lr", "weight_decay"}):
        rule(name)(values((3, 4)), **{"lr": 0.1, key: 0.0})


@every
def test_a_frozen_parameter_stays_and_keeps_nothing(name: str):
    p, q = values(*SHAPES)
    q.requires_grad_(False)
    before = [p.tolist(), q.tolist()]
    o = made(name, [p, q])
    step(name, o, [p])
    assert q.tolist() == before[1]
    assert p.tolist() != before[0]
    assert q not in o.state


@grouped
def test_an_empty_group_and_one_that_is_added_later(name: str):
    p, q = values(*SHAPES)
    p2, q2 = values(*SHAPES)
    tm.manual_seed(0)
    o = made(name, [{"params": []}, {"params": [p]}])
    tm.manual_seed(0)
    twin = made(name, [p2])
    for each, params in ((o, [p, q]), (twin, [p2, q2])):
        tm.manual_seed(0)
        step(name, each, params[:1])
        each.add_param_group({"params": params[1:], "lr": 0.0, "weight_decay": 0.0})
        step(name, each, params, seed=1)
    same([p, q], [p2, q2])
    same([q], values(*SHAPES)[1:])
    found = o.state_dict()
    assert [group["params"] for group in found["param_groups"]] == [[], [0], [1]]
    o.load_state_dict(found)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "LBFGS"])  # whose steps make new arrays
def test_a_state_dict_that_was_not_copied_is_of_the_moment_when_it_is_loaded(name: str):
    """Its arrays are the optimizer's own: an older step count among them would be another run's."""
    found = []
    for load in (False, True):
        tm.manual_seed(0)
        params = values(*SHAPES)
        o = made(name, params)
        step(name, o, params)
        state = o.state_dict()
        step(name, o, params, seed=1)
        if load:
            o.load_state_dict(state)
        step(name, o, params, seed=2)
        found.append(params)
    same(*found)


@every
def test_without_gradients_nothing_happens(name: str):
    params = values(*SHAPES)
    o = made(name, params)
    o.step(*([lambda: tm.tensor(1.0)] if o.needs_closure else []))
    same(params, values(*SHAPES))
    assert not [t for state in o.state.values() for t in state.values() if isinstance(t, tm.Tensor)]


@every
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_parameters_without_elements(name: str, shape: tuple[int, ...]):
    (p,) = values(shape)
    o = made(name, [p])
    if name == "LBFGS":
        with pytest.raises(ValueError, match=r"LBFGS\.step: its 1 parameters have no elements: give it parameters"):
            step(name, o, [p])
        return
    if name == "SparseAdam":
        return  # a table has rows
    for seed in range(2):
        step(name, o, [p], seed)
    assert p.shape == shape


@every
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(name: str, dtype: str):
    """Two steps of a rate that half precision sees; the numbers stay finite, and near those of float32."""
    narrow, wide = values(*SHAPES, dtype=getattr(tm, dtype)), values(*SHAPES)
    for params in (narrow, wide):
        o = made(name, params)
        tm.manual_seed(0)
        for seed in range(2):
            step(name, o, params, seed)
    if name == "APOLLOMini" and dtype == "float64":
        return  # its projection is drawn in float64: of other numbers
    for a, b, start in zip(narrow, wide, values(*SHAPES), strict=True):
        assert a.dtype == getattr(tm, dtype)
        moved = b.detach() - start.detach()
        assert np.isfinite(a.detach().float().numpy()).all()
        close = np.isclose(a.detach().float().numpy(), b.detach().numpy(), rtol=0.05, atol=0.05 * float(moved.abs().max()))
        assert close.mean() > 0.97


@every
def test_a_dtype_of_the_state_is_kept_or_refused(name: str):
    (p,) = values((70, 90))
    if name not in HALF_STATE:
        with pytest.raises(NotImplementedError, match=f"{name}: state_dtype is not offered; it is for SGD with momentum, Adam"):
            made(name, [{"params": [p], "state_dtype": tm.float16}])
        return
    o = made(name, [{"params": [p], "state_dtype": tm.float16}], **({"momentum": 0.9} if name == "SGD" else {}))
    step(name, o, [p])
    assert {t.dtype for t in o.state[p].values() if isinstance(t, tm.Tensor)} == {np.dtype(np.float16)}


@every
def test_rows_are_taken_or_refused_in_words(name: str):
    table = tm.nn.Embedding(10, 4, sparse=True)
    before = table.weight.tolist()
    o = made(name, table.parameters())
    table(tm.tensor([1, 2, 1])).sum().backward()
    closure = [lambda: tm.tensor(1.0)] if o.needs_closure else []
    if name in SPARSE:
        o.step(*closure)
        assert [i for i, (a, b) in enumerate(zip(table.weight.tolist(), before, strict=True)) if a != b] == [1, 2]
        return
    with pytest.raises(ValueError, match=f"^{name} does not support sparse gradients"):
        o.step(*closure)
    assert table.weight.tolist() == before
    assert not o.state.get(table.weight)


@every
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_checkpoint_goes_on_in_another_run(name: str, dtype: str, tmp_path: Path):
    params = values(*SHAPES, dtype=getattr(tm, dtype))
    o = made(name, params)
    for seed in range(3):
        step(name, o, params, seed)
    tm.save({"p": [p.detach() for p in params], "o": o.state_dict()}, tmp_path / "c")
    found = tm.load(tmp_path / "c")
    again = [p.requires_grad_() for p in found["p"]]
    other = rule(name)(again, lr=0.7)  # another rate, which the dict replaces
    other.load_state_dict(found["o"])
    assert other.param_groups[0]["lr"] == 0.1
    for seed in range(3, 6):
        step(name, o, params, seed)
        step(name, other, again, seed)
    same(again, params)


@every
def test_a_checkpoint_of_another_rule_is_refused(name: str):
    """Nothing is filled up with defaults: a run would seem to go on, and begin anew."""
    (p,) = values((70, 90))
    other = "Adadelta" if name != "Adadelta" else "RMSprop"
    given = made(other, [p])
    step(other, given, [p])
    o = made(name, [p])
    if name != "LBFGS":
        step(name, o, [p])
    before = o.state_dict()
    given.param_groups[0]["initial_lr"] = 0.1  # schedules add it, and it says nothing
    words = f"{name}: param_groups.0. of the dict has no '|has square_avg, acc_delta, and here it needs nothing"
    with pytest.raises(ValueError, match=words):
        o.load_state_dict(given.state_dict())
    assert o.state_dict()["param_groups"] == before["param_groups"]


@pytest.mark.parametrize(
    ("name", "into"), [("Adam8bit", 32), ("AdamW4bit", 32), ("SGD8bit", 32), ("Adam8bit", 8), ("Adam4bit", 4)]
)
def test_moments_of_another_number_of_bits_are_refused(name: str, into: int):
    """They would stay beside new ones of zeros, whose step count is not that of new ones."""
    (p,) = values((70, 90))
    given, o = made(name, [p], **({} if into == 32 else {"optim_bits": 32})), made(name, [p])
    step(name, given, [p])
    found = given.state_dict()
    found["param_groups"][0]["optim_bits"] = into
    with pytest.raises(ValueError, match=r"a parameter of shape \[70, 90\] has .*, and here it needs (exp|state|momentum)"):
        o.load_state_dict(found)
    assert not o.state


def test_arrays_of_another_rule_are_refused():
    """Lion has no option that Adam has not; Adam's mean squares would stay, and take 4 bytes a number."""
    (p,) = values((70, 90))
    given = made("AdamW", [p])
    step("AdamW", given, [p])
    with pytest.raises(ValueError, match="has exp_avg, exp_avg_sq, and here it needs exp_avg: the dict is of another"):
        made("Lion", [p]).load_state_dict(given.state_dict())


@every
def test_the_docstring_says_what_one_asks(name: str):
    kind: Any = getattr(optim, name)
    own = kind.__doc__ or ""
    parent = kind.__mro__[1] if f":class:`{kind.__mro__[1].__name__}`" in own else None
    for word in ("Memory:", "Raises:", "Source:"):
        assert word in own or word in (getattr(parent, "__doc__", None) or ""), word


def spoiled(name: str, dev: str) -> list[np.ndarray]:
    """Where a nan in one element of a gradient has led to nans after two steps: in parameters, and in their state."""
    tm.manual_seed(0)
    params = [p.detach().to(dev).requires_grad_() for p in values((70, 90), (5000,))]
    o = made(name, params)
    for _ in range(2):
        for p in params:
            p.grad = tm.ones(*p.shape, device=dev)
            p.grad.reshape(-1)[70] = float("nan")
        o.step(*([lambda: tm.tensor(1.0)] if o.needs_closure else []))
    arrays = [p.detach() for p in params] + [x for p in params for x in o.state[p].values() if isinstance(x, tm.Tensor)]
    return [np.isnan(x.cpu().numpy()) for x in arrays if x.is_floating_point()]


@pytest.mark.cuda
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("SparseAdam", "GaLore", "LBFGS")])
def test_a_nan_spoils_the_same_numbers_on_a_gpu(name: str):
    """A GPU's own ``max`` leaves a nan out."""
    for ours, theirs in zip(spoiled(name, "cuda"), spoiled(name, "cpu"), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "options"), [("Adam", {"betas": (tm.tensor(0.9), 0.99)}), ("SGD", {"momentum": tm.tensor(0.9)})]
)
def test_an_option_that_is_a_tensor_is_refused(name: str, options: dict):
    with pytest.raises(TypeError, match=f"{name}: expected numbers as {next(iter(options))}, found a tensor"):
        getattr(tm.optim, name)([tm.ones(2, requires_grad=True)], lr=0.1, **options)
    made(name, [tm.ones(2, requires_grad=True)]).param_groups[0]["lr"] = tm.tensor(0.1)
