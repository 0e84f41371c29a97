"""``python -m tinygrad_mem doctor``: what this machine has, what is missing, and checks of its devices."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from packaging.requirements import Requirement
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

import tinygrad_mem as tm

from ..devices import cuda_problem
from ..errors import install
from ..memory.sizes import bytes_text
from . import checks, choices
from .checks import Check
from .screen import screen, with_columns

PACKAGE = "tinygrad_mem"
CORE_TYPES = {
    "HASWELL": ("AVX2", "FMA3"),
    "ZEN": ("AVX2", "FMA3"),
    "SKYLAKEX": ("AVX512F", "AVX512_SKX"),
}  # the instructions that each needs
ROUNDS = 2  # of all kernels in turn; the best counts, because other programs slow some down
WORTH = 1.1  # a smaller speedup over OpenBLAS's own choice is noise
VARIABLES = {
    "TINYGRAD_MEM_THREADS": "threads of the CPU's kernels",
    "TINYGRAD_MEM_CONV": "algorithm of convolutions",
    "TINYGRAD_MEM_CACHE": "folder of the measurements",
    "OPENBLAS_CORETYPE": "OpenBLAS's kernels",
}
PRODUCT = """
import time
import numpy as np
a = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
out, times = np.empty_like(a), []
for _ in range(8):
    began = time.perf_counter()
    np.matmul(a, a, out=out)
    times.append(time.perf_counter() - began)
print(2 * 1024**3 / min(times) / 1e9)
"""


@dataclass(frozen=True)
class Need:
    """A requirement of an extra; ``found`` is the installed version, ``None`` if it is missing."""

    extra: str
    asked: Requirement
    found: str | None

    @property
    def wanted(self) -> str:
        """The library and its versions, in pip's form."""
        return f"{self.asked.name}{self.asked.specifier}"

    @property
    def problem(self) -> str:
        """The command that solves the problem; empty if there is none."""
        if self.found is None:
            return f"pip install '{self.wanted}'"
        if not self.asked.specifier.contains(self.found, prereleases=True):
            return f"pip install -U '{self.wanted}'"
        return ""


def run(*, as_json: bool = False) -> int:
    """Print what was found and what is wrong. Returns 1 if an installed library is too old or a check failed, else 0."""
    console, errors, found = screen(quiet=as_json), Console(stderr=True), needs()
    console.print(_table_of("this machine", ("what", "found"), machine().items()))
    made = choices.choices()
    console.print(_table_of("choices", ("what", "chosen", "why"), ((each.what, each.chosen, each.why) for each in made)))
    _print_lines(console, *(f"to change {each.what}: {each.another}" for each in made if each.another), "")
    with errors.status("matrix products with each of OpenBLAS's kernels"):
        rates = blas_rates()
    for shown in (_blas(rates), advice(rates), _devices()):
        console.print(shown)
    if (problem := cuda_problem()) is not None:
        _print_lines(console, f"cuda: {problem}, so the cpu alone is checked.\n")
    libraries = ((need.extra, need.wanted, need.found or "missing") for need in found)
    console.print(_table_of("libraries of the extras", ("extra", "needs", "found"), libraries))
    _print_lines(console, *(f"{need.extra}: {need.problem}" for need in found if need.problem), "")
    if not found:
        _print_lines(console, "This checkout is not installed, so its extras are not known: pip install -e .\n")
    checked: dict[str, list[Check]] = {}
    for name in (name for name in _names() if name != "meta"):
        with errors.status(f"checks of {name}; on a GPU its kernels are compiled first"):
            checked[name] = list(checks.run(tm.device(name)))
        _show_checks(name, checked[name], console)
    if as_json:
        print(json.dumps(_data(found, rates, problem, checked), indent=2))
    wrong = any(check.problems for each in checked.values() for check in each)
    return int(wrong or any(need.found and need.problem for need in found))


def _data(found: list[Need], rates: dict[str, float], problem: str | None, checked: dict[str, list[Check]]) -> dict[str, Any]:
    """All that is printed, as JSON."""
    return {
        "machine": machine(),
        "choices": [asdict(choice) for choice in choices.choices()],
        "gflops": {name or "OpenBLAS's choice": rate for name, rate in rates.items()},
        "advice": advice(rates).strip(),
        "cuda": problem,
        "libraries": [{"extra": n.extra, "needs": n.wanted, "found": n.found, "to do": n.problem or None} for n in found],
        "checks": {name: [asdict(check) for check in each] for name, each in checked.items()},
    }


def _names() -> list[str]:
    """The names of the devices of this machine."""
    return ["cpu", "meta", *(f"cuda:{i}" for i in range(tm.cuda.device_count()))]


def _show_checks(name: str, found: list[Check], console: Console) -> None:
    rows = ((c.name, f"{c.tried} {c.what}", f"{len(c.problems)}", f"{c.seconds:.1f}") for c in found)
    console.print(_table_of(f"checks of {name}", ("what", "tried", "wrong", "seconds"), rows))
    problems = [problem for check in found for problem in check.problems]
    _print_lines(console, *problems)
    wrong = f"{len(problems)} wrong on {name}: please report it, with all that is printed here."
    console.print(f"{wrong if problems else 'Nothing is wrong.'}\n", highlight=False, style="bold")


