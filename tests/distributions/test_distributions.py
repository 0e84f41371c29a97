"""Distributions: densities, entropies and divergences with their gradients, shapes, drawing, refusals, prediction."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import values
from tests.profiles import examples

RNG = np.random.default_rng(0)
LOC, SCALE = RNG.standard_normal((3, 1)), RNG.uniform(0.5, 2, (4,))
REALS, ROWS = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((3, 5))
CHANCES, WEIGHTS = RNG.uniform(0.1, 0.9, (3, 4)), RNG.uniform(0.1, 1, (3, 5))
BITS, PICKS = (RNG.uniform(size=(2, 3, 4)) > 0.5).astype(float), RNG.integers(0, 5, (2, 3))

Compute = Callable[[Any, Any, list], Any]
NUMBERS: dict[str, tuple[list, Compute]] = {
    "Normal.log_prob": ([LOC, SCALE], lambda L, D, p: D.Normal(*p).log_prob(L.tensor(REALS))),
    "Normal.entropy": ([LOC, SCALE], lambda L, D, p: D.Normal(*p).entropy()),
    "Normal.cdf": ([LOC, SCALE], lambda L, D, p: D.Normal(*p).cdf(L.tensor(REALS))),
    "Normal.icdf": ([LOC, SCALE], lambda L, D, p: D.Normal(*p).icdf(L.tensor(CHANCES))),
    "Normal.perplexity": ([LOC, SCALE], lambda L, D, p: D.Normal(*p).perplexity()),
    "Normal.variance": ([LOC, SCALE], lambda L, D, p: D.Normal(*p).variance),
    "KL of Normal": ([LOC, SCALE], lambda L, D, p: D.kl_divergence(D.Normal(*p), D.Normal(2 * p[0] + 1, 3 * p[1]))),
    "Independent.log_prob": ([LOC, SCALE], lambda L, D, p: D.Independent(D.Normal(*p), 1).log_prob(L.tensor(REALS))),
    "Independent.entropy": ([LOC, SCALE], lambda L, D, p: D.Independent(D.Normal(*p), 2).entropy()),
    "KL of Independent": (
        [LOC, SCALE],
        lambda L, D, p: D.kl_divergence(D.Independent(D.Normal(*p), 1), D.Independent(D.Normal(p[0] + 1, 2 * p[1]), 1)),
    ),
}


def _of_probabilities(name: str, bits: np.ndarray, rows: np.ndarray) -> dict[str, tuple[list, Compute]]:
    """What is computed of ``probs`` as of ``logits``."""
    return {
        f"Bernoulli({name}).log_prob": ([bits], lambda L, D, p: D.Bernoulli(**{name: p[0]}).log_prob(L.tensor(BITS))),
        f"Bernoulli({name}).entropy": ([bits], lambda L, D, p: D.Bernoulli(**{name: p[0]}).entropy()),
        f"Bernoulli({name}).variance": ([bits], lambda L, D, p: D.Bernoulli(**{name: p[0]}).variance),
        f"KL of Bernoulli({name})": (
            [bits],
            lambda L, D, p: D.kl_divergence(D.Bernoulli(**{name: p[0]}), D.Bernoulli(L.tensor(0.3, dtype=L.float64))),
        ),
        f"Categorical({name}).log_prob": ([rows], lambda L, D, p: D.Categorical(**{name: p[0]}).log_prob(L.tensor(PICKS))),
        f"Categorical({name}).entropy": ([rows], lambda L, D, p: D.Categorical(**{name: p[0]}).entropy()),
        f"KL of Categorical({name})": (
            [rows],
            lambda L, D, p: D.kl_divergence(D.Categorical(**{name: p[0]}), D.Categorical(logits=2 * p[0])),
        ),
        f"OneHotCategorical({name}).log_prob": (
            [rows],
            lambda L, D, p: D.OneHotCategorical(**{name: p[0]}).log_prob(L.nn.functional.one_hot(L.tensor(PICKS), 5).double()),
        ),
    }


NUMBERS |= _of_probabilities("probs", CHANCES, WEIGHTS) | _of_probabilities("logits", ROWS[:, :4], ROWS)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_and_gradients_are_pytorchs(name: str):
    parameters, compute = NUMBERS[name]
    found = []
    for library in (tm, torch):
        leaves = [library.tensor(p, requires_grad=True) for p in parameters]  # type: ignore[attr-defined]
        out = compute(library, library.distributions, leaves)
        out.sum().backward()
        found.append([out.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves if leaf.grad is not None)])
    for mine, theirs in zip(*found, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)


MAKES = [
    "D.Normal(0, 1)",
    "D.Normal(0.0, L.ones(2))",
    "D.Normal(L.zeros(3, 1), L.ones(2, dtype=L.float64))",
    "D.Bernoulli(0.3)",
    "D.Bernoulli(logits=L.zeros(2, 3))",
    "D.Bernoulli(L.tensor([0.5, 0.75, 0.25]))",
    "D.Categorical(L.ones(4))",
    "D.Categorical(logits=L.zeros(2, 4))",
    "D.OneHotCategorical(L.tensor([[1.0, 2, 5], [0, 1, 0]]))",
    "D.Independent(D.Normal(L.zeros(2, 3), 1.0), 1)",
    "D.Independent(D.Bernoulli(L.full((2, 3), 0.5)), 0)",
]


def described(library: Any, make: str) -> dict[str, Any]:
    """Everything of a distribution that is not random."""
    d = eval(make, {"D": library.distributions, "L": library})
    shape = tuple(d.batch_shape)
    draws = [d.sample(), d.sample((5, 2)), d.sample(library.Size([3])), d.expand((7, *shape)).sample((2,))]
    told = {
        "batch": shape,
        "event": tuple(d.event_shape),
        "draws": [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in draws],
        "support": bool(d.support.check(draws[1]).all()) if draws[1].numel() else True,
        "log_prob": [tuple(d.log_prob(x).shape) for x in draws[:2]],
        "moments": [np.asarray(m).tolist() for m in (d.mean, d.variance)],
        "has_rsample": d.has_rsample,
        "event_dim": d.support.event_dim,
        "constraints": sorted(getattr(d, "arg_constraints", {})),
        "wider": tuple(d.expand((7, *shape)).batch_shape),
    }
    if d.has_enumerate_support and make != "D.Independent(D.Bernoulli(L.full((2, 3), 0.5)), 0)":
        told["all"] = [np.asarray(d.enumerate_support(expand)).tolist() for expand in (True, False)]
    if "Categorical(logits=" not in make:  # which of equals is the mode is nobody's to say
        told["mode"] = np.asarray(d.mode).tolist()
    return told


@pytest.mark.parametrize("make", MAKES)
def test_shapes_dtypes_and_moments_are_pytorchs(make: str):
    mine, theirs = described(tm, make), described(torch, make)
    for key in mine:
        np.testing.assert_equal(mine[key], theirs[key], err_msg=key)


REFUSED = [
    ("D.Normal(0.0, -1.0)", "Expected parameter scale .* to satisfy the constraint GreaterThan"),
    ("D.Normal(L.tensor(float('nan')), 1.0)", "Expected parameter loc .* found invalid values"),
    ("D.Normal(L.zeros(2), L.tensor([1.0, 0.0]))", "Expected parameter scale"),
    ("D.Normal('a', 1.0)", "must all be instances of Number"),
    ("D.Bernoulli(1.5)", "Expected parameter probs"),
    ("D.Bernoulli()", "Either `probs` or `logits` must be specified, but not both"),
    ("D.Bernoulli(0.5, logits=0.1)", "Either `probs` or `logits` must be specified, but not both"),
    ("D.Categorical()", "Either `probs` or `logits` must be specified, but not both"),
    ("D.Categorical(L.tensor([-1.0, 2.0]))", "Expected parameter probs"),
    ("D.Categorical(logits=L.tensor([float('nan'), 2.0]))", "Expected parameter logits"),
    ("D.Categorical(L.tensor(1.0))", "must be at least one-dimensional"),
    ("D.Normal(0.0, 1.0).log_prob(1.0)", "value argument to log_prob must be a Tensor"),
    ("D.Normal(0.0, 1.0).log_prob(L.tensor(float('nan')))", "within the support"),
    ("D.Normal(L.zeros(3), 1.0).log_prob(L.zeros(2))", "Value is not broadcastable"),
    ("D.Bernoulli(0.5).log_prob(L.tensor(0.5))", "within the support"),
    ("D.Categorical(L.ones(3)).log_prob(L.tensor(3))", "within the support"),
    ("D.Categorical(L.ones(3)).log_prob(L.tensor(1.5))", "within the support"),
    ("D.OneHotCategorical(L.ones(3)).log_prob(L.ones(3))", "within the support"),
    ("D.OneHotCategorical(L.ones(3)).log_prob(L.ones(2))", "right-most size of value must match event_shape"),
    ("D.Independent(D.Normal(0.0, 1.0), 1)", "Expected reinterpreted_batch_ndims <= len"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_pytorch_refuses_is_refused(make: str, message: str):
    for library in (tm, torch):
        with pytest.raises(ValueError, match=message):
            eval(make, {"D": library.distributions, "L": library})


@pytest.mark.parametrize("make", [make for make, message in REFUSED if "Expected parameter" in message])
def test_nothing_is_checked_where_nobody_asks(make: str):
    asked = make[:-1] + ", validate_args=False)"
    assert isinstance(eval(asked, {"D": tm.distributions, "L": tm}), tm.distributions.Distribution)
    tm.distributions.Distribution.set_default_validate_args(False)
    try:
        eval(make, {"D": tm.distributions, "L": tm})
    finally:
        tm.distributions.Distribution.set_default_validate_args(True)


def test_no_divergence_and_no_gradient_through_a_draw():
    D = tm.distributions
    with pytest.raises(NotImplementedError, match=r"No KL.* for p type Normal and q type Bernoulli"):
        D.kl_divergence(D.Normal(0.0, 1.0), D.Bernoulli(0.5))
    for ask in ("cdf", "icdf"):
        with pytest.raises(NotImplementedError):
            getattr(tm.distributions.Categorical(tm.ones(2)), ask)(tm.ones(()))
    with pytest.raises(NotImplementedError):
        tm.distributions.Normal(0.0, 1.0).enumerate_support()
    with pytest.raises(NotImplementedError):
        D.Categorical(tm.ones(3)).rsample()
    with pytest.raises(NotImplementedError):
        D.kl_divergence(D.Independent(D.Normal(tm.zeros(2, 2), 1.0), 1), D.Independent(D.Normal(tm.zeros(2, 2), 1.0), 2))


@pytest.mark.parametrize(("name", "message"), [("Beta", "write the density of others"), ("Uniform", "draw with rand")])
def test_absent_ones_say_what_to_do(name: str, message: str):
    with pytest.raises(NotImplementedError, match=rf"distributions\.{name} is not offered: .*{message}"):
        getattr(tm.distributions, name)(0.0, 1.0)
    with pytest.raises(AttributeError, match=r"distributions\.nonsense is not offered: write the density"):
        tm.distributions.nonsense  # noqa: B018


def test_infinite_divergences_are_pytorchs():
    for p, q in ((0.0, 0.5), (1.0, 0.5), (0.5, 0.0), (0.5, 1.0), (0.0, 0.0), (1.0, 1.0)):
        mine, theirs = ([L.distributions.Bernoulli(L.tensor(x)) for x in (p, q)] for L in (tm, torch))
        np.testing.assert_allclose(
            values(tm.distributions.kl_divergence(*mine)), torch.distributions.kl_divergence(*theirs).numpy(), atol=1e-6
        )
    rows = [np.array(r) for r in ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5])]
    mine, theirs = ([L.distributions.Categorical(L.tensor(r)) for r in rows] for L in (tm, torch))
    assert tm.distributions.kl_divergence(*mine).item() == torch.distributions.kl_divergence(*theirs).item() == np.inf


@given(st.floats(0.05, 0.95), st.integers(0, 2**32))
@settings(max_examples=examples(5))
def test_draws_have_the_distribution(p: float, seed: int):
    """Each share or mean of 4,000 draws lies within 5 standard deviations, and the same seed gives the same draws."""
    D, n = tm.distributions, 4000
    tm.manual_seed(seed)
    weights = tm.tensor([p, 1 - p, 0.0])
    drawn = D.Categorical(weights).sample((n,))
    assert set(drawn.tolist()) <= {0, 1}
    shares = [(drawn == 0).float().mean().item(), D.Bernoulli(p).sample((n,)).mean().item()]
    assert all(abs(share - p) < 5 * np.sqrt(p * (1 - p) / n) for share in shares)
    numbers = D.Normal(3.0, 10 * p).sample((n,))
    assert abs(numbers.mean().item() - 3) < 5 * 10 * p / np.sqrt(n)
    assert abs(numbers.std().item() / (10 * p) - 1) < 5 / np.sqrt(2 * n)
    tm.manual_seed(seed)
    np.testing.assert_array_equal(values(D.Categorical(weights).sample((n,))), values(drawn))


def test_rsample_has_the_gradients_of_its_formula(dev: str):
    loc, scale = (tm.tensor(v, device=dev, requires_grad=True) for v in (LOC, SCALE))
    x = tm.distributions.Normal(loc, scale).rsample((6,))
    (x**2).sum().backward()
    noise = (values(x) - LOC) / SCALE
    np.testing.assert_allclose(values(loc.grad), (2 * values(x)).sum((0, 2))[:, None], rtol=1e-10)
    np.testing.assert_allclose(values(scale.grad), (2 * values(x) * noise).sum((0, 1)), rtol=1e-10)
    assert not tm.distributions.Normal(loc, scale).sample().requires_grad


def policy_gradient(library: ModuleType = tm) -> None:
    """A step of what reinforcement learning and variational autoencoders do with all of them."""
    D: Any = library.distributions
    loc, scale = (library.full((40,), v, requires_grad=True) for v in (0.5, 2.0))
    normal = D.Independent(D.Normal(loc, scale), 1)
    x = normal.rsample((30,))
    choice = D.Categorical(logits=x)
    picks = choice.sample()
    coin = D.Bernoulli(logits=x.mean(0))
    loss = (choice.log_prob(picks) * 3 - normal.log_prob(x) + 0.1 * choice.entropy()).mean() + coin.log_prob(
        coin.sample()
    ).sum()
    kl = D.kl_divergence(D.Normal(loc, scale), D.Normal(library.zeros(40), library.ones(40))).sum()
    (loss + kl + D.OneHotCategorical(probs=scale).entropy()).backward()


def test_a_step_is_predicted_to_the_byte():
    predicted = tm.memory.predict(policy_gradient)
    with tm.memory.track() as run:
        policy_gradient()
    events = [[(e.kind, e.rounded) for e in track.log if e.kind.name in ("MALLOC", "FREE")] for track in (predicted, run)]
    assert events[0] == events[1]
    assert len(events[0]) > 100


def test_values_that_are_not_known_are_not_asked_for():
    scale = tm.full((2,), -1.0, device="meta")
    assert tm.distributions.Normal(0.0, scale).log_prob(tm.zeros(2, device="meta")).is_meta


def test_what_is_printed():
    D = tm.distributions
    assert repr(D.Normal(0.0, 1.0)) == "Normal(loc: 0.0, scale: 1.0)"
    assert repr(D.Bernoulli(logits=tm.zeros(2, 3))) == "Bernoulli(logits: Size([2, 3]))"
    assert repr(D.Independent(D.Normal(tm.zeros(2), 1.0), 1)) == "Independent(Normal(loc: Size([2]), scale: Size([2])), 1)"
    assert repr(D.Normal(tm.zeros(1, device="meta"), 1.0)).startswith("Normal(loc: Size([1])")


@pytest.mark.parametrize("name", ["Normal", "Bernoulli", "OneHotCategorical"])
def test_a_class_tells_its_support(name: str):
    """It needs no parameters, so that files ask the class."""
    ours, theirs = (getattr(lib.distributions, name).support for lib in (tm, torch))
    assert repr(ours) == repr(theirs)
