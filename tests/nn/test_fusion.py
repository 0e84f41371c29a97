"""A convolution and the batch norm behind it become one, as PyTorch makes one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_as_pytorch(transpose: bool, bias: bool, affine: bool):
    def made(lib: Any, state: Any = None) -> Any:
        conv = (lib.nn.ConvTranspose2d if transpose else lib.nn.Conv2d)(3, 4, 3, bias=bias)
        net = lib.nn.Sequential(conv, lib.nn.BatchNorm2d(4, affine=affine))
        if state is not None:
            net.load_state_dict({k: lib.tensor(v) for k, v in state.items()})
        return net

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    state = {k: v.numpy() if v.ndim == 0 else rng.uniform(0.5, 2, v.shape) for k, v in made(torch).state_dict().items()}
    fused = []
    for lib in (tm, torch):
        net = made(lib, state)
        fuse = lib.nn.utils.fusion.fuse_conv_bn_eval
        with pytest.raises((RuntimeError, AssertionError), match="Fusion only for eval!"):
            fuse(net[0], net[1], transpose)
        net.eval()
        fused.append(fuse(net[0], net[1], transpose))
        x = lib.tensor(rng.standard_normal((2, 3, 6, 6)).astype("float32"))
        np.testing.assert_allclose(fused[-1](x).detach().numpy(), net(x).detach().numpy(), rtol=1e-4, atol=1e-4)
    for name in ("weight", "bias"):
        ours, theirs = (getattr(conv, name) for conv in fused)
        assert ours.requires_grad == theirs.requires_grad
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-5)


def test_a_norm_without_statistics_is_refused():
    conv, norm = tm.nn.Conv1d(2, 2, 1).eval(), tm.nn.BatchNorm1d(2, track_running_stats=False).eval()
    with pytest.raises(RuntimeError, match="has no running statistics"):
        tm.nn.utils.fuse_conv_bn_eval(conv, norm)
