"""The numbers between -1 and 1 that codes of 4 or 8 bits stand for, where a block of numbers shares a scale.

``nf4``: 4 bits, for weights that are normally distributed: each code is used about equally often. 8 quantiles of the normal
distribution are positive and 7 negative, at even probabilities; 0 is one of the numbers, so that it is kept exactly.
``int8``: 255 even steps, -127 / 127 to 127 / 127. ``dynamic``: see ``dynamic_map.py``.

Source: Dettmers, Pagnoni, Holtzman and Zettlemoyer, *QLoRA: efficient finetuning of quantized LLMs*, 2023, section 3 and its
table of the 16 numbers. To arrive at these to the last bit, probabilities and the division are in float32.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from .dynamic_map import borders, dynamic_map

_OUTERMOST = 0.9677083  # the probability of the largest: halfway between 1 - 1/30 and 1 - 1/32


def _quantiles(count: int) -> np.ndarray:
    """Normal quantiles at ``count`` even probabilities, from the outermost one down to 0.5, which is left out."""
    first, last = np.float32(_OUTERMOST), np.float32(0.5)
    step = (last - first) / np.float32(count)
    half = (count + 1) // 2  # counted from both ends, so that errors do not add up
    places = [first + step * np.float32(i) if i < half else last - step * np.float32(count - i) for i in range(count)]
    return np.array([NormalDist().inv_cdf(float(p)) for p in places])


def normal_float() -> np.ndarray:
    """The 16 numbers of NF4 in rising order, float32."""
    numbers = np.sort([*_quantiles(8), 0.0, *-_quantiles(7)]).astype(np.float32)
    return numbers / numbers[-1]


TABLES = {
    "nf4": normal_float(),
    "int8": (np.arange(-127, 128) / 127).astype(np.float32),
    "dynamic": dynamic_map(True),
}
"""Name -> numbers in rising order, float32."""
BITS = {name: 4 if len(numbers) == 16 else 8 for name, numbers in TABLES.items()}
NESTED = 256
"""How many scales of blocks share a scale of their own, with double quantization: the paper's number."""
BORDERS = {name: borders(numbers)[:-1] for name, numbers in TABLES.items()}
"""Name -> the middles between neighbours: a number is nearest to the one after all borders that lie below it."""
