"""Compiles the driver and kernels with g++ into a cache of the user's, which any number of processes may use at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("TINYGRAD_MEM_EMULATED", Path.home() / ".cache" / "tinygrad_mem-emulated"))
CUPY = "14.2.0"
WHEELS = {"cupy-cuda12x": CUPY} | {f"nvidia-cuda-{part}-cu12": "12.9." for part in ("nvrtc", "runtime", "nvcc", "cccl")}
_OLD = 30 * 86_400  # seconds
ASKED = 1  # counts up when nvidia.py asks NVIDIA's compilers another question: answers are kept
DRIVER_FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-Wl,-Bsymbolic"]  # products.cpp uses names of the other parts
KERNEL_FLAGS = [
    *("-std=gnu++17", "-O1", "-w", "-fPIC", "-fno-plt", "-fno-strict-aliasing", "-ffp-contract=off"),
    *("-fvisibility=hidden", "-fno-gnu-unique"),  # or two kernels with equal names would share their variables
    *("-fsanitize=kernel-address", "--param=asan-stack=0", "--param=asan-globals=0"),  # a call before each load and store
    "--param=asan-instrumentation-with-call-threshold=0",
    "-fsanitize=shift-exponent,float-cast-overflow",
]


class CannotAttachError(Exception):
    """Why CuPy cannot be run here, in a sentence."""


def impossible() -> str | None:
    """Why this machine cannot emulate at all; ``None`` where it should be able to."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the emulated CUDA device needs Linux on x86-64"
    if not shutil.which("g++"):
        return "the emulated CUDA device needs g++"
    return None


def check_wheels() -> None:
    """The versions that the driver was written against."""
    for name, version in WHEELS.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "none"
        if not found.startswith(version):
            raise CannotAttachError(
                f"the emulated CUDA device needs {name} {version}, found {found}: pip install -e '.[cuda-emulated]'"
            )


@cache
def site(package: str) -> Path:
    """Where a package is installed; nothing is imported."""
    for path in map(Path, sys.path):
        if (path / package).is_dir():
            return path / package
    raise CannotAttachError(f"the emulated CUDA device finds no package {package!r}")


def _includes() -> list[str]:
    parts = [site("nvidia") / part / "include" for part in ("cuda_runtime", "cuda_nvcc", "cuda_cccl")]
    return [f"-I{path}" for path in (HERE / "driver", site("cupy") / "_core" / "include", *parts)]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """What a program prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise CannotAttachError(f"the emulated CUDA device: {command[0]} failed:\n{done.stderr[:6000]}")
    return done.stdout


def key(*parts: object) -> str:
    """A name for what is made of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@cache
def _versions() -> list[str]:
    return [run("g++", "-dumpfullversion"), sys.version, *(f"{name} {metadata.version(name)}" for name in WHEELS)]


