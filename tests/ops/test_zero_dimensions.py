"""A tensor without dimensions through every function that takes one, with its gradient, beside PyTorch.

It is where an array becomes a number: ``array[()]`` is no array, and has no memory that a kernel could fill.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm

SHAPES = """
x.flip(0); x.flip(-1); L.flip(x, ()); x.roll(1); x.reshape(1); x.view(()); x.view(1, 1); x.flatten(); x.unsqueeze(0);
x.squeeze(); x.squeeze(0); x.expand(2, 3); x.expand(()); x.repeat(2); x.repeat_interleave(2); x.tile((2,)); x.t();
x.permute(()); x.transpose(0, 0); x.movedim(0, 0); x.broadcast_to((2,)); L.stack([x, x]); L.hstack([x, x]);
L.vstack([x, x]); L.atleast_1d(x); x[()]; x[...]; x[None]; x[True]; x[False]; x[L.tensor(True)]; x.ravel();
x.unfold(0, 1, 1); x.contiguous(); x.clone(); L.meshgrid(x, x, indexing="ij")[0]; x.as_strided((2,), (0,))
"""
INDEXED = """
x.gather(0, L.tensor(0)); x.index_select(0, L.tensor([0])); x.index_select(0, L.tensor(0)); x.take(L.tensor([0, 0]));
x.masked_select(L.tensor(True)); x.masked_fill(L.tensor(True), 2.0); x.masked_scatter(L.tensor(True), x * 2);
x.masked_scatter(L.tensor(False), x * 2); x.scatter(0, L.tensor(0), x * 2); x.scatter_add(0, L.tensor(0), x * 2);
x.index_add(0, L.tensor(0), x * 2); x.index_fill(0, L.tensor(0), 2.0); x.index_copy(0, L.tensor(0), x * 2);
x.scatter_reduce(0, L.tensor(0), x * 2, "amax"); L.take_along_dim(x, L.tensor([0])); L.where(x > 0, x, x * 2)
"""
REDUCED = """
x.sum(0); x.sum(); x.sum(()); x.mean(-1); x.prod(0); x.amax(0); x.max(0)[0]; x.std(0, correction=0); x.norm();
x.norm(1, 0); x.logsumexp(0); x.softmax(0); x.log_softmax(-1); x.cumsum(0); x.cumprod(0); x.cummax(0)[0];
x.logcumsumexp(0); x.sort(0)[0]; x.topk(1)[0]; x.median(); x.median(0)[0]; x.quantile(0.5); x.clamp(0, 1);
x.clamp(min=x * 2); L.maximum(x, x); x.lerp(x * 2, 0.5); x.pow(x); L.addcmul(x, x, x); L.einsum(",->", x, x);
L.tensordot(x, x, 0); L.nn.functional.softplus(x); L.nn.functional.mse_loss(x, x * 2); L.nn.functional.prelu(x, x);
L.nan_to_num(x)
"""
CALLS = [call.strip() for table in (SHAPES, INDEXED, REDUCED) for call in table.replace("\n", " ").split(";")]


@pytest.mark.parametrize("made", ["leaf", "computed", "view"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_on_no_dimensions(call: str, made: str):
    found = []
    for library in (tm, torch):
        leaf: Any = library.tensor([1.5, 2.0] if made == "view" else 1.5, requires_grad=True)
        x = {"leaf": lambda x=leaf: x, "computed": lambda x=leaf: x * 1, "view": lambda x=leaf: (x * 1)[0]}[made]()
        out = eval(call, {"L": library, "x": x})
        (out * library.arange(1.0, out.numel() + 1).reshape(out.shape)).sum().backward()
        found.append((out.detach().numpy(), leaf.grad.numpy()))
    for mine, theirs in zip(*found, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("chosen", [True, False])
def test_what_a_mask_takes_nothing_from_has_a_gradient_of_zeros(chosen: bool):
    source: Any = tm.tensor(3.0, requires_grad=True)
    tm.tensor(1.0).masked_scatter(tm.tensor(chosen), source).backward()
    assert source.grad.tolist() == float(chosen)
