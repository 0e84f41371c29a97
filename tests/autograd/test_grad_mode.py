"""Grad modes as contexts, decorators and generators, per thread: compared with PyTorch's."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.errors import GraphError


def modes(library) -> list:
    """What ``is_grad_enabled`` says on the way through every construction."""
    log = []

    def note():
        log.append(library.is_grad_enabled())

    with library.no_grad():
        note()
        with library.enable_grad():
            note()
            with library.set_grad_enabled(False):
                note()
            note()
        note()
    note()
    with library.set_grad_enabled(False):
        note()
        with library.set_grad_enabled(True):
            note()
        note()
    note()
    with library.inference_mode():
        note()
        with library.inference_mode(False):
            note()
        with library.enable_grad():
            note()
            log.append((library.is_inference_mode_enabled(), (library.ones(1, requires_grad=True) * 2).requires_grad))
            with library.no_grad():
                note()
        note()
    with library.inference_mode(mode=False):
        note()
    library.set_grad_enabled(False)
    note()
    library.set_grad_enabled(True)
    note()

    @library.no_grad()
    def off():
        note()

    @library.no_grad
    def bare():
        note()

    @library.enable_grad()
    def on():
        note()

    @library.set_grad_enabled(False)
    def switched():
        note()

    @library.inference_mode()
    def inference():
        note()

    for f in (off, bare, on, switched, inference, off):
        f()
        note()
    with library.no_grad():
        on()
        note()

    @library.no_grad()
    def recursive(n):
        note()
        if n:
            recursive(n - 1)
        note()

    recursive(2)
    note()
    try:
        with library.no_grad():
            raise ValueError
    except ValueError:
        note()

    @library.no_grad()
    def generator():
        note()
        reply = yield 1
        log.append(reply)
        note()
        yield 2
        note()
        return 3

    g = generator()
    log.append(next(g))
    note()
    log.append(g.send("reply"))
    note()
    log.append(list(g))
    note()
    return log


def test_modes_are_pytorchs():
    assert modes(tm) == modes(torch)


@pytest.mark.parametrize("mode", ["no_grad", "enable_grad", "inference_mode", "set_grad_enabled"])
def test_a_decorated_function_is_given_what_it_was_called_with(mode: str):
    decorate = getattr(tm, mode)(True) if mode == "set_grad_enabled" else getattr(tm, mode)()

    def function(a: int, *rest: int, named: int, **more: int) -> tuple:
        return a, rest, named, more

    def generator(a: int, *rest: int, named: int, **more: int) -> Iterator[tuple]:
        yield function(a, *rest, named=named, **more)

    wanted = 1, (2, 3), 4, {"other": 5}
    assert decorate(function)(1, 2, 3, named=4, other=5) == wanted
    assert next(decorate(generator)(1, 2, 3, named=4, other=5)) == wanted


def generators(library) -> list:
    log = []

    @library.no_grad()
    def careful():
        try:
            yield 1
        except ValueError:
            log.append(("caught", library.is_grad_enabled()))
            yield 2
        finally:
            log.append(("finally", library.is_grad_enabled()))

    g = careful()
    log.append(next(g))
    log.append(g.throw(ValueError()))
    g.close()
    log.append(library.is_grad_enabled())
    g = careful()
    next(g)
    g.close()
    return log


@pytest.mark.filterwarnings("ignore:the .type, exc, tb. signature of throw:DeprecationWarning")  # PyTorch's, since Python 3.12
def test_exceptions_thrown_into_generators_arrive_inside():
    assert generators(tm) == generators(torch)


def test_one_context_object_may_be_entered_again():
    mode = tm.no_grad()
    with mode:
        with mode:
            assert not tm.is_grad_enabled()
        assert not tm.is_grad_enabled()
    assert tm.is_grad_enabled()


def test_the_mode_is_the_threads_own():
    seen = []
    with tm.no_grad():
        thread = threading.Thread(target=lambda: seen.append(tm.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_what_is_recorded():
    x = tm.ones(2, requires_grad=True)
    with tm.no_grad():
        y = x * 2.0
        assert not y.requires_grad
        with tm.enable_grad():
            assert (x * 2.0).requires_grad
        made = tm.ones(2, requires_grad=True)
    assert made.requires_grad
    assert y.is_leaf


def test_inference_tensors():
    x = tm.ones(2, requires_grad=True)
    with tm.inference_mode():
        assert tm.autograd.is_inference_mode_enabled()
        y = x * 2.0
        assert y.is_inference()
        assert not y.requires_grad
    with pytest.raises(GraphError, match="inference tensor"):
        y.requires_grad_()
    assert not (x * 2.0).is_inference()
    assert y.clone().requires_grad_().requires_grad
