"""The user's files: loads them, and finds out whether they are written for this library or for PyTorch."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ArgumentError
from ..interrupts import context

_TORCH = {
    "torch", "torchvision", "torchaudio", "transformers", "peft", "accelerate", "timm", "diffusers", "lightning",
    "pytorch_lightning",
}  # fmt: skip
HUGGING_FACE = "hf:"
"""Begins the name of a configuration of Hugging Face's."""


def imports_of(module: str) -> list[tuple[str, str]] | None:
    """(module, attribute) of each import of a module or a file, also through its neighbours in the same folder.

    Nothing is run to find out. The attribute is ``""`` for ``import module``. ``None``: there is no source.
    """
    if module.endswith(".py"):
        return list(_imports(_file(module).resolve(), set()))
    with _find_module(module):
        spec = importlib.util.find_spec(module)
    if spec is None:
        raise ArgumentError(f"{module}: No module named {module!r}")
    return list(_imports(Path(spec.origin), set())) if spec.origin and spec.origin.endswith(".py") else None


def _imports(path: Path, seen: set[Path]) -> Iterator[tuple[str, str]]:
    """The imports of a file that is not in ``seen``; in place of a neighbour, those of the neighbour."""
    if path in seen or not path.is_file():
        return
    seen.add(path)
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return  # the error is shown when the file is loaded
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            module = (node.module if isinstance(node, ast.ImportFrom) else None) or alias.name
            beside = path.parent.joinpath(*module.split("."))
            neighbours = [each for each in (beside.with_suffix(".py"), beside / "__init__.py") if each.is_file()]
            for each in neighbours:
                yield from _imports(each, seen)
            if not neighbours and not (isinstance(node, ast.ImportFrom) and node.level):
                yield module, alias.name if isinstance(node, ast.ImportFrom) else ""


def import_now(imports: list[tuple[str, str]]) -> None:
    """Import libraries, so that none is imported within a prediction. A missing one is reported when it is used."""
    for module, attribute in imports:
        with suppress(Exception):
            getattr(importlib.import_module(module), attribute or "__name__")


def is_torch(network: str) -> bool:
    """True if the name is of a program of PyTorch's: a configuration of Hugging Face's, or in a file that imports PyTorch.

    A file that imports this library too is loaded, and what has the name is looked at.
    """
    if network.startswith(HUGGING_FACE):
        return True
    module, _, name = network.rpartition(":")
    libraries = {name.partition(".")[0] for name, _ in (imports_of(module) or [] if module else [])}
    if not libraries & _TORCH:
        return False
    if "tinygrad_mem" not in libraries:
        return True
    found = load(module, name)
    torch: Any = sys.modules.get("torch")
    return torch is not None and (issubclass(found, torch.nn.Module) if isinstance(found, type) else True)


@context
def _beside(folder: str) -> Iterator[None]:
    """Let a file import its neighbours."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@context
def _find_module(module: str) -> Iterator[None]:
    """Search in the working directory, too, and refuse a module that is not found."""
    with _beside(""):
        try:
            yield
        except ModuleNotFoundError as error:
            raise ArgumentError(f"{module}: {error}") from None


def _file(name: str) -> Path:
    if not Path(name).is_file():
        raise ArgumentError(f"there is no file {name}")
    return Path(name)


def load(module: str, name: str) -> Any:
    """The class or function of this name in the user's module or file."""
    if module.endswith(".py"):
        loaded = _run(_file(module))
    else:
        with _find_module(module):
            loaded = importlib.import_module(module)
    if not hasattr(loaded, name):
        mine = {key: each for key, each in vars(loaded).items() if getattr(each, "__module__", "") == loaded.__name__}
        own = [key for key, each in mine.items() if callable(each) and not key.startswith("_")]
        said = f"; it defines {', '.join(own)}" if own else ""
        raise ArgumentError(f"{module} has no {name!r}{said}")
    found = getattr(loaded, name)
    if not callable(found) or (hasattr(found, "forward") and not isinstance(found, type)):
        raise ArgumentError(f"{module}:{name} is an object of class {type(found).__name__}: name a class or a function")
    return found


def _run(path: Path) -> ModuleType:
    """The module of a file. Its dataclasses look for it under its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, loaded)
    with _beside(str(path.parent.resolve())):
        try:
            spec.loader.exec_module(loaded)
        except BaseException:
            if sys.modules.get(path.stem) is loaded:
                del sys.modules[path.stem]
            raise
    return loaded


@context
def forgotten(module: str) -> Iterator[None]:
    """Afterwards, remove the user's own modules that were loaded within: they hold what was made in a prediction."""
    folder = Path(module).parent.resolve() if module.endswith(".py") else Path.cwd()
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            file = str(getattr(sys.modules[name], "__file__", None) or "")
            if file and Path(file).resolve().is_relative_to(folder) and "site-packages" not in file:
                del sys.modules[name]
