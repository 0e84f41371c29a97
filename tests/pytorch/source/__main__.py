"""Compile PyTorch's caching allocator without a GPU, and compare our model with it on random programs.

``python -m tests.pytorch.source PYTORCH`` takes a checkout of PyTorch's source (2.6.0 was tried), compiles ``c10`` with g++ and
a driver that only counts (``driver.cpp``; a minute of processor time), runs random programs on both, and stops at the first
that differs in an address or in a counter. ``--write N`` writes N programs and their answers as the recording that
``tests/pytorch/test_source.py`` replays. The headers are those of the wheels ``nvidia-cuda-runtime-cu12``,
``nvidia-cuda-nvcc-cu12`` and ``nvidia-nvml-dev-cu12``, and of the installed PyTorch.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .programs import RECORDING, Answer, Call, Program, differs

HERE = Path(__file__).parent
PACKAGES = Path(sysconfig.get_path("purelib"))
HEADERS = [PACKAGES / "nvidia" / name / "include" for name in ("cuda_runtime", "cuda_nvcc", "nvml_dev")]


def compiled(source: Path, build: Path) -> Path:
    """The program of ``calls.cpp``, linked with c10 and with the driver that counts."""
    empty = {"c10/macros/cmake_macros.h": "", "c10/cuda/impl/cuda_cmake_macros.h": "#pragma once\n"}
    for name, text in empty.items():
        (build / "made" / name).parent.mkdir(parents=True, exist_ok=True)
        (build / "made" / name).write_text(text)
    for name in ("fmt", "cpuinfo.h"):
        if not (build / "made" / name).exists():
            (build / "made" / name).symlink_to(PACKAGES / "torch" / "include" / name)
    includes = [f"-I{path}" for path in (build / "made", source, *HEADERS)]
    flags = ["-std=c++17", "-O1", "-w", "-DPYTORCH_C10_DRIVER_API_SUPPORTED", "-DFMT_HEADER_ONLY=1", *includes]
    files = [HERE / "calls.cpp"]
    for folder in ("", "core", "core/impl", "mobile", "util", "cuda", "cuda/impl"):
        files += [path for path in (source / "c10" / folder).glob("*.cpp") if "Test" not in path.name]

    def one(path: Path) -> Path:
        target = build / (str(path).replace("/", "_") + ".o")
        if not target.exists():
            subprocess.run(["g++", *flags, "-c", path, "-o", target], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(one, files))
    driver, program = build / "libcuda.so.1", build / "calls"  # the name that c10 looks for
    shared = ["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1"]
    nothing = build / "nothing.o"
    subprocess.run(["gcc", "-fPIC", "-w", "-c", HERE / "nothing.c", "-o", nothing], check=True)
    subprocess.run(["g++", *shared, *includes, HERE / "driver.cpp", nothing, "-o", driver], check=True)
    subprocess.run(["g++", *objects, driver, f"-Wl,-rpath,{build}", "-ldl", "-lpthread", "-o", program], check=True)
    return program


class Theirs:
    """PyTorch's allocator in a process of its own."""

    def __init__(self, program: Path, settings: str, capacity: int, share: float) -> None:
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
        command = [program, str(capacity), str(share)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def __call__(self, call: Call) -> Answer:
        """The result of a call, and the counters after it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, call)) + "\n")
        self._process.stdin.flush()
        result, *numbers = self._process.stdout.readline().split(" ")
        return result if result == "oom" else int(result or 0), [int(number) for number in numbers]

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--build", type=Path, default=Path("/tmp/c10"))
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--write", type=int, default=0)
    given = parser.parse_args()
    program = compiled(given.source.resolve(), given.build.resolve())
    written = []
    for seed in range(given.write or given.programs):
        found = Program.random(random.Random(seed))
        theirs = Theirs(program, found.settings, found.capacity, found.share)
        found.fill(theirs)
        theirs.close()
        difference = differs(found)
        if difference:
            raise SystemExit(f"program {seed} under {found.settings!r}, {found.capacity} bytes: {difference}")
        written.append(found.as_json())
    if given.write:
        with gzip.GzipFile(RECORDING, "wb", mtime=0) as file:
            file.write(json.dumps(written).encode())
    print(f"{len(written)} programs: all addresses and counters are PyTorch's")


if __name__ == "__main__":
    main()
