"""Unknown numbers of a PyTorch program: the rule of :mod:`tinygrad_mem.autograd.unknown`, and what PyTorch does with them.

Where PyTorch's C++ finds such a number among its arguments, it calls ``__torch_function__``, also inside of its own Python
functions. So a size is refused wherever it is used, and all else is a value.
"""

from __future__ import annotations

import sys
from types import FrameType, FunctionType
from typing import Any, NoReturn

import torch

from ...autograd.unknown import INDEX, Unknown, stated
from ...errors import DataDependenceError
from .fake import flat, without_modes
from .watch import Watch

Tensor = torch.Tensor
SIZE = (
    "a size or an index is a number that is read from a tensor, which is not known in a prediction. Give it a fixed number, "
    "such as the longest length"
)
NUMBER = (
    "a plain number is needed, and this one is read from a tensor: it is not known in a prediction. Give it a fixed number, or "
    "leave it out of what is predicted"
)
_OF_LENGTH = ("arange", "range", "upsample_", "_upsample_")
"""How names of functions begin whose results are as long as numbers say that need not be whole."""
_SIZES = "torch/nn/functional.py", "torch/nn/modules/upsampling.py"
"""Files in which ``float(x)`` leads to a size."""
_VALUES = "torch/optim/lr_scheduler.py", "torch/nn/utils/clip_grad.py", "torch/utils/tensorboard/summary.py"
"""Files in which ``float(x)`` leads to a value, or to a branch on which no memory depends."""


_tried: set[tuple] = set()  # calls whose unknown numbers are values


class UnknownNumber(Unknown):
    """One element of a tensor of a prediction.

    Args:
        stated: as of :class:`Unknown`.
        watch: the prediction.
    """

    __slots__ = ("_watch",)

    def __init__(self, stated: Any, watch: Watch) -> None:
        super().__init__(stated)
        self._watch = watch

    def another(self, stated: Any) -> Unknown:
        return UnknownNumber(stated, self._watch)

    def item(self) -> Unknown:
        """As of NumPy's numbers."""
        return self

    def say(self, text: str, frame: FrameType) -> None:
        self._watch.note(f"{self._watch.places.line()}: {text}")

    def plain(self, frame: FrameType) -> Any:
        path = frame.f_code.co_filename.replace("\\", "/")
        if path.endswith(_SIZES):
            _refuse(frame.f_code.co_name)
        return self.stated if path.endswith(_VALUES) else super().plain(frame)

    def __index__(self) -> NoReturn:
        frame = sys._getframe(1)
        self._watch.sized = frame.f_code, frame.f_lasti
        self.refuse(INDEX)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of PyTorch's: a value is 1, and the result has no known values."""
        kwargs, name = kwargs or {}, getattr(function, "__name__", str(function))
        number = next(each for each in flat((*args, *kwargs.values())) if isinstance(each, UnknownNumber))
        scalar: Any = torch.scalar_tensor
        if function is torch.broadcast_tensors:  # of torch.distributions, which takes all with a __torch_function__ for tensors
            return function(*[scalar(each) if isinstance(each, Unknown) else each for each in args])
        if name.startswith(_OF_LENGTH) or (isinstance(function, FunctionType) and function.__module__ != "torch._tensor"):
            _refuse(name)
        try:
            _check_values(function, args, kwargs)
            made = function(*stated(args), **{key: stated(each) for key, each in kwargs.items()})
        except (TypeError, IndexError) as error:
            raise DataDependenceError(f"{name}: {SIZE}") from error
        number.forget(args[0] if made is None else made)
        return made

    def forget(self, made: Any) -> None:
        """Note that results have no known values."""
        for each in flat(made):
            self._watch.numbers.written(each)


def _refuse(name: str) -> NoReturn:
    raise DataDependenceError(f"{name}: {SIZE}")


def _kind(value: Any) -> Any:
    """The part of an argument by which PyTorch decides if an unknown number may stand there: types, and which tensors are
    numbers. There are as many as the program has kinds of calls, whatever its sizes."""
    if isinstance(value, Unknown):
        return Unknown, type(value.stated)
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunction():
            return value.dtype, value.dim() == 0, value.requires_grad
    return (type(value), *dict.fromkeys(map(_kind, value))) if type(value) in (list, tuple) else type(value)


def _check_values(function: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise PyTorch's ``TypeError`` if it takes an unknown number for a size, an axis or a switch: a fraction is none.

    It is tried once for each kind of call: on ``meta``, with a fraction for each unknown number.
    """
    key = function, tuple(map(_kind, args)), tuple((name, _kind(each)) for name, each in kwargs.items())
    if key in _tried:
        return

    def tried(value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)([tried(each) for each in value])
        if isinstance(value, Tensor):
            with torch._C.DisableTorchFunction():
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return 0.5 if isinstance(value, Unknown) else value

    if any(isinstance(each, Tensor) for each in flat((*args, *kwargs.values()))):
        kwargs = {name: each for name, each in kwargs.items() if name != "device"}
    else:
        kwargs = {**kwargs, "device": "meta"}
    with without_modes(), torch.no_grad():
        try:
            function(*tried(args), **{name: tried(each) for name, each in kwargs.items()})
            _tried.add(key)
        except (RuntimeError, ValueError) as error:
            if "Expected a value of type" in str(error):  # of torch.ops
                raise TypeError(str(error)) from error
