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


CASES = [
    OpCase("embedding", "Embedding", lambda i, w: ours.embedding(i, w), lambda i, w: T.embedding(i, w), _table, _index),
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
