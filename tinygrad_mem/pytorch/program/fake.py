"""Fake tensors on a GPU that is not there, also with a build of PyTorch that has no CUDA.

C++ must not see the GPU: such a build crashes when autograd asks for the GPU's stream. So C++ sees tensors of the GPU on
``meta``, and what it creates on ``meta`` is created on the GPU. Python sees the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from ...interrupts import context

_functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
META = torch.device("meta")
DEVICE = torch.ops.prim.device.default  # C++ asks a tensor for its device


def seen_by_cpp(tensor: FakeTensor) -> torch.device:
    """The device of a tensor, as C++ may see it."""
    return META if tensor.fake_device.type == "cuda" else tensor.fake_device


class Uncompiled:
    """A mode while which nothing is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class GpuTensorMode(Uncompiled, FakeTensorMode):
    """A ``FakeTensorMode`` whose tensors may be on a GPU that is not there.

    Args:
        gpu: the device on which tensors are made that C++ makes on ``meta``.
    """

    def __init__(self, gpu: torch.device) -> None:
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)  # nothing is computed
        self._gpu = gpu
        self.cache_enabled = False  # PyTorch's cache is slow to fill: :class:`.shapes.Results` remembers what comes again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE:
            return seen_by_cpp(args[0])
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == META:
            kwargs["device"] = self._gpu
        return super().__torch_dispatch__(func, types, args, kwargs)


@context
def without_modes() -> Iterator[None]:
    """Inside, calls run on real tensors, and no mode of the prediction sees them."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def unwrapped(value: Any) -> Any:
    """The tensor that ``torch.func`` has wrapped, on whatever level; anything else as it is."""
    while type(value) is torch.Tensor and _functorch.is_functorch_wrapped_tensor(value):
        value = _functorch.get_unwrapped(value)
    return value


def on_gpu(value: Any) -> bool:
    """True for a tensor of the GPU, or the GPU itself."""
    place = value.fake_device if isinstance(value, FakeTensor) else value
    return isinstance(place, torch.device) and place.type != "cpu"


def fake_tensors(values: Any) -> list[FakeTensor]:
    """The tensors of a prediction in nested lists."""
    return [value for value in flat(values) if isinstance(value, FakeTensor)]


def flat(values: Any) -> list[Any]:
    """The leaves of nested lists."""
    if isinstance(values, (list, tuple)):
        return [leaf for value in values for leaf in (flat(value) if isinstance(value, (list, tuple)) else (value,))]
    return [values]
