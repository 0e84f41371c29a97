"""einops on our tensors, with its own package: functions, layers, whichever of the two is imported first."""

from __future__ import annotations

import subprocess
import sys

import einops
import numpy as np
import pytest
import torch
from einops.layers import tinygrad_mem as layers  # type: ignore[attr-defined]
from einops.layers import torch as theirs_of_torch

import tinygrad_mem as tm
from tests.case import values
from tests.profiles import some
from tinygrad_mem import nn

X = np.random.default_rng(0).standard_normal((2, 6, 4, 4))
CALLS = {
    "rearrange": lambda x: einops.rearrange(x, "b (g c) (h p) w -> b h (g p) (c w)", g=2, p=2),
    "a list": lambda x: einops.rearrange([x, 2 * x], "n b c h w -> b (n c) h w"),
    "reduce": lambda x: einops.reduce(x, "b c (h p) (w q) -> b c h w", "mean", p=2, q=2),
    "maximum": lambda x: einops.reduce(x, "b c h w -> c", "max"),
    "product": lambda x: einops.reduce(x, "b c h w -> b c", "prod"),
    "repeat": lambda x: einops.repeat(x, "b c h w -> b n c (h r) w", n=3, r=2),
    "einsum": lambda x: einops.einsum(x, x, "b c h w, b d h w -> b c d"),
    "pack": lambda x: einops.pack([x, x[:, 0]], "b * w")[0],
    "unpack": lambda x: einops.unpack(x, [[2], [4]], "b * h w")[1],
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_are_as_on_pytorchs_tensors(name: str):
    mine, theirs = (library.tensor(X, requires_grad=True) for library in (tm, torch))
    y, z = CALLS[name](mine), CALLS[name](theirs)
    assert type(y) is tm.Tensor
    np.testing.assert_allclose(values(y), z.detach().numpy(), rtol=1e-10)
    (y**2).sum().backward()
    (z**2).sum().backward()
    assert mine.grad is not None
    np.testing.assert_allclose(values(mine.grad), theirs.grad.numpy(), rtol=1e-10)


def test_what_einops_asks_of_a_backend():
    x = tm.zeros(2, 3)
    assert einops.parse_shape(x, "a b") == {"a": 2, "b": 3}
    assert type(einops.asnumpy(x)) is np.ndarray
    assert einops.rearrange(tm.zeros(2, 3, device="meta"), "a b -> b a").is_meta
    with pytest.raises(einops.EinopsError, match=r"Shape mismatch, can.t divide axis of length 2 in chunks of 3"):
        einops.rearrange(x, "(a b) c -> a b c", a=3)


def net(nn, layers):
    return nn.Sequential(
        layers.Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
        nn.Linear(24, 8),
        layers.EinMix("b t (g i) -> b t (g o)", weight_shape="g i o", bias_shape="g o", g=2, i=4, o=3),
        layers.Reduce("b t c -> b c", "mean"),
    )


@pytest.mark.parametrize("mixed", [False, True], ids=["ours", "einops.layers.torch"])
def test_layers(mixed: bool):
    """Layers that a file imports from ``einops.layers.torch`` become ours when a module takes them in."""
    torch.manual_seed(0)
    mine, theirs = net(nn, layers), net(torch.nn, theirs_of_torch)
    if mixed:
        mine = nn.Sequential(theirs[0], mine[1], mine[2], theirs[3])
    assert repr(mine[0]) == repr(theirs[0])
    assert all(isinstance(layer, nn.Module) for layer in mine)
    mine.load_state_dict({k: tm.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    x = X.astype("f4")
    found, expected = mine(tm.tensor(x)), theirs(torch.tensor(x))
    np.testing.assert_allclose(values(found), expected.detach().numpy(), rtol=1e-4, atol=1e-6)
    found.sum().backward()
    expected.sum().backward()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(values(p.grad), q.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_other_modules_of_pytorch_are_refused_as_before():
    with pytest.raises(TypeError, match="Linear is not a Module subclass"):
        nn.Sequential(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


PROGRAMS = {
    "einops first": "import einops\nimport tinygrad_mem as tm",
    "einops last": "import tinygrad_mem as tm\nimport einops",
    "einops in use": "import einops, numpy\neinops.rearrange(numpy.zeros((1, 2)), 'a b -> b a')\nimport tinygrad_mem as tm",
}


@pytest.mark.parametrize("name", some([*PROGRAMS], ["einops last", "einops in use"]))
def test_in_any_order_and_without_pytorch(name: str):
    use = (
        "print(einops.rearrange(tm.zeros(2, 3), 'a b -> (b a)').shape)\nfrom einops.layers.tinygrad_mem import Reduce\n"
        "print(Reduce('a b -> a', 'sum')(tm.ones(2, 3)))\nimport sys\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", f"{PROGRAMS[name]}\n{use}"], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["Size([6])", "tensor([3., 3.])", "False"], done.stderr
