"""What an op takes inside, told by a smaller call, is what the whole call takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.profiles import pairs, some
from tests.pytorch.op_samples import real_peak
from tinygrad_mem.pytorch import predict
from tinygrad_mem.pytorch.program.alone import Alone, run_alone
from tinygrad_mem.pytorch.program.described import Within, described
from tinygrad_mem.pytorch.program.smaller import FACTORIES, by_rule, cut_call, elementwise, smaller

aten = torch.ops.aten
SHAPES = some([(3, 5), (65,), (130, 11), (4, 3, 100, 90)], [(3, 5), (4, 3, 100, 90)])
DTYPES = [torch.float32, torch.bfloat16, torch.int64]
_VALUES = {"Tensor": None, "number": 0.3, "float": 0.3, "bool": False, "int": 1, "Optional[Tensor]": None, "str": "none"}


def ops() -> list[Any]:
    """All of PyTorch's elementwise ops that can be called with tensors, numbers and their defaults alone."""
    found = []
    for name in dir(aten):
        packet = getattr(aten, name)
        overloads = packet.overloads() if hasattr(packet, "overloads") else []
        found += [getattr(packet, each) for each in overloads if "out" not in each]
    return [op for op in found if torch.Tag.pointwise in op.tags and _arguments(op, (1,), torch.float32) is not None]


def _arguments(op: Any, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...] | None:
    given = []
    for each in op._schema.arguments:
        kind = str(each.type)
        if each.has_default_value() and "Tensor" not in kind:
            break
        if kind not in _VALUES:
            return None
        given.append(torch.zeros(shape, dtype=dtype) if kind in ("Tensor", "Optional[Tensor]") else _VALUES[kind])
    return tuple(given)


def whole(op: Any, args: tuple, **kwargs: Any) -> Within | None:
    """What the op takes on these arguments themselves; ``None``: PyTorch refuses them."""
    call = described(op, args, kwargs)
    try:
        return None if call is None else run_alone(call, args, kwargs)
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return None


def told(op: Any, *args: Any) -> Within | None:
    """What smaller calls, or a rule, say that the op takes on these arguments; ``None``: nothing."""
    call = described(op, args, {})
    assert call is not None
    small = smaller(call)
    return (small and small.whole(*[Alone().within(each, args, {}, ()) for each in small.calls])) or by_rule(call)


@pytest.mark.filterwarnings("ignore")
def test_one_shape_tells_for_all_of_an_elementwise_op():
    told = set()
    for op in ops():
        for shape, dtype in pairs(SHAPES, DTYPES):
            args = _arguments(op, shape, dtype)
            call, real = described(op, args, {}), whole(op, args)
            found = None if real is None else Alone().first(call, args, {})
            if found is not None:
                assert found == real, (op, shape, dtype)
                told.add(op)
    assert len(told) > 300


@pytest.mark.filterwarnings("ignore")
def test_one_shape_tells_for_all_that_is_written_in_place():
    """Also of a part of a tensor, and of a turned one."""
    count = 0
    for op in [op for op in ops() if op._schema.name.endswith("_")]:
        for dtype in some(DTYPES, [torch.float32]):
            for change in (lambda x: x[:, 1:], lambda x: x[:, :-1].transpose(0, 1)):
                args = tuple(change(x) if isinstance(x, torch.Tensor) else x for x in _arguments(op, (9, 80), dtype) or ())
                real = whole(op, args)
                found = None if real is None else told(op, *args)
                assert found in (None, real), (op, dtype)
                count += found is not None
    assert count > 150


@pytest.mark.parametrize("name", ["uniform_", "normal_", "zero_", "zeros_like", "ones_like", "empty_like"])
def test_so_it_does_for_what_fills(name: str):
    op = getattr(aten, name).default
    for shape in SHAPES:
        args = (torch.zeros(shape),)
        assert Alone().first(described(op, args, {}), args, {}) == whole(op, args)


def test_a_copy_to_another_dtype_inside_is_run_in_full():
    """``where`` and the like turn an argument into the dtype of the result first: a temporary of its size."""
    args = torch.zeros(300, 300), torch.zeros(300, 300, dtype=torch.float64)
    call = described(aten.add.Tensor, args, {})
    assert elementwise(call) is not None
    assert whole(aten.add.Tensor, args) is not None
    found = Alone().first(call, args, {})
    assert found is None or found == whole(aten.add.Tensor, args)


