"""Support for einops: it accepts our tensors, in any order of imports. Importing this file does not import einops.

``einops`` asks each of its backends whether a tensor belongs to it. Our backend is added when the table of backends is
imported. Our layers are ``einops.layers.tinygrad_mem``; a layer of ``einops.layers.torch`` is replaced by ours when it is
assigned to a module.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_TABLE, _LAYERS = "einops._backends", "einops.layers.tinygrad_mem"


def _register(table: Any) -> None:
    """Add our backend to those of einops. It is PyTorch's backend with our functions."""

    class TinygradMemBackend(table.TorchBackend):
        framework_name = "tinygrad_mem"

        def __init__(self) -> None:
            self.torch = sys.modules["tinygrad_mem"]

        def layers(self) -> Any:
            return importlib.import_module(_LAYERS)

    table.tinygrad_mem_backend = TinygradMemBackend  # its table holds weak references


class _Layers(Loader):
    """Loads our layers as a module of einops."""

    def create_module(self, spec: ModuleSpec) -> Any:
        return importlib.import_module(f"{__name__}.layers")

    def exec_module(self, module: Any) -> None:
        pass


class _Finder(MetaPathFinder):
    """Adds our backend when einops's table of backends is imported."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname == _LAYERS:
            return ModuleSpec(_LAYERS, _Layers())
        spec = PathFinder.find_spec(fullname, path) if fullname == _TABLE else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _register(module)

        spec.loader.exec_module = exec_module
        return spec


if _TABLE in sys.modules:
    _register(sys.modules[_TABLE])
sys.meta_path.insert(0, _Finder())


def taken_in(module: Any) -> Any:
    """Our layer in place of one of ``einops.layers.torch``; any other module is returned unchanged."""
    if type(module).__module__ != "einops.layers.torch" or type(module).__name__ not in ("Rearrange", "Reduce"):
        return module
    ours = getattr(importlib.import_module(_LAYERS), type(module).__name__)
    arguments = (module.pattern,) if type(module).__name__ == "Rearrange" else (module.pattern, module.reduction)
    return ours(*arguments, **module.axes_lengths)
