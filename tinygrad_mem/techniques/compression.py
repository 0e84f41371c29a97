"""Compressed activations: what is saved for backward is kept in 16, 8, 4 or 2 bits an element."""

from __future__ import annotations

from typing import Any

from ..autograd.core import apply
from ..autograd.grad_mode import no_grad
from ..autograd.graph import saved_tensors_hooks
from ..autograd.shape import address_of
from ..autograd.tensor import Tensor
from ..devices import Generator
from ..dtypes import float16, is_floating
from ..errors import ArgumentError
from ..ops.quantize import Dequantize, Quantize
from .packing import Once, UnpackedTensor, stays


class compressed(saved_tensors_hooks):
    """Inside, activations that are saved for backward are saved in fewer bits.

    Args:
        bits: 16 is float16; 8, 4 and 2 are whole numbers between the smallest and the largest of each group.
        group: neighbours that share a scale; a multiple of 8, at most 32,768.
        at_least: elements below which a tensor stays as it is.
        seed: of the rounding, which draws from a generator of its own: those of the program stand where they stood.

    Memory:
        ``numel * bits / 8`` bytes, and below 16 bits 8 bytes a group (16 of float64), instead of 4 an element: of float32 in
        8 bits and groups of 256 it is 3.88 times less. Each tensor is compressed once, however many nodes save it. Parameters,
        leaves that require a gradient, integers, statistics that an op made for itself and small tensors stay. In backward one
        node's activations at a time are whole again.
    Price:
        A pass over what is saved, and one in backward. Gradients are noisy: in 8 to 2 bits each value is right on average, and
        wrong by less than its group's range over ``2**bits - 1``; in 16 bits by 2**-11 of itself, and above 65,504 infinite.
        What is not finite makes its group nan.
    Do not use when:
        Signs matter more than values: ReLU and its kin save their result, whose smallest values may round to 0.

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
        if isinstance(group, bool) or not isinstance(group, int) or not 0 < group <= 1 << 15 or group % 8:
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
        own = tensor._storage is None  # an op's buffer, such as the statistics of a norm: few, and every digit counts
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
    """The tensors that stand for one, and its shape and dtype; a list, so that listeners find them in it."""

    like: tuple
