"""``save`` and ``load``: tensors, and nested dicts and lists of them, in safetensors files.

A flat dict of tensors is a plain safetensors file that other programs read. Anything else (optimizer states, lists, numbers,
tied tensors) is described in the file's metadata, and so is which tensors were on a GPU. Reading runs no code from the file.
"""

from __future__ import annotations

import io as _io
import json
import os
import re
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from . import safetensors
from .autograd.tensor import Tensor
from .devices import device as Device
from .dtypes import bfloat16
from .errors import ArgumentTypeError, DeviceError, FileFormatError, NotOfferedError, pins_nothing
from .files import replacing
from .scope import local

_KEY = "tinygrad_mem"  # of the metadata that describes other objects than flat dicts
_DEVICES = "tinygrad_mem.devices"  # of the metadata that says which tensors were on a GPU
_DEEPEST = 200  # most nested containers, so that loading fits into half of Python's stack
_TENSOR, _PAIRS, _TUPLE = "$tensor", "$pairs", "$tuple"


def save(obj: Any, f: str | os.PathLike | IO[bytes]) -> None:
    """Write ``obj`` to a file: tensors, Python numbers, strings, ``None``, and dicts, lists and tuples of them.

    Tensors that share memory, shape and strides (tied weights) are written once, and are one tensor again after loading. A file
    at a path appears when it is complete.

    Raises:
        TypeError: something inside has another type; the message says where.
        DataDependenceError: a tensor on device ``meta`` has no values.
    """
    packed = _Packed()
    structure = packed.describe(obj, ())
    plain = isinstance(obj, Mapping) and list(packed.tensors) == list(obj) and "__metadata__" not in obj
    plain = plain and len(packed.tensors) > 0
    metadata = {} if plain else {_KEY: json.dumps(structure)}
    on_gpus = {name: str(tensor.device) for name, tensor in packed.tensors.items() if tensor.device.kind == "cuda"}
    if on_gpus:
        metadata[_DEVICES] = json.dumps(on_gpus)
    if isinstance(f, (str, os.PathLike)):
        with replacing(f) as file:
            packed.write(file, metadata)
    elif isinstance(f, _io.RawIOBase):  # it may write less than it is given
        buffered = _io.BufferedWriter(f)
        packed.write(buffered, metadata)
        buffered.detach()
    else:
        packed.write(f, metadata)


