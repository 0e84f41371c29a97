"""A test that leaves something behind is the one that fails; none finds what an earlier one left."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import absent, memory, scope
from tinygrad_mem.devices import device

from . import pools, seal

pytest_plugins = ["pytester"]

FIRST = """
import gc
import os
import weakref
import tinygrad_mem as tm

failed = []

def in_a_cycle():
    cycle = [tm.ones(1000)]
    cycle.append(cycle)
    failed.append(weakref.ref(cycle[0]))
    return cycle

def fail():
    cycle = in_a_cycle()
    raise TypeError

def test_that_fails():
    cycle = in_a_cycle()
    try:
        fail()
    except TypeError as error:
        raise ValueError from error

def test_after_one_that_failed():
    gc.collect()
    assert [ref() for ref in failed] == [None, None]

def test_that_leaves_a_cycle():
    cycle = [tm.ones(1000)]
    cycle.append(cycle)

def test_that_leaves_a_variable():
    os.environ["LEFT"] = "1"

kept = []

def test_that_keeps_a_tensor():
    kept.append(tm.ones(1000))
"""
SECOND = """
import pytest
import tinygrad_mem as tm

def state():
    pool = tm.device("cpu").pool
    return pool.used_bytes(), pool.total_bytes(), pool.peak_total

@pytest.fixture(scope="module")
def found():
    return state()

def test_that_finds_nothing(found):
    assert found == state() == (0, 0, 0)

def test_that_leaves_gradients_off():
    tm.set_grad_enabled(False)
"""


def test_the_culprit_fails(pytester: pytest.Pytester):
    pytester.makeconftest(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from tests import conftest\n"
        "from tests.conftest import begun, pytest_runtest_makereport, sealed\n"
        "conftest.CROWD = 0"
    )
    pytester.makepyfile(test_a=FIRST, test_b=SECOND)
    ran = pytester.runpytest_subprocess("-p", "no:xdist")
    ran.assert_outcomes(passed=6, failed=1, errors=2)
    for culprit, left in ("a_variable", "environment"), ("gradients_off", "scope.local.grad_enabled"):
        ran.stdout.fnmatch_lines([f"*ERROR at teardown of test_that_leaves_{culprit}*", f"*the test left its {left} changed*"])


class Quiet(scope.Listener):
    """Hears events, and does nothing."""


LEAVES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "scope.local.grad_enabled": (lambda: tm.set_grad_enabled(False), lambda: tm.set_grad_enabled(True)),
    "scope.local.default_device": (lambda: tm.set_default_device("meta"), lambda: tm.set_default_device(None)),
    "scope.local.phase": (lambda: setattr(scope.local, "phase", "backward"), lambda: delattr(scope.local, "phase")),
    "default dtype": (lambda: tm.set_default_dtype(tm.float64), lambda: tm.set_default_dtype(tm.float32)),
    "limit on the pool of cpu": (
        lambda: device("cpu").pool.set_limit(1 << 30),
        lambda: device("cpu").pool.set_limit(),
    ),
    "limit on the pool of meta": (lambda: device("meta").pool.set_limit(1 << 30), lambda: device("meta").pool.set_limit()),
    "listeners": (lambda: scope.listen(QUIET), lambda: scope.unlisten(QUIET)),
    "environment": (lambda: os.environ.update(LEFT="1"), lambda: os.environ.pop("LEFT")),
    "sys.path": (lambda: sys.path.append("left"), lambda: sys.path.remove("left")),
    "signal handlers": (
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    ),
    "recursion limit": (
        lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
        lambda: sys.setrecursionlimit(sys.getrecursionlimit() - 1),
    ),
    "settings of NumPy": (lambda: np.setbufsize(256), lambda: np.setbufsize(8192)),
    "precision of products": (
        lambda: tm.set_float32_matmul_precision("medium"),
        lambda: tm.set_float32_matmul_precision("highest"),
    ),
}
QUIET = Quiet()


@pytest.mark.parametrize("name", LEAVES)
def test_what_is_left_is_named(name: str):
    leave, undo = LEAVES[name]
    before = seal.state()
    assert seal.left(before) == []
    leave()
    try:
        said = seal.left(before)
    finally:
        undo()
    assert [line.partition(" changed: ")[0] for line in said] == [f"the test left its {name}"]
    assert seal.left(before) == []


@pytest.mark.parametrize("place", pools.PLACES)
def test_an_emptied_pool_is_as_new_and_what_is_alive_goes_on_living(place: str):
    pool = device(place).pool
    older, gone = tm.ones(1000, device=place), tm.ones(3000, device=place)
    address = device(place).address(older.array)
    del gone
    pool.set_limit(1 << 30)
    pools.emptied(pool)
    assert (pool.used_bytes(), pool.total_bytes(), pool.peak_total, pool.get_limit(), pool.holes()) == (0, 0, 0, 0, ())
    newer = tm.zeros(1000, device=place)
    assert device(place).address(newer.array) == address  # each test has the same addresses
    if place == "cpu":
        assert older.tolist() == [1.0] * 1000
    with memory.track(place) as track:
        del older
        newest = tm.zeros(1000, device=place)
    assert [event.address == address for event in track.log if event.kind is memory.Kind.FREE] == []
    assert pool.used_bytes() == 2 * 4096
    del newer, newest
    assert pool.used_bytes() == 0


def test_generators_begin_anew_and_what_is_said_once_is_said_again():
    seal.begin()
    drawn = random.random(), tm.rand(3).tolist()
    absent._said.add("compile")
    seal.begin()
    assert (random.random(), tm.rand(3).tolist()) == drawn
    assert not absent._said
