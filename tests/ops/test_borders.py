"""Arguments at their borders, refused or answered as in PyTorch: empty, twice, beyond the dtype, of NumPy's types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.errors import TinygradMemError

REFUSED = """
    F.bilinear(M.ones(1, 2, 2), M.ones(2, 2, 1), M.ones(1, 2, 1)) | bilinear\\(\\): input batch dimensions do not match
    F.bilinear(M.ones(2, 1), M.ones(2, 3), M.ones(4, 2, 3)) | found \\[2, 1\\] and \\[2, 3\\], weight \\[4, 2, 3\\]
    M.linalg.norm(M.ones(3, 2), 2, ()) | If dim is specified, it must be of length 1 or 2. Got \\[\\]
    M.squeeze(M.ones(2, 1, 3), (0, 0)) | dim \\(0, 0\\) appears multiple times
    M.unflatten(M.ones(1, 0, 2), 0, (6,)) | Provided sizes \\[6\\] don't multiply up to the size of dim 0 \\(1\\)
    M.unflatten(M.ones(0, 3), 1, (2, -1)) | don't multiply up to the size of dim 1 \\(3\\)
    M.ones(()).repeat(-1, 2) | repeat: Trying to create tensor with negative dimension: found \\[-1, 2\\]
    M.take_along_dim(M.ones(4), M.zeros(3, 4).long(), -1) | same number of dimensions, found \\[4\\] and \\[3, 4\\]
    M.tile(M.ones(2), (1, -1)) | repeat: .*negative dimension: found \\[1, -1\\]
    F.max_pool2d(M.ones(4, 3, 5), 3, 3, 2, 3) | pad should be at most half of kernel size, but got pad=2
    F.max_pool3d(M.ones(1, 4, 4, 4), 2, 1, 2, 3) | half of kernel size, but got pad=2, kernel_size=2
    F.avg_pool3d(M.ones(1, 1, 1, 1, 3), 4, 3, 1) | input image \\[1, 1, 3\\] smaller than kernel size \\[4, 4, 4\\]
    F.avg_pool3d(M.ones(1, 1, 1, 3), 4, 3, 0, True) | input image \\[1, 1, 3\\] smaller than kernel size
    F.pad(M.ones(3), (-5, 2)) | length must be non-negative: \\[-5, 2\\] crops more than \\[3\\] has
    M.flip(M.ones(2)) | missing 1 required positional arguments: "dims"
    F.adaptive_avg_pool1d(M.ones(1, 4).int(), 2) | expected a floating tensor, found int32
    F.adaptive_avg_pool2d(M.ones(1, 4, 4).byte(), 2) | expected a floating tensor, found uint8
    F.adaptive_max_pool2d(M.ones(1, 4, 4).long(), 2) | expected a floating tensor, found int64
    M.ones(2) % object() | argument 'other' \\(position 2\\) must be Tensor or Number, not object
    M.addcmul(M.ones(2), M.ones(2), M.ones(2), value="a") | argument 'value' must be Number, not str
    M.maximum(M.ones(2), object()) | argument 'other' \\(position 2\\) must be Tensor, not object
    M.ones(2) ** object() | argument 'exponent' \\(position 2\\) must be Tensor or Number, not object
    M.gather(M.ones(0), 3, M.zeros(0, dtype=M.int64)) | Dimension out of range .* but got 3
    M.isclose(M.ones(2), M.ones(2), float("nan")) | must be greater than or equal to zero, found nan
    M.cdist(M.ones(3, 2), M.ones(3, 2), float("nan")) | non-negative p values, found nan
    M.cdist(M.ones(3, 2), M.ones(3, 2).double()) | cdist: expected tensors of one dtype, found float32 and float64
    M.meshgrid(M.ones(2), M.arange(2), indexing="ij") | same dtype, found float32 and int64
    M.lerp(M.ones(2), M.ones(2).double(), 0.5) | lerp: expected dtype float32 for `end` but got dtype float64
    M.lerp(M.ones(2), M.ones(2), M.ones(2).double()) | lerp: expected dtype float32 for `weight` but got dtype float64
    F.prelu(M.ones(2), M.ones(1).double()) | Type promoting not supported. Got float32 and float64
    F.gaussian_nll_loss(M.ones(2), M.ones(2), M.ones(2).int()) | gaussian_nll_loss: expected a floating tensor, found int32
    M.promote_types(None, M.float32) | promote_types: expected two dtypes, found None and dtype\\('float32'\\)
    M.clamp(M.ones(2), min=1e39) | value cannot be converted to type float32 without overflow: found 1e\\+39
    M.clamp(M.ones(2).half(), max=70000) | type float16 without overflow: found 70000
    F.elu(M.ones(2), 1e39) | type float32 without overflow
    F.celu(M.ones(2), 1e39) | type float32 without overflow
    F.leaky_relu(M.ones(2), -1e39) | type float32 without overflow
    F.softplus(M.ones(2), 1e39) | type float32 without overflow
    M.add(M.ones(2), M.ones(2), alpha=1e39) | type float32 without overflow
    M.sub(M.ones(2), M.ones(2), alpha=-1e39) | type float32 without overflow
    M.addcmul(M.ones(2), M.ones(2), M.ones(2), value=1e39) | type float32 without overflow
    M.addcdiv(M.ones(2), M.ones(2), M.ones(2), value=1e39) | type float32 without overflow
    M.lerp(M.ones(2), M.ones(2), 1e39) | type float32 without overflow
    M.addmm(M.ones(2, 2), M.ones(2, 2), M.ones(2, 2), alpha=1e39) | type float32 without overflow
    M.addmm(M.ones(2, 2), M.ones(2, 2), M.ones(2, 2), beta=1e39) | type float32 without overflow
    M.addcdiv(M.ones(2), M.ones(2).int(), M.ones(2).int()) | Integer division with addcdiv is no longer supported
    M.ones(2).addcdiv_(M.ones(2).bool(), M.ones(2).int()) | Integer division with addcdiv is no longer supported
    M.cumsum(M.ones(2), 0, dtype=M.bool) | cumsum is not implemented for bool: give another dtype
    M.ones(2).bool().cumsum_(0) | cumsum_ is not implemented for bool
    M.cumprod(M.ones(2), 0, dtype=M.bool) | cumprod is not implemented for bool
    M.nanmean(M.ones(2), dtype=M.int64) | nanmean\\(\\): dtype must be a floating point dtype, got int64
