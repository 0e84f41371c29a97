"""Lists and dicts of parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from ..autograd.tensor import Tensor
from ..functional import convert
from .containers import Dict, pairs, position
from .module import Module
from .parameter import Parameter

__all__ = ("ParameterDict", "ParameterList")


def _lines(items: Iterable[tuple[Any, Any]], type_of: Callable[[Tensor], Any]) -> str:
    """One line per entry of a list or dict of parameters. As in PyTorch, a list shows dtypes, and a dict shows classes."""
    lines = []
    for name, value in items:
        if isinstance(value, Tensor):
            kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
            sizes = "x".join(str(n) for n in value.shape)
            where = f" ({value.device})" if value.device.type == "cuda" else ""
            lines.append(f"  ({name}): {kind} containing: [{type_of(value)} of size {sizes}{where}]")
        else:
            lines.append(f"  ({name}): Object of type: {type(value).__name__}")
    return "\n".join(lines)


def _as_parameter(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


class ParameterList(Module):
    """A list of parameters. A plain tensor becomes a parameter; other values stay as they are."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            return self.__class__(self[i] for i in range(*idx.indices(len(self))))
        return getattr(self, str(position(idx, len(self))))

    def __setitem__(self, idx: int, param: Any) -> None:
        setattr(self, str(position(idx, len(self))), _as_parameter(param))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __iadd__(self, parameters: Iterable[Any]) -> Self:
        return self.extend(parameters)

    def append(self, value: Any) -> Self:
        """Add one value at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add several values at the end. Raises: TypeError: a single tensor, or an object that cannot be iterated."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}")
        for value in list(values):
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return _lines(enumerate(self), lambda t: t.dtype)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(Dict):
    """A dict of parameters. A plain tensor becomes a parameter; other values stay as they are."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"ParameterDict keys are strings, found {key!r} of type {type(key).__name__}")
        if key not in self._keys and hasattr(self, key):
            raise KeyError(f"attribute '{key}' already exists; choose another key")
        self._keys[key] = None
        setattr(self, key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def copy(self) -> ParameterDict:
        """A new dict of the same parameters."""
        return ParameterDict(list(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value at ``key``; if there is none, ``default``, which is added."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, parameters: Any) -> None:
        """Add or replace values; as in PyTorch, those of a plain mapping in the order of their sorted names.

        Raises:
            TypeError, ValueError: neither a mapping nor an iterable of pairs.
        """
        found = pairs("ParameterDict", parameters)
        if isinstance(parameters, Mapping) and not isinstance(parameters, (OrderedDict, ParameterDict)):
            found.sort(key=lambda pair: pair[0])
        for key, value in found:
            self[key] = value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last value, and return it with its name. Raises: KeyError: the dict is empty."""
        for key in reversed(self):
            return key, self.pop(key)
        raise KeyError("popitem(): the ParameterDict is empty")

    def extra_repr(self) -> str:
        return _lines(self.items(), lambda t: convert.type(t).rpartition(".")[2])

    def __or__(self, other: ParameterDict) -> ParameterDict:
        joined = self.copy()
        joined.update(other)
        return joined

    def __ior__(self, other: ParameterDict) -> Self:
        self.update(other)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterDict should not be called.")
