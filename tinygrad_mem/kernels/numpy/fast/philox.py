"""Uniform numbers of Philox for one tile of a kernel, from a key and a counter."""

from __future__ import annotations

import threading

import numpy as np


class _Source(threading.local):
    """The generator of a thread. To set its state takes a tenth of the time of making another."""

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.philox)
        self.state = self.philox.state  # of a generator that has drawn nothing
        self.counter: np.ndarray = self.state["state"]["counter"]
        self.key: np.ndarray = self.state["state"]["key"]


_source = _Source()


def _begin(ticket: tuple[int, int], tile: int, stream: int) -> np.random.Generator:
    """The thread's generator at the beginning of a tile. Each kernel that draws has a ``stream`` of its own."""
    source = _source
    source.key[0] = ticket[0]
    source.counter[1], source.counter[2], source.counter[3] = tile, ticket[1], stream
    source.philox.state = source.state
    return source.generator


def uniform(ticket: tuple[int, int], tile: int, stream: int, out: np.ndarray) -> None:
    """out (float32, contiguous) = numbers in [0, 1)."""
    _begin(ticket, tile, stream).random(dtype=np.float32, out=out)


def below(ticket: tuple[int, int], tile: int, stream: int, p: float, work: np.ndarray, out: np.ndarray) -> None:
    """out (bool, one axis) = True with probability p.

    A float64 has three numbers of 16 bits. p * 2**16 is rounded up or down by chance, once a tile: p is exact on average.
    work is contiguous, and has 10 bytes for each three numbers.
    """
    generator, third = _begin(ticket, tile, stream), -(-out.size // 3)
    wide, narrow = np.ndarray(third, np.uint64, work), np.ndarray(third, np.uint16, work, 8 * third)
    floats = wide.view(np.float64)
    generator.random(out=floats)
    limit = int(p * (1 << 16) + generator.random())
    np.add(floats, 16.0, out=floats)  # so the lowest 48 bits of each are random
    for i in range(0, out.size, third):
        np.copyto(narrow, wide, casting="unsafe")
        np.less(narrow[: out.size - i], limit, out=out[i : i + third])
        np.right_shift(wide, 16, out=wide)
