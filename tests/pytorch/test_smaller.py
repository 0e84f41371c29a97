"""What an op takes inside, told by a smaller call, is what the whole call takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.profiles import some
from tinygrad_mem.pytorch.program.alone import Alone, run_alone
from tinygrad_mem.pytorch.program.described import Within, described
from tinygrad_mem.pytorch.program.smaller import Elementwise, cut_call

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


@pytest.mark.filterwarnings("ignore")
def test_one_shape_tells_for_all_of_an_elementwise_op():
    told = set()
    for op in ops():
        for shape in SHAPES:
            for dtype in DTYPES:
                args = _arguments(op, shape, dtype)
                call, real = described(op, args, {}), whole(op, args)
                found = None if real is None else Alone().first(call, args, {})
                if found is not None:
                    assert found == real, (op, shape, dtype)
                    told.add(op)
    assert len(told) > 300


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
    assert Elementwise.of(call) is not None
    assert whole(aten.add.Tensor, args) is not None
    found = Alone().first(call, args, {})
    assert found is None or found == whole(aten.add.Tensor, args)


def test_tensors_that_are_not_dense_or_of_other_shapes_are_another_call():
    x, row = torch.zeros(70, 80), torch.zeros(80)
    for args in ((x, row), (x.t(), x.t()), (x[:, :40], x[:, :40]), (row.sum(), row.sum())):
        assert Elementwise.of(described(aten.add.Tensor, args, {})) is None
    assert Elementwise.of(described(aten.add.Tensor, (x, row.sum()), {})) is not None
    assert Elementwise.of(described(aten.sum.default, (x,), {})) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
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