class _Packed:
    """An object as tensors by name, and a JSON description of the rest."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple, str] = {}
        self._open: set[int] = set()

    def describe(self, value: Any, path: tuple) -> Any:
        """``value`` in JSON, with references in place of tensors."""
        if isinstance(value, Tensor):
            return {_TENSOR: self._name(value, path)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, np.generic) and (value.dtype.kind in "fiub" or value.dtype == bfloat16):
            return value.item()
        if id(value) in self._open:
            raise TypeError(f"save: {_where(path)} contains itself")
        if len(path) >= _DEEPEST:
            raise TypeError(f"save: {_where(path[:3])}... is nested more than {_DEEPEST} deep; flatten it")
        self._open.add(id(value))
        try:
            return self._container(value, path)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any, path: tuple) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if not (key is None or isinstance(key, (bool, int, float, str))):
                    raise TypeError(f"save: keys are strings or numbers, found {key!r:.60} in {_where(path)}")
            items = [(key, self.describe(item, (*path, key))) for key, item in value.items()]
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return dict(items)
            return {_PAIRS: [[key, item] for key, item in items]}
        if isinstance(value, (list, tuple)):
            described = [self.describe(item, (*path, i)) for i, item in enumerate(value)]
            return described if isinstance(value, list) else {_TUPLE: described}
        hint = "; save its state_dict()" if hasattr(value, "state_dict") else ""
        raise TypeError(f"save: {_where(path)} is a {type(value).__name__}, which no safetensors file can hold{hint}")

    def _name(self, tensor: Tensor, path: tuple) -> str:
        identity = (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if identity in self._names and tensor.numel():
            return self._names[identity]
        name = base = ".".join(map(str, path)).encode(errors="backslashreplace").decode() or "tensor"
        count = 1
        while name in self.tensors or name == "__metadata__":
            count += 1
            name = f"{base}#{count}"
        self.tensors[name], self._names[identity] = tensor, name
        return name

    def write(self, file: IO[bytes], metadata: dict) -> None:
        """Write the header, then the bytes of each tensor, with one host copy at a time."""
        order = safetensors.write_header(file, {n: (t.dtype, tuple(t.shape)) for n, t in self.tensors.items()}, metadata)
        for name in order:
            array = np.ascontiguousarray(self.tensors[name].detach()._host())
            if array.size:
                file.write(array.reshape(-1).view(np.uint8).data)


def _where(path: tuple) -> str:
    return "the object" + "".join(f"[{key!r}]" for key in path)


@pins_nothing
def load(
    f: str | os.PathLike | IO[bytes], map_location: Any = None, pickle_module: Any = None, *, weights_only: bool | None = None
) -> Any:
    """Load a file that :func:`save` wrote, or a dict of the tensors of any safetensors file.

    Args:
        map_location: the device of the tensors; a dict from saved devices to others; or a function of a tensor on the cpu and
            the name of its saved device, which returns the tensor, moved, or ``None``. By default tensors that were saved on a
            GPU return to it, and others are on the default device.
        pickle_module: not offered.
        weights_only: accepted for compatibility; nothing else is ever read.

    Raises:
        FileFormatError: truncated, hostile, or another format (a PyTorch ``.pt``: the message says how to convert it).
        FileNotFoundError: no such file.
        NotOfferedError: a ``pickle_module``.
        DeviceError: a tensor was saved on a GPU that is not here, and ``map_location`` does not say where it should be.
        TypeError: the function ``map_location`` returns something else.
    """
    if pickle_module is not None:
        raise NotOfferedError("load: pickle_module is not offered: nothing here is pickled")
    where = map_location if callable(map_location) or isinstance(map_location, dict | None) else Device(map_location)
    if isinstance(f, (str, os.PathLike)):
        with open(f, "rb") as file:
            return _load(file, os.fspath(f), where)
    return _load(f, str(getattr(f, "name", "the file object")), where)


def _load(file: IO[bytes], what: str, where: Any) -> Any:
    if not file.seekable():
        file = _io.BytesIO(file.read())
    here = file.tell()
    size = file.seek(0, os.SEEK_END) - here
    file.seek(here)
    entries, metadata = safetensors.read_header(file, size, what)
    structure = None
    if _KEY in metadata:
        try:
            structure = json.loads(metadata[_KEY], object_pairs_hook=safetensors.no_duplicates)
            _check(structure, {entry.name for entry in entries})
        except (ValueError, TypeError, RecursionError) as error:
            raise FileFormatError(f"{what}: the description in the metadata is damaged: {error}") from None
    start, saved = file.tell(), _saved_devices(metadata.get(_DEVICES, "{}"), {entry.name for entry in entries}, what)
    tensors = {each.name: _placed(file, start, each, what, where, saved.get(each.name, "cpu")) for each in entries}
    if _KEY not in metadata:
        return tensors
    try:
        return _rebuild(structure, tensors)
    except RecursionError as error:
        raise FileFormatError(f"{what}: the description in the metadata is nested too deep: {error}") from None


def _saved_devices(text: str, names: set[str], what: str) -> dict[str, str]:
    """The GPU of each tensor that was on one."""
    try:
        found = json.loads(text, object_pairs_hook=safetensors.no_duplicates)
        if not isinstance(found, dict) or not names.issuperset(found):
            raise ValueError(f"expected names of tensors and their devices, found {found!r:.80}")
        for name, place in found.items():
            if not isinstance(place, str) or not re.fullmatch(r"cuda:[0-9]{1,4}", place):
                raise ValueError(f"{place!r:.40} of tensor {name!r:.80} is no GPU")
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{what}: the devices in the metadata are damaged: {error}") from None
    return found


def _placed(file: IO[bytes], start: int, entry: safetensors.Entry, what: str, where: Any, saved: str) -> Tensor:
    """One tensor, on the device that ``map_location`` says."""
    if not callable(where):
        return _read(file, start, entry, what, where if isinstance(where, Device) else _device(where, saved, entry.name))
    tensor = _read(file, start, entry, what, Device("cpu"))
    moved = where(tensor, saved)
    if moved is None:
        return tensor.to(_device(None, saved, entry.name))
    if not isinstance(moved, Tensor):
        raise ArgumentTypeError(
            f"load: map_location returned {moved!r:.60}; return the tensor that it is given, moved, or None"
        )
    return moved


def _device(mapping: dict | None, saved: str, name: str) -> Device:
    """The device for a tensor that was saved on ``saved``, where at most a dict says something else."""
    wanted = (mapping or {}).get(saved, saved)
    if wanted == "cpu" == saved:  # the file names GPUs alone
        return Device(local.default_device or "cpu")
    where = Device(wanted)
    if where.missing:
        raise DeviceError(
            f"load: {name!r} was saved on {saved}, and {where} is not here: {where.missing}. "
            "load(..., map_location='cpu') puts all tensors on the cpu."
        )
    return where


def _read(file: IO[bytes], start: int, entry: safetensors.Entry, what: str, where: Device) -> Tensor:
    """One tensor, read straight into its memory on the cpu."""
    array = where.empty(entry.shape, entry.dtype)
    host = array if where.kind == "cpu" else np.empty(entry.shape, entry.dtype)
    if entry.end > entry.begin:
        file.seek(start + entry.begin)
        view = host.reshape(-1).view(np.uint8).data
        while len(view):
            count = file.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise FileFormatError(f"{what}: the file ended inside tensor {entry.name!r}")
            view = view[count:]
        safetensors.check_bools(host, entry, what)
    if host is not array:
        where.upload(host, array)
    return Tensor._wrap(array, where)


def _check(node: Any, names: set[str]) -> None:
    """Check that every reference names a tensor, and that every marker has the form that ``save`` writes."""
    if isinstance(node, list):
        for item in node:
            if isinstance(item, (list, dict)):
                _check(item, names)
    elif isinstance(node, dict):
        marker = next((key for key in node if key.startswith("$")), None)
        if marker is None:
            _check(list(node.values()), names)
        elif marker == _TENSOR and len(node) == 1 and node[_TENSOR] in names:
            return
        elif marker == _TUPLE and len(node) == 1 and isinstance(node[_TUPLE], list):
            _check(node[_TUPLE], names)
        elif marker == _PAIRS and len(node) == 1 and isinstance(node[_PAIRS], list):
            for pair in node[_PAIRS]:
                if not isinstance(pair, list) or len(pair) != 2 or isinstance(pair[0], (list, dict)):
                    raise ValueError(f"expected a pair of a key and its value, found {pair!r:.60}")
                _check(pair[1], names)
            if len({pair[0] for pair in node[_PAIRS]}) != len(node[_PAIRS]):
                raise ValueError("a key appears twice")
        else:
            raise ValueError(f"{node!r:.80} is neither a tensor of the file, a tuple nor a dict")


def _rebuild(node: Any, tensors: dict[str, Tensor]) -> Any:
    """Build what ``node`` describes; lists and dicts are filled in place, so that no second copy of them is made."""
    if isinstance(node, list):
        for i, item in enumerate(node):
            if isinstance(item, (list, dict)):
                node[i] = _rebuild(item, tensors)
        return node
    if not isinstance(node, dict):
        return node
    if _TENSOR in node:
        return tensors[node[_TENSOR]]
    if _TUPLE in node:
        return tuple(_rebuild(item, tensors) for item in node[_TUPLE])
    if _PAIRS in node:
        return {key: _rebuild(item, tensors) for key, item in node[_PAIRS]}
    for key, item in node.items():
        node[key] = _rebuild(item, tensors)
    return node
