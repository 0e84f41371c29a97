"""A tensor without dimensions through every function that takes one, with its gradient, beside PyTorch.

It is where an array becomes a number: ``array[()]`` is no array, and has no memory that a kernel could fill.
"""

from __future__ import annotations

import itertools
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
x.sort(0)[0]; x.topk(1)[0]; x.median(); x.median(0)[0]; x.quantile(0.5); x.clamp(0, 1);
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


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MIXED = ["add", "mul", "div", "maximum", "atan2", "where", "clamp", "eq"]


def mixed(library: Any, name: str, x: Any, y: Any) -> Any:
    """``y`` is a cpu tensor without dimensions, ``x`` a tensor of another device."""
    return library.where(x == x, x, y) if name == "where" else getattr(library, name)(x, y)


@pytest.mark.parametrize("name", MIXED)
def test_a_cpu_tensor_without_dimensions_gives_its_dtype_to_a_result_on_another_device(name: str):
    """Only where its category is the higher one. A Python number in its place would give the default dtype."""
    for first, second in itertools.product(DTYPES, DTYPES):
        found = []
        for library in (tm, torch):
            x: Any = library.ones(3, dtype=getattr(library, first), device="meta")
            try:
                out = mixed(library, name, x, library.ones((), dtype=getattr(library, second)))
                found.append(f"{out.dtype} on {out.device.type}".removeprefix("torch."))
            except (RuntimeError, TypeError):
                found.append("refused")
        assert found[0] == found[1], (first, second)


@pytest.mark.cuda
@pytest.mark.parametrize("name", MIXED[:-1])
def test_a_cpu_tensor_without_dimensions_has_its_value_on_a_gpu(name: str):
    numbers = np.array([1.0, 2.0, 3.0])
    for first, second in (("float32", "float64"), ("float64", "float32"), ("float32", "int64"), ("int32", "float64")):
        found = []
        for library, device in ((tm, "cuda"), (tm, "cpu")):
            x: Any = library.tensor(numbers, dtype=getattr(library, first), device=device)
            x = x.requires_grad_() if first.startswith("float") else x
            out = mixed(library, name, x, library.tensor(2, dtype=getattr(library, second)))
            if out.requires_grad:
                out.sum().backward()
            found.append((str(out.dtype), out.detach().cpu().numpy(), None if x.grad is None else x.grad.cpu().numpy()))
        on_gpu, on_cpu = found
        assert on_gpu[0] == on_cpu[0]
        np.testing.assert_allclose(on_gpu[1], on_cpu[1], rtol=1e-6)
        assert (on_gpu[2] is None) == (on_cpu[2] is None)
        if on_gpu[2] is not None:
            np.testing.assert_allclose(on_gpu[2], on_cpu[2], rtol=1e-6)


@pytest.mark.cuda
def test_a_write_takes_a_cpu_tensor_without_dimensions_as_a_number():
    x: Any = tm.ones(3, device="cuda")
    x.mul_(tm.tensor(2.5, dtype=tm.float64)).add_(tm.tensor(1))
    assert (x.tolist(), x.dtype) == ([3.5] * 3, tm.float32)
    with pytest.raises(tm.errors.DTypeError, match="float64 can't be cast"):
        tm.ones(3, dtype=tm.int64, device="cuda").add_(tm.tensor(2.5, dtype=tm.float64))


@pytest.mark.cuda
@pytest.mark.parametrize("made", ["leaf", "view"])
@pytest.mark.parametrize("name", [*MIXED[:-1], "in place"])
def test_a_cpu_tensor_without_dimensions_has_its_gradient_on_the_cpu(name: str, made: str):
    """As in PyTorch. A leaf was refused, and a view's gradient was lost: the view was taken as a plain number."""
    found = []
    for first, second, device in itertools.product(("float32", "int32"), ("float32", "float64"), ("cuda", "cpu")):
        leaf: Any = tm.tensor([2.0] if made == "view" else 2.0, dtype=getattr(tm, second), requires_grad=True)
        x: Any = tm.tensor([1.0, 2.0, 3.0], dtype=getattr(tm, first), device=device)
        y = leaf[0] if made == "view" else leaf
        out = (x * 1.0).mul_(y) if name == "in place" else mixed(tm, name, x, y)
        out.sum().backward()
        assert (leaf.grad.device.type, leaf.grad.dtype) == ("cpu", leaf.dtype)
        found.append((out.dtype, out.detach().cpu().numpy(), leaf.grad.numpy()))
    for on_gpu, on_cpu in zip(found[::2], found[1::2], strict=True):
        assert on_gpu[0] == on_cpu[0]
        np.testing.assert_allclose(on_gpu[1], on_cpu[1], rtol=1e-6)
        np.testing.assert_allclose(on_gpu[2], on_cpu[2], rtol=1e-6)
    with tm.no_grad():
        assert not (tm.ones(3, device="cuda") * tm.tensor(2.0, requires_grad=True)).requires_grad
