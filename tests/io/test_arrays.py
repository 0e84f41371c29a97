"""Every kind of NumPy array by every way in: taken with its values, or refused in words; never other numbers, never a crash."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import dtypes
from tinygrad_mem.errors import TinygradMemError
from tinygrad_mem.utils import dlpack

F = tm.nn.functional
PLAIN = np.arange(1.0, 7.0).reshape(2, 3)


class Subclass(np.ndarray):
    """Somebody's own array."""


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _unaligned() -> np.ndarray:
    array = np.frombuffer(bytearray(8 * 6 + 1), np.uint8)[1:].view(np.float64).reshape(2, 3)
    array[...] = PLAIN
    return array


def _strides_between_elements() -> np.ndarray:
    array = np.zeros((2, 3), [("a", "i1"), ("b", "f8")])["b"]
    array[...] = PLAIN
    return array


BYTE_ORDERS = {f">{kind}": PLAIN.astype(f">{kind}") for kind in ("f8", "f4", "f2", "i8", "i4", "i2")}
NOT_OURS = {
    "structured": np.zeros((2, 3), [("a", "f4"), ("b", "f4")]),
    "records": np.zeros((2, 3), [("a", "f4")]).view(np.recarray),
    "bytes without a type": np.zeros((2, 3), "V4"),
    "objects": PLAIN.astype(object),
    "None": np.full((2, 3), None),
    "long double": PLAIN.astype(np.longdouble),
    "complex": PLAIN + 1j,
    "dates": np.full((2, 3), "2020-01-01", "M8[D]"),
    "times": np.full((2, 3), 3, "m8[s]"),
    "text": np.full((2, 3), "1"),
    "uint16": PLAIN.astype(np.uint16),
    "uint64": PLAIN.astype(np.uint64),
}
LAYOUTS = {
    "read-only": _read_only(PLAIN.copy()),
    "reversed": PLAIN[::-1, ::-1].copy()[::-1, ::-1],
    "overlapping": np.lib.stride_tricks.as_strided(np.arange(1.0, 5.0), (2, 3), (8, 8)),
    "broadcast": np.broadcast_to(np.float64(3.0), (2, 3)),
    "masked": np.ma.masked_array(PLAIN, mask=False),
    "subclass": PLAIN.view(Subclass),
    "unaligned": _unaligned(),
    "strides between elements": _strides_between_elements(),
    "column-major": np.asfortranarray(PLAIN),
    "no elements": np.zeros((2, 0)),
}
ARRAYS = BYTE_ORDERS | NOT_OURS | LAYOUTS


def _ones() -> Any:
    return tm.ones(2, 3, dtype=tm.float64)


def _saved(array: Any) -> Any:
    file = io.BytesIO()
    tm.save({"t": tm.as_tensor(array)}, file)
    file.seek(0)
    return tm.load(file)["t"]


def _after(change: Callable[[Any], Any]) -> Any:
    target = _ones()
    change(target)
    return target


IN: dict[str, Callable[[Any], Any]] = {
    "tensor": tm.tensor,
    "Tensor": tm.Tensor,
    "as_tensor": tm.as_tensor,
    "from_numpy": tm.from_numpy,
    "from_dlpack": tm.from_dlpack,
    "capsule": lambda a: dlpack.from_dlpack(a.__dlpack__()),
    "new_tensor": lambda a: _ones().new_tensor(a),
    "a list": lambda a: tm.tensor([a])[0],
    "collate": lambda a: tm.utils.data.default_collate([a])[0],
    "convert": tm.utils.data.default_convert,
    "PadCollate": lambda a: tm.data.PadCollate()([a]).tokens[0],
    "save and load": _saved,
    "copy_": lambda a: _after(lambda t: t.copy_(tm.as_tensor(a))),
    "data": lambda a: _after(lambda t: setattr(t, "data", tm.as_tensor(a))),
    "setitem": lambda a: _after(lambda t: t.__setitem__(slice(None), a)),
    "add of ones": lambda a: _ones() + a - 1,
    "ones add": lambda a: a + _ones() - 1,
    "numpy.multiply": lambda a: np.multiply(a, _ones()),
    "an op of one": tm.relu,
    "an op of two": lambda a: tm.maximum(tm.as_tensor(a) * 0, a),
    "an op in place": lambda a: _after(lambda t: t.mul_(a)),
    "where": lambda a: tm.where(_ones() > 0, a, _ones()),
    "sum": lambda a: tm.sum(a, 1),
    "linear": lambda a: F.linear(a, tm.eye(3, dtype=tm.float64)),
}


