"""Compressed activations: tensors saved for backward take 16, 8, 4 or 2 bits per element."""

from __future__ import annotations

from typing import Any

from ..autograd.core import apply
from ..autograd.grad_mode import no_grad
from ..autograd.graph import saved_tensors_hooks
from ..autograd.shape import address_of
from ..autograd.tensor import Tensor
from ..devices import Generator
from ..dtypes import float16, is_floating
from ..errors import ArgumentError, is_whole
from ..ops.quantize import Dequantize, Quantize
from .packing import Once, UnpackedTensor, stays


class compressed(saved_tensors_hooks):
    """Inside, activations are saved for backward in fewer bits.

    Args:
        bits: 16 is float16; 8, 4 and 2 are integers that divide the range of each group into equal steps.
        group: how many neighbours share a scale; a multiple of 8, at most 32,768.
        at_least: tensors of fewer elements are not compressed.
        seed: the seed of the random rounding, which has its own generator: the program's generators are not changed.

    Memory:
        ``numel * bits / 8`` bytes instead of 4 per element, and below 16 bits also 8 bytes per group (16 for float64). For
        float32 in 8 bits and groups of 256 this is 3.88 times less. Each tensor is compressed once, however many nodes save it.
        Parameters, leaves that require a gradient, integers, an op's own statistics and small tensors are not compressed.
        Backward decompresses the activations of one node at a time.
    Price:
        A pass over each saved tensor in forward, and one in backward. Gradients are noisy. In 8 to 2 bits each value is right
        on average, with an error below its group's range over ``2**bits - 1``. In 16 bits the error is at most 2**-11 of the
        value, and values above 65,504 become infinite. A value that is not finite makes its whole group nan.
    Do not use when:
        Signs matter more than values: ReLU and similar functions save their result, whose smallest values may round to 0.

    Raises:
        ArgumentError: ``bits`` or ``group`` is none of these.

    Source: Chen et al., *ActNN: reducing training memory footprint via 2-bit activation compressed training*, 2021.

    >>> with compressed(bits=8):
    ...     loss = F.cross_entropy(model(x), y)
    >>> loss.backward()
    """

    def __init__(self, bits: int = 8, group: int = 256, at_least: int = 1024, seed: int = 0) -> None:
        if bits not in (16, 8, 4, 2):
            raise ArgumentError(f"compressed: bits must be 16, 8, 4 or 2, found {bits!r}")
        if not is_whole(group) or group > 1 << 15 or group % 8:
            raise ArgumentError(f"compressed: group must be a multiple of 8 up to 32,768, found {group!r}")
        press = _Press(bits, group, at_least, seed)
        super().__init__(press.pack, press.unpack)


class _Press:
    def __init__(self, bits: int, group: int, at_least: int, seed: int) -> None:
        self.bits, self.group, self.at_least = bits, group, at_least
        self._generator = Generator().manual_seed(seed)
        self._once = Once()

    def pack(self, tensor: Tensor) -> Any:
        array = tensor.array
        own = tensor._storage is None  # an op's buffer, such as the statistics of a norm: it is small, and needs all its digits
        if (
            own
            or not is_floating(array.dtype)
            or array.size < self.at_least
            or array.dtype.itemsize * 8 <= self.bits
            or stays(tensor)
        ):
            return UnpackedTensor(tensor)
        part = address_of(array), array.shape, array.strides
        pressed = self._once.find(tensor, part)
        if pressed is None:
            with no_grad():
                pressed = Pressed(self._press(tensor.detach()))
            pressed.like = array.shape, array.dtype
            self._once.note(tensor, pressed, part)
        return pressed

    def _press(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if self.bits == 16:
            return (tensor.to(float16),)
        return apply(Quantize, tensor, bits=self.bits, group=self.group, ticket=self._generator.ticket())

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, UnpackedTensor):
            return packed.get()
        shape, dtype = packed.like
        with no_grad():
            if self.bits == 16:
                return packed[0].to(dtype)
            return apply(Dequantize, *packed, bits=self.bits, group=self.group, shape=tuple(shape), dtype=dtype)


class Pressed(list):
    """The compressed form of a tensor, with its shape and dtype. Listeners look for tensors in lists, so it is a list."""

    like: tuple