"""
ANSWERED = """
    M.full((2,), np.int64(3))
    M.full((2,), np.float32(3))
    F.leaky_relu(M.tensor([-2.0, 3]), 1)
    F.leaky_relu(M.tensor([-2.0, 3]).bfloat16(), 1).float()
    F.leaky_relu(M.tensor([-2.0, 3]), 0)
    F.elu(M.tensor([-2.0, 3]), 0)
    F.softplus(M.tensor([-2.0, 3]), 1, 0)
    F.instance_norm(M.ones(2, 2, 0))
    F.instance_norm(M.ones(1, 0, 2))
    M.cdist(M.ones(2, 0), M.ones(3, 0), float("inf"))
    M.cdist(M.ones(2, 0), M.ones(3, 0), 3)
    M.unflatten(M.ones(0, 3), 0, (0, 2))
    M.unflatten(M.ones(2, 3), 1, (-1, 1, 3))
    M.tile(M.ones(2), (0, 2))
    F.max_pool1d(M.ones(1, 9), 3, 3, 1, 3)
    F.max_pool2d(M.ones(1, 9, 9), 2, 1, 1, 2)
    F.avg_pool2d(M.ones(1, 3, 3), 4, 1, 1)
    F.pad(M.ones(3), (-1, -2))
    F.pad(M.ones(3), (-3, 2))
    M.clamp(M.ones(2), max=float("inf"))
    M.clamp(M.tensor([True, False]), min=1)
    M.clamp(M.ones(2).bfloat16(), max=1e38).float()
    M.add(M.ones(2), M.ones(2), alpha=float("inf"))
    M.addcmul(M.ones(2).half(), M.ones(2).half(), M.ones(2).half(), value=70000)
    F.elu(M.tensor([-1.0, 2]).half(), 70000)
    M.squeeze(M.ones(1, 2, 1), (0, 2))
    F.mse_loss(M.ones(2, 3), M.tensor(0.5).double())
    F.l1_loss(M.tensor(0.5).double(), M.ones(2, 3))
    F.smooth_l1_loss(M.ones(2, 3).half(), M.tensor(0.5))
    F.huber_loss(M.ones(2, 3), M.tensor(0.5).double())
    F.cosine_similarity(M.ones(2, 3), M.tensor(0.5).double())
    M.positive(M.ones(2))
    M.round(M.arange(3))
    reversed(M.arange(6).view(2, 3))
    M.zeros((1,) + M.ones(2).shape)
    M.arange(M.tensor(3))
    M.arange(M.tensor(0, dtype=M.int32), 3)
    M.arange(0, M.tensor(3), M.tensor(2))
    M.arange(M.tensor(2.5))
    M.zeros(M.tensor(3))
    M.ones(6).view(M.tensor(6))
    M.ones(2).expand(M.tensor(2))
