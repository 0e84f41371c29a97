"""Losses: a row an op and an important option, in each reduction."""

import numpy as np
import torch
import torch.nn.functional as T

import tinygrad_mem as tm
from tests.case import OpCase
from tinygrad_mem.functional import loss as ours


def _classes(*shape):
    """Scores, targets (one of them ignored)."""

    def make(rng):
        target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
        target.reshape(-1)[2] = -100
        return [rng.standard_normal(shape) * 2, target]

    return make


def _lines(x):
    return x.size // x.shape[1] * x.itemsize


def _cross(reduction, smoothing, shape):
    def saved(x, target, y):
        return x.nbytes + target.nbytes + _lines(x) + (x.itemsize if reduction == "mean" else 0)

    options = {"reduction": reduction, "label_smoothing": smoothing}
    return OpCase(
        f"cross_entropy {reduction} {smoothing} {len(shape)}-d",
        "CrossEntropy",
        lambda x, t: ours.cross_entropy(x, t, **options),
        lambda x, t: T.cross_entropy(x, t, **options),
        _classes(*shape),
        saved,
    )


def _cross_weighted(reduction, smoothing):
    def saved(x, target, y):
        return x.nbytes + target.nbytes + 6 * x.itemsize + _lines(x) + (x.itemsize if reduction == "mean" else 0)

    weight = _ready(np.linspace(0.1, 2, 6))
    options = {"reduction": reduction, "label_smoothing": smoothing}
    return OpCase(
        f"cross_entropy weight {reduction} {smoothing}",
        "CrossEntropy",
        lambda x, t: ours.cross_entropy(x, t, _like(x, weight, "tm"), **options),
        lambda x, t: T.cross_entropy(x, t, _like(x, weight, "torch"), **options),
        _classes(4, 6, 5),
        saved,
    )


def _probabilities(reduction, smoothing):
    def make(rng):
        p = rng.random((6, 5, 3))
        return [rng.standard_normal((6, 5, 3)), p / p.sum(1, keepdims=True)]

    options = {"reduction": reduction, "label_smoothing": smoothing}
    return OpCase(
        f"cross_entropy probabilities {reduction}",
        "CrossEntropyProbabilities",
        lambda x, p: ours.cross_entropy(x, p, **options),
        lambda x, p: T.cross_entropy(x, p, **options),
        make,
        lambda x, p, y: x.nbytes + p.nbytes + _lines(x),
    )


def _linear_then_cross(x, matrix, target, linear_bias=None, **options):
    """What PyTorch before 2.13 has in place of ``linear_cross_entropy``; ``weight`` is that of the classes."""
    return T.cross_entropy(T.linear(x, matrix, linear_bias), target, **options)


def _linear_cross(reduction, smoothing, bias=False, weighted=False):
    """9 lines and 6 classes in tiles of 4 by 4, so that each has a rest."""

    def make(rng):
        target = rng.integers(0, 6, 9)
        target[2] = -100
        return [rng.standard_normal((9, 5)), rng.standard_normal((6, 5)), target, *([rng.standard_normal(6)] if bias else [])]

    def saved(x, w, target, *rest):
        own = x.nbytes + w.nbytes + target.nbytes + 9 * x.itemsize + (x.itemsize if reduction == "mean" else 0)
        return own + 6 * x.itemsize * (bias + weighted)

    weight = _ready(np.linspace(0.1, 2, 6))
    tile = tm.nn.LinearCrossEntropyOptions(batch_chunk_size=4, class_chunk_size=4)

    def run(function, library, **more):
        def call(x, w, t, b=None):
            c = _like(x, weight, library) if weighted else None
            options = {"reduction": reduction, "label_smoothing": smoothing, **more}
            return function(x, w, t, linear_bias=b, weight=c, **options)

        return call

    return OpCase(
        f"linear_cross_entropy {reduction} {smoothing}{' bias' if bias else ''}{' weight' if weighted else ''}",
        "LinearCrossEntropy",
        run(tm.nn.functional.linear_cross_entropy, "tm", options=tile),
        run(getattr(T, "linear_cross_entropy", _linear_then_cross), "torch"),
        make,
        saved,
    )


def _nll(reduction):
    def saved(x, target, y):
        return target.nbytes + (x.itemsize if reduction == "mean" else 0)

    return OpCase(
        f"nll_loss {reduction}",
        "NLLLoss",
        lambda x, t: ours.nll_loss(x, t, reduction=reduction),
        lambda x, t: T.nll_loss(x, t, reduction=reduction),
        _classes(4, 6, 3, 2),
        saved,
    )


def _pair(name, op, make=None, **options):
    """A loss of two tensors, under one reduction."""

    def normal(rng):
        return [rng.standard_normal((7, 9)), rng.standard_normal((7, 9))]

    return OpCase(
        " ".join([name, *map(str, options.values())]),
        op,
        lambda x, y: getattr(ours, name)(x, y, **options),
        lambda x, y: getattr(T, name)(x, y, **options),
        make or normal,
        lambda x, y, out: x.nbytes + y.nbytes,
    )


def _unit(rng):
    return [rng.uniform(0.05, 0.95, (7, 9)), rng.uniform(0.05, 0.95, (7, 9))]


