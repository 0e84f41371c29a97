"""Tokens in files larger than memory, and in streams: windows of them, with what comes next as the target.

A file is plain: whole numbers of one dtype, without a header, as nanoGPT's ``train.bin``.
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


def write_tokens(path: str | Path, chunks: Iterable[Any], dtype: Any = np.uint16) -> int:
    """Write chunks of whole numbers one behind the other, never more than one of them in memory; says how many tokens.

    The file appears when it is complete: a failure half-way leaves what was there.

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
    """The tokens but the last, and the tokens but the first, int64."""
    wide = tokens.astype(np.int64)
    return make_tensor(wide[:-1]), make_tensor(wide[1:])


class TokenFile(Dataset[tuple]):
    """Sample i: ``length`` tokens of a file from ``i * stride`` on, and the same one later. The file stays where it is.

    It is mapped (``numpy.memmap``): what is read comes page by page and is no memory of the process. Workers open it again.

    Args:
        stride: ``length`` unless given: windows that do not overlap.
        dtype: of the file.

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
    """Windows of ``length`` tokens of a stream, and the same one later: at most a window and a chunk are in memory.

    Args:
        chunks: called at the start of each pass, it gives an iterable of chunks of whole numbers, of any sizes. With workers
            each reads the whole stream and gives every n-th window.

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
