"""A prediction belongs to its thread: others are not changed by it, and what it starts itself belongs to it."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import gc
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, recompute, scope
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import DeviceError, DTypeError
from tinygrad_mem.interrupts import FREE_THREADED
from tinygrad_mem.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

predict: Any = sys.modules["tinygrad_mem.memory.predict"]  # the package shows the function of this name

one_counts = pytest.mark.skipif(
    FREE_THREADED, reason="each thread counts its own references there: a batch that a worker made may come back late"
)


def together(*runs: Callable[[], Any]) -> list[Any]:
    """What each gives, of all at once, each in a thread."""
    with ThreadPoolExecutor(len(runs)) as pool:
        ready = threading.Barrier(len(runs))

        def begin(run: Callable[[], Any]) -> Any:
            ready.wait()
            return run()

        return [each.result() for each in [pool.submit(begin, run) for run in runs]]


@contextlib.contextmanager
def hurried() -> Iterator[None]:
    """Threads take turns a hundred times as often as they would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@contextlib.contextmanager
def noted() -> Iterator[threading.local]:
    """Its ``late`` says of the thread's latest prediction whether memory may have come back late, as the warning does."""
    latest, say = threading.local(), predict._Cycles.say

    def note(self: Any) -> None:
        latest.late = self.late
        say(self)

    predict._Cycles.say = note
    try:
        yield latest
    finally:
        predict._Cycles.say = say


def step(width: int = 20) -> None:
    model = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 3))
    optimizer = tm.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(tm.randn(8, 10)).square().mean().backward()
        optimizer.step()


def story(track: memory.Track) -> list[tuple]:
    """All that happened, in order; not when."""
    return [(e.kind, e.address, e.requested, e.rounded, e.phase, e.op, e.role, e.note) for e in track.log]


def test_predictions_at_once_are_as_alone_and_leave_nothing():
    meta = tm.device("meta")
    before = meta.pool, meta.kernels, meta.generator.state, tm.device("cpu").generator.state
    alone = [story(memory.predict(step, width)) for width in (20, 100)]

    def thrice(width: int) -> list[tuple]:
        return [(story(memory.predict(step, width)), latest.late) for _ in range(3)]

    with hurried(), noted() as latest:
        found = together(lambda: thrice(20), lambda: thrice(100))
    for one, others in zip(alone, found, strict=True):
        assert all(late or each == one for each, late in others)
        assert FREE_THREADED or not any(late for _, late in others)
    assert before == (meta.pool, meta.kernels, meta.generator.state, tm.device("cpu").generator.state)
    assert scope.listeners == ()


def test_meta_itself_can_be_used_meanwhile():
    meta, inside, done = tm.device("meta"), threading.Event(), threading.Event()

    def run() -> None:
        tm.ones(1000)
        inside.set()
        assert done.wait(60)

    def beside() -> tuple[int, int]:
        assert inside.wait(60)
        with memory.track("meta") as track:
            x = tm.empty(2000, device="meta")
        done.set()
        return track.peak - older, x.nbytes

    gc.collect()
    older = meta.pool.used_bytes()
    track, found = together(lambda: memory.predict(run), beside)
    assert track.peak == 4096
    assert found == (8192, 8000)


def test_random_numbers_of_others_are_neither_drawn_nor_rewound():
    stop = threading.Event()
    mine = tm.Generator().manual_seed(5)

    def draw() -> list[bytes]:
        drawn = []
        while not stop.is_set():
            drawn.append(tm.randn(4).numpy().tobytes())
        return drawn

    def script() -> None:
        tm.manual_seed(7)
        tm.randn(3)
        tm.randn(3, generator=mine)
        assert tm.initial_seed() == 7
        assert tm.Generator().initial_seed() == 7

    def predict() -> None:
        try:
            for _ in range(20):
                memory.predict(script)
        finally:
            stop.set()

    tm.manual_seed(0)
    with hurried():
        drawn, _ = together(draw, predict)
    calls = tm.device("cpu").generator.state[1]
    tm.manual_seed(0)
    assert drawn == [tm.randn(4).numpy().tobytes() for _ in drawn]
    assert calls == len(drawn)
    assert mine.state == (5, 0)
    assert tm.Generator().initial_seed() == 0


