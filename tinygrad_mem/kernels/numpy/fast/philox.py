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


def uniform(ticket: tuple[int, int], tile: int, stream: int, out: np.ndarray) -> None:
    """out (float32, contiguous) = numbers in [0, 1). Each kernel that draws has a ``stream`` of its own."""
    source = _source
    source.key[0] = ticket[0]
    source.counter[1], source.counter[2], source.counter[3] = tile, ticket[1], stream
    source.philox.state = source.state
    source.generator.random(dtype=np.float32, out=out)
