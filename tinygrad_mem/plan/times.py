"""How long a step takes: the sum over its ops, each measured once on the device, alone.

Seconds on a shared machine are noise; what a plan needs is their order, and for that the sum over ops is good enough
(``python -m tests.benchmarks.planner`` correlates it with what steps really take).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from .. import scope
from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..devices import cuda_problem
from ..devices import device as Device
from ..dtypes import as_dtype, is_floating, uint8
from ..errors import TinygradMemError
from ..ops.base import Op

SECONDS = 0.01  # of one op, at least, in all its repetitions
COPIED = 1 << 24  # bytes that are copied to the host and back to see how long it takes
BUS = 25e9  # bytes a second between a GPU and its host, where that is modelled
SETTINGS = ("TINYGRAD_MEM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE")
_COPY = "to the host, and back"
_NOT_LOOKED_AT = ("ticket",)  # parameters that differ at each call and change no time


class Spec(NamedTuple):
    """An array that an op ran on."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * as_dtype(self.dtype).itemsize


class Slice(NamedTuple):
    """A slice, which could not be looked up in a dict."""

    start: int | None
    stop: int | None
    step: int | None


class Call(NamedTuple):
    """An op with the shapes that it ran on: calls that are equal take the same time."""

    op: str
    inputs: tuple
    params: tuple
    needs: tuple[bool, ...]


def call_of(node: Any, arrays: tuple, params: dict[str, Any]) -> Call:
    """What is known of a run of ``node``'s op, without its values."""
    named = tuple((name, _plain(value)) for name, value in sorted(params.items()) if name not in _NOT_LOOKED_AT)
    return Call(node.op.__name__, tuple(_plain(a) for a in arrays), named, tuple(node.needs))


def _plain(value: Any) -> Any:
    """``value`` as something that can be compared and written down."""
    if hasattr(value, "__array_interface__") or hasattr(value, "__cuda_array_interface__"):
        return Spec(tuple(value.shape), value.dtype.str)
    if isinstance(value, slice):
        return Slice(value.start, value.stop, value.step)
    if isinstance(value, (tuple, list)):
        return tuple(_plain(v) for v in value)
    kept = value is None or value is Ellipsis or isinstance(value, (bool, int, float, str, np.dtype))
    return value if kept else str(value)


class Times:
    """Seconds of forward and backward of ops on a device, measured when they are asked for the first time.

    Args:
        device: where the step will run. Where it is not here (``cuda`` on a machine without), or ``meta``, times are modelled.
        cache: a folder that keeps what was measured, for this device and these versions; ``None`` keeps nothing.

    Attributes:
        measured: False where times are modelled, from bytes and multiplications of a card whose speed does not matter: their
            order is what counts.
    """

    def __init__(self, device: Any = "cpu", cache: Path | None = None) -> None:
        self.device, self.measured = _here(device)
        self._known: dict[Call, tuple[float, float]] = {}
        self._file = None if cache is None or not self.measured else cache / f"times-{self._fingerprint()}.json"
        self._written: dict[str, tuple[float, float]] = self._read()

    def _fingerprint(self) -> str:
        """Of what times depend on beside the op: the machine, its cores, how they are used, the libraries."""
        here = [str(self.device), platform.processor() or platform.machine(), str(os.cpu_count())]
        parts = [*here, np.__version__, *(os.environ.get(name, "") for name in SETTINGS)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]

    def _read(self) -> dict[str, tuple[float, float]]:
        if self._file is None:
            return {}
        try:
            found = json.loads(self._file.read_text())
            return {str(key): (float(f), float(b)) for key, (f, b) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # none yet, or damaged: they are measured again

    def save(self) -> None:
        """Keep what was measured; a folder that cannot be written keeps nothing."""
        if self._file is None:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._file.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps(self._written))
            temporary.replace(self._file)

    def of(self, call: Call) -> tuple[float, float]:
        """(forward, backward) in seconds; the backward of what needs no gradient is 0."""
        if call not in self._known:
            key = repr(call)
            if key not in self._written:
                self._written[key] = self._find(call)
            self._known[call] = self._written[key]
        return self._known[call]

    def there_and_back(self, size: int) -> float:
        """Seconds to copy so many bytes to the host's memory and to bring them back."""
        if not self.measured:
            return 2 * (5e-6 + size / BUS)
        if _COPY not in self._written:
            self._written[_COPY] = measure_copies(self.device)
        return sum(self._written[_COPY]) * size / COPIED

    def _find(self, call: Call) -> tuple[float, float]:
        if self.measured:
            try:
                return measure(call, self.device)
            except (TinygradMemError, TypeError, ValueError, MemoryError, IndexError, KeyError):
                pass  # an op that does not run alone, on values of no meaning, is modelled
        return model(call)


