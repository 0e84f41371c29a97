"""Ctrl-C in what Python calls as an object ends: it has its effect, and Ctrl-C is raised after it, not lost."""

from __future__ import annotations

import _thread
import ast
import inspect
import operator
import signal
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.tracing import signal_points
from tinygrad_mem import memory, nn
from tinygrad_mem.callbacks import finalizer
from tinygrad_mem.data import DataLoader, TensorDataset
from tinygrad_mem.kernels.numpy.fast.threads import Beside
from tinygrad_mem.memory.log import Kind
from tinygrad_mem.techniques.offload import Parked

PACKAGE = Path(tm.__file__).parent
Ending = tuple[list[Any], Callable[[], bool]]  # what holds the object; True if the finalizer has had its effect


# --- which there are --------------------------------------------------------------------------------------------------------

OTHERWISE = {
    "devices/pool.py": "Block.__del__: the same by hand, because it runs for each tensor",
    "interrupts.py": "LiveObjects: the callback is a function of C, which no signal interrupts",
    "pytorch/program/storages.py": "the next op of the prediction raises what came",
}


def _finalizers(tree: ast.AST) -> list[ast.expr | None]:
    """The decorator or the callback of each finalizer of a module."""
    found: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            found.append(node.decorator_list[0] if node.decorator_list else None)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("weakref.finalize", "finalize"):
            found.append(None)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("weakref.ref", "ref") and len(node.args) > 1:
            found.append(node.args[1])
    return found


def _is_safe(found: ast.expr | None, tree: ast.AST) -> bool:
    if isinstance(found, ast.Call) and ast.unparse(found.func) == "partial":
        found = found.args[0]
    name = getattr(found, "attr", getattr(found, "id", ""))
    decorated = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) for d in n.decorator_list if _named(d)}
    return name == "finalizer" or name in decorated


def _named(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "finalizer"


def test_each_finalizer_of_the_package_is_one_of_these():
    found: dict[str, bool] = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for each in _finalizers(tree):
            name = str(path.relative_to(PACKAGE))
            found[name] = found.get(name, True) and _is_safe(each, tree)
    assert {name for name, safe in found.items() if not safe} == set(OTHERWISE)
    assert {name for name, safe in found.items() if safe} == {*HOMES.values()}


# --- each of them -----------------------------------------------------------------------------------------------------------


def _saved() -> Ending:
    track = memory.track("cpu")
    track.__enter__()
    kept = [tm.ones(3, requires_grad=True).exp()]

    def ended() -> bool:
        track.__exit__(None, None, None)
        return _left(track, "ACTIVATION")

    return kept, ended


def _role() -> Ending:
    track = memory.track("cpu")
    track.__enter__()
    kept = [nn.Parameter(tm.ones(3))]

    def ended() -> bool:
        track.__exit__(None, None, None)
        return _left(track, "PARAMETER")

    return kept, ended


def _left(track: Any, role: str) -> bool:
    kinds = [event.kind for event in track.log if event.role == role]
    return kinds.count(Kind.ENTER) == kinds.count(Kind.LEAVE) > 0


def _beside() -> Ending:
    beside = Beside()
    line = beside._line
    return [beside], lambda: line.waiting.get_nowait() is None


def _loader() -> Ending:
    loader: Any = DataLoader(TensorDataset(tm.ones(8, 2)), num_workers=2, persistent_workers=True)
    next(iter(loader))
    threads = loader._crew.threads
    return [loader], lambda: not any(thread.is_alive() for thread in threads)


def _pass() -> Ending:
    ahead: Any = iter(DataLoader(TensorDataset(tm.ones(8, 2)), num_workers=2))
    next(ahead)
    threads = ahead._crew.threads
    return [ahead], lambda: not any(thread.is_alive() for thread in threads)


def _parked() -> Ending:
    waited: list[Any] = []
    parked: Any = object.__new__(Parked)
    parked.device, parked._ahead = SimpleNamespace(wait=waited.append), (None, "copy")
    return [parked], lambda: waited == ["copy"]


def _token() -> Ending:
    pytest.importorskip("torch")
    from tinygrad_mem.pytorch.program.roles import _Token

    left: list[Any] = []
    token, held = _Token(SimpleNamespace(leave=lambda *a: left.append(a)), "place"), {1}  # type: ignore[arg-type]
    token.kept.append((weakref.ref(held), "x"))
    return [token], lambda: left == [(held, "place", "ACTIVATION", "x")]


def _events() -> Ending:
    pytest.importorskip("cupy")
    from tinygrad_mem.devices.cuda import PoolEvents

    events: Any = object.__new__(PoolEvents)
    owner: Any = set()
    reference = weakref.ref(owner, events._freeing)
    events._owners = {id(reference): reference}
    return [owner], lambda: not events._owners


ENDINGS = {
    "saved": _saved,
    "role": _role,
    "beside": _beside,
    "loader": _loader,
    "pass": _pass,
    "parked": _parked,
    "token": _token,
    "events": _events,
}
HOMES = {
    "saved": "autograd/node_hooks.py",
    "role": "memory/listener.py",
    "beside": "kernels/numpy/fast/threads.py",
    "loader": "data/loader.py",
    "pass": "data/loader.py",
    "parked": "techniques/offload.py",
    "token": "pytorch/program/roles.py",
    "events": "devices/cuda_pool.py",
}


def _drop(kept: list[Any], at: int, places: list[tuple]) -> None:
    """Drop the object; at the ``at``-th point of the package's code that hears signals, send one.

    Not as a finalizer begins, where a tracer's exception is not seen by its ``try``, nor as a generator ends.
    """

    def ours(code: CodeType) -> bool:
        return code.co_filename.startswith(str(PACKAGE))

    def hear(frame: FrameType, position: int) -> None:
        code = frame.f_code
        if position >= 0 or not (code.co_name in ("finalize", "__del__") or code.co_flags & inspect.CO_GENERATOR):
            places.append((code.co_qualname, position))
            if len(places) == at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)

    with signal_points(ours, hear, in_finalisers=True):
        kept.clear()


def _interrupted(kept: list[Any], at: int) -> None:
    _drop(kept, at, places := [])
    if len(places) < at:  # threads were quicker this time, so that less was done
        raise KeyboardInterrupt
    time.sleep(60)


@pytest.mark.parametrize("name", ENDINGS)
def test_an_interrupt_anywhere_in_it_is_raised_after_it(
    name: str, monkeypatch: pytest.MonkeyPatch, reliability: Callable[[str, int], None]
):
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: printed.append(args.exc_type))
    for _ in range(2):  # the first also makes what is made once
        kept, ended = ENDINGS[name]()
        _drop(kept, 0, places := [])
        assert ended()
    assert len(places) > 3
    for at in range(1, len(places) + 1):
        kept, ended = ENDINGS[name]()
        with pytest.raises(KeyboardInterrupt):
            _interrupted(kept, at)
        assert not printed, places[at - 1]
        assert ended(), places[at - 1]
    kept, ended = ENDINGS[name]()
    with pytest.raises(KeyboardInterrupt):  # at its first instruction
        deque(map(operator.call, (_thread.interrupt_main, kept.clear, lambda: time.sleep(60))), 0)
    assert not printed
    assert ended()
    reliability("interrupts of finalizers, where Python handles signals", len(places) + 1)


def test_an_error_of_a_finalizer_is_printed_as_ever(monkeypatch: pytest.MonkeyPatch):
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: printed.append(args.exc_type))

    class Broken:
        @finalizer
        def __del__(self) -> None:
            raise ZeroDivisionError

    Broken()
    assert printed == [ZeroDivisionError]
