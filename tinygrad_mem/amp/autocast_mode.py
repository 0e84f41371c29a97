"""``autocast``: inside, each public function runs in a suitable dtype, and weights are cast once.

A region is a :class:`Region` at ``scope.local.autocast``; public functions ask it before they run. Casts are recorded ops:
a product saves half-precision arrays, and a parameter's gradient has the parameter's dtype.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import scope
from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..devices import cuda_problem
from ..devices import device as Device
from ..dtypes import as_dtype, bfloat16, float16, float32, is_floating, is_half
from ..errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError, GraphError
from ..functional.door import POLICIES, Policy
from ..interrupts import signal_safe
from ..ops.convert import Cast
from ..scope import local, setting

__all__ = (
    "autocast", "clear_autocast_cache", "get_autocast_dtype",
    "is_autocast_cache_enabled", "is_autocast_enabled",
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
_DEVICES = ("cpu", "cuda", "meta")


class _Cached(NamedTuple):
    """The cast of a leaf, and the state of the leaf for which it is valid."""

    leaf: weakref.ref
    storage: Any
    version: int
    inference: bool
    tensor: Tensor


class _Setting(NamedTuple):
    """The settings of a region for one type of device."""

    enabled: bool
    dtype: np.dtype


_OUTSIDE: dict[str, _Setting] = {name: _Setting(False, bfloat16 if name == "cpu" else float16) for name in _DEVICES}


class Region:
    """The state of autocast in a thread, inside one region: its settings, and the weights cast so far.

    Attributes:
        settings: device type -> whether functions are cast, and to which dtype. Tensors on ``meta`` are treated like those of
            the device of the innermost region.
        cache: id of a leaf -> its cast; one dict for the outermost region and all inside it.
        outer: the region around this one; ``None`` for the outermost.
    """

    __slots__ = ("cache", "cache_enabled", "outer", "policies", "settings")

    def __init__(self, outer: Region | None, device_type: str, setting: _Setting, cache_enabled: bool) -> None:
        self.outer, self.cache_enabled = outer, cache_enabled
        self.settings = {**(_OUTSIDE if outer is None else outer.settings), device_type: setting, "meta": setting}
        self.policies = {} if outer is None else dict(outer.policies)
        for name in (device_type, "meta"):
            self.policies[name] = POLICIES.get(device_type, POLICIES["cpu"]) if setting.enabled else {}
        self.cache: dict[int, _Cached] = {} if outer is None else outer.cache

    def fresh(self) -> Region:
        """The same state with an empty cache, for code that runs later in this state, such as a recomputation.

        ``kept = local.autocast`` in the forward; later ``before, local.autocast = local.autocast, kept and kept.fresh()``, and
        ``local.autocast = before`` in a ``finally``. The casts go with the new region.
        """
        region = object.__new__(Region)
        region.outer, region.cache_enabled, region.cache = None, self.cache_enabled, {}
        region.settings, region.policies = self.settings, self.policies
        return region

    # --- asked by public functions -------------------------------------------------------------------------------------------

    def prepared(self, function: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """The arguments with which ``function`` runs, without casts inside it; ``None``: the function runs as it was called.

        Raises:
            DTypeError: the function does not run under autocast.
        """
        if not any(function in policies for policies in self.policies.values()):
            return None
        first = next(_tensors((*args, *kwargs.values())), None)  # its device decides about casts
        policy = None if first is None else self.policies.get(first.device.kind, {}).get(function)
        if first is None or policy is None:
            return None
        if policy is Policy.REFUSED:
            raise DTypeError(
                f"nn.functional.{function.__name__} and nn.BCELoss are unsafe to autocast: in half precision a probability of "
                "nearly 1 is 1. Leave out the sigmoid before it and use binary_cross_entropy_with_logits or BCEWithLogitsLoss, "
                "or compute it in float32 within autocast(enabled=False)."
            )
        kind = first.device.kind
        if policy is Policy.AS_IS:
            return args, kwargs
        if policy is Policy.FLOAT32_RESULT:
            return self._with_dtype(function, first, args, kwargs)
        lower = self.settings[kind].dtype
        dtype = lower if policy is Policy.LOWER else float32
        if policy is Policy.WIDEST:
            dtype = _widest((*args, *kwargs.values()), kind, lower)
        elif policy is Policy.FIRST:
            dtype = lower if first.array.dtype == lower else float32
        return self._cast(args, kind, dtype), {key: self._cast(value, kind, dtype) for key, value in kwargs.items()}

    def _with_dtype(self, function: Any, first: Tensor, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The call with ``dtype=float32`` added, if it has no dtype and its first tensor is in half precision."""
        code = function.__code__
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount].index("dtype") < len(args)
        if named or kwargs.get("dtype") is not None or not _eligible(first, first.device.kind):
            return args, kwargs
        return args, {**kwargs, "dtype": float32}

    def _cast(self, value: Any, kind: str, dtype: np.dtype) -> Any:
        """Cast floating tensors on ``kind`` to ``dtype``, also in lists and tuples; other values stay."""
        if isinstance(value, Tensor):
            return self._cast_tensor(value, dtype) if _eligible(value, kind) and value.array.dtype != dtype else value
        if type(value) in (list, tuple):
            return type(value)([self._cast(each, kind, dtype) for each in value])
        return value

    def _cast_tensor(self, x: Tensor, dtype: np.dtype) -> Tensor:
        """Cast a tensor. The cast of a weight (a leaf that requires a gradient) is cached while the weight does not change.

        A cast that was recorded on the tape is also used without recording, but not the other way round.
        """
        weight = x.array.dtype == float32 and x._requires_grad and x._node is None and x._view is None
        if not weight or dtype == float32:
            return apply(Cast, x, dtype=dtype)
        found = self.cache.get(id(x))
        if found is not None and self._serves(found, x, dtype):
            return found.tensor
        with setting(new_role="WEIGHT_CAST"):
            cast = apply(Cast, x, dtype=dtype)
        scope.report_role(cast.array, "WEIGHT_CAST", cast, x)
        if self.cache_enabled:
            self.cache[id(x)] = _Cached(weakref.ref(x), x.storage, x.storage.version, bool(local.inference), cast)
        return cast

    def _serves(self, found: _Cached, x: Tensor, dtype: np.dtype) -> bool:
        return (
            self.cache_enabled
            and found.leaf() is x
            and found.storage is x.storage
            and found.version == x.storage.version
            and found.inference == bool(local.inference)
            and found.tensor.array.dtype == dtype
            and (found.tensor._requires_grad or not local.grad_enabled)
        )


