"""The settings of PyTorch's CUDA caching allocator: the string in ``PYTORCH_CUDA_ALLOC_CONF`` (or ``PYTORCH_ALLOC_CONF``).

Source: PyTorch 2.13, "CUDA semantics: Memory management", and ``c10/core/AllocatorConfig.cpp``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError

MIB = 1 << 20
SMALLEST = 512  # the size of every block is a multiple of it
SMALL = MIB  # largest small request
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB  # bytes of a segment for a large request below OWN_SEGMENT
OWN_SEGMENT = 10 * MIB  # requests from this size on get their own segment, a multiple of 2 MiB
_INTERVALS = 16  # powers of two from 1 MiB to 64 GiB: each may have its own number of divisions
_UNLIMITED = 1 << 63
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


@dataclass(frozen=True)
class Settings:
    """The settings in a string. Defaults are PyTorch's."""

    max_split_size: int = _UNLIMITED  # bytes; a block of this size or more is never split
    max_non_split_rounding: int = LARGE_SEGMENT  # bytes by which a block that is never split may exceed a request for one
    # for each power of two from 1 MiB on, the number of sizes into which it is divided (0 and 1: no division)
    divisions: tuple[int, ...] = (0,) * _INTERVALS
    garbage_collection_threshold: float = 0.0  # share of the process's memory from which on old free segments are released
    expandable_segments: bool = False  # segments grow by mapped pages
    large_segment: int = LARGE_SEGMENT  # bytes of the segment for large requests below 10 MiB
    per_process_memory_fraction: float | None = None  # share of the card that the process may use; None for no limit

    def rounded(self, size: int) -> int:
        """The bytes of a block for a request of ``size`` bytes: a multiple of 512, or the next division of a power of two."""
        if size < SMALLEST:
            return SMALLEST
        divisions = self.divisions[min(max(size.bit_length() - MIB.bit_length(), 0), _INTERVALS - 1)]
        step = SMALLEST
        if divisions > 1 and size > SMALLEST * divisions:
            step = (1 << (size.bit_length() - 1)) // divisions
        return -(-size // step) * step

    def segment_size(self, rounded: int) -> int:
        """The bytes of a new segment for a request of ``rounded`` bytes."""
        if rounded <= SMALL:
            return SMALL_SEGMENT
        return self.large_segment if rounded < OWN_SEGMENT else -(-rounded // (2 * MIB)) * (2 * MIB)

    def splits(self, size: int, rounded: int, small: bool) -> bool:
        """True if a free block of ``size`` bytes is split for a request of ``rounded`` bytes."""
        if small or self.expandable_segments:
            return size - rounded >= SMALLEST
        return rounded < self.max_split_size and size - rounded > SMALL


def parse(text: str) -> Settings:
    """Read a settings string, such as ``"max_split_size_mb:128,expandable_segments:True"``.

    Raises:
        ValueError: PyTorch would refuse it too, or the model lacks what the setting changes.
    """
    found: dict[str, Any] = {}
    for key, value in _pairs(text):
        if key in _READERS:
            name, reader = _READERS[key]
            found[name] = reader(key, value)
        elif key == "backend" and value != "native":
            raise ArgumentError(f"settings: backend {value!r} is another allocator than PyTorch's own; only native is modelled")
        elif key not in _NO_EFFECT:
            known = ", ".join([*_READERS, *_NO_EFFECT])
            raise ArgumentError(f"settings: PyTorch's allocator has no setting {key!r}; it has {known}")
    settings = Settings(**found)
    for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        name = _READERS[key][0]
        if name in found and found[name] < settings.large_segment:
            raise ArgumentError(
                f"settings: {key} must be at least {settings.large_segment // MIB}, the size of a large segment"
            )
    return settings


def of_environment() -> str:
    """The settings in the environment variables that PyTorch reads, the first one that is there."""
    name = next((name for name in _VARIABLES if os.environ.get(name)), "")
    text = os.environ.get(name, "")
    try:
        parse(text)
    except ArgumentError as error:
        raise ArgumentError(f"{name}={text!r}: {error}. Change the variable, or pass settings=") from None
    return text


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = re.findall(r"([^\s,:\[\]]+):(\[[^\[\]]*\]|[^\s,:\[\]]+)(?:,|$)", text := re.sub(r"\s", "", text))
    if ",".join(f"{key}:{value}" for key, value in pairs) != text.removesuffix(","):
        raise ArgumentError(f"settings: expected name:value pairs separated by commas, found {text!r}")
    return pairs


def _number(key: str, value: str, kind: Callable[[str], Any] = int) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ArgumentError(f"settings: {key} is a number, found {value!r}") from None


def _mebibytes(key: str, value: str) -> int:
    size = _number(key, value) * MIB
    if size <= OWN_SEGMENT:
        raise ArgumentError(f"settings: {key} must be more than {OWN_SEGMENT // MIB}, found {value}")
    return min(size, _UNLIMITED)


def _share(key: str, value: str) -> float:
    share = _number(key, value, float)
    if not 0 < share < 1 and not (share == 1 and key == "per_process_memory_fraction"):
        raise ArgumentError(f"settings: {key} must be between 0 and 1, found {value}")
    return share


def _switch(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise ArgumentError(f"settings: {key} is True or False, found {value!r}")
    return value == "True"


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """One number for all sizes, or ``[256:1,512:2,>:8]``: megabytes, and the divisions from that size on.

    As in PyTorch, the first entry also counts below its size, an entry counts for its own power of two only, and ``>`` counts
    from the last entry on, which it includes.
    """
    if not value.startswith("["):
        return (_power_of_two(key, value),) * _INTERVALS
    divisions, last = [0] * _INTERVALS, None
    for entry in value.strip("[]").split(","):
        size, _, number = entry.partition(":")
        count = 0 if number == "0" else _power_of_two(key, number)
        if size == ">":
            divisions[last or 0 :] = [count] * (_INTERVALS - (last or 0))
            continue
        index = min(_power_of_two(key, size).bit_length() - 1, _INTERVALS - 1)
        divisions[0 if last is None else index : index + 1] = [count] * (index + 1 if last is None else 1)
        last = index
    return tuple(divisions)


def _power_of_two(key: str, value: str) -> int:
    number = _number(key, value)
    if number < 1 or number & (number - 1):
        raise ArgumentError(f"settings: sizes and divisions of {key} are powers of two, found {value}")
    return number


_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "max_split_size_mb": ("max_split_size", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _mebibytes),
    "roundup_power2_divisions": ("divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
    "expandable_segments": ("expandable_segments", _switch),
    "large_segment_size_mb": ("large_segment", _mebibytes),
    "per_process_memory_fraction": ("per_process_memory_fraction", _share),
}
_NO_EFFECT = (  # on the addresses and bytes of device memory
    "backend", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads",
    "pinned_use_background_threads", "pinned_reserve_segment_size_mb", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb", "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
)  # fmt: skip
