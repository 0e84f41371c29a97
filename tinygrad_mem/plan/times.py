"""The time of a step: the sum over its ops, each measured alone on the device.

Times on a shared machine are noisy. A plan needs only their order, for which the sum over ops is good enough
(``python -m tests.benchmarks.planner`` compares it with measured steps).
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import platform
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf, prod
from pathlib import Path
from time import get_clock_info, perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

from .. import scope, version
from ..autograd import core
from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..devices import cuda_problem
from ..devices import device as Device
from ..distributed import ProcessGroup
from ..dtypes import as_dtype, is_floating, uint8
from ..errors import TinygradMemError
from ..files import replacing
from ..nn import BatchNorm2d, PReLU, Sequential, Tanh
from ..ops.base import Op
from ..optim import SGD
from ..recompute import checkpoint
from ..techniques import optimizer_in_backward

SECONDS = 0.01  # least time for measuring one op
TURNS = 3  # least number of runs of one op
FINE = get_clock_info("process_time").resolution <= 1e-6  # a coarse clock does not advance during short ops
COPIED = 1 << 24  # bytes in the measured copies to the host and back
BUS = 25e9  # modelled bytes per second between a GPU and its host
LINK = 25e9  # the same between ranks
SETTINGS = ("TINYGRAD_MEM_THREADS", "TINYGRAD_MEM_CONV", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE")
_PYTHON = "a small step for each op that is recomputed", "a small step for each parameter that is updated in backward"
_COPY = "to the host, and back"
_NOT_LOOKED_AT = ("ticket",)  # parameters that differ in each call and do not affect the time


class Spec(NamedTuple):
    """An array that an op ran on."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return prod(self.shape) * as_dtype(self.dtype).itemsize


class HashableSlice(NamedTuple):
    """A slice in a form that can be a key of a dict."""

    start: int | None
    stop: int | None
    step: int | None


class OpCall(NamedTuple):
    """An op with the shapes of its arguments. Equal calls are taken to need the same time."""

    op: str
    inputs: tuple
    params: tuple
    needs: tuple[bool, ...]


def call_of(node: Any, arrays: tuple, params: dict[str, Any]) -> OpCall:
    """The call that a run of ``node``'s op is, without values."""
    named = tuple((name, _plain(value)) for name, value in sorted(params.items()) if name not in _NOT_LOOKED_AT)
    return OpCall(node.op.__name__, tuple(_plain(a) for a in arrays), named, tuple(node.needs))


def _plain(value: Any) -> Any:
    """``value`` as something that can be compared and written down."""
    if hasattr(value, "__array_interface__") or hasattr(value, "__cuda_array_interface__"):
        return Spec(tuple(value.shape), value.dtype.name)
    if isinstance(value, slice):
        return HashableSlice(value.start, value.stop, value.step)
    if isinstance(value, ProcessGroup):
        return value.size()
    if isinstance(value, (tuple, list)):
        return tuple(_plain(v) for v in value)
    kept = value is None or value is Ellipsis or isinstance(value, (bool, int, float, str, np.dtype))
    return value if kept else str(value)


class OpCounts(scope.Listener):
    """Counts the ops of a step by module and phase, and the bytes of copies to the host."""

    def __init__(self) -> None:
        self.ran: Counter[tuple[str, OpCall]] = Counter()
        self.again: Counter[OpCall] = Counter()
        self.offloaded: list[int] = []  # bytes of each copy

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        call = call_of(node, arrays, params)
        if scope.local.phase == "recompute":
            self.again[call] += 1
        else:
            self.ran[scope.local.module, call] += 1

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        if device == "host":
            self.offloaded.append(requested)

    def time(self, times: Times) -> float:
        """Seconds for all of it: forwards, backwards, recomputed forwards with their overhead, copies."""
        spent = sum(sum(times.of(call)) * count for (_, call), count in self.ran.items())
        spent += sum((times.of(call)[0] + times.python[0]) * count for call, count in self.again.items())
        return spent + sum(map(times.there_and_back, self.offloaded))


