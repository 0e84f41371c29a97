"""The engine: order, length, lifetimes, and PyTorch's behaviour of backward, grad and hooks."""

from __future__ import annotations

import gc
import re
import threading
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.autograd import Function, core
from tinygrad_mem.devices import round_up
from tinygrad_mem.errors import DeviceError, DTypeError, GraphError, ShapeError

from ..devices.test_pool import Failing

POOL = tm.device("cpu").pool
LONG = 30_000


@pytest.fixture
def no_gc():
    """The collector is off: what is freed is freed by its last reference. What it finds afterwards must not be ours."""
    gc.collect()
    gc.disable()
    yield
    before = POOL.used_bytes()
    gc.collect()
    assert POOL.used_bytes() == before, "gc freed blocks: there was a reference cycle"
    gc.enable()


def leaf(*shape: int) -> tm.Tensor:
    return tm.ones(*shape, requires_grad=True)


def with_expanded_grad() -> tm.Tensor:
    x = leaf(2)
    x.grad = tm.ones(1).expand(2)
    return x


# --- long and wide graphs


def test_a_chain_of_30_000_ops_forward_backward_and_free(no_gc):
    x = leaf(1)
    before = POOL.used_bytes()
    y = x
    for _ in range(LONG):
        y = y * 1.0
    assert POOL.used_bytes() == before + 512
    y.backward()
    assert x.grad.item() == 1
    y, x.grad = x, None
    for _ in range(LONG):
        y = y.tanh()
    assert POOL.used_bytes() == before + 512 * LONG
    del y
    assert POOL.used_bytes() == before


def count_steps(monkeypatch) -> list:
    steps: list = []
    original = core.Walk._step

    def counted(walk, node):
        steps.append(node.op.__name__)
        return original(walk, node)

    monkeypatch.setattr(core.Walk, "_step", counted)
    return steps


def test_a_chain_of_30_000_views_is_linear(no_gc):
    x = leaf(2, 3)
    y = x * 2.0
    for _ in range(LONG):
        y = y.t()
    y.sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2
    del y
    assert gc.collect() == 0


@pytest.mark.parametrize("depth", [10, 500])
def test_a_chain_of_diamonds_visits_every_node_once(depth, monkeypatch, no_gc):
    steps = count_steps(monkeypatch)
    x = tm.ones(1, dtype=tm.float64, requires_grad=True)
    y = x
    for _ in range(depth):
        y = y * 0.5 + y * 0.5
    y.backward()
    assert len(steps) == 3 * depth
    assert x.grad.item() == 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_backward_of_nothing(shape):
    for loss in (lambda x: (x * 2.0).sum(), lambda x: (x * 2.0).relu().sum(0).sum(), lambda x: (x / 3.0).exp().mean()):
        x = leaf(*shape)
        loss(x).backward()
        assert x.grad is not None
        assert x.grad.shape == shape


def test_many_uses_of_one_tensor_are_added_up(no_gc):
    x = leaf(10)
    total = x * 0.0
    for i in range(200):
        total = total + x * float(i)
    total.sum().backward()
    assert x.grad.tolist() == [sum(range(200))] * 10


# --- lifetimes


def test_after_a_step_only_parameters_and_gradients_are_live(no_gc):
    before = POOL.used_bytes()
    ws = [leaf(64, 64) for _ in range(4)]
    x = tm.ones(32, 64)
    start = POOL.used_bytes()
    for step in range(3):
        h = x
        for w in ws:
            h = (h @ w).relu()
        loss = h.mean()
        loss.backward()
        del h, loss
        assert POOL.used_bytes() == start + 4 * 64 * 64 * 4, f"step {step}"
    for w in ws:
        w.grad = None
    assert POOL.used_bytes() == start
    del ws, w, x
    assert POOL.used_bytes() == before


