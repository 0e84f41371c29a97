"""Selective policies keep what they name, run the rest again, and change no bit; wrapped modules stay themselves."""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.recompute.test_checkpoint import BLOCKS, Ops, assert_same, changing, everything, network, plainly
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device
from tinygrad_mem.errors import ArgumentError, CheckpointError, NotOfferedError
from tinygrad_mem.nn import functional as F
from tinygrad_mem.recompute import Checkpointed, apply_activation_checkpointing, checkpoint_wrapper
from tinygrad_mem.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

POOL = device("cpu").pool
NAMES = sorted(BLOCKS.keys() - {"in place"})


def keeping(*ops: str) -> Callable:
    return partial(create_selective_checkpoint_contexts, list(ops))


@pytest.mark.parametrize(
    "ops", [(), ("Linear",), ("Linear", "BatchNorm", "ReLU"), ("Dropout", "SampleNorm", "Tanh"), ("BatchNorm",)], ids="-".join
)
def test_every_choice_is_bit_for_bit_the_same(ops: tuple[str, ...]):
    mine = everything(network(NAMES), lambda b, x: checkpoint(plainly, b, x, context_fn=keeping(*ops)))
    assert_same(mine, everything(network(NAMES), plainly))


def test_kept_ops_do_not_run_again():
    blocks = network(["linear", "tanh", "linear", "tanh", "linear"])
    with Ops() as ops:
        checkpoint(plainly, blocks, tm.ones(2, 6), context_fn=keeping("Linear")).sum().backward()
    assert ops.ran["recompute"] == ["Tanh", "Tanh"]


def test_bytes_are_those_of_the_kept_results():
    gc.collect()
    pool = device("meta").pool
    with tm.device("meta"):
        blocks = [nn.Linear(256, 256, bias=False) if i % 2 == 0 else nn.Tanh() for i in range(8)]
        x = tm.randn(256, 256)
    size = 4 * 256 * 256

    def held(**options: Any) -> int:
        before = pool.used_bytes()
        out = checkpoint(plainly, blocks, x, **options)
        found = pool.used_bytes() - before
        out.sum().backward()
        return found

    assert held() == size  # the result
    assert held(context_fn=keeping("Linear")) == 5 * size
    assert held(context_fn=keeping("Tanh")) == 4 * size  # the last of them is the result
    rows = memory.saved(lambda: checkpoint(plainly, blocks, x, context_fn=keeping("Linear")))
    assert [(row.op, row.name) for row in rows] == [("Checkpoint", "x"), *[("Linear", "result 0")] * 4]
    assert rows.total == 5 * size
    assert all("recompute/test_" in row.line for row in rows)


def test_a_policy_is_asked_in_the_forward_alone():
    seen: list = []

    def policy(ctx, op, *arrays, **params):
        seen.append((ctx.is_recompute, op.__name__, arrays[0].shape))
        return CheckpointPolicy.MUST_SAVE if op.__name__ == "Exp" else CheckpointPolicy.PREFER_RECOMPUTE

    x = tm.ones(3, requires_grad=True)
    with Ops() as ops:
        out = checkpoint(lambda x: x.exp().sin().exp(), x, context_fn=partial(create_selective_checkpoint_contexts, policy))
        out.sum().backward()
    assert ops.ran["recompute"] == ["Sin"]
    assert seen == [(False, op, (3,)) for op in ("Exp", "Sin", "Exp")]


def test_a_policy_that_counts_keeps_the_right_results():
    """Every second product is kept of three, so a count that goes on in the recomputation would give another's result."""
    found = []
    for lib in (torch, tm):
        count = itertools.count()
        save, again = lib.utils.checkpoint.CheckpointPolicy.MUST_SAVE, lib.utils.checkpoint.CheckpointPolicy.MUST_RECOMPUTE

        def policy(ctx, op, *args, save=save, again=again, count=count, **options):
            return again if next(count) % 2 else save

        contexts = partial(lib.utils.checkpoint.create_selective_checkpoint_contexts, policy)
        x = lib.tensor([0.1, 0.2, 0.5], requires_grad=True)
        options: Any = {"use_reentrant": False, "context_fn": contexts}
        lib.utils.checkpoint.checkpoint(lambda x: x.exp().exp().exp(), x, **options).sum().backward()
        found.append(x.grad.tolist())
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_retain_graph_and_partial_walks():
    def run(**options: Any) -> np.ndarray:
        x, w = tm.full((3,), 0.5, requires_grad=True), tm.full((3,), 0.25, requires_grad=True)
        a, b = checkpoint(lambda x, w: (x.exp().exp(), w.exp().exp()), x, w, **options)
        a.sum().backward(retain_graph=True)
        a.sum().backward()
        b.sum().backward()
        return np.stack([x.grad.numpy(), w.grad.numpy()])

    np.testing.assert_array_equal(run(context_fn=keeping("Exp")), run())


def test_backward_inside():
    def penalty(x: tm.Tensor) -> tm.Tensor:
        h = F.layer_norm(x, (3,))
        (g,) = tm.autograd.grad((h * h).sum(), x, retain_graph=True)
        return h.sin() * g

    def run(**options: Any) -> np.ndarray:
        x = tm.tensor([[0.1, 0.2, 0.5]], requires_grad=True)
        checkpoint(penalty, x, **options).sum().backward()
        return x.grad.numpy()

    np.testing.assert_array_equal(run(context_fn=keeping("SampleNorm")), run())


