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
_COMMENT = re.compile(r"//.*|/\*[\s\S]*?\*/")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:.*\\\n)*.*", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\n)*.*", re.MULTILINE)
_CLASS = re.compile(r"\b(?:struct|class|union)\s+(\w+)[^()>]*$")
_FUNCTION = re.compile(r"\b(?!__|operator)(\w+)\s*\(")
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


def _parts(source: str) -> dict[str, list[str]]:
    """The texts of each function, class and macro, by name; under ``""`` what is in none of them, which all may use."""
    parts: dict[str, list[str]] = {"": []}
    source = _COMMENT.sub("", source)
    for macro in _MACRO.finditer(source):
        parts.setdefault(macro[1], []).append(macro[0])
    source = _DIRECTIVE.sub("", source)
    end = start = depth = 0
    for brace in re.finditer("[{}]", source):
        if brace[0] == "{" and depth == 0:
            start = brace.start()
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            before, _, head = source[end:start].rpartition(";")
            name = _CLASS.search(head) or _FUNCTION.search(head)
            parts.setdefault(name[1] if name else "", []).append(head + source[start : brace.end()])
            parts[""].append(before)
            end = brace.end()
    parts[""].append(source[end:])
    return parts


def _reached(name: str, parts: dict[str, list[str]], kernels: set[str]) -> str:
    """The text of a kernel and of whatever it names, other kernels apart: it cannot call them."""
    names, found = ["", name], {"", *kernels}
    for each in names:
        for word in re.findall(r"\w+", " ".join(parts[each])) if each else ():
            if word in parts and word not in found:
                found.add(word)
                names.append(word)
    return "\n".join(text for each in names for text in parts[each])


def for_host(source: str) -> str:
    """The source, and an entry for each of its kernels: what the driver needs in order to call it.

    A kernel whose threads wait for one another runs on fibers, which are slow.
    """
    text = _DYNAMIC.sub(r"\1* \2 = (\1*)emu_dynamic_shared();", source)
    text = _SHARED.sub(_shared, text)
    parts, kernels, entries = _parts(source), _KERNEL.findall(source), []
    for name in kernels:
        reached = _reached(name, parts, {*kernels})
        waits, ordered = (int(bool(pattern.search(reached))) for pattern in (_WAITS, _ORDERED))
        entries.append(f"EMU_KERNEL({name}, {waits}, {ordered})")
    return "\n".join([text, *entries, ""])
