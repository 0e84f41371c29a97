"""Offload: tensors saved for backward are kept in host memory."""

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
    """Inside, tensors that are saved for backward are copied to host memory, and back when backward needs them.

    Args:
        pin_memory: use pinned memory, which the GPU reads and writes directly. In backward, the storage that will be needed
            next is copied back while the current one is used.
        device_type: accepted for compatibility; each tensor goes back to its own device.

    Memory:
        The device holds what the running op uses, and with ``pin_memory`` one storage more. The host (``device.pool.host()``)
        holds each storage once, as a whole, however many views and nodes save it. Parameters, leaves that require a gradient
        and views of them are not copied, because a copy would not free them; nor would it free tensors that the user still
        refers to. On ``cpu`` and ``meta`` the host is a second pool beside the first: the bytes can be counted, but the machine
        saves nothing.
    Price:
        Two copies of each saved tensor over the bus to the GPU. Without pinned memory the host waits for each copy.
    Do not use when:
        Recompute costs less than the copies: pointwise ops run faster than their results can be copied. Or parameters,
        gradients and optimizer state take the memory, which offload does not touch.

    Values are copied bit for bit. The copies have not run on a real GPU yet.

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
        self._order: list[weakref.ref[Parked]] = []  # in the order of saving; backward needs them in the opposite order

    def pack(self, tensor: Tensor) -> Any:
        """Copy the storage of ``tensor`` to the host, once, and note which part of it the tensor shows."""
        place = None if stays(tensor) else tensor.device.block(tensor.array)
        if place is None:  # memory of other libraries would not be freed by a copy
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
        """The tensor over its storage, which is copied back unless it is still on the device."""
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
    """A storage in host memory, and its copy on the device while that is in use."""

    def __init__(self, device: Device, block: Any, pinned: bool, index: int) -> None:
        self.device, self.index = device, index
        self.bytes = np.ndarray(block.shape, uint8, device.pool.host(pinned=pinned).malloc(block.size))
        self._here: list[weakref.ref] = []  # NumPy's views hold the block, CuPy's hold the array that they were made of
        self._ahead: tuple | None = None
        device.to_host(block, self.bytes)

    def show(self, offset: int, layout: _Layout) -> Any:
        """An array over the block on the device: a block in use, one that was fetched ahead, or a new copy."""
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
        """The block on the device, if an array still shows it; else ``None``."""
        self._here = [reference for reference in self._here if reference() is not None]
        shown = self._here[0]() if self._here else None
        place = None if shown is None else self.device.block(shown)
        return None if place is None else place[0]

    def fetch_ahead(self) -> None:
        """Start to copy it back, unless it is on the device."""
        if self._ahead is None and self._in_use() is None:
            block = self.device.empty(self.bytes.shape, uint8)
            self._ahead = block, self.device.from_host(self.bytes, block, ahead=True)

    def __del__(self) -> None:
        if getattr(self, "_ahead", None) is not None:  # it was not used: its memory is free when the copy is done
            self.device.wait(self._ahead[1])  # type: ignore[index]


graph.save_on_cpu = save_on_cpu