def test_a_prediction_draws_the_order_that_the_run_will_have():
    """A loader's order comes from the generator: of samples of different lengths, the peak depends on it."""
    samples = [np.ones(n, np.float32) for n in (10, 1000, 20, 3000, 40, 5000)]
    orders: list[list[int]] = [[], []]

    def run(seen: list[int]) -> None:
        for (x,) in DataLoader(samples, shuffle=True):
            seen.append(x.numel())

    tm.randn(3)  # the generator has moved since it was seeded
    memory.predict(run, orders[0])
    run(orders[1])
    assert orders[0] == orders[1]


# --- the dtype of floats


def test_the_default_dtype_of_a_prediction_is_its_own():
    """It begins with that of the process, which other threads may change meanwhile; what it sets holds for all its threads."""
    inside, done, found = threading.Event(), threading.Event(), []

    def script() -> None:
        found.append(tm.get_default_dtype())
        inside.set()
        assert done.wait(60)
        found.append((tm.ones(1000) / 3).dtype)
        tm.set_default_dtype(tm.float64)
        thread = threading.Thread(target=lambda: found.append(tm.zeros(1000).dtype))
        thread.start()
        thread.join()
        found.append((tm.arange(4) * 0.5).dtype)
        found.append(tm.finfo().bits)
        nested.append(memory.predict(lambda: (found.append(tm.ones(1).dtype), tm.set_default_dtype(tm.float16))).peak)
        found.append(tm.get_default_dtype())

    def beside() -> np.dtype:
        assert inside.wait(60)
        tm.set_default_dtype(tm.float16)
        done.set()
        return tm.ones(1).dtype

    nested: list[int] = []
    try:
        _, other = together(lambda: memory.predict(script), beside)
        assert (other, tm.get_default_dtype()) == (tm.float16, tm.float16)
    finally:
        tm.set_default_dtype(tm.float32)
    assert found == [tm.float32, tm.float32, tm.float64, tm.float64, 64, tm.float64, tm.float64]
    with pytest.raises(DTypeError, match="only floating dtypes"):
        memory.predict(lambda: tm.set_default_dtype(tm.int64))


def test_predictions_within_predictions_draw_beside_threads_that_draw():
    """It begins with the numbers of the one that it is made in, whose threads set those of new generators meanwhile."""

    def script() -> None:
        stop, kept = threading.Event(), [tm.Generator() for _ in range(8)]

        def others() -> None:
            while not stop.is_set():
                kept.append(tm.Generator())
                kept[-1].manual_seed(3)
                del kept[0]

        thread = threading.Thread(target=others)
        thread.start()
        mine = tm.Generator().manual_seed(5)
        try:
            for _ in range(60):
                memory.predict(lambda: states.append((mine.state, mine.manual_seed(6).state)))
        finally:
            stop.set()
            thread.join()

    states: list[tuple] = []
    with hurried():
        memory.predict(script)
    assert states == [((5, 0), (6, 0))] * 60


# --- threads that the program starts


