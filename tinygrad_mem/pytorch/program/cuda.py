"""``torch.cuda`` of a GPU that is not there, for the thread of a prediction."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.nn.parallel import _functions

from ..allocator import CachingAllocator
from ..cards import GraphicsCard
from .ledger import Ledger
from .replacing import patched, refused

OTHER_STREAM = (
    "which blocks another stream keeps from being used again: a request there may need a segment of its own, and a block with "
    "record_stream waits for that stream (more bytes reserved, not allocated)"
)
_POOL = 32  # streams of each priority; then PyTorch gives the first one again
_NO_LIMIT = "set_per_process_memory_fraction: the card here never refuses, so no limit holds. Give gpu= or capacity="
_LEAVE_OUT = "Leave it out of what is predicted"
_SETTINGS = (
    "torch.cuda.memory._set_allocator_settings changes a real allocator. Pass settings= to the prediction, or set "
    "PYTORCH_CUDA_ALLOC_CONF before the program asks for memory"
)
_OF_ACCELERATORS = (
    "memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
    "reset_peak_memory_stats", "empty_cache",
)  # fmt: skip
_WITHOUT_EFFECT = (
    "init", "_lazy_init", "synchronize", "set_device", "manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state",
    "set_rng_state_all", "ipc_collect", "reset_accumulated_memory_stats", "check_error",
    "set_sync_debug_mode", "reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats",
)  # fmt: skip
_NO_LOAD = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "get_sync_debug_mode")
_OF_A_REAL_GPU = (
    "MemPool", "use_mem_pool", "graph_pool_handle", "caching_allocator_alloc", "caching_allocator_delete",
    "caching_allocator_enable", "change_current_allocator", "current_blas_handle",
)  # fmt: skip


_OF_EVERY_CARD = {
    "warp_size": 32, "max_threads_per_block": 1024, "regs_per_multiprocessor": 1 << 16, "shared_memory_per_block": 48 << 10,
    "is_integrated": 0, "is_multi_gpu_board": 0,
}  # fmt: skip
"""Properties of CUDA that all cards of the table share."""


class _Properties(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"torch.cuda.get_device_properties: {name} of a card is not known in a prediction")


class Card:
    """The answers of ``torch.cuda`` for the GPU of a prediction.

    Args:
        card: the model.
        capacity: bytes; ``None``: the program sees the card's memory, and may use more.
        note: called with each assumption.
    """

    def __init__(self, ledger: Ledger, card: GraphicsCard, capacity: int | None, note: Callable[[str], None]) -> None:
        self._ledger, self._card, self._capacity = ledger, card, capacity or card.bytes
        self.note, self._share = note, 1.0
        self.stream = type("Stream", (_Stream,), {"ledger": ledger, "_made": Counter()})

    def _limit(self, fraction: float, device: Any = None) -> None:
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._share = fraction
        self._allocator.limit(fraction)
        if self._allocator.driver.capacity is None:
            self.note(_NO_LIMIT)

    def _set(self, stream: Any) -> None:
        self._ledger.stream = stream.stream_id

    def _current(self, device: Any = None) -> _Stream:
        return self.stream(stream_id=self._ledger.stream)

    def answers(self) -> dict[str, Callable[..., Any]]:
        """The functions of ``torch.cuda`` by name."""

        def stats(name: str) -> int:
            return self._allocator.memory_stats()[name]

        return {
            **dict.fromkeys(("is_available", "is_initialized", "_is_compiled"), lambda: True),
            "is_current_stream_capturing": lambda: False,
            "_nvml_based_avail": lambda: True,
            "_device_count_nvml": lambda: 1,  # else they ask C++ if there is CUDA
            "is_bf16_supported": lambda including_emulation=True: including_emulation or self._card.capability >= (8, 0),
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_name": lambda device=None: self._name,
            "get_device_capability": lambda device=None: self._card.capability,
            **dict.fromkeys(("get_device_properties", "_get_device_properties"), lambda device=None: self.properties()),
            "memory_stats": lambda device=None: self._allocator.memory_stats(),
            "memory_allocated": lambda device=None: stats("allocated_bytes.all.current"),
            "max_memory_allocated": lambda device=None: stats("allocated_bytes.all.peak"),
            "memory_reserved": lambda device=None: stats("reserved_bytes.all.current"),
            "max_memory_reserved": lambda device=None: stats("reserved_bytes.all.peak"),
            "mem_get_info": lambda device=None: (self._capacity - stats("reserved_bytes.all.current"), self._capacity),
            "reset_peak_memory_stats": lambda device=None: self._allocator.stats.reset_peak(),
            "empty_cache": lambda: self._allocator.empty_cache(),
            "memory_stats_as_nested_dict": lambda device=None: _nested(self._allocator.memory_stats()),
            "initial_seed": lambda: 0,
            "get_arch_list": lambda: ["sm_{}{}".format(*self._card.capability)],
            "memory_snapshot": lambda *args, **kwargs: [],
            "current_stream": self._current,
            "default_stream": lambda device=None: self.stream(stream_id=0),
            "get_rng_state": lambda device="cuda": _rng_state(),
            "get_rng_state_all": lambda: [_rng_state()],
            "Stream": self.stream,
            "Event": _Event,
            **dict.fromkeys(("stream", "StreamContext"), lambda stream: stream or contextlib.nullcontext()),
            **dict.fromkeys(("device", "device_of"), _Device),
            "can_device_access_peer": lambda device, peer: False,
            "cudart": lambda: _Runtime(self),
            "device_memory_used": lambda device=None: stats("reserved_bytes.all.current"),
            "get_per_process_memory_fraction": lambda device=None: self._share,
            "set_per_process_memory_fraction": self._limit,
            "host_memory_stats": dict,
            "list_gpu_processes": lambda device=None: "",
            **dict.fromkeys(_NO_LOAD, lambda device=None: 0),
            **{name: refused(f"torch.cuda.{name}: only a real GPU has it. {_LEAVE_OUT}") for name in _OF_A_REAL_GPU},
            "set_stream": self._set,
            **dict.fromkeys(_WITHOUT_EFFECT, _nothing),
        }

    @property
    def _name(self) -> str:
        return f"NVIDIA {self._card.name}"

    def properties(self) -> _Properties:
        card, self._ledger.looks = self._card, True
        major, minor = card.capability
        return _Properties(
            name=self._name, major=major, minor=minor, total_memory=self._capacity, multi_processor_count=card.processors,
            max_threads_per_multi_processor=card.threads, **_OF_EVERY_CARD,
        )  # fmt: skip

    @property
    def _allocator(self) -> CachingAllocator:
        """The allocator's model, for the program's questions about memory."""
        allocator, self._ledger.looks = self._ledger.allocator, True
        assert allocator is not None  # there is a GPU
        return allocator


def _nested(stats: dict[str, int]) -> dict[str, Any]:
    """Counters as C++ returns them, of which PyTorch makes names with dots."""
    found: dict[str, Any] = {}
    for name, number in stats.items():
        *outer, last = name.split(".")
        place = found
        for each in outer:
            place = place.setdefault(each, {})
        place[last] = number
    return found


class _Stream:
    """A stream: PyTorch's allocator has blocks for each. All work of a prediction is done at once.

    Source: ``c10/cuda/CUDAStream.cpp``, ``getStreamFromPool``.
    """

    device_index = 0
    ledger: Ledger
    _made: Counter[int]

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int | None = None, **kwargs: Any) -> None:
        self.device, self.priority = torch.device("cuda", 0), min(priority, 0)
        if stream_id is None:
            stream_id = 1 + self._made[self.priority] % _POOL - _POOL * self.priority
            self._made[self.priority] += 1
        self.stream_id = self.cuda_stream = stream_id
        self._before: list[int] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing

    def __enter__(self) -> _Stream:
        self._before.append(self.ledger.stream)
        self.ledger.stream = self.stream_id
        return self

    def __exit__(self, *exc: object) -> None:
        self.ledger.stream = self._before.pop()

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True


class _Runtime:
    """CUDA's own functions, which do nothing, but for the one by which PyTorch asks for the free memory."""

    def __init__(self, card: Card | None = None) -> None:
        if card is not None:
            self.cudaMemGetInfo = card.answers()["mem_get_info"]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    record = wait = synchronize = lambda self, *args: None

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 1.0


