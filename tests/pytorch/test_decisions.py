"""What well-known training scripts decide by values: batches at random places, the best so far, a division by 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.pytorch.test_builds import requests
from tinygrad_mem.autograd import questions
from tinygrad_mem.autograd.unknown import Unknown
from tinygrad_mem.errors import DataDependenceError
from tinygrad_mem.pytorch import predict

GPU = "cuda"


def test_a_batch_is_read_at_places_that_the_host_draws():
    """As nanoGPT reads its file: which places they are changes no memory, and all the program's own numbers are known."""
    data = np.arange(500, dtype=np.uint16)

    def run() -> None:
        places = torch.randint(len(data) - 16, (4,))
        rows = torch.stack([torch.from_numpy(data[i : i + 16].astype(np.int64)) for i in places])
        nn.Embedding(500, 8, device=GPU)(rows.pin_memory().to(GPU, non_blocking=True)).sum().backward()

    assert [each for each in predict(run).notes if "drawn once more" in each]
    assert predict(run).peak == predict(run).peak

    def unread() -> None:
        labels = torch.randint(10, (8,))
        nn.functional.cross_entropy(torch.randn(8, 10, device=GPU), labels.to(GPU)).item()

    assert not predict(unread).notes, "what no program reads is nothing to say"


SIZES: list[Callable[[torch.Tensor], Any]] = [
    lambda lengths: torch.zeros(lengths.max().item()),  # type: ignore[arg-type]
    lambda lengths: torch.zeros(int(lengths.sum())),
    lambda lengths: torch.arange(lengths.max()),
    lambda lengths: torch.zeros(9)[: lengths.sort().values[-2:].min()],  # type: ignore[misc]
    lambda lengths: nn.functional.one_hot(lengths),
    lambda lengths: bool((lengths > 3).any()),
    lambda lengths: lengths.topk(2).values.sum().item() > 3,
]


@pytest.mark.parametrize("size", SIZES)
def test_what_depends_on_several_random_numbers_is_not_known(size: Callable[[torch.Tensor], Any]):
    """Such as the longest length: another run has another."""
    with pytest.raises(DataDependenceError):
        predict(lambda: [torch.zeros(1, device=GPU), size(torch.randint(1, 9, (4,)))])


def test_a_mask_of_random_numbers_chooses_all():
    """As an unknown mask does: the longest result is counted, and said."""

    def run() -> None:
        x = torch.zeros(400, 4, device=GPU)
        assert x[torch.randint(0, 2, (400,)) == 1].shape == (400, 4)

    assert any("all were counted" in each for each in predict(run).notes)


def test_places_of_the_host_choose_of_a_tensor_on_the_gpu():
    """As CLIP reads its last token. PyTorch copies them; in backward it multiplies them on the host first."""

    def run(places: torch.Tensor) -> None:
        x = torch.zeros(4, 16, 8, device=GPU, requires_grad=True)
        x[places, torch.zeros(4, dtype=torch.long, device=GPU)].sum().backward()

    tensors = [2048, 32]
    forward = [32, 128, -32, 4, -128]  # a copy of the places, the result, its sum
    backward = [4, 2048, 32, 32, 32, -32, -32, 128]  # gradients, places that were multiplied, others that are wrapped first
    assert requests(lambda: run(torch.arange(4)))[:15] == tensors + forward + backward
    there = requests(lambda: run(torch.arange(4, device=GPU)))
    assert there[:14] == [32, *tensors, *forward[1:2], *forward[3:], 4, 2048, 32, 32, -32, 32, 32, -32]
    assert predict(lambda: torch.zeros(4, 128, device=GPU)[torch.arange(2)]).peak == 2048 + 512 + 1024
    with pytest.raises(RuntimeError, match="same device"):
        predict(lambda: torch.zeros(4, 8)[torch.arange(2, device=GPU)])


class Kept:
    best = math.inf


def of_numbers(found: list[str]) -> None:
    best = math.inf
    for _ in range(2):
        loss = torch.rand(3, device=GPU).sum()
        if loss.item() < best:
            best = loss.item()
            found.append("best")


