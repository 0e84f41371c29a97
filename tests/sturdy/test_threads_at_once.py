"""Nothing of ours relies on the interpreter's lock: what threads share, with a second thread at each bytecode of it."""

from __future__ import annotations

import ast
import itertools
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.interleave import interleavings
from tinygrad_mem import interrupts, nn
from tinygrad_mem.autograd import core, hooks, storage
from tinygrad_mem.devices import Generator, base, device, random
from tinygrad_mem.kernels.numpy.fast import blas, threads
from tinygrad_mem.nn import functional as F

PACKAGE = Path(tm.__file__).parent


def _handles() -> tuple:
    kept: dict = {}
    return lambda: hooks.RemovableHandle(kept, None).key, lambda: hooks.RemovableHandle(kept, None).key, lambda a, b: a != b


def _numbers() -> tuple:
    count = interrupts._LockedCounter(0)
    return count, count, lambda a, b: {a, b} == {0, 1}


def _storages() -> tuple:
    x = tm.ones(2)
    return lambda: x.storage, lambda: x.storage, lambda a, b: a is b is x.storage


def _versions() -> tuple:
    memory = storage.Storage()
    write = lambda: memory.written("op")  # noqa: E731
    return write, write, lambda a, b: memory.version == 2


def _seeds() -> tuple:
    generator = Generator()
    return generator.ticket, lambda: generator.manual_seed(7), lambda a, b: generator.state[0] == 7


def _tickets() -> tuple:
    generator = Generator()
    return generator.ticket, generator.ticket, lambda a, b: {a[1], b[1]} == {0, 1}


def _gradients() -> tuple:
    leaf = tm.ones(2, requires_grad=True)
    add = lambda: core.accumulate(leaf, tm.ones(2).array, owned=False)  # noqa: E731
    return add, add, lambda a, b: leaf.grad.tolist() == [2, 2]


def _takers() -> tuple:
    left = deque(range(4))
    take = lambda: list(interrupts.drain(left))  # noqa: E731
    return take, take, lambda a, b: sorted(a + b) == [0, 1, 2, 3]


def _workers() -> tuple:
    pool, users = threads._Pool(), (threads._User(), threads._User())
    pool._workers = ["a worker"]  # type: ignore[list-item]
    return lambda: pool.take(users[0], 1), lambda: pool.take(users[1], 1), lambda a, b: bool(a) != bool(b)


def _jobs() -> tuple:
    job = threads._Job(lambda: None)
    return lambda: job.is_of(1), lambda: job.is_of(2), lambda a, b: a != b


class _Now(SimpleQueue):
    """A worker that finds it empty ends."""

    def get(self, *args: Any) -> Any:
        return None if self.empty() else super().get(*args)


def _groups(worker_first: bool = False) -> tuple:
    beside, done = threads.Beside(), []
    beside._line.waiting = _Now()
    job = beside._job = threads._Job(beside._line.work)
    for group in range(3):
        beside.hand_over([lambda group=group: done.append(group)] * 2)
    both = [beside.finish, lambda: job.is_of(1) and job.run()]
    return *both[:: -1 if worker_first else 1], lambda a, b: done == [0, 0, 1, 1, 2, 2]


def _blas() -> tuple:
    asked: list[int] = []

    def multiply() -> None:
        with blas.single():
            asked.append(blas._get_threads() if blas._get_threads else 1)

    before = blas._get_threads() if blas._get_threads else 1
    return multiply, multiply, lambda a, b: asked == [1, 1] and (not blas._get_threads or blas._get_threads() == before)


def _devices() -> tuple:
    here = base._instances.copy()
    base._instances.pop(("cuda", 7), None)
    return base.opened, lambda: device("cuda:7"), lambda a, b: set(a) <= {*here.values(), b}


def _living() -> tuple:
    living, kept = interrupts.LiveObjects(), [nn.ReLU(), nn.ReLU(), nn.ReLU()]
    living.add(kept[0])
    living.add(kept[1])

    def change() -> None:
        living.add(kept[2])
        del kept[0]

    return living.all, change, lambda a, b: kept[0] in a and living.all()[-2:] == kept


def _queues() -> tuple:
    queue = deque(range(3))
    return lambda: interrupts.copy_queue(queue), lambda: queue.append(3), lambda a, b: list(a) in ([0, 1, 2], [0, 1, 2, 3])


SHARED: dict[str, tuple[Callable[[], tuple], Any]] = {
    "keys of hooks": (_handles, hooks),
    "numbers of nodes": (_numbers, interrupts),
    "a tensor's storage": (_storages, storage),
    "versions": (_versions, storage),
    "a seed set while numbers are drawn": (_seeds, random),
    "tickets of random numbers": (_tickets, random),
    "gradients of one leaf": (_gradients, core),
    "tiles of a kernel": (_takers, interrupts),
    "the workers": (_workers, threads),
    "a job": (_jobs, threads),
    "groups of tasks": (_groups, threads),
    "groups of tasks, which a worker has begun": (lambda: _groups(worker_first=True), threads),
    "BLAS's threads": (_blas, blas),
    "the devices": (_devices, base),
    "what is alive": (_living, interrupts),
    "a queue": (_queues, interrupts),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_second_thread_at_every_bytecode(name: str, reliability: Callable[[str, int], None]):
    make, module = SHARED[name]
    points = 0
    for both in interleavings(module.__file__):
        first, second, whole = make()
        a, b = both(first, second)
        assert whole(a, b), f"{name}: another thread at bytecode {points + 1}: {a}, {b}"
        points += 1
    assert points > 3
    reliability("runs of a second thread between two bytecodes", points)


def test_a_queue_is_copied_without_its_own_copy():
    """On free-threaded Python 3.13 ``deque.copy`` takes the queue's lock twice, and waits for itself at each item: 0.3 seconds
    for 1,000 items on a busy machine. The pool's numbers are read through such copies.
    """

    class Queue(deque):
        def copy(self):
            raise AssertionError("deque.copy was called")

    assert interrupts.copy_queue(Queue([1, 2])) == deque([1, 2])


def test_the_net_finds_what_is_made_twice():
    class Lazy:
        made: Any = None

        def get(self) -> Any:
            if self.made is None:
                self.made = object()
            return self.made

    found = []
    for both in interleavings(__file__):
        lazy = Lazy()
        a, b = both(lazy.get, lazy.get)
        found.append(a is b)
    assert not all(found)
    assert found[0], "one after the other, it is made once"


# --- what the kernels' threads share ----------------------------------------------------------------------------------------

_ITERATORS = {"iter", "map", "filter", "zip", "enumerate", "reversed"} | {name for name in dir(itertools) if name[0] != "_"}


def _called(node: ast.AST) -> str:
    if isinstance(node, ast.GeneratorExp):
        return "iter"
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "id", getattr(node.func, "attr", "")).lstrip("_")


