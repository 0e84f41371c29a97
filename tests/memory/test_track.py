"""Asking a track: what is alive, whose it is, why, when; and what happens to those who ask wrongly."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.networks import WORKLOADS
from tinygrad_mem import memory, nn, scope
from tinygrad_mem.devices import device
from tinygrad_mem.memory import Category, Kind
from tinygrad_mem.memory.accounting import Layer, account, watch
from tinygrad_mem.memory.render.palette import sample
from tinygrad_mem.models.lenet import LeNet
from tinygrad_mem.nn import functional as F

PASSING = Category.TEMPORARY, Category.WORKSPACE


def r(count: int) -> int:
    return -(-count // 512) * 512


def since(question: Callable[[str], dict], at: str = "forward") -> dict:
    """The answer at the mark ``at``, less what was there at "start"."""
    found = Counter(question(at))
    found.subtract(question("start"))
    return {key: size for key, size in found.items() if size}


# --- categories -----------------------------------------------------------------------------------------------------------


def test_categories_of_a_training_step_are_what_the_formulas_say():
    with memory.track() as track:
        step = WORKLOADS[0].build(tm)
        step()
        step()
    peak = track.at_peak().by_category
    parameters = sum(r(p.nbytes) for p in step.model.parameters())
    assert peak[Category.PARAMETER] == parameters
    assert peak[Category.OPTIMIZER_STATE] == 2 * parameters  # Adam keeps two moments
    assert peak[Category.GRADIENT] <= parameters
    assert peak[Category.INPUT] == 256 * 784 * 4 + 256 * 8
    assert sum(peak.values()) == track.peak
    del step


@pytest.mark.parametrize("where", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.usefixtures("only_memory")
def test_a_track_begun_in_the_middle_knows_what_is_there(where: str):
    """Roles are found by asking the living; only who asked for it is not known any more."""
    with tm.device(where):
        step = WORKLOADS[1].build(tm, where)
        step()
        loss = F.cross_entropy(step.model(step.x), step.y)
        with memory.track(where) as track:
            track.mark("found")
            loss.backward()
    found = track.by_category("found")
    parameters = sum(r(p.nbytes) for p in step.model.parameters())
    assert found[Category.PARAMETER] == found[Category.GRADIENT] == found[Category.OPTIMIZER_STATE] == parameters
    saved = r(128 * 6 * 784 * 4) + r(128 * 6 * 196) + r(128 * 6 * 196 * 4)
    saved += r(128 * 16 * 100 * 4) + r(128 * 16 * 25) + r(128 * 16 * 25 * 4) + r(128 * 120 * 4) + r(128 * 84 * 4)
    scores = r(128 * 10 * 4)
    assert saved <= found[Category.ACTIVATION] <= saved + r(step.x.nbytes) + r(step.y.nbytes) + scores + 2 * 1024
    assert track.by_category("end").get(Category.ACTIVATION, 0) == 0, "backward has let go of what the census found"
    assert sum(found.values()) <= device(where).pool.used_bytes() + saved + 40_000


def test_what_was_there_before_is_named_so():
    kept = tm.device("cpu").empty((1000,), np.dtype(np.float32))  # no tensor uses it
    t = tm.tensor(np.ones(1000, np.float32))
    before = device("cpu").pool.used_bytes()
    with memory.track() as track:
        u = tm.tensor(np.ones(1000, np.float32))
    assert sum(track.at_peak().by_category.values()) == before + 4096
    assert track.at_peak().by_category[Category.INPUT] == 4096
    assert track.at_peak().by_category[Category.UNTRACKED] >= 8192
    with memory.track() as track:
        del t, u, kept
    assert track.timeline()[-1].used == before - 8192


def test_a_role_ends_when_its_holder_lets_go():
    with memory.track() as track:
        memory.mark("start")
        w = nn.Parameter(tm.ones(1000))
        y = (w * 2).exp()
        track.mark("forward")
        y.sum().backward()
        grad = w.grad
        track.mark("backward")
        w.grad = None
        track.mark("detached")
        data = w.detach()
        del w, y  # the graph that y hangs on holds the parameter
        track.mark("deleted")
    at = {name: since(track.by_category, name) for name in ("forward", "backward", "detached", "deleted")}
    assert at["forward"] == {Category.PARAMETER: 4096, Category.ACTIVATION: 4096}
    assert at["backward"] == {Category.PARAMETER: 4096, Category.GRADIENT: 4096, Category.TEMPORARY: 4096}, "y lives on"
    assert at["detached"] == {Category.PARAMETER: 4096, Category.TEMPORARY: 8192}
    assert at["deleted"] == {Category.INPUT: 4096, Category.TEMPORARY: 4096}, "it is again what it was born as"
    assert grad is not None
    assert data.shape == (1000,)


def test_views_tied_weights_and_broadcasts_count_once():
    with memory.track() as track:
        memory.mark("start")
        first, second = nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False)
        second.weight = first.weight
        views = [first.weight[i:] for i in range(3)]
        wide = first.weight[:1].expand(1000, 100)
        assert since(track.by_category, "end") == {Category.PARAMETER: r(40_000)}
    assert len(views) + wide.shape[0] == 1003


def test_inputs_are_what_depends_on_nothing_that_is_trained():
    w = tm.ones(100, 10, requires_grad=True)
    with memory.track() as track:
        x = tm.tensor(np.ones((50, 100), np.uint8))
        scaled = x.to(tm.float32) / 255
        noise = tm.randn(50, 100)
        out = (scaled + noise) @ w
        with tm.no_grad():
            guess = out.argmax(1)
    by_bytes = {block.requested: block.category for block in track.live("end") if block.category is not Category.UNTRACKED}
    assert by_bytes[x.nbytes] is Category.INPUT
    assert track.by_category("end")[Category.INPUT] >= r(x.nbytes) + r(scaled.nbytes) + r(noise.nbytes)
    assert by_bytes[out.nbytes] is Category.TEMPORARY
    assert by_bytes[guess.nbytes] is Category.TEMPORARY


def test_workspace_is_reported_from_temporaries():
    with memory.track() as track:
        nn.Conv2d(8, 8, 3)(tm.ones(2, 8, 20, 20))
    kinds = {block.category for block in track.blocks() if block.op == "Conv"}
    assert Category.WORKSPACE in kinds
    roles = {block.category for block in track.blocks() if block.op == "Conv" and block.rounded == r(2 * 8 * 18 * 18 * 4)}
    assert Category.TEMPORARY in roles


def test_master_weights_have_a_category():
    with memory.track() as track:
        memory.mark("start")
        copy = tm.ones(1000)
        for listener in scope.listeners:
            listener.role(copy.array, "MASTER_WEIGHT", copy, None)
        memory.mark("made")
        other = copy.detach()
        del copy
    assert since(track.by_category, "made") == {Category.MASTER_WEIGHT: 4096}
    assert since(track.by_category, "end") == {Category.INPUT: r(other.nbytes)}


def test_names_are_those_of_the_outermost_module_that_was_called():
    with memory.track() as track:
        model = nn.Sequential(nn.Sequential(nn.Linear(30, 30)), nn.Linear(30, 30))
        never = nn.Linear(40, 40)
        x = model[0](tm.ones(2, 30))
        memory.mark("inner")
        model(x)
    names = {b.name for b in track.live("end") if b.name and b.rounded in (r(3600), r(6400))}
    assert names == {"Sequential.0.0.weight", "Sequential.1.weight", "Linear.weight"}
    assert {b.name for b in track.live("inner") if b.rounded == r(3600)} == {"Sequential.0.weight", ""}
    del never


def test_phases():
    loader = tm.utils.data.DataLoader(tm.utils.data.TensorDataset(tm.ones(8, 4)), batch_size=4)
    with memory.track() as track:
        model = nn.Linear(4, 4)
        rule = tm.optim.Adam(model.parameters())
        for (x,) in loader:
            loss = (model(x) * 2).sum()
            loss.backward()
            rule.step()
            with scope.phase("recompute"):
                model(x)
    phases = {event.phase for event in track.log if event.kind is Kind.MALLOC}
    assert phases == {"user", "data", "forward", "backward", "optimizer", "recompute"}
    assert {b.category for b in track.blocks() if b.phase == "data"} == {Category.INPUT}


# --- whose ----------------------------------------------------------------------------------------------------------------


def test_every_byte_has_a_module_an_op_and_a_line():
    with memory.track() as track:
        memory.mark("start")
        model = nn.Sequential(nn.Linear(30, 200), nn.ReLU(), nn.Linear(200, 5))
        loss = model(tm.ones(64, 30)).sum()
        track.mark("forward")
        loss.backward()
    here = os.path.relpath(__file__)
    assert since(track.by_module) == {
        "Sequential.0": r(30 * 200 * 4) + r(800),
        "Sequential.1": r(64 * 200 * 4),
        "Sequential.2": r(200 * 5 * 4) + r(20),
        "": r(64 * 30 * 4) + 512,
    }
    assert since(track.by_op) == {"": r(24_000) + r(800) + r(4000) + r(20) + r(7680), "ReLU": r(64 * 200 * 4), "Sum": 512}
    lines = since(track.by_line)
    assert all(line.startswith(f"{here}:") for line in lines), lines
    assert all(line.endswith(" test_every_byte_has_a_module_an_op_and_a_line") for line in lines)
    for question in (track.by_module, track.by_op, track.by_line):
        assert sum(question("end").values()) == sum(track.by_category("end").values())
        assert list(question().values()) == sorted(question().values(), reverse=True)
    gradients = [b for b in track.live("end") if b.category is Category.GRADIENT]
    assert {b.owner for b in gradients} == {
        f"gradient of Sequential.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias")
    }
    assert all(b.phase == "backward" and b.home == b.module in ("Sequential.0", "Sequential.2") for b in gradients)
    assert {b.line for b in gradients} == {b.line for b in track.live("forward") if b.op == "ReLU"}, "where the op ran forward"


def test_the_networks_of_the_package_are_users_code():
    with memory.track("meta") as track, tm.device("meta"):
        out = LeNet()(tm.ones(2, 1, 28, 28).requires_grad_())
        lines = {b.line for b in track.live("end") if b.op == "ReLU"}
    assert lines
    assert all(line.startswith("tinygrad_mem/models/lenet.py:") and line.endswith(" forward") for line in lines)
    assert out.shape == (2, 10)


def test_a_line_is_of_its_own_file():
    """Code of two files may be equal: Python does not compare their names."""
    for name in ("first.py", "second.py"):
        with memory.track() as track:
            exec(compile("def f():\n    return tm.ones(8)\n\nx = f()", name, "exec"), {"tm": tm})
        assert [event.line for event in track.log if event.kind is Kind.MALLOC] == [f"{name}:2 f"]


def test_lives_of_blocks():
    with memory.track() as track:
        x = tm.ones(1000, requires_grad=True)
        y = x.exp()
        y.sum().backward()
        del y
    block = next(b for b in track.blocks() if b.op == "Exp" and b.phase == "forward")
    assert [category for _, category in block.categories] == [Category.TEMPORARY, Category.ACTIVATION, Category.TEMPORARY]
    assert block.died is not None
    assert block.died_ns is not None
    assert block.born_ns < block.died_ns
    assert track.log[block.born].kind is Kind.MALLOC
    assert track.log[block.died].kind is Kind.FREE
    assert (block.requested, block.rounded) == (4000, 4096)
    assert block.born == block.categories[0][0] < block.categories[1][0] < block.categories[2][0] <= block.died
    alive = [b for b in track.blocks() if b.died is None]
    assert {(b.born, b.rounded) for b in alive} == {(b.born, b.rounded) for b in track.live("end")}


def test_explain_says_who_holds_it_and_why():
    with memory.track() as track:
        model = nn.Linear(300, 10)
        x = tm.ones(4, 300)
        hidden = model(x)
        out = hidden.exp()
        kept = {"out": out}  # noqa: F841 (its name is asked for)
        assert "made by Exp" in track.explain(out)
        assert "Exp keeps it as 'y' for its backward" in track.explain(out)
        assert "`out` and `kept['out']` in your code refer to it" in track.explain(out)
        assert track.explain(model.weight).startswith("Linear.weight is 12,000 bytes (12,288 in the pool) of parameters")
        assert "Linear in Linear keeps it as 'x' for its backward" in track.explain(x)
        out.sum().backward()
        assert "keeps it" not in track.explain(out)
        assert "it is the gradient of Linear.weight" in track.explain(model.weight.grad)
        rule = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        rule.step()
        assert "the optimizer keeps it as state of Linear.weight" in track.explain(rule.state[model.weight]["momentum_buffer"])
        with pytest.raises(ValueError, match=r"records cpu, the tensor \[1\] is on meta"):
            track.explain(tm.ones(1, device="meta"))


def test_the_default_device_is_tracked():
    with tm.device("meta"), memory.track() as track:
        tm.ones(10)
    assert track.device == "meta"
    assert memory.track().device == "cpu"


def test_a_track_of_a_log_knows_no_tensor():
    with memory.track() as track:
        x = tm.ones(10)
    read = memory.Track.of(track.log)
    assert read.peak == track.peak
    with pytest.raises(ValueError, match="this track was read from a file"):
        read.explain(x)
    with pytest.raises(RuntimeError, match="not running"):
        read.__exit__()
    with pytest.raises(RuntimeError, match="has run already"):
        read.__enter__()


def test_explaining_holds_nothing():
    pool = device("cpu").pool
    before = pool.used_bytes()

    def inner(track: memory.Track) -> None:
        x = tm.ones(1000)
        track.explain(x)
        del x
        assert pool.used_bytes() == before

    with memory.track() as track:
        inner(track)


# --- when -----------------------------------------------------------------------------------------------------------------


def test_marks_and_moments():
    with memory.track() as outer:
        a = tm.ones(1000)
        memory.mark("one")
        with memory.track() as inner:
            b = tm.ones(2000)
            memory.mark("two")
            del b
        c = tm.ones(500)
    assert [mark.text for mark in outer.marks] == ["one", "two"]
    assert [mark.text for mark in inner.marks] == ["two"]
    grown = sum(outer.by_category("two").values()) - sum(outer.by_category("one").values())
    assert grown == r(8000)
    assert outer.by_category(outer.marks[1]) == outer.by_category("two") == outer.by_category(outer.marks[1].index)
    assert outer.at_peak().used == outer.peak == sum(outer.by_category("peak").values())
    assert sum(b.rounded for b in outer.live(outer.at_peak())) == outer.peak
    assert outer.at_peak(since=outer.marks[1]).index > outer.marks[1].index
    with pytest.raises(ValueError, match="no mark 'three'; the marks are 'one', 'two'; 'peak' and 'end' are moments too"):
        outer.live("three")
    del a, c


def test_overlapping_tracks_hear_everything_and_end_in_any_order():
    first, second = memory.track(), memory.track()
    first.__enter__()
    second.__enter__()
    x = tm.ones(1000)
    first.__exit__()
    y = tm.ones(1000)
    second.__exit__()
    assert sum(e.kind is Kind.MALLOC for e in first.log) == 1
    assert sum(e.kind is Kind.MALLOC for e in second.log) == 2
    assert not first.running
    assert not second.running
    del x, y


def test_garbage_that_is_collected_while_a_track_begins_is_not_lost(monkeypatch: pytest.MonkeyPatch):
    """A tensor's last holder becomes a cycle just before what is there is counted, and the collector is eager."""
    pool, threshold = device("cpu").pool, gc.get_threshold()
    holder, count = [tm.empty(1000)], pool.total_bytes

    def total_bytes() -> int:
        cycle: list = [holder.pop()] if holder else []
        cycle.append(cycle)
        return count()

    monkeypatch.setattr(pool, "total_bytes", total_bytes)
    gc.set_threshold(1, 1, 1)
    gc.enable()
    try:
        with memory.track() as track:
            gc.collect()
            used = pool.used_bytes()
    finally:
        gc.set_threshold(*threshold)
    assert not holder
    assert sum(track.by_category("end").values()) == used


