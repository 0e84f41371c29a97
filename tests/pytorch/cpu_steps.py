"""Training steps of the compared networks as plain PyTorch programs, in the ways in which their CPU peaks are compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.networks import Workload, under_pytorch

STEPS = 2


def _made(workload: Workload) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    model = getattr(under_pytorch(workload.module), workload.network)(**workload.arguments)
    return model, *map(torch.tensor, workload.data())


def forward(workload: Workload, mode: Callable[[], Any]) -> Any:
    """One forward; nothing is kept for backward."""
    model, x, _ = _made(workload)
    with mode():
        return model, model(x)


def training(workload: Workload, rule: str, autocast: bool = False, whole: bool = False) -> Any:
    """Two training steps. ``whole``: the network is checkpointed as one function."""
    model, x, y = _made(workload)
    options = {"lr": 1e-3, "momentum": 0.9} if rule == "SGD" else {"lr": 1e-4}
    optimizer = getattr(torch.optim, rule)(model.parameters(), **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = checkpoint(model, x, use_reentrant=False) if whole else model(x)
            loss = F.cross_entropy(found.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
    return model, optimizer, loss


WAYS: dict[str, Callable[[Workload], Any]] = {
    "forward": partial(forward, mode=torch.no_grad),
    "inference": partial(forward, mode=torch.inference_mode),
    "SGD": partial(training, rule="SGD"),
    "Adam": partial(training, rule="Adam"),
    "checkpoint": partial(training, rule="SGD", whole=True),
    "autocast": partial(training, rule="SGD", autocast=True),
}
