"""Streams, events and graphs of ``torch.cuda``, for files that name them. All work runs on one stream."""

from __future__ import annotations

from typing import Any

from ..errors import NotOfferedError

__all__ = ("CUDAGraph", "Event", "ExternalStream", "Stream", "StreamContext", "graph")


class _Refused:
    """A class that may be used in ``isinstance``; no object of it can be made."""

    instead = "leave it out: all runs on one stream"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(f"cuda.{type(self).__name__} is not offered: {self.instead}")


class Stream(_Refused):
    """A stream. There is only one."""


class ExternalStream(_Refused):
    """A stream of another library. Not offered."""


class StreamContext(_Refused):
    """A context that switches streams. There is only one stream."""


class Event(_Refused):
    """An event in a stream. Not offered."""

    instead = "time with cuda.synchronize() and time.perf_counter()"


class CUDAGraph(_Refused):
    """A recorded graph of work. Not offered."""

    instead = "leave it out: operations run as they are written"


class graph(_Refused):
    """A context that records work. Not offered."""

    instead = "leave it out: operations run as they are written"
