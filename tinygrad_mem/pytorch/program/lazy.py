"""Parameters and buffers of lazy modules, whose shape a first batch decides: in a prediction they are fake tensors too."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Buffer, Parameter
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from .replacing import Change, handled
from .watch import Watch


class _Waiting(FakeTensor):  # type: ignore[misc]
    """A fake tensor without a shape: what is made of it, such as a copy on another device, has none either."""

    cls_to_become = FakeTensor
    shape = FakeTensor.shape  # fake tensors ask for it

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
        return _as(cls, made) if type(made) is FakeTensor else made

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        kind: Any = UninitializedParameter if isinstance(self, Parameter) else UninitializedBuffer
        return memo.setdefault(id(self), kind(self.requires_grad, self.device, self.dtype))


class _WaitingParameter(_Waiting, UninitializedParameter):  # type: ignore[misc]
    pass


class _WaitingBuffer(_Waiting, UninitializedBuffer):  # type: ignore[misc]
    pass


def _as(kind: type, tensor: Any) -> Any:
    tensor.__class__ = kind
    return tensor


def lazy_modules(watch: Watch) -> list[Change]:
    """Let lazy modules have fake parameters and buffers."""
    return [handled(watch, UninitializedParameter, __new__=_parameter), handled(watch, UninitializedBuffer, __new__=_buffer)]


def _parameter(watch: Watch, own: Any, cls: type, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
    return _as(_WaitingParameter, Parameter(torch.empty(0, device=device, dtype=dtype), requires_grad))


def _buffer(
    watch: Watch,
    own: Any,
    cls: type,
    requires_grad: bool = False,
    device: Any = None,
    dtype: Any = None,
    persistent: bool = True,
) -> Any:
    made = torch.empty(0, device=device, dtype=dtype, requires_grad=requires_grad)
    return _as(_WaitingBuffer, Buffer(made, persistent=persistent))
