"""Random numbers on a GPU, from a ticket ``(seed, call)``: Philox by element, so that no state lives on the device."""

from __future__ import annotations

import cupy as _cupy

from .fused import Fused as _Fused
from .philox import SOURCE as _SOURCE

_HEAD = "uint64 seed, uint64 call"


def _drawn(parameters: str, body: str, name: str):
    return _Fused(f"{_HEAD}{parameters}", "Z z", body, f"tinygrad_mem_{name}", preamble=_SOURCE)


_uniform = _drawn(
    ", float64 low, float64 high",
    """
    const uint4 c = philox(seed, call, i >> 1);
    const unsigned long long bits = (i & 1) ? ((unsigned long long)c.z << 32 | c.w) : ((unsigned long long)c.x << 32 | c.y);
    const double u = (double)(bits >> 11) * 1.1102230246251565e-16;
    Z value = Z(low + (high - low) * u);
    z = value < Z(high) ? value : Z(low);  // rounding must not reach the open end
    """,
    "uniform",
)
_normal = _drawn(
    ", float64 mean, float64 std",
    """
    const uint4 c = philox(seed, call, i >> 1);
    const double u = ((double)c.x + 1.0) * 2.3283064365386963e-10, v = (double)c.y * 2.3283064365386963e-10;
    const double r = sqrt(-2.0 * log(u)), a = 6.283185307179586 * v;
    z = Z(mean + std * r * ((i & 1) ? sin(a) : cos(a)));
    """,
    "normal",
)
_exponential = _drawn(
    ", float64 rate",
    "z = Z(-log(((double)philox_at(seed, call, i) + 1.0) * 2.3283064365386963e-10) / rate)",
    "exponential",
)
_integers = _drawn(
    ", int64 low, uint64 span",
    """
    const uint4 c = philox(seed, call, i >> 1);
    const unsigned long long bits = (i & 1) ? ((unsigned long long)c.z << 32 | c.w) : ((unsigned long long)c.x << 32 | c.y);
    z = Z(low + (long long)__umul64hi(bits, span));
    """,
    "integers",
)
_bernoulli = _drawn(
    ", P p", "z = Z((double)philox_at(seed, call, i) * 2.3283064365386963e-10 < (double)p ? 1 : 0)", "bernoulli"
)


def uniform(ticket, low, high, out):
    """out = uniform numbers in [low, high)."""
    _uniform(*ticket, low, high, out)


def normal(ticket, mean, std, out):
    """out = normal numbers, by Box and Muller's method."""
    _normal(*ticket, mean, std, out)


def exponential(ticket, rate, out):
    """out = exponential numbers with this rate."""
    _exponential(*ticket, rate, out)


def integers(ticket, low, high, out):
    """out = integers in [low, high)."""
    _integers(*ticket, low, high - low, out)


def bernoulli(ticket, p, out):
    """out = 1 with probability p (a number, or an array of out's shape), else 0."""
    _bernoulli(*ticket, p, out)


def permutation(ticket, out):
    """out = 0 to n - 1 in random order: the order of as many random keys."""
    keys = _cupy.empty(out.size, _cupy.float64)
    _uniform(*ticket, 0.0, 1.0, keys)
    _cupy.copyto(out, _cupy.argsort(keys), casting="unsafe")


def multinomial(ticket, weights, replacement, out):
    """out = for each row, indices drawn in proportion to the row's weights (Gumbel's trick without replacement)."""
    rows = weights.reshape(-1, weights.shape[-1]).astype(_cupy.float64)
    target = out.reshape(-1, out.shape[-1])
    if replacement:
        totals = _cupy.cumsum(rows, axis=1)
        draws = _cupy.empty(target.shape, _cupy.float64)
        _uniform(*ticket, 0.0, 1.0, draws)
        for i in range(rows.shape[0]):
            target[i] = _cupy.searchsorted(totals[i], draws[i] * totals[i, -1], side="right")
        return
    keys = _cupy.empty(rows.shape, _cupy.float64)
    _exponential(*ticket, 1.0, keys)
    target[...] = _cupy.argsort(keys / rows, axis=1)[:, : target.shape[1]]
