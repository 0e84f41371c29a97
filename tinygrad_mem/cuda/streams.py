"""Streams, events and graphs of ``torch.cuda``, so that published files may name them: all runs on one stream."""

from __future__ import annotations

from typing import Any

from ..errors import NotOfferedError


class _Refused:
    """A name that may be used in ``isinstance``, and is never made."""

    instead = "leave it out: all runs on one stream"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(f"cuda.{type(self).__name__} is not offered: {self.instead}")


class Stream(_Refused):
    """An order of work on a GPU: there is one."""


class ExternalStream(_Refused):
    """An order of work that another library began: not taken."""


class StreamContext(_Refused):
    """A block whose work is in another order: there is one order."""


class Event(_Refused):
    """A mark in an order of work: never made."""

    instead = "time with cuda.synchronize() and time.perf_counter()"


class CUDAGraph(_Refused):
    """Work that is recorded and repeated: never made."""

    instead = "leave it out: operations run as they are written"


class graph(_Refused):
    """A block whose work is recorded: not entered."""

    instead = "leave it out: operations run as they are written"