@pytest.mark.parametrize("way", IN)
def test_taken_as_it_is_or_refused(way: str, reliability: Any):
    for kind, array in ARRAYS.items():
        before = array.tobytes()
        try:
            found = IN[way](array)
        except (TinygradMemError, TypeError, ValueError, BufferError):
            continue
        finally:
            assert array.tobytes() == before, f"{kind}: the caller's array was written"
        if found is array:  # as PyTorch's default_convert hands on what holds no numbers
            assert kind in NOT_OURS
            continue
        assert found.dtype in dtypes.ALL, kind
        assert found.dtype.isnative, kind
        assert all(stride >= 0 for stride in found.stride()), kind
        wanted = np.asarray(array).sum(1) if way == "sum" else np.asarray(array)
        np.testing.assert_array_equal(found.numpy(), wanted.astype(found.dtype), err_msg=kind)
        assert (found + found).sum().item() == 2 * wanted.astype(np.float64).sum(), kind
    reliability("kinds of NumPy arrays, in every function that takes one", len(ARRAYS))


@pytest.mark.parametrize("kind", BYTE_ORDERS)
def test_bytes_in_another_order(kind: str):
    array = BYTE_ORDERS[kind]
    with pytest.raises(ValueError, match="byte order different from the native byte order"):
        tm.from_numpy(array)
    for made in (tm.tensor(array), tm.as_tensor(array), tm.as_tensor(array, dtype=kind[1:]), tm.tensor(array[0])):
        assert made.dtype == np.dtype(kind[1:])
        assert made.dtype.isnative
    np.testing.assert_array_equal(tm.as_tensor(array).numpy(), PLAIN)
    assert tm.tensor([10.0, 20.0])[np.array([1, 0], ">i8")].tolist() == [20.0, 10.0]


def test_strides_that_no_tensor_has():
    with pytest.raises(ValueError, match="strides not a multiple of the element byte size"):
        tm.from_numpy(_strides_between_elements())
    for take in (tm.from_numpy, tm.as_tensor, tm.from_dlpack):
        with pytest.raises(ValueError, match="negative"):
            take(PLAIN[::-1])


@pytest.mark.parametrize("number", [1 + 2j, np.complex128(1 + 2j), np.complex64(1 + 2j)])
def test_a_complex_number_is_not_its_real_part(number: Any):
    t, mask = tm.ones(2, 2), tm.ones(2, 2) > 0
    for run in (
        lambda: t + number,
        lambda: number * t,
        lambda: t / number,
        lambda: t**number,
        lambda: t == number,
        lambda: t.clone().add_(number),
        lambda: t.clone().fill_(number),
        lambda: t.masked_fill(mask, number),
        lambda: tm.where(mask, t, number),
        lambda: tm.full((2,), number, dtype=tm.float32),
        lambda: tm.addmm(t, t, t, alpha=number),
        lambda: tm.add(t, t, alpha=number),
        lambda: F.pad(t, (1, 1), value=number),
        lambda: tm.Tensor([number]),
        lambda: tm.tensor([number]),
    ):
        with pytest.raises((TypeError, ValueError, TinygradMemError)):
            run()


def test_a_long_double_is_a_number():
    assert (tm.ones(2) + np.longdouble(2)).tolist() == [3.0, 3.0]