def test_what_is_saved_goes_while_backward_walks(no_gc):
    x = leaf(1000)
    seen = []
    h = x
    for _ in range(5):
        h = h.exp()
        h.register_hook(lambda g: seen.append(POOL.used_bytes()))
    loss = h.sum()
    del h
    loss.backward()
    assert seen == sorted(seen, reverse=True)
    assert seen[0] - seen[-1] == 3 * 4096  # 5 outputs saved at the first, 1 and a gradient at the last


def test_deleting_the_loss_frees_the_graph(no_gc):
    x = leaf(1000)
    before = POOL.used_bytes()
    loss = (x * 2.0).exp().exp().sum()
    assert POOL.used_bytes() > before + 2 * 4096
    del loss
    assert POOL.used_bytes() == before


def test_nothing_is_kept_for_what_needs_no_gradient(no_gc):
    x = tm.ones(1000)
    before = POOL.used_bytes()
    y = x.exp().exp().exp()
    assert POOL.used_bytes() == before + 4096
    assert y.grad_fn is None
    with tm.no_grad():
        y = leaf(1000).exp().exp()
    assert POOL.used_bytes() == before + 4096


class Broken(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        raise ValueError("broken backward")


def works_again(x) -> None:
    x.grad = None
    (x * 3.0).sum().backward()
    assert x.grad.tolist() == [3.0] * x.numel()


def test_an_exception_in_forward_pins_nothing(no_gc):
    x, y = leaf(1000), leaf(999)
    before = POOL.used_bytes()
    for _ in range(2):
        with pytest.raises(ShapeError):
            x.exp().exp() + y
        assert POOL.used_bytes() == before
    works_again(x)


def test_an_exception_in_backward_pins_nothing(no_gc):
    x = leaf(1000)
    before = POOL.used_bytes()
    loss = Broken.apply(x.exp().exp()).exp().sum()
    with pytest.raises(ValueError, match="broken backward"):
        loss.backward()
    assert tm.is_grad_enabled()
    del loss
    assert POOL.used_bytes() == before
    works_again(x)


def test_an_exception_in_a_hook_pins_nothing(no_gc):
    x = leaf(1000)
    before = POOL.used_bytes()
    h = x.exp()

    def broken(g):
        raise ValueError("broken hook")

    h.register_hook(broken)
    loss = h.exp().sum()
    del h
    with pytest.raises(ValueError, match="broken hook"):
        loss.backward()
    del loss
    assert POOL.used_bytes() == before
    works_again(x)


LOSSES = {
    "elementwise": lambda w: (((w * 3.0).exp() * w).softmax(0).var() * w).sum(),
    "cross entropy": lambda w: tm.nn.functional.cross_entropy(w.reshape(10, -1) * 2.0, tm.zeros(10, dtype=tm.int64)),
}


@pytest.mark.parametrize("walk", ["backward", "grad"])
@pytest.mark.parametrize("name", LOSSES)
def test_inside_an_except_block_a_failed_backward_is_already_free(name, walk, no_gc):
    """Where a training loop goes on with a smaller batch: the exception and its traceback are still there."""
    w, k = leaf(1000), 0
    before = POOL.used_bytes()
    while True:
        k += 1
        loss = LOSSES[name](w)
        with Failing(POOL, k):
            try:
                loss.backward() if walk == "backward" else tm.autograd.grad(loss, [w])
            except tm.OutOfMemoryError as error:
                del loss
                w.grad = None
                pinned, trace = POOL.used_bytes() - before, error.__traceback__
                assert (pinned, k) == (0, k)
                del trace
            else:
                break
    assert k >= 3
    del loss
    works_again(w)


def test_keyboard_interrupts_come_through():
    x = leaf(3)

    def stop(g):
        raise KeyboardInterrupt

    h = x * 2.0
    h.register_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        h.sum().backward()
    works_again(x)


# --- backward and grad: PyTorch's rules


def test_backward_twice():
    x = leaf(3)
    y = x.exp().sum()
    y.backward(retain_graph=True)
    first = x.grad.tolist()
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.array(first), rtol=1e-6)
    with pytest.raises(GraphError, match="Trying to backward through the graph a second time: ExpBackward0"):
        y.backward()