class Threads:
    """The ways to have something done by another thread. ``outside`` were made before the prediction."""

    def __init__(self) -> None:
        self.outside, self.pool = ThreadPoolExecutor(1), ThreadPool(1)
        self.outside.submit(int).result()

    def close(self) -> None:
        self.outside.shutdown()
        self.pool.terminate()
        self.pool.join()

    def thread(self, task: Callable[[], None]) -> None:
        thread = threading.Thread(target=task)
        thread.start()
        thread.join()

    def subclass(self, task: Callable[[], None]) -> None:
        class Mine(threading.Thread):
            def run(self) -> None:
                task()

        thread = Mine()
        thread.start()
        thread.join()

    def low_level(self, task: Callable[[], None]) -> None:
        done = threading.Event()
        _thread.start_new_thread(lambda *given, **named: (task(), done.set()), (1,), {"two": 2})
        assert done.wait(60)

    def timer(self, task: Callable[[], None]) -> None:
        thread = threading.Timer(0.001, task)
        thread.start()
        thread.join()

    def thread_of_a_thread(self, task: Callable[[], None]) -> None:
        self.thread(lambda: self.thread(task))

    def executor(self, task: Callable[[], None]) -> None:
        with ThreadPoolExecutor(2) as executor:
            executor.submit(task).result()

    def initializer(self, task: Callable[[], None]) -> None:
        with ThreadPoolExecutor(1, initializer=task) as executor:
            executor.submit(int).result()

    def executor_from_outside(self, task: Callable[[], None]) -> None:
        list(self.outside.map(lambda _: task(), [0]))

    def callback(self, task: Callable[[], None]) -> None:
        self._call_back(lambda future, last: future.add_done_callback(last), task)

    def callback_by_name(self, task: Callable[[], None]) -> None:
        self._call_back(lambda future, last: future.add_done_callback(fn=last), task)

    def _call_back(self, add: Callable[[Future, Callable], None], task: Callable[[], None]) -> None:
        done = threading.Event()
        gate = threading.Event()
        future = self.outside.submit(gate.wait, 10)
        add(future, lambda _: (task(), done.set()))
        gate.set()
        assert done.wait(60)

    def asyncio_thread(self, task: Callable[[], None]) -> None:
        async def main() -> None:
            await asyncio.to_thread(task)

        asyncio.run(main())

    def thread_pool(self, task: Callable[[], None]) -> None:
        with ThreadPool(1) as pool:
            pool.apply(task)

    def thread_pool_from_outside(self, task: Callable[[], None]) -> None:
        self.pool.apply(task)

    def thread_pool_by_name(self, task: Callable[[], None]) -> None:
        self.pool.apply_async(func=task).get(60)

    def map_of_a_thread_pool(self, task: Callable[[], None]) -> None:
        self.pool.map(lambda _: task(), [0])

    def imap_of_a_thread_pool(self, task: Callable[[], None]) -> None:
        list(self.pool.imap(lambda _: task(), [0]))

    def imap_unordered_of_a_thread_pool(self, task: Callable[[], None]) -> None:
        list(self.pool.imap_unordered(lambda _: task(), [0]))


WAYS = [name for name in vars(Threads) if not name.startswith("_") and name != "close"]


@pytest.fixture
def threads() -> Iterator[Threads]:
    found = Threads()
    yield found
    found.close()


@pytest.mark.parametrize("way", WAYS)
def test_threads_of_the_program_are_predicted_with_it(threads: Threads, way: str):
    real = tm.device("cpu")
    used, state, seen = real.pool.used_bytes(), real.generator.state, []

    def task() -> None:
        seen.append(tm.device("cuda"))
        model = nn.Linear(100, 100)
        model(tm.randn(10, 100)).sum().backward()

    def run() -> None:
        seen.append(tm.device("cpu"))
        getattr(threads, way)(task)

    real.pool.reset_peak()
    track, plain = memory.predict(run), memory.predict(task)
    assert track.peak == plain.peak
    assert seen[0] is seen[1]
    assert real.pool.peak_used == used
    assert real.generator.state == state
    found: list[str] = []
    getattr(threads, way)(lambda: found.append(tm.zeros(1).device.type))  # afterwards, and for others, all is as before
    assert found == ["cpu"]


def test_an_executor_that_was_made_in_a_prediction_works_afterwards():
    made: list[ThreadPoolExecutor] = []

    def run() -> None:
        made.append(ThreadPoolExecutor(1))
        assert made[0].submit(lambda: tm.ones(1000).is_meta).result()

    assert memory.predict(run).peak == 4096
    with made[0] as executor:
        assert executor.submit(lambda: tm.ones(3).tolist()).result() == [1.0, 1.0, 1.0]


def test_a_thread_that_outlives_its_prediction_gets_no_memory():
    ended, found = threading.Event(), []

    def late() -> None:
        ended.wait(60)
        try:
            tm.ones(3)
        except DeviceError as error:
            found.append(str(error))

    thread = threading.Thread(target=late)
    memory.predict(lambda: (tm.ones(1), thread.start()))
    ended.set()
    thread.join()
    assert len(found) == 1
    assert "a prediction that has ended" in found[0]


def test_a_thread_object_is_as_it_was():
    """What is set in place of ``run`` is gone again, and so is the thread."""

    def run() -> None:
        thread = threading.Thread(target=tm.ones, args=(3,))
        thread.start()
        thread.join()
        assert "run" not in vars(thread)
        seen.append(weakref.ref(thread))
        with pytest.raises(RuntimeError, match="threads can only be started once"):
            thread.start()
        assert "run" not in vars(thread)

    seen: list[weakref.ref] = []
    memory.predict(run)
    assert seen[0]() is None


# --- loaders with workers


class Images(Dataset):
    """Samples that are made by ops, and labels."""

    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> tuple[tm.Tensor, int]:
        return tm.ones(3, 16, 16) * index, index


