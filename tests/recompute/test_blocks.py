"""Chains of blocks in segments: the same numbers, fewer bytes; ``estimate --recompute`` says what a run measures."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tinygrad_mem as tm
from tests.profiles import pairs
from tinygrad_mem import memory, nn
from tinygrad_mem.cli.app import app
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import ArgumentError
from tinygrad_mem.models import gpt, resnet, vgg
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.nn import functional as F
from tinygrad_mem.recompute import Scheduled, checkpoint_blocks

SMALL: dict[str, Any] = {
    "resnet20": (resnet.resnet20, lambda: tm.randn(2, 3, 32, 32)),
    "vgg11_bn": (lambda: vgg.CifarVGG(11), lambda: tm.randn(2, 3, 32, 32)),
    "gpt": (lambda: gpt.GPT(4, 2, 16, context=8, vocabulary=11, dropout=0.1), lambda: tm.randint(0, 11, (2, 8))),
}


@cache
def numbers(name: str, how: Any = None) -> list[np.ndarray]:
    """The loss, gradients and buffers after two steps, in segments unless ``how`` is ``None``."""
    tm.manual_seed(0)
    make, data = SMALL[name]
    model = make() if how is None else checkpoint_blocks(make(), how)
    assert any(isinstance(m, Scheduled) for m in model.modules()) == (how is not None)
    for _ in range(2):
        loss = model(data()).square().mean()
        loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters()), *model.buffers()]
    return [each.numpy().copy() for each in found]


@pytest.mark.parametrize(("name", "how"), pairs(list(SMALL), ["sqrt", "every-block", 2, 100]))
def test_networks_in_segments_are_bit_for_bit_the_same(name: str, how: Any):
    for mine, plain in zip(numbers(name, how), numbers(name), strict=True):
        np.testing.assert_array_equal(mine, plain)


def test_names_stay():
    assert [*checkpoint_blocks(resnet.resnet20(), 3).state_dict()] == [*resnet.resnet20().state_dict()]
    assert [*checkpoint_blocks(nn.Sequential(nn.Tanh(), nn.Linear(2, 2))).state_dict()] == ["1.weight", "1.bias"]


def estimate(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["estimate", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", ["sqrt", "2", "every-block"])
def test_an_estimate_is_what_a_run_measures(how: str):
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.track("cpu") as track:
            model = checkpoint_blocks(NETWORKS["resnet20"].make(), int(how) if how.isdecimal() else how)
            update = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for _ in range(2):
                update.zero_grad()
                F.cross_entropy(model(tm.randn(4, 3, 32, 32)), tm.randint(0, 10, (4,))).backward()
                update.step()
    finally:
        del model, update
        cpu.pool = before
    answer = estimate("resnet20", "--batch-size=4", f"--recompute={how}")
    assert answer["peak_used"] == track.peak
    assert answer["by_category"] == {category.value: size for category, size in track.by_category("peak").items()}
    assert answer["peak_reserved"] == track.pool("end").reserved


def test_estimates_fall():
    peaks = [estimate("resnet110", "--batch-size=32", *how)["peak_used"] for how in ((), ("--recompute=sqrt",))]
    assert peaks[1] < 0.35 * peaks[0]


def test_what_is_refused():
    for how in ("root", 0, -1):
        with pytest.raises(ArgumentError, match="expected sqrt, every-block or a number of segments, found"):
            checkpoint_blocks(resnet.resnet20(), how)
    with pytest.raises(ArgumentError, match="Linear has no chain of blocks"):
        checkpoint_blocks(nn.Linear(2, 2))
    done = CliRunner().invoke(app, ["estimate", "lenet", "--recompute=root"])
    assert done.exit_code == 2
    assert "recompute: expected sqrt, every-block or a number of segments, found 'root'" in done.output


class Keeps(nn.Module):
    """A model that keeps what each block gives."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        kept = []
        for block in self.blocks:
            x = block(x)
            kept.append(x)
        return tm.stack(kept).sum(0)


class Changes(Keeps):
    def forward(self, x: tm.Tensor) -> tm.Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return x


class Skips(Keeps):
    def forward(self, x: tm.Tensor) -> tm.Tensor:
        return self.blocks[5](self.blocks[0](x))


@pytest.mark.parametrize("made", [Keeps, Changes, Skips, lambda: NETWORKS["unet"].make()])
def test_a_model_that_reads_what_is_between_its_blocks_is_refused(made: Any):
    """In segments it would be another model: a sum of fewer terms, or blocks left out."""
    with tm.device("meta"):
        model = made()
        x = tm.randn(1, *NETWORKS["unet"].sample) if not isinstance(model, Keeps) else tm.randn(2, 4)
        with pytest.raises((ArgumentError, TypeError), match=r"what a block gives within a segment|InputOfASegment"):
            checkpoint_blocks(model, 2)(x)
        assert checkpoint_blocks(made(), "every-block")(x).requires_grad
