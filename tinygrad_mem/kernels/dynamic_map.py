"""The 256 numbers that a byte stands for in 8-bit optimizer state: dynamic tree quantization.

A number between -1 and 1 is a power of ten, said by leading zero bits, and the rest of the byte a place between a tenth and
one: seven decades, with 64 places of each sign in the uppermost and one in the lowest. Without a sign the bit that says it
is one more for the place. Added are 0 and 1 themselves.

Source: Dettmers, *8-bit approximations for parallelism in deep learning*, 2016; Dettmers et al., *8-bit optimizers via
block-wise quantization*, 2022.
"""

from __future__ import annotations

import numpy as np

DECADES = 7


def dynamic_map(signed: bool) -> np.ndarray:
    """The numbers in rising order, float32: in [-1, 1], or in [0, 1]."""
    numbers = [0.0, 1.0]
    for zeros in range(DECADES):
        edges = np.linspace(0.1, 1.0, 2 ** (DECADES - zeros - signed) + 1)
        places = (edges[:-1] + edges[1:]) / 2 * 10.0**-zeros
        numbers += [*places, *-places] if signed else [*places]
    return np.sort(np.array(numbers)).astype(np.float32)


def borders(signed: bool) -> np.ndarray:
    """256 borders: a number is nearest to the first place that does not lie below it; the last border is inf."""
    numbers = dynamic_map(signed).astype(np.float64)
    return np.append((numbers[:-1] + numbers[1:]) / 2, np.inf).astype(np.float32)
