"""The head of a model (a linear layer before the cross entropy): how it is found, and computed in chunks without all logits."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ...interrupts import context
from .changing import at_first_call
from .fake import without_modes

Tensor = torch.Tensor
_SHAPED = {Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten}
_MOVED = {
    Tensor.__getitem__, Tensor.contiguous, Tensor.transpose, torch.transpose, Tensor.permute, torch.permute, Tensor.narrow,
    Tensor.squeeze, Tensor.unsqueeze, Tensor.movedim, torch.movedim,
}  # fmt: skip
_CAST = {Tensor.float, Tensor.to, Tensor.bfloat16, Tensor.half, Tensor.type, Tensor.cuda, Tensor.type_as}
_ASKED = {Tensor.size, Tensor.dim, Tensor.stride, Tensor.numel, Tensor.is_contiguous, Tensor.is_floating_point, Tensor.__len__}


class LossHead(NamedTuple):
    """A linear layer whose results go to the cross entropy.

    Attributes:
        root: class of the model that has it.
        path: of its weight in the model.
        bias: it has one.
        autocast: the dtype in which autocast ran it; ``None`` outside of autocast.
    """

    root: str
    path: str
    bias: bool
    autocast: torch.dtype | None


def _first(table: WeakTensorKeyDictionary, values: Iterable[Any]) -> Any:
    """The entry of a table for the first of these arguments that has one; ``None``: none has."""
    for value in values:
        nested = isinstance(value, (list, tuple))
        found = _first(table, value) if nested else table.get(value) if isinstance(value, Tensor) else None
        if found is not None:
            return found
    return None


class HeadsSeen(TorchFunctionMode):
    """Follows the results of linear layers.

    Attributes:
        others: layer -> the reason why its logits cannot be left out, although its results go to the loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.others: dict[LossHead, str] = {}
        self._heads: dict[LossHead, None] = {}  # in order
        self._paths: dict[int, tuple[str, str]] = {}  # id of a parameter -> class of its model, and its path
        self._made = WeakTensorKeyDictionary()  # results of linear layers -> their head

    @property
    def found(self) -> list[LossHead]:
        """The heads whose logits are used by the loss alone."""
        return [head for head in self._heads if head not in self.others]

    @property
    def why_none(self) -> str:
        """The reason why there is none."""
        return next((self.others[head] for head in self._heads), "no result of a linear layer goes to F.cross_entropy")

    def module(self, root: nn.Module) -> None:
        """A module that the program calls."""
        for name, parameter in root.named_parameters(remove_duplicate=False):
            self._paths[id(parameter)] = type(root).__name__, name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        head = _first(self._made, (*args, *kwargs.values()))
        made = func(*args, **kwargs)
        if func is F.linear and len(args) > 1 and id(args[1]) in self._paths:
            bias = args[2] if len(args) > 2 else kwargs.get("bias")
            self._made[made] = LossHead(*self._paths[id(args[1])], bias is not None, _autocast(args[0]))
        if head is None or func in _ASKED or func.__name__ == "__get__":
            return made
        if func is F.cross_entropy:
            self._loss(head, _given(*args, **kwargs))
        elif func in _SHAPED | _MOVED | _CAST and isinstance(made, Tensor):
            self._made[made] = head
        else:
            self.others.setdefault(head, f"the logits are used by {func.__name__} too")
        return made

    def _loss(self, head: LossHead, given: dict[str, Any]) -> None:
        self._heads[head] = None
        if given["label_smoothing"] or given["target"].is_floating_point():
            self.others[head] = "the loss has label smoothing, or probabilities as targets"


class _Logits(NamedTuple):
    """Logits that are not made.

    Attributes:
        hidden: what the head was called with, moved and sliced as the program did with the logits.
        like: a tensor without memory that has the logits' shape and layout.
        bias: of the head.
    """

    hidden: Tensor
    like: Tensor
    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype | None


