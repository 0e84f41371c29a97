"""Every option of every layer, drawn by hypothesis and compared with PyTorch: results, gradients, buffers, refusals."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import TOLERANCE, against_torch, values
from tests.nn.options import LAYERS
from tests.nn.test_layers import CONTAINERS
from tests.profiles import examples, pairs
from tinygrad_mem import nn

NOT_DRAWN = {"self", "device", "dtype", "args", "kwargs", "_weight", "_freeze"}  # the first two: test_module.py
CLASSES = sorted(n for n, v in vars(nn).items() if isinstance(v, type) and issubclass(v, nn.Module) and n not in CONTAINERS)
SUMS = (5e-6, 2e-5)  # float32: PyTorch's own tolerances, with room for sums of hundreds of products in another order
ROUNDED = ("Hardsigmoid", "Hardswish", "CELU", "Upsample", "UpsamplingBilinear2d")  # constants that PyTorch holds in float32


def test_every_layer_is_drawn():
    assert sorted(LAYERS) == CLASSES


@pytest.mark.parametrize("name", CLASSES)
def test_every_option_is_drawn(name: str):
    assert set(inspect.signature(getattr(nn, name).__init__).parameters) - NOT_DRAWN == set(LAYERS[name].options)


def made(framework: Any, name: str, options: dict[str, Any], dtype: str) -> Any:
    """The layer in ``dtype``, or the error that it meets."""
    tensors = {k: framework.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    return getattr(framework.nn, name)(**tensors).to(getattr(framework, dtype))


def refused(run: Any) -> bool:
    try:
        run()
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
        return True
    return False


@pytest.mark.parametrize(("name", "dtype"), pairs(CLASSES, ["float64", "float32"]))
@given(data=st.data(), training=st.booleans(), turned=st.booleans())
@settings(max_examples=examples(5), suppress_health_check=[HealthCheck.too_slow])
def test_as_pytorch(name: str, dtype: str, data: Any, training: bool, turned: bool):
    row = LAYERS[name]
    options = {k: data.draw(s, label=k) for k, s in row.options.items()}
    arrays = row.inputs(data.draw, options, np.random.default_rng(5))
    fixed = [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays[len(arrays) - row.targets :]]
    arrays = arrays[: len(arrays) - row.targets]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(name, options, dtype, arrays, fixed, training, turned)


def turn(t: tm.Tensor) -> tm.Tensor:
    """The same values with the strides of the transpose (PyTorch's get none such: some of its backwards refuse them)."""
    back = tuple(reversed(range(t.ndim)))
    return t.permute(back).contiguous().permute(back)


def compare(name: str, options: dict, dtype: str, arrays: list, fixed: list, training: bool, turned: bool) -> None:
    """Both refuse, or both give the same. In place, it is on what is not a leaf."""

    cast = [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays]

    def theirs() -> Any:
        layer = made(torch, name, options, dtype).train(training)
        layer(*[torch.tensor(a) for a in (*cast, *fixed)])

    def ours() -> Any:
        made(tm, name, options, dtype).train(training)(*[tm.tensor(a) for a in (*cast, *fixed)])

    if refused(theirs):
        assert refused(ours), "PyTorch refuses this"
        return
    mine, other = made(tm, name, options, dtype).train(training), made(torch, name, options, dtype).train(training)
    mine.load_state_dict({k: tm.tensor(v.numpy()) for k, v in other.state_dict().items()})
    near = SUMS if dtype == "float32" else (1e-6, 1e-6) if name in ROUNDED else TOLERANCE["float64"]
    against_torch(
        lambda *x: mine(*[turn(t * 1) if turned else t * 1 for t in x], *[tm.tensor(a) for a in fixed]),
        lambda *x: other(*[t * 1 for t in x], *[torch.tensor(a) for a in fixed]),
        arrays,
        dtype,
        tolerance=near,
    )
    for (key, p), q in zip(mine.named_parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), key
        if p.grad is not None and q.grad is not None:
            wanted = q.grad.numpy()  # sums over all places: what cancels is as inexact as what does not
            least = max(near[1], 4 * np.finfo(dtype).eps * np.abs(wanted).max(initial=0))
            np.testing.assert_allclose(values(p.grad), wanted, rtol=near[0], atol=least, err_msg=key)
    for (key, b), c in zip(mine.named_buffers(), other.buffers(), strict=True):
        np.testing.assert_allclose(values(b), c.numpy(), rtol=near[0], atol=near[1], err_msg=key)