def test_tensors_that_are_not_dense_or_of_other_shapes_are_another_call():
    x, row = torch.zeros(70, 80), torch.zeros(80)
    for args in ((x, row), (x.t(), x.t()), (x[:, :40], x[:, :40]), (row.sum(), row.sum())):
        assert elementwise(described(aten.add.Tensor, args, {})) is None
    assert elementwise(described(aten.add.Tensor, (x, row.sum()), {})) is not None
    assert elementwise(described(aten.sum.default, (x,), {})) is None


TURNED = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("dtype", "turned"), pairs([torch.float32, torch.float64, torch.bfloat16], TURNED))
def test_a_small_product_tells_for_a_large_one(dtype: torch.dtype, turned: tuple[bool, bool]):
    def matrix(rows: int, columns: int, turn: bool) -> torch.Tensor:
        return torch.zeros(columns, rows, dtype=dtype).t() if turn else torch.zeros(rows, columns, dtype=dtype)

    for m, k, n in [(1030, 70, 1100), (33, 1100, 1500), (1, 2000, 1024), (1024, 1024, 1)]:
        a, b = matrix(m, k, turned[0]), matrix(k, n, turned[1])
        for op, args in [
            (aten.mm.default, (a, b)),
            (aten.addmm.default, (torch.zeros(n, dtype=dtype), a, b)),
            (aten.bmm.default, (a.expand(2, m, k).contiguous(), b.expand(2, k, n).contiguous())),
        ]:
            call = described(op, args, {})
            assert cut_call(call) is not None
            assert Alone().within(call, args, {}, op(*args)) == whole(op, args)


def test_a_smaller_loss_tells_for_a_large_one():
    x, target = torch.zeros(1100, 1500), torch.zeros(1100, dtype=torch.long)
    found = aten._log_softmax.default(x, 1, False)
    for op, args in [
        (aten._log_softmax.default, (x, 1, False)),
        (aten._log_softmax.default, (x, 0, False)),
        (aten._softmax.default, (x, 1, False)),
        (aten._log_softmax_backward_data.default, (x, found, 1, torch.float32)),
        (aten.nll_loss_forward.default, (found, target, None, 1, -100)),
    ]:
        call = described(op, args, {})
        assert cut_call(call) is not None
        assert Alone().within(call, args, {}, op(*args)) == whole(op, args)


def test_settings_of_pytorch_are_part_of_a_call():
    """Without oneDNN a convolution takes im2col's columns."""
    args = torch.zeros(2, 3, 20, 20), torch.zeros(8, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1

    def learned() -> Within:
        return Alone().within(described(aten.convolution.default, args, {}), args, {}, aten.convolution.default(*args))

    with_it = learned()
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        without = learned()
        assert without == whole(aten.convolution.default, args)
    assert with_it != without


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16, torch.float32)])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_small_batch_norms_tell_for_all(dtypes: tuple[torch.dtype, torch.dtype], trained: bool, affine: bool):
    for shape in some([(4, 64, 28, 30), (1, 3, 50, 40), (100, 70, 2, 3), (8, 33, 99), (2, 16, 9, 5, 6)], [(4, 64, 28, 30)]):
        x = torch.zeros(shape, dtype=dtypes[0])
        ones = [torch.ones(shape[1], dtype=dtypes[1]) for _ in range(6)]
        weight, bias = ones[:2] if affine else (None, None)
        mean, spread = ones[2:4] if trained else (None, None)
        forward = x, weight, bias, *ones[4:], trained, 0.1, 1e-5
        found = told(aten.native_batch_norm.default, *forward)
        assert found == whole(aten.native_batch_norm.default, forward) is not None
        for needed in ([True, affine, affine], [affine, True, affine]) if affine else ([True, False, False],):
            backward = x.clone(), x, weight, *ones[4:], mean, spread, trained, 1e-5, needed
            found = told(aten.native_batch_norm_backward.default, *backward)
            assert found == whole(aten.native_batch_norm_backward.default, backward) is not None


