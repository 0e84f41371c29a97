"""A user's Python code with other imports: functions, classes and objects that reach PyTorch are copied, and reach ours.

A copy is made when it is first needed, and is the only one of its original. What belongs to Python, NumPy or a compiled library
stays as it is.
"""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import importlib
import sys
import types
from typing import Any

from .torch_names import Names, NotOffered, is_torchs

_OURS = __name__.partition(".")[0]
_KEPT = {*sys.stdlib_module_names, "builtins", "numpy", "ml_dtypes", _OURS}
"""Packages that know nothing of PyTorch."""
_PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), type(...), type(NotImplemented))
_OF_A_CLASS = ("__dict__", "__weakref__", "__annotations__", "__module__", "__qualname__", "__doc__", "__slots__", "_abc_impl")
_OF_A_CLASS += ("__init_subclass__", "__annotate__", "__annotate_func__", "__orig_bases__")

_OF_PYTHON = {"__dict__", "__slots__", "__module__"}  # a class that is written in Python has one of these


def _is_kept(module: Any) -> bool:
    return not isinstance(module, str) or module.partition(".")[0] in _KEPT


class Code:
    """Copies of a user's code, over ``names``. :meth:`tensor` and :meth:`module` of a subclass convert PyTorch's tensors."""

    def __init__(self, names: Names) -> None:
        self.known = names
        self.made: dict[int, Any] = {}
        self.originals: list[Any] = []  # alive, so that no id in ``made`` is of another object
        self.globals: dict[int, _Globals] = {}

    def tensor(self, tensor: Any) -> Any:
        """Our tensor for PyTorch's."""
        raise NotImplementedError

    def module(self, module: Any) -> Any:
        """Our module for PyTorch's, or for one of a user's class."""
        raise NotImplementedError

    def note(self, original: Any, copy: Any) -> Any:
        """Record that ``copy`` replaces ``original``, and return it."""
        self.made[id(original)] = copy
        self.originals.append(original)
        return copy

    # --- values -----------------------------------------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """The value with all that is PyTorch's in it replaced; itself, where nothing is."""
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return value
        if id(value) in self.made:
            return self.made[id(value)]
        torch = self.known.torch
        if isinstance(value, torch.nn.Module):
            return self.module(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if self.known.knows(value):
            return self.known.of(value)
        if isinstance(value, type):
            return self.class_of(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if is_torchs(value):
            return self.known.of(value)
        made = next((make for kind, make in _MAKERS.items() if type(value) is kind), None)
        return self._object(value) if made is None else made(self, value)

    def _module(self, module: types.ModuleType) -> Any:
        if is_torchs(module):
            return self.known.of(module)
        return module if _is_kept(module.__name__) else self.note(module, _Module(module, self))

    def _object(self, value: Any) -> Any:
        """A copy of an object of a user's class."""
        kind = type(value)
        ours = self.class_of(kind)
        if ours is kind:
            return value
        if isinstance(ours, NotOffered):
            return ours
        base: Any = next((base for base in (dict, list, tuple, set, frozenset) if issubclass(kind, base)), object)
        if base in (tuple, frozenset):
            copy = self.note(value, base.__new__(ours, [self.value(part) for part in value]))
        else:
            try:
                copy = self.note(value, base.__new__(ours))
            except TypeError:  # made in C
                return self.note(value, NotOffered(f"an object of the class {kind.__qualname__}, which is written in C"))
            if base is dict:
                dict.update(copy, {self.value(key): self.value(each) for key, each in dict.items(value)})
            elif base is not object:
                getattr(base, "extend" if base is list else "update")(copy, [self.value(part) for part in base.__iter__(value)])
        for name, each in vars(value).items() if hasattr(value, "__dict__") else ():
            copy.__dict__[name] = self.value(each)
        for name in _slots(kind):
            if hasattr(value, name):
                object.__setattr__(copy, name, self.value(getattr(value, name)))
        return copy

    # --- functions --------------------------------------------------------------------------------------------------------

    def function(self, function: types.FunctionType) -> Any:
        """The same code over names of which those that come from PyTorch are ours."""
        if id(function) in self.made:
            return self.made[id(function)]
        if self.known.knows(function):
            return self.known.of(function)
        if is_torchs(function):
            return self.note(function, self._decorated(function))
        if _is_kept(function.__globals__.get("__name__")) and not function.__closure__:
            return function
        theirs = function.__globals__
        if id(theirs) not in self.globals:
            self.globals[id(theirs)] = _Globals(theirs, self)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        copy = types.FunctionType(function.__code__, self.globals[id(theirs)], function.__name__, None, cells or None)
        self.note(function, copy)  # before its names are looked at: one of them may be itself
        for mine, cell in zip(cells, function.__closure__ or (), strict=True):
            try:
                mine.cell_contents = self.value(cell.cell_contents)
            except ValueError:  # nothing is in it yet
                continue
        copy.__defaults__ = None if function.__defaults__ is None else tuple(map(self.value, function.__defaults__))
        if function.__kwdefaults__ is not None:
            copy.__kwdefaults__ = {name: self.value(each) for name, each in function.__kwdefaults__.items()}
        copy.__dict__.update({name: self.value(each) for name, each in vars(function).items()})
        copy.__qualname__, copy.__module__, copy.__doc__ = function.__qualname__, function.__module__, function.__doc__
        return copy

    def _decorated(self, function: types.FunctionType) -> Any:
        """Our form of what a decorator of PyTorch's made of a user's function."""
        inside = {
            name: cell.cell_contents
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        }
        place, user = function.__globals__.get("__name__", ""), inside.get("func", getattr(function, "__wrapped__", None))
        context = inside.get("autocast_instance", getattr(inside.get("ctx_factory"), "__self__", None))
        if user is not None and context is not None:
            ours = self.known.of(context)
            return ours if isinstance(ours, NotOffered) else ours(self.value(user))
        if user is not None and place.startswith(("torch._dynamo", "torch._compile", "torch.compiler")):
            return self.value(user)  # operations run as they are written
        return NotOffered(f"{function.__module__}.{function.__qualname__}" + (f", decorated by {place}" if user else ""))

    # --- classes ----------------------------------------------------------------------------------------------------------

    def class_of(self, kind: type) -> Any:
        """The user's class with other imports; another class as it is here."""
        if id(kind) in self.made:
            return self.made[id(kind)]
        if self.known.knows(kind) or is_torchs(kind):
            return self.known.of(kind)
        if _is_kept(kind.__module__) or issubclass(kind, (enum.Enum, BaseException)) or not vars(kind).keys() & _OF_PYTHON:
            return kind
        bases = tuple(self.class_of(base) for base in kind.__bases__)
        for theirs, ours in zip(kind.__bases__, bases, strict=True):
            if isinstance(ours, NotOffered):
                what = ours.what if not is_torchs(theirs) else f"{theirs.__name__} of PyTorch's"
                return self.note(kind, NotOffered(f"{kind.__qualname__}, a {what}"))
        body = dict(vars(kind))
        meta = type(kind)
        keywords = {} if meta is type or is_torchs(meta) else {"metaclass": meta}
        first = {name: body[name] for name in ("__orig_bases__", "__slots__") if name in body}
        copy = self.note(kind, types.new_class(kind.__name__, bases, keywords, lambda space: space.update(first)))
        for name, value in body.items():
            if name not in _OF_A_CLASS and not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                ours = self.value(value)
                binds = isinstance(ours, types.FunctionType) and not hasattr(value, "__get__")
                # a function of C takes no self; ours in Python would
                setattr(copy, name, staticmethod(ours) if binds else ours)
        copy.__module__, copy.__qualname__, copy.__doc__ = kind.__module__, kind.__qualname__, kind.__doc__
        return copy


def _slots(kind: type) -> list[str]:
    return [
        name for each in kind.__mro__ for name, value in vars(each).items() if isinstance(value, types.MemberDescriptorType)
    ]


def _list(code: Code, value: list) -> list:
    copy = code.note(value, [])
    copy += map(code.value, value)
    return copy


def _dict(code: Code, value: Any) -> Any:
    copy = code.note(value, type(value)())
    if isinstance(value, collections.defaultdict):
        copy.default_factory = code.value(value.default_factory)
    for key, each in value.items():
        copy[code.value(key)] = code.value(each)
    return copy


def _cached(code: Code, value: functools.cached_property) -> Any:
    copy = functools.cached_property(code.value(value.func))
    copy.attrname = value.attrname
    return copy


def _bound(code: Code, value: types.MethodType) -> Any:
    owner = code.value(value.__self__)
    if isinstance(owner, NotOffered) or is_torchs(value.__func__):
        return _method(owner, value)
    return types.MethodType(code.value(value.__func__), owner)


def _builtin(code: Code, value: Any) -> Any:
    """A method of an object made in C, such as a list's or a tensor's."""
    owner = code.value(value.__self__)
    return value if owner is value.__self__ else _method(owner, value)


def _method(owner: Any, theirs: Any) -> Any:
    """The method of ``owner`` that has the name of PyTorch's."""
    kind = type(theirs.__self__)
    return getattr(owner, theirs.__name__, None) or NotOffered(f"{kind.__module__}.{kind.__qualname__}.{theirs.__name__}")


_MAKERS: dict[type, Any] = {
    list: _list,
    dict: _dict,
    collections.OrderedDict: _dict,
    collections.defaultdict: _dict,
    tuple: lambda code, it: tuple(map(code.value, it)),
    set: lambda code, it: set(map(code.value, it)),
    frozenset: lambda code, it: frozenset(map(code.value, it)),
    collections.deque: lambda code, it: collections.deque(map(code.value, it), it.maxlen),
    types.SimpleNamespace: lambda code, it: types.SimpleNamespace(**{k: code.value(v) for k, v in vars(it).items()}),
    types.MappingProxyType: lambda code, it: types.MappingProxyType(_dict(code, dict(it))),
    types.MethodType: _bound,
    types.BuiltinMethodType: _builtin,
    staticmethod: lambda code, it: staticmethod(code.value(it.__func__)),
    classmethod: lambda code, it: classmethod(code.value(it.__func__)),
    property: lambda code, it: property(code.value(it.fget), code.value(it.fset), code.value(it.fdel), it.__doc__),
    functools.cached_property: _cached,
    functools.partial: lambda code, it: functools.partial(
        code.value(it.func), *map(code.value, it.args), **{k: code.value(v) for k, v in it.keywords.items()}
    ),
    functools.partialmethod: lambda code, it: functools.partialmethod(
        code.value(it.func), *map(code.value, it.args), **{k: code.value(v) for k, v in it.keywords.items()}
    ),
    type(functools.lru_cache(len)): lambda code, it: code.note(
        it, functools.lru_cache(**it.cache_parameters())(code.value(it.__wrapped__))
    ),
}
"""Types of Python's that hold other values -> how one is made again."""


class _Globals(dict):
    """The names of a user's module: each is replaced when it is asked for."""

    def __init__(self, theirs: dict[str, Any], code: Code) -> None:
        super().__init__(__builtins__=_builtins_of(code))
        self.theirs, self.code = theirs, code
        self.update({name: theirs[name] for name in ("__name__", "__package__", "__spec__", "__file__") if name in theirs})

    def __missing__(self, name: str) -> Any:
        theirs = self.theirs[name]
        ours = self.code.value(theirs)
        if ours is not theirs:
            self[name] = ours  # what stays as it is may still be changed there
        return ours


class _Module(types.ModuleType):
    """A user's module, of which each name is replaced when it is asked for."""

    def __init__(self, theirs: types.ModuleType, code: Code) -> None:
        super().__init__(theirs.__name__, theirs.__doc__)
        self.__dict__.update(_theirs=theirs, _code=code)

    def __getattr__(self, name: str) -> Any:
        return self._code.value(getattr(self._theirs, name))


def _builtins_of(code: Code) -> dict[str, Any]:
    """Python's own names, with an import that brings ours."""

    def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        theirs = globals.theirs if isinstance(globals, _Globals) else globals
        return code.value(builtins.__import__(name, theirs, locals, fromlist, level))

    def import_module(name: str, package: str | None = None) -> Any:
        return code.value(importlib.import_module(name, package))

    code.note(importlib.import_module, import_module)
    code.note(builtins.__import__, imported)
    return {**vars(builtins), "__import__": imported}
