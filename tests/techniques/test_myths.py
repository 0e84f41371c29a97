"""Habits that tip lists praise, each with what it does, in bytes: some free a lot, some nothing, for the reason who holds it.

Each test states the claim, and asserts what happens, exactly.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.techniques.training import assert_predicted, saved_storages
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device
from tinygrad_mem.nn import functional as F

A = 256 * 64 * 4
"""Bytes of the one size of activation here."""


def x_of(grad: bool = False) -> Any:
    return tm.ones(256, 64, requires_grad=grad)


def peak(run: Callable, *args: Any) -> int:
    return assert_predicted(lambda: run(*args)).peak


def used() -> int:
    return device("cpu").pool.used_bytes()


# --- "call every intermediate x: names keep memory alive"


def own_names(function: Callable, grad: bool) -> None:
    x = x_of(grad)
    x1 = function(x)
    x2 = function(x1)
    x3 = function(x2)
    x4 = function(x3)
    x5 = function(x4)
    x6 = function(x5)
    if grad:
        x6.sum().backward()


def one_name(function: Callable, grad: bool) -> None:
    x = x_of(grad)
    for _ in range(6):
        x = function(x)
    if grad:
        x.sum().backward()


def test_one_name_for_all_frees_nothing_that_autograd_saved():
    """Claim: reusing ``x`` saves memory in forward. In training tanh's results are held by the graph, whatever their names."""
    plain = x_of(True)
    leaf_kept_by_its_name = A  # x itself, which nobody else holds in one_name
    assert peak(own_names, tm.tanh, True) - peak(one_name, tm.tanh, True) in (0, leaf_kept_by_its_name)
    y = tm.tanh(tm.tanh(plain))
    assert len(saved_storages(y.sum())) == 2


def test_one_name_for_all_frees_what_nobody_saved():
    """Without recording, or where the ops save nothing, names alone hold the arrays: 7 are alive, or 2."""
    with tm.no_grad():
        assert peak(own_names, tm.tanh, False) == 7 * A
        assert peak(one_name, tm.tanh, False) == 2 * A
    assert peak(own_names, lambda x: x + 1, True) - peak(one_name, lambda x: x + 1, True) >= 4 * A


def test_del_frees_what_nobody_saved_and_only_that():
    """Claim: ``del`` the intermediates. What a later op saved stays until its backward; what it did not is free at once."""
    x = x_of(True)
    before = used()
    a = x + 1  # saves nothing, and exp saves its own result
    b = a.exp()
    c = b.tanh()
    assert used() - before == 3 * A
    del a
    assert used() - before == 2 * A, "nobody saved the sum"
    del b
    assert used() - before == 2 * A, "exp saved it: the name was not all that held it"
    c.sum().backward()
    assert used() - before == A + A, "c, which has a name, and the gradient"


# --- "total += loss leaks", ".item()"


@pytest.mark.parametrize("item", [False, True])
def test_summing_losses_keeps_a_graph_only_where_no_backward_has_freed_it(item: bool):
    """Claim: ``total += loss`` keeps every graph. Where no backward has walked them, all that they saved; else numbers."""
    model = nn.Linear(64, 64)
    total: Any = 0.0
    before = used()
    for _ in range(5):
        loss = model(x_of()).exp().sum()
        total = total + (loss.item() if item else loss)
    kept = used() - before
    assert kept == (2 * A + 512 if item else 5 * 2 * A + 2 * 512), "of each graph the batch and exp's result; and the numbers"
    del loss, total
    assert used() == before
    total = 0.0
    for _ in range(5):
        loss = model(x_of()).exp().sum()
        loss.backward()
        total = total + (loss.item() if item else loss)
    gradients = 64 * 64 * 4 + 512
    assert used() - before == gradients + (512 if item else 2 * 512), "the last loss; and, not as a number, their sum"


# --- "model.eval() saves memory"