class LossInChunks(TorchFunctionMode):
    """Skips heads: their results are stand-ins without memory, and the loss becomes ``F.linear_cross_entropy``.

    Args:
        heads: the layers.
    """

    def __init__(self, heads: list[LossHead]) -> None:
        super().__init__()
        self._heads = heads
        self._weights: set[int] = set()  # ids of the heads' weights
        self._logits = WeakTensorKeyDictionary()  # stand-ins -> _Logits

    @context
    def running(self) -> Iterator[None]:
        """Inside, the program runs with this change."""
        with at_first_call(self._find), self:
            yield

    def _find(self, root: nn.Module) -> None:
        parameters = dict(root.named_parameters(remove_duplicate=False))
        paths = [head.path for head in self._heads if head.root == type(root).__name__]
        self._weights |= {id(parameters[path]) for path in paths if path in parameters}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and len(args) > 1 and id(args[1]) in self._weights:
            return self._head(*args, **kwargs)
        logits = _first(self._logits, (*args, *kwargs.values()))
        if logits is None or func in _ASKED or func.__name__ == "__get__":
            return func(*args, **kwargs)
        if func is F.cross_entropy:
            return _loss(logits, _given(*args, **kwargs))
        if func in _CAST:
            return args[0]
        if func not in _SHAPED | _MOVED:
            raise RuntimeError(f"the logits are used by {func.__name__}")
        return self._moved(logits, func, args[1:], kwargs)

    def _head(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        with without_modes():
            like = torch.empty(*input.shape[:-1], len(weight), device="meta")
        return self._stand_in(_Logits(input, like, weight, bias, _autocast(input)))

    def _stand_in(self, logits: _Logits) -> Tensor:
        shape = logits.like.shape
        made = logits.hidden.detach().as_strided(shape, (0,) * len(shape))
        self._logits[made] = logits
        return made

    def _moved(self, logits: _Logits, func: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """The stand-in after a function that changes its shape; the head's input is changed in the same way."""
        with without_modes():
            like = func(logits.like, *args, **kwargs)
        hidden = logits.hidden
        if func in _MOVED:
            hidden = func(hidden, *args, **kwargs)
        elif like.shape[-1:] == logits.like.shape[-1:]:
            hidden = hidden.reshape(*like.shape[:-1], hidden.shape[-1])
        classes, features = logits.weight.shape
        if classes not in like.shape or hidden.numel() * classes != like.numel() * features:
            raise RuntimeError(f"{func.__name__} cuts the logits by classes")
        return self._stand_in(logits._replace(hidden=hidden, like=like))


def _given(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of ``F.cross_entropy`` by name."""
    found = inspect.signature(F.cross_entropy).bind(*args, **kwargs)
    found.apply_defaults()
    return found.arguments


def _loss(logits: _Logits, given: dict[str, Any]) -> Tensor:
    """The loss, as it is written with ``F.linear_cross_entropy``."""
    if given["size_average"] is not None or given["reduce"] is not None:
        raise RuntimeError("the loss has size_average or reduce, which are deprecated: give it a reduction")
    target, reduction = given["target"], given["reduction"]
    hidden = logits.hidden if logits.like.dim() < 3 else logits.hidden.movedim(1, -1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "linear_cross_entropy")  # it says so if it makes all logits after all
        made = F.linear_cross_entropy(
            _cast(hidden.flatten(0, -2) if hidden.dim() > 2 else hidden, logits.dtype),
            _cast(logits.weight, logits.dtype),
            target.flatten() if target.dim() else target,
            linear_bias=_cast(logits.bias, logits.dtype),
            reduction=reduction,
            **{name: given[name] for name in ("weight", "ignore_index", "label_smoothing")},
            options=nn.LinearCrossEntropyOptions(),
        )
    return made.reshape(target.shape) if reduction == "none" else made


def _cast(tensor: Any, dtype: torch.dtype | None) -> Any:
    return tensor if tensor is None or dtype is None else tensor.to(dtype)


def _autocast(input: Tensor) -> torch.dtype | None:
    """The dtype in which a linear layer runs now, if autocast decides it."""
    kind = input.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