class Stream(IterableDataset):
    """Shared out among workers."""

    def __iter__(self) -> Iterator[tm.Tensor]:
        info = get_worker_info()
        for index in range(30):
            if info is None or index % info.num_workers == info.id:
                yield tm.ones(100 + index)[:100]


def epochs(dataset: Any, workers: int, ahead: int | None, persistent: bool) -> Callable[[], Any]:
    def run() -> None:
        model = nn.Linear(100, 10)
        options: dict = {"prefetch_factor": ahead, "persistent_workers": persistent, "worker_init_fn": lambda _: tm.ones(9000)}
        loader = DataLoader(dataset, 4, num_workers=workers, **(options if workers else {}))
        for _ in range(2):
            for batch in loader:
                x = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(x.reshape(-1)[:100]).sum().backward()

    return run


@one_counts
@pytest.mark.parametrize("dataset", [Images(), Stream()], ids=["map", "stream"])
@pytest.mark.parametrize(("workers", "ahead", "persistent"), [(1, None, False), (2, 3, False), (3, 1, True)])
def test_a_loader_with_workers_has_one_order(dataset: Any, workers: int, ahead: int | None, persistent: bool):
    run = epochs(dataset, workers, ahead, persistent)
    with hurried():
        found = [story(memory.predict(run)) for _ in range(4)]
    assert found[1:] == found[:1] * 3


@one_counts
def test_it_is_that_of_workers_who_keep_up():
    """The bytes at each step are those of a run that waits, before each step, until all that was asked for is there."""

    def run() -> None:
        loader = DataLoader(Images(), 4, num_workers=2, prefetch_factor=3)
        batches: Any = iter(loader)
        for x, y in batches:
            while len(batches._run.results) < batches._asked - batches._next:
                time.sleep(0.001)
            memory.mark("step")
            del x, y

    cpu = tm.device("cpu")
    predicted = memory.predict(run)
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.track("cpu") as track:
            run()
    finally:
        cpu.pool = before
    used = [[each.pool(mark).used for mark in each.marks] for each in (predicted, track)]
    assert used[0] == used[1]
    assert len(used[0]) == 10
    assert used[0][0] == 7 * (4 * 3 * 16 * 16 * 4 + 512)  # six that wait, and the one in use


def test_workers_that_were_there_before_are_not_asked_and_stay():
    loader = DataLoader(TensorDataset(tm.ones(8, 4)), 4, num_workers=1, persistent_workers=True)
    assert next(iter(loader))[0].device == "cpu"
    crew = loader._crew
    loader.collate_fn = lambda samples: [tm.ones(4)]
    devices: list[bool] = []
    memory.predict(lambda: devices.extend(x.is_meta for (x,) in loader))
    assert devices == [True, True]
    assert loader._crew is crew
    assert [x.device.type for (x,) in loader] == ["cpu", "cpu"]


# --- what a prediction leaves


def test_what_outlives_a_prediction_harms_no_later_one():
    kept: list[tm.Tensor] = []
    memory.predict(lambda: kept.append(tm.ones(1000)))
    assert kept[0].shape == (1000,)
    assert kept[0].is_meta
    with pytest.raises(DeviceError, match="requested from a prediction that has ended"):
        kept[0] + 1
    with pytest.raises(DeviceError, match=r"found \[1000\] on cpu of a prediction.*make what the step uses inside it"):
        memory.predict(lambda: kept[0] + tm.ones(1000))

    def run() -> None:
        x = tm.ones(1000)
        kept.clear()
        del x

    assert memory.predict(run).timeline().used.tolist() == [4096, 0]


def test_nothing_of_a_prediction_lives_on():
    seen: list[weakref.ref] = []

    def run() -> None:
        step()
        seen.extend(weakref.ref(thing) for thing in (tm.device("cpu"), tm.device("cpu").pool, tm.device("cpu").generator))

    gc.disable()
    memory.predict(run)
    assert [thing() for thing in seen] == [None] * 3


def test_switches_that_the_program_leaves_turned_are_turned_back():
    def run() -> None:
        tm.set_grad_enabled(False)
        tm.ones(1)

    memory.predict(run)
    assert tm.is_grad_enabled()