def test_nothing_stays_behind():
    gc.collect()
    gc.disable()
    try:
        blocks = network(["linear", "tanh", "linear"])
        x = tm.ones(2, 6)
        used = POOL.used_bytes()
        out = checkpoint(plainly, blocks, x, context_fn=keeping("Linear", "Tanh"))
        del out
        assert POOL.used_bytes() == used
        checkpoint(plainly, blocks, x, context_fn=keeping("Linear", "Tanh")).sum().backward()
        nn.Sequential(*blocks).zero_grad()
        assert POOL.used_bytes() == used
    finally:
        gc.enable()


def test_a_kept_result_that_is_written():
    layer = nn.Linear(3, 3)
    x = tm.randn(2, 3, requires_grad=True)

    def f(x: tm.Tensor) -> tm.Tensor:
        return F.relu(layer(x), inplace=True).sin()

    with pytest.raises(CheckpointError, match="the result of Linear that was kept has been written in place by ReLU"):
        checkpoint(f, x, context_fn=keeping("Linear")).sum().backward()
    grads = []
    for options in ({}, {"context_fn": partial(create_selective_checkpoint_contexts, ["Linear"], True)}):
        x.grad = None
        checkpoint(f, x, **options).sum().backward()
        grads.append(x.grad.numpy())
    np.testing.assert_array_equal(*grads)  # writing a ReLU twice changes nothing


def test_running_statistics_are_no_part_of_a_checkpoint():
    """A recomputation leaves them out: a kept Add was that of the mean, and gradients were wrong."""
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    found = []
    for keeps in (False, True):
        tm.manual_seed(0)
        model, asked = nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True), nn.Linear(4, 4)), []

        def policy(ctx: Any, op: Any, *arrays: Any, asked: list = asked, **params: Any) -> bool:
            asked.append(op.__name__)
            return op.__name__ == "Add"

        def f(x: Any, model: nn.Module = model) -> Any:
            y = model(x) + x
            return (y * y + 1.0) * y

        options: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, policy)} if keeps else {}
        checkpoint(f, tm.tensor(x), **options).sum().backward()
        found.append([*model.parameters(), *model.buffers()])
        assert not keeps or asked == ["SampleNorm", "Linear", "Add", "Mul", "Add", "Mul"]
    for plain, kept in zip(*found, strict=True):
        np.testing.assert_array_equal(plain.detach().numpy(), kept.detach().numpy())
        if plain.grad is not None:
            np.testing.assert_array_equal(plain.grad.numpy(), kept.grad.numpy())


def test_what_is_refused():
    with pytest.raises(ArgumentError, match=r"no op Convolution; there are .*Conv, "):
        create_selective_checkpoint_contexts(["Convolution", "Linear"])
    x = tm.ones(3, requires_grad=True)
    offload = partial(create_selective_checkpoint_contexts, lambda *a, **k: CheckpointPolicy.MUST_CPU_OFFLOAD)
    with pytest.raises(NotOfferedError, match="MUST_CPU_OFFLOAD: a policy that offloads is not offered"):
        checkpoint(lambda x: x.exp(), x, context_fn=offload)
    cases: list[tuple[Callable, Callable, str]] = [
        (changing(lambda x: x.exp(), lambda x: x.sin()), lambda *a, **k: True, "kept of Exp, the recomputation runs Sin"),
        (changing(lambda x: x.exp(), lambda x: x.sin()), lambda *a, **k: False, "runs one more Sin than the forward"),
        (
            changing(lambda x: x.exp(), lambda x: x[:2].exp()),
            lambda *a, **k: True,
            r"of Exp of \[\(3,\)\], .* Exp of \[\(2,\)\]",
        ),
    ]
    for f, policy, words in cases:
        out = checkpoint(f, x, context_fn=partial(create_selective_checkpoint_contexts, policy))
        with pytest.raises(CheckpointError, match=words):
            out.sum().backward()


# --- modules ----------------------------------------------------------------------------------------------------------------


def test_a_wrapped_module_is_itself():
    (block,) = network(["residual"])
    names = list(block.state_dict())
    wrapped = checkpoint_wrapper(block, early_stop=False)
    assert wrapped is block
    assert isinstance(wrapped, Checkpointed)
    assert isinstance(wrapped, type(network(["residual"])[0]))
    assert list(wrapped.state_dict()) == names
    assert checkpoint_wrapper(wrapped, early_stop=True).checkpoint_options == {"early_stop": True}
    twin = copy.deepcopy(wrapped)
    twin.load_state_dict(network(["residual"])[0].state_dict())
    assert_same(everything([twin], plainly), everything(network(["residual"]), plainly))
    assert twin.train(False).training is False


def test_all_modules_of_a_kind():
    def model() -> nn.Sequential:
        return nn.Sequential(*network(["linear", "in place", "tanh", "linear"]))

    checkpointed = model()
    apply_activation_checkpointing(checkpointed, check_fn=lambda module: isinstance(module, nn.Linear))
    assert [isinstance(m, Checkpointed) for m in checkpointed.modules()] == [False, True, False, True, False, False, True]
    assert_same(everything([checkpointed], plainly), everything([model()], plainly))


def test_paths_of_a_wrapped_module():
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    checkpoint_wrapper(model[0])
    with memory.track() as track:
        model(tm.ones(1, 3)).sum().backward()
    found = {(event.phase, event.module) for event in track.log if event.op == "Linear"}
    assert ("recompute", "Sequential.0.0") in found
    assert ("forward", "Sequential.0.0") in found
