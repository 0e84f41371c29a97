"""Each setting in PyTorch's table of optimizers, for each that is offered: six steps beside PyTorch's, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm

from .differences import DIFFERENCES, about, excuse
from .said import NotOursError, Said, optimizer_tables

STEPS = 6
SEARCHES = 2
"""Steps of a rule that evaluates the loss itself, up to 20 times a step."""
SHAPES = ((), (3,), (4, 3), (2, 3, 2, 2))
APART = ("SparseAdam", "Muon")
"""SparseAdam is below; Muon takes matrices alone, and PyTorch rounds its products to bfloat16: tests/optim compares it."""
RTOL = 1e-7
"""PyTorch keeps the scalars of some rules (NAdam's product, a learning rate that is a tensor) in float32."""


@cache
def offered() -> dict[str, Any]:
    """The rows of PyTorch's table whose optimizer is offered, by name."""
    rows = {info.optim_cls.__name__: info for info in optimizer_tables.optim_db}
    return {name: info for name, info in rows.items() if hasattr(tm.optim, name)}


def closure(parameters: list, rule: Any) -> Callable[[], Any]:
    """A loss of all parameters, each of another curvature."""

    def evaluate() -> Any:
        rule.zero_grad()
        loss = sum(((p + 0.1 * (i + 1)).square() * (i + 1)).sum() + p.sin().sum() for i, p in enumerate(parameters))
        loss.backward()
        return loss

    return evaluate


def failure(name: str, info: Any, sample: Any) -> str | None:
    """What is wrong with our steps, in words; ``None`` where nothing is."""
    rng = np.random.default_rng(5)
    arrays = [np.asarray(rng.standard_normal(shape)) for shape in SHAPES]
    theirs = [torch.nn.Parameter(torch.tensor(array)) for array in arrays]
    ours = [tm.nn.Parameter(tm.tensor(array)) for array in arrays]
    try:
        rule = info.optim_cls(theirs, **sample.kwargs)
        mine = getattr(tm.optim, name)(ours, **Said()(sample.kwargs))
        for step in range(SEARCHES if info.step_requires_closure else STEPS):
            for i, (a, b) in enumerate(zip(theirs, ours, strict=True)):
                grad = np.asarray(rng.standard_normal(a.shape))
                skipped = step == 2 and i == 1  # a parameter that has no gradient for once
                a.grad, b.grad = (None, None) if skipped else (torch.tensor(grad), tm.tensor(grad))
            if info.step_requires_closure:
                rule.step(closure(theirs, rule))
                mine.step(closure(ours, mine))
            else:
                rule.step()
                mine.step()
            for a, b in zip(theirs, ours, strict=True):
                np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=RTOL, atol=1e-10)
    except AssertionError as wrong:
        return " ".join(str(wrong).split())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _checked(kind: str, name: str, cases: list[tuple[Any, str, str | None]]) -> None:
    used, wrong = set(), {}
    for tried, words, found in cases:
        excused = excuse(kind, name, tried, found) if found else None
        if excused:
            used.add(excused)
        elif found:
            wrong.setdefault(found, words)
    assert not wrong, "\n" + "\n".join(f"{said}: {why}" for why, said in wrong.items())
    unused = about(kind, name) - used
    assert not unused, f"these differences are none: {[each.why for each in unused]}"


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("name", [name for name in offered() if name not in APART])
def test_steps_are_pytorchs(name: str, reliability: Callable[[str, int], None]):
    info = offered()[name]
    samples = info.optim_inputs_func(device="cpu")
    _checked("optimizer", name, [(each, f"{name}(**{each.kwargs})", failure(name, info, each)) for each in samples])
    reliability("settings of PyTorch's table of optimizers", len(samples))


def sparse_failure(sample: Any) -> str | None:
    """As :func:`failure`, of rows of an embedding."""
    rng = np.random.default_rng(5)
    table, places = rng.standard_normal((7, 3)), torch.tensor([[1, 2], [2, 6]])
    theirs = torch.nn.Embedding(7, 3, sparse=True, _weight=torch.tensor(table))
    ours = tm.nn.Embedding(7, 3, sparse=True, _weight=tm.tensor(table))
    try:
        rule = torch.optim.SparseAdam(theirs.parameters(), **sample.kwargs)
        mine = tm.optim.SparseAdam(ours.parameters(), **Said()(sample.kwargs))
        for step in range(STEPS):
            rule.zero_grad()
            mine.zero_grad()
            (theirs(places) * (step + 1)).square().sum().backward()
            (ours(tm.tensor(places.numpy())) * (step + 1)).square().sum().backward()
            rule.step()
            mine.step()
            np.testing.assert_allclose(ours.weight.detach().numpy(), theirs.weight.detach().numpy(), rtol=RTOL, atol=1e-10)
    except AssertionError as wrong:
        return " ".join(str(wrong).split())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.filterwarnings("ignore")
def test_sparse_steps_are_pytorchs(reliability: Callable[[str, int], None]):
    samples = offered()["SparseAdam"].optim_inputs_func(device="cpu")
    _checked("optimizer", "SparseAdam", [(each, str(each.kwargs), sparse_failure(each)) for each in samples])
    reliability("settings of PyTorch's table of optimizers", len(samples))


def refused(name: str, error: Any) -> str | None:
    """Of what PyTorch refuses: what we do instead of refusing; ``None`` where we refuse."""
    try:
        given, said = error.optimizer_error_input, Said()
        params = [torch.nn.Parameter(torch.ones(2))] if given.params is None else given.params
        with warnings.catch_warnings(action="error"):  # of some the error is a warning
            made = getattr(tm.optim, name)(said(params), **said(given.kwargs))
            if error.error_on == optimizer_tables.OptimizerErrorEnum.STEP_ERROR:
                made.step()
    except (tm.errors.TinygradMemError, error.error_type, NotOursError):
        return None
    except Exception as accident:
        return f"{type(accident).__name__}: {accident}"
    return f"not refused; PyTorch says {error.error_regex}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", offered())
def test_what_pytorch_refuses_is_refused(name: str, reliability: Callable[[str, int], None]):
    errors = offered()[name].optim_error_inputs_func(device="cpu", dtype=torch.float32)
    _checked("error", name, [(each, str(each.optimizer_error_input), refused(name, each)) for each in errors])
    reliability("calls that PyTorch refuses", len(errors))


def test_the_list_names_what_is_in_the_table():
    named = {name for each in DIFFERENCES if each.kind == "optimizer" for name in each.names.split()}
    assert named <= offered().keys()