def test_eval_keeps_all_that_training_keeps_and_no_grad_keeps_nothing():
    """Claim: switch to eval for inference. eval changes dropout and batch norm; what is kept is no_grad's business."""
    layers = [m for _ in range(5) for m in (nn.Linear(64, 64), nn.Tanh())]
    model, x = nn.Sequential(*layers), x_of()
    kept = {}
    for mode in ("train", "eval"):
        y = getattr(model, mode)()(x).sum()
        kept[mode] = sum(saved_storages(y).values())
        del y
    assert kept["train"] == kept["eval"] == 6 * A, "the batch and five results"
    before = used()
    with tm.no_grad():
        y = model(x)
    assert used() - before == A
    del y

    def inference(quiet: bool) -> None:
        with tm.set_grad_enabled(not quiet):
            model = nn.Sequential(*[m for _ in range(5) for m in (nn.Linear(64, 64), nn.Tanh())])
            model.eval()(x_of())

    weights = 5 * (64 * 64 * 4 + 512)
    assert peak(inference, True) == weights + 3 * A, "the batch, an input and an output"
    assert peak(inference, False) == weights + 7 * A, "the batch, five results, and the last linear layer's"


# --- "zero_grad(set_to_none=True)"


def steps(none: bool, first: bool) -> None:
    model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64, bias=False), nn.Tanh())])
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        if first:
            optimizer.zero_grad(set_to_none=none)
        loss = model(x_of()).sum()
        if not first:
            optimizer.zero_grad(set_to_none=none)
        loss.backward()
        optimizer.step()


def test_zero_grad_to_none_before_forward_is_worth_the_gradients():
    """Claim: set_to_none saves memory. When it is called sets the peak (pytorch#92731): before forward, all gradients."""
    one = 64 * 64 * 4
    weights = 4 * one
    kept = peak(steps, False, True)
    assert kept - peak(steps, True, True) == weights, "no gradient of the last step while activations are highest"
    late = peak(steps, True, False) - peak(steps, True, True)
    assert late == weights - one - 512, "between forward and backward: the peak is now the end of forward, gradients included"
    model = nn.Linear(64, 64, bias=False)
    model(x_of()).sum().backward()
    before = used()
    model.zero_grad(set_to_none=False)
    assert used() == before, "zeros take what gradients took"
    model.zero_grad()
    assert before - used() == weights // 4


# --- "empty_cache frees memory", "gc.collect() frees memory"


def test_empty_cache_changes_what_is_reserved_and_nothing_that_is_used():
    """Claim: empty_cache() cures out of memory. It gives back what nobody uses; the pool does that by itself when it must."""
    pool = device("cpu").pool
    pool.free_all_blocks()
    x = [tm.ones(1 << 20) for _ in range(4)]
    in_use, reserved = pool.used_bytes(), pool.total_bytes()
    del x[::2]
    assert pool.total_bytes() == reserved, "freed blocks stay with the pool"
    assert in_use - pool.used_bytes() == 2 << 22
    memory.empty_cache("cpu")
    assert reserved - pool.total_bytes() == 2 << 22
    assert pool.used_bytes() == in_use - (2 << 22), "nothing that is alive was freed"
    x.append(tm.ones(1 << 20))
    assert pool.total_bytes() == reserved - (1 << 22), "and the next step takes it again"
    limited = pool.total_bytes() + (1 << 22)  # not of used bytes: a chunk that other tests still use a part of stays
    x.append(tm.ones(1 << 19))
    del x[-1]
    with memory.limit(limited, "cpu"):
        x.append(tm.ones(1 << 20))  # the cached half goes back by itself


def test_gc_collect_finds_nothing():
    """Claim: collect garbage after each step. There are no cycles: memory falls when the last reference goes."""
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5))
    optimizer = tm.optim.Adam(model.parameters())
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x_of()), x_of())
            loss.backward()
            optimizer.step()
        del loss
        before = used()
        gc.collect()
        assert used() == before
    finally:
        gc.enable()


# --- "detach"


def test_detach_cuts_the_graph_that_a_state_carries_along():
    """Claim: detach hidden states. True: without it the graph of every step before is kept; the values are the same memory."""
    for cut in (False, True):
        state = x_of()
        weight = nn.Parameter(tm.eye(64))
        before = used()
        for _ in range(5):
            state = (state @ weight).tanh()
            if cut:
                state = state.detach()
        assert used() - before == (0 if cut else 5) * A, "of five steps, or the one state that there was before"
    y = x_of()
    before = used()
    z = y.detach()
    assert used() == before
    del z


# --- "the peak is twice the activations"


def test_the_peak_is_not_twice_the_activations():
    """Claim: backward doubles the activations. Gradients of activations live one or two at a time, and what they need goes."""

    def step() -> None:
        x = x_of(True)
        for _ in range(20):
            x = x.tanh()
        x.sum().backward()

    kept = 20 * A
    assert peak(step) == A + kept + A + 2 * 512, "the leaf, all results, one gradient; the sum and its gradient"
