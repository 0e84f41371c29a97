"""A product or a quotient, added, in one kernel: of float16 in float32 and rounded once."""

from __future__ import annotations

from .formula import of_three as _of_three

_addcmul = _of_three("W(x) + W(value) * W(a) * W(b)", "addcmul")
_addcdiv = _of_three("W(x) + W(value) * (W(a) / W(b))", "addcdiv")


def addcmul(x, a, b, value, out):
    """out = x + value * a * b; x may be a number."""
    _addcmul(x, a, b, value, out)


def addcdiv(x, a, b, value, out):
    """out = x + value * a / b; x may be a number."""
    _addcdiv(x, a, b, value, out)