def test_a_track_can_be_asked_while_it_runs():
    with memory.track() as track:
        x = tm.ones(1000)
        assert track.by_category("end")[Category.INPUT] == 4096
        y = tm.ones(1000)
        assert track.by_category("end")[Category.INPUT] == 8192
        assert track.running
    del x, y


def test_timeline_in_columns():
    with memory.track() as track:
        for _ in range(50):
            kept = tm.ones(1000) + tm.ones(1000)
    timeline = track.timeline()
    assert len(timeline) == len(timeline.used) == len(list(timeline))
    assert timeline[3:5] == [timeline[3], timeline[4]]
    assert timeline[-1].used == timeline.used[-1]
    assert (np.diff(timeline.time) >= 0).all()
    few = sample(timeline, 30)
    assert len(few) <= 34
    assert timeline.used[few].max() == track.peak
    assert sample(timeline, 10_000).tolist() == list(range(len(timeline)))
    with pytest.raises(IndexError, match="found 99999"):
        timeline[99_999]
    del kept


def test_the_pools_numbers_are_reported_apart():
    pool = device("meta").pool
    gc.collect()
    pool.free_all_blocks()
    with memory.track("meta") as track, tm.device("meta"):
        memory.mark("start")
        keep = [tm.ones(100) for _ in range(10)]
        del keep[::2]
        track.mark("half")
    state = track.pool("half")
    assert state.requested == 5 * 400 + track.pool("start").requested
    assert state.rounded == state.used == sum(track.by_category("half").values())
    assert state.reserved == pool.total_bytes() >= 10 * 512
    assert state.fragmentation == 1 - state.used / state.reserved


