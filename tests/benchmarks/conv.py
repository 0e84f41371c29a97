"""``python -m tests.benchmarks.conv [part of a name]``: each convolution of the networks, ours / PyTorch, and the error.

Processor seconds of one thread each (``--threads 1``, which other work on the machine hardly disturbs) or seconds of all
cores; the least of several runs, interleaved.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SHAPES = {  # images, channels in, out, size, kernel, stride, padding, groups
    "VGG16 3-64 at 224": (4, 3, 64, 224, 3, 1, 1, 1),
    "VGG16 64 at 224": (4, 64, 64, 224, 3, 1, 1, 1),
    "VGG16 128 at 112": (4, 128, 128, 112, 3, 1, 1, 1),
    "VGG16 256 at 56": (4, 256, 256, 56, 3, 1, 1, 1),
    "VGG16 512 at 28": (4, 512, 512, 28, 3, 1, 1, 1),
    "VGG16 512 at 14": (4, 512, 512, 14, 3, 1, 1, 1),
    "VGG16-BN 3-64 at 32": (32, 3, 64, 32, 3, 1, 1, 1),
    "VGG16-BN 64 at 32": (32, 64, 64, 32, 3, 1, 1, 1),
    "VGG16-BN 128 at 16": (32, 128, 128, 16, 3, 1, 1, 1),
    "VGG16-BN 256 at 8": (32, 256, 256, 8, 3, 1, 1, 1),
    "VGG16-BN 512 at 4": (32, 512, 512, 4, 3, 1, 1, 1),
    "VGG16-BN 512 at 2": (32, 512, 512, 2, 3, 1, 1, 1),
    "ResNet-20 3-16 at 32": (64, 3, 16, 32, 3, 1, 1, 1),
    "ResNet-20 16 at 32": (64, 16, 16, 32, 3, 1, 1, 1),
    "ResNet-20 32 at 16": (64, 32, 32, 16, 3, 1, 1, 1),
    "ResNet-20 64 at 8": (64, 64, 64, 8, 3, 1, 1, 1),
    "ResNet-20 16-32, stride 2": (64, 16, 32, 32, 3, 2, 1, 1),
    "ResNet-20 32-64, stride 2": (64, 32, 64, 16, 3, 2, 1, 1),
    "LeNet 1-6": (128, 1, 6, 28, 5, 1, 2, 1),
    "LeNet 6-16": (128, 6, 16, 14, 5, 1, 0, 1),
    "depthwise 64 at 32": (32, 64, 64, 32, 3, 1, 1, 64),
}


def runs(shape: tuple[int, ...]) -> list[tuple[str, Callable[[], Any], Callable[[], Any], np.ndarray]]:
    """(name, ours, PyTorch's, where ours writes) of forward, input gradient and weight gradient."""
    import torch

    from tinygrad_mem.kernels.numpy import conv as kernels

    n, c, o, size, k, s, p, groups = shape
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((n, c, size, size), np.float32), rng.standard_normal((o, c // groups, k, k), np.float32)
    after = (size + 2 * p - k) // s + 1
    y, gx, gw = np.empty((n, o, after, after), np.float32), np.empty_like(x), np.empty_like(w)
    gy = rng.standard_normal(y.shape, np.float32)
    settings = ((s, s), (p, p), (1, 1), groups)
    tx, tw, tg = (torch.from_numpy(a) for a in (x, w, gy))

    def space(kind: str) -> np.ndarray:
        return np.empty(kernels.conv_workspace(kind, x.shape, w.shape, y.shape, *settings, x.dtype), np.uint8)

    def back(mask: list[bool]) -> Any:
        arguments = (None, [s, s], [p, p], [1, 1], False, [0, 0], groups, mask)
        return torch.ops.aten.convolution_backward(tg, tx, tw, *arguments)[mask.index(True)]

    spaces = [space(kind) for kind in ("forward", "input", "weight")]
    return [
        (
            "forward",
            lambda: kernels.conv_forward(x, w, None, *settings, spaces[0], out=y),
            lambda: torch.nn.functional.conv2d(tx, tw, None, s, p, 1, groups),
            y,
        ),
        (
            "input",
            lambda: kernels.conv_backward_input(gy, w, None, *settings, spaces[1], out=gx),
            lambda: back([True, False, False]),
            gx,
        ),
        (
            "weight",
            lambda: kernels.conv_backward_weight(gy, x, *settings, spaces[2], out=gw),
            lambda: back([False, True, False]),
            gw,
        ),
    ]


def compare(ours: Callable[[], Any], theirs: Callable[[], Any], out: np.ndarray, clock: Callable[[], float]) -> str:
    """Milliseconds, ratio and largest error relative to the largest value."""
    ours()
    expected = theirs().numpy()
    error = np.abs(out - expected).max() / np.abs(expected).max()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(5):
        for run, row in zip((ours, theirs), times, strict=True):
            time.sleep(0.01)  # threads of the other library may still wait in a loop for more work
            run()
            start = clock()
            run()
            row.append(clock() - start)
    mine, other = min(times[0]) * 1e3, min(times[1]) * 1e3
    return f"{mine:8.2f} /{other:8.2f} = {mine / other:5.2f} ({error:.0e})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.conv", description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="part of a name")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ["TINYGRAD_MEM_THREADS"] = str(options.threads)
    import torch

    from tinygrad_mem.kernels.numpy.fast import blas
    from tinygrad_mem.scope import local

    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    clock = time.process_time if options.threads == 1 else time.perf_counter

    def table() -> None:
        for name, shape in SHAPES.items():
            if options.only.lower() in name.lower():
                cells = [f"{kind} {compare(ours, theirs, out, clock)}" for kind, ours, theirs, out in runs(shape)]
                print(f"{name:26}", *cells, sep="  ", flush=True)

    with blas.single():
        local.run(table)  # kernels run in a context of ours, as under an op


if __name__ == "__main__":
    main()
