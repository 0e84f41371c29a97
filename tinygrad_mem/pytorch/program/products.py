"""Products, whose gradients look at values: PyTorch goes a short way where no number is zero.

It does so for tensors of its own type, and not for those of a prediction. These go the short way, with a bound for zeros.
Source: PyTorch, ``torch/csrc/autograd/FunctionsManual.cpp``, ``prod_backward``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from .by_values import NO_ZEROS, zeros_bytes

aten = torch.ops.aten
_below_autograd: Any = torch._C._AutoDispatchBelowAutograd  # type: ignore[attr-defined]


def products(bound: Callable[[int, str], None], count: Callable[..., None]) -> dict[str, Callable[..., Any]]:
    """The ops by name.

    Args:
        bound: hears how much more a gradient may take.
        count: counts what an op without a shape asks for: the op, its arguments, and its results.
    """

    return {
        "prod": partial(_product, bound, aten.prod.default, partial(_of_all, count)),
        "prod.dim_int": partial(_product, bound, aten.prod.dim_int, _of_an_axis),
    }


def _product(
    bound: Callable[[int, str], None], op: Any, backward: Any, input: torch.Tensor, *args: Any, dtype: torch.dtype | None = None
) -> Any:
    if type(input) is torch.Tensor or forward_ad._current_level >= 0:
        return NotImplemented  # of ``torch.func``
    run = partial(op, dtype=dtype) if dtype is not None else op
    if not (input.requires_grad and torch.is_grad_enabled()):
        with _below_autograd():
            return run(input, *args)
    bound(zeros_bytes(input), f"the gradient of prod {NO_ZEROS}")
    return _Product.apply(run, backward, input, *args)


class _Product(torch.autograd.Function):
    """Saved: the input and the result."""

    @staticmethod
    def forward(ctx: Any, run: Any, backward: Any, input: torch.Tensor, *args: Any) -> torch.Tensor:
        with _below_autograd():
            result = run(input, *args)
        ctx.formula, ctx.args = backward, args
        ctx.save_for_backward(input, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:  # type: ignore[override]
        input, result = ctx.saved_tensors
        return None, None, ctx.formula(grad, input, result, *ctx.args), *[None] * len(ctx.args)


def _of_all(count: Callable[..., None], grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if input.dim() == 0:
        return grad.clone()
    zeros = input.to(grad.dtype) == 0
    count(aten.nonzero.default, (zeros,), {}, zeros.new_empty((0, input.dim()), dtype=torch.int64))
    del zeros
    return grad * (result / input)


def _of_an_axis(grad: torch.Tensor, input: torch.Tensor, result: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    if input.dim() == 0:
        return grad.clone()
    if not keepdim and input.dim() != 1:
        grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
    zeros = input == 0
    counts = zeros.sum(dim, True)
    counts.sum()
    made = grad * (result / input)
    del counts, zeros
    return made