def test_a_device_object_from_outside_is_the_dry_run_s_too():
    cpu, meta = tm.device("cpu"), tm.device("meta")
    used = cpu.pool.used_bytes(), meta.pool.used_bytes()
    cpu.pool.reset_peak()

    def run() -> None:
        with cpu:
            assert tm.ones(1000).device is tm.device("cuda")
            tm.arange(1000.0).cos()
        assert tm.ones(1000, device=cpu).to(cpu).device is tm.device("cuda")
        assert tm.ones(1000, device=meta).device is meta  # in the run it has no memory either

    with cpu:
        assert memory.predict(run).peak == 8192
    assert (cpu.pool.peak_used, meta.pool.used_bytes()) == used


def test_marks_go_to_the_program_s_own_track():
    with memory.track("cpu") as around:
        inside = memory.predict(lambda: (tm.ones(1), memory.mark("inside")))
        memory.mark("around")
    assert [mark.text for mark in inside.marks] == ["inside"]
    assert [mark.text for mark in around.marks] == ["around"]


def test_a_profile_changes_nothing_for_others():
    """Nor does it silence those who listen to them."""
    model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), tm.ones(4, 8)
    stop = threading.Event()

    def profiles() -> list[recompute.Profile]:
        try:
            return [recompute.profile(model, x) for _ in range(5)]
        finally:
            stop.set()

    def drawn() -> tuple[int, int]:
        count = 0
        with memory.track("cpu") as track:
            while not stop.is_set():
                tm.randn(100)
                count += 1
        return count, sum(event.op == "" and event.requested == 400 for event in track.log)

    alone = recompute.profile(model, x)
    tm.manual_seed(0)
    with hurried():
        found, (count, heard) = together(profiles, drawn)
    assert found == [alone] * 5
    assert heard == count == tm.device("cpu").generator.state[1]


@pytest.mark.skipif(FREE_THREADED, reason="its collector waits until there is a quarter more of objects, pytest's among them")
def test_cycles_are_named():
    class Holds:
        def __init__(self) -> None:
            self.me, self.x = self, tm.ones(1000)

    def run(collect: bool) -> None:
        for i in range(3000):
            Holds()
            if collect and i % 50 == 49:
                gc.collect()

    gc.enable()
    with pytest.warns(UserWarning, match=r"predict: reference cycles held .*, which Python's collector freed"):
        memory.predict(run, False)
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert memory.predict(run, True).peak == 50 * 4096


# --- free-threaded Python, which may free late


@contextlib.contextmanager
def another_thread() -> Iterator[None]:
    """It waits, and does nothing else."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _in_a_thread() -> None:
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()


def _collects() -> None:
    step()
    gc.collect()


@pytest.mark.parametrize(
    ("beside", "program", "late"),
    [
        (False, step, False),
        (False, _collects, False),
        (False, _in_a_thread, True),
        (True, step, False),
        (True, _collects, True),
        (True, _in_a_thread, True),
    ],
)
def test_what_free_threaded_python_may_give_back_late_is_said(
    beside: bool, program: Callable[[], None], late: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(predict, "FREE_THREADED", True)
    monkeypatch.setattr(sys, "_current_frames", lambda: dict.fromkeys(range(1 + beside)))  # pytest-xdist has threads too
    gc.disable()
    told = pytest.warns(UserWarning, match="predict: free-threaded Python may free memory late") if late else nothing()
    with told, another_thread() if beside else contextlib.nullcontext():
        assert memory.predict(program).peak == memory.predict(step).peak


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.skipif(not FREE_THREADED, reason="there one thread counts for all")
def test_what_was_made_where_another_thread_s_listeners_were_is_freed_at_once():
    """What makes plain tuples late, and that ``scope.listeners`` does not."""

    class Freed:
        def __del__(self) -> None:
            freed.append(self)

    def late(kind: type) -> int:
        box, made, seen, end = [], threading.Event(), threading.Event(), threading.Event()

        def other() -> None:
            box.extend([kind([i, i, i]) for i in range(50)])
            made.set()
            seen.wait()
            box.clear()
            made.set()
            end.wait()

        thread = threading.Thread(target=other)
        thread.start()
        made.wait()
        mine = [*box]
        made.clear()
        seen.set()
        made.wait()
        mine.clear()  # the last references
        kept = [(1, 2, Freed()) for _ in range(50)]
        gc.collect()
        freed.clear()
        kept.clear()
        at_once = len(freed)
        end.set()
        thread.join()
        return 50 - at_once

    freed: list[Freed] = []
    assert late(tuple) > 0
    assert late(type(scope.listeners)) == 0
