"""Between devices: values arrive, gradients come back, shapes alone go to meta."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_mem as tm


@pytest.mark.cuda
def test_there_and_back_again():
    x = tm.randn(3, 4, requires_grad=True)
    y = (x.to("cuda") * 2).cpu()
    np.testing.assert_array_equal(y.detach().numpy(), x.detach().numpy() * 2)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.device.type == "cpu"
    np.testing.assert_array_equal(x.grad.numpy(), np.full((3, 4), 2.0, np.float32))


def test_to_meta_keeps_the_shape_and_drops_the_values():
    x = tm.randn(3, 4)
    y = x.to("meta")
    assert y.device.type == "meta"
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    with pytest.raises(tm.errors.DataDependenceError, match="has a shape"):
        y.to("cpu")


def test_gradients_come_back_to_the_device_of_the_leaf():
    x = tm.randn(3, 4, requires_grad=True)
    y = x.to("meta") * 2
    assert y.requires_grad
    with pytest.raises(tm.errors.DataDependenceError, match="has a shape"):
        y.sum().backward()  # a gradient without values cannot become one with values


def test_tensors_on_two_devices_do_not_mix():
    with pytest.raises(tm.errors.DeviceError, match="same device"):
        tm.randn(3) + tm.randn(3, device="meta")