def _tensors(values: Iterable) -> Iterator[Tensor]:
    """The tensors among ``values``, also in lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from _tensors(value)


def _eligible(x: Tensor, kind: str) -> bool:
    """True if autocast may cast ``x``: it is floating, not float64, and on the device ``kind``."""
    dtype = x.array.dtype
    return is_floating(dtype) and dtype.itemsize < 8 and x.device.kind == kind


def _widest(values: Iterable, kind: str, lower: np.dtype) -> np.dtype:
    """float32 if any tensor that may be cast is float32, else the region's dtype.

    Raises:
        DTypeError: a tensor in the other half precision, with no float32 before it, as in PyTorch.
    """
    widest = lower
    for x in _tensors(values):
        if _eligible(x, kind) and x.array.dtype != widest == lower:
            if x.array.dtype != float32:
                raise DTypeError(f"Unexpected floating dtype under autocast to {lower}: found {x.array.dtype}; convert it")
            widest = float32
    return widest


# --- the region -------------------------------------------------------------------------------------------------------------


def is_autocast_available(device_type: str) -> bool:
    """True if :class:`autocast` supports ``device_type``: ``cpu``, ``cuda``, and ``meta`` for predictions.

    Raises:
        ArgumentTypeError: it is not a string.
    """
    return _type_of(device_type) in _DEVICES


def _type_of(device_type: Any) -> str:
    if not isinstance(device_type, str):
        raise ArgumentTypeError(f"expected device_type of type str, such as 'cuda', found {type(device_type).__name__}")
    return device_type.partition(":")[0]


def _check_type(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ArgumentError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


def _checked_type(device_type: Any) -> str:
    kind = _type_of(device_type)
    if kind not in _DEVICES:
        raise DeviceError(
            f"User specified an unsupported autocast device_type '{device_type}': expected one of {', '.join(_DEVICES)}"
        )
    return kind


class autocast:
    """``with autocast("cuda"):`` or ``@autocast("cuda")``: inside, functions run in half precision if PyTorch's do.

    Products and convolutions run in ``dtype``, sums and losses in float32, other functions in the dtype of their inputs. The
    ``@public`` of each function has its rule for the CPU and for CUDA, the same as PyTorch's. Wrap the forward and the loss;
    call backward outside. In-place functions are not cast. Regions may be nested; each thread has its own state.

    Memory: activations that a product saves are half as large. Each float32 weight that a product uses is cast once and kept
    until the outermost region ends, 2 bytes per element (category *casts of weights*), unless ``cache_enabled=False``; backward
    needs most of them afterwards. A prediction counts the same bytes for every device.

    Price: per step, a pass over each weight, and over each activation that changes its dtype.

    Do not use when: parameters take most of the memory: ``half()`` with float32 masters in the optimizer avoids the copies. In
    float16, small gradients become 0 without a :class:`GradScaler`. In bfloat16 they do not; its numbers have 8
    significant bits, and those of float16 have 11.

    Args:
        device_type: ``"cpu"``, ``"cuda"`` or ``"meta"``. Tensors on other devices are not cast, except those on ``meta``, which
            are treated as being on this device.
        dtype: float16; or bfloat16, which is the default on the CPU, as in PyTorch, and which a GPU supports in predictions
            only. Any other dtype turns autocast off, with a warning; CUDA also accepts float32.
        enabled: False makes a region in which nothing is cast.
        cache_enabled: keep the casts of weights; ``None`` keeps the setting of the region outside.

    Raises:
        ValueError: ``device_type`` is not a string.
        DeviceError: there is no autocast on that device.
        NotOfferedError: ``dtype`` is bfloat16, on a GPU, or on the CPU without the package ``ml_dtypes``.

    Source: Micikevicius et al., *Mixed precision training*, 2018.
    """

    def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        _check_type(device_type)
        self.device = _checked_type(device_type)
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else as_dtype(dtype)
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else bool(cache_enabled)
        self._enabled = bool(enabled) and self._possible()

    def _possible(self) -> bool:
        """True if autocast can be turned on; if not, PyTorch's warning."""
        if self.device == "cuda":
            if local.dry is None and cuda_problem() is not None:
                warnings.warn("CUDA is not available. Disabling autocast.", stacklevel=3)
                return False
            if not is_floating(self.fast_dtype):
                raise DTypeError(f"autocast: expected a floating dtype, found {self.fast_dtype}; use float16")
        elif not is_half(self.fast_dtype):
            name = self.device.upper()
            warnings.warn(
                f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n"
                f"{name} Autocast only supports dtypes of bfloat16, float16 currently.",
                stacklevel=3,
            )
            return False
        where = Device(self.device)
        if self.fast_dtype is where.lacking:
            raise where.refusal()
        return True

    def __enter__(self) -> autocast:
        setting = _Setting(self._enabled, self.fast_dtype)
        local.autocast = Region(local.autocast, self.device, setting, self._cache_enabled)
        return self

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            region = local.autocast
            if region is not None:
                local.autocast = region.outer
        if region is None:
            raise GraphError("autocast: left more often than entered; use it in a with statement")
        if region.outer is None:
            region.cache.clear()

    def __call__(self, func: F) -> F:
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}. "
                "Did you mean `with autocast(device_type=...):`?"
            )

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def _setting(device_type: str) -> _Setting:
    kind = _checked_type(device_type)
    return (_OUTSIDE if local.autocast is None else local.autocast.settings)[kind]


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """True if functions on ``device_type`` are cast in this thread now."""
    return _setting(device_type).enabled


