"""Offload: what is saved for backward waits in host memory."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ..autograd import graph
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import uint8
from .packing import Once, UnpackedTensor, stays


class save_on_cpu(graph.saved_tensors_hooks):
    """Inside, what is saved for backward is copied to host memory, and back when backward wants it.

    Args:
        pin_memory: to memory that the GPU writes and reads by itself, and in backward the storage that was saved before is on
            its way back while the one that is needed is used.
        device_type: taken for PyTorch's sake; each tensor goes back to the device that it came from.

    Memory:
        The device holds what the running op uses; with ``pin_memory`` one storage more. The host (``device.pool.host()``) holds
        each storage once, whole, however many views and nodes save it. Parameters, leaves that require a gradient and views of
        them stay: they are not freed by a copy. Nor is anything that the user still refers to. On ``cpu`` and ``meta`` the host
        is a second pool beside the first, so that the bytes can be told: nothing of the machine's own memory is saved there.
    Price:
        Two copies of what is saved over the bus to the GPU. Without pinned memory the host waits for each of them.
    Do not use when:
        Recompute costs less than the copies: pointwise ops are made again faster than they travel. Or the memory is taken by
        parameters, gradients and optimizer state, which this does not touch.

    Values are copied bit for bit. The copies have not been run on a GPU by those who wrote them.

    Source: Rhu et al., *vDNN*, 2016; the name and the arguments are PyTorch's.

    >>> with save_on_cpu(pin_memory=True):
    ...     loss = F.cross_entropy(model(x), y)
    >>> loss.backward()
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        store = _Store(pin_memory)
        super().__init__(store.pack, store.unpack)


class _Store:
    """The copies of one ``save_on_cpu``."""

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned
        self._once = Once()
        self._order: list[weakref.ref[Parked]] = []  # as saved: backward comes by in the opposite order

    def pack(self, tensor: Tensor) -> Any:
        """Park the storage of ``tensor``, once, and note what to show of it."""
        place = None if stays(tensor) else tensor.device.block(tensor.array)
        if place is None:  # memory that is not the pool's is not freed by a copy
            return UnpackedTensor(tensor)
        block, offset = place
        parked = self._once.find(tensor)
        if parked is None:
            while self._order and self._order[-1]() is None:
                self._order.pop()
            parked = Parked(tensor.device, block, self.pinned, len(self._order))
            self._order.append(weakref.ref(parked))
            self._once.note(tensor, parked)
        return parked, offset, _Layout(tensor.array)

    def unpack(self, packed: Any) -> Tensor:
        """The tensor over its storage, which is brought back unless somebody has it still."""
        if isinstance(packed, UnpackedTensor):
            return packed.get()
        parked, offset, layout = packed
        window = parked.show(offset, layout)
        if self.pinned:
            for reference in reversed(self._order[: parked.index]):
                before = reference()
                if before is not None:
                    before.fetch_ahead()
                    break
        return Tensor._wrap(window, parked.device)


class _Layout:
    """The layout of an array in its block."""

    __slots__ = ("dtype", "shape", "strides")

    def __init__(self, array: Any) -> None:
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype


class Parked:
    """A storage in host memory: its bytes, and its place on the device while somebody there uses it."""

    def __init__(self, device: Device, block: Any, pinned: bool, index: int) -> None:
        self.device, self.index = device, index
        self.bytes = np.ndarray(block.shape, uint8, device.pool.host(pinned=pinned).malloc(block.size))
        self._here: list[weakref.ref] = []  # NumPy's views hold the block, CuPy's hold the array that they were made of
        self._ahead: tuple | None = None
        device.to_host(block, self.bytes)

    def show(self, offset: int, layout: _Layout) -> Any:
        """An array over the block on the device: the one that is in use, the one that was fetched ahead, or a new copy."""
        block = self._in_use()
        if block is None:
            if self._ahead is None:
                block = self.device.empty(self.bytes.shape, uint8)
                self.device.from_host(self.bytes, block)
            else:
                (block, copy), self._ahead = self._ahead, None
                self.device.wait(copy)
        window = self.device.window(block, offset, layout)
        self._here += weakref.ref(block), weakref.ref(window)
        return window

    def _in_use(self) -> Any:
        """The block, if anybody on the device shows it; else ``None``."""
        self._here = [reference for reference in self._here if reference() is not None]
        shown = self._here[0]() if self._here else None
        place = None if shown is None else self.device.block(shown)
        return None if place is None else place[0]

    def fetch_ahead(self) -> None:
        """Begin to bring it back, unless it is there."""
        if self._ahead is None and self._in_use() is None:
            block = self.device.empty(self.bytes.shape, uint8)
            self._ahead = block, self.device.from_host(self.bytes, block, ahead=True)

    def __del__(self) -> None:
        if getattr(self, "_ahead", None) is not None:  # nobody came for it: its memory is free when the copy is done
            self.device.wait(self._ahead[1])  # type: ignore[index]


graph.save_on_cpu = save_on_cpu
