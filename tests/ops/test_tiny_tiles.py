"""Kernels cut in tiles of a few elements, and in shares of as few for each core, answer as with tiles that hold all.

Contract rows are small, so that one tile holds their arrays. Here each constant that is a number of elements is divided, so the
same rows have many tiles, the last of them shorter, and several threads. The scratch is watched too: what a function gets for
the first time is full of nan, so a tile that somebody else still reads is seen, and no tile is larger than its slot.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import OpCase, flat, ours, values
from tests.ops.cases import CASES
from tests.profiles import some
from tinygrad_mem.errors import DTypeError
from tinygrad_mem.kernels import numpy as kernels
from tinygrad_mem.kernels.numpy.fast import halves, threads, tiles

MODULES: list[ModuleType] = [
    importlib.import_module(found.name) for found in pkgutil.walk_packages(kernels.__path__, kernels.__name__ + ".")
]
NO_SIZES = {"SCRATCH", "NESTED", "_REACH", "_LOW", "_EXPONENT", "_SMALLEST", "_TO_SPACING", "_INFINITY", "_MINUS_INFINITY"}
"""Constants that are not divided: bytes of scratch, the blocks of a format, how far the largest tile reaches, bits."""
LEAST = 256
"""From this number on a constant is divided: smaller ones are widths that a formula needs, such as 16 taps."""
NAN = 0xFF
PARTS = 6
HALVES = "float16", "bfloat16"


def sizes() -> list[tuple[ModuleType, str, int]]:
    """The constants of the kernels' modules that are numbers of elements."""
    return [
        (module, name, value)
        for module in MODULES
        for name, value in vars(module).items()
        if name.isupper() and type(value) is int and value >= LEAST and name not in NO_SIZES
    ]


class Watched:
    """The scratch, whose tiles are full of nan for each function that did not have this slot last.

    Attributes:
        found: tiles that are larger than their slot.
    """

    def __init__(self) -> None:
        self.plain, self.found = threads.scratch, []

    def __call__(self, shape: tuple[int, ...], dtype: Any = np.float32, slot: int = 0, slots: int = 1) -> np.ndarray:
        tile, caller = self.plain(shape, dtype, slot, slots), sys._getframe(1).f_code
        if tile.nbytes > (threads.SCRATCH // slots & -64):
            self.found.append(f"{caller.co_qualname} takes {tile.nbytes} bytes of slot {slot} of {slots}")
        owners: dict[tuple[int, int], CodeType] = threads._local.__dict__.setdefault("owners", {})
        left = (slot, slots) == (6, 8) and tile.dtype == np.bool_  # losses read there what their weights left
        if owners.get((slot, slots)) is not caller and not left:
            self.plain((tile.nbytes,), np.uint8, slot, slots).fill(NAN)
        owners[slot, slots] = caller
        return tile


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    for module in MODULES:
        for name, value in list(vars(module).items()):
            if value is made.plain:
                monkeypatch.setattr(module, name, made)
    return made


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], int]]:
    """Divides the sizes; says how many there are."""
    cached = [value for module in MODULES for value in vars(module).values() if hasattr(value, "cache_clear")]

    def divide(by: int) -> int:
        for module, name, value in (every := sizes()):
            monkeypatch.setattr(module, name, max(value // by, 2))
        monkeypatch.setattr(halves, "_local", threading.local())  # its buffers are as long as a block
        monkeypatch.setattr(tiles.blocks, "__defaults__", (max((1 << 14) // by, 2),))
        forget()
        return len(every)

    def forget() -> None:
        for function in cached:
            function.cache_clear()

    yield divide
    forget()


def answers(case: OpCase, dtype: str) -> list[np.ndarray]:
    """Results and gradients of a row, in float64."""
    inputs = ours([np.asarray(a) for a in case.inputs(np.random.default_rng(3))], dtype, grad=case.grad)
    results = flat(case.run(*inputs))
    graph = [r for r in results if r.requires_grad]
    if graph:
        rng = np.random.default_rng(7)
        tm.autograd.backward(graph, [tm.tensor(rng.standard_normal(tuple(r.shape))).to(r.dtype) for r in graph])
    return [values(t.double()) for t in (*results, *[t.grad for t in inputs if t.grad is not None])]


def differ(found: list[np.ndarray], plain: list[np.ndarray], dtype: str) -> bool:
    """Whether more than the order of sums differs."""
    near = 64 * float(tm.finfo(getattr(tm, dtype)).eps)
    sizes = [np.abs(p, where=np.isfinite(p), out=np.zeros(p.shape)).max(initial=1e-3) for p in plain]
    return not all(np.allclose(f, p, near, near * s, equal_nan=True) for f, p, s in zip(found, plain, sizes, strict=True))


BY = 1 << 10, 9001
CUTS = [*itertools.product(range(PARTS), ("float32", "float16", "bfloat16"), BY)]
# A usual run takes each row in float32, and half of them in one of the two halves, whose machinery is the same.
USUAL = [(part, "float32", BY[part % 2]) for part in range(PARTS)]
USUAL += [(0, "float16", 9001), (2, "bfloat16", 9001), (5, "float16", 1 << 10)]


@pytest.mark.parametrize(("part", "dtype", "by"), some(CUTS, USUAL))
def test_tiles_of_a_few_elements_answer_the_same(
    part: int, dtype: str, by: int, watched: Watched, cut: Callable[[int], int], reliability: Callable[[str, int], None]
):
    rows = [case for case in CASES if case.exact][part::PARTS]
    plain = {}
    for case in rows:
        with suppress(DTypeError):  # some ops take no halves
            plain[case.name] = answers(case, dtype)
    assert cut(by) > 60, "the constants are found"
    wrong = [c.name for c in rows if c.name in plain and differ(answers(c, dtype), plain[c.name], dtype)]
    reliability("rows of ops in tiles of a few elements", len(plain))
    assert not wrong
    assert not watched.found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_no_tile_is_read_after_another_function_has_it(dtype: str, watched: Watched, monkeypatch: pytest.MonkeyPatch):
    rows = CASES if dtype == "float16" else [case for case in CASES if not case.exact]

    def drawn(case: OpCase) -> list[np.ndarray] | None:
        tm.manual_seed(0)
        with suppress(DTypeError):
            return answers(case, dtype)
        return None

    found = [drawn(case) for case in rows]
    monkeypatch.undo()
    plain = [drawn(case) for case in rows]
    pairs = zip(rows, found, plain, strict=True)
    wrong = [c.name for c, f, p in pairs if f is not None and p is not None and not same_bits(f, p)]
    assert not wrong
    assert not watched.found


def same_bits(found: list[np.ndarray], plain: list[np.ndarray]) -> bool:
    return all(np.array_equal(f, p, equal_nan=True) for f, p in zip(found, plain, strict=True))
