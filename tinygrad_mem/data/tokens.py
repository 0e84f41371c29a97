"""Tokens in files larger than memory, and in streams: windows of tokens, with the next tokens as targets.

A file has no header: it holds integers of one dtype, as nanoGPT's ``train.bin``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..files import replacing
from ..functional.creation import tensor as make_tensor
from .dataset import Dataset, IterableDataset
from .workers import get_worker_info

__all__ = ("TokenFile", "TokenStream", "write_tokens")


def write_tokens(path: str | Path, chunks: Iterable[Any], dtype: Any = np.uint16) -> int:
    """Write chunks of integers one after another, with one chunk in memory at a time. Returns the number of tokens.

    The file appears when it is complete. After a failure the old file, if any, is unchanged.

    Raises:
        ValueError: a number that ``dtype`` cannot hold.
    """
    dtype, count = np.dtype(dtype), 0
    with replacing(path) as file:
        for chunk in chunks:
            numbers = np.asarray(chunk)
            small = numbers.astype(dtype)
            if (small != numbers).any():
                raise ValueError(f"{dtype} cannot hold {numbers[small != numbers].flat[0]}; give a larger dtype")
            file.write(np.ascontiguousarray(small).data)
            count += small.size
    return count


def _window(tokens: np.ndarray) -> tuple[Tensor, Tensor]:
    """All tokens but the last, and all but the first, int64."""
    wide = tokens.astype(np.int64)
    return make_tensor(wide[:-1]), make_tensor(wide[1:])


class TokenFile(Dataset[tuple]):
    """Windows of a file. Sample i is ``length`` tokens from ``i * stride`` on, and the same window one token later.

    The file is mapped (``numpy.memmap``): it is read page by page, and does not count as memory of the process. Each worker
    opens it again.

    Args:
        stride: the distance of windows; by default ``length``, so that they do not overlap.
        dtype: the dtype of the file.

    Raises:
        ValueError: the file holds no whole number of tokens, or no window; ``length`` or ``stride`` is not positive.
        FileNotFoundError: there is none.
    """

    def __init__(self, path: str | Path, length: int, stride: int | None = None, dtype: Any = np.uint16) -> None:
        self.path, self.length, self.dtype = Path(path), length, np.dtype(dtype)
        self.stride = length if stride is None else stride
        if length <= 0 or self.stride <= 0:
            raise ValueError(f"length and stride should be positive, found length={length} and stride={stride}")
        size = self.path.stat().st_size
        if size % self.dtype.itemsize:
            raise ValueError(f"{self.path} has {size} bytes, no whole number of {self.dtype}: give the dtype it was written in")
        self.count = size // self.dtype.itemsize
        if self.count <= length:
            raise ValueError(f"{self.path} has {self.count} tokens; a window of {length} and its targets need {length + 1}")
        self._tokens: np.ndarray | None = None

    def __len__(self) -> int:
        return (self.count - self.length - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"window {index} is out of range: {self.path} has {len(self)}")
        if self._tokens is None:
            self._tokens = np.memmap(self.path, self.dtype, "r")
        start = place * self.stride
        return _window(self._tokens[start : start + self.length + 1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None}


class TokenStream(IterableDataset[tuple]):
    """Windows of ``length`` tokens of a stream, and the same windows one token later. One window and one chunk are in memory.

    Args:
        chunks: a function that returns an iterable of chunks of integers, of any sizes; it is called at the start of each pass.
            Of n workers, each reads the whole stream and yields every n-th window.

    Raises:
        ValueError: ``length`` is not positive.
    """

    def __init__(self, chunks: Callable[[], Iterable[Any]], length: int) -> None:
        if length <= 0:
            raise ValueError(f"length should be positive, found {length}")
        self.chunks, self.length = chunks, length

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info()
        number, every = (0, 1) if info is None else (info.id, info.num_workers)
        rest, count = np.empty(0, np.int64), 0
        for chunk in self.chunks():
            rest = np.concatenate([rest, np.asarray(chunk)])
            start = 0
            while len(rest) - start > self.length:
                if count % every == number:
                    yield _window(rest[start : start + self.length + 1])
                count += 1
                start += self.length
            rest = rest[start:].copy()  # a copy: a view would keep the chunk
