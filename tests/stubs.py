"""The stubs of the modules that ``@public`` fills at run time: what type checkers and editors read in their place.

``python -m tests.stubs`` says which are out of date, ``python -m tests.stubs --write`` writes them; a test holds them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tinygrad_mem
from tinygrad_mem.functional.door import PUBLIC

ROOT = Path(tinygrad_mem.__file__).parent
HEAD = '"""Written by ``python -m tests.stubs --write``: do not edit."""\n\n# ruff: noqa\n'
PLACES = {"torch": "__init__", "nn.functional": "nn/functional", "linalg": "linalg", "special": "special"}
COMPARISON = "    def {}(self, other: object) -> Any: ..."  # object's own gives a bool
FAMILIES = f"{tinygrad_mem.functional.__name__}."


def written() -> dict[Path, str]:
    """Each stub, and what is to stand in it."""
    stubs = {ROOT / f"{file}.pyi": place_stub(place, ROOT / f"{file}.py") for place, file in PLACES.items()}
    return {**stubs, ROOT / "functional" / "__init__.pyi": methods_stub()}


def place_stub(place: str, source: Path) -> str:
    """The imports of ``source`` as they stand there, and the functions of ``place``."""
    module = ast.parse(source.read_text(encoding="utf-8"))
    lines = [HEAD, *own_imports(module)]
    dots = "." * len(source.relative_to(ROOT).parts)
    for name, function in sorted(PUBLIC[place].items(), key=lambda item: (item[1].__module__, item[0])):
        family = function.__module__.removeprefix(FAMILIES)
        lines.append(f"from {dots}functional.{family} import {function.__name__} as {name}")
    return "\n".join([*lines, *constants(module), ""])


def own_imports(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            source = "." * node.level + (node.module or "")
            for name in node.names:
                if name.name == "*":
                    yield f"from {source} import *"
                elif name.asname is None:  # as _NAME: not for users
                    yield f"from {source} import {name.name} as {name.name}"


def constants(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            yield f"\n{ast.unparse(node.targets[0])}: {type(node.value.value).__name__}"


def methods_stub() -> str:
    """The class ``Methods``, which ``Tensor`` inherits for type checkers: each method is a public function."""
    methods = {name: family for name, value in vars(tinygrad_mem.Tensor).items() if (family := family_of(value))}
    imports = [f"from . import {family} as _{family}" for family in sorted({family for family, _ in methods.values()})]
    lines = [f"    {name} = _{family}.{function}" for name, (family, function) in sorted(methods.items())]
    lines = [COMPARISON.format(line.split()[0]) if line.split()[0] in ("__eq__", "__ne__") else line for line in lines]
    backward = "from typing import Any\n\nfrom ..autograd.backward import BackwardMethod as _BackwardMethod"
    return "\n".join([HEAD, backward, *imports, "", "class Methods(_BackwardMethod):", *lines, ""])


def family_of(value: Any) -> tuple[str, str] | None:
    """The file of ``functional`` and the name there of a method or property; ``None`` of what comes from elsewhere."""
    function: Callable | None = value.fget if isinstance(value, property) else value if callable(value) else None
    home = getattr(function, "__module__", None) or ""
    return (home.removeprefix(FAMILIES), function.__name__) if function and home.startswith(FAMILIES) else None


def outdated() -> list[Path]:
    """Stubs that say something else than the decorators."""
    return [path for path, text in written().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


if __name__ == "__main__":
    for stub in outdated():
        print(stub.relative_to(ROOT.parent))
        if "--write" in sys.argv:
            stub.write_text(written()[stub], encoding="utf-8")
