"""What the techniques' tests share: random networks, what a training leaves behind, and the big networks' steps on meta."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.memory.test_predict import assert_predicted as assert_predicted
from tests.memory.test_predict import measured as measured
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device, round_up
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.nn import functional as F


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, width),
    "relu": lambda width: nn.ReLU(),
    "in place": lambda width: nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)),
    "dropout": lambda width: nn.Dropout(0.3),
    "norm": lambda width: nn.BatchNorm1d(width),
    "layer norm": lambda width: nn.LayerNorm(width),
    "gelu": lambda width: nn.GELU(),
    "softmax": lambda width: nn.Softmax(1),
    "residual": lambda width: Residual(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))),
    "conv": lambda width: nn.Sequential(
        nn.Unflatten(1, (1, width)), nn.Conv1d(1, 2, 3, padding=1), nn.MaxPool1d(2, ceil_mode=True), nn.Flatten(),
        nn.Linear(2 * -(-width // 2), width),
    ),
    "dropped view": lambda width: nn.Sequential(nn.Unflatten(1, (width, 1)), nn.Dropout(0.2), nn.Flatten(), nn.Tanh()),
}  # fmt: skip
NO_BATCH_NORM = sorted(LAYERS.keys() - {"norm"})


@dataclass(frozen=True)
class Plan:
    """A random training: a network, an optimizer, some batches."""

    layers: tuple[str, ...]
    width: int
    batch: int
    steps: int
    optimizer: str
    device: str = "cpu"

    def model(self) -> nn.Module:
        tm.manual_seed(1)
        with device(self.device):
            return nn.Sequential(nn.Linear(7, self.width), *[LAYERS[name](self.width) for name in self.layers])

    def rule(self, model: nn.Module) -> Any:
        return getattr(tm.optim, self.optimizer)(model.parameters(), lr=0.01)

    def batches(self) -> list[tuple[Any, Any]]:
        rng = np.random.default_rng(5)
        shapes = ((self.batch, 7), (self.batch, self.width))
        return [
            tuple(tm.tensor(rng.standard_normal(s, np.float32), device=self.device) for s in shapes) for _ in range(self.steps)
        ]  # type: ignore[misc]


def plans(layers: Sequence[str] = tuple(LAYERS)) -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        st.lists(st.sampled_from(sorted(layers)), min_size=1, max_size=7).map(tuple),
        st.integers(2, 40),
        st.integers(2, 17),
        st.integers(1, 3),
        st.sampled_from(["SGD", "Adam", "RMSprop", "Adagrad"]),
    )


def loss_of(model: nn.Module, x: Any, y: Any) -> Any:
    return F.mse_loss(model(x), y)


def outcome(model: nn.Module, optimizer: Any, losses: list) -> list[np.ndarray]:
    """All that a training leaves behind: losses, parameters, buffers, optimizer state, where the generator stands."""
    found = [np.asarray(losses), np.asarray(device("cpu").generator.state)]
    found += [t.detach().numpy().copy() for t in (*model.parameters(), *model.buffers())]
    for _, state in sorted(optimizer.state_dict()["state"].items()):
        found += [v.numpy().copy() if isinstance(v, tm.Tensor) else np.asarray(v) for v in state.values()]
    return found


def train(plan: Plan, around: Callable[[], Any] = contextlib.nullcontext) -> list[np.ndarray]:
    """A plain training of ``plan``, each forward inside ``around()``; its outcome and the last step's gradients."""
    model = plan.model()
    optimizer, losses = plan.rule(model), []
    for x, y in plan.batches():
        optimizer.zero_grad()
        with around():
            loss = loss_of(model, x, y)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    gradients = [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]
    return [*outcome(model, optimizer, losses), *gradients]


def assert_identical(ours: list[np.ndarray], plain: list[np.ndarray]) -> None:
    assert len(ours) == len(plain)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def rounded(*tensors: Any) -> int:
    """What tensors take in the pool, each block rounded up."""
    return sum(round_up(t.nbytes) for t in tensors)


def requested(track: memory.Track) -> int:
    """The bytes asked for at the peak, to compare with PyTorch's, which are not rounded up."""
    return track.pool("peak").requested


BIG = {"vgg16": (32, (3, 224, 224)), "resnet50": (32, (3, 224, 224)), "unet": (4, (3, 256, 256)), "gpt2": (8, (1024,))}
"""The networks whose bytes are told of every technique: batch, and the shape of a sample."""


def big_step(
    name: str, around: Callable[[], Any] = contextlib.nullcontext, inspect: Callable[[Any], Any] | None = None
) -> None:
    """Forward in ``around()`` and backward of a big network; ``inspect`` sees the loss before backward."""
    named, (batch, sample) = NETWORKS[name], BIG[name]
    model = named.make()
    x = tm.randint(0, named.classes, (batch, *sample)) if named.tokens else tm.randn(batch, *sample)
    with around():
        loss = model(x).square().mean()
    if inspect is not None:
        inspect(loss)
    loss.backward()


def big_track(name: str, around: Callable[[], Any] = contextlib.nullcontext) -> memory.Track:
    return memory.predict(big_step, name, around)


def kept_under(loss: Any) -> list[tuple[int, str, Any]]:
    """(address, name, array) of all that the graph under ``loss`` keeps in the pool, leaves apart."""
    leaves, found, stack, seen = set(), [], [loss.grad_fn], set()
    where = loss.device
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for target, _ in filter(None, node.edges):
            if isinstance(target, tm.Tensor):
                leaves.add(where.address(target.array))
            else:
                stack.append(target)
        found += [(where.address(array), name, array) for name, array in node.kept() if where.address(array) is not None]
    return [each for each in found if each[0] not in leaves]


def saved_storages(loss: Any) -> dict[int, int]:
    """Address -> rounded bytes of every block of the pool that the graph under ``loss`` keeps, leaves apart."""
    return {address: round_up(loss.device.sizes(array)[0]) for address, _, array in kept_under(loss)}


def plain_saved_bytes(name: str) -> int:
    """What a big network's forward keeps for backward on meta, each storage once, parameters apart."""
    found: list[int] = []
    memory.predict(big_step, name, inspect=lambda loss: found.append(sum(saved_storages(loss).values())))
    return found[0]
