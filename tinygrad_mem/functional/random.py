"""Random tensors and random fills. Every call takes one ticket of a generator, so the same seed gives the same run."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..devices import FIRST, Generator, opened
from ..devices import device as Device
from ..dtypes import is_floating
from ..errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError, ShapeError
from ..ops import random as ops
from . import creation
from .door import public
from .shape import sizes_of


@public("torch")
def manual_seed(seed: int) -> Generator:
    """Seed the generators of all devices, including those that are opened later."""
    cpu = Device("cpu").generator
    for generator in (FIRST, *(device.generator for device in opened())):
        generator.manual_seed(seed)
    return cpu


@public("torch")
def seed() -> int:
    """Seed the generators of all devices with a number from the operating system."""
    fresh = Device("cpu").generator.seed()
    manual_seed(fresh)
    return fresh


@public("torch")
def initial_seed() -> int:
    """The cpu generator's seed."""
    return Device("cpu").generator.initial_seed()


@public("torch")
def get_rng_state(device: Any = "cpu") -> Tensor:
    """A generator's state: 16 bytes, seed and number of calls."""
    return _state_of(Device(device).generator)


@public("torch")
def set_rng_state(new_state: Tensor, device: Any = "cpu") -> None:
    """Restore a state from :func:`get_rng_state`. Raises: TypeError: not 16 bytes."""
    _set_state(Device(device).generator, new_state)


def _state_of(generator: Generator) -> Tensor:
    """The generator's state as 16 bytes."""
    return creation.tensor(np.frombuffer(struct.pack("<QQ", *generator.state), np.uint8).copy(), device="cpu")


def _set_state(generator: Generator, new_state: Tensor) -> Generator:
    """Restore a state from ``get_state()``."""
    if new_state.dtype != dtypes.uint8 or new_state.numel() != 16:
        raise ArgumentTypeError(f"RNG state must be a ByteTensor of 16 bytes, found {new_state.dtype} {list(new_state.shape)}")
    first, calls = struct.unpack("<QQ", new_state.cpu().numpy().tobytes())
    generator.state = (first, calls)
    return generator


Generator.get_state, Generator.set_state = _state_of, _set_state


def _ticket(tensor: Tensor, generator: Generator | None) -> tuple:
    if generator is None:
        return tensor.device.generator.ticket()
    here, there = tensor.device.kind, generator.device.kind
    if here not in ("meta", there):
        raise DeviceError(
            f"Expected a {here!r} device type for generator but found {there!r}: draw the numbers where the generator is, and "
            "move them with .to(device)"
        )
    return generator.ticket()


