"""The numbers between -1 and 1 that codes of 4 or 8 bits are decoded to; a block of numbers shares a scale.

For weights. ``nf4``: 4 bits, for weights that are normally distributed: each code is used about equally often. 8 quantiles of
the normal distribution are positive and 7 negative, at even probabilities; 0 is one of the numbers, so that it is kept exactly.
``int8``: 255 even steps, -127 / 127 to 127 / 127.

For optimizer state. ``dynamic``, ``dynamic4``, and ``positive``, which has no sign: a number is a power of ten, said by leading
zero bits, and the rest of the bits a place between a tenth and one: of a byte seven decades, with 64 places of each sign in the
uppermost and one in the lowest. Without a sign the bit that says it is one more for the place. Added are 0 and 1 themselves.
``linear4``: 1/16 to 1, without 0.

Source: Dettmers, Pagnoni, Holtzman and Zettlemoyer, *QLoRA: efficient finetuning of quantized LLMs*, 2023, section 3 and its
table of the 16 numbers: to arrive at these to the last bit, probabilities and the division are in float32. Dettmers, *8-bit
approximations for parallelism in deep learning*, 2016; Dettmers et al., *8-bit optimizers via block-wise quantization*, 2022;
Li, Chen and Zhu, *Memory efficient optimizers with 4-bit states*, 2023.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

_OUTERMOST = 0.9677083  # the probability of the largest: halfway between 1 - 1/30 and 1 - 1/32


class CodeTable:
    """The numbers of one kind of code.

    Attributes:
        numbers: in rising order, float32.
        values: the same as float32 (``"f"``) and float64 (``"d"``).
        borders: one for each number: a value is nearest to the first number whose border is not below it; the last is inf.
        bits: of a code.
        each: how many codes a byte has.
    """

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers.astype(np.float32)
        self.values = {kind: self.numbers.astype(kind) for kind in "fd"}
        wide = self.values["d"]
        self.borders = np.append((wide[:-1] + wide[1:]) / 2, np.inf).astype(np.float32)
        self.bits = 4 if len(numbers) == 16 else 8
        self.each = 8 // self.bits


def _quantiles(count: int) -> np.ndarray:
    """Normal quantiles at ``count`` even probabilities, from the outermost one down to 0.5, which is left out."""
    first, last = np.float32(_OUTERMOST), np.float32(0.5)
    step = (last - first) / np.float32(count)
    half = (count + 1) // 2  # counted from both ends, so that errors do not add up
    places = [first + step * np.float32(i) if i < half else last - step * np.float32(count - i) for i in range(count)]
    return np.array([NormalDist().inv_cdf(float(p)) for p in places])


def _normal_float() -> np.ndarray:
    numbers = np.sort([*_quantiles(8), 0.0, *-_quantiles(7)]).astype(np.float32)
    return numbers / numbers[-1]


def _dynamic(signed: bool, bits: int = 8) -> np.ndarray:
    numbers = [0.0, 1.0]
    for zeros in range(bits - 1):
        edges = np.linspace(0.1, 1.0, 2 ** (bits - 1 - zeros - signed) + 1)
        places = (edges[:-1] + edges[1:]) / 2 * 10.0**-zeros
        numbers += [*places, *-places] if signed else [*places]
    return np.sort(np.array(numbers))


TABLES = {
    "nf4": CodeTable(_normal_float()),
    "int8": CodeTable(np.arange(-127, 128) / 127),
    "dynamic": CodeTable(_dynamic(True)),
    "positive": CodeTable(_dynamic(False)),
    "dynamic4": CodeTable(_dynamic(True, 4)),
    "linear4": CodeTable(np.arange(1, 17) / 16),
}
NESTED = 256
"""How many scales of blocks share a scale of their own, with double quantization: the paper's number."""
