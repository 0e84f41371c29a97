"""Looking rows of a table up."""

import numpy as np
import torch.nn.functional as T

from tests.case import OpCase
from tinygrad_mem.functional import embedding as ours


def _table(rng):
    return [rng.integers(0, 11, (4, 6)), rng.standard_normal((11, 9))]


def _index(index, weight, y):
    return index.nbytes


def _short(rng):
    return [rng.integers(0, 11, (4, 6)).astype(np.int32), rng.standard_normal((11, 9))]


def _often(rng):
    """Each row some thirteen times: what is added to one is summed in one call."""
    return [rng.integers(0, 3, (8, 5)), rng.standard_normal((3, 9))]


def _bags(rng):
    return [rng.integers(0, 11, (4, 6)), rng.standard_normal((11, 9))]


def _cut(rng):
    return [rng.integers(0, 11, 20), rng.standard_normal((11, 9)), np.array([0, 3, 3, 9])]


def _shared(rng):
    return [rng.integers(0, 11, (4, 6)).astype(np.int32), rng.standard_normal((11, 9)), rng.standard_normal((4, 6))]


def _bag(name, inputs, saved, op="EmbeddingBag", **options):
    def run(of, options):
        return lambda index, weight, offsets=None: of(index, weight * 1, offsets, **options)  # so that no gradient is sparse

    there = {**options, "sparse": False}
    return OpCase(f"embedding_bag {name}", op, run(ours.embedding_bag, options), run(T.embedding_bag, there), inputs, saved)


CASES = [
    _bag("sum", _bags, _index, mode="sum"),
    _bag("mean", _cut, lambda i, w, o, y: i.nbytes + o.nbytes, padding_idx=2),
    _bag("max", _cut, lambda i, w, o, y: 4 * y.size, op="EmbeddingBagMax", mode="max", padding_idx=2),
    _bag("sparse", _bags, _index, mode="mean", sparse=True, padding_idx=1),
    OpCase(
        "embedding_bag shares",
        "EmbeddingBag",
        lambda i, w, s: ours.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        lambda i, w, s: T.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        _shared,
        lambda i, w, s, y: i.nbytes + s.nbytes + w.nbytes,
    ),
    OpCase("embedding", "Embedding", lambda i, w: ours.embedding(i, w), lambda i, w: T.embedding(i, w), _table, _index),
    OpCase("embedding often", "Embedding", lambda i, w: ours.embedding(i, w), lambda i, w: T.embedding(i, w), _often, _index),
    OpCase("embedding int32", "Embedding", lambda i, w: ours.embedding(i, w), lambda i, w: T.embedding(i, w), _short, _index),
    OpCase(
        "embedding sparse",  # behind another op, a gradient of rows is dense
        "Embedding",
        lambda i, w: ours.embedding(i, w * 1, sparse=True),
        lambda i, w: T.embedding(i, w * 1),
        _table,
        _index,
    ),
    OpCase(
        "embedding max_norm",
        ("Embedding", "EmbeddingRenorm"),
        lambda i, w: ours.embedding(i, w.clone(), max_norm=1.0),
        lambda i, w: T.embedding(i, w.clone(), max_norm=1.0),
        _table,
        grad=False,
    ),
]
