"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from ...autograd.tensor import Tensor
from ...errors import DeviceError, ShapeError, pins_nothing
from ...functional import join


@pins_nothing
def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """One vector of all parameters, differentiable. Raises: DeviceError: they are on different devices."""
    every = list(parameters)
    if any(p.device is not every[0].device for p in every):
        raise DeviceError("Found two parameters on different devices, this is currently not supported.")
    return join.cat([p.reshape(-1) for p in every])


@pins_nothing
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Make each parameter a view of its part of ``vec``: they share the vector's memory afterwards.

    Raises:
        TypeError: not a tensor.
        ShapeError: the vector is too short.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected a Tensor, but got: {type(vec).__name__}")
    start = 0
    for parameter in parameters:
        count = parameter.numel()
        if start + count > vec.numel():
            raise ShapeError(f"vector_to_parameters: the vector has {vec.numel()} elements, the parameters need more")
        parameter.data = vec.data[start : start + count].view(*parameter.shape)
        start += count