def get_autocast_dtype(device_type: str) -> np.dtype:
    """The dtype of products under autocast: the region's; by default bfloat16 on the CPU, float16 on a GPU."""
    return _setting(device_type).dtype


def is_autocast_cache_enabled() -> bool:
    """True if casts of weights are kept until the outermost region ends."""
    return True if local.autocast is None else local.autocast.cache_enabled


def clear_autocast_cache() -> None:
    """Drop the casts of weights that the present region keeps."""
    if local.autocast is not None:
        local.autocast.cache.clear()


# --- custom functions -------------------------------------------------------------------------------------------------------


def _cast(value: Any, device_type: str, dtype: np.dtype) -> Any:
    """``value`` with its floating tensors cast to ``dtype``, also in mappings and iterables."""
    if isinstance(value, Tensor):
        return value.to(dtype) if _eligible(value, device_type) or _eligible(value, "meta") else value
    if isinstance(value, (str, bytes, np.ndarray)):
        return value
    if isinstance(value, Mapping):
        return {_cast(key, device_type, dtype): _cast(each, device_type, dtype) for key, each in value.items()}
    if isinstance(value, Iterable):
        each = (_cast(each, device_type, dtype) for each in value)
        return type(value)(each) if isinstance(value, (list, tuple)) else each  # type: ignore[call-arg]
    return value


def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    """Decorator for ``forward`` of an ``autograd.Function`` that runs under autocast.

    Args:
        device_type: the device type of the autocast region.
        cast_inputs: in a region, cast floating tensors to this dtype and run forward with autocast off; ``None`` runs it in the
            region as it is. Outside of a region, nothing is done.

    Raises:
        ValueError: ``device_type`` is not a string.
    """
    _check_type(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ctx, inside = args[0], is_autocast_enabled(device_type)
        ctx._dtype = get_autocast_dtype(device_type)
        ctx._fwd_used_autocast = inside and cast_inputs is None
        if not inside or cast_inputs is None:
            return fwd(*args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(*_cast(args, device_type, cast_inputs), **_cast(kwargs, device_type, cast_inputs))

    return wrapper


def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
    """Decorator for ``backward`` of an ``autograd.Function``: it runs with the autocast state of its forward.

    Raises:
        ValueError: ``device_type`` is not a string.
    """
    _check_type(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with autocast(device_type, enabled=args[0]._fwd_used_autocast, dtype=args[0]._dtype):
            return bwd(*args, **kwargs)

    return wrapper
