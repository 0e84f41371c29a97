"""The storages of a program: each is counted from its first tensor to its last, with a block of the predicted device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from ...errors import DeviceError, NotOfferedError, OutOfMemoryError
from ...interrupts import changed, context, signal_safe
from .cuda import OTHER_STREAM
from .fake import GpuTensorMode, fake_tensors, on_gpu, unwrapped
from .in_place import SavedNumbers, node
from .ledger import HeldBlock, Ledger, Place
from .numbers import KnownNumbers
from .op_facts import OpFacts, op_name
from .places import Places

aten = torch.ops.aten
_RESIZE = aten.resize_.default
ZERO = aten._efficientzerotensor.default  # its result has no memory
_DENSE = "whose memory is not predicted. Use dense tensors, such as Embedding(sparse=False)"


class Storages:
    """Knows the storages of a program, and what is held as what.

    Attributes:
        role: the category of what is asked for next, where a caller knows it.
        wrappers: the types of tensors of which each process holds a part.
        lost: an error, such as Ctrl-C, that Python does not raise where it happened.
    """

    def __init__(self, fake: GpuTensorMode, ledger: Ledger, places: Places, device: torch.device) -> None:
        super().__init__()
        self.fake, self.ledger, self.places, self.device = fake, ledger, places, device
        self.role = ""
        self.lost: BaseException | None = None
        self.notes: list[str] = []
        self.unknown: dict[str, int] = {}
        self.wrappers: tuple[type, ...] = ()
        self.numbers, self.saved_numbers = KnownNumbers(self.notes if device.type == "cuda" else None), SavedNumbers(ledger)
        self._without: set[int] = set()  # storages that the program made on ``meta``, by the same address
        self._held: dict[int, tuple[weakref.ref, HeldBlock | None]] = {}  # by the storage's address in C++
        self._nodes: dict[int, Any] = {}  # the nodes in whose backward storages were made

    def raise_lost(self) -> None:
        """Raise the error of a storage's callback, if there was one."""
        lost, self.lost = self.lost, None
        if lost is not None:
            raise lost

    def note(self, text: str) -> None:
        """Add a note about what the prediction assumes, once."""
        if text not in self.notes:
            self.notes.append(text)

    @context
    def workspace(self, size: int) -> Iterator[None]:
        """Inside, count ``size`` bytes of the host that a real call has used beside its results, which are made inside."""
        place = self.places.here()
        held = self.ledger.malloc(size, place, "WORKSPACE") if size and self.device.type == "cpu" else None
        yield
        if held is not None:
            self.ledger.free(held, place)

    def as_role(self, role: str) -> AbstractContextManager[None]:
        """Inside, allocated blocks get the category ``role``."""
        return changed(self, role=role)

    def local(self, tensor: Any) -> Any:
        """The part of a tensor that this process holds, or the tensor that ``torch.func`` has wrapped."""
        while isinstance(tensor, self.wrappers):
            tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
        return unwrapped(tensor)

    def find(self, tensor: torch.Tensor) -> HeldBlock | None:
        """The block of a tensor; ``None``: it is on another device, or empty."""
        with torch._C.DisableTorchFunction():
            tensor = self.local(tensor)
            if type(tensor) is not FakeTensor and not isinstance(tensor, FakeTensor):
                return None
            entry = self._held.get(tensor.untyped_storage()._cdata)
        return entry[1] if entry is not None else None

    def address(self, storage: torch.UntypedStorage) -> int:
        """The beginning of a storage's block; for one on another device, a number that no other one has."""
        _, held = self._held.get(storage._cdata, (None, None))
        return 0 if not storage.nbytes() else storage._cdata << 6 if held is None else held.address

    def without_memory(self, tensor: torch.Tensor, made: bool = False) -> bool:
        """True if the program itself made the tensor on ``meta``; ``made``: record that it does so now."""
        if not made and not self.has_without_memory():
            return False
        with torch._C.DisableTorchFunction():
            key = self.local(tensor).untyped_storage()._cdata
        if made:
            self._without.add(key)
        return key in self._without

    def has_without_memory(self) -> bool:
        """True if the program has made a tensor on ``meta``."""
        return bool(self._without)

    def found(self, values: Any) -> None:
        """Count the storages of tensors that were made while this mode was off."""
        with torch._C.DisableTorchFunction():
            self.see(aten.stack.default, (), tree_leaves(values))

    def born(self, tensor: torch.Tensor) -> Any:
        return self._nodes.get(tensor.untyped_storage()._cdata)

    def here(self, value: Any) -> bool:
        return isinstance(value, FakeTensor) and value.fake_device == self.device

    def in_blocks(self, size: int) -> int:
        """Bytes of the blocks that the device's allocator gives for ``size`` bytes."""
        block = 512 if self.device.type == "cuda" else 1
        return -(-size // block) * block

    def bound(self, size: int, why: str) -> None:
        """Record that up to ``size`` bytes more may be allocated, and why."""
        self.unknown[why] = max(size, self.unknown.get(why, 0))

    def waits(self, tensor: torch.Tensor, stream: int) -> None:
        """Record that a stream uses the tensor's block: a request that it would have served may need a segment."""
        held, allocator = self.find(tensor), self.ledger.allocator
        if held is not None and allocator is not None and allocator.blocks[held.address].home.stream != stream:
            self.bound(allocator.settings.segment_size(held.malloc[4]), OTHER_STREAM)

    def malloc(self, size: int, place: Place, role: str) -> HeldBlock:
        if self.ledger.mixed and self.ledger.allocator is not None:
            self.bound(self.ledger.allocator.settings.segment_size(size), OTHER_STREAM)
        try:
            return self.ledger.malloc(size, place, role)
        except OutOfMemoryError as error:
            raise torch.OutOfMemoryError(str(error)) from None

    def see(self, func: Any, args: tuple, made: Any) -> None:
        """Count the storages that an op made."""
        new = [made] if isinstance(made, FakeTensor) else fake_tensors(made)
        for tensor in new:
            if tensor.layout is not torch.strided:
                raise NotOfferedError(f"{op_name(func)} makes a tensor of layout {tensor.layout}, {_DENSE}")
            storage = tensor.untyped_storage()
            if storage._cdata not in self._held:
                self._count(storage, tensor, func, args)

    def _count(self, storage: Any, tensor: FakeTensor, func: Any, args: tuple) -> None:
        if torch.is_grad_enabled() and any(isinstance(each, FakeTensor) and each.requires_grad for each in args):
            self.ledger.graph_streams.add(self.ledger.stream)
        size, held = storage.nbytes() if func is not ZERO else 0, None
        if size and self.here(tensor):
            place = self.places.here(op_name(func))
            held = self.malloc(size, place, self.role or self._role(place.phase, args))
        self._hold(storage, held)
        if self._without and not on_gpu(tensor) and any(map(self.without_memory, fake_tensors(args))):
            self._without.add(storage._cdata)

    def _hold(self, storage: Any, held: HeldBlock | None) -> None:
        key = storage._cdata
        if torch._C._current_graph_task_id() != -1:
            self._nodes[key] = node()
        self._held[key] = weakref.ref(storage, partial(self._end, key)), held

    @signal_safe
    def _end(self, key: int, _: Any) -> None:
        """Record that a storage has ended. Python only prints errors of such callbacks, so the next op raises them."""
        try:
            _, held = self._held.pop(key, (None, None))
            self.numbers.forget(key)
            self._nodes.pop(key, None)
            self._without.discard(key)
            if held is not None:
                self.ledger.free(held, self.places.here())
        except BaseException as error:  # Ctrl-C
            self.lost = error

    def _role(self, phase: str, args: tuple) -> str:
        """The category of a new block: ``INPUT`` if it depends on nothing that is trained."""
        if phase not in ("user", "data"):
            return "TEMPORARY"
        held = map(self.find, fake_tensors(args))
        return "INPUT" if all(h is None or h.role == "INPUT" for h in held) else "TEMPORARY"

    def resize(self, facts: OpFacts, args: tuple, kwargs: dict[str, Any]) -> None:
        for place in facts.resizes:
            for each in fake_tensors([args[place] if isinstance(place, int) else kwargs[place]]):
                self.resized(each.untyped_storage(), each)

    def resized(self, storage: Any, tensor: torch.Tensor | None = None) -> None:
        """Record the new block of a storage that has grown, or shrunk to nothing. ``tensor``: one that uses it."""
        reference, held = self._held.get(storage._cdata, (None, None))
        if reference is None:  # ``set_`` gave it a storage that was never seen, such as one of a file
            return self.see(_RESIZE, (), tensor)
        if (held.size if held else 0) == storage.nbytes() or not (tensor is None or self.here(tensor)):
            return
        place, new = self.places.here("resize_"), None
        if storage.nbytes():
            new = self.malloc(storage.nbytes(), place, self.role or (held.role if held else "TEMPORARY"))
        if held is not None:
            self.ledger.free(held, place)
        self._held[storage._cdata] = reference, new

    def adopt(self, tensor: torch.Tensor, fake: torch.Tensor | None = None) -> torch.Tensor:
        """A tensor of the prediction for one that was made before it: its memory counts as older. ``fake``: like it, if its
        storage is its own."""
        if tensor.requires_grad:
            raise DeviceError(
                f"a tensor of shape {tuple(tensor.shape)} that requires a gradient was made outside of the prediction. "
                "Make the model and the optimizer inside the function that is predicted"
            )
        fake = self.fake.from_tensor(tensor) if fake is None else fake
        if not isinstance(fake, FakeTensor):
            raise NotOfferedError(
                f"a {type(tensor).__name__}: what such tensors hold is not predicted. Use plain tensors, and one process"
            )
        if fake.layout is not torch.strided:
            raise NotOfferedError(f"a tensor of layout {fake.layout}, {_DENSE}")
        storage: Any = fake.untyped_storage()
        if storage._cdata not in self._held:
            older = fake.fake_device == self.device and self.device.type == "cuda"
            self._hold(storage, self.malloc(storage.nbytes(), Place(), "UNTRACKED") if older else None)
            if tensor.untyped_storage()._cdata in self._held:
                storage.read = tensor  # its memory lasts as long
            self.numbers.set(fake, tensor)
        return fake

    def own(self, tensor: torch.Tensor, seen: torch.Tensor | None = None, number: bool = False) -> None:
        """Count a real tensor that PyTorch made for the program, as long as ``seen`` lives, or it does. NumPy's memory is not
        PyTorch's. ``number``: autograd has saved it."""
        tensor = self.local(tensor)
        storage, seen = tensor.untyped_storage(), tensor if seen is None else seen
        if storage._cdata in self._held:
            return
        if tensor.device == self.device and storage.nbytes() and storage.resizable():
            place, size = self.places.here("tensor"), storage.nbytes()
            held = self.saved_numbers.seen(size) if number else None
            self._hold(seen.untyped_storage(), held or self.ledger.malloc(size, place, self._role(place.phase, ())))
