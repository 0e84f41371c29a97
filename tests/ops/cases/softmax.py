"""Softmax and its logarithm."""

import torch.nn.functional as T

from tests.case import OpCase
from tinygrad_mem.functional import softmax as ours


def _normal(*shape):
    return lambda rng: [rng.standard_normal(shape) * 3]


def _output(x, y):
    return y.nbytes


CASES = [
    OpCase("softmax", "Softmax", lambda x: ours.softmax(x, -1), lambda x: T.softmax(x, -1), _normal(5, 17), _output),
    OpCase(
        "softmax of channels", "Softmax", lambda x: ours.softmax(x, 1), lambda x: T.softmax(x, 1), _normal(3, 7, 4, 5), _output
    ),
    OpCase("softmax of the first", "Softmax", lambda x: ours.softmax(x, 0), lambda x: T.softmax(x, 0), _normal(9, 4), _output),
    OpCase(
        "log_softmax", "LogSoftmax", lambda x: ours.log_softmax(x, -1), lambda x: T.log_softmax(x, -1), _normal(5, 17), _output
    ),
    OpCase(
        "log_softmax of channels",
        "LogSoftmax",
        lambda x: ours.log_softmax(x, 1),
        lambda x: T.log_softmax(x, 1),
        _normal(3, 7, 4, 5),
        _output,
    ),
]
