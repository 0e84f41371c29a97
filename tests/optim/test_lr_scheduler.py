"""Schedules against PyTorch's, value by value."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem import optim

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.3}),
    ("ConstantLR", {"factor": 0.5, "total_iters": 4}),
    ("ConstantLR", {}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.8, "total_iters": 6}),
    ("LinearLR", {}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("PolynomialLR", {"total_iters": 7, "power": 2.0}),
    ("PolynomialLR", {}),
    ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
    ("CosineAnnealingLR", {"T_max": 8}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 4}),
    ("LambdaLR", {"lr_lambda": lambda e: 1 / (1 + e)}),
    ("LambdaLR", {"lr_lambda": [lambda e: 0.9**e, lambda e: 0.8**e]}),
    ("MultiplicativeLR", {"lr_lambda": lambda e: 0.95}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 25}),
    ("OneCycleLR", {"max_lr": [0.5, 0.2], "epochs": 5, "steps_per_epoch": 5, "anneal_strategy": "linear", "pct_start": 0.4}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 25, "three_phase": True}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 25, "cycle_momentum": False}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 4}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 4, "step_size_down": 2, "mode": "triangular2"}),
    ("CyclicLR", {"base_lr": [0.01, 0.02], "max_lr": 0.1, "step_size_up": 3, "mode": "exp_range", "gamma": 0.9}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "scale_fn": lambda x: 0.5, "cycle_momentum": False}),
]
rows = pytest.mark.parametrize(("name", "options"), ROWS, ids=[f"{i}-{name}" for i, (name, _) in enumerate(ROWS)])
ours, theirs = optim.lr_scheduler, torch.optim.lr_scheduler


def pair(kind: str = "SGD") -> tuple[Any, Any]:
    options: dict[str, Any] = {"momentum": 0.9} if kind == "SGD" else {}
    groups = [{"lr": 0.1}, {"lr": 0.03}]
    mine = getattr(optim, kind)([{"params": [tm.zeros(2, requires_grad=True)], **g} for g in groups], **options)
    other = getattr(torch.optim, kind)([{"params": [torch.zeros(2, requires_grad=True)], **g} for g in groups], **options)
    return mine, other


def momentum(o: Any) -> list:
    return [g.get("momentum", g.get("betas", 0)) for g in o.param_groups]


def follow(mine: Any, other: Any, a: Any, b: Any, steps: int = 24) -> None:
    assert a.get_last_lr() == pytest.approx(b.get_last_lr(), rel=1e-12, abs=1e-15)
    for _ in range(steps):
        mine.step()
        other.step()
        a.step()
        b.step()
        np.testing.assert_allclose([g["lr"] for g in mine.param_groups], [g["lr"] for g in other.param_groups], 1e-12, 1e-15)
        np.testing.assert_allclose(momentum(mine), momentum(other), 1e-12)
        assert a.last_epoch == b.last_epoch
        assert a.get_last_lr() == [g["lr"] for g in mine.param_groups]


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@rows
def test_equals_pytorch(name: str, options: dict, kind: str):
    mine, other = pair(kind)
    follow(mine, other, getattr(ours, name)(mine, **options), getattr(theirs, name)(other, **options))


@rows
def test_resumes_from_its_state(name: str, options: dict):
    mine, other = pair()
    a, b = getattr(ours, name)(mine, **options), getattr(theirs, name)(other, **options)
    follow(mine, other, a, b, 7)
    again, _ = pair()
    resumed = getattr(ours, name)(again, **options)
    again.load_state_dict(mine.state_dict())
    resumed.load_state_dict(a.state_dict())
    follow(again, other, resumed, b, 10)


@pytest.mark.parametrize(
    "name", ["StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR", "CosineAnnealingLR"]
)
def test_going_to_an_epoch(name: str):
    options = next(o for n, o in ROWS if n == name)
    mine, other = pair()
    a, b = getattr(ours, name)(mine, **options), getattr(theirs, name)(other, **options)
    other.step()
    for epoch in (3, 11, 4):
        a.step(epoch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            b.step(epoch)
        assert a.get_last_lr() == pytest.approx(b.get_last_lr(), rel=1e-12)


@pytest.mark.parametrize("longer", [1, 2, 3])
def test_warm_restarts_take_fractions(longer: int):
    mine, other = pair()
    a, b = (lib.CosineAnnealingWarmRestarts(o, 3, longer) for lib, o in ((ours, mine), (theirs, other)))
    for epoch in (0.5, 1.25, 3.5, None, 8.0, 10.75, 20.0, None, None, 1.0, None):
        a.step(epoch)
        b.step(epoch)
        assert a.get_last_lr() == pytest.approx(b.get_last_lr(), rel=1e-12)
    with pytest.raises(ValueError, match="non-negative epoch"):
        a.step(-1)


def sequence(module: Any, o: Any) -> Any:
    parts = [module.LinearLR(o, 0.1, total_iters=4), module.CosineAnnealingLR(o, 6), module.ExponentialLR(o, 0.9)]
    return module.SequentialLR(o, parts, milestones=[4, 9])


def chain(module: Any, o: Any) -> Any:
    return module.ChainedScheduler([module.ConstantLR(o, 0.5, 4), module.ExponentialLR(o, 0.9)])


def nested(module: Any, o: Any) -> Any:
    inner = module.SequentialLR(o, [module.ConstantLR(o, 0.1, 2), module.StepLR(o, 2)], milestones=[3])
    return module.SequentialLR(o, [inner, module.ExponentialLR(o, 0.5)], milestones=[8])


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")  # PyTorch's own, of its nested schedules
@pytest.mark.parametrize("build", [sequence, chain, nested])
def test_compositions(build: Any):
    mine, other = pair()
    a, b = build(ours, mine), build(theirs, other)
    for _ in range(15):
        mine.step()
        other.step()
        a.step()
        b.step()
        assert a.get_last_lr() == pytest.approx(b.get_last_lr(), rel=1e-12)
    again, _ = pair()
    resumed = build(ours, again)
    again.load_state_dict(mine.state_dict())
    resumed.load_state_dict(a.state_dict())
    resumed.step()
    a.step()
    assert resumed.get_last_lr() == a.get_last_lr()


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize(("patience", "cooldown", "min_lr"), [(0, 0, 0), (2, 1, 0.01), (1, 3, [0.02, 0.001])])
def test_plateau(mode: str, threshold_mode: str, patience: int, cooldown: int, min_lr: Any):
    mine, other = pair()
    options = {"threshold": 0.05, "patience": patience, "cooldown": cooldown, "min_lr": min_lr, "factor": 0.5}
    a = ours.ReduceLROnPlateau(mine, mode, threshold_mode=threshold_mode, **options)
    b = theirs.ReduceLROnPlateau(other, mode, threshold_mode=threshold_mode, **options)
    for i, metric in enumerate(np.random.default_rng(0).random(30)):
        a.step(tm.tensor(float(metric), dtype=tm.float64) if i % 2 else float(metric))
        b.step(float(metric))
        assert [g["lr"] for g in mine.param_groups] == pytest.approx([g["lr"] for g in other.param_groups], rel=1e-12)
        assert (a.num_bad_epochs, a.in_cooldown, a.best) == (b.num_bad_epochs, b.in_cooldown, b.best)
    fresh = ours.ReduceLROnPlateau(mine)
    fresh.load_state_dict(a.state_dict())
    assert fresh.best == a.best


class Factor:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, epoch: int) -> float:
        return self.value**epoch


def test_callable_objects_keep_their_attributes():
    state = ours.LambdaLR(pair()[0], Factor(0.5)).state_dict()
    other = ours.LambdaLR(pair()[0], Factor(0.1))
    other.load_state_dict(state)
    assert [f.value for f in other.lr_lambdas] == [0.5, 0.5]


@pytest.mark.parametrize("scale", [lambda x: 0.5, Factor(0.5)], ids=["function", "object"])
def test_a_scale_function_and_states_of_pytorchs(scale: Any):
    """As in PyTorch a function stays, and an object gets the attributes that were saved."""
    cycle: dict[str, Any] = {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3}
    mine, other = pair()
    a, b = ours.CyclicLR(mine, scale_fn=copy.copy(scale), **cycle), theirs.CyclicLR(other, scale_fn=copy.copy(scale), **cycle)
    follow(mine, other, a, b, 4)
    resumed = []
    for saved in (a.state_dict(), b.state_dict()):
        for library, optimizer in zip((ours, theirs), pair(), strict=True):
            again = library.CyclicLR(optimizer, scale_fn=Factor(0.1) if isinstance(scale, Factor) else scale, **cycle)
            again.load_state_dict(dict(saved))
            again.step()
            resumed.append(again.get_last_lr())
    np.testing.assert_allclose(resumed, resumed[:1] * 4, 1e-12)


def test_a_scale_function_that_is_missing_is_asked_for():
    cycle: dict[str, Any] = {"base_lr": 0.01, "max_lr": 0.1}
    saved = ours.CyclicLR(pair()[0], scale_fn=Factor(0.5), **cycle).state_dict()
    plain = ours.CyclicLR(pair()[0], **cycle)
    with pytest.raises(ValueError, match="the schedule that was saved has a scale_fn: give this one its own"):
        plain.load_state_dict(saved)


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda o: ours.StepLR(3, 1), TypeError, "int is not an Optimizer"),
        (lambda o: ours.StepLR(o, 1, last_epoch=3), KeyError, "'initial_lr' is not specified in param_groups"),
        (lambda o: ours.ConstantLR(o, 2), ValueError, "expected to be between 0 and 1"),
        (lambda o: ours.LinearLR(o, 0), ValueError, "Starting multiplicative factor"),
        (lambda o: ours.LinearLR(o, 1, 2), ValueError, "Ending multiplicative factor"),
        (lambda o: ours.LambdaLR(o, [abs]), ValueError, "Expected 2 lr_lambdas, but got 1"),
        (lambda o: ours.CosineAnnealingWarmRestarts(o, 0), ValueError, "Expected positive integer T_0, but got 0"),
        (lambda o: ours.CosineAnnealingWarmRestarts(o, 1, 0), ValueError, "Expected integer T_mult >= 1, but got 0"),
        (lambda o: ours.OneCycleLR(o, 1.0), ValueError, "must define either total_steps"),
        (lambda o: ours.OneCycleLR(o, 1.0, 0), ValueError, "Expected positive integer total_steps, but got 0"),
        (lambda o: ours.OneCycleLR(o, 1.0, 9, pct_start=2.0), ValueError, "between 0 and 1 pct_start, but got 2.0"),
        (lambda o: ours.OneCycleLR(o, 1.0, 9, anneal_strategy="x"), ValueError, "must be one of 'cos' or 'linear'"),
        (lambda o: ours.OneCycleLR(o, [1.0], 9), ValueError, "max_lr must have the same length"),
        (lambda o: ours.CyclicLR(o, 0.1, 1, mode="x"), ValueError, "mode is invalid and scale_fn is None"),
        (lambda o: ours.CyclicLR(optim.Adagrad([tm.zeros(1)]), 0.1, 1), ValueError, "must support momentum or beta1"),
        (lambda o: ours.SequentialLR(o, [], []), ValueError, "expects at least one scheduler"),
        (lambda o: ours.SequentialLR(o, [ours.StepLR(o, 1)], [3]), ValueError, "one more than the number of milestone"),
        (lambda o: ours.SequentialLR(o, [3], []), TypeError, "should have `optimizer` as its attribute"),
        (lambda o: ours.ChainedScheduler([]), ValueError, "at least one scheduler to be chained"),
        (lambda o: ours.ChainedScheduler([ours.ReduceLROnPlateau(o)]), ValueError, "does not support `ReduceLROnPlateau`"),
        (lambda o: ours.ChainedScheduler([ours.StepLR(o, 1)], pair()[0]), ValueError, "belong to the same optimizer"),
        (lambda o: ours.ReduceLROnPlateau(o, factor=1.0), ValueError, "Factor should be < 1.0"),
        (lambda o: ours.ReduceLROnPlateau(o, "x"), ValueError, "mode x is unknown"),
        (lambda o: ours.ReduceLROnPlateau(o, threshold_mode="x"), ValueError, "threshold mode x is unknown"),
        (lambda o: ours.ReduceLROnPlateau(o, min_lr=[1]), ValueError, "expected 2 min_lrs, got 1"),
        (lambda o: ours.LRScheduler(o), NotImplementedError, "LRScheduler does not define its rates"),
    ],
)
def test_refusals(build: Any, error: type, match: str):
    with pytest.raises(error, match=match):
        build(pair()[0])


def test_one_cycle_ends():
    o, _ = pair()
    schedule = ours.OneCycleLR(o, 1.0, 3)
    o.step()
    for _ in range(3):
        schedule.step()
    with pytest.raises(ValueError, match=r"Tried to step 4 times\. The specified number of total steps is 3"):
        schedule.step()


@pytest.mark.parametrize("library", [torch, tm], ids=["torch", "ours"])
def test_a_schedule_that_runs_ahead_of_its_optimizer_says_so(library):
    def parts() -> tuple:
        optimizer = library.optim.SGD([library.nn.Parameter(library.ones(2))], lr=0.1)
        return optimizer, library.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    optimizer, schedule = parts()
    with pytest.warns(UserWarning, match=r"Detected call of `lr_scheduler.step\(\)` before `optimizer.step\(\)`"):
        schedule.step()
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    optimizer, schedule = parts()
    optimizer.step()
    schedule.step()
    schedule.step()