@contextmanager
def _made_once(folder: Path) -> Iterator[Path | None]:
    """A folder to fill, or ``None`` where it exists: it appears under its name when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            os.utime(folder)  # it is in use
            yield None
            return
        _remove_old(folder)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as made:  # of a name that grows old
            yield Path(made)
            shutil.copytree(made, folder.with_suffix(".new"), dirs_exist_ok=True)
            folder.with_suffix(".new").rename(folder)


@contextmanager
def kept(name: str) -> Iterator[dict[str, Any]]:
    """What is remembered under a name, of these versions; what is put into it is written at the end."""
    path = ROOT / f"{name}-{key(_versions(), ASKED)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            os.utime(path)  # it is in use
        else:
            _remove_old(path)
        found = json.loads(path.read_text()) if path.exists() else {}
        before = len(found)
        yield found
        if len(found) > before:
            path.with_suffix(".new").write_text(json.dumps(found))
            path.with_suffix(".new").rename(path)


_ROOMS = ("tinygrad_mem", "tests/emulated", "tests/memory", "tests/nn", "tests/ops", "tests/optim", "tests/sturdy")


def _remove_old(new: Path) -> None:
    """Of the folders and files of the same kind, those that nobody has used for a month."""
    for other in new.parent.glob(f"{new.name.partition('-')[0]}-*"):
        if other.suffix == ".lock" or time.time() - other.stat().st_mtime <= _OLD:
            continue
        if other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
        else:
            other.unlink(missing_ok=True)
        if other.suffix in ("", ".json"):  # of what is whole: a folder that was being filled has the lock of another
            other.with_suffix(".lock").unlink(missing_ok=True)


def offered() -> Path:
    """What ``offered.py`` writes, of the library and the tests as they are."""
    root = HERE.parents[1]
    files = sorted(path for room in _ROOMS for path in (root / room).rglob("*.py"))
    folder = ROOT / f"offered-{key(driver().name, [path.read_text() for path in files])}"
    with _made_once(folder) as made:
        if made:
            run(sys.executable, "-m", "tests.emulated.offered", made / "found.json", cwd=root)
    return folder / "found.json"


def driver() -> Path:
    """The folder of libcuda.so.1 and libcublas.so.12, and of ``refusals.so``: what CuPy calls and nothing here knows."""
    sources = sorted((HERE / "driver").iterdir())
    folder = ROOT / f"driver-{key(_versions(), DRIVER_FLAGS, [path.read_text() for path in sources])}"
    with _made_once(folder) as made:
        if made:
            _build_driver(made)
    return folder


def _build_driver(made: Path) -> None:
    parts = [HERE / "driver" / f"{name}.cpp" for name in ("control", "streams", "memory", "launches")]
    cuda = made / "libcuda.so.1"
    run("g++", *DRIVER_FLAGS, *_includes(), *parts, "-o", cuda, "-Wl,-soname,libcuda.so.1", "-Wl,-z,noexecstack", "-ldl")
    known = set(re.findall(r" T (\w+)", run("nm", "-D", cuda)))
    (made / "runtime.cpp").write_text(_refusals(runtime_functions().keys() - known, "801"))
    run("g++", "-shared", "-fPIC", "-w", made / "runtime.cpp", cuda, "-o", made / "refusals.so", "-Wl,-rpath,$ORIGIN")

    products = HERE / "driver" / "products.cpp"
    known = set(re.findall(r"cublas\w+", run("g++", "-E", "-P", *_includes(), products)))
    asked = set(re.findall(r"\bcublas[A-Z]\w*", run("nm", "-D", *site("cupy_backends").glob("cuda/libs/cublas.*.so"))))
    (made / "cublas.cpp").write_text(_refusals(asked - known, "15"))
    (made / "cublas.map").write_text("libcublas.so.12 { global: cublas*; local: *; };\n")
    names = [f"-Wl,--version-script={made / 'cublas.map'}", "-Wl,-soname,libcublas.so.12", "-Wl,-rpath,$ORIGIN"]
    flags = [*DRIVER_FLAGS, "-O3", "-w", *_includes()]
    run("g++", *flags, products, made / "cublas.cpp", cuda, "-o", made / "libcublas.so.12", *names)


def _refusals(names: set[str], answer: str) -> str:
    """Functions that note that a program called them, and fail."""
    lines = [f'EXPORT int {name}() {{ emu_not_emulated("{name}"); return {answer}; }}' for name in sorted(names)]
    head = '#define EXPORT extern "C" __attribute__((visibility("default")))\nextern "C" int emu_not_emulated(const char*);'
    return "\n".join([head, *lines]) + "\n"


@cache
def runtime_library() -> Path:
    """CuPy's module over the CUDA runtime, into which NVIDIA's is linked."""
    return next(site("cupy_backends").glob("cuda/api/runtime.*.so"))


@cache
def runtime_functions() -> dict[str, int]:
    """Each function of the CUDA runtime that is linked into CuPy, and where in the file it is."""
    lines = [line.split() for line in run("nm", runtime_library()).splitlines()]
    found = {part[2]: int(part[0], 16) for part in lines if len(part) == 3 and part[1] in "tT"}
    return {
        name: at for name, at in found.items() if re.fullmatch(r"cuda[A-Z]\w*", name) and not name.endswith(("_ptsz", "_ptds"))
    }


@cache
def kernels() -> Path:
    """The folder of compiled kernels; ``device.h`` lies there in the compiler's own form, so that it is read in a moment."""
    texts = [(HERE / name).read_text() for name in ("device.h", "driver/abi.h", "sources.py")]
    folder = ROOT / f"kernels-{key(_versions(), KERNEL_FLAGS, texts)}"
    with _made_once(folder) as made:
        if made:
            shutil.copy(HERE / "device.h", made)
            run("g++", *KERNEL_FLAGS, *_includes(), "-x", "c++-header", made / "device.h", "-o", made / "device.h.gch")
    return folder


def kernel(source: str, defines: list[str]) -> Path:
    """The library of one source, compiled if no process has done so before."""
    out = kernels() / f"{key(source, defines)}.so"
    if not out.exists():
        with tempfile.TemporaryDirectory(dir=kernels()) as work:
            (Path(work) / "kernel.cpp").write_text(source)
            given = [*KERNEL_FLAGS, *defines, f"-I{kernels()}", *_includes(), "-include", "device.h"]
            linked = ("-shared", "-nostdlib", "-o", Path(work) / "kernel.so")  # Python has loaded what a kernel may call
            run("g++", *given, Path(work) / "kernel.cpp", *linked, "-lgcc")
            (Path(work) / "kernel.so").rename(out)
    return out
