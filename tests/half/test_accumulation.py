"""Half precision is stored and nothing else: every op that adds up does so in float32, whatever it adds up.

A sum of float16 ones stalls at 2,048 when it is kept in float16, one of bfloat16 ones at 256. Each op that adds (or multiplies)
many numbers into one has a row here whose sums run past that, forward or backward; each other op is named as one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import OpCase, flat, ours, theirs, values
from tests.ops.cases import CASES
from tests.ops.test_contract import arrays_of
from tests.profiles import on_devices, pairs, share_of_each
from tests.witness import numpy_allocations
from tinygrad_mem import memory
from tinygrad_mem.functional import recurrent
from tinygrad_mem.functional.attention import _attend_itself
from tinygrad_mem.nn.attention.varlen import varlen_attn
from tinygrad_mem.ops.base import Op

F, TF = tm.nn.functional, torch.nn.functional
MANY = 5000  # more than 2,048, and no multiple of a tile or of a power of two
Run = Callable[..., Any]
HALVES = ["float16", "bfloat16"]


@dataclass
class Row:
    """Sums of many: ``run(library, functional, *tensors)`` of inputs whose values are near 1."""

    op: str
    name: str
    run: Run
    shapes: Sequence[tuple[int, ...]]
    prepare: Callable[[np.random.Generator, list[np.ndarray]], list[np.ndarray]] = lambda rng, arrays: arrays
    noise: float = 0.25

    def arrays(self, half: str) -> list[np.ndarray]:
        """float32 arrays of numbers that ``half`` has."""
        rng = np.random.default_rng(11)
        made = [1 + self.noise * rng.standard_normal(shape) for shape in self.shapes]
        made = self.prepare(rng, [a.astype(half).astype(np.float32) for a in made])
        return [a.astype(half).astype(np.float32) if a.dtype.kind == "f" else a for a in made]


def integers(high: int, *shape: int) -> Callable:
    return lambda rng, arrays: [*arrays, rng.integers(0, high, shape)]


def few_rows(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Indices that hit the same two rows again and again."""
    return [*arrays, rng.integers(0, 2, MANY)]


