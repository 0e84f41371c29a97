"""Clipping, vectors of parameters and folded batch norms, against PyTorch."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem import memory
from tinygrad_mem.errors import ArgumentError, DeviceError, ShapeError
from tinygrad_mem.nn import utils

ARRAYS = [np.random.default_rng(0).standard_normal(s) * 3 for s in ((4, 3), (5,), (), (2, 2, 2))]


def parameters(framework: Any, dtype: str = "float64") -> list:
    """Parameters with gradients, and one without."""
    made = []
    for a in ARRAYS:
        p = framework.nn.Parameter(framework.tensor(np.asarray(a, dtype)))
        p.grad = framework.tensor(np.asarray(2 * a, dtype))
        made.append(p)
    return [*made, framework.nn.Parameter(framework.ones(3))]


@pytest.mark.parametrize("norm_type", [2, 2.0, 1, 3.5, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_grad_norm(norm_type: float, max_norm: float):
    mine, other = parameters(tm), parameters(torch)
    found = utils.clip_grad_norm_(iter(mine), max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(other, max_norm, norm_type)
    np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-12)
    for p, q in zip(mine[:-1], other[:-1], strict=True):
        np.testing.assert_allclose(values(p.grad), q.grad.numpy(), rtol=1e-10)
    assert mine[-1].grad is None
    assert not found.requires_grad


def test_clip_one_tensor_and_none():
    (p, *_), (q, *_) = parameters(tm), parameters(torch)
    np.testing.assert_allclose(utils.clip_grad_norm_(p, 1.0).item(), torch.nn.utils.clip_grad_norm_(q, 1.0).item())
    assert utils.clip_grad_norm_([], 1.0).item() == 0.0
    assert utils.get_total_norm([]).item() == 0.0


def test_nonfinite_norms():
    p = tm.nn.Parameter(tm.ones(2))
    p.grad = tm.tensor([1.0, float("inf")])
    with pytest.raises(RuntimeError, match=r"The total norm of order 2\.0 for gradients from `parameters` is non-finite"):
        utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert values(p.grad)[0] == 1.0, "an error leaves the gradients alone"
    assert utils.clip_grad_norm_([p], 1.0).item() == float("inf")


def test_clip_grad_value():
    mine, other = parameters(tm), parameters(torch)
    utils.clip_grad_value_(mine, 0.7)
    torch.nn.utils.clip_grad_value_(other, 0.7)
    for p, q in zip(mine[:-1], other[:-1], strict=True):
        np.testing.assert_array_equal(values(p.grad), q.grad.numpy())


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_clipping_makes_no_temporary_of_a_gradients_size(where: str):
    ps = [tm.nn.Parameter(tm.ones(1000, 100, device=where)) for _ in range(3)]
    for p in ps:
        p.grad = tm.ones(1000, 100, device=where)
    gc.collect()
    pool = tm.device(where).pool
    before = pool.used_bytes()
    with memory.track(where) as track:
        utils.clip_grad_norm_(ps, 1.0)
        utils.clip_grad_value_(ps, 0.1)
    assert track.peak - before < 16_384
    assert pool.used_bytes() == before


def test_vectors():
    mine, other = parameters(tm), parameters(torch)
    vector = utils.parameters_to_vector(mine[:-1])
    np.testing.assert_array_equal(values(vector), torch.nn.utils.parameters_to_vector(other[:-1]).detach().numpy())
    assert vector.requires_grad
    new = tm.arange(26, dtype="float64")
    utils.vector_to_parameters(new, mine[:-1])
    assert values(mine[1]).tolist() == [12.0, 13.0, 14.0, 15.0, 16.0]
    assert mine[3].shape == (2, 2, 2)


def test_vectors_refuse():
    with pytest.raises(DeviceError, match="Found two parameters on different devices"):
        utils.parameters_to_vector([tm.ones(1), tm.ones(1, device="meta")])
    with pytest.raises(TypeError, match="expected a Tensor, but got: list"):
        utils.vector_to_parameters([1.0], [])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="the vector has 2 elements, the parameters need more"):
        utils.vector_to_parameters(tm.ones(2), [tm.ones(3)])


PAIRS: dict[str, Any] = {
    "convolution": lambda nn: (nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5), (2, 3, 6, 6), False),
    "groups, no bias": lambda nn: (nn.Conv1d(4, 6, 3, groups=2, bias=False), nn.BatchNorm1d(6, affine=False), (2, 4, 7), False),
    "transposed": lambda nn: (nn.ConvTranspose2d(3, 5, 2), nn.BatchNorm2d(5), (2, 3, 6, 6), True),
    "linear": lambda nn: (nn.Linear(6, 5), nn.BatchNorm1d(5, eps=0.1), (4, 6), None),
    "linear, no bias": lambda nn: (nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), (4, 6), None),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_folded_batch_norm_is_pytorchs(case: str):
    made = []
    for framework in (torch, tm):
        rng = np.random.default_rng(0)
        layer, norm, shape, transpose = PAIRS[case](framework.nn)
        for each in (layer, norm):
            state = {k: rng.random(tuple(v.shape)) + 0.5 if v.ndim else np.array(3) for k, v in each.state_dict().items()}
            each.double().eval().load_state_dict({k: framework.tensor(v) for k, v in state.items()})
        x = framework.tensor(rng.standard_normal(shape))
        fuse = framework.nn.utils.fuse_linear_bn_eval if transpose is None else framework.nn.utils.fuse_conv_bn_eval
        fused = fuse(layer, norm) if transpose is None else fuse(layer, norm, transpose)
        assert type(fused) is type(layer)
        np.testing.assert_allclose(fused(x).detach().numpy(), norm(layer(x)).detach().numpy(), rtol=1e-12, atol=1e-12)
        made.append([(tuple(p.shape), p.requires_grad) for p in (fused.weight, fused.bias)])
    assert made[0] == made[1]


def test_folding_refuses():
    layer, norm = tm.nn.Linear(3, 4), tm.nn.BatchNorm1d(4)
    with pytest.raises(ArgumentError, match="both modules must be in eval mode"):
        utils.fuse_linear_bn_eval(layer.eval(), norm)
    with pytest.raises(ArgumentError, match="no running statistics"):
        utils.fuse_linear_bn_eval(layer, tm.nn.BatchNorm1d(4, track_running_stats=False).eval())
    with pytest.raises(ShapeError, match="the layer has 4 features, batch norm 3"):
        utils.fuse_linear_bn_eval(layer, tm.nn.BatchNorm1d(3).eval())
