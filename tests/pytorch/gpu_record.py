"""``python -m tests.pytorch.gpu_record FILE [WORDS]``, on a machine with a GPU: records the programs of ``gpu_steps.py``.

Each program runs twice: alone, for the events of PyTorch's allocator, and under a mode that sees the ops, for their names. With
words, only programs whose names contain one of them. ``gpu_recordings.py`` reads the file.
"""

from __future__ import annotations

import gc
import json
import lzma
import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.pytorch.gpu_recordings import steps
from tests.pytorch.gpu_steps import PROGRAMS

Trace = Sequence[Any]
NUMBER = "allocation.all.allocated"  # of requests so far


class _Asking(TorchDispatchMode):
    """Which op made which requests: the numbers of the first one and of the one after the last, and its name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int, str]] = []
        self._first = torch.cuda.memory_stats()[NUMBER]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.cuda.memory_stats()[NUMBER]
        made = func(*args, **(kwargs or {}))
        after = torch.cuda.memory_stats()[NUMBER]
        if after > before:
            self.found.append((before - self._first, after - self._first, str(func).removeprefix("aten.")))
        return made


def fresh() -> None:
    """As a process that has only asked for its GPU: no block, no segment, no workspace of cuBLAS."""
    gc.collect()
    torch.zeros(1, device="cuda")
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if held := torch.cuda.memory_allocated():
        raise RuntimeError(f"{held} bytes of an earlier program are still in use")


def trace(run: Callable[[], Any]) -> tuple[Trace, int]:
    """The events of the allocator in a program, and ``max_memory_allocated``."""
    fresh()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=10_000_000)
    try:
        run()
        torch.cuda.synchronize()
        snapshot: Any = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    return snapshot["device_traces"][0], torch.cuda.max_memory_allocated()


def steps_of(events: Trace) -> list[int]:
    """Requests and ends."""
    kinds = {"alloc": True, "free_requested": False}
    return steps([(kinds[event["action"]], event["addr"], event["size"]) for event in events if event["action"] in kinds])


def ops_of(run: Callable[[], Any], wanted: list[int]) -> list[str]:
    """The op of each request, if a second run takes the same steps; else no names."""
    modes = []

    def watched() -> Any:
        modes.append(_Asking())
        with modes[0]:
            return run()

    found = [""] * sum(step > 0 for step in wanted)
    events, _ = trace(watched)
    if steps_of(events) == wanted:
        for first, end, name in modes[0].found:
            found[first:end] = [name] * (end - first)
    return found


def recorded(run: Callable[[], Any]) -> dict[str, Any]:
    """One program, as :class:`~tests.pytorch.gpu_recordings.Recording` has it."""
    events, peak = trace(run)
    segments: list[tuple[int, int]] = []
    places: list[tuple[int, int]] = []
    for event in events:
        if event["action"] == "segment_alloc":
            segments.append((event["addr"], event["size"]))
        elif event["action"] == "alloc":
            inside = (n for n, (begin, size) in enumerate(segments) if begin <= event["addr"] < begin + size)
            number = next(inside)
            places.append((number, event["addr"] - segments[number][0]))
    found = steps_of(events)
    columns = {"segment": [segment for segment, _ in places], "offset": [offset for _, offset in places]}
    return {"steps": found, "ops": ops_of(run, found), "segments": segments, **columns, "peak": peak}


def main(file: str, *words: str) -> None:
    """Record the programs, and write them."""
    machine = {
        "GPU": torch.cuda.get_device_name(),
        "PyTorch": torch.__version__,
        "cuDNN": str(torch.backends.cudnn.version()),
        "Python": platform.python_version(),
    }
    names: dict[str, int] = {"": 0}
    programs = {}
    wanted = [name for name in PROGRAMS if not words or any(word in name for word in words)]
    for number, name in enumerate(wanted, 1):
        torch.manual_seed(0)
        try:
            found = recorded(PROGRAMS[name])
        except (RuntimeError, TypeError, ValueError) as error:  # an option that an optimizer does not have, for example
            print(f"{name}: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr)
            continue
        programs[name] = {**found, "ops": [names.setdefault(op, len(names)) for op in found["ops"]]}
        if number % 100 == 0:
            print(f"{number} of {len(wanted)} programs", file=sys.stderr, flush=True)
    with lzma.open(file, "wt", encoding="utf-8") as target:
        json.dump({"machine": machine, "ops": list(names), "programs": programs}, target, separators=(",", ":"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
