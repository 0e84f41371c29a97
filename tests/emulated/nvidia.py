"""What NVIDIA's own compilers say of kernels: whether each GPU takes them, and what each kernel needs there.

One source costs NVRTC 60 ms, of which nearly all is spent on headers: so a hundred are compiled at once, each in a namespace.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from . import build

ARCHITECTURES = (70, 80, 90, 100)  # V100, A100, H100, B200
_TOGETHER = 100  # sources
_SYNTAX = "-fdevice-syntax-only"


class Source(NamedTuple):
    """What CuPy gives to the compiler."""

    text: str
    defines: tuple[str, ...]


class Needs(NamedTuple):
    """What a kernel needs: registers a thread; bytes of static shared memory, of stack, and of spilled registers."""

    registers: int
    shared: int
    stack: int
    spilled: int


class RefusedError(Exception):
    """What the compiler says of what it does not take."""


@cache
def _library() -> Any:
    nvrtc = ctypes.CDLL(str(next(build.site("nvidia").glob("cuda_nvrtc/lib/libnvrtc.so.*"))))
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def supported() -> list[int]:
    """The architectures that this NVRTC knows."""
    count = ctypes.c_int()
    _library().nvrtcGetNumSupportedArchs(ctypes.byref(count))
    found = (ctypes.c_int * count.value)()
    _library().nvrtcGetSupportedArchs(found)
    return list(found)


def _includes() -> list[str]:
    parts = [build.site("nvidia") / part / "include" for part in ("cuda_runtime", "cuda_nvcc", "cuda_cccl")]
    return [f"-I{path}" for path in (build.site("cupy") / "_core" / "include", *parts)]


def compiled(text: str, defines: tuple[str, ...], architecture: int) -> bytes:
    """The text in the assembler's language.

    Raises:
        RefusedError: with what NVRTC says of it.
    """
    nvrtc, program, size = _library(), ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"-arch=compute_{architecture}", "-std=c++17", "-ftz=true", "--device-as-default-execution-space", "-w"]
    given = [option.encode() for option in (*options, *defines, *_includes())]
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given)):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RefusedError(log.value.decode(errors="replace"))
        nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetPTX(program, out)
        return out.value
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def together(sources: list[Source]) -> str:
    """One text of many: each in a namespace, the headers of all before the first. Errors name ``source_5(line)``."""
    headers: dict[str, None] = {}
    bodies = []
    for number, source in enumerate(sources):
        lines, macros = [], []
        for line in source.text.splitlines():
            if re.match(r"\s*#\s*include\b", line):
                headers[line.strip()] = None
                line = ""
            elif found := re.match(r"\s*#\s*define\s+(\w+)", line):
                macros.append(f"#undef {found[1]}")
            lines.append(line)
        own = re.sub(r'extern\s+"C"\s+__global__', "__global__", "\n".join(lines))
        bodies.append("\n".join([f"namespace source_{number} {{", f'#line 1 "source_{number}"', own, "}", *macros]))
    return "\n".join([*headers, *bodies, ""])


_ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_\d+a?'(.*?)(?=Compiling entry function|\Z)", re.DOTALL)
_SPILLED = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def needs(assembly: bytes, architecture: int) -> dict[str, Needs]:
    """What each kernel of it needs, by its name in the assembler's language: the report of ``ptxas -v``."""
    if b".entry" not in assembly:
        return {}
    command = [build.site("nvidia") / "cuda_nvcc" / "bin" / "ptxas", "-v", f"-arch=sm_{architecture}", "-o", "/dev/null", "-"]
    done = subprocess.run(list(map(str, command)), input=assembly, capture_output=True)
    report = done.stderr.decode()
    if done.returncode:
        raise RefusedError(report)
    found = {}
    for name, text in _ENTRY.findall(report):
        stack, stores, loads = map(int, _SPILLED.search(text).groups())  # pyright: ignore[reportOptionalMemberAccess]
        registers, shared = _USED.search(text).groups()  # pyright: ignore[reportOptionalMemberAccess]
        found[name] = Needs(int(registers), int(shared or 0), stack, max(stores, loads))
    return found