def test_what_saved_nothing_can_be_walked_again():
    def program(library):
        x = library.tensor([1.0, 2.0], requires_grad=True)
        y = (x + x).sum()
        y.backward()
        y.backward()
        return x.grad.tolist()

    assert program(tm) == program(torch)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: leaf(2).exp().backward(), GraphError, r"only for scalar outputs, found shape \[2\]"),
        (lambda: tm.ones(1).backward(), GraphError, "does not require grad and does not have a grad_fn"),
        (lambda: leaf(1).exp().backward(create_graph=True), GraphError, "create_graph=True is not offered"),
        (lambda: leaf(2).exp().backward(tm.ones(3)), ShapeError, r"has a shape of \[3\] and output has a shape of \[2\]"),
        (lambda: leaf(2).exp().backward(tm.ones(2, dtype=tm.int64)), DTypeError, "a gradient of a floating dtype, found int64"),
        (lambda: tm.autograd.backward([leaf(1)], [None, None]), GraphError, "got 1 tensors and 2 gradients"),
        (lambda: tm.autograd.backward([3.0]), TypeError, "backward: expected tensors, found float"),
        (lambda: leaf(1).exp().backward(inputs=[]), GraphError, "inputs is empty"),
        (lambda: tm.autograd.grad(leaf(1).exp(), []), GraphError, "argument to `grad\\(\\)` cannot be empty"),
        (lambda: with_expanded_grad().sum().backward(), GraphError, "the memory of .grad is read-only"),
        (lambda: tm.autograd.grad(leaf(1), leaf(1)), GraphError, "appears to not have been used in the graph"),
        (lambda: tm.autograd.grad(leaf(1), tm.ones(1)), GraphError, "does not require grad"),
        (lambda: tm.autograd.grad(leaf(1).exp(), leaf(1), create_graph=True), GraphError, "create_graph=True"),
        (lambda: setattr(tm.ones(2, dtype=tm.int64), "requires_grad", True), DTypeError, "only Tensors of floating point"),
        (lambda: setattr(leaf(1).exp(), "requires_grad", False), GraphError, "you can only change requires_grad flags of leaf"),
        (lambda: tm.ones(1).register_hook(print), GraphError, "cannot register a hook on a tensor that doesn't"),
        (lambda: tm.ones(1).retain_grad(), GraphError, "can't retain_grad on Tensor that has requires_grad=False"),
        (lambda: leaf(1).exp().register_post_accumulate_grad_hook(print), GraphError, "cannot be registered on non-leaf"),
        (lambda: setattr(leaf(2), "grad", tm.ones(3)), ShapeError, "assigned grad has data of a different size or device"),
        (lambda: setattr(leaf(2), "grad", 3), TypeError, "expected a Tensor or None, found int"),
        (lambda: leaf(2)[:1].detach_(), GraphError, "Can't detach views in-place"),
    ],
    ids=range(21),
)  # fmt: skip
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_gradient_of_a_tensor_that_is_a_leaf_itself():
    x = leaf(1)
    x.backward()
    assert x.grad.tolist() == [1.0]
    x = leaf(2)
    seed = tm.tensor([3.0, 4.0])
    x.backward(seed)
    seed.fill_(0)
    assert x.grad.tolist() == [3.0, 4.0]


def test_backward_with_gradient_and_several_roots():
    def program(library):
        x = library.tensor([1.0, 2.0], requires_grad=True)
        y, z = x * 3.0, x * x
        library.autograd.backward([y, z.sum(), y], [library.tensor([1.0, 2.0]), None, library.tensor([5.0, 5.0])])
        return x.grad.tolist()

    assert program(tm) == program(torch)