def _half_unit(rng):
    return [rng.standard_normal((7, 9)), rng.uniform(0.05, 0.95, (7, 9))]


def _bce(name, op, weights, first):
    """Binary cross-entropy with weights (which get no gradient)."""

    def make(rng):
        return [rng.uniform(0.05, 0.95, (7, 9)) if first else rng.standard_normal((7, 9)), rng.random((7, 9))]

    weight, positive = _ready(np.linspace(0.1, 2, 9)), _ready(np.linspace(0.5, 3, 9))

    def given(x, module):
        found = {"weight": _like(x, weight, module), "pos_weight": _like(x, positive, module)}
        return {k: v for k, v in found.items() if k in weights}

    def saved(x, y, out):
        return x.nbytes + y.nbytes + len(weights) * 9 * x.itemsize

    return OpCase(
        f"{name} {' '.join(weights)}",
        op,
        lambda x, y: getattr(ours, name)(x, y, **given(x, "tm")),
        lambda x, y: getattr(T, name)(x, y, **given(x, "torch")),
        make,
        saved,
    )


def _like(x, values, module):
    """A constant tensor of x's framework, dtype and pool, made once: making it is not what the row is about.

    Each prediction has a pool of its own, and so has a run that is compared with it: both make the tensor.
    """
    key = module, values, x.dtype, x.device.pool if module == "tm" else None
    if key not in _made:
        if module == "torch":
            _made[key] = torch.tensor(values, dtype=x.dtype)
        else:
            _made[key] = tm.tensor(np.array(values, x.dtype), device=x.device)
    return _made[key]


_made: dict = {}


def _ready(values):
    """The values, hashable, and their tensors made before any test listens."""
    values = tuple(values)
    for device in ("cpu", "meta"):
        for dtype in (np.float32, np.float64):
            _like(tm.zeros(1, dtype=np.dtype(dtype), device=device), values, "tm")
    return values


def _ctc(reduction, rows, labels, in_a_line=False, **options):
    """Three samples of 7 rows and 5 labels. The gradient is that of an input which ``log_softmax`` made."""

    def make(rng):
        targets = rng.integers(1, 5, sum(labels) if in_a_line else (3, max(labels)))
        targets.reshape(-1)[:2] = 2  # twice the same: a blank between them cannot be skipped
        return [rng.standard_normal((7, 3, 5)), targets]

    def run(library):
        def call(x, targets):
            return library.ctc_loss(x.log_softmax(2), targets, rows, labels, reduction=reduction, **options)

        return call

    def saved(x, targets, y):
        return x.nbytes + targets.nbytes + 24 * 3 + (3 * x.itemsize if reduction == "mean" else 0)

    name = f"ctc_loss {reduction}{' in a line' if in_a_line else ''}{' zero_infinity' if options else ''}"
    return OpCase(name, ("LogSoftmax", "CTCLoss"), run(tm.nn.functional), run(T), make, saved)


CASES = [
    _ctc("mean", (7, 6, 7), (3, 2, 0)),
    _ctc("sum", (7, 6, 3), (3, 2, 1), in_a_line=True),
    _ctc("none", (2, 6, 7), (3, 3, 1), zero_infinity=True),
    *[_cross(r, s, shape) for r in ("mean", "sum", "none") for s, shape in ((0.0, (6, 9)), (0.1, (4, 6, 5)))],
    _cross("mean", 0.0, (3, 4, 5, 2)),
    *[_cross_weighted(r, s) for r in ("mean", "none") for s in (0.0, 0.2)],
    *[_probabilities(r, 0.1) for r in ("mean", "sum", "none")],
    *[_linear_cross(r, s) for r in ("mean", "sum", "none") for s in (0.0, 0.2)],
    *[_linear_cross(r, 0.1, bias=True, weighted=True) for r in ("mean", "none")],
    *[_nll(r) for r in ("mean", "sum", "none")],
    *[_pair("mse_loss", "MSELoss", reduction=r) for r in ("mean", "sum", "none")],
    *[_pair("l1_loss", "L1Loss", reduction=r) for r in ("mean", "none")],
    *[_pair("huber_loss", "HuberLoss", reduction=r, delta=0.7) for r in ("mean", "none")],
    *[_pair("smooth_l1_loss", "HuberLoss", reduction=r, beta=0.5) for r in ("mean", "none")],
    *[_pair("kl_div", "KLDiv", _half_unit, reduction=r) for r in ("batchmean", "sum", "none")],
    *[_pair("kl_div", "KLDiv", reduction=r, log_target=True) for r in ("batchmean", "none")],
    *[_pair("binary_cross_entropy", "BCELoss", _unit, reduction=r) for r in ("mean", "none")],
    *[_pair("binary_cross_entropy_with_logits", "BCEWithLogitsLoss", _half_unit, reduction=r) for r in ("mean", "none")],
    _bce("binary_cross_entropy", "BCELoss", ("weight",), True),
    _bce("binary_cross_entropy_with_logits", "BCEWithLogitsLoss", ("weight", "pos_weight"), False),
    _bce("binary_cross_entropy_with_logits", "BCEWithLogitsLoss", ("pos_weight",), False),
]
