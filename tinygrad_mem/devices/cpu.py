"""The cpu: our pool over real memory, NumPy arrays over its blocks."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from .. import dtypes
from .base import device, hosts
from .pool import Block, Pool

_ndarray = np.ndarray


class CPU(device, kind="cpu"):
    """``device("cpu")``."""

    lacking = dtypes.LACKING
    remedy = "bfloat16 on the cpu needs the package ml_dtypes: pip install ml-dtypes; on device meta nothing does"

    def _open(self) -> None:
        from ..kernels import numpy as kernels

        self.kernels, self.xp = kernels, np
        self.pool = Pool("cpu")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if dtype is self.lacking:
            raise self.refusal()
        size = math.prod(shape, start=dtype.itemsize)
        if not size:
            return _ndarray(shape, dtype)
        return _ndarray(shape, dtype, self.pool.malloc(size))

    def over(self, memory: np.ndarray) -> np.ndarray:
        """An array over another library's memory, which is C-contiguous: shared, and counted as one of this device's pool.

        The pool's own bytes for it are not used until they are free.
        """
        if not memory.nbytes:
            return _ndarray(memory.shape, memory.dtype)
        own = self.pool.malloc(memory.nbytes)
        # in a buffer of ctypes: over an array, NumPy would take that array for the base, and leave the block out
        flat: Any = memory.reshape(-1).view(np.uint8)
        held: Any = (ctypes.c_ubyte * flat.size).from_buffer(flat)
        block = _ndarray.__new__(Block, memory.nbytes, np.uint8, held)
        chunk, pool = own.chunk, own.pool
        del own.pool  # it gives back nothing: the other block does
        block.chunk, block.pool = chunk, pool
        return _ndarray(memory.shape, memory.dtype, block)

    def host(self, *, pinned: bool = False) -> device:
        return self.over_pool(self.pool.host(pinned=pinned), self)

    def over_pool(self, pool: Pool, of: device) -> Any:
        """The host of the device ``of``, which is this device with another pool; one object a pool."""
        host = hosts.get(id(pool))
        if host is None:
            host = hosts[id(pool)] = object.__new__(type(self))
            host.__dict__.update(self.__dict__, pool=pool, host_of=of, whose=f" (the host of {of}{of.whose})")
        return host

    def upload(self, source: np.ndarray, out: np.ndarray) -> None:
        np.copyto(out, source)

    def download(self, source: np.ndarray, out: np.ndarray) -> None:
        np.copyto(out, source)

    def address(self, array: np.ndarray) -> int | None:
        block = self._block(array)
        return None if block is None else block.chunk.address

    def block(self, array: np.ndarray) -> tuple[np.ndarray, int] | None:
        block = self._block(array)
        if block is None:
            return None
        start = block.__array_interface__["data"][0]
        return block.view(_ndarray), array.__array_interface__["data"][0] - start

    def sizes(self, array: np.ndarray) -> tuple[int, int]:
        block = self._block(array)
        return (0, 0) if block is None else (block.size, block.chunk.size)

    def _block(self, array: np.ndarray) -> Block | None:
        base = array if type(array) is Block else array.base
        while type(base) is _ndarray:
            base = base.base
        return base if type(base) is Block and base.pool is self.pool else None