def reports(sources: list[Source], architecture: int, *, report: bool, syntax: bool = False) -> list[dict[str, Needs] | str]:
    """Of each source what its kernels need, by name (nothing without ``report``); or what NVRTC says where it refuses it.

    ``syntax``: only what the compiler's front end finds, which is a sixth of the work.
    """
    found: list[dict[str, Needs] | str] = [{} for _ in sources]
    for first in range(0, len(sources), _TOGETHER):
        left = list(range(first, min(first + _TOGETHER, len(sources))))
        while left:
            try:
                assembly = compiled(together([sources[i] for i in left]), (_SYNTAX,) * syntax, architecture)
            except RefusedError as error:
                said = dict(re.findall(r"source_(\d+)\(\d+\): error: (.*)", str(error))[::-1])
                if not said:
                    raise
                for number, text in said.items():
                    found[left[int(number)]] = text
                left = [i for at, i in enumerate(left) if str(at) not in said]
                continue
            for name, each in (needs(assembly, architecture) if report else {}).items():
                number, kernel = _parts(name)
                found[left[number]][kernel] = each  # type: ignore[index]
            break
    return found


def known_reports(
    sources: list[Source], architecture: int, *, report: bool, syntax: bool = False
) -> list[dict[str, Needs] | str]:
    """:func:`reports`, of which each source is asked for once: answers are kept on disk."""
    with build.kept(f"reports-{architecture}-{int(report)}{int(syntax)}") as answers:
        names = [*map(name_of, sources)]
        new = {name: source for name, source in zip(names, sources, strict=True) if name not in answers}
        answers |= dict(zip(new, reports([*new.values()], architecture, report=report, syntax=syntax), strict=True))
    found = [answers[name] for name in names]
    return [each if isinstance(each, str) else {name: Needs(*some) for name, some in each.items()} for each in found]


def name_of(source: Source) -> str:
    """One for all sources that differ in dimensions only."""
    return build.key(_DIMENSIONS.sub(r"\1>", source.text), source.defines)


_DIMENSIONS = re.compile(r"(CArray<[^<>]*?|CIndexer<)(\d+)((?:, *\d+)*)>")


def distinct(sources: Iterable[Source]) -> list[Source]:
    """Of sources that differ in dimensions only, the one with most."""
    found: dict[str, tuple[int, Source]] = {}
    for source in sources:
        size = sum(int(count) for _, count, _ in _DIMENSIONS.findall(source.text))
        found[name_of(source)] = max(found.get(name_of(source), (-1, source)), (size, source))
    return [source for _, source in found.values()]


def examined(
    sources: Iterable[Source], complete: Iterable[int] = ARCHITECTURES
) -> tuple[dict[Source, str], dict[int, dict[str, Needs]]]:
    """(what a compiler says of the sources that it refuses), (what each kernel needs at most on each of those architectures for
    which the sources are compiled completely: for the others the compiler's front end reads them).
    """
    some = distinct(sources)
    refused: dict[Source, str] = {}
    most: dict[int, dict[str, Needs]] = {}
    for architecture in ARCHITECTURES:
        whole = architecture in complete
        of_all = most.setdefault(architecture, {}) if whole else {}
        for source, answer in zip(some, known_reports(some, architecture, report=whole, syntax=not whole), strict=True):
            if isinstance(answer, str):
                refused[source] = f"sm_{architecture}: {answer}"
                continue
            for name, needs_ in answer.items():
                of_all[name] = Needs(*map(max, of_all.get(name, needs_), needs_))
    return refused, most


def _parts(name: str) -> tuple[int, str]:
    """The number of the source and the kernel's name, of a name in the assembler's language: ``_ZN9source_124moveEPfx``."""
    digits = re.match(r"_ZN(\d+)source_", name)[1]  # pyright: ignore[reportOptionalSubscript]
    start = 3 + len(digits)
    space, rest = name[start : start + int(digits)], name[start + int(digits) :]
    length = re.match(r"\d+", rest)[0]  # pyright: ignore[reportOptionalSubscript]
    return int(space.removeprefix("source_")), rest[len(length) :][: int(length)]