class Times:
    """Seconds of forward and backward of ops on a device. Each op is measured when its time is first needed.

    Args:
        device: the device of the step. If it is missing (``cuda`` without a GPU), or ``meta``, times are modelled.
        cache: a folder for measured times of this device and these versions; ``None`` for no cache.

    Attributes:
        measured: whether times are measured. Modelled times come from bytes and multiplications; only their order counts.
    """

    def __init__(self, device: Any = "cpu", cache: Path | None = None) -> None:
        missing = str(device).startswith("cuda") and cuda_problem() is not None
        self.device: Any = Device("meta" if missing else device)
        self.measured = self.device.kind != "meta"
        self._known: dict[OpCall, tuple[float, float]] = {}
        self._file = None if cache is None or not self.measured else cache / f"times-{self._fingerprint()}.json"
        self._written: dict[str, tuple[float, float]] = self._read_file()

    def _fingerprint(self) -> str:
        """A hash of everything that times depend on, besides the op: the machine, its cores or GPU, settings, libraries, us."""
        xp = self.device.xp
        gpu = xp.cuda.runtime.getDeviceProperties(self.device.index or 0)["name"] if self.device.kind == "cuda" else ""
        here = [str(self.device), str(gpu), platform.processor() or platform.machine(), str(os.cpu_count())]
        libraries = [version.__version__, np.__version__, xp.__version__]
        parts = [*here, *libraries, *(os.environ.get(name, "") for name in SETTINGS)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]

    def _read_file(self) -> dict[str, tuple[float, float]]:
        if self._file is None:
            return {}
        try:
            found = json.loads(self._file.read_text())
            times = {str(key): (float(f), float(b)) for key, (f, b) in found.items()}
            return {key: pair for key, pair in times.items() if all(0 <= seconds < inf for seconds in pair)}
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return {}  # no file, or a damaged one: times are measured again

    def save(self) -> None:
        """Write the measured times to the cache folder, if that is possible."""
        if self._file is None:
            return
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._file) as file:
                file.write(json.dumps(self._written).encode())

    def of(self, call: OpCall) -> tuple[float, float]:
        """(forward, backward) in seconds; backward is 0 if no input needs a gradient."""
        if call not in self._known:
            key = repr(call)
            if key not in self._written:
                self._written[key] = self._find(call)
            self._known[call] = self._written[key]
        return self._known[call]

    def again(self) -> None:
        """Measure all known calls once more, and keep the smaller times: noise only makes times longer."""
        if not self.measured:
            return
        for call, before in self._known.items():
            self._known[call] = self._written[repr(call)] = _less(before, self._find(call))
        for key, now in measure_python(self).items():
            self._written[key] = _less(self._written.get(key, now), now)

    def there_and_back(self, size: int) -> float:
        """Seconds to copy ``size`` bytes to host memory and back."""
        if not self.measured:
            return 2 * (5e-6 + size / BUS)
        if _COPY not in self._written:
            self._written[_COPY] = measure_copies(self.device)
        return sum(self._written[_COPY]) * size / COPIED

    def sending(self, size: int) -> float:
        """Seconds to send ``size`` bytes to other ranks: modelled, and not hidden behind computation."""
        return size / LINK

    @property
    def python(self) -> tuple[float, ...]:
        """Seconds of Python overhead: for each recomputed op, and for each parameter that is updated in backward.

        Modelled times have no overhead.
        """
        if not self.measured:
            return 0.0, 0.0
        if not all(key in self._written for key in _PYTHON):
            self._written |= measure_python(self)
        return tuple(max(self._written[key][1] - self._written[key][0], 0.0) for key in _PYTHON)

    def _find(self, call: OpCall) -> tuple[float, float]:
        if self.measured:
            try:
                return measure(call, self.device)
            except (TinygradMemError, TypeError, ValueError, MemoryError, IndexError, KeyError):
                pass  # the op does not run alone, or not on these values: it is modelled
        return model(call)


