"""Parametrizations beside PyTorch: the original stays the tensor that optimizers and other modules have."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm


def parametrization(library: Any, kind: str) -> Any:
    """A module that computes a weight; with an inverse, the original gets other values."""

    class Doubled(library.nn.Module):
        def forward(self, w: Any) -> Any:
            return w * 2

        def right_inverse(self, w: Any) -> Any:
            return w / 2

    class Symmetric(library.nn.Module):
        def forward(self, w: Any) -> Any:
            return w.triu() + w.triu(1).T

    class Cut(library.nn.Module):
        def forward(self, w: Any) -> Any:
            return w[:2]

        def right_inverse(self, w: Any) -> Any:
            return w + 1

    class Broken(Cut):
        def forward(self, w: Any) -> Any:
            raise ZeroDivisionError

    return {"doubled": Doubled, "symmetric": Symmetric, "cut": Cut, "broken": Broken}[kind]()


def layers(library: Any, state: str, shared: bool) -> tuple[Any, Any]:
    """Two linear layers; the first one's weight is trained, frozen or a buffer, and perhaps the second one's too."""
    first, second = library.nn.Linear(3, 3), library.nn.Linear(3, 3)
    with library.no_grad():
        for i, p in enumerate([*first.parameters(), *second.parameters()]):
            p.copy_(library.arange(float(p.numel())).reshape(p.shape) / 5 + i)
    if state == "buffer":
        weight = first.weight.detach().clone()
        del first.weight
        first.register_buffer("weight", weight)
    first.weight.requires_grad_(state == "trained")
    if shared and state != "buffer":
        second.weight = first.weight
    return first, second


def told(first: Any, second: Any) -> list:
    names = [
        [name for name, _ in each] for each in (first.named_parameters(), first.named_buffers(), first.state_dict().items())
    ]
    trained = [p.requires_grad for p in first.parameters()]
    return [*names, trained, first.weight.detach().numpy().copy(), second.weight.detach().numpy().copy()]


def program(library: Any, kind: str, state: str, shared: bool, leave: bool, twice: bool) -> list:
    """What a layer is after a step of an optimizer that was made before, and after the parametrization is removed."""
    parametrize = library.nn.utils.parametrize
    first, second = layers(library, state, shared)
    before = first.weight
    every = {id(p): p for p in (*first.parameters(), *second.parameters())}
    optimizer = library.optim.SGD(every.values(), lr=0.1)

    def step() -> None:
        (first(library.ones(2, 3)).sum() * 2 + second(library.ones(1, 3)).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2 if twice else 1):
        parametrize.register_parametrization(first, "weight", parametrization(library, kind))
    step()
    found = told(first, second)
    parametrize.remove_parametrizations(first, "weight", leave_parametrized=leave)
    found += [first.weight is before, *told(first, second)]
    step()
    return [*found, *told(first, second)]


CASES = list(
    itertools.product(["doubled", "symmetric"], ["trained", "frozen", "buffer"], [False, True], [False, True], [False, True])
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_original_stays_what_it_was(case: tuple):
    for mine, theirs in zip(program(tm, *case), program(torch, *case), strict=True):
        if isinstance(mine, np.ndarray):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
        else:
            assert mine == theirs


@pytest.mark.parametrize(("kind", "error"), [("cut", ValueError), ("broken", ZeroDivisionError)])
def test_what_is_refused_leaves_the_original(kind: str, error: type):
    layer, _ = layers(tm, "trained", False)
    weight, values = layer.weight, layer.weight.tolist()
    with pytest.raises(error):
        tm.nn.utils.parametrize.register_parametrization(layer, "weight", parametrization(tm, kind))
    assert layer.weight is weight
    assert weight.tolist() == values
    assert not tm.nn.utils.parametrize.is_parametrized(layer)


@pytest.mark.parametrize("second", [False, True])
def test_each_parametrization_is_checked_and_has_the_mode_of_the_module(second: bool):
    for lib in (torch, tm):

        class Pair(lib.nn.Module):
            def forward(self, w: Any) -> Any:
                return w, w

        layer, register = lib.nn.Linear(4, 4).eval(), lib.nn.utils.parametrize.register_parametrization
        if second:
            register(layer, "weight", parametrization(lib, "doubled"))
        for wrong in (Pair(), parametrization(lib, "cut")):
            with pytest.raises(ValueError, match=r"must return a tensor|may not change the (shape|dtype)"):
                register(layer, "weight", wrong)
        register(layer, "weight", parametrization(lib, "symmetric"))
        assert not layer.parametrizations.weight[-1].training
        assert len(layer.parametrizations.weight) == 1 + second


def test_a_frozen_weight_stays_frozen_through_weight_norm():
    layer, _ = layers(tm, "frozen", False)
    tm.nn.utils.parametrizations.weight_norm(layer)
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == ["bias"]
    with pytest.raises(RuntimeError, match="a parametrization after weight_norm is not offered"):
        tm.nn.utils.parametrize.register_parametrization(layer, "weight", parametrization(tm, "doubled"))
    with pytest.raises(ValueError, match="parametrized in terms of several tensors"):
        tm.nn.utils.parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    tm.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    assert not layer.weight.requires_grad


class _Half:
    def forward(self, x: Any) -> Any:
        return x / 2

    def right_inverse(self, x: Any) -> Any:
        return x * 2


@pytest.mark.parametrize("kind", ["own", "two", "weight_norm", "spectral_norm"])
def test_a_value_is_assigned_through_the_inverse(kind: str):
    def script(lib: Any) -> list:
        half = type("Half", (_Half, lib.nn.Module), {})
        lib.manual_seed(0)
        layer, utils = lib.nn.Linear(3, 2).eval(), lib.nn.utils
        if kind in ("own", "two"):
            for _ in range(1 + (kind == "two")):
                utils.parametrize.register_parametrization(layer, "weight", half())
        else:
            layer = getattr(utils.parametrizations, kind)(layer)
        kept = list(layer.parameters())
        layer.weight = lib.tensor([[1.0, 2.0, 2.0], [0.0, 3.0, 4.0]])
        assert all(a is b for a, b in zip(kept, layer.parameters(), strict=True))
        originals = [p.tolist() for name, p in layer.named_parameters() if "original" in name]
        return [originals, kind == "spectral_norm" or layer.weight.tolist()]

    found, expected = script(tm), script(torch)
    for a, b in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


def test_a_value_without_an_inverse_is_refused():
    layer = tm.nn.Linear(2, 2)
    tm.nn.utils.parametrize.register_parametrization(layer, "weight", tm.nn.Tanh())
    with pytest.raises(RuntimeError, match="Tanh does not implement right_inverse"):
        layer.weight = tm.zeros(2, 2)
    layer = tm.nn.utils.parametrizations.spectral_norm(tm.nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="float32 would become float64"):
        layer.weight = tm.zeros(2, 2, dtype=tm.float64)


def test_an_inverse_of_several_tensors_is_refused():
    class Halves(tm.nn.Module):
        def forward(self, *halves: Any) -> Any:
            return tm.cat(halves)

        def right_inverse(self, x: Any) -> Any:
            return x[:1], x[1:]

    layer = tm.nn.Linear(3, 2)
    before = layer.weight.tolist()
    with pytest.raises(
        NotImplementedError, match="Halves: right_inverse must return one tensor, found tuple; several originals"
    ):
        tm.nn.utils.parametrize.register_parametrization(layer, "weight", Halves())
    assert layer.weight.tolist() == before
    assert not tm.nn.utils.parametrize.is_parametrized(layer)


def test_a_value_is_computed_once_while_it_is_cached():
    """Of a spectral norm each computation is another step of its power iteration."""
    made = []
    weights = np.random.default_rng(0).normal(size=(4, 4))
    for lib in (torch, tm):
        lib.manual_seed(0)
        layer = lib.nn.Linear(4, 4, dtype=lib.float64)
        with lib.no_grad():
            layer.weight.copy_(lib.tensor(weights))
        lib.nn.utils.parametrizations.spectral_norm(layer)
        norm = layer.parametrizations.weight[0]
        for vector in (norm._u, norm._v):
            vector.copy_(lib.ones(4, dtype=lib.float64) / 2)
        x = lib.ones(1, 4, dtype=lib.float64)
        with lib.nn.utils.parametrize.cached():
            with lib.nn.utils.parametrize.cached():
                first = layer.weight
            assert layer.weight is first
            (layer(x) + layer(x)).sum().backward()
        assert layer.weight is not first
        values = [norm._u, norm._v, layer.parametrizations.weight.original.grad]
        made.append([value.detach().numpy() for value in values])
    for theirs, mine in zip(*made, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
