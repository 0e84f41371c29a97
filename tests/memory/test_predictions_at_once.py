"""Random programs, predicted at once, beside threads that train and threads that track: each has what it has alone."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.memory.test_predict_threads import hurried, noted, together
from tests.profiles import examples
from tinygrad_mem import memory, nn, recompute, scope, techniques
from tinygrad_mem.interrupts import FREE_THREADED
from tinygrad_mem.memory.log import Kind
from tinygrad_mem.utils.checkpoint import checkpoint
from tinygrad_mem.utils.data import DataLoader, TensorDataset

LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, width),
    "in place": lambda width: nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)),
    "dropout": lambda width: nn.Dropout(0.5),
    "norm": lambda width: nn.BatchNorm1d(width),
    "gelu": lambda width: nn.GELU(),
}


class Program(NamedTuple):
    """A training script of a few steps."""

    layers: list[str]
    width: int
    batch: int
    optimizer: str
    habit: str
    seed: int

    def __call__(self) -> None:
        tm.manual_seed(self.seed)
        model = nn.Sequential(nn.Linear(7, self.width), *[LAYERS[name](self.width) for name in self.layers])
        optimizer = getattr(tm.optim, self.optimizer)(model.parameters(), lr=1e-2)
        for x in self.batches():
            optimizer.zero_grad()
            self.loss(model, x).backward()
            optimizer.step()

    def batches(self) -> Any:
        if self.habit == "workers":
            data = TensorDataset(tm.randn(3 * self.batch, 7))
            return (x for (x,) in DataLoader(data, self.batch, shuffle=True, num_workers=2))
        return (tm.randn(self.batch, 7) for _ in range(3))

    def loss(self, model: nn.Module, x: tm.Tensor) -> tm.Tensor:
        found: list[tm.Tensor] = []

        def forward() -> None:
            with HABITS[self.habit]():
                y = checkpoint(model, x, use_reentrant=False) if self.habit == "checkpoint" else model(x)
                found.append(y.float().square().mean())

        if self.habit == "thread":
            thread = threading.Thread(target=forward)
            thread.start()
            thread.join()
        else:
            forward()
        if self.habit == "profile":
            recompute.profile(nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 3)), x)
        if self.habit == "nested":
            memory.predict(lambda: nn.Linear(30, 30)(tm.randn(self.batch, 30)).sum().backward())
        return found.pop()


HABITS: dict[str, Callable[[], Any]] = dict.fromkeys(
    ["workers", "thread", "profile", "nested", "plain"], contextlib.nullcontext
) | {
    "autocast": lambda: tm.autocast("cpu", dtype=tm.float16),
    "offload": techniques.save_on_cpu,
    "limit": lambda: memory.limit("1 GiB"),
}

PROGRAMS = st.builds(
    Program,
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    width=st.integers(1, 60),
    batch=st.integers(2, 20),
    optimizer=st.sampled_from(["SGD", "Adam", "AdamW8bit"]),
    habit=st.sampled_from(sorted(HABITS)),
    seed=st.integers(0, 3),
)


def course(track: memory.Track) -> list[tuple]:
    """Every request in order, and what was in use after it. (Which of two frees between two requests came first is left out:
    who tracks beside it looks at all that is alive, and lets go of it in an order of its own.)
    """
    used, found = 0, []
    for e in track.log:
        used += e.rounded if e.kind is Kind.MALLOC else -e.rounded if e.kind is Kind.FREE else 0
        if e.kind is Kind.MALLOC:
            found.append((e.address, e.requested, e.phase, e.module, e.op, e.line, e.role, used))
    return found


def trained() -> list[bytes]:
    """What a real training gives, drawing from the cpu's generator; of all threads it alone does."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        model(tm.randn(5, 6)).square().mean().backward()
        optimizer.step()
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def tracked() -> list[int]:
    """The peaks of tracks of ``meta``, which no prediction is heard in, and how much of its own a track of the cpu hears."""
    found, older = [], tm.device("meta").pool.used_bytes()
    for i in range(4):
        with memory.track("meta") as track:
            x = tm.empty(1000 * (i + 1), device="meta")
            y = tm.empty(7, device="meta")
        found.append(track.peak - older)
        with memory.track("cpu") as track:
            z = tm.zeros(12345)
        found.append(sum(event.kind is Kind.MALLOC and event.requested == 4 * 12345 for event in track.log))
        del x, y, z
    return found


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(programs=st.lists(PROGRAMS, min_size=2, max_size=3))
def test_each_is_as_alone(programs: list[Program]):
    meta, cpu = tm.device("meta"), tm.device("cpu")
    tm.manual_seed(11)
    parameters, state, peaks = trained(), cpu.generator.state, tracked()
    alone = [memory.predict(program) for program in programs]
    gc.collect()
    before = meta.pool, meta.kernels, meta.generator.state, meta.pool.used_bytes()
    tm.manual_seed(11)
    with hurried(), noted() as latest:
        twice = [lambda p=p: [(memory.predict(p), latest.late) for _ in range(2)] for p in programs]
        ran, heard, *found = together(trained, tracked, *twice)
    assert ran == parameters
    assert heard == peaks
    assert cpu.generator.state == state
    for one, others in zip(alone, found, strict=True):
        for other, late in others:
            assert other.peak >= one.peak
            assert FREE_THREADED or not late
            if late:  # as the warning says
                continue
            assert other.peak == one.peak
            assert other.by_category() == one.by_category()
            assert course(other) == course(one)
            assert other.pool("end") == one.pool("end")
    gc.collect()
    assert before == (meta.pool, meta.kernels, (11, 0), meta.pool.used_bytes())
    assert scope.listeners == ()


def test_how_many(reliability: Callable[[str, int], None]):
    reliability("predictions at the same time as training and tracks", 10 * 2)