@public("torch")
def rand(
    *size: Any, generator: Generator | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform numbers in [0, 1)."""
    _check_size_given("rand", size)
    out = uniform_(creation.empty(*size, dtype=dtype, device=device), generator=generator)
    return out.requires_grad_(requires_grad)


@public("torch")
def randn(
    *size: Any, generator: Generator | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Standard normal numbers."""
    _check_size_given("randn", size)
    out = normal_(creation.empty(*size, dtype=dtype, device=device), generator=generator)
    return out.requires_grad_(requires_grad)


def _check_size_given(name: str, size: tuple) -> None:
    if not size:
        raise ArgumentTypeError(f'{name}() missing 1 required positional arguments: "size"; () is the shape of one number')


@public("torch")
def randint(
    low: int = 0,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Integers in [low, high), or [0, low) when only one bound is given; int64.

    Raises:
        ArgumentError: the range is empty, or wider than the dtype.
        ArgumentTypeError: a bound is no integer.
    """
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if size is None:
        raise ArgumentTypeError('randint() missing 1 required argument: "size"; () is the shape of one number')
    _check_range("randint", low, high)
    out = creation.empty(sizes_of((size,)), dtype=dtype or dtypes.int64, device=device)
    return random_(out, low, high, generator=generator).requires_grad_(requires_grad)


def _last_exact(dtype: np.dtype) -> int:
    """The largest n such that a dtype holds all integers from 0 to n: for floats 2 ** (binary digits)."""
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}.get(dtype.name)
    return 2**digits if digits else 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)


@public("torch")
def randperm(n: int, *, generator: Generator | None = None, dtype: Any = None, device: Any = None) -> Tensor:
    """A random permutation of 0 to n - 1, int64.

    Raises:
        ArgumentTypeError: n is no integer.
        DTypeError: the dtype is bool.
        ArgumentError: the dtype does not hold all the numbers.
    """
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise ArgumentTypeError(f"randperm(): argument 'n' (position 1) must be int, not {type(n).__name__}")
    kind = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    if kind == dtypes.bool:
        raise DTypeError("randperm(): not implemented for bool, which holds no numbers; take dtype=torch.int64")
    most = _last_exact(kind)
    if n > most:
        raise ArgumentError(f"randperm(): n={n} numbers do not fit {kind}, which holds integers up to {most}")
    out = creation.empty(n, dtype=kind, device=device)
    kernels, array = out.device.kernels, out.array
    work = out.device.workspace(kernels.permutation_workspace(array))
    kernels.permutation(_ticket(out, generator), work, out=array)
    return out


@public("torch")
def rand_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform numbers of ``input``'s shape."""
    return uniform_(creation.empty_like(input, dtype=dtype, device=device)).requires_grad_(requires_grad)


@public("torch")
def randn_like(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Normal numbers of ``input``'s shape."""
    return normal_(creation.empty_like(input, dtype=dtype, device=device)).requires_grad_(requires_grad)


@public("torch")
def randint_like(input: Tensor, low: int, high: int | None = None, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Integers of ``input``'s shape. Raises: ArgumentError: the range is empty, or wider than the dtype."""
    first, last = (0, low) if high is None else (low, high)
    _check_range("randint_like", first, last)
    return random_(creation.empty_like(input, dtype=dtype, device=device), first, last)


def _check_range(name: str, low: Any, high: Any) -> None:
    for bound in (low, high):
        if not hasattr(bound, "__index__"):
            raise ArgumentTypeError(f"{name}(): bounds must be integers, found {bound!r} ({type(bound).__name__})")
    if high <= low:
        raise ArgumentError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")


@public("torch")
def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal numbers; mean and std may be tensors, whose dtype and device the numbers have. Saves: the noise, where std is one.

    Args:
        size, dtype, device, requires_grad: of numbers without a tensor.

    Raises:
        DTypeError: the numbers would not be floating.
        ArgumentError: std is negative or nan; in a tensor, on the CPU.
    """
    given = [t for t in (mean, std) if isinstance(t, Tensor)]
    if given:
        shape = (mean + std).shape  # it refuses wrong combinations before a number is drawn
        if isinstance(std, Tensor):
            _want_between(0, math.inf, std, "normal expects all elements of std >= 0.0")
        elif not std >= 0:
            raise ArgumentError(f"normal expects std >= 0.0, but found std {std}")
        return (randn(shape, generator=generator, dtype=given[0].dtype, device=given[0].device) * std + mean).to(given[0].dtype)
    out = normal_(creation.empty(sizes_of((size,)), dtype=dtype, device=device), mean, std, generator=generator)
    return out.requires_grad_(requires_grad)


def _want_between(low: float, high: float, numbers: Tensor, what: str) -> None:
    """Raise ArgumentError if a number of a tensor on the CPU is nan or outside; on a GPU it would have to be waited for."""
    if numbers.device.kind == "cpu" and numbers.numel():
        least, most = np.minimum.reduce(numbers.array, axis=None), np.maximum.reduce(numbers.array, axis=None)
        if not (low <= least and most <= high):
            raise ArgumentError(f"{what}, found {least} to {most}")


@public("torch", "Tensor")
def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that ``input`` says, else 0. Saves nothing; the gradient is 0.

    Raises:
        DTypeError: the tensor is not floating.
        ArgumentError: on the CPU, a probability is not within [0, 1].
    """
    if not is_floating(input.dtype):
        raise DTypeError(
            f"bernoulli: expected probabilities in a floating dtype, found {input.dtype}; convert them with .float()"
        )
    _want_between(0, 1, input, "bernoulli: expected probabilities in [0, 1]")
    return apply(ops.Draw, input, kernel="bernoulli", ticket=_ticket(input, generator), numbers=(input.array,))


@public("torch", "Tensor")
def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    """Indices drawn in proportion to the weights in the last dimension, int64. Checked on devices that have values.

    Raises:
        ShapeError: more draws than categories without replacement, or weights of neither 1 nor 2 dimensions.
        ValueError: a weight is negative, inf or nan, or all are 0.
    """
    if not input.is_floating_point():
        raise DTypeError(f"multinomial only supports floating-point dtypes for input, got: {input.dtype}")
    if input.ndim not in (1, 2):
        raise ShapeError(f"multinomial: prob_dist must be 1 or 2 dim, found shape {list(input.shape)}")
    if num_samples <= 0:
        raise ArgumentError(f"cannot sample n_sample <= 0 samples, found {num_samples}")
    if not replacement and num_samples > input.size(-1):
        raise ShapeError(
            f"cannot sample n_sample > prob_dist.size(-1) samples without replacement, found {num_samples} > {input.size(-1)}"
        )
    if not input.is_meta:
        host = input.detach().cpu().numpy()
        if not np.isfinite(host).all() or (host < 0).any() or (host.sum(-1) <= 0).any():
            raise ArgumentError("probability tensor contains either `inf`, `nan` or element < 0, or a row that sums to 0")
    out = creation.empty(*input.shape[:-1], num_samples, dtype=dtypes.int64, device=input.device)
    kernels, array = out.device.kernels, out.array
    work = out.device.workspace(kernels.multinomial_workspace(input.array, replacement, array))
    kernels.multinomial(_ticket(out, generator), input.array, replacement, work, out=array)
    return out


def _want_continuous(name: str, input: Tensor) -> None:
    if not is_floating(input.dtype):
        raise DTypeError(f"{name}: a continuous probability distribution; the dtype must be floating, found {input.dtype}")


@public("Tensor")
def normal_(input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with normal numbers. Raises: DTypeError: the tensor is not floating. ValueError: std is negative or nan."""
    _want_continuous("normal_", input)
    if not std >= 0:
        raise ArgumentError(f"normal_ expects std >= 0.0, but found std {std}")
    return apply_(ops.Draw, input, kernel="normal", ticket=_ticket(input, generator), numbers=(mean, std))


@public("Tensor")
def uniform_(input: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with uniform numbers in [a, b).

    Raises:
        DTypeError: the tensor is not floating.
        ValueError: the range is empty, or wider than the dtype's largest number.
    """
    _want_continuous("uniform_", input)
    if a > b:
        raise ArgumentError(f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}")
    largest = float(dtypes.finfo(input.dtype).max)
    if not b - a <= largest:
        raise ArgumentError(f"uniform_ expects to - from <= {largest:g}, the largest {input.dtype}, but found from={a}, to={b}")
    return apply_(ops.Draw, input, kernel="uniform", ticket=_ticket(input, generator), numbers=(a, b))


@public("Tensor")
def exponential_(input: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fill with exponential numbers. Raises: DTypeError: the tensor is not floating. ArgumentError: lambd is not positive."""
    _want_continuous("exponential_", input)
    if not lambd > 0:
        raise ArgumentError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return apply_(ops.Draw, input, kernel="exponential", ticket=_ticket(input, generator), numbers=(lambd,))


@public("Tensor")
def bernoulli_(input: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill with 1 with probability ``p`` (a number or a tensor), else 0. Raises: ArgumentError: p is not within [0, 1]."""
    if isinstance(p, Tensor):
        _want_between(0, 1, p, "bernoulli_: expected probabilities in [0, 1]")
    elif not 0 <= p <= 1:
        raise ArgumentError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    chance = p.to(input.device).expand(*input.shape).array if isinstance(p, Tensor) else float(p)
    return apply_(ops.Draw, input, kernel="bernoulli", ticket=_ticket(input, generator), numbers=(chance,))


@public("Tensor")
def random_(input: Tensor, *bounds: int | None, to: int | None = None, generator: Generator | None = None) -> Tensor:
    """Fill with integers: ``random_(to)`` in [0, to), ``random_(from, to)`` in [from, to).

    Without ``to``, or with ``None``, up to what the dtype holds exactly.

    Raises:
        ArgumentTypeError: a bound is no integer.
        ArgumentError: the range is empty, or wider than the dtype.
    """
    if len(bounds) + (to is not None) > 2:
        raise ArgumentTypeError(f"random_() takes at most 2 bounds, found {(*bounds, *[to][: to is not None])}")
    given = bounds if to is None else (*bounds, to)
    first: Any = given[0] if len(given) == 2 else 0
    last: Any = given[-1] if given else None
    for bound in (first, 1 if last is None else last):
        if isinstance(bound, bool) or not hasattr(bound, "__index__"):
            raise ArgumentTypeError(f"random_(): bounds must be integers, found {bound!r} ({type(bound).__name__})")
    if last is None:
        last = _last_exact(input.dtype) + 1
    if not -(1 << 63) <= first < last <= 1 << 63:
        raise ArgumentError(f"random_ expects 'from' to be less than 'to', both in int64, but got from={first} >= to={last}")
    least, most = _range(input.dtype)
    if first < least or last - 1 > most:
        raise ArgumentError(f"random_: from={first} or to - 1={last - 1} is out of bounds for {input.dtype}: {least} to {most}")
    return apply_(ops.Draw, input, kernel="integers", ticket=_ticket(input, generator), numbers=(first, last))


def _range(dtype: np.dtype) -> tuple[float, float]:
    """The least and the largest number of a dtype."""
    if dtype.kind == "b":
        return 0, 1
    limits = dtypes.finfo(dtype) if is_floating(dtype) else np.iinfo(dtype)
    return limits.min, limits.max