def _here(device: Any) -> tuple[Any, bool]:
    """The device, and whether it is here to be measured; a GPU that is not is modelled."""
    found = Device("meta" if str(device).startswith("cuda") and cuda_problem() else device)
    return found, found.type != "meta"


def model(call: Call) -> tuple[float, float]:
    """Seconds by counting: bytes read and written at 1 TB/s, products at 10 T/s (of float16 at 20), 5 µs for the call."""
    arrays = [spec for spec in call.inputs if isinstance(spec, Spec)]
    moved = sum(spec.bytes for spec in arrays) * 2
    wide = as_dtype(arrays[0].dtype).itemsize / 4 if arrays else 1  # half as wide is twice as fast
    products = _multiplications(call.op, [spec.shape for spec in arrays], dict(call.params))
    forward = 5e-6 + moved / 1e12 + wide * products / 1e13
    return forward, 2 * forward if any(call.needs) else 0.0


def _multiplications(op: str, shapes: list[tuple[int, ...]], params: dict[str, Any]) -> float:
    if len(shapes) < 2:
        return 0.0
    x, w = shapes[:2]
    if op in ("Conv", "ConvTranspose") and len(w) > 2:
        places = prod(x[2:])
        if op == "Conv":
            places = prod(n // s for n, s in zip(x[2:], params.get("stride", (1,) * len(x[2:])), strict=False))
        return float(x[0] * places * prod(w))
    if op == "Linear":
        return float(prod(x) * prod(w[:1]))
    if op == "MatMul" and len(w) > 1:
        return float(prod(x) * prod(w[-1:]))
    return 0.0


def measure(call: Call, device: Any) -> tuple[float, float]:
    """Run an op alone on ``device``, forward and backward, until it is known how long that takes."""
    op = Op.registry[call.op]
    inputs = [_made(value, device, need) for value, need in zip(call.inputs, call.needs, strict=True)]
    params = {name: _raw(value, device) for name, value in call.params}
    if "ticket" in _parameters(op):
        params["ticket"] = device.generator.ticket()
    listeners, scope.listeners = scope.listeners, ()
    try:
        forward = _seconds(lambda: apply(op, *inputs, **params), device)
        if not any(call.needs):
            return forward, 0.0
        both = _seconds(lambda: _both(op, inputs, params), device)
    finally:
        scope.listeners = listeners
    return forward, max(both - forward, 0.0)


def measure_copies(device: Any) -> tuple[float, float]:
    """Seconds to copy :data:`COPIED` bytes from ``device`` to the host's memory, and back."""
    here = device.empty((COPIED,), uint8)
    host = np.ndarray(COPIED, uint8, device.pool.host(pinned=True).malloc(COPIED))
    there = _seconds(lambda: device.to_host(here, host), device)
    return there, _seconds(lambda: device.from_host(host, here), device)


def _parameters(op: type[Op]) -> tuple[str, ...]:
    code = op.forward.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _both(op: type[Op], inputs: list, params: dict[str, Any]) -> None:
    found = apply(op, *inputs, **params)
    outputs = [y for y in (found if isinstance(found, tuple) else (found,)) if y.requires_grad]
    for y in outputs[:1]:
        y.backward(_filled(tuple(y.shape), y.dtype, y.device, 1))
    for x in inputs:
        if isinstance(x, Tensor):
            x.grad = None


def _filled(shape: tuple[int, ...], dtype: Any, device: Any, value: float) -> Tensor:
    array = device.empty(shape, as_dtype(dtype))
    device.kernels.fill(value, out=array)
    return Tensor._wrap(array, device)


def _made(value: Any, device: Any, need: bool) -> Any:
    """A tensor of a spec's shape: a half everywhere, whole numbers and truth values are 0."""
    if not isinstance(value, Spec):
        return value
    tensor = _filled(value.shape, value.dtype, device, 0.5 if is_floating(as_dtype(value.dtype)) else 0)
    tensor._requires_grad = need
    return tensor


def _raw(value: Any, device: Any) -> Any:
    """A parameter as the op gets it."""
    if isinstance(value, Spec):
        return _made(value, device, False).array
    if isinstance(value, Slice):
        return slice(*value)
    return tuple(_raw(v, device) for v in value) if isinstance(value, tuple) else value


def _seconds(run: Callable[[], Any], device: Any) -> float:
    """The least time of one call: what else the machine does makes it longer, never shorter."""
    run()
    device.synchronize()
    least, total = float("inf"), 0.0
    while total < SECONDS:
        start = perf_counter()
        run()
        device.synchronize()
        spent = perf_counter() - start
        least, total = min(least, spent), total + spent
    return least