# --- two runs -------------------------------------------------------------------------------------------------------------


def two(inplace: bool) -> memory.Track:
    with memory.track("meta") as track, tm.device("meta"):
        x = tm.ones(100, 1000)
        model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(inplace=inplace), nn.Linear(1000, 1))
        model(x)
    return track


def test_in_place_relu_saves_transient_bytes_and_no_saved_bytes():
    found = two(False).compare(two(True))
    assert found.saved.change == 0
    assert found.temporary.change < 0
    assert [change.owner for change in found.vanished] == ["Sequential.1 ReLU"]


def test_what_appeared_vanished_and_moved():
    def run(adam: bool, size: int) -> memory.Track:
        with memory.track("meta") as track, tm.device("meta"):
            model = nn.Linear(100, size)
            rule = tm.optim.Adam(model.parameters()) if adam else tm.optim.SGD(model.parameters(), lr=0.1)
            model(tm.ones(10, 100)).sum().backward()
            rule.step()
        return track

    found = run(False, 10).compare(run(True, 20))
    assert found.peak.change > 0
    assert "optimizer" in found.phase[1]
    assert "state of Linear.weight" in {change.owner for change in found.appeared}
    moved = {change.owner: change.bytes for change in found.moved}
    assert moved["Linear.weight"] == r(8000) - r(4000)
    here = f"test_track.py:{run.__code__.co_firstlineno + 4} run"
    assert [re.sub(r"\S+(?=test_track)", "", " ".join(row.split())) for row in str(found).splitlines()] == [
        "peak 14.50 KiB -> 34.00 KiB (+19.50 KiB, +134.5%) in backward, now optimizer",
        "saved 0 B -> 0 B (0 B)",
        "temporary 6.00 KiB -> 10.50 KiB (+4.50 KiB, +75.0%)",
        "appeared 16.00 KiB state of Linear.weight (optimizer state)",
        "appeared 8.00 KiB gradient of Linear.weight (gradients)",
        "appeared 512 B Adam.step (temporaries)",
        "appeared 512 B gradient of Linear.bias (gradients)",
        "appeared 512 B state of Linear.bias (optimizer state)",
        "vanished -5.00 KiB Linear Linear (temporaries)",
        f"vanished -4.50 KiB {here} (inputs, temporaries)",
        "vanished -512 B Sum (temporaries)",
        "changed 4.00 KiB Linear.weight (parameters)",
    ]
    same = run(True, 20).compare(run(True, 20))
    assert (same.appeared, same.vanished, same.moved, same.peak.change) == ([], [], [], 0)
    assert str(same).splitlines()[0] == "peak       34.00 KiB -> 34.00 KiB (0 B, +0.0%) in optimizer"


