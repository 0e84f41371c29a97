"""Initial values. Each function fills its tensor in place, without recording, and returns it.

Source: Glorot & Bengio 2010 (xavier), He et al. 2015 (kaiming), Saxe et al. 2014 (orthogonal).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import absent as _absent
from ..autograd import inplace
from ..autograd.grad_mode import no_grad
from ..autograd.tensor import Tensor
from ..devices import Generator
from ..functional import creation, gather, random, sort
from ..kernels.numpy.fast.erfinv import A, B, C, D, E, F
from ..ops.convert import Upload
from ..scope import run_inside as _run_inside

_LINEAR = ("linear", *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)), "sigmoid")
_GAINS = dict.fromkeys(_LINEAR, 1.0) | {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor for a layer's standard deviation that compensates for the activation after it.

    Args:
        param: the negative slope of ``leaky_relu``.

    Raises:
        ValueError: an unknown activation, or a slope that is not a number.
    """
    if nonlinearity in _GAINS:
        return _GAINS[nonlinearity]
    if nonlinearity != "leaky_relu":
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    if isinstance(param, bool) or not isinstance(param, int | float | None):
        raise ValueError(f"negative_slope {param} not a valid number")
    slope = 0.01 if param is None else param
    return math.sqrt(2.0 / (1 + slope**2))


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """The number of inputs of one output, and of outputs of one input, for a weight (out, in, *kernel)."""
    if tensor.ndim < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(tensor.shape[2:])
    return tensor.size(1) * field, tensor.size(0) * field


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform numbers in [a, b)."""
    with no_grad():
        return random.uniform_(tensor, a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal numbers."""
    with no_grad():
        return random.normal_(tensor, mean, std, generator=generator)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Generator | None = None
) -> Tensor:
    """Normal numbers within [a, b]: the normal quantile function of uniform numbers."""
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be incorrect.",
            stacklevel=2,
        )
    low, high = (0.5 * math.erfc((mean - x) / (std * math.sqrt(2.0))) for x in (a, b))
    with no_grad():
        shares = random.uniform_(creation.empty_like(tensor, dtype="float64"), low, high, generator=generator)
        _upload(tensor, lambda: (_run_inside(_normal_quantile, shares.cpu().numpy()) * std + mean).clip(a, b))
    return tensor


def _normal_quantile(p: np.ndarray) -> np.ndarray:
    """The quantile function of the standard normal distribution at ``p``, to 1e-9 (Wichura 1988, AS 241, by regions)."""
    q = p - 0.5
    r = 0.180625 - q * q
    middle = q * _ratio(r, A, B)
    tail = np.sqrt(-np.log(np.minimum(p, 1 - p)))
    near = _ratio(tail - 1.6, C, D)
    far = _ratio(tail - 5.0, E, F)
    return np.where(np.abs(q) <= 0.425, middle, np.sign(q) * np.where(tail <= 5.0, near, far))


def _ratio(x: np.ndarray, above: tuple, below: tuple) -> np.ndarray:
    return np.polyval(above[::-1], x) / np.polyval((1.0, *below)[::-1], x)


def _upload(tensor: Tensor, values: Callable[[], np.ndarray]) -> None:
    """Write ``values()``, computed on the host, into a tensor of any device. On ``meta`` nothing is computed."""
    found = None if tensor.is_meta else np.ascontiguousarray(values(), dtype=tensor.dtype)
    inplace.apply_(Upload, tensor, values=found)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """One value everywhere."""
    with no_grad():
        return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """1 everywhere."""
    return constant_(tensor, 1)


def zeros_(tensor: Tensor) -> Tensor:
    """0 everywhere."""
    return constant_(tensor, 0)


def eye_(tensor: Tensor) -> Tensor:
    """1 on the diagonal of a matrix, 0 elsewhere."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    with no_grad():
        _upload(tensor, lambda: np.eye(*tensor.shape))
    return tensor


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution weight that returns its input: 1 in the middle of each kernel from channel i to channel i."""
    if tensor.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.size(0) % groups:
        raise ValueError("dim 0 must be divisible by groups")
    out = tensor.size(0) // groups
    middle = tuple(n // 2 for n in tensor.shape[2:])

    def values() -> np.ndarray:
        found = np.zeros(tensor.shape)
        for group in range(groups):
            for channel in range(min(out, tensor.size(1))):
                found[(group * out + channel, channel, *middle)] = 1
        return found

    with no_grad():
        _upload(tensor, values)
    return tensor


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform, with the variance 2 gain^2 / (fan_in + fan_out)."""
    bound = math.sqrt(3.0) * gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal, with the variance 2 gain^2 / (fan_in + fan_out)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_calculate_fan_in_and_fan_out(tensor))), generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if 0 in tensor.shape:
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return 0.0
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Generator | None = None
) -> Tensor:
    """Uniform, with the variance gain^2 / fan.

    Args:
        a: the negative slope of a leaky ReLU after the layer.
        mode: ``fan_in`` keeps the variance of the forward, ``fan_out`` that of the backward.
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator) if tensor.numel() else tensor


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Generator | None = None
) -> Tensor:
    """Normal, with the variance gain^2 / fan; arguments as :func:`kaiming_uniform_`."""
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    return normal_(tensor, 0.0, std, generator) if tensor.numel() else tensor


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Orthogonal rows (or columns, if there are fewer) of length ``gain``. Trailing dimensions count as one.

    Raises:
        ValueError: fewer than 2 dimensions.
    """
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    rows, columns = tensor.size(0), tensor.numel() // tensor.size(0)
    with no_grad():
        start = random.normal_(creation.empty(rows, columns, dtype="float64", device=tensor.device), generator=generator)

        def values() -> np.ndarray:
            drawn = start.cpu().numpy()
            q, r = np.linalg.qr(drawn.T if rows < columns else drawn)
            q *= np.sign(np.diag(r))  # makes it uniformly distributed over orthogonal matrices
            return (gain * (q.T if rows < columns else q)).reshape(tensor.shape)

        _upload(tensor, values)
    return tensor


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal with standard deviation ``std``; in each column, the share ``sparsity`` of the entries, rounded up, is 0.

    Source: Martens, *Deep learning via Hessian-free optimization*, 2010.

    Raises:
        ValueError: not a matrix.
    """
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    zeros = math.ceil(sparsity * tensor.size(0))
    with no_grad():
        random.normal_(tensor, 0, std, generator=generator)
        chosen = sort.argsort(random.rand(*tensor.shape, generator=generator, device=tensor.device), 0)[:zeros]
        gather.scatter_(tensor, 0, chosen, 0.0)
    return tensor


def _old_name_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    name = function.__name__

    def old(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(f"`nn.init.{name[:-1]}` is now deprecated in favor of `nn.init.{name}`.", FutureWarning, stacklevel=2)
        return function(*args, **kwargs)

    old.__name__, old.__doc__ = name[:-1], f"Old name of :func:`{name}`."
    return old


uniform = _old_name_of(uniform_)
normal = _old_name_of(normal_)
constant = _old_name_of(constant_)
eye = _old_name_of(eye_)
dirac = _old_name_of(dirac_)
xavier_uniform = _old_name_of(xavier_uniform_)
xavier_normal = _old_name_of(xavier_normal_)
kaiming_uniform = _old_name_of(kaiming_uniform_)
kaiming_normal = _old_name_of(kaiming_normal_)
orthogonal = _old_name_of(orthogonal_)
sparse = _old_name_of(sparse_)


__getattr__ = _absent.refuses("nn.init")