def test_backward_inputs():
    x, y = leaf(2), leaf(2)
    h = x * y
    (h * x).sum().backward(inputs=[y])
    assert x.grad is None
    assert y.grad.tolist() == [1.0, 1.0]
    h = x * y
    (h * 2.0).sum().backward(inputs=[h, x])
    assert h.grad.tolist() == [2.0, 2.0]
    assert x.grad.tolist() == [2.0, 2.0]


def test_autograd_grad():
    def program(library):
        x = library.tensor([1.0, 2.0], requires_grad=True)
        y = library.tensor([3.0, 4.0], requires_grad=True)
        h = x * y
        z = h * x
        found = library.autograd.grad(z, [x, h, y], library.tensor([1.0, 10.0]), retain_graph=True)
        alone = library.autograd.grad(z.sum(), [h], retain_graph=True)
        unused = library.autograd.grad(z.sum(), [y, library.ones(1, requires_grad=True)], allow_unused=True)
        assert x.grad is None
        assert unused[1] is None
        return [t.tolist() for t in (*found, *alone, unused[0])]

    assert program(tm) == program(torch)


def test_a_gradient_that_was_asked_for_is_handed_on_without_a_copy(no_gc):
    h = leaf(1000).exp()
    loss = h.sin().sum()
    before = POOL.used_bytes()
    POOL.reset_peak()
    (g,) = tm.autograd.grad(loss, h)
    assert POOL.counts().peak_used - before == 4096 + 512  # the gradient of h, and that of the loss
    del g


def test_autograd_grad_of_the_same_input_twice_gives_two_tensors():
    x = leaf(3)
    first, second = tm.autograd.grad((x * 2.0).sum(), [x, x])
    first.fill_(0)
    assert second.tolist() == [2.0] * 3
    output = leaf(1) * 2.0
    (itself,) = tm.autograd.grad(output, [output])
    assert itself.tolist() == [1.0]


def test_grad_walks_only_the_way_to_its_inputs(monkeypatch):
    steps = count_steps(monkeypatch)
    x, y = leaf(2), leaf(2)
    z = x.exp() + y.exp().exp().exp()
    tm.autograd.grad(z.sum(), [x])
    assert steps.count("Exp") == 1


def test_gradients_accumulate_and_stay_with_their_owner():
    x = leaf(3)
    (x * 2.0).sum().backward()
    first = x.grad
    (x * 3.0).sum().backward()
    assert x.grad is first
    assert first.tolist() == [5.0] * 3


def test_no_two_tensors_share_a_gradient():
    a, b, c = leaf(3), leaf(3), leaf(3)
    (a + b + c).sum().backward()
    for i, t in enumerate((a, b, c)):
        t.grad.fill_(float(i))
    assert [t.grad.tolist()[0] for t in (a, b, c)] == [0.0, 1.0, 2.0]
    seed = tm.ones(3)
    a, b = leaf(3), leaf(3)
    (a + b).backward(seed)
    a.grad.fill_(7)
    assert b.grad.tolist() == seed.tolist() == [1.0] * 3


# --- hooks


def test_tensor_hooks_are_pytorchs():
    def program(library):
        log = []
        x = library.tensor([1.0, 2.0], requires_grad=True)
        h = x * 2.0
        x.register_hook(lambda g: log.append(("leaf", g.tolist())))
        x.register_hook(lambda g: g * 10)
        x.register_hook(lambda g: log.append(("leaf after", g.tolist())))
        h.register_hook(lambda g: log.append(("h", g.tolist())))
        h.register_hook(lambda g: g + 1)
        removed = h.register_hook(lambda g: g * 1000)
        removed.remove()
        removed.remove()
        (h * h).sum().backward()
        return log, x.grad.tolist()

    assert program(tm) == program(torch)


def test_a_hook_sees_the_whole_gradient_once():
    calls = []
    x = leaf(2)
    h = x * 2.0
    h.register_hook(lambda g: calls.append(g.tolist()))
    (h + h + h * 3.0).sum().backward()
    assert calls == [[5.0, 5.0]]


