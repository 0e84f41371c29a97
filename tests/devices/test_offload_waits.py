"""Offload on a GPU, with pinned memory and a stream beside: equal to a plain step, and each of its waits is needed."""

from __future__ import annotations

import contextlib
import functools
import gc
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.emulated.device import LATENESS, ORDERS, Device
from tests.tracing import signal_points
from tinygrad_mem import nn
from tinygrad_mem.devices import cuda, device
from tinygrad_mem.devices.cuda import CUDA
from tinygrad_mem.techniques import offload, save_on_cpu

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("gpu_pool")]
MODES = [(order, late) for order in ORDERS for late in LATENESS if late != "idle"]
WIDTH = 96


def trained(around: Callable[[], Any]) -> list[np.ndarray]:
    """Three steps of a chain whose blocks are all of one size, so that a free one is used again at once."""
    tm.manual_seed(0)
    with tm.device("cuda"):
        model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            x = tm.randn(WIDTH, WIDTH)
            with around():
                loss = model(x).square().mean()
            with around():
                forgotten = model(x)  # nobody goes backward through it all: what was fetched ahead is let go
            forgotten[0].sum().backward(inputs=[model[-2].weight])
            optimizer.zero_grad()
            del forgotten
            loss.backward()
            optimizer.step()
    return [p.detach().cpu().numpy() for p in model.parameters()]


def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(map(np.array_equal, a, b))


@pytest.mark.parametrize("pinned", [False, True], ids=["", "pinned"])
def test_equal_to_a_plain_step_bit_for_bit(pinned: bool):
    """On a GPU too, where there is one."""
    assert equal(trained(lambda: save_on_cpu(pin_memory=pinned)), trained(contextlib.nullcontext))


@functools.cache
def plain() -> list[np.ndarray]:
    """What each order is compared with."""
    return trained(contextlib.nullcontext)


@pytest.mark.parametrize(("order", "late"), MODES)
def test_in_each_order_of_threads_and_streams(emulated: Device, order: str, late: str):
    expected = plain()
    with emulated.mode(order, late):
        for pinned in (False, True):
            assert equal(trained(lambda pinned=pinned: save_on_cpu(pin_memory=pinned)), expected)


def interrupted_backward(point: int) -> bool:
    """Ctrl-C at a point of a backward that copies ahead; and then all of it is let go."""
    seen = 0

    def at(frame: FrameType, position: int) -> None:
        nonlocal seen
        seen += 1
        if seen == point:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    with tm.device("cuda"):
        x = tm.ones(WIDTH, WIDTH, requires_grad=True)
        with save_on_cpu(pin_memory=True):
            y = x.exp().tanh().sigmoid().exp()
        try:
            with signal_points(lambda code: code.co_filename in (offload.__file__, cuda.__file__), at):
                y.backward(tm.ones_like(y))
        except KeyboardInterrupt:
            return True
    return False


def test_a_copy_that_ctrl_c_parts_from_its_tensor_is_waited_for(emulated: Device, gpu_pool: Any):
    """The memory went back at once, and the copy then came into the next tensor."""
    point, wrong = 0, []
    with emulated.mode("forward", "late"):
        while interrupted_backward(point := point + 1):
            gc.collect()
            assert gpu_pool.used_bytes() == 0, point
            kept = [tm.full((WIDTH, WIDTH), 7.0, device="cuda") for _ in range(3)]
            device("cuda").synchronize()
            wrong += [point] * any((t != 7).any() for t in kept)
            del kept
    assert point > 100
    assert wrong == []


def without_waiting_for_what_comes_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CUDA, "wait", lambda self, copy: None)


def without_waiting_for_who_had_the_memory(patch: pytest.MonkeyPatch) -> None:
    import cupy

    class Stream(cupy.cuda.Stream):
        def wait_event(self, event: Any) -> None: ...

    patch.setattr(device("cuda"), "_aside", Stream(non_blocking=True))


def without_waiting_for_what_nobody_came_for(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(offload.Parked, "__del__")


def with_host_memory_that_goes_too_early(patch: pytest.MonkeyPatch) -> None:
    """The host's block is a new one, and its memory is given back at once."""
    to_host = CUDA.to_host

    def freed(self: Any, source: Any, out: np.ndarray) -> None:
        to_host(self, source, self.pool.host(pinned=True).malloc(out.nbytes))

    patch.setattr(CUDA, "to_host", freed)


@pytest.mark.parametrize(
    "mutate",
    [
        without_waiting_for_what_comes_ahead,
        without_waiting_for_who_had_the_memory,
        without_waiting_for_what_nobody_came_for,
        with_host_memory_that_goes_too_early,
    ],
)
def test_a_wait_that_is_missing_is_found(emulated: Device, monkeypatch: pytest.MonkeyPatch, mutate: Callable):
    """By other numbers or by the device, in at least one order; the test above says that with all waits it is in none."""
    plain = trained(contextlib.nullcontext)

    def shows(order: str, late: str) -> bool:
        with emulated.mode(order, late):
            same = equal(trained(lambda: save_on_cpu(pin_memory=True)), plain)
            gc.collect()
            return bool(emulated.problems()) or not same

    with monkeypatch.context() as patch:
        mutate(patch)
        assert any(shows(order, late) for order, late in MODES)
