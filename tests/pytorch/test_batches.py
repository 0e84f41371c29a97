"""Batches of data loaders whose data is real: on the CPU their bytes are PyTorch's too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split

from tests.pytorch_memory import pytorch_peak
from tinygrad_mem.pytorch import predict

HELD = torch.rand(12, 100)


class Drawn(Dataset):
    """Each example is made when it is read."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 12

    def __getitem__(self, place: int) -> Any:
        return self.make(place), place % 3


def tensors(place: int) -> torch.Tensor:
    return torch.rand(100).mul_(2) - place


def of_numpy(place: int) -> np.ndarray:
    return np.full(100, place, np.float32)


def of_lists(place: int) -> torch.Tensor:
    return torch.tensor([float(place)] * 100)


def held(place: int) -> torch.Tensor:
    return HELD[place]


def trained(loader: DataLoader) -> Any:
    """The most is in use in backward, which alone holds the batch."""
    model = nn.Linear(100, 3)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        del x, y
        loss.backward()
        model.zero_grad()
    return model


@pytest.mark.parametrize("make", [tensors, of_numpy, of_lists, held])
def test_batches_of_real_data_are_counted(make: Callable[[int], Any]):
    def run() -> Any:
        return trained(DataLoader(Drawn(make), 4))

    assert predict(run, device="cpu").peak == pytorch_peak(run)


def test_what_was_there_before_is_not():
    """Without batches, a dataset's own tensors come out of a loader."""

    def run() -> Any:
        return trained(DataLoader(TensorDataset(HELD[:, None], torch.zeros(12, 1, dtype=torch.long)), batch_size=None))

    assert predict(run, device="cpu").peak == pytorch_peak(run)


def test_what_reading_takes_is_not_memory_of_a_gpu():
    """Transforms and samplers compute on the host."""

    def run() -> Any:
        for make in (tensors, of_numpy, of_lists, held):
            for x, y in DataLoader(Drawn(make), 4, shuffle=True):
                (x.sort(descending=True).values.sum() + y.sum()).item()
        for part in random_split(TensorDataset(HELD), [8, 4]):
            assert len(DataLoader(part, 2)) == len(part) // 2

    assert predict(run, device="cpu").peak > 0
    assert predict(run, device="cuda").peak == 0