def far(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Numbers near 1,000, whose mean in float16 is off by as much as an eighth of their deviation."""
    return [1000 + 8 * (a - 1) for a in arrays]


def itself(t: Any, f: Any, x: Any) -> Any:
    return _attend_itself(x, None, 0.0, False) if t is tm else f.scaled_dot_product_attention(x[:, 0], x[:, 1], x[:, 2])


def of_sequences(t: Any, f: Any, q: Any, k: Any, v: Any) -> Any:
    """One sequence of them all."""
    if t is tm:
        counts = (len(q), len(k))
        ends = [tm.tensor([0, n], dtype=tm.int32, device=q.device) for n in counts]
        return varlen_attn(q, k, v, *ends, *counts)
    return f.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1)


def cell(name: str, blocks: int, states: int) -> Row:
    """A step of many samples: gradients of weights and biases are sums over them."""

    def run(t: Any, f: Any, x: Any, w: Any, u: Any, b: Any, d: Any, *h: Any) -> Any:
        state = tuple(h) if len(h) > 1 else h[0]
        return getattr(recurrent if t is tm else t, name)(x, state, w * 0.1, u * 0.1, b * 0.1, d * 0.1)

    shapes = [(MANY, 3), (2 * blocks, 3), (2 * blocks, 2), (2 * blocks,), (2 * blocks,), *[(MANY, 2)] * states]
    return Row(name.partition("_")[0].upper(), "samples", run, shapes)


ROWS = [
    *(cell(*kind) for kind in (("rnn_tanh_cell", 1, 1), ("gru_cell", 3, 1), ("lstm_cell", 4, 2))),
    Row(
        "Attention",
        "columns",
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v),
        [(1, 2, 3, 4), (1, 2, MANY, 4), (1, 2, MANY, 4)],
    ),
    Row(
        "Attention",
        "rows",
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v),
        [(1, 2, MANY, 4), (1, 2, 3, 4), (1, 2, 3, 4)],
    ),
    Row("SelfAttention", "columns", itself, [(1, 3, 2, 700, 4)]),
    Row("VarlenAttention", "columns", of_sequences, [(3, 2, 4), (MANY, 2, 4), (MANY, 2, 4)]),
    Row("Sum", "all", lambda t, f, x: x.sum() / 64, [(MANY,)]),
    Row("Sum", "rows", lambda t, f, x: x.sum(1), [(3, MANY)]),
    Row("Sum", "columns", lambda t, f, x: x.sum(0), [(MANY, 3)]),
    Row("Sum", "middle", lambda t, f, x: x.sum((0, 2)), [(50, 3, 100)]),
    Row("Mean", "all", lambda t, f, x: x.mean(), [(MANY,)]),
    Row("Mean", "columns", lambda t, f, x: x.mean(0), [(MANY, 3)]),
    Row("Prod", "line", lambda t, f, x: x.prod(), [(MANY,)], noise=0.005),
    Row("Var", "line", lambda t, f, x: x.var(), [(MANY,)]),
    Row("Var", "columns", lambda t, f, x: x.std(0), [(MANY, 3)]),
    Row("Var", "far from 0", lambda t, f, x: x.detach().var(), [(MANY,)], far),
    Row("LogSumExp", "line", lambda t, f, x: x.logsumexp(0), [(MANY,)]),
    Row("Norm", "1", lambda t, f, x: x.norm(1), [(MANY,)]),
    Row("Norm", "2", lambda t, f, x: x.norm(), [(MANY,)]),
    Row("Norm", "3 of columns", lambda t, f, x: x.norm(3, 0), [(MANY, 3)]),
    Row("Extremum", "ties", lambda t, f, x: x.amax(0), [(MANY, 2)], noise=0),
    Row("CumSum", "line", lambda t, f, x: x.cumsum(0), [(MANY,)]),
    Row("CumSum", "columns", lambda t, f, x: x.cumsum(0), [(MANY, 3)]),
    Row("CumProd", "line", lambda t, f, x: x.cumprod(0), [(MANY,)], noise=0.002),
    Row("CumExtremum", "ties", lambda t, f, x: x.cummax(0)[0], [(MANY,)]),
    Row("MatMul", "inner", lambda t, f, x, y: x @ y, [(3, MANY), (MANY, 4)]),
    Row("MatMul", "batch", lambda t, f, x, y: x @ y, [(2, 3, MANY), (2, MANY, 4)]),
    Row("MatMul", "vector", lambda t, f, x, y: x @ y, [(3, MANY), (MANY,)]),
    Row("MatMul", "gradients", lambda t, f, x, y: x @ y, [(MANY, 3), (3, 4)]),
    Row("Linear", "features", lambda t, f, x, w, b: f.linear(x, w, b), [(3, MANY), (4, MANY), (4,)]),
    Row("Linear", "samples", lambda t, f, x, w, b: f.linear(x, w, b), [(MANY, 3), (4, 3), (4,)]),
    Row("AddMM", "samples", lambda t, f, c, x, y: t.addmm(c, x, y), [(4,), (MANY, 3), (3, 4)]),
    Row("AddMM", "inner", lambda t, f, c, x, y: t.addmm(c, x, y), [(3, 4), (3, MANY), (MANY, 4)]),
    Row("Conv", "channels", lambda t, f, x, w, b: f.conv2d(x, w, b, padding=1), [(1, 600, 5, 5), (3, 600, 3, 3), (3,)]),
    Row("Conv", "places", lambda t, f, x, w, b: f.conv2d(x, w, b, padding=1), [(2, 3, 50, 50), (4, 3, 3, 3), (4,)]),
    Row("Conv", "pointwise", lambda t, f, x, w: f.conv2d(x, w), [(1, MANY, 2, 2), (3, MANY, 1, 1)]),
    Row("Conv", "depthwise", lambda t, f, x, w: f.conv2d(x, w, groups=4), [(2, 4, 50, 50), (4, 1, 3, 3)]),
    Row("Conv", "strided", lambda t, f, x, w: f.conv2d(x, w, stride=2), [(1, 600, 7, 7), (3, 600, 3, 3)]),
    Row("Conv", "line", lambda t, f, x, w: f.conv1d(x, w), [(1, 2, MANY), (3, 2, 5)]),
    Row("ConvTranspose", "channels", lambda t, f, x, w: f.conv_transpose2d(x, w), [(1, 600, 5, 5), (600, 3, 3, 3)]),
    Row("ConvTranspose", "places", lambda t, f, x, w: f.conv_transpose2d(x, w), [(2, 3, 50, 50), (3, 4, 3, 3)]),
    Row("Fold", "overlap", lambda t, f, x: f.fold(x, (50, 50), 49), [(1, 49 * 49, 4)]),
    Row("Unfold", "overlap", lambda t, f, x: f.unfold(x, (9, 9)), [(1, 1, 80, 80)]),
    Row("Softmax", "line", lambda t, f, x: f.softmax(x * 8, 0) * 512, [(MANY,)]),
    Row("Softmax", "columns", lambda t, f, x: f.softmax(x * 8, 0) * 512, [(MANY, 3)]),
    Row("LogSoftmax", "line", lambda t, f, x: f.log_softmax(x, 0), [(MANY,)]),
    Row("CrossEntropy", "classes", lambda t, f, x, y: f.cross_entropy(x, y), [(4, MANY)], integers(MANY, 4)),
    Row("CrossEntropy", "samples", lambda t, f, x, y: f.cross_entropy(x, y), [(MANY, 4)], integers(4, MANY)),
    Row("CrossEntropy", "sum", lambda t, f, x, y: f.cross_entropy(x, y, reduction="sum") / 64, [(MANY, 4)], integers(4, MANY)),
    Row(
        "CrossEntropyProbabilities",
        "classes",
        lambda t, f, x, y: f.cross_entropy(x, f.softmax(y, 1)) / 8,
        [(MANY, 4), (MANY, 4)],
    ),
    Row("NLLLoss", "samples", lambda t, f, x, y: f.nll_loss(x, y), [(MANY, 4)], integers(4, MANY)),
    Row("MSELoss", "mean", lambda t, f, x, y: f.mse_loss(x, y * 3), [(MANY,), (MANY,)]),
    Row("L1Loss", "sum", lambda t, f, x, y: f.l1_loss(x, y * 4, reduction="sum"), [(MANY,), (MANY,)]),
    Row("HuberLoss", "mean", lambda t, f, x, y: f.huber_loss(x, y * 3), [(MANY,), (MANY,)]),
    Row("BCELoss", "mean", lambda t, f, x, y: f.binary_cross_entropy(t.sigmoid(x), t.sigmoid(y)), [(MANY,), (MANY,)]),
    Row("BCEWithLogitsLoss", "sum", lambda t, f, x, y: f.binary_cross_entropy_with_logits(x, t.sigmoid(y)), [(MANY,), (MANY,)]),
    Row("KLDiv", "sum", lambda t, f, x, y: f.kl_div(x, y, reduction="sum"), [(MANY,), (MANY,)]),
    Row("BatchNorm", "batch", lambda t, f, x, w, b: f.batch_norm(x, None, None, w, b, True), [(MANY, 3), (3,), (3,)]),
    Row("BatchNorm", "places", lambda t, f, x, w, b: f.batch_norm(x, None, None, w, b, True), [(2, 3, 50, 50), (3,), (3,)]),
    Row("SampleNorm", "layer", lambda t, f, x, w, b: f.layer_norm(x, (MANY,), w, b), [(3, MANY), (MANY,), (MANY,)]),
    Row("SampleNorm", "samples", lambda t, f, x, w, b: f.layer_norm(x, (4,), w, b), [(MANY, 4), (4,), (4,)]),
    Row("SampleNorm", "group", lambda t, f, x, w, b: f.group_norm(x, 2, w, b), [(2, 4, 2500), (4,), (4,)]),
    Row("SampleNorm", "rms", lambda t, f, x, w: f.rms_norm(x, (MANY,), w), [(3, MANY), (MANY,)]),
    Row("AvgPool", "all", lambda t, f, x: f.avg_pool2d(x, 70), [(1, 3, 70, 70)]),
    Row("AvgPool", "overlap", lambda t, f, x: f.avg_pool2d(x, 50, 1), [(1, 1, 99, 99)]),
    Row("AvgPool", "sum", lambda t, f, x: f.avg_pool2d(x, 70, divisor_override=1), [(1, 3, 70, 70)]),
    Row("AdaptiveAvgPool", "all", lambda t, f, x: f.adaptive_avg_pool2d(x, 1), [(1, 3, 70, 70)]),
    Row("AdaptiveAvgPool", "cells", lambda t, f, x: f.adaptive_avg_pool2d(x, 3), [(1, 2, 150, 150)]),
    Row("MaxPool", "overlap", lambda t, f, x: f.max_pool2d(x, 49, 1), [(1, 1, 97, 97)]),
    Row("AdaptiveMaxPool", "cells", lambda t, f, x: f.adaptive_max_pool2d(x, 3), [(1, 1, 70, 70)]),
    Row("Embedding", "rows", lambda t, f, w, i: f.embedding(i, w), [(5, 3)], few_rows),
    Row("EmbeddingBag", "bag", lambda t, f, w, i: f.embedding_bag(i[None], w, mode="sum"), [(5, 3)], few_rows),
    Row("EmbeddingBag", "mean", lambda t, f, w, i: f.embedding_bag(i[None], w), [(5, 3)], few_rows),
    Row("EmbeddingBag", "rows", lambda t, f, w, i: f.embedding_bag(i[:, None], w, mode="sum"), [(5, 3)], few_rows),
    Row(
        "EmbeddingBag",
        "shares",
        lambda t, f, w, s, i: f.embedding_bag(i[:2, None], w, mode="sum", per_sample_weights=s),
        [(5, MANY), (2, 1)],
        few_rows,
    ),
    Row("EmbeddingBagMax", "rows", lambda t, f, w, i: f.embedding_bag(i[:, None], w, mode="max"), [(5, 3)], few_rows),
    Row("Take", "rows", lambda t, f, x, i: x[i], [(5, 3)], few_rows),
    Row("Gather", "places", lambda t, f, x, i: x.gather(0, i), [(5,)], few_rows),
    Row("Scatter", "add", lambda t, f, x, y, i: x.scatter_add(0, i, y), [(5,), (MANY,)], few_rows),
    Row("IndexPut", "accumulate", lambda t, f, x, y, i: t.index_put(x, (i,), y, True), [(5,), (MANY,)], few_rows),
    Row("IndexPut", "index_add", lambda t, f, x, y, i: x.index_add(0, i, y), [(5, 2), (MANY, 2)], few_rows),
    Row("AsStrided", "overlap", lambda t, f, x: t.as_strided(x, (MANY, 3), (0, 1)), [(3,)]),
    Row("MedianOfAll", "ties", lambda t, f, x: x.median(), [(MANY,)], noise=0),
    Row("Expand", "rows", lambda t, f, x: x.expand(MANY, 3), [(1, 3)]),
    Row("Add", "broadcast", lambda t, f, x, y: x + y, [(MANY, 3), (3,)]),
    Row("Mul", "broadcast", lambda t, f, x, y: x * y, [(MANY, 3), (1, 3)]),
    Row("PReLU", "slope", lambda t, f, x, w: f.prelu(-x, w), [(MANY, 3), (3,)]),
    Row("Windows", "overlap", lambda t, f, x: x.unfold(0, 2150, 1), [(4300,)]),
    Row("Resize", "linear", lambda t, f, x: f.interpolate(x, size=MANY, mode="linear"), [(1, 2, 3)]),
    Row("Resize", "nearest", lambda t, f, x: f.interpolate(x, size=MANY), [(1, 2, 3)]),
    Row("Pad", "replicate", lambda t, f, x: f.pad(x, (MANY, 3), mode="replicate"), [(1, 2, 3)]),
]


def answers(
    run: Run,
    library: Any,
    functional: Any,
    arrays: list[np.ndarray],
    dtype: str,
    half: str,
    dev: str = "cpu",
    grad: bool = True,
) -> list[np.ndarray]:
    """Results and gradients, in float64, of tensors of ``dtype``; the gradients that come in are of ``half``."""
    inputs = ours(arrays, dtype, dev, grad) if library is tm else theirs(arrays, dtype, grad)
    results = [r for r in flat(run(library, functional, *inputs)) if str(r.dtype).removeprefix("torch.") == dtype]
    rng = np.random.default_rng(7)
    seeds = [(1 + 0.25 * rng.standard_normal(tuple(r.shape))).astype(half).astype(np.float32) for r in results]
    graded = [(r, s) for r, s in zip(results, seeds, strict=True) if r.requires_grad]
    if graded:
        made = [library.tensor(s, device=r.device).to(r.dtype) for r, s in graded]
        library.autograd.backward([r for r, _ in graded], made)
    found = [*results, *[t.grad for t in inputs if t.grad is not None]]
    return [values(t.detach().double()) if library is tm else t.detach().double().numpy() for t in found]


def error(found: np.ndarray, exact: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        return float(np.nanmax(np.where(found == exact, 0, np.abs(found - exact)), initial=0))


def rounding(exact: np.ndarray, half: str) -> float:
    """Half of the last digit of the largest number: what rounding once costs."""
    return 0.505 * float(np.spacing(tm.dtypes.as_dtype(half).type(np.nanmax(np.abs(exact), initial=0))))


@pytest.mark.parametrize(
    ("row", "half", "dev"),
    [
        *[(row, half, "cpu") for row, half in pairs(ROWS, HALVES)],
        *on_devices([(row, "float16", "cuda") for row in share_of_each(ROWS, 2, lambda row: row.op)]),
    ],
    ids=lambda each: f"{each.op}-{each.name}" if isinstance(each, Row) else each,
)
def test_sums_of_many_are_made_in_float32(row: Row, half: str, dev: str):
    arrays = row.arrays(half)
    exact = answers(row.run, torch, TF, arrays, "float64", half)
    found = answers(row.run, tm, F, arrays, half, half, dev)
    try:
        other = answers(row.run, torch, TF, arrays, half, half)
    except RuntimeError:
        other = exact  # PyTorch's CPU has no such op in float16: one rounding is all that is allowed
    assert len(found) == len(exact)
    for i, (f, e, o) in enumerate(zip(found, exact, other, strict=True)):
        assert np.isfinite(e.astype(half)).all(), "the row itself leaves the range"
        assert np.isfinite(f).all()
        allowed = 2 * min(error(o, e), 8 * rounding(e, half))  # where PyTorch itself stalls, that is no measure
        once = rounding(e, half)
        if dev == "cuda" and "Attention" in row.op:
            once *= 2  # the scores' gradients are rounded too, for the GPU's products of halves
        assert error(f, e) <= max(allowed, once), f"array {i}: {error(f, e)}, PyTorch {error(o, e)}"


FAMILIES = """
    inplace unary activation choose elementwise addcmul compare conv convert shape join index cross_entropy loss softmax sort
    reduce dropout embedding linalg norm pool random resize scan hooks attention
"""
# Modules of ops. Recurrent layers are not among them: they keep what they did to all steps in float16, and PyTorch rounds each
# of its steps; their sums have rows.


def in_families(case: OpCase) -> bool:
    ops = [case.op] if isinstance(case.op, str) else case.op
    return all(Op.registry[name].__module__.rpartition(".")[2] in FAMILIES.split() for name in ops)


@pytest.mark.parametrize(
    ("case", "half"),
    pairs([c for c in CASES if c.exact and in_families(c) and c.op != "SolveTriangular"], HALVES),
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_every_op_is_as_good_as_pytorchs(case: OpCase, half: str):
    """On the small inputs of its contract row: rounded once, or at most twice as far off as PyTorch's."""
    arrays = [a.astype(half).astype(np.float32) if a.dtype.kind == "f" else a for a in arrays_of(case)]

    def run(library: Any, _: Any, *inputs: Any) -> Any:
        return (case.run if library is tm else case.reference)(*inputs)

    exact = answers(run, torch, TF, arrays, "float64", half, grad=case.grad)
    found = answers(run, tm, F, arrays, half, half, grad=case.grad)
    try:
        other: Any = answers(run, torch, TF, arrays, half, half, grad=case.grad)
    except RuntimeError:
        other = [None] * len(exact)
    for i, (f, e, o) in enumerate(zip(found, exact, other, strict=True)):
        with np.errstate(all="ignore"):
            ulps = np.abs(f - e) / np.spacing(np.abs(e).astype(half)).astype(np.float64)
        once = float(np.nanmax(np.where(f == e, 0, ulps), initial=0)) <= 0.51
        assert once or (o is not None and error(f, e) <= 2 * error(o, e)), f"array {i}"


ADD_NOTHING = """
    CopySlices Neg Abs Exp Log Exp2 Expm1 Log1p Log2 Log10 Sqrt Rsqrt Reciprocal Sin Cos Tan Asin Acos Atan Sinh Cosh
    Tanh Sigmoid Erf Erfc Erfinv Square Round Sign ReLU LeakyReLU ELU GELU SiLU Softplus Mish Softsign
    Hardswish LogSigmoid Ramp Threshold Clamp Where MaskedFill NanToNum Fill Sub Div Pow Maximum Minimum Atan2
    Remainder DivRound Compare Classify Bitwise BitwiseNot Clone Cast Copy Upload Transfer View Permute Slice Diagonal Cat
    Flip Triangle Sort TopK Median ArgSort ExtremumAlong ArgExtremum CountNonzero Truth Dropout Draw
    Border Addcmul Addcdiv Lerp
"""
# Each result, and each gradient, is made of a few numbers; counts and indices are integers. Of broadcast operands: the engine.


def test_every_op_that_adds_has_a_row():
    ours = {
        n for n, op in Op.registry.items() if not op.__subclasses__() and op.__module__.rpartition(".")[2] in FAMILIES.split()
    }
    named = {row.op for row in ROWS} | set(ADD_NOTHING.split())
    # norms made in float64; no halves are taken; PyTorch's takes no float64, and tests/ops/test_linalg.py compares it
    others = {"EmbeddingRenorm", "SolveTriangular", "GroupedMatMul"}
    assert sorted(ours - named - others) == []
    assert sorted(named - set(Op.registry)) == []
    assert not {row.op for row in ROWS} & set(ADD_NOTHING.split())


# --- no float32 copy of an operand: what float16 takes is half of what float32 takes, and a workspace

WORKSPACE = 8 << 20
LARGE: dict[str, tuple[Run, list[tuple[int, ...]]]] = {
    "sum": (lambda x: x.sum(0), [(4096, 16384)]),
    "mean": (lambda x: x.mean(1), [(4096, 16384)]),
    "var": (lambda x: x.var(1), [(4096, 16384)]),
    "norm": (lambda x: x.norm(), [(4096, 16384)]),
    "cumsum": (lambda x: x.cumsum(0), [(4096, 16384)]),
    "logsumexp": (lambda x: x.logsumexp(1), [(4096, 16384)]),
    "matmul": (lambda x, y: x @ y, [(8192, 8192), (8192, 8192)]),
    "batched": (lambda x, y: x @ y, [(8, 2048, 2048), (8, 2048, 2048)]),
    "linear": (lambda x, w, b: F.linear(x, w, b), [(8192, 8192), (8192, 8192), (8192,)]),
    "addmm": (lambda c, x, y: tm.addmm(c, x, y), [(8192,), (8192, 8192), (8192, 8192)]),
    "conv": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [(8, 64, 224, 224), (64, 64, 3, 3), (64,)]),
    "conv pointwise": (lambda x, w: F.conv2d(x, w), [(8, 256, 112, 112), (256, 256, 1, 1)]),
    "conv strided": (lambda x, w: F.conv2d(x, w, stride=2, padding=3), [(16, 3, 448, 448), (64, 3, 7, 7)]),
    "conv transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(8, 64, 112, 112), (64, 64, 2, 2)]),
    "softmax": (lambda x: F.softmax(x, 1), [(4096, 16384)]),
    "mse": (lambda x, y: F.mse_loss(x, y), [(4096, 16384), (4096, 16384)]),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [(32, 64, 224, 224), (64,), (64,)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (16384,), w, b), [(4096, 16384), (16384,), (16384,)]),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 1, 1), [(32, 64, 224, 224)]),
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, 7), [(32, 64, 224, 224)]),
    "broadcast": (lambda x, y: x + y, [(4096, 16384), (16384,)]),
}