def of_tensors(found: list[str]) -> None:
    """With patience, as in early stopping."""
    kept, wait = Kept(), 0
    for _ in range(3):
        loss = torch.rand(3, device=GPU).sum() / 3
        if loss >= kept.best:
            wait += 1
            if wait > 1:
                break
        else:
            kept.best, wait = loss.item(), 0
            found.append("best")


def named(found: list[str]) -> None:
    """As PyTorch's example for ImageNet."""
    best = 0
    for _ in range(2):
        accuracy = torch.rand(1, device=GPU) * 100
        is_best = accuracy > best
        best = max(accuracy, best)
        if is_best:
            found.append("best")


def named_of_numbers(found: list[str]) -> None:
    best = 0.0
    for _ in range(2):
        accuracy = 100 * torch.rand(3, device=GPU).sum().item() / 3
        is_best = accuracy > best
        best = max(accuracy, best)
        if len(found) < 9 and is_best:
            found.append("best")


def always(found: list[str]) -> None:
    """As nanoGPT."""
    losses, best, each_time = {}, 1e9, True
    for _ in range(2):
        losses["val"] = torch.rand(3, device=GPU).mean()
        if losses["val"] < best or each_time:
            best = losses["val"]
            found.append("best")


@pytest.mark.parametrize("program", [of_numbers, of_tensors, named, named_of_numbers, always])
def test_a_value_is_the_best_so_far(program: Callable[[list[str]], None]):
    """So is the first one of each run. What is done with the best is done, and said."""
    found: list[str] = []
    notes = predict(program, found).notes
    assert found == ["best"] * (3 if program is of_tensors else 2)
    assert all(" a value was assumed to be the best so far" in each for each in notes)
    assert notes


def until(value: float) -> None:
    bound = 1.0
    while value < bound:
        bound = value


def below(value: float) -> None:
    if value < 0.5:
        torch.zeros(1, device=GPU)


def clipped(value: float) -> None:
    if not value < 0.5:
        value = 0.5


def both(value: float) -> None:
    bound = 1.0
    if value < bound:
        bound = value
    else:
        value = bound


@pytest.mark.parametrize("program", [until, below, clipped, both])
def test_other_decisions_are_refused(program: Callable[[float], None]):
    with pytest.raises(DataDependenceError, match=f"{program.__name__}: a comparison of a value that is not known"):
        predict(lambda: program(torch.rand((), device=GPU).item()))


def test_a_fraction_is_not_equal_to_a_number():
    """As agents say how much of a variance they explain; the other answer would avoid a division by 0."""
    found: list[Any] = []

    def run() -> None:
        spread = torch.rand(8, device=GPU).var().item()
        found.append(math.nan if spread == 0 else 1 - 2 / spread)
        found.append(spread != 0.0)

    (note, _) = predict(run).notes
    assert isinstance(found[0], Unknown)
    assert found[1] is True
    assert note.endswith("a fraction was assumed not to be equal to a number: values are not known")
    with pytest.raises(DataDependenceError):
        predict(lambda: torch.randint(9, (3,), device=GPU).sum().item() == 0)


def test_a_check_for_equality_passes():
    """Compiled here: pytest makes more of an ``assert`` of its own files."""
    names: dict[str, Any] = {}
    exec("def check(x):\n assert x == 1.0\n if x != 1.0: raise ValueError\n", names)
    (note,) = predict(lambda: names["check"](torch.rand(8, device=GPU).softmax(0).sum().item())).notes
    assert "a check that raises an error was assumed to pass" in note


def test_a_loop_that_ends_when_values_get_worse_is_refused(monkeypatch: pytest.MonkeyPatch):
    """It would not end."""
    monkeypatch.setattr(questions, "MOST", 5)
    steps: list[int] = []

    def run() -> None:
        best, wait = math.inf, 0
        while wait < 3:
            wait += 1
            loss = torch.rand(3, device=GPU).sum()
            steps.append(wait)
            if loss < best:
                best, wait = loss.item(), 0

    for _ in range(2):
        with pytest.raises(DataDependenceError, match="the truth of a tensor"):
            predict(run)
    assert len(steps) == 2 * 6
