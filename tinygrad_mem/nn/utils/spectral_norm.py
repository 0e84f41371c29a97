"""Weights divided by their largest singular value, which the power method estimates, one step per forward.

Source: Miyato et al., *Spectral normalization for generative adversarial networks*, 2018.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ...autograd.grad_mode import no_grad
from ...autograd.tensor import Tensor
from ...errors import ArgumentError
from ...functional import linalg, norm, random
from ..conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ..module import Module
from .weight_norm import hook_of, parameter_of, remove_hook

M = TypeVar("M", bound=Module)


def default_dim(module: Module) -> int:
    """The axis of the weight's outputs: 0, or 1 for a transposed convolution."""
    return 1 if isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)) else 0


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """(outputs, the rest)."""
    if dim:
        weight = weight.permute(dim, *[d for d in range(weight.ndim) if d != dim])
    return weight.reshape(weight.shape[0], -1)


def direction(size: int, like: Tensor, eps: float) -> Tensor:
    """A random direction."""
    return norm.normalize(random.randn(size, dtype=like.dtype, device=like.device), dim=0, eps=eps)


def follow(matrix: Tensor, u: Tensor, v: Tensor, steps: int, eps: float) -> None:
    """``steps`` of the power method on u and v, in place, v first. To begin with u, transpose the matrix and swap u and v."""
    with no_grad():
        for _ in range(steps):
            v.copy_(norm.normalize(linalg.mv(matrix.t(), u), dim=0, eps=eps))
            u.copy_(norm.normalize(linalg.mv(matrix, v), dim=0, eps=eps))


def _positive(n_power_iterations: int) -> int:
    if n_power_iterations <= 0:
        raise ArgumentError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
    return n_power_iterations


class SpectralNorm:
    """The forward pre-hook of :func:`spectral_norm`."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        self.name, self.dim, self.n_power_iterations, self.eps = name, dim, _positive(n_power_iterations), eps

    def compute_weight(self, module: Module, do_power_iteration: bool = False) -> Tensor:
        """The weight divided by its largest singular value, estimated from u and v."""
        weight, u, v = (getattr(module, self.name + part) for part in ("_orig", "_u", "_v"))
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            follow(matrix.detach(), u, v, self.n_power_iterations, self.eps)
            u, v = u.clone(), v.clone()  # copies: backward needs these values, and the next forward changes u and v
        return weight / linalg.dot(u, linalg.mv(matrix, v))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module, do_power_iteration=module.training))


def spectral_norm(
    module: M, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> M:
    """Replace the parameter ``name`` by ``name_orig``. Before each forward the weight is computed: ``name_orig`` divided by its
    largest singular value.

    In training, each forward updates the buffers ``name_u`` and ``name_v`` by ``n_power_iterations`` of the power method.

    Saves: what a product with a vector, a dot product and a division save: the weight once more, u and v.

    Args:
        eps: a lower bound for the length of vectors.
        dim: the axis of the weight's outputs; by default 0, or 1 for a transposed convolution.

    Raises:
        ValueError: ``n_power_iterations`` is below 1; there is no such parameter, or it is computed from others already.
        RuntimeError: it was done already.
    """
    hook = SpectralNorm(name, n_power_iterations, default_dim(module) if dim is None else dim, eps)
    if hook_of(module, SpectralNorm, name) is not None:
        raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
    weight = parameter_of(module, name)
    del module._parameters[name]
    matrix = as_matrix(weight.detach(), hook.dim)
    module.register_parameter(name + "_orig", weight)
    setattr(module, name, weight.detach())
    for part, size in (("_u", matrix.shape[0]), ("_v", matrix.shape[1])):
        module.register_buffer(name + part, direction(size, weight, eps))
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """Make the weight a parameter again, with its present value. Raises: ValueError: :func:`spectral_norm` was not called."""
    return remove_hook(module, SpectralNorm, "spectral_norm", name, ("_u", "_v", "_orig"))


class SpectralPart(Module):
    """A parametrization: the weight divided by its largest singular value."""

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        self.dim, self.eps = dim if dim >= 0 else dim + weight.ndim, eps
        self.n_power_iterations = _positive(n_power_iterations)
        if weight.ndim > 1:
            matrix = as_matrix(weight.detach(), self.dim)
            self.register_buffer("_u", direction(matrix.shape[0], weight, eps))
            self.register_buffer("_v", direction(matrix.shape[1], weight, eps))
            follow(matrix.t(), self._v, self._u, 15, eps)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight divided by its largest singular value; a vector divided by its length."""
        if weight.ndim == 1:
            return norm.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            follow(matrix.detach().t(), self._v, self._u, self.n_power_iterations, self.eps)
        u, v = self._u.clone(), self._v.clone()
        return weight / linalg.dot(u, linalg.mv(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value itself: an assigned value is normalized when it is used."""
        return value