def _shared_by_threads(tree: ast.Module) -> list[str]:
    """Functions inside a function, which threads may run, that use an iterator or a scratch tile of the outer one."""
    generators = {
        f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and any(isinstance(n, ast.Yield) for n in _own(f))
    }
    wrong = []
    for outer in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        made = {
            target.id: called
            for n in _own(outer)
            if isinstance(n, ast.Assign) and (called := _called(n.value)) in _ITERATORS | generators | {"scratch"}
            for target in n.targets
            if isinstance(target, ast.Name)
        }
        for inner in (n for n in ast.walk(outer) if isinstance(n, (ast.FunctionDef, ast.Lambda)) and n is not outer):
            names = {n.id for n in ast.walk(inner) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            stored = {n.id for n in ast.walk(inner) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            stored |= {n.arg for n in ast.walk(inner) if isinstance(n, ast.arg)}
            wrong += [f"{outer.name}, line {inner.lineno}: {made[name]} {name}" for name in (names - stored) & made.keys()]
            wrong += [f"{outer.name}, line {n.lineno}: nonlocal" for n in ast.walk(inner) if isinstance(n, ast.Nonlocal)]
    return wrong


def _own(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function that are not of a function inside it."""
    found, todo = [], list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            found.append(node)
            todo += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels" / "numpy").rglob("*.py")), ids=lambda path: path.stem)
def test_functions_that_threads_run_share_no_iterator_and_no_tile(path: Path):
    assert not _shared_by_threads(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    "line", ["left = iter(range(9))", "left = (n for n in range(9))", "left = _scratch((9,))", "left = walk()"]
)
def test_the_rule_finds_what_threads_would_share(line: str):
    code = (
        f"def walk():\n    yield 1\ndef kernel():\n    {line}\n    def part(i, j):\n        return left\n    split(9, part)\n"
    )
    assert _shared_by_threads(ast.parse(code))


# --- many threads, as they come ---------------------------------------------------------------------------------------------


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(8, 16, 2), nn.Linear(16, 4)

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        return self.out(self.rnn(x.transpose(0, 1))[0][-1])


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        return self.out(self.layer(x).mean(1))


def _convolutions() -> nn.Module:
    body = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.MaxPool2d(2)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(16 * 256, 4))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[Any], Any]]] = {
    "convolutions": (_convolutions, (4, 3, 32, 32), lambda p: tm.optim.SGD(p, lr=0.1, momentum=0.9)),
    "lstm": (_Recurrent, (4, 6, 8), tm.optim.Adam),
    "attention": (_Attention, (4, 6, 8), lambda p: tm.optim.AdamW(p, lr=1e-3)),
}


def _steps(model: nn.Module, x: np.ndarray, make: Callable[[Any], Any], steps: int = 3) -> list[float]:
    optimizer, losses = make(model.parameters()), []
    for _ in range(steps):
        loss = F.cross_entropy(model(tm.tensor(x)), tm.zeros(len(x), dtype=tm.int64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_programs_of_many_threads_give_what_each_gives_alone(
    monkeypatch: pytest.MonkeyPatch, reliability: Callable[[str, int], None]
):
    """It has most to find where there is no interpreter's lock, in a free-threaded build with ``PYTHON_GIL=0``."""
    monkeypatch.setattr(threads._pool, "size", 4)
    monkeypatch.setattr(threads, "GRAIN", 1 << 10)  # small maps are shared too
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, (_, shape, _) in PROGRAMS.items()}

    def model(name: str) -> nn.Module:
        made = PROGRAMS[name][0]()
        for number, p in enumerate(made.parameters()):  # not of the generator, which all threads draw from
            values = np.random.default_rng(number).standard_normal(tuple(p.shape)) / 4
            with tm.no_grad():
                p.copy_(tm.tensor(values.astype(np.float32)))
        return made

    def run(name: str) -> list[float]:
        return _steps(model(name), inputs[name], PROGRAMS[name][2])

    alone = {name: run(name) for name in PROGRAMS}
    results: list[tuple[str, Any]] = []

    def work(name: str) -> None:
        try:
            for _ in range(2):
                results.append((name, run(name)))
        except BaseException as error:
            results.append((name, error))

    crew = [threading.Thread(target=work, args=(name,)) for name in (*PROGRAMS, *PROGRAMS)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    for name, losses in results:
        assert losses == pytest.approx(alone[name], rel=1e-4), name
    assert len(results) == 2 * len(crew)
    reliability("programs of several threads", len(results))