def test_other_batch_norms_are_run_in_full():
    """Those of rows, and of images in other orders, are other kernels."""
    ones = [torch.ones(6) for _ in range(4)]
    for x in (torch.zeros(9, 6), torch.zeros(9, 6, 4, 4).to(memory_format=torch.channels_last), torch.zeros(9, 6, 1, 1)):
        assert told(aten.native_batch_norm.default, x, *ones, True, 0.1, 1e-5) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_planes_tell_for_all_of_a_pooling(dtype: torch.dtype):
    x, window = torch.zeros(5, 70, 33, 20, dtype=dtype), ([3, 3], [2, 2], [1, 1])
    y, places = aten.max_pool2d_with_indices.default(x, *window)
    for op, args in [
        (aten.max_pool2d_with_indices.default, (x, *window)),
        (aten.max_pool2d_with_indices_backward.default, (y, x, *window, [1, 1], False, places)),
        (aten.avg_pool2d.default, (x, *window)),
        (aten.avg_pool2d_backward.default, (y, x, *window, False, True, None)),
    ]:
        assert told(op, *args) == whole(op, args) is not None
    assert told(aten.avg_pool2d.default, x.to(memory_format=torch.channels_last), *window) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_is_put_behind_each_other_takes_its_result_alone(dtype: torch.dtype):
    for shape, axis in [((4, 96, 28, 28), 1), ((500, 300), 0), ((300, 40), 1), ((3, 70, 5), -1), ((999,), 0)]:
        x, y = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        for parts in ([x, y], [x], [x, x, y]):
            assert told(aten.cat.default, parts, axis) == whole(aten.cat.default, (parts, axis)) is not None
    assert told(aten.cat.default, [torch.zeros(70, 70), torch.zeros(70, 70).t()], 1) is None
    assert told(aten.cat.default, [torch.zeros(70), torch.zeros(70).double()], 0) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_is_added_to_a_part_takes_nothing(dtype: torch.dtype):
    for part in (torch.zeros(4, 96, 60, 60, dtype=dtype)[:, :32], torch.zeros(300, 400, dtype=dtype)[:, 1:]):
        plain, turned = torch.zeros(part.shape, dtype=dtype), part.transpose(-1, -2)
        for args in [(plain, part), (part, plain), (part, part), (turned, torch.zeros(turned.shape, dtype=dtype))]:
            for op in (aten.add_.Tensor, aten.mul_.Tensor):
                assert told(op, *args) == whole(op, args) is not None
    assert told(aten.add_.Tensor, part, torch.zeros(1, part.shape[1], dtype=dtype).expand(part.shape)) is None
    assert told(aten.add_.Tensor, part, torch.zeros(part.shape, dtype=torch.bool)) is None


def test_new_tensors_are_their_size():
    for op, args in [(aten.empty.memory_format, ([3, 40],)), (aten.zeros.default, ([7],)), (aten.full.default, ([3, 4], 2.5))]:
        call = described(op, args, {})
        assert call is not None
        assert call.func in FACTORIES
        assert Alone().within(call, args, {}, op(*args)) == whole(op, args)


def test_a_convolution_is_known_before_its_shapes_are():
    """PyTorch's formula for them takes longer than most of the ops that it tells about."""
    x, weight = torch.zeros(2, 3, 20, 20), torch.zeros(8, 3, 3, 3)
    for turned, known in ((False, True), (True, False)):
        args = (x, weight.transpose(0, 1).contiguous() if turned else weight, None, [1, 1], [1, 1], [1, 1], turned, [0, 0], 1)
        call = described(aten.convolution.default, args, {})
        assert call is not None
        found = Alone().first(call, args, {})
        assert (found == whole(aten.convolution.default, args)) is known


def test_one_number_stands_for_all_axes_of_a_convolution():
    def run() -> torch.Tensor:
        x, weight = torch.zeros(2, 3, 20, 20), torch.zeros(8, 3, 3, 3)
        return torch.convolution(x, weight, None, [1], [1], [1], False, [0], 1)

    run()
    assert predict(run, device="cpu").peak == real_peak(run)


@pytest.mark.parametrize(("tensors", "axis"), [(((9, 4), (3,)), 0), (((9, 4), (9, 5)), 0), (((9, 4), (9, 4)), 2), ((), 0)])
def test_what_cannot_be_put_behind_each_other_is_refused(tensors: tuple[tuple[int, ...], ...], axis: int):
    def run() -> torch.Tensor:
        return torch.cat([torch.zeros(sizes) for sizes in tensors], axis)

    with pytest.raises((RuntimeError, IndexError, ValueError)) as real:
        run()
    with pytest.raises(real.type):
        predict(run, device="cpu")
