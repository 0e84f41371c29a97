"""Integrals of samples along a dimension, by the trapezoidal rule, composed of other functions."""

from __future__ import annotations

from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentTypeError
from . import elementwise, rearrange, reduce, scan, shape
from .door import public


def _areas(name: str, y: Tensor, x: Tensor | None, dx: float | None, dim: int) -> Tensor:
    """The area between neighbouring samples."""
    if x is not None and dx is not None:
        raise ArgumentTypeError(f"{name}(): give x (the positions of the samples) or dx (their distance); found both")
    axis = normalize_dim(dim, y.ndim)
    rest = max(y.size(axis) - 1, 0)
    both = elementwise.add(shape.narrow(y, axis, y.size(axis) - rest, rest), shape.narrow(y, axis, 0, rest))
    if x is None or not y.size(axis):
        return elementwise.mul(both, (1.0 if dx is None else dx) / 2)
    if x.ndim == 1 and y.ndim > 1:
        width = shape.reshape(rearrange.diff(x), [-1 if a == axis else 1 for a in range(y.ndim)])
    else:
        width = rearrange.diff(x, dim=dim)
    return elementwise.div(elementwise.mul(both, width), 2)


@public("torch", "torch.trapz")
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """The integral along ``dim`` of samples ``y`` at ``x``, or ``dx`` (1) apart. Saves: what its parts save.

    Raises:
        ArgumentTypeError: both x and dx are given.
    """
    return reduce.sum(_areas("trapezoid", y, x, dx, dim), dim)


@public("torch")
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """:func:`trapezoid` up to each sample but the first. Saves and raises: as :func:`trapezoid`."""
    return scan.cumsum(_areas("cumulative_trapezoid", y, x, dx, dim), dim)