def test_what_a_hook_keeps_is_not_written_over():
    kept = []
    x = leaf(4)
    h = x * 2.0
    h.register_hook(kept.append)
    x.register_hook(kept.append)
    h.exp().sum().backward()
    values = [k.tolist() for k in kept]
    x.grad.fill_(0)
    assert [k.tolist() for k in kept] == values


def test_a_hook_must_return_a_gradient_of_the_same_shape():
    x = leaf(2)
    x.register_hook(lambda g: tm.ones(3))
    with pytest.raises(ShapeError, match=r"must return None or a tensor of shape \[2\]"):
        (x * 2.0).sum().backward()


def test_a_gradient_on_another_device_is_refused(dev: str):
    """Memory of another device was read as this one's: zeros, where the hook gave ones."""
    other = "meta" if dev == "cpu" else "cpu"

    def run(how) -> None:
        x = tm.ones(2, device=dev, requires_grad=True)
        y = x * 2.0
        with pytest.raises(DeviceError, match=f"expected (a gradient on )?{dev}.*, found .*{other}"):
            how(x, y, tm.ones(2, device=other))

    run(lambda x, y, g: y.backward(g))
    run(lambda x, y, g: tm.autograd.grad(y, x, g))
    run(lambda x, y, g: (x.register_hook(lambda _: g), y.sum().backward()))
    run(lambda x, y, g: (y.register_hook(lambda _: g), (y * 3.0).sum().backward()))
    run(lambda x, y, g: (y.grad_fn.register_prehook(lambda _: (g,)), (y * 3.0).sum().backward()))
    run(lambda x, y, g: (y.grad_fn.register_hook(lambda grads, _: (g, *grads[1:])), (y * 3.0).sum().backward()))


@pytest.mark.cuda
def test_hooks_of_a_move_get_each_gradient_on_its_device():
    for here, there in (("cpu", "cuda:0"), ("cuda:0", "cpu")):
        x, seen = tm.ones(2, device=here, requires_grad=True), []
        y = x.to(there)
        y.grad_fn.register_hook(
            lambda new, old, seen=seen: seen.append((str(new[0].device), str(old[0].device))) or (new[0] * 5,)
        )
        (y * 3.0).sum().backward()
        assert seen == [(here, there)]
        assert (str(x.grad.device), x.grad.tolist()) == (here, [15.0, 15.0])


def test_post_accumulate_hooks_free_each_gradient_as_it_comes(no_gc):
    ws = [leaf(1000) for _ in range(4)]
    log = []

    def update(w):
        log.append(POOL.used_bytes())
        w.data.sub_(w.grad * 0.5)
        w.grad = None

    for w in ws:
        w.register_post_accumulate_grad_hook(update)
    start = POOL.used_bytes()
    h = tm.ones(1000)
    for w in ws:
        h = h * w
    h.sum().backward()
    del h
    assert POOL.used_bytes() == start
    assert log == sorted(log, reverse=True)
    assert len(set(log)) == 4
    assert all(w.grad is None for w in ws)
    assert ws[0].tolist()[0] == 0.5


def test_retain_grad():
    def program(library):
        x = library.tensor([1.0, 2.0], requires_grad=True)
        h = x * 2.0
        h.retain_grad()
        h.retain_grad()
        assert h.retains_grad
        y = (h * h).sum()
        y.backward(retain_graph=True)
        y.backward()
        return h.grad.tolist(), x.grad.tolist()

    assert program(tm) == program(torch)


def test_retain_grad_does_not_keep_the_tensor_alive(no_gc):
    x = leaf(1000)
    before = POOL.used_bytes()
    h = x * 2.0
    h.retain_grad()
    loss = h.sum()
    del h
    loss.backward()
    del loss
    assert POOL.used_bytes() == before + round_up(4000)