"""


def lines(table: str) -> list[str]:
    return [line.strip() for line in table.strip().splitlines()]


def run(lib: Any, call: str) -> Any:
    return eval(call, {"M": lib, "F": lib.nn.functional, "np": np})


@pytest.mark.parametrize("row", lines(REFUSED))
@pytest.mark.filterwarnings("ignore")
def test_what_pytorch_refuses_is_refused(row: str):
    call, words = row.split(" | ")
    with pytest.raises(Exception):  # noqa: B017, PT011 (PyTorch's own: each its type)
        run(torch, call)
    with pytest.raises(TinygradMemError, match=words):
        run(tm, call)


@pytest.mark.parametrize("call", lines(ANSWERED))
@pytest.mark.filterwarnings("ignore")
def test_what_pytorch_answers_is_answered(call: str):
    found, expected = run(tm, call), run(torch, call)
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    np.testing.assert_allclose(found.numpy(), expected.numpy(), 1e-6)


SIGNS = ["+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!="]


class Sum:
    """A type that no tensor knows, with operators of its own."""

    def __radd__(self, other: Any) -> str:
        return "asked"

    __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rmatmul__ = __radd__
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __radd__
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __radd__  # type: ignore[assignment]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("values", [[1, 2], [1.0, 2.0]])
def test_an_operator_asks_the_other_operand_if_it_does_not_know_its_type(sign: str, values: list):
    for lib in (torch, tm):
        x = lib.tensor(values)
        assert eval(f"x {sign} other", {"x": x, "other": Sum()}) == "asked"
        if sign[0] not in "<>=!" or sign in ("<<", ">>"):
            space = {"x": x, "other": Sum()}
            exec(f"x {sign}= other", space)
            assert space["x"] == "asked"


def test_a_tensor_is_not_equal_to_what_is_no_number():
    for lib in (torch, tm):
        x = lib.ones(2)
        for other in ("a", None, object(), {}, {1.0}):
            assert (x == other) is False
            assert (x != other) is True


@pytest.mark.parametrize("name", ["zeros", "ones", "full", "empty", "rand", "randn"])
def test_what_is_like_another_tensor_may_require_grad(name: str):
    for lib in (torch, tm):
        made = getattr(lib, f"{name}_like")(lib.ones(2), *([3.0] if name == "full" else []), requires_grad=True)
        assert made.requires_grad
        assert made.is_leaf


def test_a_shape_is_joined_with_tuples_only():
    shape, one = tm.ones(2, 3).shape, (1,)
    for joined in (one + shape, tm.Size(one) + shape):
        assert type(joined) is type(shape)
        assert joined == (1, 2, 3)
    with pytest.raises(TypeError):
        shape + list(one)


@pytest.mark.parametrize("number", [2**63, 2**70])
def test_a_number_beyond_int64_is_no_size(number: int):
    for call in (lambda x: x + number, lambda x: x * number, lambda x: x & number):
        with pytest.raises(TinygradMemError, match="convert the tensor to a dtype that holds it"):
            call(tm.arange(3))


BEYOND_INT64: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + 2**63,
    "multiply": lambda x: (2**63 + 2**55) * x,
    "compare": lambda x: x == 2**63,
    "clamp": lambda x: x.clamp(min=2**63),
    "fill": lambda x: x.fill_(2**63),
    "masked_fill": lambda x: x.masked_fill(x > 0, 2**63),
    "full": lambda x: x.new_full((2,), 2**63),
}


@pytest.mark.parametrize("name", BEYOND_INT64)
@pytest.mark.parametrize("dtype", ["bfloat16", "bool"])
def test_a_number_beyond_int64_beside_bfloat16_and_bool_is_pytorchs_and_that_of_a_prediction(name: str, dtype: str):
    """ml_dtypes takes no integer of more than 63 bits, so a run refused what ``meta`` took; beside bool NumPy takes none."""
    call, x = BEYOND_INT64[name], {"dtype": getattr(tm, dtype)}
    try:
        expected = call(torch.ones(2, dtype=getattr(torch, dtype)))
    except (RuntimeError, OverflowError):
        for device in ("cpu", "meta"):
            with pytest.raises(TinygradMemError, match="convert the tensor to a dtype that holds it"):
                call(tm.ones(2, device=device, **x))
        return
    found = call(tm.ones(2, **x))
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    assert found.tolist() == expected.tolist()
    assert call(tm.ones(2, device="meta", **x)).dtype == found.dtype


@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (1, 2)])
def test_the_gradient_of_a_product_of_one_factor_is_1_even_for_inf(shape: tuple[int, ...]):
    found = []
    for library in (tm, torch):
        x = library.full(shape, float("inf"), requires_grad=True)
        for dim in range(-len(shape), len(shape)) or (0,):
            library.cumprod(x, dim).sum().backward()
        found.append(x.grad.numpy())
    np.testing.assert_array_equal(*found)
