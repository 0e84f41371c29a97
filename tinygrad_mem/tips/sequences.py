"""Tips about text: padding, the logits of the last layer, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tinygrad_mem as tm

from .. import nn
from ..data import PadCollate
from ..models.lstm import LSTMLanguageModel
from ..models.names import Named
from ..nn import functional as F
from ..techniques import select_labelled, tiled
from .tip import Case, Scene, Tip, Training, classify, momentum, varied

CHARACTERS = Scene(Named(lambda: LSTMLanguageModel(), (64,), 128, tokens=128), 16)
WORDS = Scene(Named(lambda: LSTMLanguageModel(tokens=4000, width=64, hidden=64), (32,), 4000, tokens=4000), 16)

# --- padding


def _lines(scene: Scene, count: int = 3) -> list[list[np.ndarray]]:
    """Batches of lines of different lengths: most are short, the longest of all is in the last batch."""
    rng = np.random.default_rng(0)
    longest = scene.network.sample[0]
    lengths = [rng.integers(longest // 8, longest // 2, scene.batch_size) for _ in range(count)]
    lengths[-1][0] = longest
    return [[rng.integers(0, scene.network.classes, n) for n in batch] for batch in lengths]


def padded(scene: Scene, count: int, to_all: bool) -> Training:
    """One step for each batch: tokens padded to the longest line of all, or of the batch; padding is ignored as a target."""
    length = scene.network.sample[0] if to_all else 1
    collates = PadCollate(0, length), PadCollate(-100, length)
    batches = [tuple(collate(batch).tokens for collate in collates) for batch in _lines(scene)[:count]]
    model = scene.model()
    rule = momentum(model.parameters())
    waiting = iter(batches)

    def step() -> float:
        tokens, targets = next(waiting)
        rule.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
        del tokens, targets
        loss.backward()
        rule.step()
        return loss.item()

    return Training(step, model, steps=len(batches))


def packed_or_padded(scene: Scene, pack: bool) -> Training:
    """One batch of lines, through the LSTM padded or packed; the loss is over the real tokens."""
    model = scene.model()
    rule = momentum(model.parameters())
    lines = sorted(_lines(scene)[-1], key=len, reverse=True)
    tokens, lengths = PadCollate()(lines).tokens, [len(line) for line in lines]
    real = tm.tensor(np.concatenate([i * lengths[0] + np.arange(n) for i, n in enumerate(lengths)]))

    def step() -> float:
        rule.zero_grad()
        x = model.embedding(tokens)  # N, T, width
        if pack:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            del x
            y, targets = model.lstm(packed)[0].data, nn.utils.rnn.pack_padded_sequence(tokens, lengths, batch_first=True).data
        else:
            y, targets = model.lstm(x)[0].flatten(0, 1)[real], tokens.flatten()[real]
        loss = F.cross_entropy(model.head(y), targets)
        loss.backward()
        rule.step()
        return loss.item()

    return Training(step, model)


# --- the last layer


def _head(scene: Scene, loss_of: Any) -> Training:
    """Labels at every fifth token only, as in masked language models."""
    model, (tokens, targets) = scene.model(), scene.data()
    rule = momentum(model.parameters())
    count = scene.batch_size * scene.network.sample[0]
    unlabelled = tm.tensor(np.arange(count) % 5 != 0).view(scene.batch_size, -1)
    labels = targets.masked_fill(unlabelled, -100)

    def step() -> float:
        rule.zero_grad()
        hidden = model.lstm(model.embedding(tokens))[0]  # N, T, hidden
        loss = loss_of(model.head, hidden, labels)
        del hidden
        loss.backward()
        rule.step()
        return loss.item()

    return Training(step, model)


def all_logits(scene: Scene) -> Training:
    def loss_of(head: Any, hidden: Any, labels: Any) -> Any:
        return F.cross_entropy(head(hidden).flatten(0, 1), labels.flatten())

    return _head(scene, loss_of)


def selected_logits(scene: Scene) -> Training:
    places = tm.arange(0, scene.batch_size * scene.network.sample[0], 5)  # known in advance, so that they need not be searched

    def loss_of(head: Any, hidden: Any, labels: Any) -> Any:
        rows, targets = select_labelled(hidden, labels, positions=places)
        return F.cross_entropy(head(rows), targets)

    return _head(scene, loss_of)


def logits_in_tiles(scene: Scene) -> Training:
    def loss_of(head: Any, hidden: Any, labels: Any) -> Any:
        rows = hidden.flatten(0, 1)
        tiles = nn.LinearCrossEntropyOptions(batch_chunk_size=256, class_chunk_size=256)
        return F.linear_cross_entropy(
            rows, head.weight, labels.flatten(), linear_bias=head.bias, ignore_index=-100, options=tiles
        )

    return _head(scene, loss_of)


# --- attention


class Attention(nn.Module):
    """Causal self-attention of four heads, with scores that are tensors, or in tiles."""

    def __init__(self, in_tiles: bool) -> None:
        super().__init__()
        self.project, self.in_tiles = nn.Linear(64, 192), in_tiles

    def forward(self, x: Any) -> Any:
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, 4, 16).transpose(1, 2) for part in self.project(x).split(64, 2))  # N, heads, T, 16
        if self.in_tiles:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(16)  # N, heads, T, T
            hidden = tm.ones(t, t, dtype=tm.bool, device=x.device).triu(1)
            y = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return x + y.transpose(1, 2).reshape(n, t, 64)


def attention(scene: Scene, in_tiles: bool) -> Training:
    blocks = [Attention(in_tiles) for _ in range(2)]
    return classify(scene, nn.Sequential(nn.Embedding(128, 64), *blocks, nn.Linear(64, 128)))


# --- the MLP of each token


class TokenMLP(nn.Module):
    """An MLP of each token, added to its input: for all tokens at once, or for some at a time."""

    def __init__(self, tokens: int | None) -> None:
        super().__init__()
        self.mlp, self.tokens = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)), tokens

    def forward(self, x: Any) -> Any:
        return x + tiled(self.mlp, x, self.tokens)


def perceptrons(scene: Scene, tokens: int | None) -> Training:
    return classify(scene, nn.Sequential(nn.Embedding(128, 64), TokenMLP(tokens), TokenMLP(tokens), nn.Linear(64, 128)))


TIPS = (
    Tip(
        "dynamic_padding", "Pad to the longest line of the batch, not of the data.",
        (varied(padded, "the batch is short", count=2, to_all=(True, False)),
         varied(padded, "the longest is in it", count=3, to_all=(True, False))),
        CHARACTERS,
    ),
    Tip(
        "packed_sequences", "Pack sequences instead of padding them.",
        (varied(packed_or_padded, pack=(False, True)),), CHARACTERS,
    ),
    Tip("selection", "Select the labelled positions before the last layer.", (Case(all_logits, selected_logits),), WORDS),
    Tip("chunking", "Compute the loss in chunks, without all logits.", (Case(all_logits, logits_in_tiles),), WORDS),
    Tip(
        "attention", "Memory-efficient attention: never keep the scores.",
        (varied(attention, in_tiles=(False, True)),), Scene(Named(lambda: nn.Identity(), (256,), 128, tokens=128), 4),
    ),
    Tip(
        "tiled", "Compute an MLP for some tokens at a time.",
        (varied(perceptrons, tokens=(None, 128)),), Scene(Named(lambda: nn.Identity(), (1024,), 128, tokens=128), 1),
    ),
)  # fmt: skip
