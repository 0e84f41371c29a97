"""Elementwise arithmetic. Operands may differ in dtype from ``out``: ufuncs cast in small buffers of their own."""

from __future__ import annotations

import numpy as np


def copy(x, out):
    """out = x, broadcast and cast."""
    np.copyto(out, x, casting="unsafe")


def fill(value, out):
    """out = value everywhere."""
    out.fill(value)


def add(x, y, out):
    """out = x + y."""
    np.add(x, y, out=out, casting="unsafe")


def multiply(x, y, out):
    """out = x * y."""
    np.multiply(x, y, out=out, casting="unsafe")


def relu(x, out):
    """out = max(x, 0)."""
    np.maximum(x, 0, out=out)


def relu_backward(gy, y, out):
    """out = gy where y > 0, else 0."""
    np.multiply(gy, y > 0, out=out)
