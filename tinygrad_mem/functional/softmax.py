"""Softmax and its relatives. Each saves its output."""

from __future__ import annotations

from typing import Any

from .. import dtypes
from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import DTypeError
from ..ops import softmax as ops
from . import elementwise, unary
from .creation import empty_like, zeros_like
from .door import FLOAT32_RESULT, public


def _prepare(input: Tensor, dim: int | None, dtype: Any) -> tuple[Tensor, int]:
    if dim is None:  # PyTorch's old rule
        dim = 0 if input.ndim in (0, 1, 3) else 1
    if dtype is not None:
        input = input.to(dtypes.as_dtype(dtype))
    if not input.is_floating_point():
        raise DTypeError(f"softmax: expected a floating tensor, found {input.dtype}; give dtype= or cast it")
    return input, normalize_dim(dim, input.ndim)


@public("torch", "nn.functional", "special", "Tensor", cuda=FLOAT32_RESULT)
def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """``e**input`` over its sum along ``dim``. Saves: the output."""
    x, axis = _prepare(input, dim, dtype)
    return apply(ops.Softmax, x, axis=axis)


@public("torch", "nn.functional", "special", "Tensor", cuda=FLOAT32_RESULT)
def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """The logarithm of :func:`softmax`, without overflow. Saves: the output."""
    x, axis = _prepare(input, dim, dtype)
    return apply(ops.LogSoftmax, x, axis=axis)


@public("nn.functional")
def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of the Gumbel-softmax distribution; ``hard`` makes it one-hot and keeps the soft gradient."""
    noise = unary.neg(unary.log(empty_like(logits).exponential_()))
    soft = softmax(elementwise.div(elementwise.add(logits, noise), tau), dim)
    if not hard:
        return soft
    one_hot = zeros_like(logits).scatter_(dim, soft.detach().argmax(dim, keepdim=True), 1.0)
    return elementwise.add(elementwise.sub(one_hot, soft.detach()), soft)
