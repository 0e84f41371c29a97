"""The numbers that 8 or 4 bits stand for in optimizer state: dynamic tree quantization, and equal steps.

A number between -1 and 1 is a power of ten, said by leading zero bits, and the rest of the bits a place between a tenth and
one: of a byte seven decades, with 64 places of each sign in the uppermost and one in the lowest. Without a sign the bit that
says it is one more for the place. Added are 0 and 1 themselves.

Source: Dettmers, *8-bit approximations for parallelism in deep learning*, 2016; Dettmers et al., *8-bit optimizers via
block-wise quantization*, 2022; Li, Chen and Zhu, *Memory efficient optimizers with 4-bit states*, 2023.
"""

from __future__ import annotations

import numpy as np


def dynamic_map(signed: bool, bits: int = 8) -> np.ndarray:
    """The 256 or 16 numbers in rising order, float32: in [-1, 1], or in [0, 1]."""
    numbers = [0.0, 1.0]
    for zeros in range(bits - 1):
        edges = np.linspace(0.1, 1.0, 2 ** (bits - 1 - zeros - signed) + 1)
        places = (edges[:-1] + edges[1:]) / 2 * 10.0**-zeros
        numbers += [*places, *-places] if signed else [*places]
    return np.sort(np.array(numbers)).astype(np.float32)


def linear_map() -> np.ndarray:
    """16 numbers without 0, float32: 1/16 to 1."""
    return (np.arange(1, 17) / 16).astype(np.float32)


def borders(numbers: np.ndarray) -> np.ndarray:
    """A border for each number of a map: one is nearest to the first whose border does not lie below it; the last is inf."""
    numbers = numbers.astype(np.float64)
    return np.append((numbers[:-1] + numbers[1:]) / 2, np.inf).astype(np.float32)
