"""Keys and values of the tokens that a language model has read, kept for the tokens that follow."""

from __future__ import annotations

from .. import Tensor, cat, dtype, float32, zeros
from ..errors import ArgumentError
from .configuration import Configuration


class Cache:
    """The keys and values of each layer, in memory that is taken at once.

    Memory:
        ``2 * batch * kept * key heads * head`` numbers a layer, where ``kept`` is ``tokens``, or the window of a layer that has
        one, if that is less.

    Args:
        config: the model's.
        batch: the number of sequences.
        tokens: the longest sequence.
        dtype, device: as the model's parameters.

    Attributes:
        length: the number of tokens that were read.

    Raises:
        ArgumentError: more tokens than there is room for.
    """

    def __init__(self, config: Configuration, batch: int, tokens: int, dtype: dtype = float32, device: object = None) -> None:
        self.tokens, self.length = tokens, 0
        sizes = [tokens if window is None else min(window, tokens) for window in config.windows]
        shapes = [(batch, size, config.num_key_value_heads, config.head_dim) for size in sizes]
        self._stores = [[_Store(shape, dtype, device) for _ in ("keys", "values")] for shape in shapes]

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values (N, T, key heads, head) of the next tokens.

        Returns:
            Those of all tokens that these may look at, in their order.
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
            self.array[:, length:stop] = new
            return self.array[:, :stop]
        whole = cat((self.array[:, : min(length, self.size)], new), 1)
        self.array[:, : self.size] = whole[:, -self.size :]  # the window has moved
        return whole
