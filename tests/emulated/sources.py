"""CUDA source as g++ reads it: what ``device.h`` cannot say with macros."""

from __future__ import annotations

import re

_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\('
)
_WAITS = re.compile(r"__syncthreads|__shfl|__ballot|__any_sync|__all_sync|__syncwarp")
_ORDERED = re.compile(r"__shared__|atomic[A-Z]")
_DYNAMIC = re.compile(r"extern\s+__shared__\s+([\w\s]+?)\s+(\w+)\s*\[\s*\]\s*;")
_SHARED = re.compile(r"__shared__\s+([^;]+);")
_FIRST = re.compile(r"(.+?)\s*\b(\w+)\s*((?:\[[^\]]*\]\s*)*)$", re.DOTALL)
_NEXT = re.compile(r"()\s*(\w+)\s*((?:\[[^\]]*\]\s*)*)$")
_COMMAS = re.compile(r",(?![^\[<(]*[\]>)])")


def _shared(found: re.Match[str]) -> str:
    """Each array of shared memory is asked of the driver, which puts forbidden bytes around it. The lines stay as many."""
    first, *others = _COMMAS.split(found[1])
    parts = [_FIRST.fullmatch(first.strip()), *map(_NEXT.fullmatch, others)]
    assert None not in parts, f"no declaration of shared memory that the emulator understands: {found[0]}"
    kind, text = parts[0][1], ""  # pyright: ignore[reportOptionalSubscript]
    for _, name, shape in (part.groups() for part in parts if part):
        own = f"emu_type_of_{name}"
        text += f"typedef {kind} {own}{shape}; static char emu_key_of_{name}; "
        text += f"auto& {name} = *({own}*)emu_shared_array(&emu_key_of_{name}, sizeof({own})); "
    return text


def _bodies(source: str) -> dict[str, str]:
    """What stands between the braces of each kernel; under ``""`` what stands in none, which any of them may use."""
    bodies, outside, end = {}, [], 0
    for found in _KERNEL.finditer(source):
        start = source.index("{", found.end())
        outside.append(source[end:start])
        end, depth = start, 0
        while not (depth == 0 and end > start):
            depth += {"{": 1, "}": -1}.get(source[end], 0)
            end += 1
        bodies[found[1]] = source[start:end]
    return bodies | {"": "".join([*outside, source[end:]])}


def for_host(source: str) -> str:
    """The source, and an entry for each of its kernels: what the driver needs in order to call it.

    A kernel whose threads wait for one another runs on fibers, which are slow.
    """
    text = _DYNAMIC.sub(r"\1* \2 = (\1*)emu_dynamic_shared();", source)
    text = _SHARED.sub(_shared, text)
    bodies = _bodies(source)
    common, entries = bodies.pop(""), []
    for name, body in bodies.items():
        waits, ordered = (any(map(pattern.search, (common, body))) for pattern in (_WAITS, _ORDERED))
        entries.append(f"EMU_KERNEL({name}, {int(waits)}, {int(ordered)})")
    return "\n".join([text, *entries, ""])
