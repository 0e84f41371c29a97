"""Offload: tensors saved for backward, or the inputs of checkpoints alone, are kept in host memory."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ..autograd import graph
from ..autograd.tensor import Tensor
from ..callbacks import finalizer
from ..devices import device as Device
from ..dtypes import uint8
from ..interrupts import uninterrupted
from ..recompute.frame import Checkpoint
from ..scope import local
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

    Values are copied bit for bit.

    Source: Rhu et al., *vDNN*, 2016; the name and the arguments are PyTorch's.

    >>> with save_on_cpu(pin_memory=True):
    ...     loss = F.cross_entropy(model(x), y)
    >>> loss.backward()
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        store = _Store(pin_memory)
        super().__init__(store.pack, store.unpack)


class checkpoints_on_cpu(graph.saved_tensors_hooks):
    """Inside, the inputs of checkpoints are kept in host memory. What else is saved stays, as without it.

    Args:
        pin_memory: as for :class:`save_on_cpu`.

    Memory:
        With n equal blocks, each in a checkpoint, the device holds one input and, with ``pin_memory``, the next, instead of
        n: activations no longer grow with depth. The host holds n. Inputs that several checkpoints share, such as a mask, are
        there once.
    Price:
        Each input is copied to the host and back, besides the recomputation. An input that all checkpoints share comes back
        for each of them.
    Do not use when:
        The inputs are a small part of the peak; or there is no checkpoint, where it does nothing: see :class:`save_on_cpu`.

    Values are copied bit for bit.

    Source: Bekman et al., *Arctic long sequence training*, 2025.

    >>> checkpoint_blocks(model, "every-block")
    >>> with checkpoints_on_cpu(pin_memory=True):
    ...     loss = model.loss(tokens, targets)
    >>> loss.backward()
    """

    def __init__(self, pin_memory: bool = False) -> None:
        store = _Store(pin_memory)

        def pack(tensor: Tensor) -> Any:
            return store.pack(tensor) if local.saving[0].op is Checkpoint else UnpackedTensor(tensor)

        super().__init__(pack, store.unpack)


class _Store:
    """The copies of one ``save_on_cpu``."""

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned
        self._once = Once()
        self._order: list[weakref.ref[Parked]] = []  # each time one is saved; backward needs them in the opposite order

    def pack(self, tensor: Tensor) -> Any:
        """Copy the storage of ``tensor`` to the host, once, and note which part of it the tensor shows."""
        place = None if stays(tensor) else tensor.device.block(tensor.array)
        if place is None:  # memory of other libraries would not be freed by a copy
            return UnpackedTensor(tensor)
        block, offset = place
        parked = self._once.find(tensor)
        while self._order and self._order[-1]() is None:
            self._order.pop()
        if parked is None:
            parked = Parked(tensor.device, block, self.pinned)
            self._once.note(tensor, parked)
        parked.index = len(self._order)
        self._order.append(weakref.ref(parked))
        return parked, offset, _Layout(tensor.array)

    def unpack(self, packed: Any) -> Tensor:
        """The tensor over its storage, which is copied back unless it is still on the device."""
        if isinstance(packed, UnpackedTensor):
            return packed.get()
        parked, offset, layout = packed
        window = parked.show(offset, layout)
        if self.pinned:
            for index in reversed(range(parked.index)):
                before = self._order[index]()
                if before is not None and before.index == index:  # and not saved again later, for which it is here by then
                    before.fetch_ahead()
                    break
        return Tensor._wrap(window, parked.device)


class _Layout:
    """The layout of an array in its block."""

    __slots__ = ("dtype", "shape", "strides")

    def __init__(self, array: Any) -> None:
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype


class Parked:
    """A storage in host memory, and its copy on the device while that is in use.

    Attributes:
        index: its number in the order of saving, where it was saved last.
    """

    index: int

    def __init__(self, device: Device, block: Any, pinned: bool) -> None:
        self.device = device
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
                block, copy = self._ahead
                self.device.wait(copy)
                self._ahead = None  # not before: Ctrl-C may free the block here, when the copy has been waited for
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
            uninterrupted(self._begin_copy, self.device.empty(self.bytes.shape, uint8))

    def _begin_copy(self, block: Any) -> None:
        self._ahead = block, self.device.from_host(self.bytes, block, ahead=True)

    @finalizer
    def __del__(self) -> None:
        if getattr(self, "_ahead", None) is not None:  # it was not used: its memory is free when the copy is done
            self.device.wait(self._ahead[1])  # type: ignore[index]


graph.save_on_cpu = save_on_cpu
