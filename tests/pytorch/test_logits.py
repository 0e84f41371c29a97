"""The loss in chunks: predicted from outside, it is what the line of code takes, and on the CPU what PyTorch takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.pytorch_memory import pytorch_peak
from tinygrad_mem import pytorch
from tinygrad_mem.pytorch.changes import ChunkedLoss
from tinygrad_mem.pytorch.program.seen import Seen

pytestmark = pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="before PyTorch 2.13")
CLASSES, WIDE = 300, 64  # the loss has a chunk for each WIDE classes


class Language(nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(CLASSES, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, CLASSES, bias)

    def forward(self, ids: torch.Tensor, whole: bool) -> torch.Tensor:
        x = self.hidden(self.embed(ids))
        return self.head(x) if whole else x


def loss_of(logits: torch.Tensor, ids: torch.Tensor, way: str) -> torch.Tensor:
    """The loss, asked for in the ways in which programs ask for it."""
    if way == "next token":
        return F.cross_entropy(logits[:, :-1].contiguous().view(-1, logits.size(-1)).float(), ids[:, 1:].flatten())
    if way == "classes first":
        return F.cross_entropy(logits.transpose(1, 2), ids, reduction="none", ignore_index=0).mean()
    return F.cross_entropy(logits.flatten(0, -2), ids.flatten())


def written(model: Any, x: torch.Tensor, ids: torch.Tensor, way: str, dtype: torch.dtype | None) -> torch.Tensor:
    """The same with the line that ``advise`` prints."""
    if way == "next token":
        x, ids = x[:, :-1], ids[:, 1:]
    weight, bias, x = model.head.weight, model.head.bias, x.flatten(0, -2)
    if dtype is not None:
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    more: dict[str, Any] = {"reduction": "none", "ignore_index": 0} if way == "classes first" else {}
    options = nn.LinearCrossEntropyOptions()
    loss = F.linear_cross_entropy(x, weight, ids.flatten(), linear_bias=bias, options=options, **more)
    return loss.mean() if more else loss


def train(device: str, whole: bool = True, way: str = "flat", bias: bool = False, autocast: bool = False) -> Any:
    model = Language(bias).to(device)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        rule.zero_grad()
        ids = torch.ones(4, 64, dtype=torch.long, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            found = model(ids, whole)
            dtype = torch.bfloat16 if autocast else None
            loss = loss_of(found, ids, way) if whole else written(model, found, ids, way, dtype)
        loss.backward()
        rule.step()
    return model, rule, loss


WAYS: list[dict[str, Any]] = [
    {}, {"way": "next token"}, {"way": "classes first"}, {"bias": True}, {"autocast": True, "bias": True},
]  # fmt: skip


def from_outside(device: str, options: dict[str, Any]) -> tuple[ChunkedLoss, pytorch.Prediction]:
    """The change of a program that has been looked at, and the program with it."""
    seen = Seen()

    def run(*contexts: Any) -> None:
        with contexts[0]:
            train(device, **options)

    pytorch.predict(run, seen.watching(), device=device)
    change = ChunkedLoss(seen.heads.found)
    return change, pytorch.predict(run, change.made(device), device=device)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_its_peak_on_the_cpu_is_pytorchs(options: dict[str, Any]):
    _, found = from_outside("cpu", options)
    assert found.peak == pytorch_peak(lambda: train("cpu", False, **options))


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_on_a_gpu_it_is_what_the_line_takes(options: dict[str, Any]):
    change, found = from_outside("cuda", options)
    line = pytorch.predict(train, "cuda", False, **options)
    assert (found.peak, found.peak_reserved) == (line.peak, line.peak_reserved)
    assert "F.linear_cross_entropy(x.flatten(0, -2)" in change.code
    assert ("linear_bias=model.head.bias" in change.code) is bool(options.get("bias"))
    assert ("model.head.weight.to(torch.bfloat16)" in change.code) is bool(options.get("autocast"))


def test_it_is_advised():
    advice = pytorch.advise(train, "cuda")
    row = advice.row("loss in chunks")
    assert row.peak == pytorch.predict(train, "cuda", False).peak
    assert row.saved > 4 * CLASSES * 256, "more than all logits"
    assert "loss in chunks" in advice.together[0].names


def ranked(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    logits.argmax(-1)
    return loss_of(logits, ids, "flat")


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (ranked, "the logits are used by argmax too"),
        (lambda logits, ids: logits.square().mean(), "no result of a linear layer goes to F.cross_entropy"),
        (lambda logits, ids: F.cross_entropy(logits[0], ids[0], label_smoothing=0.1), "the loss has label smoothing"),
        (lambda logits, ids: F.cross_entropy(logits[..., :9].flatten(0, 1), ids.flatten()), "cuts the logits by classes"),
    ],
)
def test_where_it_does_not_apply_it_says_why(loss: Any, why: str):
    def run() -> None:
        model, ids = Language().cuda(), torch.ones(2, 8, dtype=torch.long, device="cuda")
        loss(model(ids, True), ids).backward()

    row = pytorch.advise(run).row("loss in chunks")
    assert why in row.refused
    assert row.peak == 0
