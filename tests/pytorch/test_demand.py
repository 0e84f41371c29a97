"""A program's demand, served again, is what the program asks for there: other settings, other cards, other batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tinygrad_mem import pytorch
from tinygrad_mem.pytorch.demand import Demand

MIB = 1 << 20


def train(batch: int = 64, device: str = "cuda") -> None:
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device)
    rule = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        rule.zero_grad()
        model(torch.randn(batch, 512, device=device)).square().mean().backward()
        rule.step()


@pytest.fixture(scope="module")
def plain() -> pytorch.Prediction:
    return pytorch.predict(train)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:21"])
@pytest.mark.parametrize("room", [None, 40 * MIB, 90 * MIB])
def test_it_is_served_as_in_a_prediction(settings: str, room: int | None, plain: pytorch.Prediction):
    again = Demand.of(plain.log).served(settings, room)
    found = pytorch.predict(train, settings=settings, capacity=room)
    assert (again.peak, again.peak_reserved, again.fits) == (found.peak, found.peak_reserved, found.fits)


def test_another_batch_lies_on_the_line_of_two(plain: pytorch.Prediction):
    here, there = Demand.of(plain.log), Demand.of(pytorch.predict(train, 96).log)
    assert here.alike(there)
    found, again = pytorch.predict(train, 200), here.at(200, there, 64, 96).served("", None)
    assert (again.peak, again.peak_reserved) == (found.peak, found.peak_reserved)
    assert not here.alike(Demand(here.blocks[:-1], here.sizes[:-1]))


def test_on_the_cpu_the_machine_has_room_or_has_not():
    found = pytorch.predict(train, 8, "cpu", device="cpu")
    demand = Demand.of(found.log)
    assert demand.served("", None).peak == found.peak
    assert demand.served("", found.peak).fits
    assert not demand.served("", found.peak - 1).fits
    assert Demand(np.empty(0, np.int64), np.empty(0, np.int64), on_cpu=True).served("", None).peak == 0


@pytest.mark.parametrize("look", [torch.cuda.max_memory_allocated, torch.cuda.empty_cache, torch.cuda.reset_peak_memory_stats])
def test_a_program_that_looks_at_the_memory_says_so(look, plain: pytorch.Prediction):
    assert not plain.looks
    assert pytorch.predict(lambda: (torch.empty(9, device="cuda"), getattr(torch.cuda, look.__name__)())).looks
