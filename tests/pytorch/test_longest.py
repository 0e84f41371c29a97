"""Results that are as long as values say: counted at their longest, with a bound for shorter ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.pytorch_memory import pytorch_peak
from tinygrad_mem.errors import DataDependenceError
from tinygrad_mem.pytorch import predict

CHOSEN = "all were counted"


def mask(*shape: int, part: float) -> torch.Tensor:
    """A mask whose values a prediction does not know."""
    return torch.empty(shape).bernoulli_(part).bool()


def logits(part: float) -> None:
    model, x, targets = nn.Linear(16, 50), torch.randn(8, 32, 16), torch.randint(0, 50, (8, 32))
    labelled = mask(8, 32, part=part)
    F.cross_entropy(model(x)[labelled], targets[labelled]).backward()


def positive(part: float) -> None:
    loss = torch.rand(4000, requires_grad=True) + (1.0 if part == 1 else -0.5)
    loss[loss > 0].mean().backward()


def selected(part: float) -> None:
    x = torch.randn(40, 30, requires_grad=True)
    torch.masked_select(x, mask(40, 30, part=part)).sum().backward()
    torch.masked_select(x, mask(30, part=part)).sum().backward()


def places(part: float) -> Any:
    chosen, x = mask(40, 30, part=part), torch.randn(40, 30, 7, requires_grad=True)
    x[torch.where(chosen)].sum().backward()
    return chosen.nonzero(), torch.nonzero(chosen, as_tuple=True), torch.argwhere(chosen[0])


def different(part: float) -> Any:
    x = torch.arange(1000) * (torch.randint(2, 3, (1000,)) if part == 1 else 0)
    y = torch.rand(300) if part == 1 else torch.zeros(300)
    found = torch.unique(y), torch.unique_consecutive(x), torch.unique(x.view(10, 100), dim=0)
    return found, torch.unique(x, return_inverse=True, return_counts=True)


def written(part: float) -> None:
    x, y, chosen = torch.randn(40, 30), torch.randn(40, 30), mask(40, 30, part=part)
    x[chosen] = y[chosen]
    x[chosen] += 1
    x[chosen] = 0
    x[:, chosen[0]] = y[:, chosen[0]]


def experts(part: float) -> None:
    x, layers = torch.randn(64, 32), nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
    made = torch.zeros_like(x)
    for layer in layers:
        tokens, _ = torch.where(mask(64, 2, part=part))
        made = made.index_add(0, tokens, layer(x[tokens]))
    made.sum().backward()


@pytest.mark.parametrize("program", [logits, positive, selected, places, different, written, experts])
def test_it_is_counted_at_its_longest_with_a_bound(program: Callable[[float], Any]):
    """It is right to the byte if all are chosen, or differ, and with fewer the peak is within the bound."""
    track = predict(program, 1.0, device="cpu")
    (bound,) = (size for why, size in track.unknown.items() if CHOSEN in why)
    assert all(note.startswith("tests/pytorch/test_longest.py:") for note in track.notes if CHOSEN in note)
    assert track.peak == pytorch_peak(lambda: program(1.0))
    assert track.peak - sum(track.unknown.values()) <= pytorch_peak(lambda: program(0.4)) <= track.peak
    assert 0 < bound < track.peak


@pytest.mark.parametrize("program", [logits, positive, selected, places, different, written, experts])
def test_so_it_is_on_a_gpu(program: Callable[[float], Any]):
    with torch.device("cuda"):
        track = predict(program, 1.0)
    assert any(CHOSEN in note for note in track.notes)


def test_a_peak_before_it_is_certain():
    def run() -> Any:
        torch.zeros(10_000)
        return torch.rand(10)[mask(10, part=0.5)]

    assert predict(run, device="cpu").unknown == {}


def test_sizes_that_do_not_fit_are_explained():
    def run() -> Any:
        x, chosen = torch.rand(10), mask(10, part=0.5)
        return torch.cat([x[chosen], x[~chosen]]).view(2, 5)

    with pytest.raises(RuntimeError, match="invalid for input of size 20") as caught:
        predict(run)
    assert any(CHOSEN in note and "fixed size" in note for note in caught.value.__notes__)


def test_without_a_longest_length_it_is_refused():
    with pytest.raises(DataDependenceError, match=r"repeat_interleave.* depends on values.* Give output_size"):
        predict(lambda: torch.arange(3).repeat_interleave(torch.randint(1, 9, (3,))))
    with pytest.raises(DataDependenceError, match="depends on values"):
        predict(lambda: mask(1 << 25, part=0.5).nonzero())


def rows_of_the_best() -> Any:
    """A number of an index that is a tensor chooses one row, whichever it is."""
    x = torch.randn(8, 5)
    kept = [x[x.sum(1).argmax()].exp(), x[:, x.sum(0).argmin()], x[1, x[1].argmax()].exp(), x[x[:, 0].argmax(), 1:3].exp()]
    x[x.sum(1).argmax(), 2] = 0
    x[x.sum(1).argmax()] = 1.0
    return kept, torch.rand(3000)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_number_that_is_a_tensor_chooses_one_row(device: str):
    with torch.device(device):
        track = predict(rows_of_the_best, device=device)
    assert (track.notes, track.unknown) == ([], {})
    if device == "cpu":
        assert track.peak == pytorch_peak(rows_of_the_best)
