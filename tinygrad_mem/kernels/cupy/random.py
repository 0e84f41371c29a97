"""Random numbers on a GPU, from a ticket ``(seed, call)``: Philox for each element, so the device keeps no state."""

from __future__ import annotations

import cupy

from .fused import Fused
from .philox import SOURCE
from .scan import cumsum as _cumsum
from .search import search_sorted as _search_sorted
from .sort import _workspace as _order_workspace
from .sort import order as _order

_HEAD = "uint64 seed, uint64 call"
_BITS = """
    const uint4 c = philox(seed, call, i >> 1);
    const unsigned long long bits = (i & 1) ? ((unsigned long long)c.z << 32 | c.w) : ((unsigned long long)c.x << 32 | c.y);
"""


def _drawn(parameters: str, body: str, name: str):
    return Fused(f"{_HEAD}{parameters}", "Z z", body, f"tinygrad_mem_{name}", preamble=SOURCE)


_uniform = _drawn(
    ", float64 low, float64 high",
    _BITS
    + """
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
    ", float64 rate", "z = Z(-log(((double)philox_at(seed, call, i) + 1.0) * 2.3283064365386963e-10) / rate)", "exponential"
)
_integers = _drawn(
    ", int64 low, uint64 span",
    f"{_BITS} z = Z(low + (long long)__umul64hi(bits, span));",
    "integers",
)
_bernoulli = _drawn(
    ", P p", "z = Z((double)philox_at(seed, call, i) * 2.3283064365386963e-10 < (double)p ? 1 : 0)", "bernoulli"
)


def uniform(ticket, low, high, out):
    _uniform(*ticket, low, high, out)


def normal(ticket, mean, std, out):
    _normal(*ticket, mean, std, out)


def exponential(ticket, rate, out):
    _exponential(*ticket, rate, out)


def integers(ticket, low, high, out):
    _integers(*ticket, low, high - low, out)


def bernoulli(ticket, p, out):
    _bernoulli(*ticket, p, out)


def _parts(work, *shapes):
    """float64 arrays of these shapes at the beginning of work, and the rest of it."""
    parts, at = [], work.data
    for shape in shapes:
        parts.append(cupy.ndarray(shape, "d", at))
        at = at + parts[-1].nbytes  # += would move work itself
    return *parts, cupy.ndarray((work.nbytes - at.ptr + work.data.ptr,), "B", at)


def permutation_workspace(out):
    """Bytes of workspace for ``permutation``: the keys, the workspace of sorting them, and the order if out is not int64."""
    return 8 * out.size * (1 if out.dtype.char == "l" else 2) + _order_workspace((out.size,), 0)


def permutation(ticket, work, out):
    if not out.size:
        return
    if out.dtype.char == "l":
        keys, rest = _parts(work, out.shape)
        places = out
    else:
        keys, places, rest = _parts(work, out.shape, out.shape)
        places = places.view("l")
    _uniform(*ticket, 0.0, 1.0, keys)
    _order(keys, 0, 0, out.size, False, rest, places)
    if places is not out:
        cupy.copyto(out, places, casting="unsafe")


_divide = Fused("T x", "float64 key", "key /= x", "tinygrad_mem_race")
_scale = Fused("float64 total", "float64 draw", "draw *= total", "tinygrad_mem_scale_draws")


def multinomial_workspace(weights, replacement, out):
    """Bytes of workspace for ``multinomial``: running totals and a number per draw, or a key per weight and their order."""
    if replacement:
        return 8 * (weights.size + out.size)
    return 8 * weights.size + _order_workspace(weights.shape, weights.ndim - 1)


def multinomial(ticket, weights, replacement, work, out):
    if not out.size:
        return
    weights, out = weights.reshape(-1, weights.shape[-1]), out.reshape(-1, out.shape[-1])
    if replacement:
        totals, draws, _ = _parts(work, weights.shape, out.shape)
        _cumsum(weights, 1, False, totals)
        _uniform(*ticket, 0.0, 1.0, draws)
        _scale(totals[:, -1:], draws)
        _search_sorted(totals, draws, True, out)
    else:
        keys, rest = _parts(work, weights.shape)
        _exponential(*ticket, 1.0, keys)
        _divide(weights, keys)
        _order(keys, 1, 0, out.shape[1], False, rest, out)