# --- what is asked --------------------------------------------------------------------------------------------------------


def needs() -> list[Need]:
    """The requirements of the extras: each library once, in the smallest extra that needs it. None if nothing is installed."""
    try:
        metadata = importlib.metadata.metadata(PACKAGE)
    except importlib.metadata.PackageNotFoundError:  # a checkout that Python finds by its path
        return []
    asked = [Requirement(line) for line in importlib.metadata.requires(PACKAGE) or []]
    extras: dict[str, list[Requirement]] = {}
    for name in metadata.get_all("Provides-Extra") or []:
        extras[name] = [each for each in asked if each.marker and each.marker.evaluate({"extra": name})]
    rows: dict[str, Need] = {}
    for name in sorted(extras, key=lambda name: len(extras[name])):
        for each in extras[name]:
            if each.name.replace("-", "_") != PACKAGE:
                rows.setdefault(each.name, Need(name, each, _version(each.name)))
    return sorted(rows.values(), key=lambda need: need.extra)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def can_run(core_type: str) -> bool:
    """True if this CPU has the instructions that these OpenBLAS kernels need; without them the process would crash."""
    return all(choices.features().get(name, False) for name in CORE_TYPES[core_type])


def blas_rates() -> dict[str, float]:
    """GFLOP/s of a float32 product of 1024 x 1024 matrices, with OpenBLAS's choice of kernels and with each that the CPU can
    run.

    Each is measured in its own process, because OpenBLAS chooses when NumPy is imported. Empty if that fails.
    """
    rates: dict[str, float] = {}
    for name in ["", *filter(can_run, CORE_TYPES)] * ROUNDS:
        chosen = {"OPENBLAS_CORETYPE": name} if name else {}
        done = subprocess.run([sys.executable, "-c", PRODUCT], env={**os.environ, **chosen}, capture_output=True, text=True)
        if done.returncode == 0:
            rates[name] = max(rates.get(name, 0.0), float(done.stdout))
    return rates


def advice(rates: dict[str, float]) -> str:
    """The recommended kernels, if any are faster than OpenBLAS's choice."""
    best = max(rates, key=lambda name: rates[name], default="")
    if best and "" in rates and rates[best] > WORTH * rates[""]:
        return f"OPENBLAS_CORETYPE={best}, set before Python starts, is {rates[best] / rates['']:.2f} times as fast.\n"
    return "No other kernels are clearly faster than OpenBLAS's choice.\n"


# --- what is shown --------------------------------------------------------------------------------------------------------


def _table_of(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Group:
    """A title and a table below it, as one group to print."""
    table = with_columns(Table(), *columns)
    for row in rows:
        table.add_row(*map(Text, row))
    return Group(Text(title, "bold"), table)


def _print_lines(console: Console, *lines: str) -> None:
    """Print lines without wrapping, so that they can be copied into reports and shells."""
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def machine() -> dict[str, str]:
    """The facts that a bug report needs: versions, cores, settings, GPUs."""
    rows = {
        PACKAGE: tm.__version__,
        "Python": f"{platform.python_version()}, {sys.executable}",
        "NumPy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "processor": choices.processor(),
    }
    rows |= {name: f"{os.environ[name] or '(empty)'}: {what}" for name, what in VARIABLES.items() if name in os.environ}
    return rows | dict(_gpus())


def _gpus() -> Iterator[tuple[str, str]]:
    """The facts that a bug report about a GPU needs."""
    if not tm.cuda.is_available():
        return
    import cupy

    runtime = cupy.cuda.runtime
    versions = {"driver": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion()}
    yield "CuPy", cupy.__version__
    yield "CUDA", ", ".join(f"{name} {number // 1000}.{number % 1000 // 10}" for name, number in versions.items())
    for i in range(tm.cuda.device_count()):
        gpu = tm.cuda.get_device_properties(i)
        yield f"cuda:{i}", f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}, {bytes_text(gpu.total_memory)}"


def _blas(rates: dict[str, float]) -> Group:
    try:
        library = "; ".join(choices.libraries()) or "a BLAS that threadpoolctl does not know"
    except ImportError:
        library = f"unknown BLAS; threadpoolctl can name it: {install('threadpoolctl')}"
    rows = ((f"OPENBLAS_CORETYPE={name}" if name else "OpenBLAS's choice", f"{rate:,.0f}") for name, rate in rates.items())
    return _table_of(f"float32 products of 1024 x 1024 matrices\n{library}", ("kernels", "GFLOP/s"), rows)


def _devices() -> Group:
    rows = []
    for name in _names():
        device = tm.device(name)
        pool, free = device.pool, device.free_memory()
        state = "allocates nothing" if name == "meta" else f"ready, {bytes_text(free)} free" if free else "ready"
        limit = bytes_text(pool.get_limit()) if pool.get_limit() else "none"
        rows.append((name, state, bytes_text(pool.used_bytes()), bytes_text(pool.total_bytes()), limit))
    return _table_of("devices", ("device", "state", "in use", "reserved", "limit"), rows)
