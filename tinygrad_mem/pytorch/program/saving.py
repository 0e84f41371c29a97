"""``torch.save`` and ``torch.load`` in a prediction: nothing is written, since tensors have no values.

PyTorch copies storages from the GPU to the host, one after the other, and writes them from there: saving allocates nothing on
the GPU. Loading makes each storage on the host, then moves it to where ``map_location`` says.
"""

from __future__ import annotations

import io
import os
import pickle
import weakref
import zipfile
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ...errors import NotOfferedError
from .fake import without_modes
from .replacing import Change
from .watch import Watch

_LINE = 64  # bytes: storages in a file begin at multiples of it
_NOTE = "torch.save: nothing is written in a prediction; torch.load returns what was saved, in new memory"


def saving(watch: Watch) -> list[Change]:
    """Keep files that the program saves in memory, without values."""
    paths: dict[str, _SavedFile] = {}
    objects: weakref.WeakKeyDictionary[Any, _SavedFile] = weakref.WeakKeyDictionary()
    own = torch.load

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if _is_path(f):
            paths[os.path.realpath(f)] = _SavedFile(obj, {})
        else:
            objects[f] = _SavedFile(obj, {})
        watch.note(_NOTE)

    def load(f: Any, map_location: Any = None, *args: Any, mmap: bool | None = None, **kwargs: Any) -> Any:
        found = paths.get(os.path.realpath(f)) if _is_path(f) else objects.get(f)
        place = _place(map_location)
        size = os.path.getsize(f) if found is None and _is_path(f) else None
        if found is None:
            found = _from_disk(own, f, *args, **kwargs)
        return _Unpickler(found, _Restored(found, place, (size or found.size) if mmap else 0)).load()

    return [(owner, {"save": save, "load": load}) for owner in (torch, torch.serialization)]


def _is_path(f: Any) -> bool:
    return isinstance(f, (str, os.PathLike))


def _from_disk(own: Callable[..., Any], f: Any, *args: Any, **kwargs: Any) -> _SavedFile:
    """Load a file from before the prediction; its tensors are not read if PyTorch can map it."""
    places: dict[int, str] = {}

    def note(storage: Any, place: str) -> Any:
        places[storage._cdata] = place
        return storage

    with without_modes():
        return _SavedFile(own(f, note, *args, mmap=_is_path(f) and zipfile.is_zipfile(f), **kwargs), places)


class _SavedFile:
    """A saved object, pickled without its tensors.

    Args:
        places: where each real tensor's storage was, by its address in C++. Tensors that are not among them keep their values.
    """

    def __init__(self, obj: Any, places: dict[int, str]) -> None:
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, places)
        with torch._C.DisableTorchFunction():
            pickler.dump(obj)
        self.pickled, self.real, self.size = buffer.getvalue(), pickler.real, pickler.size


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, places: dict[int, str]) -> None:
        super().__init__(file)
        self.real: list[torch.Tensor] = []
        self.size = 0  # bytes of all storages
        self._places = places
        self._storages: dict[int, int] = {}

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        storage = obj.untyped_storage()
        place = str(obj.fake_device) if isinstance(obj, FakeTensor) else self._places.get(storage._cdata)
        if place is None:
            with _disable_current_modes():
                self.real.append(obj.detach().clone())
            return _restored, ("real", len(self.real) - 1)
        if storage._cdata not in self._storages:
            self.size += _round_up(storage.nbytes())
        number = self._storages.setdefault(storage._cdata, len(self._storages))
        laid = obj.dtype, tuple(obj.shape), obj.stride(), int(obj.storage_offset())
        trained, parameter = obj.requires_grad and obj.is_leaf, isinstance(obj, torch.nn.Parameter)
        return _restored, ("tensor", number, storage.nbytes(), place, laid, trained, parameter)


def _round_up(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _restored(method: str, *saved: Any) -> Any:
    raise NotImplementedError("pickle looks this name up, and calls a method of _Restored instead")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: _SavedFile, memory: _Restored) -> None:
        super().__init__(io.BytesIO(file.pickled))
        self._memory = memory

    def find_class(self, module: str, name: str) -> Any:
        memory = self._memory
        if (module, name) == (__name__, "_restored"):
            return lambda method, *saved: getattr(memory, method)(*saved)
        return super().find_class(module, name)


class _Restored:
    """Makes the tensors of a file, in new memory. It is not the unpickler: that keeps its bound methods, a reference cycle.

    Args:
        place: where a storage goes, by where it was.
        mapped: bytes of the file if it is mapped: PyTorch counts it as one block, which holds all storages. 0: it is read.
    """

    def __init__(self, file: _SavedFile, place: Callable[[str], Any], mapped: int) -> None:
        self._real, self._place = file.real, place
        self._mapped = torch.empty(mapped, dtype=torch.uint8, device="cpu") if mapped else None
        self._used = 0
        self._storages: dict[int, torch.Tensor] = {}

    def real(self, number: int) -> torch.Tensor:
        """A copy of a saved tensor that has values."""
        with _disable_current_modes():
            return self._real[number].clone()

    def tensor(self, number: int, size: int, place: str, laid: tuple, trained: bool, parameter: bool) -> torch.Tensor:
        """A tensor like a saved one.

        Args:
            number, size: of its storage in the file, in bytes.
            laid: its dtype, shape, strides and offset there.
        """
        dtype, shape, strides, offset = laid
        device = torch.device(self._place(place))
        if number not in self._storages:
            held = self._on_host(size)
            self._storages[number] = held if device.type == "cpu" else held.to(device)
        held = self._storages[number]
        made = torch.empty(0, dtype=dtype, device=device)
        made.set_(held.untyped_storage(), offset + int(held.storage_offset()) // dtype.itemsize, shape, strides)
        return torch.nn.Parameter(made, trained) if parameter else made.requires_grad_(trained)

    def _on_host(self, size: int) -> torch.Tensor:
        if self._mapped is None:
            return torch.empty(size, dtype=torch.uint8, device="cpu")
        start, self._used = self._used, self._used + _round_up(size)
        return self._mapped[start : start + size]


def _place(map_location: Any) -> Callable[[str], Any]:
    """The device for a storage, from the one that it was saved from."""
    if map_location is None:
        return str
    if isinstance(map_location, dict):
        return lambda device: map_location.get(device, device)
    if callable(map_location):
        raise NotOfferedError("torch.load: a function as map_location is not predicted. Give a device, or a dict of devices")
    return lambda device: map_location
