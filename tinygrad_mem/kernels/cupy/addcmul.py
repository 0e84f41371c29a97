"""A product or a quotient, added, in one kernel: of float16 in float32 and rounded once."""

from __future__ import annotations

from .formula import of_three as _of_three

_addcmul = _of_three("W(x) + W(value) * W(a) * W(b)", "addcmul")
_lerp = _of_three("W(x) + W(b) * (W(a) - W(x))", "lerp")
_addcdiv = _of_three("W(x) + W(value) * (W(a) / W(b))", "addcdiv")


def addcmul(x, a, b, value, out):
    """out = x + value * a * b; x may be a number."""
    _addcmul(x, a, b, value, out)


def addcdiv(x, a, b, value, out):
    """out = x + value * a / b; x may be a number."""
    _addcdiv(x, a, b, value, out)


def lerp(x, end, weight, out):
    """out = x + weight * (end - x); from ``end`` where that is nearer, so that at weight 1 it is ``end`` itself."""
    if not hasattr(weight, "dtype") and abs(weight) >= 0.5:
        x, end, weight = end, x, 1 - weight
    _lerp(x, end, weight, 1, out)
