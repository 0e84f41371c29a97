"""Hugging Face's transformers in a prediction: it treats fake tensors as a compiler's, and ends texts depending on values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...interrupts import context
from .fake import without_modes
from .replacing import handled, patched
from .watch import Watch

_IMPORTS = "transformers.utils.import_utils"
_ENDS = "transformers.generation.stopping_criteria"
ALL_TOKENS = "transformers: generate was assumed to make as many tokens as it may. A text that ends early needs less"


@context
def hugging_face(watch: Watch) -> Iterator[None]:
    """Inside, fake tensors are taken for plain ones, and no text ends early. :mod:`.reading` answers questions about values."""
    with ExitStack() as stack:

        def plain(module: Any) -> None:
            stack.enter_context(patched((module, {"is_fake_tensor": lambda x: False})))

        def ends(module: Any) -> None:
            stack.enter_context(patched(handled(watch, module.EosTokenCriteria, __call__=_no_end)))

        finder = _Finder({_IMPORTS: plain, _ENDS: ends})
        for name in finder.then.keys() & sys.modules.keys():
            finder.then[name](sys.modules[name])
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        yield


def _no_end(watch: Watch, own: Callable[..., FakeTensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    """Answer that no text has ended."""
    made = own(*args, **kwargs)
    with without_modes():
        none = torch.zeros(made.shape, dtype=torch.bool)
    watch.numbers.set(made, none)
    watch.note(ALL_TOKENS)
    return made


class _Finder(MetaPathFinder):
    """Calls a function with a module as soon as it is imported; ``then``: the functions, by the name of the module."""

    def __init__(self, then: dict[str, Callable[[Any], object]]) -> None:
        self.then = then

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in self.then else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            self.then[fullname](module)

        spec.loader.exec_module = exec_module
        return spec
