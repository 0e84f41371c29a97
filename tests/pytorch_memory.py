"""PyTorch's own peak, exact: the running sum of its CPU allocator's events, recorded by its profiler."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def pytorch_peak(run: Callable[[], object]) -> int:
    """The most bytes that PyTorch's CPU allocator had handed out at once while ``run`` ran, of those allocated in it.

    Native libraries' scratch (oneDNN, MKL) does not go through that allocator and is not counted.
    """
    return pytorch_bytes(run)[1]


def pytorch_bytes(run: Callable[[], object]) -> tuple[int, int]:
    """Bytes that are handed out when ``run`` is over and its result is still held, and the most that were at once."""
    torch.zeros(1).sum().item()  # the profiler's own first-use allocations are not the run's
    gc.collect()  # what an earlier run has left in cycles would be freed in this one, and an event does not say whose it was
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = run()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    del kept
    return now, peak
