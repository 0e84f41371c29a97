"""Python's operators on tensors, with their in-place and reflected forms, indexing and iteration."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...autograd.tensor import Tensor
from .. import compare, elementwise, index, linalg, rewrite, shape, unary


def _unless_none(compare: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Any]:
    """The operator: ``t == None`` is False and ``t != None`` is True, as of any object."""

    @functools.wraps(compare)
    def operator(self: Tensor, other: Any) -> Any:
        return NotImplemented if other is None else compare(self, other)

    return operator


class Operators:
    """Name -> function."""

    __add__ = elementwise.add
    __radd__ = elementwise.add
    __sub__ = elementwise.sub
    __rsub__ = elementwise.rsub
    __mul__ = elementwise.mul
    __rmul__ = elementwise.mul
    __truediv__ = elementwise.div
    __rtruediv__ = elementwise.rdiv
    __floordiv__ = elementwise.floor_divide
    __rfloordiv__ = elementwise.rfloor_divide
    __mod__ = elementwise.remainder
    __rmod__ = elementwise.rremainder
    __pow__ = elementwise.pow
    __rpow__ = elementwise.rpow
    __neg__ = unary.neg
    __pos__ = unary.positive
    __abs__ = unary.abs
    __eq__ = _unless_none(compare.eq)
    __ne__ = _unless_none(compare.ne)
    __lt__ = compare.lt
    __le__ = compare.le
    __gt__ = compare.gt
    __ge__ = compare.ge
    __and__ = compare.bitwise_and
    __rand__ = compare.bitwise_and
    __or__ = compare.bitwise_or
    __ror__ = compare.bitwise_or
    __xor__ = compare.bitwise_xor
    __rxor__ = compare.bitwise_xor
    __lshift__ = compare.bitwise_left_shift
    __rshift__ = compare.bitwise_right_shift
    __invert__ = compare.bitwise_not
    __iadd__ = elementwise.add_
    __isub__ = elementwise.sub_
    __imul__ = elementwise.mul_
    __itruediv__ = elementwise.div_
    __imod__ = elementwise.remainder_
    __ifloordiv__ = rewrite.floor_divide_
    __ipow__ = elementwise.pow_
    __iand__ = compare.bitwise_and_
    __ior__ = compare.bitwise_or_
    __ixor__ = compare.bitwise_xor_
    __ilshift__ = compare.bitwise_left_shift_
    __irshift__ = compare.bitwise_right_shift_
    __matmul__ = linalg.matmul
    __rmatmul__ = linalg.rmatmul
    __imatmul__ = linalg.imatmul
    __iter__ = shape.iterate
    __getitem__ = index.getitem
    __setitem__ = index.setitem
