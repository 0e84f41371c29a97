"""Converted networks ask for the bytes of the same program in our names, wherever they were made and whatever they import."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
import torch.utils.checkpoint as aliased
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import tinygrad_mem as tm
from tests.networks import under_pytorch
from tests.predicted import difference, measured
from tinygrad_mem import from_torch, memory
from tinygrad_mem.errors import DeviceError
from tinygrad_mem.models import gpt as our_gpt

LAYERS, WIDTH, BATCH = 16, 512, 4096
WITHOUT_REENTRANCE = partial(checkpoint, use_reentrant=False)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.run(layer, x)
        return x

    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)


class ByName(Plain):
    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer, x, use_reentrant=False)


class ByModule(Plain):
    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)


class ByAlias(Plain):
    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return aliased.checkpoint(layer, x, use_reentrant=False)


class InTheFunction(Plain):
    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint as inner

        return inner(layer, x, use_reentrant=False)


class ByDefault(Plain):
    def run(self, layer: nn.Module, x: torch.Tensor, how: Any = checkpoint) -> torch.Tensor:
        return how(layer, x, use_reentrant=False)


class ByKeyword(Plain):
    def run(self, layer: nn.Module, x: torch.Tensor, *, how: Any = WITHOUT_REENTRANCE) -> torch.Tensor:
        return how(layer, x)


class OfTheClass(Plain):
    how = staticmethod(checkpoint)

    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self.how(layer, x, use_reentrant=False)


class OfTheObject(Plain):
    def __init__(self) -> None:
        super().__init__()
        self._how = [partial(checkpoint, use_reentrant=False)]

    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self._how[0](layer, x)


def enclosed() -> type[Plain]:
    how = checkpoint

    def recomputed(method: Any) -> Any:
        def run(self: Any, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return how(partial(method, self), layer, x, use_reentrant=False)

        return run

    class InAClosure(Plain):
        @recomputed
        def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
            return layer(x)

    return InAClosure


class InPieces(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(nn.Sequential(*self.layers), 4, x, use_reentrant=False)


class OurPlain(tm.nn.Module):
    def __init__(self, how: Callable[..., Any]) -> None:
        super().__init__()
        self.layers = tm.nn.ModuleList(tm.nn.Sequential(tm.nn.Linear(WIDTH, WIDTH), tm.nn.GELU()) for _ in range(LAYERS))
        self.how = how

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        if self.how is tm.utils.checkpoint.checkpoint_sequential:
            return self.how(tm.nn.Sequential(*self.layers), 4, x, use_reentrant=False)
        for layer in self.layers:
            x = layer(x) if self.how is len else self.how(layer, x, use_reentrant=False)
        return x


def step(make: Callable[[], tm.nn.Module]) -> None:
    make()(tm.randn(BATCH, WIDTH)).sum().backward()


WAYS = [ByName, ByModule, ByAlias, InTheFunction, ByDefault, ByKeyword, OfTheClass, OfTheObject, enclosed(), InPieces, Plain]


@pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.__name__)
def test_checkpoint_is_ours_however_it_was_imported(kind: type[Plain]):
    how: Any = tm.utils.checkpoint.checkpoint
    how = {InPieces: tm.utils.checkpoint.checkpoint_sequential, Plain: len}.get(kind, how)
    expected = memory.predict(step, lambda: OurPlain(how)).peak
    with torch.device("meta"):
        theirs = kind()
    assert memory.predict(step, lambda: from_torch(theirs)).peak == expected
    assert memory.predict(step, lambda: from_torch(kind())).peak == expected


def trained(make: Callable[[], Any]) -> None:
    model = make()
    rule = tm.optim.AdamW(model.parameters())
    for _ in range(2):
        rule.zero_grad()
        model(tm.randint(0, 500, (2, 64))).sum().backward()
        rule.step()


SMALL = {"layers": 2, "heads": 2, "width": 32, "context": 64, "vocabulary": 500}


def test_parameters_count_wherever_the_network_was_made():
    theirs = under_pytorch("gpt").GPT(**SMALL)
    with torch.device("meta"):
        shapes = under_pytorch("gpt").GPT(**SMALL)
    expected = memory.predict(trained, lambda: our_gpt.GPT(**SMALL))
    for make in (lambda: theirs, lambda: shapes, lambda: under_pytorch("gpt").GPT(**SMALL)):
        found = memory.predict(trained, lambda: from_torch(make()))  # noqa: B023
        assert found.peak == expected.peak
        assert found.by_category() == expected.by_category()
    assert measured(lambda: trained(lambda: from_torch(theirs))).peak == expected.peak
    assert difference(lambda: trained(lambda: from_torch(theirs))) == ""


def test_what_is_not_converted_is_refused_in_words():
    theirs = nn.Linear(3, 3)
    words = r"of PyTorch's: convert a network with from_torch\(network\), inside the function that predict\(\) runs"
    with pytest.raises(TypeError, match=rf"must be Tensor, not Parameter {words}"):
        memory.predict(lambda: tm.nn.functional.linear(tm.ones(2, 3), theirs.weight))
    with pytest.raises(TypeError, match=rf"one of the params is Parameter {words}"):
        memory.predict(lambda: tm.optim.SGD(theirs.parameters()))


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_a_network_that_was_converted_outside_is_refused_in_words(place: str):
    model = from_torch(nn.Linear(3, 3), device=place)
    with pytest.raises(DeviceError, match=r"convert PyTorch's network inside it: model = tinygrad_mem\.from_torch\(network\)"):
        memory.predict(lambda: model(tm.randn(2, 3)))
