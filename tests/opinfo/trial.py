"""One sample of PyTorch's table of ops, run here and there: function, method, in-place and operator forms."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

import tinygrad_mem as tm
from tests.case import assert_same, flat
from tests.profiles import every
from tinygrad_mem.ops.base import root_of

from .said import NotOursError, Said, named, our, tables, toleranceOverride

CAP = 24
"""How many samples of an op are tried in each dtype."""
_ELEMENTWISE = (tables.UnaryUfuncInfo, tables.BinaryUfuncInfo)
DTYPES = (torch.float64, torch.float32, torch.int64, torch.bool)
TOLERANCE = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}
"""dtype -> (rtol, atol): those of ``torch.testing.assert_close``, which PyTorch's tests of these samples use."""
_DRAWN = """normal bernoulli multinomial randn randn_like rand_like randint randint_like uniform exponential cauchy geometric
    log_normal empty empty_like empty_strided new_empty resize_ nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout"""
RANDOM = frozenset(_DRAWN.split())
"""Ops whose values are drawn, or are not set: shapes and dtypes are compared."""
PLACES = {"sort": 0, "argsort": 0, "topk": 1, "mode": 0}
"""Ops whose last result names places of numbers, and where ``dim`` stands among their arguments. Of equal numbers, which are
frequent among integers, they may name any, each once."""


def tolerance(op: Any, dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol) for results of an op: that of the dtype, or the larger one that PyTorch's table states for the op."""
    rtol, atol = TOLERANCE.get(str(dtype).removeprefix("torch."), (0, 0))
    for info in op.decorators:
        for each in getattr(info, "decorators", [info]):
            if getattr(info, "device_type", None) in (None, "cpu") and isinstance(each, toleranceOverride) and dtype in each.d:
                rtol, atol = max(rtol, each.d[dtype].rtol), max(atol, each.d[dtype].atol)
    return rtol, atol


@dataclass(frozen=True)
class Trial:
    """A sample and the form in which it is run.

    Attributes:
        name: the op's name in PyTorch's table, or an alias of it.
        form: "function", "method", "in-place", "operator" or "in-place operator".
        theirs, ours: what is called with the sample's input, arguments and keywords.
    """

    op: Any
    name: str
    form: str
    dtype: torch.dtype
    sample: Any
    theirs: Any
    ours: Any

    @property
    def writes(self) -> bool:
        """Whether the input is written: it is copied first."""
        return self.form.startswith("in-place") or self.op.name.endswith("_") or self.op.variant_test_name == "in_place"

    @property
    def drawn(self) -> bool:
        """Whether the values are random."""
        dropped = self.sample.kwargs.get("dropout_p") or 0.5 in [v for v in self.sample.args if type(v) is float]
        return self.op.name in RANDOM or ("attention" in self.op.name and bool(dropped))

    @property
    def open(self) -> bool:
        """Whether the last result may name any of equal numbers."""
        return self.op.name in PLACES and not self.dtype.is_floating_point and not self.sample.kwargs.get("stable")

    def __str__(self) -> str:
        said = [_short(self.sample.input), *map(_short, self.sample.args)]
        said += [f"{key}={_short(value)}" for key, value in self.sample.kwargs.items()]
        return f"{self.form} {self.name}({', '.join(said)})"


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_short, value))})"
    return repr(value)


@cache
def offered() -> dict[str, list[Any]]:
    """The rows of PyTorch's table whose function or method is offered, by name."""
    found: dict[str, list[Any]] = {}
    for op in tables.op_db:
        try:
            our(op.op)
            named(tm, op.name) if not hasattr(tm.Tensor, op.name) else None
        except NotOursError:
            continue
        found.setdefault(op.name, []).append(op)
    return found


