"""Casts between float32 and half precision; float16 in blocks, by passes over integers.

NumPy's cast to float16 takes 8 nanoseconds per number, and 80 below 6e-5, where many gradients and Adam's moments are. Here
each number takes 4. The results have the same bits, except that a nan may have others.

bfloat16 is the upper half of a float32: ml_dtypes rounds to it in half a nanosecond, which passes of NumPy cannot reach.
"""

from __future__ import annotations

import threading

import numpy as np

from .threads import split

_BLOCK = 1 << 14
_FEW = 1 << 11  # elements up to which a single call of NumPy is faster
_GRAIN = 1 << 16
_EXPONENT = 0x7F800000
_SMALLEST = 113 << 23  # the bits of 2**-14, the smallest normal half
_TO_SPACING = 13 << 23  # from a power of two to the one with the spacing that float16 has there
_REBIAS = 2.0**112  # from a half's exponent, in the place of a float32's, to the float32
_INFINITY, _MINUS_INFINITY = 0x7C00, 0xFC00

_local = threading.local()


def cast(x: np.ndarray, out: np.ndarray) -> None:
    """out = x, both of one shape, rounded to nearest where out is narrower."""
    run = _RUNS.get(x.dtype.char + out.dtype.char)
    if run is None or x.size < _FEW or not (x.flags.c_contiguous and out.flags.c_contiguous):
        np.copyto(out, x, casting="unsafe")
        return
    source, target = x.reshape(-1), out.reshape(-1)

    def part(start: int, stop: int) -> None:
        for i in range(start, stop, _BLOCK):
            j = min(i + _BLOCK, stop)
            run(source[i:j], target[i:j])

    split(x.size, part, _GRAIN)


def _widen(x: np.ndarray, out: np.ndarray) -> None:
    """Shift the bits: those of a half, in the places of a float32's, are the number divided by 2**112."""
    signed = x.view(np.int16)
    if signed.max() >= _INFINITY or x.view(np.uint16).max() >= _MINUS_INFINITY:
        np.copyto(out, x)  # inf and nan have an exponent of their own
        return
    bits = out.view(np.int32)
    np.copyto(bits, signed)  # the sign fills the upper half
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, ~0x70001FFF, out=bits)
    np.multiply(out, _REBIAS, out=out)


def _narrow(x: np.ndarray, out: np.ndarray) -> None:
    """Round as IEEE 754 does: add and subtract a power of two with the spacing that float16 has there."""
    value, spacing, sign = (each[: x.size] for each in _blocks())
    bits, halves = value.view(np.int32), out.view(np.uint16)
    np.right_shift(x.view(np.int32), 16, out=bits)
    np.copyto(sign, bits, casting="unsafe")
    np.bitwise_and(sign, 0x8000, out=sign)
    np.abs(x, out=value)
    np.minimum(value, 65536.0, out=value)  # inf in float16; nan stays nan
    np.bitwise_and(bits, _EXPONENT, out=spacing)
    np.maximum(spacing, _SMALLEST, out=spacing)
    np.add(spacing, _TO_SPACING, out=spacing)
    power = spacing.view(np.float32)
    np.add(value, power, out=value)
    np.subtract(value, power, out=value)
    np.multiply(value, 1 / _REBIAS, out=value)
    np.right_shift(bits, 13, out=bits)
    np.copyto(halves, bits, casting="unsafe")
    np.bitwise_or(halves, sign, out=halves)


def _copy(x: np.ndarray, out: np.ndarray) -> None:
    np.copyto(out, x, casting="unsafe")


_RUNS = {"ef": _widen, "fe": _narrow, "Ef": _copy, "fE": _copy}  # by NumPy's letters: ml_dtypes' bfloat16 is E


def _blocks() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Buffers for one block's numbers, spacings and signs: 160 KiB per thread, made once."""
    try:
        return _local.blocks
    except AttributeError:
        _local.blocks = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.int32), np.empty(_BLOCK, np.uint16)
        return _local.blocks
