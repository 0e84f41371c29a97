"""Exact: on random programs the categories add up to the pool's used bytes at every event, and each block is what holds it."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.networks import WORKLOADS
from tests.profiles import examples
from tests.sums import check_sums, counted
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import Pool, device
from tinygrad_mem.memory import Category, Kind
from tinygrad_mem.memory.census import Census

WIDTH = 24
LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "layernorm": lambda: nn.LayerNorm(WIDTH),
    "relu": lambda: nn.ReLU(),
    "dropout": lambda: nn.Dropout(0.5),
    "deep": lambda: nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3, 4)), nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten()
    ),
    "groups": lambda: nn.Sequential(nn.Unflatten(1, (4, 6)), nn.Conv1d(4, 4, 3, padding=1, groups=2), nn.Flatten()),
    "softmax": lambda: nn.Softmax(1),
}
UNARY = ["exp", "tanh", "relu", "sigmoid", "neg", "square"]
BINARY = ["add", "mul", "sub", "maximum"]

n = st.one_of(st.integers(0, 2), st.integers(0, 99))  # most steps go on where the last one was
step = st.one_of(
    st.tuples(st.just("layer"), n, n),
    st.tuples(st.just("input"), n, n),
    st.tuples(st.sampled_from(UNARY), n, n),
    st.tuples(st.sampled_from(BINARY), n, n),
    st.tuples(st.sampled_from(["view", "rows", "expand", "detach", "inplace", "write", "eval", "fail", "share"]), n, n),
    st.tuples(
        st.sampled_from(["cat", "split", "turn", "inference", "packed", "lookup", "loss", "thread", "copy", "halt"]), n, n
    ),
    st.tuples(st.sampled_from(["backward", "retain", "keep_grad", "zero", "update", "data", "to_double", "gc"]), n, n),
    st.tuples(st.sampled_from(["drop", "drop", "drop_layer", "drop_rule"]), n, n),
)
programs = st.lists(step, min_size=1, max_size=25)


def stop(gradient: Any) -> None:
    raise KeyboardInterrupt


class Program:
    """An interpreter of random steps: values are (rows, 24) tensors, layers and one optimizer come and go."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.layers: list[Any] = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
        self.values: list[Any] = [tm.ones(7, WIDTH), self.layers[0](tm.ones(5, WIDTH)), tm.ones(5, WIDTH, requires_grad=True)]
        self.kept: list[Any] = []
        self.rule: Any = None

    def run(self, what: str, a: int, b: int) -> None:
        x = self.values[-1 - a % len(self.values)] if self.values else tm.ones(3, WIDTH, requires_grad=True)
        with contextlib.suppress(tm.errors.GraphError, tm.errors.ShapeError):  # what is refused leaves nothing behind either
            getattr(self, f"do_{what}", self.do_op)(what, x, b)

    def add(self, value: Any) -> None:
        if value.numel() <= 40_000 and value.dim() == 2 and value.shape[1] == WIDTH:
            self.values.append(value)

    def do_op(self, what: str, x: Any, b: int) -> None:
        if what in UNARY:
            self.add(getattr(x, what)())
            return
        y = self.values[b % len(self.values)] if self.values else x
        self.add(getattr(tm, what)(x, y))

    def do_layer(self, what: str, x: Any, b: int) -> None:
        if b % 3 == 0:
            self.layers.append(list(LAYERS.values())[(b // 3) % len(LAYERS)]())
        if self.layers and x.shape[0] > 1:
            self.add(self.layers[b % len(self.layers)](x.to(tm.float32)))

    def do_input(self, what: str, x: Any, b: int) -> None:
        self.add(tm.tensor(np.ones((b % 9 + 1, WIDTH), np.float32), requires_grad=b % 2 == 0))

    def do_view(self, what: str, x: Any, b: int) -> None:
        self.add(x.reshape(-1).reshape(x.shape))

    def do_rows(self, what: str, x: Any, b: int) -> None:
        self.add(x[b % x.shape[0] :])

    def do_expand(self, what: str, x: Any, b: int) -> None:
        self.add(x[:1].expand(4, WIDTH))

    def do_detach(self, what: str, x: Any, b: int) -> None:
        self.add(x.detach())

    def do_inplace(self, what: str, x: Any, b: int) -> None:
        x.mul_(0.5)

    def do_write(self, what: str, x: Any, b: int) -> None:
        x[:1] = 0.25

    def do_eval(self, what: str, x: Any, b: int) -> None:
        with tm.no_grad():
            self.add(nn.functional.relu(x * 2))

    def do_fail(self, what: str, x: Any, b: int) -> None:
        with pytest.raises(RuntimeError):
            (x * 3) @ tm.ones(WIDTH + 1, 2)

    def do_share(self, what: str, x: Any, b: int) -> None:
        linear = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        if len(linear) > 1:
            linear[0].weight = linear[-1].weight

    def do_cat(self, what: str, x: Any, b: int) -> None:
        self.add(tm.cat([x, x[b % x.shape[0] :]]))

    def do_split(self, what: str, x: Any, b: int) -> None:
        for part in x.split(b % 3 + 1)[:2]:
            self.add(part)

    def do_turn(self, what: str, x: Any, b: int) -> None:
        self.add(x.t().t() if b % 2 else x.t().contiguous().t())

    def do_inference(self, what: str, x: Any, b: int) -> None:
        with tm.inference_mode():
            self.add((x * 2).exp())

    def do_packed(self, what: str, x: Any, b: int) -> None:
        with tm.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
            self.add(x.to(tm.float32).tanh())

    def do_lookup(self, what: str, x: Any, b: int) -> None:
        self.add(x[tm.tensor(np.arange(b % 5 + 1) % x.shape[0])])

    def do_loss(self, what: str, x: Any, b: int) -> None:
        target = tm.tensor(np.arange(x.shape[0]) % WIDTH)
        nn.functional.cross_entropy(x, target).backward()

    def do_thread(self, what: str, x: Any, b: int) -> None:
        """Another thread makes what this one keeps, and drops what this one made."""
        mine = [x.detach() * 2]

        def work() -> None:
            with tm.device(self.where):
                self.add(mine.pop().exp())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def do_copy(self, what: str, x: Any, b: int) -> None:
        if self.layers:
            self.layers.append(copy.deepcopy(self.layers[b % len(self.layers)]))

    def do_halt(self, what: str, x: Any, b: int) -> None:
        """An exception on the way, in forward or in the middle of backward."""
        y = (x * 2).exp()
        if y.requires_grad:
            y.register_hook(stop)
            with pytest.raises(KeyboardInterrupt):
                (y * y).sum().backward()

    def do_backward(self, what: str, x: Any, b: int) -> None:
        x.sum().backward()

    def do_retain(self, what: str, x: Any, b: int) -> None:
        (x * x).sum().backward(retain_graph=True)

    def do_keep_grad(self, what: str, x: Any, b: int) -> None:
        found = [p.grad for layer in self.layers for p in layer.parameters() if p.grad is not None]
        self.kept += found[:2] + [b for layer in self.layers for b in layer.buffers()][:2]

    def do_zero(self, what: str, x: Any, b: int) -> None:
        for layer in self.layers:
            layer.zero_grad()

    def do_update(self, what: str, x: Any, b: int) -> None:
        parameters = [p for layer in self.layers for p in layer.parameters()]
        if self.rule is None and parameters:
            self.rule = tm.optim.Adam(dict.fromkeys(parameters), lr=0.1)
        if self.rule is not None:
            self.rule.step()

    def do_data(self, what: str, x: Any, b: int) -> None:
        for layer in self.layers[-1:]:
            for p in layer.parameters():
                p.data = p.data.clone()

    def do_to_double(self, what: str, x: Any, b: int) -> None:
        for layer in self.layers[-2:]:
            layer.double()
            layer.float()

    def do_gc(self, what: str, x: Any, b: int) -> None:
        gc.collect()

    def do_drop(self, what: str, x: Any, b: int) -> None:
        if self.values:
            self.values.pop(b % len(self.values))

    def do_drop_layer(self, what: str, x: Any, b: int) -> None:
        if self.layers:
            self.layers.pop(b % len(self.layers))

    def do_drop_rule(self, what: str, x: Any, b: int) -> None:
        self.rule = None
        self.kept.clear()


def held(where: Any) -> dict[int, Category]:
    """Address -> category, of every block that somebody holds as something: asked of the living, not of the log."""
    found, categories = Census(where), {}

    def hold(array: Any, category: Category) -> None:
        address = where.address(array)
        if address is not None:
            categories.setdefault(address, category)

    for p in found.parameters:
        hold(p.array, Category.PARAMETER)
    for b in found.buffers:
        hold(b.array, Category.BUFFER)
    for s in found.states:
        hold(s.array, Category.OPTIMIZER_STATE)
    for t in (*found.parameters, *found.tensors):
        if t._grad is not None:
            hold(t._grad.array, Category.GRADIENT)
    for node in found.nodes:
        for _, array in node.kept():
            hold(array, Category.ACTIVATION)
    return categories


BORN = {Category.INPUT, Category.TEMPORARY, Category.WORKSPACE, Category.UNTRACKED}


def check_roles(track: memory.Track, where: Any, kept: Sequence[tm.Tensor] = ()) -> None:
    """What the program has ``kept`` may be buffers of a module that is gone: they stay buffers."""
    expected, buffers = held(where), {where.address(tensor.array) for tensor in kept}
    for block in track.live("end"):
        found = expected.get(block.address)
        if found is None:
            kinds = BORN | {Category.BUFFER} if block.address in buffers else BORN
            assert block.category in kinds, f"nobody holds {block}"
        elif found is Category.ACTIVATION and block.category is Category.INPUT:
            pass  # an input that is saved is an input
        else:
            assert block.category is found, f"it is {found}: {block}"


@pytest.mark.parametrize("where", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
@settings(max_examples=examples(20))
@given(programs, st.booleans())
@example([("layer", 0, 0)] * 5 + [("thread", 0, 0)], False)
@example([("layer", 0, 1), ("backward", 0, 0), ("keep_grad", 0, 0), ("drop_layer", 1, 1)], True)
def test_categories_add_up_and_are_what_holds_the_blocks(where: str, program: list, before: bool):
    here, pool = device(where), device(where).pool
    gc.collect()
    base = pool.used_bytes()
    with here:
        run = Program(where) if before else None
        with memory.track(where) as track, counted(pool) as used:
            run = run or Program(where)
            for what, a, b in program:
                run.run(what, a, b)
                check_roles(track, here, run.kept)
            del run
            gc.collect()
            assert pool.used_bytes() == base or before
        check_sums(track, used)
        assert track.timeline()[-1].used == pool.used_bytes()


@pytest.mark.parametrize("where", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
@settings(max_examples=examples(15))
@given(work=st.lists(programs, min_size=2, max_size=4))
def test_threads_lose_no_event(where: str, work: list):
    pool = device(where).pool
    base = pool.used_bytes()
    errors: list[BaseException] = []
    all_begun = threading.Barrier(len(work))  # else one could end first, and the next would have its number

    def thread(program: list) -> None:
        try:
            all_begun.wait()
            with tm.device(where):
                run = Program(where)
                for what, a, b in program:
                    run.run(what, a, b)
        except BaseException as error:
            errors.append(error)

    with memory.track(where) as track:
        threads = [threading.Thread(target=thread, args=(program,)) for program in work]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        gc.collect()
    assert not errors
    used, live = base, {}
    for event in track.log:
        if event.kind is Kind.MALLOC:
            assert event.address not in live
            live[event.address] = event.rounded
            used += event.rounded
        elif event.kind is Kind.FREE:
            assert live.pop(event.address, event.rounded) == event.rounded
            used -= event.rounded
    assert used == pool.used_bytes()
    timeline = track.timeline()
    assert timeline[-1].used == used
    assert (np.sum([timeline.bytes(category) for category in Category], axis=0) == timeline.used).all()
    assert len(set(track.log.column("thread").tolist())) >= 2


@pytest.mark.parametrize("where", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("how", ["dropped", "collected"])
@pytest.mark.parametrize("what", ["tensor", "view"])
@pytest.mark.parametrize("older", [False, True], ids=["of the track", "older"])
def test_a_thread_that_does_nothing_else_frees_memory(where: str, how: str, what: str, older: bool):
    """CuPy's hooks are a thread's own, and this one has run no op."""
    pool = device(where).pool
    base, kept = pool.used_bytes(), []

    def make() -> None:
        made = tm.ones(100, 100, device=where)
        kept.append(made.as_strided((99, 99), (100, 1)) if what == "view" else made)
        if how == "collected":
            kept[0].cycle = kept[0]

    def free() -> None:
        kept.clear()
        gc.collect()

    gc.disable()
    try:
        if older:
            make()
        with memory.track(where) as track:
            if not older:
                make()
            track.mark("before")
            thread = threading.Thread(target=free)
            thread.start()
            thread.join()
            track.mark("after")
            again = tm.ones(100, 100, device=where)
    finally:
        gc.enable()
    assert [track.pool(mark.text).used - base for mark in track.marks] == [40_448, 0]
    assert track.pool("end").used == pool.used_bytes() == base + 40_448
    del again


@pytest.mark.cuda
@pytest.mark.parametrize("size", [0, 1000])
def test_a_thread_frees_the_last_tensor_over_an_array_of_cupys(gpu_pool: Any, size: int):
    """CuPy's pool counts what ``from_dlpack`` has borrowed from CuPy: only that tensor tells when it is freed."""
    import cupy

    kept = [tm.from_dlpack(cupy.zeros(size + 3, "float32")[3:])]
    held = gpu_pool.used_bytes()
    with memory.track("cuda") as track:
        track.mark("before")
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        track.mark("after")
        again = tm.ones(size + 3, device="cuda")
    assert track.pool("before").used == held == (4096 if size else 512)
    assert track.pool("after").used == 0
    assert track.pool("end").used == gpu_pool.used_bytes() == held
    del again


@pytest.mark.cuda
@pytest.mark.usefixtures("only_memory")
def test_on_a_gpu_the_categories_add_up_to_cupys_own_count():
    pool = device("cuda").pool
    gc.collect()
    with memory.track("cuda") as track, counted(pool) as used, tm.device("cuda"):
        for workload in WORKLOADS[:2]:
            step = workload.build(tm, "cuda")
            for _ in range(2):
                step()
                check_roles(track, device("cuda"))
                assert sum(track.by_category("end").values()) == pool.used_bytes()
        del step
    check_sums(track, used)
    assert track.timeline()[-1].used == pool.used_bytes()


def live_bytes_by_tracker(program: list) -> list[int]:
    """Bytes asked for by what is alive, after each step."""
    with memory.track() as track:
        started = track.pool("end").requested if len(track.log) else 0
        run, found = Program("cpu"), []
        for what, a, b in program:
            run.run(what, a, b)
            found.append(track.pool("end").requested - started)
    return found


def live_bytes_by_numpy(program: list, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The same where each array of the cpu is NumPy's own, counted by ``tracemalloc`` in NumPy's domain."""
    ours = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    with monkeypatch.context() as patch:
        patch.setattr(type(device("cpu")), "empty", lambda self, shape, dtype: np.empty(shape, dtype))
        tracemalloc.start()
        try:
            run, found = Program("cpu"), []
            for what, a, b in program:
                run.run(what, a, b)
                traces = tracemalloc.take_snapshot().filter_traces([ours]).traces
                found.append(sum(trace.size for trace in traces if trace.size > 1))  # an empty array takes one byte of NumPy's
        finally:
            tracemalloc.stop()
    return found


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs)
def test_an_independent_witness_agrees(program: list, monkeypatch: pytest.MonkeyPatch):
    """NumPy's own count of what it hands out is, after every step, the tracker's of the same program."""
    gc.collect()
    live_bytes_by_tracker(
        [("layer", 0, 3 * i) for i in range(len(LAYERS))] + [("loss", 0, 0)]
    )  # what kernels make once and keep
    tm.manual_seed(0)
    by_tracker = live_bytes_by_tracker(program)
    gc.collect()
    tm.manual_seed(0)
    assert by_tracker == live_bytes_by_numpy(program, monkeypatch)


def test_what_the_pool_takes_is_seen_from_outside(monkeypatch: pytest.MonkeyPatch):
    """``tracemalloc`` sees the memory of small segments (bytearrays) that the pool takes: its count is not the tracker's."""
    monkeypatch.setattr(device("cpu"), "pool", Pool("cpu"))  # without the holes that earlier tests have left in theirs
    tm.ones(10)
    device("cpu").pool.free_all_blocks()
    tracemalloc.start()
    try:
        with memory.track() as track:
            before = tracemalloc.get_traced_memory()[0]
            kept = [tm.ones(900) for _ in range(100)]
            grown = tracemalloc.get_traced_memory()[0] - before
            asked = sum(event.requested for event in track.log if event.kind is Kind.MALLOC)
            reserved = sum(event.rounded for event in track.log if event.kind is Kind.RESERVE and event.address)
    finally:
        tracemalloc.stop()
    assert asked == 100 * 3600
    assert 100 * 4096 - 4096 * 4 <= reserved <= 100 * 4096
    overhead = grown - reserved  # Python's own objects: bytearrays, arrays, tensors, and the log's tuples
    assert 0 < overhead < 100 * 4096
    del kept
