"""``addcmul``, ``addcdiv`` and ``lerp``, one kernel each: float16 is computed in float32 and rounded once."""

from __future__ import annotations

from .formula import of_three as _of_three

_addcmul = _of_three("W(x) + W(value) * W(a) * W(b)", "addcmul")
_near, _far = "W(x) + W(b) * (W(a) - W(x))", "W(a) + (W(b) - W(1)) * (W(a) - W(x))"
_lerp = _of_three(f"W(b) > W(-0.5) && W(b) < W(0.5) ? {_near} : {_far}", "lerp")
_addcdiv = _of_three("W(x) + W(value) * (W(a) / W(b))", "addcdiv")


def addcmul(x, a, b, value, out):
    """out = x + value * a * b; x may be a number."""
    _addcmul(x, a, b, value, out)


def addcdiv(x, a, b, value, out):
    """out = x + value * a / b; x may be a number."""
    _addcdiv(x, a, b, value, out)


def lerp(x, end, weight, out):
    """out = x + weight * (end - x), computed from the nearer end, so that weight 1 gives exactly ``end``."""
    _lerp(x, end, weight, 1, out)
