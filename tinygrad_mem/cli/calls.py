"""The calls that ``doctor`` checks: one or more of each family of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tinygrad_mem as tm

from ..nn import functional as F

Make = Callable[[np.random.Generator], np.ndarray]


class Call(NamedTuple):
    """A function of tensors, and the functions that make its inputs. Gradients are checked for inputs of floats."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Make, ...]


def normal(*shape: int) -> Make:
    """Random numbers of both signs."""
    return lambda rng: rng.standard_normal(shape)


def positive(*shape: int) -> Make:
    """Random numbers between 0.5 and 1.5."""
    return lambda rng: rng.random(shape) + 0.5


def distinct(*shape: int) -> Make:
    """Numbers of which no two are equal, in float16 either: their order is known."""
    return lambda rng: rng.permutation(np.linspace(-2, 2, int(np.prod(shape)))).reshape(shape)


def index(high: int, *shape: int) -> Make:
    """Whole numbers from 0 to ``high - 1``."""
    return lambda rng: rng.integers(0, high, shape)


X = normal(4, 33)
IMAGES = normal(2, 4, 9, 9)
HEADS = normal(2, 3, 17, 8)

CALLS = (
    Call("add", lambda x, y: x + y, (X, normal(33))),
    Call("multiply", lambda x, y: x * y, (X, normal(4, 1))),
    Call("divide", lambda x, y: x / y, (X, positive(4, 33))),
    Call("divide a number", lambda x: 2 / x, (positive(4, 33),)),
    Call("power", lambda x, y: x**y, (positive(4, 33), positive(4, 33))),
    Call("power of a number", lambda x: 2**x, (X,)),
    Call("exp, log", lambda x: x.exp().log1p(), (X,)),
    Call("sqrt", lambda x: x.sqrt(), (positive(4, 33),)),
    Call("clamp", lambda x: x.clamp(-1, 0.5), (X,)),
    Call("where with numbers", lambda x: tm.where(x > 0, x, 0.25), (X,)),
    Call("masked_fill", lambda x: x.masked_fill(x > 1, -3.0), (X,)),
    Call("addcmul", lambda x, a, b: tm.addcmul(x, a, b, value=0.5), (X, X, X)),
    Call("a view that is transposed", lambda x: (x.t() + 1).contiguous(), (X,)),
    Call("relu", F.relu, (X,)),
    Call("gelu", F.gelu, (X,)),
    Call("silu", F.silu, (X,)),
    Call("sigmoid, tanh", lambda x: x.sigmoid().tanh(), (X,)),
    Call("softplus", F.softplus, (X,)),
    Call("sum", lambda x: x.sum(1), (normal(5, 700),)),
    Call("mean", lambda x: x.mean((0, 2)), (normal(3, 5, 40),)),
    Call("var", lambda x: x.var(1), (X,)),
    Call("prod", lambda x: x.prod(1), (positive(6, 5),)),
    Call("amax", lambda x: x.amax(0), (distinct(9, 7),)),
    Call("norm", lambda x: x.norm(dim=1), (X,)),
    Call("logsumexp", lambda x: x.logsumexp(1), (X,)),
    Call("cumsum", lambda x: x.cumsum(1), (X,)),
    Call("cummax", lambda x: x.cummax(1)[0], (distinct(4, 33),)),
    Call("matmul", lambda x, y: x @ y, (X, normal(33, 17))),
    Call("batched matmul", lambda x, y: x @ y, (normal(3, 5, 7), normal(3, 7, 4))),
    Call("linear", F.linear, (X, normal(9, 33), normal(9))),
    Call("softmax", lambda x: x.softmax(1), (X,)),
    Call("log_softmax", lambda x: x.log_softmax(1), (X,)),
    Call("cross_entropy", lambda x, y: F.cross_entropy(x, y, ignore_index=3), (X, index(33, 4))),
    Call("mse_loss", F.mse_loss, (X, X)),
    Call("conv1d", lambda x, w: F.conv1d(x, w, padding=1), (normal(2, 4, 19), normal(5, 4, 3))),
    Call("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), (IMAGES, normal(6, 4, 3, 3), normal(6))),
    Call("conv2d with stride and groups", lambda x, w: F.conv2d(x, w, stride=2, groups=2), (IMAGES, normal(6, 2, 3, 3))),
    Call("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2), (IMAGES, normal(4, 5, 2, 2))),
    Call("max_pool2d", lambda x: F.max_pool2d(x, 3, 2), (distinct(2, 2, 9, 9),)),
    Call("avg_pool2d", lambda x: F.avg_pool2d(x, 2), (IMAGES,)),
    Call("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 4), (IMAGES,)),
    Call("interpolate", lambda x: F.interpolate(x, size=(13, 6), mode="bilinear"), (IMAGES,)),
    Call("pad", lambda x: F.pad(x, (1, 2, 0, 1)), (IMAGES,)),
    Call("batch_norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (IMAGES, normal(4), normal(4))),
    Call("batch_norm without affine", lambda x: F.batch_norm(x, None, None, training=True), (IMAGES,)),
    Call("layer_norm", lambda x, w, b: F.layer_norm(x, (33,), w, b), (X, normal(33), normal(33))),
    Call("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGES, normal(4), normal(4))),
    Call("rms_norm", lambda x: F.rms_norm(x, (33,)), (X,)),
    Call("embedding", lambda i, w: F.embedding(i, w), (index(11, 3, 8), normal(11, 6))),
    Call("gather", lambda x, i: x.gather(1, i), (X, index(33, 4, 12))),
    Call("scatter_add", lambda x, i, y: x.scatter_add(1, i, y), (X, index(33, 4, 12), normal(4, 12))),
    Call("indexing", lambda x, i: x[i], (X, index(4, 7))),
    Call("sort", lambda x: x.sort(1)[0], (distinct(4, 33),)),
    Call("topk", lambda x: x.topk(5, 1)[0], (distinct(4, 33),)),
    Call("cat, split", lambda x, y: tm.cat((x, y), 1).split(20, 1)[1], (X, X)),
    Call("tril", lambda x: x.tril(), (normal(9, 9),)),
    Call("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (HEADS, HEADS, HEADS)),
)
