"""PyTorch's memory formats: names that change nothing, as new tensors are contiguous in any case."""

from __future__ import annotations

from typing import Any

from ..absent import say_once
from ..errors import ArgumentTypeError

preserve_format, contiguous_format = "preserve_format", "contiguous_format"
channels_last, channels_last_3d = "channels_last", "channels_last_3d"
"""Values of ``memory_format``. It is accepted everywhere and changes nothing: new tensors are contiguous in any case."""


def formatted(memory_format: Any) -> None:
    """Warn once that ``channels_last`` changes nothing. Raises: ArgumentTypeError: it is not a memory format."""
    if memory_format in (channels_last, channels_last_3d):
        said = "memory_format=channels_last changes nothing: arrays keep channels first, and use the same bytes"
        say_once("channels_last", said)
    elif memory_format not in (None, preserve_format, contiguous_format):
        raise ArgumentTypeError(f"memory_format: expected contiguous_format or channels_last, found {memory_format!r}")
