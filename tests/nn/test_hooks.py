"""Hooks of modules, against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem import nn


def same(script: Any) -> None:
    """``script(framework)`` returns the same in both."""
    found, expected = script(tm), script(torch)
    assert found == expected


def ones(framework: Any, *shape: int) -> Any:
    return framework.ones(*shape, requires_grad=True)


def test_forward_hooks_in_order_and_removed():
    def script(f: Any) -> list:
        layer, seen = f.nn.ReLU(), []
        layer.register_forward_pre_hook(lambda m, a: seen.append(("pre", len(a))))
        layer.register_forward_hook(lambda m, a, y: seen.append(("post", tuple(y.shape))))
        layer.register_forward_hook(lambda m, a, y: seen.append("first"), prepend=True)
        layer.register_forward_pre_hook(lambda m, a: seen.append("pre first"), prepend=True)
        handle = layer.register_forward_hook(lambda m, a, y: seen.append("removed"))
        layer(ones(f, 2))
        handle.remove()
        handle.remove()
        layer(ones(f, 2))
        with layer.register_forward_hook(lambda m, a, y: seen.append("context")):
            layer(ones(f, 2))
        layer(ones(f, 2))
        return seen

    same(script)


def test_forward_hooks_replace():
    def script(f: Any) -> list:
        layer = f.nn.Identity()
        layer.register_forward_pre_hook(lambda m, a: a[0] * 2)
        layer.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
        layer.register_forward_hook(lambda m, a, y: y * 10)
        layer.register_forward_hook(lambda m, a, y: y + a[0])
        return layer(ones(f, 2)).tolist()

    same(script)


def test_forward_hooks_with_kwargs():
    def script(f: Any) -> list:
        class Scale(f.nn.Module):
            def forward(self, x: Any, *, by: float = 1.0) -> Any:
                return x * by

        layer, seen = Scale(), []
        layer.register_forward_pre_hook(lambda m, a, k: (a, {"by": k["by"] + 1}), with_kwargs=True)
        layer.register_forward_pre_hook(lambda m, a, k: None, with_kwargs=True)
        layer.register_forward_hook(lambda m, a, k, y: seen.append(k), with_kwargs=True)
        return [layer(ones(f, 2), by=2.0).tolist(), seen]

    same(script)


def test_hooks_that_are_always_called():
    def script(f: Any) -> list:
        class Fails(f.nn.Module):
            def forward(self, x: Any) -> Any:
                raise ValueError("no")

        layer, seen = Fails(), []
        layer.register_forward_hook(lambda m, a, y: seen.append(y), always_call=True)
        layer.register_forward_hook(lambda m, a, y: seen.append("not this"))
        with pytest.raises(ValueError, match="no"):
            layer(ones(f, 2))
        return seen

    same(script)


def test_a_wrong_answer_of_a_pre_hook():
    layer = nn.Identity()
    layer.register_forward_pre_hook(lambda m, a, k: a, with_kwargs=True)
    with pytest.raises(RuntimeError, match="forward pre-hook must return None or a tuple of"):
        layer(tm.ones(1))


def _shown(grads: Any) -> list:
    return [None if g is None else g.tolist() for g in grads]


def test_backward_hooks_see_gradients_of_inputs_and_outputs():
    def script(f: Any) -> list:
        layer, seen = f.nn.Bilinear(2, 2, 1, bias=False), []
        with f.no_grad():
            layer.weight.fill_(0.5)
        layer.register_full_backward_pre_hook(lambda m, go: seen.append(("pre", _shown(go))))
        layer.register_full_backward_hook(lambda m, gi, go: seen.append((_shown(gi[:1]), len(gi), _shown(go))))
        a, b = ones(f, 3, 2), f.ones(3, 2)
        (layer(a, b) * 2).sum().backward()
        return [seen, a.grad.tolist(), layer.weight.grad.tolist()]

    same(script)


def test_backward_hooks_replace():
    def script(f: Any) -> list:
        layer = f.nn.Linear(2, 2, bias=False)
        with f.no_grad():
            layer.weight.fill_(0.5)
        layer.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
        layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * 7,))
        x = ones(f, 1, 2)
        layer(x).sum().backward()
        return [x.grad.tolist(), layer.weight.grad.tolist()]

    same(script)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_backward_hooks_without_an_input_that_wants_a_gradient():
    def script(f: Any) -> list:
        layer, seen = f.nn.Linear(2, 2), []
        layer.register_full_backward_hook(lambda m, gi, go: seen.append((_shown(gi), _shown(go))))
        layer(f.ones(1, 2)).sum().backward()
        return seen

    same(script)


def test_backward_hooks_of_several_outputs():
    def script(f: Any) -> list:
        class Two(f.nn.Module):
            def forward(self, x: Any) -> Any:
                return x * 2, x * 3

        layer, seen = Two(), []
        layer.register_full_backward_hook(lambda m, gi, go: seen.append((_shown(gi), _shown(go))))
        x = ones(f, 2)
        a, b = layer(x)
        (a.sum() + (b * 5).sum()).backward()
        return [seen, x.grad.tolist()]

    same(script)


def test_gradients_that_a_hook_keeps_stay_as_they_were():
    layer, kept = nn.Linear(4, 4), []
    layer.register_full_backward_hook(lambda m, gi, go: kept.extend([gi[0], go[0]]))
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), layer, nn.Tanh())
    net(tm.randn(3, 4)).sum().backward()
    then = [values(g).copy() for g in kept]
    net(tm.randn(3, 4)).sum().backward()
    for g, before in zip(kept, then, strict=False):
        np.testing.assert_array_equal(values(g), before)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((None, None), "invalid number of grad_input: got 2, expected 1"),
        (tm.ones(5), r"grad_input of shape \[5\], expected \[1, 2\]"),
        (tm.ones(1, 2, dtype=tm.int64), "grad_input of dtype int64, expected float32"),
        (tm.ones(1, 2, device="meta"), "grad_input on meta, expected cpu"),  # its memory was read as zeros
    ],
    ids=["count", "shape", "dtype", "device"],
)
def test_wrong_answers_of_backward_hooks(answer: Any, message: str):
    layer = nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda m, gi, go: answer)
    with pytest.raises(RuntimeError, match=message):
        layer(tm.ones(1, 2, requires_grad=True)).sum().backward()


def test_a_backward_hook_answers_tensors_in_a_tuple_or_a_list():
    layer, x = nn.Linear(2, 2), tm.ones(1, 2, requires_grad=True)
    layer.register_full_backward_hook(lambda m, gi, go: [tm.full((1, 2), 7.0)])
    layer(x).sum().backward()
    assert x.grad.tolist() == [[7.0, 7.0]]
    layer.register_full_backward_hook(lambda m, gi, go: 3)
    with pytest.raises(TypeError, match="returned a int as grad_input, expected a tensor or None"):
        layer(x).sum().backward()


def test_a_hook_without_an_input_gradient_answers_nothing():
    layer = nn.Linear(2, 2)
    handle = layer.register_full_backward_hook(lambda m, gi, go: gi)  # (None,)
    layer(tm.ones(1, 2)).sum().backward()
    handle.remove()
    layer.register_full_backward_hook(lambda m, gi, go: go)
    with pytest.raises(RuntimeError, match="should always return None"):
        layer(tm.ones(1, 2)).sum().backward()


def test_backward_hooks_get_none_for_what_is_no_tensor():
    def script(lib: Any) -> list:
        class Two(lib.nn.Module):
            def forward(self, flag: bool, x: Any, scale: float) -> tuple:
                return flag, x * scale

        seen: list = []
        layer, x = Two(), lib.ones(2, requires_grad=True)

        def hook(module: Any, inputs: tuple, outputs: tuple) -> tuple:
            seen.append([[None if g is None else g.tolist() for g in grads] for grads in (inputs, outputs)])
            return None, inputs[1] * 2, None

        layer.register_full_backward_hook(hook)
        layer(True, x, 3.0)[1].sum().backward()
        return [seen, x.grad.tolist()]

    same(script)