def peak_of(run: Run, shapes: list[tuple[int, ...]], dtype: np.dtype) -> tuple[int, int]:
    """Bytes of the operands, and at the peak of forward and backward, by a dry run."""

    def step() -> None:
        inputs = [tm.zeros(*shape, dtype=dtype, requires_grad=True) for shape in shapes]
        memory.mark("operands")
        out = run(*inputs)
        out.backward(out.detach())

    track = memory.predict(step)
    return sum(track.by_category("operands").values()), track.peak


@pytest.mark.parametrize(("name", "half"), pairs([*LARGE], HALVES))
def test_a_half_takes_half_and_a_workspace(name: str, half: str):
    operands, peak = peak_of(*LARGE[name], tm.dtypes.as_dtype(half))
    double, whole = peak_of(*LARGE[name], tm.float32)
    assert 2 * operands - 4096 <= double <= 2 * operands  # blocks are multiples of 512 bytes
    assert operands > WORKSPACE, "no float32 copy of it fits the workspace"
    assert 0.99 * whole / 2 <= peak <= whole / 2 + WORKSPACE


@pytest.mark.parametrize(
    ("row", "half"), pairs(ROWS, HALVES), ids=lambda each: f"{each.op}-{each.name}" if isinstance(each, Row) else each
)
def test_nothing_is_taken_behind_the_pools_back(row: Row, half: str):
    arrays = row.arrays(half)
    answers(row.run, tm, F, arrays, half, half)
    inputs = ours(arrays, half)
    with numpy_allocations() as sizes:
        results = [r for r in flat(row.run(tm, F, *inputs)) if r.requires_grad]
        forward = list(sizes)
        grads = [tm.ones_like(r) for r in results]
        sizes.clear()
        if results:
            tm.autograd.backward(results, grads)
        taken = [n for n in [*forward, *sizes] if n > 1024]
    assert taken == [], "NumPy allocated more than a ufunc's buffer of 256 numbers"
