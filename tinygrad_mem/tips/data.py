"""Tips about data: how much of it is in memory at a time; and a bigger GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tinygrad_mem as tm

from .. import plan as planner
from ..data import DataLoader, TokenFile, TokenStream, write_tokens
from ..safetensors import write_header
from .batch import batch_times
from .optimizers import MLP
from .sequences import CHARACTERS
from .tip import RESNET, Case, Scene, Tip, Training, inference, momentum, plain, varied

BATCHES = 24


def _epoch(scene: Scene, make: Callable[[], Any]) -> Training:
    """One pass over the batches of ``make()``: a list, or an iterator."""
    model = scene.model()
    batches = make()
    rule = momentum(model.parameters())

    def epoch() -> float:
        total = 0.0
        for x, y in batches:
            rule.zero_grad()
            loss = scene.loss(model(x), y)
            del x, y
            loss.backward()
            rule.step()
            total += loss.item()
            del loss
        return total

    return Training(epoch, model, steps=1)


def all_batches(scene: Scene) -> Training:
    return _epoch(scene, lambda: [scene.data() for _ in range(BATCHES)])


def one_batch_at_a_time(scene: Scene) -> Training:
    return _epoch(scene, lambda: (scene.data() for _ in range(BATCHES)))


def _tokens(scene: Scene) -> Iterator[np.ndarray]:
    """Chunks of a text of four million characters. An epoch reads its beginning."""
    for seed in range(4):
        yield np.random.default_rng(seed).integers(0, scene.network.classes, 1_000_000)


def _first_four(batches: Any) -> Any:
    return (pair for pair, _ in zip(batches, range(4), strict=False))


def whole_text(scene: Scene) -> Training:
    length = scene.network.sample[0]

    def make() -> Iterator:
        text = tm.tensor(np.concatenate(list(_tokens(scene))))
        windows = [(text[i : i + length], text[i + 1 : i + length + 1]) for i in range(0, 64 * length, length)]
        return _first_four(DataLoader(windows, scene.batch_size))

    return _epoch(scene, make)


def mapped_file(scene: Scene) -> Training:
    def make() -> Iterator:
        with tempfile.TemporaryDirectory() as folder:
            write_tokens(Path(folder) / "text.bin", _tokens(scene))
            yield from _first_four(DataLoader(TokenFile(Path(folder) / "text.bin", scene.network.sample[0]), scene.batch_size))

    return _epoch(scene, make)


def streamed(scene: Scene) -> Training:
    windows = TokenStream(lambda: _tokens(scene), scene.network.sample[0])
    return _epoch(scene, lambda: _first_four(DataLoader(windows, scene.batch_size)))


# --- pretrained weights


def loaded(scene: Scene, in_place: bool) -> Training:
    """Inference with weights from a file, which is written without tensors; ``in_place``: the model has no memory before."""
    with tm.device("meta"):
        shapes = {name: tuple(each.shape) for name, each in scene.model().state_dict().items()}
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        with open(Path(folder) / "weights.safetensors", "wb") as file:
            for name in write_header(file, {name: (np.dtype("float32"), shape) for name, shape in shapes.items()}, None):
                file.write(rng.standard_normal(shapes[name], np.float32).data)
        with tm.device("meta") if in_place else nullcontext():
            model = scene.model()
        model.load_state_dict(tm.load(Path(folder) / "weights.safetensors"), assign=in_place)
    tm.manual_seed(0)  # a model that has memory has drawn numbers
    return inference(scene, model)


# --- a bigger GPU


def twice_the_batch_planned(scene: Scene) -> Training:
    """The planner's step with the lowest peak, among those that keep the numbers bit for bit."""
    size = 2 * scene.batch_size
    times = planner.Times("meta")  # modelled: only bytes matter here
    found = planner.plan(scene.network.make, lambda: scene.data(size), scene.loss, momentum, times=times)
    model: Any = scene.model()
    x, y = scene.data(size)
    smallest = found.within(found.search.smallest().reserved)
    train = smallest.apply(model, momentum(model.parameters()))
    return Training(lambda: train(x, y).item(), model)


TIPS = (
    Tip("generators", "Use a generator: one batch in memory, not all.", (Case(all_batches, one_batch_at_a_time),), MLP),
    Tip(
        "streaming", "Stream data that is larger than memory.",
        (Case(whole_text, mapped_file, "a mapped file"), Case(whole_text, streamed, "a stream")), CHARACTERS,
    ),
    Tip(
        "pretrained", "Load pretrained weights into a model that was made on meta, not into one that has memory.",
        (varied(loaded, in_place=(False, True)),), MLP,
    ),
    Tip(
        "bigger_gpu", "Buy a bigger GPU, for twice the batch.",
        (Case(plain, partial(batch_times, factor=2), "how much bigger"),
         Case(partial(batch_times, factor=2), twice_the_batch_planned, "the planner's smallest step instead")),
        RESNET, free=True,
    ),
)  # fmt: skip
