"""The table of ``docs/pytorch_cpu.md``: PyTorch's real peaks on the CPU, our predictions of them, and its own ``MemTracker``.

``python -m tests.pytorch.cpu_table`` prints it. ``--write`` measures all rows first, or those of the networks and ways
that follow: ``--write MLP LeNet``. Each number is measured in a process of its own. ``ATEN_CPU_CAPABILITY=avx2
ONEDNN_MAX_CPU_ISA=AVX2`` makes PyTorch and oneDNN take the way of a processor without AVX-512.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # else MemTracker rounds up to 512 bytes
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.networks import MORE, WORKLOADS
from tests.pytorch.cpu_steps import WAYS
from tests.pytorch.hugging_face import PROGRAMS, program
from tests.pytorch_memory import pytorch_peak
from tinygrad_mem import pytorch

PAGE = Path(__file__).parents[2] / "docs" / "pytorch_cpu.md"
FACTS = Path(__file__).with_suffix(".json")
NETWORKS = {workload.name: workload for workload in [*WORKLOADS, *MORE]}
ROWS = [*((name, way) for name in NETWORKS for way in WAYS), *((f"transformers: {name}", way) for name, way in PROGRAMS)]
LIMIT = 900  # seconds for one number
REASONS: dict[tuple[str, str], str] = {}
"""Why a prediction differs from the real peak."""

_HEAD = """# PyTorch's memory on the CPU: real, and predicted

The peak of bytes in use, from the construction of the network on, of the 13 networks of docs/benchmarks.md as PyTorch programs.
*Real* is the highest running sum of the events of PyTorch's CPU allocator, which its profiler records. *Predicted* is
`pytorch.predict(program, device="cpu").peak`, for which nothing is computed. *MemTracker* is PyTorch's own
`torch.distributed._tools.mem_tracker.MemTracker` under `FakeTensorMode`: it sees the results of ops, and not what
kernels take inside. Each number comes from a process of its own.

- *forward*: one forward under `no_grad`; *inference*: under `inference_mode`.
- *SGD*, *Adam*: two training steps; SGD has momentum.
- *checkpoint*: as SGD; the whole network is one `torch.utils.checkpoint.checkpoint`.
- *autocast*: as SGD, with forward and loss in bfloat16.

The rows of *transformers* are small models that Hugging Face's library makes from a configuration: one forward of 2 x 32
tokens under `no_grad`, or two training steps. In the last three Llama is frozen, with LoRA's adapters.

MemTracker takes more than ten minutes for a step of ResNet-1001: it was stopped, and not run for its other ways.

