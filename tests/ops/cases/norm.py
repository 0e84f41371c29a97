"""Rows of the normalisations: x and its statistics are saved, never the normalised values."""

from __future__ import annotations

import numpy as np
import torch

from tests.case import OpCase
from tinygrad_mem.nn import functional as NF
from tinygrad_mem.techniques import inplace_abn


def _row(name, op, function, shapes, saved, wide=1, **options):
    """Function of nn.functional of (x, weight, bias, ...); ``wide`` scales the inputs."""
    ours, theirs = getattr(NF, function), getattr(torch.nn.functional, function)
    if function in ("batch_norm", "instance_norm"):

        def shuffled(f):
            return lambda x, w=None, b=None: f(x, None, None, w, b, True, **options)

    elif function == "layer_norm":

        def shuffled(f):
            return lambda x, w=None, b=None: f(x, options["normalized_shape"], w, b, eps=1e-3)

    else:

        def shuffled(f):
            return lambda *t: f(*t[:1], *options.values(), *t[1:])

    return OpCase(name, op, shuffled(ours), shuffled(theirs), lambda rng: [rng.standard_normal(s) for s in shapes], saved)


def _frozen(f, as_tensor):
    def run(x, w, b):
        mean, var = [0.1, -0.2, 0.3, 0.5], [0.5, 1.0, 2.0, 1.5]
        return f(x, as_tensor(mean, dtype=x.dtype, device=x.device), as_tensor(var, dtype=x.dtype, device=x.device), w, b)

    return run


def _ours_tensor(values, dtype, device):
    import tinygrad_mem as tm

    return tm.tensor(values, dtype=dtype, device=device)


def _with_weight(count):
    """x, the weight, and ``count`` numbers of x's dtype."""
    return lambda x, w, *rest: x.nbytes + w.nbytes + count * x.itemsize


def _without_weight(count):
    return lambda x, *rest: x.nbytes + count * x.itemsize


def _activated(shape, affine, frozen):
    """In place on a copy of x; weights of both signs, far enough from 0."""

    def make(rng):
        weight = rng.uniform(0.3, 2, shape[1]) * rng.choice([-1, 1], shape[1])
        return [rng.standard_normal(shape), *([weight, rng.standard_normal(shape[1])] if affine else [])]

    def ours(x, w=None, b=None):
        mean, var = (None, None)
        if frozen:
            mean, var = (_ours_tensor(np.linspace(low, 2, shape[1]), x.dtype, x.device) for low in (-1, 0.5))
        return inplace_abn(x.clone(), mean, var, w, b, not frozen, eps=1e-3, negative_slope=0.1)

    def theirs(x, w=None, b=None):
        mean, var = (torch.tensor(np.linspace(low, 2, shape[1]), dtype=x.dtype) if frozen else None for low in (-1, 0.5))
        y = torch.nn.functional.batch_norm(x, mean, var, w, b, not frozen, eps=1e-3)
        return torch.nn.functional.leaky_relu(y, 0.1)

    def saved(x, *rest):
        return x.nbytes + (3 if affine else 1) * shape[1] * x.itemsize

    name = f"inplace_abn {len(shape)}-d{' affine' if affine else ''}{' frozen' if frozen else ''}"
    return OpCase(name, "InPlaceABN", ours, theirs, make, saved, tolerance=(1e-4, 1e-5))


CASES = [
    *[_activated((5, 4, 3, 3), affine, frozen) for affine in (False, True) for frozen in (False, True)],
    _activated((12, 4), affine=True, frozen=False),
    _row("batch_norm", "BatchNorm", "batch_norm", [(5, 4, 3, 3), (4,), (4,)], _with_weight(8)),
    _row("batch_norm_plain", "BatchNorm", "batch_norm", [(6, 4, 5)], _without_weight(8), eps=1e-3),
    _row("batch_norm_2d", "BatchNorm", "batch_norm", [(12, 4), (4,), (4,)], _with_weight(8)),
    OpCase(
        "batch_norm_frozen",
        "BatchNorm",
        _frozen(NF.batch_norm, _ours_tensor),
        _frozen(torch.nn.functional.batch_norm, torch.tensor),
        lambda rng: [rng.standard_normal(s) for s in ((5, 4, 3, 3), (4,), (4,))],
        _with_weight(8),
    ),
    _row("layer_norm", "SampleNorm", "layer_norm", [(5, 3, 8), (8,), (8,)], _with_weight(30), normalized_shape=(8,)),
    _row("layer_norm_two", "SampleNorm", "layer_norm", [(5, 3, 8), (3, 8), (3, 8)], _with_weight(10), normalized_shape=(3, 8)),
    _row("layer_norm_plain", "SampleNorm", "layer_norm", [(5, 3, 8)], _without_weight(30), normalized_shape=(8,)),
    _row("rms_norm", "SampleNorm", "rms_norm", [(5, 3, 8), (8,)], _with_weight(15), normalized_shape=(8,)),
    _row("group_norm", "SampleNorm", "group_norm", [(3, 6, 4, 4), (6,), (6,)], _with_weight(12), num_groups=2),
    _row("group_norm_plain", "SampleNorm", "group_norm", [(3, 6, 5)], _without_weight(18), num_groups=3),
    _row("instance_norm", "SampleNorm", "instance_norm", [(3, 4, 5, 4), (4,), (4,)], _with_weight(24)),
]
