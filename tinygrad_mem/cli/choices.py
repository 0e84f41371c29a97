"""The choices that depend on the processor: each with its reason, and how to make another.

None of them is made by a measurement while a program runs, so they are the same in each run on a machine; and none changes the
bytes of a step. Choices by shape, such as convolution's algorithm, are rules that were measured before.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..kernels.numpy import conv
from ..kernels.numpy.fast import blas, threads

WIDTHS = {"AVX512_SKX": 512, "AVX2": 256}  # bits of vectors, by the instructions that NumPy needs for them
ASKED = "asked for"


@dataclass(frozen=True)
class MachineChoice:
    """A choice, its reason, and the environment variable, set before Python starts, that makes another."""

    what: str
    chosen: str
    why: str = "NumPy's BLAS is not OpenBLAS"
    another: str = ""


def choices() -> list[MachineChoice]:
    """All choices, as this process has made them."""
    return [_threads(), _vectors(), _products(), _few_rows(), _convolutions()]


def _threads() -> MachineChoice:
    why = ASKED if os.environ.get("TINYGRAD_MEM_THREADS", "").isdecimal() else "cores of this process"
    return MachineChoice("threads of kernels", str(threads.threads()), why, "TINYGRAD_MEM_THREADS=1")


def _vectors() -> MachineChoice:
    dispatched: list[str] = np._core._multiarray_umath.__cpu_dispatch__  # type: ignore[attr-defined]
    wide = [name for name in dispatched if features().get(name) and (name == "X86_V4" or name.startswith("AVX512"))]
    why = ASKED if "NPY_DISABLE_CPU_FEATURES" in os.environ else "the widest of this processor"
    return MachineChoice(
        "NumPy's vectors", f"{vector_bits()} bits", why, f"NPY_DISABLE_CPU_FEATURES='{' '.join(wide)}'" if wide else ""
    )


def _products() -> MachineChoice:
    found, why = blas.kernels(), ASKED if "OPENBLAS_CORETYPE" in os.environ else "OpenBLAS knows the processor"
    if found is None:
        return MachineChoice("BLAS's kernels", "unknown")
    return MachineChoice("BLAS's kernels", found, why, "OPENBLAS_CORETYPE=HASWELL" if vector_bits() > 128 else "")


def _few_rows() -> MachineChoice:
    """For the steps of recurrent layers, by how OpenBLAS's kernels copy their matrices."""
    parts, asked = blas.for_avx512, "OPENBLAS_CORETYPE" in os.environ
    why = ASKED if asked else f"BLAS has {'' if parts else 'no '}AVX-512 kernels"
    another = "OPENBLAS_CORETYPE=HASWELL" if parts else ""
    return MachineChoice("few rows x weight", "in small parts" if parts else "as they are", why, another)


def _convolutions() -> MachineChoice:
    asked = conv.asked_way
    chosen, why = (f"{asked} if possible", ASKED) if asked else ("by shape", "the same on every machine")
    return MachineChoice("convolutions", chosen, why, f"TINYGRAD_MEM_CONV=columns, or {', '.join(list(conv.WAYS)[:-1])}")


# --- what the processor is


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, if the system tells it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor() or platform.machine()


def vector_bits() -> int:
    """Bits of the widest vectors for which NumPy has kernels here."""
    has = features()
    return next((bits for name, bits in WIDTHS.items() if has.get(name)), 128)


def features() -> dict[str, bool]:
    """The instructions of this CPU that NumPy may use, as numpy.show_runtime prints them."""
    return np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]


def libraries() -> Iterator[str]:
    """BLAS, its kernels and its threads, as threadpoolctl knows them."""
    from threadpoolctl import threadpool_info

    for each in threadpool_info():
        if each["user_api"] == "blas":
            kernels = f", {each['architecture']} kernels" if "architecture" in each else ""
            yield f"{each['internal_api']} {each['version']}{kernels}, {each['num_threads']} threads"
