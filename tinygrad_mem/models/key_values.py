"""Keys and values of the tokens that a language model has read, kept for the tokens that follow."""

from __future__ import annotations

from functools import partial

from .. import Tensor, cat, dtype, float32, uint8, zeros
from ..errors import ArgumentError
from .configuration import Configuration


class Cache:
    """The keys and values of each layer, in memory that is taken at once.

    Memory:
        ``2 * batch * kept * key heads * head`` numbers a layer, where ``kept`` is ``tokens``, or the window of a layer that has
        one, if that is less. With ``bits``: 8 / bits numbers in a byte, and 8 bytes for each head of each token.

    Args:
        config: the model's.
        batch: the number of sequences.
        tokens: the longest sequence.
        dtype, device: as the model's parameters.
        bits: 8 or 4: the bits of each number, which are scaled from the least to the largest number of a head. While a layer
            runs, its keys and values exist in ``dtype`` too.

    Attributes:
        length: the number of tokens that were read.

    Raises:
        ArgumentError: other ``bits``; more tokens than there is room for.
    """

    def __init__(
        self,
        config: Configuration,
        batch: int,
        tokens: int,
        dtype: dtype = float32,
        device: object = None,
        bits: int | None = None,
    ) -> None:
        if bits not in (None, 4, 8):
            raise ArgumentError(f"Cache: bits is 4, 8 or None, found {bits!r}")
        self.tokens, self.length = tokens, 0
        sizes = [tokens if window is None else min(window, tokens) for window in config.windows]
        shapes = [(batch, size, config.num_key_value_heads, config.head_dim) for size in sizes]
        store = _Store if bits is None else partial(_Quantized, bits=bits)
        self._stores = [[store(shape, dtype, device) for _ in ("keys", "values")] for shape in shapes]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values (N, T, key heads, head) of the next tokens.

        Returns:
            The keys and values of all tokens that the new tokens may look at, in order.
        """
        if self.length + k.shape[1] > self.tokens:
            raise ArgumentError(
                f"Cache: {self.length} tokens were read and {k.shape[1]} come, there is room for {self.tokens}: make it larger"
            )
        first, second = self._stores[layer]
        return first.add(k, self.length), second.add(v, self.length)


class _Store:
    """The keys, or the values, of a layer: those of the last tokens, (N, size, heads, head)."""

    def __init__(self, shape: tuple[int, ...], kind: dtype, device: object) -> None:
        self.size = shape[1]
        self.array = zeros(shape, dtype=kind, device=device)

    def add(self, new: Tensor, length: int) -> Tensor:
        """Keep ``new``, which come after ``length`` tokens. Returns those of the last tokens before them, and them."""
        stop = length + new.shape[1]
        if stop <= self.size:
            self.write(length, new)
            return self.read(stop)
        whole = cat((self.read(min(length, self.size)), new), 1)
        self.write(0, whole[:, -self.size :])  # the window has moved
        return whole

    def write(self, start: int, new: Tensor) -> None:
        self.array[:, start : start + new.shape[1]] = new

    def read(self, stop: int) -> Tensor:
        return self.array[:, :stop]


class _Quantized(_Store):
    """Codes of 8 or 4 bits: where each number is between the least and the largest of its head."""

    def __init__(self, shape: tuple[int, ...], kind: dtype, device: object, bits: int) -> None:
        *outer, head = shape
        if head * bits % 8:
            raise ArgumentError(f"Cache: a head of {head} numbers does not fill bytes with {bits} bits each")
        self.size, self.kind, self.bits = shape[1], kind, bits
        self.codes = zeros(*outer, head * bits // 8, dtype=uint8, device=device)
        self.ranges = zeros(*outer, 2, dtype=float32, device=device)  # the least number, and the step between codes

    def write(self, start: int, new: Tensor) -> None:
        new, stop = new.to(float32), start + new.shape[1]
        least = new.amin(-1, keepdim=True)
        step = ((new.amax(-1, keepdim=True) - least) / (2**self.bits - 1)).clamp(min=_LEAST_STEP)
        codes = ((new - least) / step).round().to(uint8)
        self.codes[:, start:stop] = codes if self.bits == 8 else codes[..., ::2] + codes[..., 1::2] * 16
        self.ranges[:, start:stop] = cat((least, step), -1)

    def read(self, stop: int) -> Tensor:
        codes = self.codes[:, :stop]
        if self.bits == 4:
            codes = cat(((codes & 15)[..., None], (codes >> 4)[..., None]), -1).flatten(-2)
        least, step = self.ranges[:, :stop].split(1, -1)
        return (codes.to(float32) * step + least).to(self.kind)


_LEAST_STEP = 1e-30  # of a head whose numbers are all equal