def test_detach():
    x = leaf(2)
    h = x * 2.0
    d = h.detach()
    assert d.data_ptr() == h.data_ptr()
    assert not d.requires_grad
    assert d.is_leaf
    h.detach_()
    assert h.is_leaf
    assert not h.requires_grad
    assert x.detach().requires_grad is False


# --- threads


def test_graphs_of_several_threads_do_not_meet():
    errors = []

    def work(seed: int) -> None:
        try:
            for _ in range(30):
                x = tm.full((50,), float(seed), requires_grad=True)
                (x * x * 2.0).sum().backward()
                assert x.grad.tolist() == [4.0 * seed] * 50
        except BaseException as error:
            errors.append(error)

    before = POOL.used_bytes()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert POOL.used_bytes() == before


def test_a_graph_made_in_one_thread_is_walked_in_another():
    x = leaf(3)
    loss = (x * 2.0).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert x.grad.tolist() == [2.0] * 3


def test_backward_inside_backward():
    class Inner(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with tm.enable_grad():
                again = x.detach().requires_grad_()
                again.exp().backward(g)
            return again.grad

    x = leaf(3)
    (Inner.apply(x * 2.0) * 3.0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * np.exp([2.0] * 3), rtol=1e-5)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(x[:1]),
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x[:, ::2].add_(x[:, 1:]),
        lambda x: x.mul_(x),
        lambda x: x[1:].add_(x[1:]),
        lambda x: x[:1].add_(x[1:2]),
        lambda x: x[:, ::2].add_(x[:, 1::2]),
    ],
    ids=range(7),
)
def test_reading_what_is_being_written_is_refused_where_pytorch_refuses_it(write):
    mine, theirs = (library.tensor(np.arange(12.0).reshape(3, 4)) for library in (tm, torch))
    try:
        write(theirs)
    except RuntimeError:
        with pytest.raises(GraphError, match="refer to a single memory location"):
            write(mine)
    else:
        write(mine)
    assert mine.tolist() == theirs.tolist()


def test_what_was_asked_for_is_not_walked_through():
    for lib in (tm, torch):
        x = lib.tensor([0.5, 1.0], requires_grad=True)
        h = x.exp()
        (g,) = lib.autograd.grad((h * h).sum(), h)
        (h.sin() * g).sum().backward()  # exp has kept what it saved
        expected = h.detach().cos() * g * h.detach()
        np.testing.assert_allclose(x.grad.numpy(), expected.numpy(), rtol=1e-6)


# --- slices of one tensor


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_slices_of_one_tensor_share_one_gradient(where: str):
    """Each writes into the buffer of the first, so that a loop over T steps takes one buffer and not T of them."""
    x = tm.zeros(64, 4096, device=where, requires_grad=True)
    y = x * 1.0
    pool, rows = tm.device(where).pool, [y[i] for i in range(64)]
    loss = tm.stack([row.exp() for row in rows]).sum()
    del rows
    with memory.track(where) as track:
        before = pool.used_bytes()
        loss.backward()
    asked = [e.requested for e in track.log if e.kind.name == "MALLOC" and e.op == "Slice"]
    assert [n for n in asked if n >= x.nbytes] == [x.nbytes]
    assert x.nbytes <= track.peak - before <= 1.01 * x.nbytes, "of each row what exp saved becomes its gradient"


def test_slices_of_one_tensor_have_pytorchs_gradients():
    """Overlapping ones, of every kind, in several dtypes, beside the whole, and where somebody else holds the gradient."""

    def run(library: Any, x: Any) -> Any:
        y = x * 2
        y.retain_grad()
        a, b = y.split((3, 4), 1)
        parts = [a * 3, b[1:] * 5, y[2] * 7, y[:, ::2] * 11, y.T[1:3] * 13, y[None, 0, 1:2] * 17, y.to(library.float32)[3] * 19]
        total = sum(part.sum() for part in parts) + (y * y).sum() + x[1].sum()
        total.backward()
        return y

    x = np.arange(28.0).reshape(4, 7)
    mine, other = tm.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = run(tm, mine), run(torch, other)
    np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-6)
    np.testing.assert_allclose(y.grad.numpy(), z.grad.numpy(), rtol=1e-6)


