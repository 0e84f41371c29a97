"""Lean: the bytes of a training step against PyTorch eager's, measured in the same run."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.networks import WORKLOADS, Workload, our_peak, run_under
from tests.profiles import some
from tests.pytorch_memory import pytorch_peak
from tinygrad_mem import memory
from tinygrad_mem.devices import device

MIB = 1 << 20


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_sixteen_linear_relu_layers(where: str):
    """PyTorch: 8.0 MiB after forward, 16.6 at the peak. Parameters and input excluded; the collector is off."""
    gc.collect()
    gc.disable()
    try:
        pool = device(where).pool
        with tm.device(where):
            layers = [m for _ in range(16) for m in (tm.nn.Linear(512, 512), tm.nn.ReLU())]
            model = tm.nn.Sequential(*layers)
            x = tm.tensor(np.ones((256, 512), np.float32))
        del layers
        base = pool.used_bytes()
        with memory.track(where) as track:
            loss = model(x).sum()
            forward = pool.used_bytes() - base
            loss.backward()
            after = pool.used_bytes() - base
        gradients = sum(-(-p.nbytes // 512) * 512 for p in model.parameters())
        assert 7.9 * MIB <= forward <= 8.01 * MIB
        assert gradients <= track.peak - base <= 16.6 * MIB
        assert after == gradients + 512, "gradients and the loss, nothing else"
        del loss
        model.zero_grad()
        assert pool.used_bytes() == base
    finally:
        gc.enable()


@pytest.mark.parametrize("workload", some(WORKLOADS, WORKLOADS[:4]), ids=lambda w: w.name)  # the last takes PyTorch longest
def test_step_peak_is_at_most_pytorchs(workload: Workload):
    pytorch = pytorch_peak(run_under(torch, workload))
    gc.collect()
    ours = our_peak(workload, "meta")
    assert 0.5 * pytorch <= ours <= pytorch, f"{workload.name}: ours {ours:,}, PyTorch {pytorch:,}, ratio {ours / pytorch:.3f}"