def test_what_changed_names_both_categories():
    """At both peaks the first layer's output is alive: as a temporary, and kept for backward."""
    found = []
    for grad in (False, True):
        with memory.track("meta") as track, tm.device("meta"), tm.set_grad_enabled(grad):
            y = nn.Sequential(nn.Linear(100, 100), nn.Sigmoid())(tm.ones(10 * (1 + grad), 100))
            tm.ones(10_000)
            del y
        found.append(track)
    rows = [" ".join(row.split()) for row in str(found[0].compare(found[1])).splitlines()]
    assert "changed 4.00 KiB Sequential.1 Sigmoid (temporaries -> activations)" in rows


def temporaries(track: memory.Track) -> dict[str, int]:
    """The most bytes of temporaries and workspace of each module at one time, found block by block."""
    changes: dict[str, list[tuple[int, int]]] = {}
    for block in track.blocks():
        if block.category in PASSING:
            held = 0
            for event, category in (*block.categories, (block.died, None)):
                now = block.rounded if category in PASSING else 0
                if event is not None and now != held:
                    changes.setdefault(block.module, []).append((event, now - held))
                    held = now
    return {module: max(accumulate(size for _, size in sorted(events))) for module, events in changes.items()}


@pytest.mark.parametrize("workload", WORKLOADS[:3], ids=lambda each: each.name)
def test_the_temporaries_of_each_layer_are_those_of_its_blocks(workload: Any):
    layers: list[Layer] = []

    def run() -> None:
        step = workload.build(tm)
        layers.extend(watch(step.model))
        memory.mark("forward ends")
        step()

    track = memory.predict(run)
    account(track, layers, "forward ends")
    root, found = layers[0].kind, temporaries(track)
    assert [each.temporary for each in layers] == [
        found.get(f"{root}.{each.name}" if each.name else root, 0) for each in layers
    ]
    assert len({each.temporary for each in layers}) > 2