class _Device(contextlib.nullcontext):
    def __init__(self, device: Any) -> None:
        super().__init__()
        self.idx = 0


def _below(answers: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Answers of ``torch._C`` for functions of PyTorch that a program imported by name: else they would reach a real GPU."""
    again = "a function that was imported by name before the prediction: call it as torch.cuda.{0}"
    return {
        **dict.fromkeys([f"_cuda_{name}" for name in _WITHOUT_EFFECT_BELOW], _nothing),
        **{f"_cuda_{name}": answers[above] for name, above in _BELOW.items()},
        "_cuda_getCurrentStream": lambda device: (answers["current_stream"]().stream_id, 0, 1),
        "_cuda_getDefaultStream": lambda device: (0, 0, 1),
        "_cuda_setMemoryFraction": lambda fraction, device: answers["set_per_process_memory_fraction"](fraction),
        "_cuda_memorySnapshot": lambda pool: {"segments": answers["memory_snapshot"]()},
        "_cuda_getArchFlags": lambda: " ".join(answers["get_arch_list"]()),
        "_cuda_setStream": refused(again.format("set_stream")),
    }


_BELOW = {  # a function of C++, and the one above it that has the same answer
    "emptyCache": "empty_cache", "getDevice": "current_device",
    "memoryStats": "memory_stats_as_nested_dict", "resetPeakMemoryStats": "reset_peak_memory_stats",
    "getMemoryFraction": "get_per_process_memory_fraction", "get_sync_debug_mode": "get_sync_debug_mode",
    "hostMemoryStats": "host_memory_stats",
}  # fmt: skip
_WITHOUT_EFFECT_BELOW = (
    "synchronize", "setDevice", "ipc_collect", "resetAccumulatedMemoryStats", "resetAccumulatedHostMemoryStats",
    "resetPeakHostMemoryStats", "set_sync_debug_mode",
)  # fmt: skip


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


_OwnGenerator = torch.Generator


class _Generator(_OwnGenerator):
    """A generator of the GPU, which draws no numbers."""

    device = torch.device("cuda", 0)


def _generator(device: Any = "cpu") -> torch.Generator:
    return _OwnGenerator("cpu") if str(device).startswith("cpu") else _Generator()


def _rng_state() -> torch.Tensor:
    """The state of the GPU's generator is in the host's memory, whatever the default device."""
    return torch.empty(16, dtype=torch.uint8, device="cpu")


_PROFILE = torch.autograd.profiler.profile.__init__


def _profiled(profile: Any, enabled: bool = True, **kwargs: Any) -> None:
    """Profile the host alone: there is no GPU to profile, and PyTorch would print pages about each event that it lacks."""
    _PROFILE(profile, enabled, **kwargs | {"use_cuda": False, "use_device": None, "use_cpu": True})


def _the_gpu(check_available: bool = False) -> torch.device:
    return torch.device("cuda")


def _device_module(device: Any = None) -> Any:
    """``torch.get_device_module``, which remembers the module of the process's own device."""
    return torch.cuda if device is None else getattr(torch, torch.device(device).type)


def gpu(card: Card, waits: Callable[[torch.Tensor, int], None]) -> AbstractContextManager[None]:
    """Inside, ``torch.cuda`` is that of ``card``; ``waits`` is called with each tensor that a stream uses, and its number."""

    def recorded(tensor: torch.Tensor, stream: Any) -> None:
        waits(tensor, stream.stream_id)

    answers = card.answers()
    accelerator = {
        "is_available": answers["is_available"],
        "device_count": answers["device_count"],
        "current_accelerator": _the_gpu,
        **dict.fromkeys(("current_device_index", "current_device_idx"), answers["current_device"]),
        **dict.fromkeys(("set_device_index", "set_device_idx"), _nothing),
        "get_memory_info": answers["mem_get_info"],
        "current_stream": answers["current_stream"],
        "set_stream": answers["set_stream"],
        "device_index": lambda device: contextlib.nullcontext(),
        "synchronize": _nothing,
        **{name: answers[name] for name in _OF_ACCELERATORS},
    }
    without = {"_record_memory_history": _nothing, "_dump_snapshot": _nothing, "_set_allocator_settings": refused(_SETTINGS)}
    return patched(
        (torch.cuda, answers | {"default_generators": lambda: (_Generator(),)}),
        (torch._C, _below(answers) | {"_get_accelerator": _the_gpu}),
        # a program may have imported these before the prediction
        (torch.cuda.streams.Stream, {"__new__": lambda cls, *args, **kwargs: card.stream(*args, **kwargs)}),
        (torch.cuda.streams.Event, {"__new__": lambda cls, *args, **kwargs: _Event(*args, **kwargs)}),
        (fake_tensor, {"init_gpu_context": _nothing}),  # it would make a tensor on a real GPU
        (torch.cuda.memory, {**answers, **without}),
        (torch.cuda.random, answers),
        (torch.autograd.profiler.profile, {"__init__": _profiled}),
        (torch.cuda.profiler, {"check_error": _nothing, "cudart": _Runtime}),
        (torch.accelerator, accelerator),
        (torch.cuda.nvtx, dict.fromkeys(("range_push", "range_pop", "mark"), _nothing)),
        (torch, {"Generator": _generator, "Stream": card.stream, "Event": _Event, "get_device_module": _device_module}),
        (_functions, {"_get_stream": lambda device: card.stream()}),  # DataParallel's own, for copies
        (torch.Tensor, {"record_stream": recorded}),  # PyTorch looks at the stream before the mode sees the call
    )