def trials(op: Any, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[list[Trial]]:
    """Each sample of a row in every form that is offered. In a usual run, as a function and in every third of the other forms:
    these by turns, from sample to sample; of float64 a third of the samples, of other dtypes a sixth.
    """
    forms = list(_forms(op))
    for turn_of_dtype, dtype in enumerate(dtypes):
        if not op.supports_dtype(dtype, "cpu"):
            continue
        torch.manual_seed(0)
        random.seed(0)
        drawn = op.sample_inputs_func(op, "cpu", dtype, dtype.is_floating_point and op.supports_autograd)
        samples = list(itertools.islice(drawn, 8 * CAP))
        tried = min(CAP // every(3 if dtype == torch.float64 else 6), len(samples))
        for i in range(tried):
            sample = samples[i * len(samples) // tried]
            turn = (i + turn_of_dtype) % every(3)
            asked = forms if len(samples) == 1 else [f for at, f in enumerate(forms) if at == 0 or at % every(3) == turn]
            fit = [f for f in asked if not (sample.kwargs and f[0].endswith("operator"))]  # which take no keywords
            yield [Trial(op, name, form, dtype, sample, theirs, ours) for form, name, theirs, ours in fit]


def _forms(op: Any) -> Iterator[tuple[str, str, Any, Any]]:
    """The forms of an op and of its aliases: what it is called, PyTorch's and ours."""
    rows = [
        ("function", op.name, op.op),
        ("method", op.name, op.get_method()),
        ("in-place", op.name, op.get_inplace()),
        ("operator", op.name, op.get_operator()),
        ("in-place operator", op.name, op.get_inplace_operator()),
    ]
    for alias in op.aliases:
        rows += [("function", alias.name, alias.op), ("method", alias.name, alias.method_variant)]
        rows.append(("in-place", alias.name, alias.inplace_variant))
    for form, name, theirs in rows:
        try:
            if theirs is not None:
                yield form, name, theirs, our(theirs)
        except NotOursError:
            continue


@dataclass(frozen=True)
class Outcome:
    """What PyTorch answers: its result, or the error; its gradients, by the identity of the sample's tensors."""

    result: Any = None
    error: Exception | None = None
    grads: dict[int, torch.Tensor | None] | None = None


def outcomes(same: list[Trial]) -> Iterator[tuple[Trial, Outcome]]:
    """The forms of one sample, each with PyTorch's answer, which forms that mean the same share."""
    known: dict[bool, Outcome] = {}
    for trial in same:
        if trial.writes not in known:
            known[trial.writes] = _theirs(trial)
        yield trial, known[trial.writes]


def _call(function: Any, trial: Trial, input: Any, args: Any, kwargs: Any) -> Any:
    if trial.writes and hasattr(input, "clone"):
        input = input.clone()
    return function(input, *args, **kwargs)


def _theirs(trial: Trial) -> Outcome:
    sample = trial.sample
    leaves = flat([sample.input, list(sample.args), list(sample.kwargs.values())])
    for leaf in leaves:
        leaf.grad = None
    try:
        result = _call(trial.theirs, trial, sample.input, sample.args, sample.kwargs)
        wanted = [t for t in flat(result) if t.requires_grad]
        if wanted:
            torch.autograd.backward(
                wanted, [torch.from_numpy(s).to(t.dtype) for s, t in zip(_seeds(wanted), wanted, strict=True)]
            )
    except Exception as error:
        return Outcome(error=error)
    return Outcome(result, None, {id(leaf): leaf.grad for leaf in leaves})


def _seeds(results: list[torch.Tensor]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [np.asarray(rng.standard_normal(tuple(t.shape))) for t in results]


def failure(trial: Trial, expected: Outcome) -> str | None:
    """What is wrong with our answer, in words; ``None`` where nothing is."""
    try:
        if expected.error is None:
            _compare(trial, expected)
            return None
        _answer(trial)
    except AssertionError as wrong:
        return " ".join(str(wrong).split())
    except tm.errors.TinygradMemError as refused:
        return None if expected.error is not None else f"{type(refused).__name__}: {refused}"
    except Exception as accident:
        return f"{type(accident).__name__}: {accident}"
    return f"not refused; PyTorch says {expected.error}"


def _answer(trial: Trial, said: Said | None = None) -> Any:
    said = said or Said()
    sample = trial.sample
    return _call(trial.ours, trial, said(sample.input), said(tuple(sample.args)), said(sample.kwargs))


def _compare(trial: Trial, expected: Outcome) -> None:
    said = Said()
    answer = _answer(trial, said)
    results, wanted = flat(answer), flat(expected.result)
    assert len(results) == len(wanted), f"{len(results)} results, PyTorch has {len(wanted)}"
    if not wanted:
        assert answer == said(expected.result), f"{answer}, PyTorch has {expected.result}"
    if not trial.writes:
        _assert_aliases(results, wanted, said)
    for i, (r, e) in enumerate(zip(results, wanted, strict=True)):
        assert r.requires_grad == e.requires_grad, f"result {i}: requires_grad {r.requires_grad}, PyTorch has {e.requires_grad}"
        if trial.drawn:
            assert (tuple(r.shape), f"torch.{r.dtype}") == (tuple(e.shape), str(e.dtype)), (
                f"{r.shape} {r.dtype}, PyTorch has {e}"
            )
        elif trial.open and i == len(wanted) - 1:
            _assert_places(trial, r, e)
        else:
            _assert_same(r, e, _allowed(trial.op, e, sums=not isinstance(trial.op, _ELEMENTWISE)), f"result {i}")
    pairs = [(r, e) for r, e in zip(results, wanted, strict=True) if e.requires_grad and not trial.drawn]
    if not pairs:
        return
    seeds = _seeds([e for _, e in pairs])
    tm.autograd.backward([r for r, _ in pairs], [tm.tensor(s, dtype=r.dtype) for s, (r, _) in zip(seeds, pairs, strict=True)])
    assert expected.grads is not None
    for i, (leaf, mine) in enumerate(said.tensors):
        grad = expected.grads.get(id(leaf))
        assert (mine.grad is None) == (grad is None), f"gradient {i}: {mine.grad}, PyTorch has {grad}"
        if grad is not None:
            _assert_same(mine.grad, grad, _allowed(trial.op, grad, sums=True), f"gradient {i}")


def _assert_aliases(results: list[tm.Tensor], wanted: list[torch.Tensor], said: Said) -> None:
    """A result is in the memory of an argument where PyTorch's is: a write to it changes that argument."""
    mine = {id(root_of(ours.array)) for _, ours in said.tensors}
    others = {theirs.untyped_storage().data_ptr() for theirs, _ in said.tensors}
    for i, (r, e) in enumerate(zip(results, wanted, strict=True)):
        if e.numel():
            found, expected = id(root_of(r.array)) in mine, e.untyped_storage().data_ptr() in others
            assert found == expected, f"result {i}: in the memory of an argument: {found}, in PyTorch {expected}"


def _assert_places(trial: Trial, found: tm.Tensor, expected: torch.Tensor) -> None:
    """The places are others of the same numbers, and no two are one."""
    assert (tuple(found.shape), f"torch.{found.dtype}") == (tuple(expected.shape), str(expected.dtype)), f"{found.shape}"
    given = dict(enumerate(trial.sample.args)) | trial.sample.kwargs
    axis = given.get("dim", given.get(PLACES[trial.op.name], -1))
    axis = -1 if isinstance(axis, bool) else axis  # argsort(descending)
    data = np.atleast_1d(trial.sample.input.numpy())
    mine, other = (np.atleast_1d(t.numpy()) for t in (found, expected))
    if mine.ndim < data.ndim or (trial.op.name == "mode" and mine.shape[axis] != 1):
        mine, other = np.expand_dims(mine, axis), np.expand_dims(other, axis)
    assert ((mine >= 0) & (mine < max(data.shape[axis], 1))).all(), f"places {mine}"
    numbers = [np.take_along_axis(data, places, axis) for places in (mine, other)]
    np.testing.assert_array_equal(*numbers, f"the numbers at the places, of {data}")
    assert (np.diff(np.sort(mine, axis), axis=axis) > 0).all(), f"a place is named twice: {mine}"


def _allowed(op: Any, expected: torch.Tensor, sums: bool) -> tuple[float, float]:
    """The tolerance; in float32 what is summed up may differ by the rounding of the largest, as large terms cancel."""
    rtol, atol = tolerance(op, expected.dtype)
    if sums and expected.dtype == torch.float32 and expected.numel():
        atol = max(atol, rtol * float(expected.detach().abs().nan_to_num(0, 0, 0).max()))
    return rtol, atol


def _assert_same(found: tm.Tensor, expected: torch.Tensor, allowed: tuple[float, float], what: str) -> None:
    if expected._is_zerotensor():
        expected = torch.zeros(expected.shape, dtype=expected.dtype)
    if expected.dtype == torch.bfloat16:  # which NumPy does not know
        assert found.dtype == tm.bfloat16, f"{what}: dtype {found.dtype}, PyTorch has bfloat16"
        found, expected = found.float(), expected.float()
    assert_same(found, expected, allowed, what)
