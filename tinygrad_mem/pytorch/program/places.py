"""The place where a PyTorch program is: its phase, the module that runs, the user's line."""

from __future__ import annotations

import os
import re
import sys
import traceback
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from threading import get_ident
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...interrupts import changed, context
from ...source import source_name
from .ledger import Place

OURS = str(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3[^/\\]*)[/\\]|^<")
_MARK = "tinygrad_mem"  # key of a node's metadata


@context
def removed(handles: list[Any]) -> Iterator[None]:
    """Remove these handles of hooks at the end; more may be added inside."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Places:
    """Tracks where this thread's program is, through hooks of PyTorch that every module and optimizer calls.

    Attributes:
        roots: modules that were called by the user and not by another module.
        modules: every module that has got a parameter or a buffer since this began.
    """

    def __init__(self) -> None:
        self.roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._running: list[tuple[str, int]] = []  # path, and the backward that called it again
        self._steps, self._phase = 0, "user"
        self._thread = get_ident()
        self._lines: dict[tuple[int, int], str] = {}  # by the id of the code and the line in it: Python hashes code slowly
        self._users: dict[int, tuple[CodeType, int]] = {}  # by the id of the code, which is kept

    @context
    def listening(self, roles: Any) -> Iterator[None]:
        """Observe modules and optimizers, and report them to ``roles``."""
        handles = [
            hooks.register_module_forward_pre_hook(lambda module, _: self._enter(module, roles)),
            hooks.register_module_forward_hook(lambda module, *_: self._leave(), always_call=True),
            hooks.register_module_parameter_registration_hook(lambda module, *_: self._module_called(module)),
            hooks.register_module_buffer_registration_hook(lambda module, *_: self._module_called(module)),
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._step(1, optimizer, roles)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._step(-1, optimizer, roles)),
        ]
        with removed(handles):
            yield

    def _module_called(self, module: nn.Module) -> None:
        if get_ident() == self._thread:
            self.modules.add(module)

    def _enter(self, module: nn.Module, roles: Any) -> None:
        if get_ident() != self._thread:
            return
        if not self._running and module not in self.roots:
            self.roots.add(module)
            self.name(module)
        path = self._paths.get(module)
        if path is None:
            above = self._running[-1][0] + "." if self._running else ""
            path = above + type(module).__name__
        if not self._running:
            roles.of_module(module)
        self._running.append((path, torch._C._current_graph_task_id()))

    def _leave(self) -> None:
        if get_ident() == self._thread and self._running:
            self._running.pop()

    def _step(self, change: int, optimizer: Any, roles: Any) -> None:
        if get_ident() != self._thread:
            return
        if change > 0:
            roles.gradients(optimizer if torch._C._current_graph_task_id() != -1 else None)
        else:
            roles.of_optimizer(optimizer)
        self._steps += change

    def within(self, phase: str) -> AbstractContextManager[None]:
        """Let requests of the user's own code belong to ``phase``."""
        return changed(self, _phase=phase)

    def name(self, root: nn.Module) -> None:
        """Give the modules below ``root`` their paths."""
        name = type(root).__name__
        for path, module in root.named_modules():
            self._paths[module] = f"{name}.{path}" if path else name

    def here(self, op: str = "") -> Place:
        """The place where the program is now; in backward, the module and the line that ran the op forward."""
        task = torch._C._current_graph_task_id()
        path, within = self._running[-1] if self._running else ("", -1)
        if task == -1 or (self._running and within == task):
            phase = "recompute" if task != -1 else "optimizer" if self._steps else "forward" if self._running else self._phase
            return Place(phase, path, op, self.line())
        node: Any = torch._C._current_autograd_node()
        module, line = (node.metadata.get(_MARK) or ("", ""))[:2] if node is not None else ("", "")
        return Place("optimizer" if self._steps else "backward", module, op, line or self.line())

    def line(self) -> str:
        """The innermost line of the user's own code; if there is none, of a library that is not PyTorch."""
        frame, other = sys._getframe(1), ""
        while frame is not None:
            code = frame.f_code
            known = self._users.get(id(code))
            if known is None:
                known = self._users[id(code)] = code, owner(code.co_filename)
            kind = known[1]
            if kind and (kind == 2 or not other):
                key = id(code), frame.f_lineno
                said = self._lines.get(key)
                if said is None:
                    said = self._lines[key] = source_name(code, frame.f_lineno)
                if kind == 2:
                    return said
                other = said
            frame = frame.f_back
        return other


def owner(filename: str) -> int:
    """The owner of a file: 2 for the user's code, 1 for a library's, 0 for PyTorch's or ours."""
    if filename.startswith((OURS, TORCH)):
        return 0
    return 1 if _LIBRARY.search(filename) else 2


def release(error: BaseException, *folders: str) -> None:
    """Clear the frames of functions in ``folders`` from the traceback of an error: they keep arguments alive. In a real run C++
    takes their place, and keeps nothing while the program handles the error.
    """
    chain: BaseException | None = error
    while chain is not None:
        for frame, _ in traceback.walk_tb(chain.__traceback__):
            if frame.f_code.co_filename.startswith(folders):
                with suppress(RuntimeError):  # it runs
                    frame.clear()
        chain = chain.__context__


def marked(node: Any) -> bool:
    """True if the node of the graph was marked before."""
    return _MARK in node.metadata


def mark(node: Any, place: Place, token: object) -> None:
    """Record where a node of the graph was made. ``token`` lives as long as the node."""
    node.metadata[_MARK] = (place.module, place.line, token)


def users_line(error: BaseException) -> str:
    """The user's line that an error came from."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    for wanted in (2, 1):
        found = next((each for each in reversed(frames) if owner(each[0].co_filename) == wanted), None)
        if found is not None:
            return source_name(*found)
    return "an unknown line"


def library_line(error: BaseException) -> str:
    """Behind the user's line: the line of an installed library that it called, and which asks for a value."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    kinds = [owner(code.co_filename) for code, _ in frames]
    users = max((number for number, kind in enumerate(kinds) if kind == 2), default=len(kinds))
    inside = [
        each
        for each, kind in zip(frames[users:], kinds[users:], strict=True)
        if kind == 1 and "-packages" in each[0].co_filename
    ]
    return ", in " + re.split(r"-packages[/\\]", source_name(*inside[-1]))[-1] if inside else ""
