"""One step of recurrent layers, in place, in few passes over whole rows."""

import numpy as np

from .threads import scratch

_BY_TANH = np._core._multiarray_umath.__cpu_features__.get("AVX512_SKX", False)  # type: ignore[attr-defined]
_TINY = {size: np.finfo(f"f{size}").tiny for size in (4, 8)}


def _sigmoid(x):
    """x = 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2, by what is faster: NumPy has a tanh in vectors of 512 bits."""
    if _BY_TANH and x.dtype == np.float32:
        np.multiply(x, 0.5, out=x)
        np.tanh(x, out=x)
        np.multiply(x, 0.5, out=x)
        np.add(x, 0.5, out=x)
        return
    np.negative(x, out=x)
    np.exp(x, out=x)
    np.add(x, 1, out=x)
    np.divide(1, x, out=x)  # twice as fast as reciprocal


def parts(a, count):
    """a (rows, count * H) as (count, rows, H)."""
    return a.reshape(len(a), count, a.shape[1] // count).transpose(1, 0, 2)


def rnn_gradient(a, dh, relu):
    """a = the gradients of the inputs of tanh or relu, whose outputs are a."""
    if relu:  # a nan passes its gradient on
        off = scratch(a.shape, np.bool_)
        np.less_equal(a, 0, out=off)
        np.copyto(a, dh)
        np.copyto(a, 0, where=off)
        return
    np.multiply(a, a, out=a)
    np.subtract(1, a, out=a)
    np.multiply(a, dh, out=a)


def lstm_step(a, h, c):
    """i, f, g, o = a after their activations; c = f * c + i * g; h = o * tanh(c).

    The sigmoid of g is computed too, without need: one pass over whole rows is faster than passes over pieces of them.
    """
    i, f, g, o = parts(a, 4)
    t = scratch(h.shape, h.dtype)
    np.tanh(g, out=t)
    _sigmoid(a)
    np.copyto(g, t)
    np.multiply(c, f, out=c)
    np.multiply(i, t, out=t)
    np.add(c, t, out=c)
    np.tanh(c, out=t)
    np.multiply(o, t, out=h)


def lstm_cell(f, kept, c):
    """The step of the cells: c = f * c + kept, which was i * g; kept = the cells before it."""
    t = scratch(c.shape, c.dtype)
    np.multiply(f, c, out=t)
    np.add(t, kept, out=t)
    np.copyto(kept, c)
    np.copyto(c, t)


def lstm_gradient(a, before, y, dh, dc):
    """a = the gradients of i, f, g, o before their activations; dc = that of the cells before the step."""
    i, f, g, o = parts(a, 4)
    t, v = (scratch(dh.shape, dh.dtype, k, 4) for k in (0, 1))
    slope, flow = (scratch(a.shape, a.dtype, k, 4) for k in (2, 3))  # derivatives of activations, incoming gradients
    to_i, to_f, to_g, to_o = parts(flow, 4)
    if y is None:
        np.multiply(f, before, out=t)
        np.multiply(i, g, out=v)
        np.add(t, v, out=t)
        np.tanh(t, out=t)
        y = np.multiply(o, t, out=v)
    else:  # if o underflows, this value does not matter: everything computed from it is multiplied by o
        np.add(o, _TINY[t.itemsize], out=t)
        np.divide(y, t, out=t)
    np.multiply(dh, t, out=to_o)
    np.multiply(y, t, out=t)
    np.subtract(o, t, out=t)  # o (1 - tanh(c)**2)
    np.multiply(dh, t, out=t)
    np.add(dc, t, out=dc)
    np.multiply(dc, g, out=to_i)
    np.multiply(dc, before, out=to_f)
    np.multiply(dc, i, out=to_g)
    np.multiply(dc, f, out=dc)
    np.subtract(1, a, out=slope)
    np.add(g, 1, out=g)
    np.multiply(slope, a, out=slope)  # i (1 - i), and so on; (1 + g) (1 - g)
    np.multiply(slope, flow, out=a)


def gru_step(a, h):
    """a = n, r, z, m after their activations; h = the new state."""
    n, r, z, m = parts(a, 4)
    _sigmoid(a[:, h.shape[1] : 3 * h.shape[1]])
    t = scratch(h.shape, h.dtype)
    np.multiply(r, m, out=t)
    np.add(n, t, out=n)
    np.tanh(n, out=n)
    np.subtract(h, n, out=h)
    np.multiply(h, z, out=h)
    np.add(h, n, out=h)


def gru_gradient(a, before, dh):
    """a = the gradients of n, r, z, m before their activations; dh = the gradient through the old state itself."""
    n, r, z, m = parts(a, 4)
    t, u = (scratch(dh.shape, dh.dtype, k, 2) for k in range(2))
    np.subtract(before, n, out=t)
    np.multiply(t, dh, out=t)
    np.subtract(1, z, out=u)
    np.multiply(t, u, out=t)
    np.multiply(u, dh, out=u)
    np.multiply(dh, z, out=dh)  # through the old state
    np.multiply(z, t, out=z)  # dh * (before - n) * z * (1 - z)
    np.multiply(n, n, out=n)
    np.subtract(1, n, out=n)
    np.multiply(n, u, out=n)  # dh * (1 - z) * (1 - n * n)
    np.multiply(n, m, out=t)
    np.multiply(n, r, out=m)
    np.subtract(1, r, out=u)
    np.multiply(r, u, out=r)
    np.multiply(r, t, out=r)  # dn * m * r * (1 - r)
