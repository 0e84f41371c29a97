"""Modules that hold modules or parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self

from .module import Module, _indent

__all__ = ("ModuleDict", "ModuleList", "Sequential")


def position(index: Any, length: int) -> int:
    """``index`` as a number that is not negative."""
    index = index.__index__()
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of range")
    return index % length


class _Listed(Module):
    """The base of ``Sequential`` and ``ModuleList``: children named 0, 1, 2, ..."""

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            return self._like(list(self._modules.items())[idx])
        return list(self._modules.values())[position(idx, len(self))]

    def _like(self, items: list[tuple[str, Any]]) -> Any:
        return self.__class__(module for _, module in items)  # type: ignore[call-arg]

    def __setitem__(self, idx: int, module: Module) -> None:
        setattr(self, list(self._modules)[position(idx, len(self))], module)

    def __delitem__(self, idx: int | slice) -> None:
        names = list(self._modules)
        for name in names[idx] if isinstance(idx, slice) else [names[position(idx, len(self))]]:
            delattr(self, name)
        self._renumber(list(self._modules.values()))

    def _renumber(self, modules: list) -> None:
        self._modules.clear()
        for i, module in enumerate(modules):
            self._modules[str(i)] = module

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())  # type: ignore[arg-type]

    def append(self, module: Module) -> Self:
        """Add ``module`` at the end."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Add ``module`` before the one at ``index``.

        Raises:
            TypeError: it is not a module.
            IndexError: the index is out of range.
        """
        if not isinstance(module, Module):
            raise TypeError(f"module should be of type: {Module}, found {type(module).__name__}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"Index out of range: {index}")
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add all of ``modules`` at the end. Raises: TypeError: they cannot be iterated."""
        if not isinstance(modules, Iterable):
            raise TypeError(f"{type(self).__name__}.extend should be called with an iterable, but got {type(modules).__name__}")
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, key: int | slice) -> Any:
        """Remove the child at ``key`` and return it."""
        module = self[key]
        del self[key]
        return module

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other)


class Sequential(_Listed):
    """Modules called one after another, each with the result of the one before.

    ``Sequential(a, b)`` or ``Sequential(OrderedDict(first=a, second=b))``.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(args):
                self.add_module(str(i), module)

    def _like(self, items: list[tuple[str, Any]]) -> Sequential:
        return self.__class__(OrderedDict(items))

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        return input

    def __add__(self, other: Any) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(f"add operator supports only objects of Sequential class, but {type(other)} is given.")
        return Sequential(*self, *other)

    def __mul__(self, other: int) -> Sequential:
        if not isinstance(other, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(other)}")
        if other <= 0:
            raise ValueError(f"Non-positive multiplication factor {other} for {type(self)}")
        return Sequential(*(list(self) * other))

    __rmul__ = __mul__


class ModuleList(_Listed):
    """A list whose modules are children. It has no forward."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        """Equal neighbours are shown once, with their count."""
        if not len(self):
            return f"{self._get_name()}()"
        runs: list[list] = []
        for i, text in enumerate(repr(module) for module in self):
            if runs and runs[-1][2] == text:
                runs[-1][1] = i
            else:
                runs.append([i, i, text])
        lines = [
            f"({first}): {text}" if first == last else f"({first}-{last}): {last - first + 1} x {text}"
            for first, last, text in runs
        ]
        return f"{self._get_name()}(\n  " + "\n  ".join(_indent(line) for line in lines) + "\n)"


def pairs(name: str, given: Any) -> list[tuple[str, Any]]:
    """The items of a mapping, or of an iterable of pairs."""
    if isinstance(given, Mapping):
        return list(given.items())
    if not isinstance(given, Iterable):
        raise TypeError(f"{name}.update should be called with an iterable of key/value pairs, but got {type(given).__name__}")
    found = []
    for i, pair in enumerate(given):
        if not isinstance(pair, Iterable):
            raise TypeError(f"{name} update sequence element #{i} should be Iterable; is {type(pair).__name__}")
        pair = tuple(pair)
        if len(pair) != 2:
            raise ValueError(f"{name} update sequence element #{i} has length {len(pair)}; 2 is required")
        found.append(pair)
    return found


class Dict(Module, MutableMapping):
    """The base of dicts of modules and of parameters. Python's mixin derives the other methods from five.

    Dicts are compared by identity, as all modules are.
    """

    __eq__ = object.__eq__

    def __hash__(self) -> int:
        return object.__hash__(self)


class ModuleDict(Dict):
    """A dict whose modules are children, in the order in which they were added. It has no forward."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def update(self, modules: Any) -> None:
        """Add or replace children. Raises: TypeError, ValueError: neither a mapping nor an iterable of pairs."""
        for key, module in pairs("ModuleDict", modules):
            self[key] = module
