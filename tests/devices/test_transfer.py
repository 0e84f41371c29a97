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


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (3, 4)], ids=str)
@pytest.mark.cuda
def test_every_shape_and_dtype_goes_up_and_comes_down(shape: tuple[int, ...], dtype: str):
    values = np.arange(12)[: int(np.prod(shape))].reshape(shape).astype(dtype)
    found = tm.tensor(values, device="cuda")
    assert found.shape == shape
    np.testing.assert_array_equal(found.cpu().numpy(), values)
    turned = tm.tensor(values).T.to("cuda")
    np.testing.assert_array_equal(turned.cpu().numpy(), values.T)
    np.testing.assert_array_equal(found.T.cpu().numpy(), values.T)


def test_values_from_the_host_are_cast_to_the_target(dev: str):
    for target in (tm.zeros(2, 3, device=dev), tm.zeros(3, 2, device=dev).T, tm.zeros(6, 2, device=dev)[::2].T):
        target.device.upload(np.arange(6.0).reshape(target.shape), target.array)
        np.testing.assert_array_equal(target.cpu().numpy(), np.arange(6, dtype=np.float32).reshape(target.shape))


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


@pytest.mark.parametrize("other", ["meta", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_writes_do_not_mix_devices(shape: tuple[int, ...], other: str):
    """A number on the cpu may be read on any device, and nothing on another device is read into a tensor of the cpu's."""
    writes = {
        "add_": lambda x, y: x.add_(y),
        "mul_": lambda x, y: x.mul_(y),
        "addcmul_": lambda x, y: x.addcmul_(y, y),
        "lerp_": lambda x, y: x.lerp_(y, 0.5),
    }
    for name, write in writes.items():
        x = tm.ones(shape)
        with pytest.raises(tm.errors.DeviceError, match="Expected all tensors to be on the same device"):
            write(x, tm.ones(shape, device=other))
        assert x.tolist() == tm.ones(shape).tolist(), name
        if shape:
            with pytest.raises(tm.errors.DeviceError, match="Expected all tensors to be on the same device"):
                write(tm.ones(shape, device=other), x)
        assert write(tm.ones(shape, device=other), tm.ones(())).device.type == other


@pytest.mark.parametrize("other", ["meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_condition_without_dimensions_may_be_on_the_cpu(other: str):
    x, y = (tm.full((2,), value, device=other, requires_grad=True) for value in (1.0, 2.0))
    z = tm.where(tm.tensor(True), x, y)
    assert (z.device.type, z.shape) == (other, (2,))
    z.sum().backward()
    if other != "meta":
        assert [t.tolist() for t in (z, x.grad, y.grad)] == [[1, 1], [1, 1], [0, 0]]


def test_an_index_without_values_is_refused_where_there_are_entries():
    """It stood for entry 0: right on meta, where all entries have one shape, and wrong on the cpu."""
    i, x = tm.tensor(2, device="meta"), tm.arange(3.0)
    for use in (lambda: x[i], lambda: x[i:], lambda: x.__setitem__(i, 7.0), lambda: x.__setitem__((i, ...), x[0])):
        with pytest.raises(tm.errors.DataDependenceError, match="has a shape"):
            use()
    assert x.tolist() == [0, 1, 2]
    assert tm.ones(3, 2, device="meta")[i].shape == (2,)


@pytest.mark.parametrize("other", ["meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_probabilities_come_from_any_device(other: str):
    chance = tm.tensor([0.0, 1.0, 1.0])
    assert tm.zeros(3, device=other).bernoulli_(chance).device.type == other
    if other == "meta":
        with pytest.raises(tm.errors.DataDependenceError, match="has a shape"):
            tm.zeros(3).bernoulli_(chance.to(other))
    else:
        assert tm.zeros(3).bernoulli_(chance.to(other)).tolist() == [0, 1, 1]
        assert tm.zeros(3, device=other).bernoulli_(chance).tolist() == [0, 1, 1]