def test_the_temporaries_of_a_layer_are_without_those_that_other_layers_still_hold():
    with memory.track("meta") as track, tm.device("meta"), tm.no_grad():
        model = nn.Sequential(nn.Linear(100, 200), nn.Sigmoid(), nn.Linear(200, 50))
        layers, kept = watch(model), []
        for module in model:
            module.register_forward_hook(lambda module, inputs, output: kept.append(output))
        model(tm.ones(10, 100))
        account(track, layers, None)
    found = temporaries(track)
    assert {each.name: each.temporary for each in layers if each.name} == {"0": r(8000), "1": r(8000), "2": r(2000)}
    assert [found[f"Sequential.{i}"] for i in range(3)] == [r(8000), r(8000), r(2000)]


# --- off ------------------------------------------------------------------------------------------------------------------


def test_without_a_track_nothing_is_kept_for_one():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    node = model(tm.ones(2, 5)).grad_fn
    assert node is not None
    assert type(node.saved) is dict
    assert not {"line", "module"} & set(vars(node))
    with memory.track():
        node = model(tm.ones(2, 5)).grad_fn
        assert node is not None
        assert type(node.saved) is not dict
        assert (node.module, node.line.split()[-1]) == ("Sequential.1", "test_without_a_track_nothing_is_kept_for_one")
    assert scope.listeners == ()
    node.saved.clear()


def test_an_exception_passes_through_an_op_whose_arrays_die_with_it():
    class Mine(Exception):
        pass

    def fail(y: tm.Tensor) -> None:
        held = [np.unique(y.numpy()) for _ in range(10)]
        raise Mine(len(held))

    with memory.track():
        for _ in range(100):
            with pytest.raises(Mine, match="10"):
                fail(tm.unique(tm.ones(1000)))
