"""Gradients of a walk that must not wait: it comes from inside a change, and another thread is adding to a leaf meanwhile.

They are kept until who adds has done so, who then adds them too: each once, as it was when it came.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import tinygrad_mem as tm
from tests.interleave import interleavings
from tinygrad_mem import interrupts, nn
from tinygrad_mem.autograd import core


@contextmanager
def somebody_adds() -> Iterator[None]:
    """Another thread adds to a leaf of its own, and is not done before the block is."""
    leaf, begun, end = tm.ones(2, requires_grad=True), threading.Event(), threading.Event()

    def add() -> None:
        with core._accumulating:
            begun.set()
            end.wait()
            core._add(leaf, tm.ones(2).array, False)
        core.accumulate(leaf, tm.ones(2).array, owned=False)

    thread = threading.Thread(target=add)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 2]
    assert not core._late


def test_a_walk_inside_a_change_waits_for_nobody_and_loses_no_gradient():
    x, hooked = tm.ones(3, requires_grad=True), []
    x.register_post_accumulate_grad_hook(lambda leaf: hooked.append(leaf.grad.tolist()))
    with somebody_adds():
        with interrupts.lock:
            (x * 2).sum().backward()
            (x * 3).sum().backward()
        assert x.grad is None
        assert len(core._late) == 2
    assert x.grad is not None
    assert x.grad.tolist() == [5, 5, 5]
    assert hooked == [[2, 2, 2], [5, 5, 5]]


def test_where_nobody_adds_it_adds_at_once():
    x = tm.ones(3, requires_grad=True)
    with interrupts.lock:
        (x * 2).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2, 2, 2]
    assert not core._late


@pytest.mark.parametrize("sparse", [False, True])
def test_a_gradient_that_is_late_is_as_it_was_when_it_came(sparse: bool):
    """The user's own buffer is written again before it is added."""
    if sparse:
        table = nn.Embedding(4, 2, sparse=True)
        leaf, out = table.weight, table(tm.tensor([1, 3]))
    else:
        leaf = tm.ones(2, 2, requires_grad=True)
        out = leaf.view(2, 2)
    gradient = tm.ones(2, 2)
    with somebody_adds():
        with interrupts.lock:
            out.backward(gradient)
        gradient.fill_(9)
    assert leaf.grad is not None
    found = leaf.grad.to_dense() if sparse else leaf.grad
    assert found.sum().item() == 4


def test_an_error_of_a_late_one_s_hook_does_not_lose_the_next():
    x, y = tm.ones(1, requires_grad=True), tm.ones(1, requires_grad=True)

    def fail(leaf: tm.Tensor) -> None:
        raise ValueError("a hook of the user's")

    x.register_post_accumulate_grad_hook(fail)
    begun, end, raised = threading.Event(), threading.Event(), []

    def add() -> None:
        with core._accumulating:
            begun.set()
            end.wait()
        try:
            core.accumulate(tm.ones(1, requires_grad=True), tm.ones(1).array, owned=False)
        except ValueError as error:
            raised.append(str(error))

    thread = threading.Thread(target=add)
    thread.start()
    begun.wait()
    with interrupts.lock:
        (x * 2).sum().backward()
        (y * 3).sum().backward()
    end.set()
    thread.join()
    assert raised == ["a hook of the user's"]
    tm.ones(1, requires_grad=True).sum().backward()  # whoever adds next
    assert (x.grad.item(), y.grad.item()) == (2, 3)  # type: ignore[union-attr]
    assert not core._late


@pytest.mark.parametrize("first_is_inside", [False, True])
def test_a_second_thread_at_every_bytecode(first_is_inside: bool, reliability: Callable[[str, int], None]):
    points = 0
    for both in interleavings(core.__file__):
        leaf, gradient = tm.ones(2, requires_grad=True), tm.ones(2).array

        def add(leaf: tm.Tensor = leaf, gradient: object = gradient) -> None:
            core.accumulate(leaf, gradient, owned=False)

        def inside(add: Callable[[], None] = add) -> None:
            with interrupts.lock:
                add()

        both(*((inside, add) if first_is_inside else (add, inside)))
        assert leaf.grad is not None
        assert (leaf.grad.tolist(), len(core._late)) == ([2, 2], 0), f"another thread at bytecode {points}"
        points += 1
    assert points > 30
    reliability("runs of a second thread between two bytecodes", points)
