"""PyTorch's tables, and what stands in them said in our names."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import sys
import types
import unittest
from typing import Any
from unittest import mock

import numpy as np
import torch

import tinygrad_mem as tm

expecttest: Any = types.ModuleType("expecttest")  # a package of which the tables need the names of two things
expecttest.TestCase, expecttest.assert_expected_inline = unittest.TestCase, None
with mock.patch.object(torch.backends, "disable_global_flags"):  # it would hold for all tests
    lent = sys.modules.setdefault("expecttest", expecttest)
    from torch.testing._internal import common_methods_invocations as tables
    from torch.testing._internal import common_modules as module_tables  # noqa: F401 (tests of modules take it from here)
    from torch.testing._internal import common_optimizers as optimizer_tables  # noqa: F401
    from torch.testing._internal.common_device_type import toleranceOverride as toleranceOverride
if lent is expecttest:
    del sys.modules["expecttest"]


class NotOursError(Exception):
    """Something of PyTorch's that has no name here."""


class Said:
    """PyTorch's values as ours. A tensor that stands in two places is one tensor in both.

    Attributes:
        tensors: pairs of PyTorch's tensor and ours, in the order of their making.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._made: dict[int, tuple[torch.Tensor, tm.Tensor]] = {}

    @property
    def tensors(self) -> list[tuple[torch.Tensor, tm.Tensor]]:
        return list(self._made.values())

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._made:
                self._made[id(value)] = value, self._tensor(value)
            return self._made[id(value)][1]
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return named(tm, str(value).removeprefix("torch."))
        if isinstance(value, torch.device) or value == "cpu":
            return self.device
        if isinstance(value, torch.Size):
            return tm.Size(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self, value))
        if isinstance(value, dict):
            return {key: self(each) for key, each in value.items()}
        if isinstance(value, slice):
            return slice(self(value.start), self(value.stop), self(value.step))
        if isinstance(value, complex):
            raise NotOursError("complex numbers")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return named(tm.nn, type(value).__name__)(
                **{field.name: self(getattr(value, field.name)) for field in dataclasses.fields(value)}
            )
        if isinstance(value, torch.nn.Module) or type(value).__module__.startswith("torch."):
            return tm.from_torch(value) if isinstance(value, torch.nn.Module) else our(value)
        return our(value) if callable(value) else value

    def _tensor(self, t: torch.Tensor) -> tm.Tensor:
        """The same values in the same layout: what lies between the elements of a view is the same too."""
        if t.layout is not torch.strided or t.is_quantized:
            raise NotOursError(str(t.layout))
        named(tm, str(t.dtype).removeprefix("torch."))
        whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())  # type: ignore[call-overload]
        made = tm.tensor(whole.numpy(), device=self.device)
        made = made.as_strided(tuple(t.shape), t.stride(), t.storage_offset()).detach()
        return made.requires_grad_() if t.requires_grad else made


def named(place: Any, name: str) -> Any:
    """What stands under a dotted name of ours.

    Raises:
        NotOursError: nothing does.
    """
    for part in name.split("."):
        try:
            place = getattr(place, part)
        except AttributeError:
            raise NotOursError(name) from None
    return place


@functools.cache
def _names() -> dict[int, str]:
    """Where PyTorch's functions stand, by identity."""
    spaces = {"Tensor.": torch.Tensor, "nn.functional.": torch.nn.functional, "linalg.": torch.linalg, "": torch}
    return {id(value): place + name for place, space in spaces.items() for name, value in vars(space).items()}


def _seeded(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What the tables' function of this purpose does."""
    tm.manual_seed(42)
    return function(*args, **kwargs)


def our(function: Any) -> Any:
    """Our function for one of PyTorch's; a lambda over PyTorch's names is the same lambda over ours.

    Raises:
        NotOursError: it is not offered.
    """
    if isinstance(function, functools.partial):
        said = Said()
        return functools.partial(our(function.func), *said(function.args), **said(function.keywords))
    name = getattr(function, "__name__", "")
    if getattr(operator, name, None) is function or (isinstance(function, type) and function.__module__ == "builtins"):
        return function
    known = _names().get(id(function))
    if known is not None:
        return named(tm, known)
    if inspect.isfunction(function) and function.__module__ == tables.__name__:
        space = function.__globals__ | {"torch": tm, "np": np, "wrapper_set_seed": _seeded}
        cells = [types.CellType(our(v) if inspect.isroutine(v := c.cell_contents) else v) for c in function.__closure__ or ()]
        made = types.FunctionType(function.__code__, space, name, function.__defaults__, tuple(cells) or None)
        made.__kwdefaults__ = function.__kwdefaults__
        return made
    if name and getattr(torch.Tensor, name, None) == function:
        return named(tm.Tensor, name)
    raise NotOursError(name or repr(function))