def _less(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return min(a[0], b[0]), min(a[1], b[1])


def model(call: OpCall) -> tuple[float, float]:
    """Modelled seconds: bytes at 1 TB/s, multiplications at 10 T/s (20 in float16), and 5 µs for the call."""
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
    ranks = params.get("group", 1)  # over which the rows of the input, or keys and values, are divided
    if op in ("Linear", "GatheredLinear"):
        return float(prod(x) * prod(w[:1]) * (ranks if op == "GatheredLinear" else 1))
    if op in ("Attention", "RingAttention"):
        return 2.0 * prod(x) * prod(w[-2:-1]) * (ranks if op == "RingAttention" else 1)
    if op == "MatMul" and len(w) > 1:
        return float(prod(x) * prod(w[-1:]))
    return 0.0


def measure(call: OpCall, device: Any) -> tuple[float, float]:
    """Measure an op alone on ``device``, forward and backward."""
    op = Op.registry[call.op]
    inputs = [_make_input(value, device, need) for value, need in zip(call.inputs, call.needs, strict=True)]
    params = {name: _raw(value, device) for name, value in call.params}
    code = op.forward.__code__
    if "ticket" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        params["ticket"] = device.generator.ticket()
    if not any(call.needs):
        return _seconds([lambda: apply(op, *inputs, **params)], device)[0], 0.0
    return _time_both(op, inputs, params, device)


def measure_copies(device: Any) -> tuple[float, float]:
    """Seconds to copy :data:`COPIED` bytes from ``device`` to the host's memory, and back."""
    here = device.empty((COPIED,), uint8)
    host = np.ndarray(COPIED, uint8, device.pool.host(pinned=True).malloc(COPIED))
    there, back = _seconds([lambda: device.to_host(here, host), lambda: device.from_host(host, here)], device)
    return there, back


def measure_python(times: Times) -> dict[str, tuple[float, float]]:
    """Seconds of a small step, (plain, with the technique), per recomputed op and per parameter that is updated in backward.

    Small blocks run plainly, each in a checkpoint, and with the optimizer in backward. The arrays are so small that only Python
    takes time, and the modules draw no random numbers. The time of forwards that run again is subtracted: hooks remain.
    """
    device, shape = times.device, (2, 2, 2, 2)
    with device:
        blocks = [Sequential(BatchNorm2d(2), PReLU(2), Tanh()) for _ in range(5)]
        others = [Sequential(BatchNorm2d(2), PReLU(2), Tanh()) for _ in range(5)]
    x, gradient = (_new_filled(shape, np.dtype("<f4"), device, 1) for _ in range(2))

    def step(chain: list[Sequential], how: Callable[..., Any], update: Callable[[], Any]) -> None:
        y = x
        for block in chain:
            y = how(block, y)
        y.backward(gradient)
        update()

    optimizer, other = (SGD([p for block in chain for p in block.parameters()], lr=0.0) for chain in (blocks, others))

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    run = operator.call
    steps = [partial(step, *each) for each in ((blocks, run, update), (blocks, checkpoint, update), (others, run, int))]
    counts = OpCounts()
    with optimizer_in_backward(other):
        with scope.listening(counts):
            steps[1]()
        plain, recomputed, in_backward = _seconds(steps, device, 10 * SECONDS)
    forwards = sum(times.of(call)[0] * n for call, n in counts.again.items())
    ops, parameters = counts.again.total(), sum(len(group["params"]) for group in other.param_groups)
    pairs = (plain / ops, (recomputed - forwards) / ops), (plain / parameters, in_backward / parameters)
    return dict(zip(_PYTHON, pairs, strict=True))


def _time_both(op: type[Op], inputs: list, params: dict[str, Any], device: Any) -> tuple[float, float]:
    """Seconds of an op's forward and backward, measured in turns. The engine owns the gradient, as in a real backward."""
    made: list[Any] = []
    roots: list[tuple] = []

    def forward() -> None:
        found = apply(op, *inputs, **params)
        made[:] = [y for y in (found if isinstance(found, tuple) else (found,)) if y.requires_grad][:1]

    def between() -> None:
        roots[:] = [(y.edge(), _new_filled(tuple(y.shape), y.dtype, device, 1).array, True) for y in made]
        made.clear()
        for x in inputs:
            if isinstance(x, Tensor):
                x.grad = None

    def backward() -> None:
        core.run([roots.pop()] if roots else [], keep_graph=False)

    first, _, second = _seconds([forward, between, backward], device)
    return first, second


def _new_filled(shape: tuple[int, ...], dtype: Any, device: Any, value: float) -> Tensor:
    array = device.empty(shape, as_dtype(dtype))
    device.kernels.fill(value, out=array)
    return Tensor._wrap(array, device)


def _make_input(value: Any, device: Any, need: bool) -> Any:
    """A tensor of a spec's shape, filled with 0.5; integers and bools are 0."""
    if not isinstance(value, Spec):
        return value
    tensor = _new_filled(value.shape, value.dtype, device, 0.5 if is_floating(as_dtype(value.dtype)) else 0)
    tensor._requires_grad = need
    return tensor


def _raw(value: Any, device: Any) -> Any:
    """A parameter in the form that the op takes."""
    if isinstance(value, Spec):
        return _make_input(value, device, False).array
    if isinstance(value, HashableSlice):
        return slice(*value)
    return tuple(_raw(v, device) for v in value) if isinstance(value, tuple) else value


def _seconds(parts: list[Callable[[], Any]], device: Any, whole: float | None = None) -> tuple[float, ...]:
    """The least time of each part. Parts are measured in turns; other load only makes times longer."""
    for part in parts:
        part()
    device.synchronize()
    least, total, turns = [float("inf")] * len(parts), 0.0, 0
    while total < (SECONDS if whole is None else whole) or turns < TURNS:
        for i, part in enumerate(parts):
            spent = _spent(part, device)
            least[i], total = min(least[i], spent), total + spent
        turns += 1
    return tuple(least)


def _spent(run: Callable[[], Any], device: Any) -> float:
    """Seconds of wall time; on the cpu, of processor time if that is less."""
    start, own = perf_counter(), process_time()
    run()
    device.synchronize()
    wall = perf_counter() - start
    return min(wall, process_time() - own) if device.kind == "cpu" and FINE else wall