def test_a_slice_beside_a_gradient_that_is_not_ours():
    """A gradient that the user gave, or that a hook has seen, is not written into."""
    given = tm.ones(3, 2)
    x = leaf(3, 2)
    y = x * 1.0
    seen: list = []
    y.register_hook(seen.append)
    tm.autograd.backward([y, y[1].sum()], [given, None])
    assert given.tolist() == [[1.0] * 2] * 3
    assert x.grad.tolist() == [[1.0] * 2, [2.0] * 2, [1.0] * 2]
    assert seen[0].tolist() == x.grad.tolist()
    table = leaf(4, 2)
    (tm.nn.functional.embedding(tm.tensor([1, 1]), table, sparse=True).sum() + table[1:3].sum()).backward()
    assert table.grad.tolist() == [[0.0] * 2, [3.0] * 2, [1.0] * 2, [0.0] * 2]


RESHAPED = [((3,), (1,)), ((1,), (3,)), ((3,), (2, 3)), ((2, 3), (3,)), ((2, 3), (3, 2)), ((), (1,)), ((1,), ()), ((4,), (5,))]
USES = {
    "product": lambda w: w * 2,
    "broadcast": lambda w: w + tm.ones(2, *w.shape),
    "sum": lambda w: w.sum(),
    "slice": lambda w: w.reshape(-1)[:1],
    "rows": lambda w: tm.nn.functional.embedding(tm.tensor([0]), w.reshape(-1, 1) * 1, sparse=False),
    "view": lambda w: w.unsqueeze(0).expand(2, *w.shape),
    "in place": lambda w: tm.zeros(2, *w.shape).add_(w),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("before", "after"), RESHAPED)
def test_a_leaf_that_gets_another_shape_before_backward_is_refused(before, after, use):
    """Its gradient would be summed or spread over the new shape if that broadcasts."""
    w, other = tm.ones(before, requires_grad=True), leaf(2)
    y = USES[use](w).sum() + other.sum()
    w.data = tm.ones(after)
    shapes = rf"had the shape {re.escape(str(list(before)))} in the forward and has {re.escape(str(list(after)))} now"
    with pytest.raises(RuntimeError, match=shapes):
        y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=shapes):
        tm.autograd.grad(y, w, retain_graph=True)
    assert w.grad is None
    w.data = tm.ones(before)
    other.grad = None
    y.backward()
    assert w.grad.shape == before
    assert other.grad.tolist() == [1.0, 1.0]


def test_rows_of_a_table_that_got_another_shape_are_refused():
    table = leaf(3, 2)
    y = tm.nn.functional.embedding(tm.tensor([0, 1]), table, sparse=True).sum()
    table.data = tm.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"had the shape \[3, 2\] in the forward and has \[2, 2\] now"):
        y.backward()


def test_a_gradient_of_another_shape_is_not_added_to_the_old_one():
    for shape in ((), (2,), (1,), (3, 3)):
        x = tm.tensor([1.0, 2.0, 3.0], requires_grad=True)
        x.sum().backward()
        x.data = tm.ones(*shape) if shape else tm.tensor(1.0)
        with pytest.raises(RuntimeError, match=r"backward: .grad is \[3\] and new is .*: set .grad to None"):
            x.sum().backward()
        x.grad = None
        x.sum().backward()
        assert x.grad.tolist() == tm.ones_like(x).tolist()
    x = tm.ones(2, requires_grad=True)
    x.sum().backward()
    x.data = tm.ones(2, device="meta")
    with pytest.raises(RuntimeError, match=r"backward: .grad is on cpu and new on meta: set .grad to None"):
        x.sum().backward()