`tests/pytorch/cpu_steps.py` and `hugging_face.py` have the programs, `tests/networks.py` the batches. What oneDNN and MKL
take inside an op depends on the processor and on the number of threads. A prediction learns it on the machine where it
runs: compare both on one machine.
`python -m tests.pytorch.cpu_table --write` measures, and writes this page.
"""


def _tracked(run: Callable[[], Any]) -> int:
    """The peak that PyTorch's MemTracker tells, without its rounding to a GPU's 512 bytes."""
    tracker = MemTracker()
    hook = register_optimizer_step_post_hook(lambda *_: tracker.reset_mod_stats())  # it wants to know where a step ends
    with FakeTensorMode(allow_non_fake_inputs=True), tracker:
        kept = run()
    hook.remove()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    del kept
    return peak


MEASURES: dict[str, Callable[[Callable[[], Any]], int]] = {
    "real": pytorch_peak,
    "predicted": lambda run: pytorch.predict(run, device="cpu").peak,
    "MemTracker": _tracked,
}


def machine() -> str:
    """What of this machine decides bytes."""
    widest, half = torch.backends.cpu.get_cpu_capability(), torch.ops.mkldnn._is_mkldnn_bf16_supported()
    threads = torch.get_num_threads()
    return (
        f"{_processor()}, {widest}, bfloat16 in oneDNN: {'yes' if half else 'no'}, {threads} thread{'s'[: threads > 1]}, "
        f"PyTorch {torch.__version__}"
    )


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="ascii") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown processor")


def measured(what: str, name: str, way: str) -> int | str:
    """One number, from a process of its own, in which PyTorch has only been imported; if PyTorch refuses, its words."""
    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe()
    process = context.Process(target=_one, args=(its, what, name, way))
    process.start()
    found = ours.recv() if ours.poll(LIMIT) else f"stopped after {LIMIT // 60} minutes"
    process.kill()
    process.join()
    return found


def _one(to: Connection, what: str, name: str, way: str) -> None:
    try:
        to.send(MEASURES[what](partial(_run, name, way)))
    except Exception as error:
        to.send(f"{type(error).__name__}: {error}".splitlines()[0])


def _run(name: str, way: str) -> Any:
    return WAYS[way](NETWORKS[name]) if name in NETWORKS else program(name.removeprefix("transformers: "), way)


def measure(rows: list[tuple[str, str]]) -> None:
    """Measure rows, and keep the facts after each."""
    for name, way in rows:
        began = time.perf_counter()
        row = {what: measured(what, name, way) for what in MEASURES}
        print(f"{name}: {way}", row, f"{time.perf_counter() - began:.0f} s", flush=True)
        facts = read()
        facts.setdefault(machine(), {})[f"{name}: {way}"] = row
        FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def read() -> dict[str, dict[str, dict[str, int | str]]]:
    """The facts: machine -> row -> what -> bytes."""
    return json.loads(FACTS.read_text(encoding="utf-8")) if FACTS.exists() else {}


def page() -> str:
    """The page, from the facts."""
    parts = [_HEAD]
    for found, rows in read().items():
        lines = [_line(name, way, rows[f"{name}: {way}"]) for name, way in ROWS if f"{name}: {way}" in rows]
        parts.append(
            f"\n## {found}\n\n{_sum(rows)}\n\n"
            "| network | program | real | predicted | difference | why | MemTracker | difference |\n"
            "|---|---|---:|---:|---:|---|---:|---:|\n" + "\n".join(lines) + "\n"
        )
    return "".join(parts)


def _line(name: str, way: str, row: dict[str, int | str]) -> str:
    real, predicted, tracked = (_number(row[what]) for what in MEASURES)
    off, why = _difference(row, "predicted"), REASONS.get((name, way), "")
    return f"| {name} | {way} | {real} | {predicted} | {off} | {why} | {tracked} | {_difference(row, 'MemTracker', True)} |"


def _number(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value if value.startswith(("stopped", "not run")) else "refused"


def _difference(row: dict[str, int | str], what: str, relative: bool = False) -> str:
    real, other = row["real"], row[what]
    if not isinstance(real, int) or not isinstance(other, int):
        return ""
    return f"{(other - real) / real:+.1%}" if relative else f"{other - real:+,}" if other != real else "0"


def _sum(rows: dict[str, dict[str, int | str]]) -> str:
    """How many are equal, and how far off all of them are together."""
    both = [
        (r["real"], r["predicted"]) for r in rows.values() if isinstance(r["real"], int) and isinstance(r["predicted"], int)
    ]
    total, off = sum(real for real, _ in both), sum(abs(real - found) for real, found in both)
    equal = sum(real == found for real, found in both)
    return (
        f"{equal} of {len(both)} predictions are equal to the byte. All differences together are {off:,} of {total:,} bytes, "
        f"{off / max(total, 1):.4%}."
    )


def main(arguments: list[str]) -> None:
    """Measure, print and write, as the arguments say."""
    if arguments[:1] == ["--write"]:
        words = arguments[1:]
        measure([row for row in ROWS if not words or any(word in row[0] or word == row[1] for word in words)])
        PAGE.write_text(page(), encoding="utf-8")
    print(page())


if __name__ == "__main__":
    main(sys.argv[1:])
