"""What a call of a kernel moves and multiplies at least: the measure of how near to the machine's limit it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

_CHANGED = frozenset(["p", "m", "v", "buf", "gates", "h", "c", "dh", "dc"])  # parameters that are read and written
_SCRATCH = frozenset(["work"])  # workspaces, which need not leave the cache
_SOURCES = {"embedding": "weight"}  # of these arrays a kernel reads as much as it writes, not all


class Cost(NamedTuple):
    """Bytes that a kernel reads and writes, each array once, and its multiplications within products.

    A convolution's are those of the plain sum, so that a way with fewer (Winograd's) may go beyond the limit.
    """

    bytes: int
    multiplications: int

    def at_limit(self, limits: Limits) -> float:
        """Seconds that the machine needs for the slower of the two."""
        return max(self.bytes / limits.copy, self.multiplications / limits.product)


NOTHING = Cost(0, 0)


class Limits(NamedTuple):
    """The machine's: bytes a second of a large copy, read and written; multiplications a second of 1,024 x 1,024 matrices."""

    copy: float
    product: float


@lru_cache
def _parameters(kernel: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(kernel)


def cost_of(name: str, kernel: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Cost:
    """The cost of a call. Broadcast arrays count as what lies in memory; the same array read twice counts once."""
    given = _parameters(kernel).bind(*args, **kwargs).arguments
    arrays = {key: value for key, value in given.items() if isinstance(value, np.ndarray) and key not in _SCRATCH}
    moved: dict[tuple, int] = {}
    for key, array in arrays.items():
        size = prod(n for n, step in zip(array.shape, array.strides, strict=True) if step) * array.itemsize
        if key == _SOURCES.get(name):
            size = min(size, arrays["out"].nbytes)
        place = (array.__array_interface__["data"][0], array.shape, key == "out")
        moved[place] = size * (2 if key in _CHANGED else 1)
    return Cost(sum(moved.values()), _multiplications(name, given))


def _multiplications(name: str, given: dict[str, Any]) -> int:
    if name in ("conv_forward", "conv_backward_input"):
        return given["out" if name == "conv_forward" else "gy"].size * prod(given["w"].shape[1:])
    if name == "conv_backward_weight":
        return given["gy"].size * prod(given["out"].shape[1:])
    if name in ("matmul", "matmul_add", "add_matmul"):
        return given["out"].size * given["x"].shape[-1]
    if name == "add_product":
        return given["out"].size * given["a"].shape[-1]
    if name in ("attention", "attention_backward"):
        products = 5 if name.endswith("backward") else 2  # q k, p v; and backward those of q k again, gy v, and three gradients
        causal = given["window"][1] == 0
        return products * given["q"].size * given["k"].shape[-2] // (2 if causal else 1)
    if name.removesuffix("_backward") in ("lstm", "gru", "rnn"):
        return len(given["gates"]) * given["weight"].size
    return 0
