"""Streams, events and graphs of ``torch.cuda``, for files that name them. All work runs on one stream."""

from __future__ import annotations

from .refused import never_made

__all__ = ("CUDAGraph", "Event", "ExternalStream", "Stream", "StreamContext", "graph")

_ONE, _AS_WRITTEN = "leave it out: all runs on one stream", "leave it out: operations run as they are written"
Stream, ExternalStream, StreamContext = (
    never_made("cuda", name, _ONE) for name in ("Stream", "ExternalStream", "StreamContext")
)
Event = never_made("cuda", "Event", "time with cuda.synchronize() and time.perf_counter()")
CUDAGraph, graph = (never_made("cuda", name, _AS_WRITTEN) for name in ("CUDAGraph", "graph"))
