"""Softmax, log-softmax, logsumexp and cross-entropy of rows where a logarithm beside a huge number would be rounded away.

Equal huge scores share the softmax as small ones do: their losses and gradients are PyTorch's, to the rounding of a small loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.profiles import share

SIZES = {"float64": (1.0, 50.0, 1e4, 1e10, 1e15, 1e300), "float32": (1.0, 50.0, 1e4, 1e7, 1e30), "float16": (1.0, 2e3, 6e4)}
TOLERANCE = {"float64": 1e-12, "float32": 3e-6, "float16": 2e-3}


def rows(classes: int, size: float) -> np.ndarray:
    """Lines of scores: huge ones alone, together, beside small ones and beside infinities."""
    step = size * 2.0**-20
    base = np.arange(classes) % 5 - 2.0
    lines = [np.full(classes, size), np.full(classes, -size), base * step, size + base * step, size + np.minimum(base, 0), base]
    for place, value in itertools.product((0, classes - 1), (size, -size, np.inf, -np.inf, np.nan)):
        lines.append(base.copy())
        lines[-1][place] = value
        lines.append(np.full(classes, size))
        lines[-1][place] = value
    lines += [
        np.where(base > 0, -np.inf, size),
        np.full(classes, -np.inf),
        np.full(classes, np.inf),
        np.where(base > 0, size, -size),
    ]
    return np.array(lines)


def settings(classes: int) -> Iterator[tuple[str, np.ndarray | None, dict[str, Any]]]:
    """Kind of target, weights and options of ``cross_entropy``."""
    weight = np.linspace(0.5, 2, classes)
    for kind, smoothing, given in itertools.product(("index", "ignored", "soft"), (0.0, 0.1), (None, weight)):
        yield kind, given, {"label_smoothing": smoothing, "reduction": "none"}


def made(lib: Any, dev: str, values: np.ndarray, dtype: str) -> Any:
    return lib.tensor(values, dtype=getattr(lib, dtype), device=dev if lib is tm else "cpu")


def target(lib: Any, dev: str, kind: str, shape: tuple[int, ...], dtype: str) -> Any:
    lines = (shape[0], *shape[2:])
    at = (np.arange(int(np.prod(lines))) * 3 % shape[1]).reshape(lines)
    if kind == "ignored":
        at = np.where(at % 2 == 1, -100, at)
    if kind != "soft":
        return made(lib, dev, at, "int64")
    shares = np.random.default_rng(1).random(shape) + 0.1
    return made(lib, dev, shares / shares.sum(1, keepdims=True), dtype).requires_grad_()


def found(lib: Any, function: Callable, *tensors: Any) -> list[np.ndarray]:
    """The result of a function, and the gradients of its tensors. PyTorch's losses of float16 are rounded from float32."""
    dtype = tensors[0].dtype
    if lib is torch and dtype == torch.float16 and len(tensors) > 1:
        result = function(*[t.float() if t.is_floating_point() else t for t in tensors]).half()
    else:
        result = function(*tensors)
    seed = np.random.default_rng(2).integers(1, 4, tuple(result.shape))
    result.backward(lib.tensor(seed, dtype=dtype, device=result.device))
    return [t.detach().cpu().numpy() for t in (result, *[t.grad for t in tensors if t.requires_grad])]


def compare(run: Callable[[Any], list[np.ndarray]], dtype: str, said: str, sums: int = 1, floor: float = 1.0) -> None:
    """What is of the size of a line's loss has its rounding, ``sums`` times; gradients are shares of ``floor``."""
    rtol = TOLERANCE[dtype] * sums
    for what, a, b in zip(("value", "gradient", "gradient of the target"), run(tm), run(torch), strict=False):
        np.testing.assert_allclose(a, b, rtol, rtol * floor, err_msg=f"{what} of {said}")


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.filterwarnings("ignore")
def test_cross_entropy(dtype: str, dev: str):
    """Targets by number and by share, with all of their options, along the last axis and before others."""
    for size, classes in itertools.product(SIZES[dtype], (2, 7)):
        with np.errstate(all="ignore"):
            flat = rows(classes, size)
        for x in (flat, np.ascontiguousarray(flat.reshape(2, -1, classes).swapaxes(1, 2))):
            for kind, weight, options in share([*settings(classes)], 4, (size, classes, dtype, dev, x.shape)):

                def run(
                    lib: Any, x: np.ndarray = x, kind: str = kind, weight: Any = weight, options: dict = options
                ) -> list[np.ndarray]:
                    leaf, goal = made(lib, dev, x, dtype).requires_grad_(), target(lib, dev, kind, x.shape, dtype)
                    given = [] if weight is None else [made(lib, dev, weight, dtype)]
                    return found(lib, lambda *t: lib.nn.functional.cross_entropy(*t, **options), leaf, goal, *given)

                compare(run, dtype, f"{kind} {options} of {size:g}, {x.shape}")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_many_classes(dtype: str, smoothing: float, dev: str):
    """Lines longer than a tile are taken in pieces."""
    x = np.full((2, 70_000), 1e10)
    x[1, 5::2] = 0 if smoothing else -np.inf

    def run(lib: Any, kind: str) -> list[np.ndarray]:
        leaf = made(lib, dev, x, dtype).requires_grad_()
        goal = made(lib, dev, np.array([3, 69_998]), "int64") if kind == "index" else target(lib, dev, kind, x.shape, dtype)
        options = {"label_smoothing": smoothing, "reduction": "none"}
        return found(lib, lambda *t: lib.nn.functional.cross_entropy(*t, **options), leaf, goal)

    for kind in ("index", "soft"):
        compare(lambda lib, kind=kind: run(lib, kind), dtype, kind, sums=10, floor=1e-3)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.filterwarnings("ignore")
def test_functions(name: str, dtype: str, dev: str):
    for size, classes, axis in itertools.product(SIZES[dtype], (2, 7), (0, 1)):
        with np.errstate(all="ignore"):
            x = rows(classes, size)

        def run(lib: Any, x: np.ndarray = x, axis: int = axis) -> list[np.ndarray]:
            leaf = made(lib, dev, x if axis else x.T.copy(), dtype).requires_grad_()
            return found(lib, lambda t: getattr(lib, name)(t, axis), leaf)

        compare(run, dtype, f"{name} of {size:g}")
