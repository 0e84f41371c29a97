"""Our objects for PyTorch's functions, classes, dtypes and modules of the same public name; the others refuse to be used."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from ..absent import why_absent
from ..devices import device as Device
from ..errors import NotOfferedError

_ROOT = __name__.partition(".")[0]
_DESCRIPTORS = types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType


def is_torchs(value: Any) -> bool:
    """Return whether a class, a function, a module or an object of a class is PyTorch's own."""
    kind = type(value)  # and not isinstance, which asks some of PyTorch's objects, and these warn
    if issubclass(kind, types.ModuleType):
        return _of_torch(value.__name__)
    if kind is types.FunctionType:  # a decorator gives its own function the name and the module of the user's
        return _of_torch(value.__globals__.get("__name__")) or _of_torch(value.__module__)
    if kind in _DESCRIPTORS:  # a method of a class made in C
        return _of_torch(value.__objclass__.__module__)
    if issubclass(kind, (type, types.BuiltinFunctionType)):
        return _of_torch(value.__module__)
    return _of_torch(kind.__module__)


def _of_torch(module: Any) -> bool:
    return isinstance(module, str) and (module == "torch" or module.startswith("torch."))


def place_of(name: str) -> types.ModuleType | None:
    """Our module of the same place as PyTorch's module ``name``, ``None`` where there is none."""
    try:
        return importlib.import_module(_ROOT + name.removeprefix("torch"))
    except ImportError:
        return None


Read = tuple[types.ModuleType, int, list[tuple[Any, str, Any]]]
"""A module of PyTorch's as it was read: the module, the number of its names, and (object, name, ours) of its own objects."""
_read: dict[str, Read] = {}  # holds the objects, so that no other object gets one of their ids


def _objects_of(place: str) -> list[tuple[Any, str, Any]]:
    """The last part of :data:`Read` for the module ``place``. It is read again if it has more names, or fewer."""
    theirs = sys.modules.get(place)
    if not isinstance(theirs, types.ModuleType):
        return []
    names, kept = vars(theirs), _read.get(place)
    if kept is None or kept[0] is not theirs or kept[1] != len(names):
        ours, found = place_of(place), []
        for name, value in names.items():
            if not issubclass(type(value), types.ModuleType) and not name.startswith("__") and is_torchs(value):
                found.append((value, name, getattr(ours, name, None)))
        kept = _read[place] = theirs, len(names), found
    return kept[2]


class Names:
    """The public names of PyTorch, as they are loaded now, with the object of this library for each.

    Objects are compared by identity, so it does not matter from which module, or under which name, they were imported.
    """

    def __init__(self, torch: types.ModuleType) -> None:
        self.torch = torch
        self.ours: dict[int, Any] = {}
        self.absent: dict[int, tuple[str, str]] = {}  # place and name
        first = ["torch", "torch.nn.functional", "torch.nn", "torch.optim"]
        others = sorted(name for name in sys.modules if name.startswith("torch.") and "._" not in name)
        for place in dict.fromkeys([*first, *others]):
            for value, name, found in _objects_of(place):
                if found is not None:
                    self.ours.setdefault(id(value), found)
                elif not name.startswith("_"):
                    self.absent.setdefault(id(value), (place, name))

    def knows(self, value: Any) -> bool:
        """Return whether ``value`` has a public name in PyTorch."""
        return id(value) in self.ours or id(value) in self.absent

    def of(self, value: Any) -> Any:
        """Our object for one of PyTorch's functions, classes, modules, dtypes, devices and so on; else one that refuses."""
        if id(value) in self.ours:
            return self.ours[id(value)]
        if isinstance(value, types.ModuleType):
            return place_of(value.__name__) or NotOffered(value.__name__, why_absent(*_named(value.__name__)))
        if id(value) in self.absent:
            place, name = self.absent[id(value)]
            return NotOffered(f"{place}.{name}", why_absent(name, place.removeprefix("torch").removeprefix(".")))
        if isinstance(value, _DESCRIPTORS) or (
            isinstance(value, types.FunctionType) and value.__qualname__.startswith(("Tensor.", "TensorBase."))
        ):
            return self._method(value)
        made = _MADE.get(f"{type(value).__module__}.{type(value).__qualname__}")
        if made is not None:
            return made(sys.modules[_ROOT], value)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return NotOffered(f"{value.__module__}.{value.__qualname__}")
        return NotOffered(f"an object of the class {type(value).__module__}.{type(value).__qualname__}")

    def _method(self, value: Any) -> Any:
        """``torch.Tensor.relu`` becomes our method of the same name."""
        name = value.__name__
        tensor = sys.modules[_ROOT].Tensor
        return (
            getattr(tensor, name) if hasattr(tensor, name) else NotOffered(f"torch.Tensor.{name}", why_absent(name, "Tensor"))
        )


def _named(module: str) -> tuple[str, str]:
    """The name and the place of a module, as :func:`why_absent` takes them."""
    place, _, name = module.removeprefix("torch.").rpartition(".")
    return name, place


_MADE: dict[str, Callable[[Any, Any], Any]] = {
    "torch.device": lambda tm, it: Device(str(it)),
    "torch.Size": lambda tm, it: tm.Size(it),
    "torch.autograd.grad_mode.no_grad": lambda tm, it: tm.no_grad(),
    "torch.autograd.grad_mode.enable_grad": lambda tm, it: tm.enable_grad(),
    "torch.autograd.grad_mode.inference_mode": lambda tm, it: tm.inference_mode(it.mode),
    "torch.amp.autocast_mode.autocast": lambda tm, it: tm.autocast(
        it.device, dtype=getattr(tm, str(it.fast_dtype).removeprefix("torch.")), enabled=it._enabled
    ),
}
"""Objects that carry a value: the class -> a function of this package and of the object that makes ours."""


class NotOffered:
    """A name of PyTorch's that has no counterpart: the network may have it, and may not use it."""

    def __init__(self, what: str, why: str = "") -> None:
        self.__dict__.update(what=what, why=why)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotOffered(f"{self.what}.{name}", self.why)

    def __instancecheck__(self, value: Any) -> bool:
        return False  # nothing here is an object of a class that is not here

    __subclasscheck__ = __instancecheck__

    def __bool__(self) -> bool:
        return True  # as a function or a class is

    def __repr__(self) -> str:
        return f"<{self.what}, which has no counterpart here>"


def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotOfferedError(
        f"from_torch: the network uses {self.what}, which has no counterpart here"
        + (f" ({self.why})" if self.why else "")
        + "; replace it before the conversion"
    )


_USES = "call enter exit iter next len getitem setitem float int index contains setattr delattr neg invert abs"
_OPERATORS = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
for _name in (*_USES.split(" "), *_OPERATORS, *[f"r{name}" for name in _OPERATORS]):
    setattr(NotOffered, f"__{_name}__", _refuse)
