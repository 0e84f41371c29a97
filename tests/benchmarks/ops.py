"""``python -m tests.benchmarks.ops [part of a name]``: families of ops forward and backward, ours / PyTorch.

The slowest come last. Processor seconds of one thread (other work on the machine hardly disturbs them), of whole calls
through autograd, the least of several runs, interleaved. Backward is what a pass forward and back
takes longer than the pass forward.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Function = Callable[..., Any]


def _floats(*shape: int, low: float | None = None) -> np.ndarray:
    made = np.random.default_rng(1).standard_normal(shape, np.float32)
    return made if low is None else np.abs(made) + np.float32(low)


def _places(below: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, below, shape)


WIDE, IMAGES, TOKENS, LINES = (1 << 20,), (32, 32, 32, 32), (8, 128, 256), (2048, 512)
LOGITS, SMALL = (1024, 8192), (256, 10)

ACTIVATIONS = (
    "relu leaky_relu elu selu celu gelu silu mish softplus softsign logsigmoid hardsigmoid hardswish hardtanh relu6 "
    "sigmoid tanh"
)
ELEMENTWISE = "exp log sqrt sin erf erfc"
REDUCTIONS = "sum mean amax logsumexp var std"
LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits kl_div"
SCANS = "cumsum cumprod"


def cases() -> Iterator[tuple[str, Function, list[np.ndarray]]]:
    """(name, function of the library and the tensors, arrays)."""
    yield from _pointwise()
    yield from _along_lines()
    yield from _layers()
    yield from _losses()
    yield from _indices()


def _pointwise() -> Iterator[tuple[str, Function, list[np.ndarray]]]:
    for name in ACTIVATIONS.split():
        yield name, lambda m, x, name=name: getattr(m.nn.functional, name)(x), [_floats(*WIDE)]
    yield "gelu, tanh", lambda m, x: m.nn.functional.gelu(x, approximate="tanh"), [_floats(*WIDE)]
    for name in ELEMENTWISE.split():
        yield name, lambda m, x, name=name: getattr(m, name)(x), [_floats(*WIDE, low=0.1)]
    yield "add", lambda m, a, b: a + b, [_floats(*WIDE), _floats(*WIDE)]
    yield "mul", lambda m, a, b: a * b, [_floats(*WIDE), _floats(*WIDE)]
    yield "where", lambda m, c, a, b: m.where(c, a, b), [_floats(*WIDE) > 0, _floats(*WIDE), _floats(*WIDE)]
    yield "dropout", lambda m, x: m.nn.functional.dropout(x, 0.5, True), [_floats(*WIDE)]


def _along_lines() -> Iterator[tuple[str, Function, list[np.ndarray]]]:
    for axis, where in ((-1, "last axis"), (0, "first axis")):
        for name in f"{REDUCTIONS} prod {SCANS} softmax log_softmax".split():
            x = _floats(*LINES, low=0.1) if name in ("prod", "cumprod") else _floats(*LINES)
            yield f"{name}, {where}", lambda m, x, name=name, axis=axis: getattr(m, name)(x, axis), [x]
        for name in ("max", "cummax", "sort"):
            run = lambda m, x, name=name, axis=axis: getattr(m, name)(x, axis)[0]  # noqa: E731
            yield f"{name}, {where}", run, [_floats(*LINES)]
        yield f"topk 5, {where}", lambda m, x, axis=axis: m.topk(x, 5, axis)[0], [_floats(*LINES)]
    yield "softmax, rows of 128", lambda m, x: m.softmax(x, -1), [_floats(32, 8, 128, 128)]


def _layers() -> Iterator[tuple[str, Function, list[np.ndarray]]]:
    d = TOKENS[-1]
    shift = [_floats(d), _floats(d)]
    yield "layer_norm", lambda m, x, w, b: m.nn.functional.layer_norm(x, (d,), w, b), [_floats(*TOKENS), *shift]
    yield "rms_norm", lambda m, x, w: m.nn.functional.rms_norm(x, (d,), w), [_floats(*TOKENS), _floats(d)]
    shift = [_floats(32), _floats(32)]
    yield "group_norm", lambda m, x, w, b: m.nn.functional.group_norm(x, 8, w, b), [_floats(*IMAGES), *shift]
    yield "max_pool2d 2", lambda m, x: m.nn.functional.max_pool2d(x, 2), [_floats(*IMAGES)]
    yield "max_pool2d 3, stride 2", lambda m, x: m.nn.functional.max_pool2d(x, 3, 2, 1), [_floats(*IMAGES)]
    yield "avg_pool2d 2", lambda m, x: m.nn.functional.avg_pool2d(x, 2), [_floats(*IMAGES)]
    yield "adaptive_avg_pool2d 1", lambda m, x: m.nn.functional.adaptive_avg_pool2d(x, 1), [_floats(*IMAGES)]
    yield "adaptive_avg_pool2d 7", lambda m, x: m.nn.functional.adaptive_avg_pool2d(x, 7), [_floats(*IMAGES)]
    for mode in ("nearest", "bilinear"):
        run = lambda m, x, mode=mode: m.nn.functional.interpolate(x, scale_factor=2.0, mode=mode)  # noqa: E731
        yield f"interpolate {mode}", run, [_floats(16, 32, 32, 32)]
    yield "pad", lambda m, x: m.nn.functional.pad(x, (1, 1, 1, 1)), [_floats(*IMAGES)]
    yield "unfold", lambda m, x: m.nn.functional.unfold(x, 3), [_floats(8, 16, 32, 32)]


def _losses() -> Iterator[tuple[str, Function, list[np.ndarray]]]:
    for shape in (SMALL, LOGITS):
        target = _places(shape[1], shape[0])
        yield f"cross_entropy {shape[1]}", lambda m, x, t: m.nn.functional.cross_entropy(x, t), [_floats(*shape), target]
    yield "nll_loss", lambda m, x, t: m.nn.functional.nll_loss(x, t), [_floats(*LINES), _places(LINES[1], LINES[0])]
    for name in LOSSES.split():
        target = np.abs(_floats(*WIDE)) % 1
        yield name, lambda m, x, t, name=name: getattr(m.nn.functional, name)(x, t.detach()), [_floats(*WIDE), target]


def _indices() -> Iterator[tuple[str, Function, list[np.ndarray]]]:
    at = _places(5000, 32, 128)
    yield "embedding", lambda m, i, w: m.nn.functional.embedding(i, w), [at, _floats(5000, 256)]
    yield "index_select", lambda m, i, x: m.index_select(x, 0, i), [_places(2048, 1024), _floats(*LINES)]
    yield "gather", lambda m, i, x: m.gather(x, 1, i), [_places(LINES[1], *LINES), _floats(*LINES)]
    run = lambda m, i, x, s: m.scatter_add(x, 1, i, s)  # noqa: E731
    yield "scatter_add", run, [_places(LINES[1], *LINES), _floats(*LINES), _floats(*LINES)]
    yield "getitem", lambda m, i, x: x[i], [_places(2048, 1024), _floats(*LINES)]
    run = lambda m, i, x, s: m.index_put(x, (i,), s, True)  # noqa: E731
    yield "index_put, accumulate", run, [_places(2048, 1024), _floats(*LINES), _floats(1024, LINES[1])]


def _both(library: Any, run: Function, arrays: list[np.ndarray]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward without gradients, and forward with backward, of one library."""
    make = library.from_numpy
    tensors = [make(a.copy()) for a in arrays]
    leaves = [t.requires_grad_() for t, a in zip(tensors, arrays, strict=True) if a.dtype.kind == "f"]
    seed = make(np.ones(run(library, *tensors).shape, np.float32))

    def forward() -> None:
        with library.no_grad():
            run(library, *tensors)

    def training() -> None:
        run(library, *tensors).backward(seed)
        for leaf in leaves:
            leaf.grad = None

    return forward, training


def _least(runs: list[Callable[[], Any]], repeats: int) -> list[float]:
    """The least seconds of each, the runs taking turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, row in zip(runs, times, strict=True):
            run()
            start = time.process_time()
            run()
            row.append(time.process_time() - start)
    return [min(row) for row in times]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ops", description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="part of a name")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    os.environ["TINYGRAD_MEM_THREADS"] = "1"
    import torch
    from rich.console import Console
    from rich.table import Table

    import tinygrad_mem as tm
    from tinygrad_mem.kernels.numpy.fast import blas

    torch.set_num_threads(1)
    rows = []
    with blas.single():
        for name, run, arrays in cases():
            if options.only.lower() not in name.lower():
                continue
            f, t, other_f, other_t = _least([*_both(tm, run, arrays), *_both(torch, run, arrays)], options.repeats)
            rows.append((f / other_f, name, "forward", f, other_f))
            back, other = max(t - f, 1e-6), max(other_t - other_f, 1e-6)
            rows.append((back / other, name, "backward", back, other))
    table = Table("op", "pass", "ours, ms", "PyTorch, ms", "ratio", title="tinygrad_mem against PyTorch, one thread")
    for ratio, name, which, ours, theirs in sorted(rows):
        table.add_row(name, which, f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
