"""The numbers of a program that are known without data: counters, scales, and what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ...errors import DataDependenceError
from .dispatcher import operators
from .fake import flat, on_gpu, without_modes

aten = torch.ops.aten
_MEMORY = ("empty", "resize", "set_", "as_strided", "pin_memory")
"""Parts of names of ops whose results depend on more than their arguments' values: on contents of memory, or on strides."""
_DRAWN = (
    "random numbers of the host were drawn once more: if the program decides by one, such as whether a layer or a batch is "
    "left out, another run may decide otherwise"
)
RealCall = tuple[list[Any], dict[str, Any]]  # arguments
_MOST = 1 << 16  # elements of a tensor whose values are followed: masks, positions, schedules, lengths
_MOST_CHOSEN = 1 << 22  # of a tensor from which a mask chooses
_LIKE = {*operators("zeros_like ones_like full_like new_zeros new_ones new_full")}  # they ask an argument for its shape alone
_NOT_WHOLE = {*operators("index.Tensor _ctc_loss _ctc_loss.Tensor")}
"""Ops that are not run with known values: masks in an index are places by now; CTC's backward takes the longest lengths."""
_ORDERED = {torch.float16, torch.float32, torch.float64, torch.int32, torch.int64}


class KnownNumbers:
    """Follows small tensors whose values do not depend on data: ``step += 1``, ``torch.linspace(0, 1, 12)``, masks of ones.

    Beside a GPU it draws single random numbers of the host, and whole ones: programs choose by one what they read or leave
    out. What depends on several of them, such as the longest length, is not known.

    Args:
        notes: of the prediction of a GPU, which say if the program reads what was drawn; ``None``: the host itself is
            predicted, and nothing is drawn.
    """

    def __init__(self, notes: list[str] | None) -> None:
        self._notes = notes
        self._drawn: set[int] = set()  # storages whose elements depend on one random number each, by the same address
        self._finite: dict[int, bool] = {}  # answers to whether unknown values are finite, or nan, by the same address
        self._values: dict[int, torch.Tensor] = {}  # by the storage's address in C++: its elements in order

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A real tensor on the CPU with the value of ``tensor``, which the program reads; ``None`` if it is not known."""
        self._say_if_drawn([tensor])
        return self._value(tensor)

    def _count_drawn(self, values: Sequence[Any]) -> int:
        """The most random numbers on which one of the values depends."""
        if not self._drawn:
            return 0
        tensors = [each for each in values if isinstance(each, FakeTensor)]
        return max([each.numel() for each in tensors if each.untyped_storage()._cdata in self._drawn], default=0)

    def _say_if_drawn(self, values: Sequence[Any]) -> None:
        if self._count_drawn(values) and self._notes is not None and _DRAWN not in self._notes:
            self._notes.append(_DRAWN)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """As :meth:`value`, for what is computed from it."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        found = self._values.get(tensor.untyped_storage()._cdata)
        if found is None or found.dtype != tensor.dtype:
            return tensor.constant
        if tensor.numel() != 1 or found.numel() != 1:
            return _seen_as(found, tensor)
        with without_modes():
            return found.reshape(tensor.shape)

    def number(self, tensor: torch.Tensor) -> Any:
        """The number that an op reads from ``tensor``: one on the host, where C++ wants a plain one.

        Raises:
            DataDependenceError: it is not known.
        """
        known = self.value(tensor)
        if known is None:
            raise DataDependenceError(
                "a tensor is used as a plain number, such as a size, a bound or a scale, and its value is not known in a "
                "prediction. Give it a fixed number"
            )
        with without_modes():
            return known.item()

    def set(self, tensor: FakeTensor, real: torch.Tensor) -> None:
        """Note that ``tensor`` has the values of ``real``, if they are few.

        NumPy may write to its memory, which is read when the program asks. Its numbers are followed if they are in order, as
        those of a schedule are: others may be random, and another run has others.
        """
        if real.device.type != "cpu" or real.numel() > _MOST:
            return
        with _disable_current_modes(), torch.no_grad():
            if not _is_numpys(real):
                self._note(tensor, real.clone())
            elif real.is_contiguous() and _in_order(real):
                self._values[tensor.untyped_storage()._cdata] = real.reshape(-1)

    def asked_if_finite(self, mask: FakeTensor, answer: bool) -> None:
        """Note that ``mask`` says of unknown values whether they are finite, or nan: if the program asks, ``answer``."""
        self._finite[mask.untyped_storage()._cdata] = answer

    def finite(self, mask: Any) -> bool | None:
        """The answer of a mask of :meth:`asked_if_finite`."""
        return self._finite.get(mask.untyped_storage()._cdata) if isinstance(mask, FakeTensor) else None

    def forget(self, storage: int) -> None:
        """Drop the values of the storage at this address, which has ended."""
        self._values.pop(storage, None)
        self._drawn.discard(storage)
        self._finite.pop(storage, None)

    def written(self, tensor: Any) -> None:
        """Mark the values of a written tensor as unknown: random numbers, or results that are not computed here."""
        if isinstance(tensor, FakeTensor):
            self.forget(tensor.untyped_storage()._cdata)
            tensor.constant = None

    def before(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> RealCall | None:
        """The call with real arguments, if all values that it reads are known; called before the op, which may write to one."""
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if not tensors and args and isinstance(args[0], (list, tuple)):  # as in torch.cat
            tensors = [each for each in args[0] if isinstance(each, torch.Tensor)]
        if tensors and self._is_known(tensors[0]):  # most calls end here
            return self._real_call(func, args, kwargs)
        return None

    def whole(self, func: Any, args: tuple, call: RealCall | None) -> RealCall | None:
        """A real call that has a result of the same size: ``call``, or one that chooses by a known mask.

        ``None`` too if several random numbers decide the size.
        """
        if self._count_drawn(args) > 1:
            return None
        self._say_if_drawn(args)
        if func in _NOT_WHOLE:
            return None
        if call is not None or func is not aten.masked_select.default:
            return call
        mask = self._value(args[1])
        if mask is None or args[0].numel() > _MOST_CHOSEN:
            return None
        with without_modes():
            return [torch.zeros(args[0].shape, dtype=args[0].dtype), mask.reshape(args[1].shape)], {}

    def after(self, func: Any, args: tuple, kwargs: dict[str, Any], made: Any, call: RealCall | None) -> None:
        """Note the value that an op made, or wrote; ``call`` is what :meth:`before` said."""
        writes = func._schema.is_mutable and args and isinstance(args[0], (FakeTensor, list, tuple))
        if func._schema.is_mutable:
            if func is aten._amp_update_scale_.default and self._grow(func, *args, **kwargs):
                return
            self._forget_written(func, args, kwargs)
        target = args[0] if writes else made
        if isinstance(target, (tuple, list)):  # such as sorted values and their places
            return self._after_several(func, args, target, call)
        if not isinstance(target, FakeTensor) or (not writes and target.untyped_storage()._cdata in self._values):
            return  # or a view
        drawn = self._count_drawn(flat(args))
        followed = _is_followed(target) and target.numel() >= drawn  # fewer depend on several
        if call is None and followed:
            if func in _LIKE:
                with without_modes():
                    args = torch.empty(target.shape, dtype=target.dtype), *args[1:]
                call = self._real_call(func, args, kwargs)
            elif not any(isinstance(arg, torch.Tensor) for arg in args):
                call = self._real_call(func, args, kwargs)
            if call is None and (call := self._draw(func, args, kwargs, target)) is not None:
                drawn = target.numel()
        if call is None or not followed:
            return self.forget(target.untyped_storage()._cdata)
        with _disable_current_modes(), torch.no_grad():
            value = _answer(func, call, target)
            self._note(target, value if isinstance(value, torch.Tensor) else None, drawn)

    def _draw(self, func: Any, args: tuple, kwargs: dict[str, Any], target: FakeTensor) -> RealCall | None:
        """A real call that draws random numbers on the host, one or whole ones. ``None``: another op."""
        if self._notes is None or torch.Tag.nondeterministic_seeded not in func.tags or on_gpu(target):
            return None
        if target.numel() != 1 and (target.is_floating_point() or target.is_complex()):
            return None
        if args and args[0] is target:  # which is written whatever it was
            with without_modes():
                args = torch.zeros(target.shape, dtype=target.dtype), *args[1:]
        return self._real_call(func, args, kwargs, draws=True)

    def _after_several(self, func: Any, args: tuple, made: Any, call: RealCall | None) -> None:
        new = [each for each in made if isinstance(each, FakeTensor) and each.untyped_storage()._cdata not in self._values]
        if call is None or not new or len(new) != len(made) or not all(map(_is_followed, new)):
            return
        if (drawn := self._count_drawn(flat(args))) > min(each.numel() for each in new):
            return
        with _disable_current_modes(), torch.no_grad():
            for target, value in zip(new, _answer(func, call, new[0]) or (), strict=False):
                self._note(target, value, drawn)

    def _note(self, target: FakeTensor, value: torch.Tensor | None, drawn: int = 0) -> None:
        """Note the values of a tensor, which may be a part of a known one; ``None``, or values elsewhere: they are unknown."""
        storage = target.untyped_storage()
        key, known = storage._cdata, self._values.pop(storage._cdata, None)
        if value is None or value.dtype != target.dtype or value.numel() != target.numel() or _is_numpys(known):
            return
        count = storage.nbytes() // target.element_size()
        if count == 1:
            self._values[key] = value.reshape(())
        elif known is not None and known.numel() == count and known.dtype == target.dtype:
            _seen_as(known, target).copy_(value.reshape(target.shape))
            self._values[key] = known
        elif value.numel() == count and _is_followed(target):
            self._values[key] = found = value.new_empty(count)
            _seen_as(found, target).copy_(value.reshape(target.shape))
        if drawn and key in self._values:
            self._drawn.add(key)

    def _grow(self, func: Any, scale: Any, tracker: Any, found_inf: Any, *rates: Any, **more: Any) -> bool:
        """Update a known loss scale as after gradients that are finite. False: it is not known."""
        known = [self._value(each) for each in (scale, tracker)]
        if any(each is None for each in known):
            return False
        with _disable_current_modes(), torch.no_grad():
            first, second = (each.clone() for each in known if each is not None)
            func(first, second, torch.zeros(1), *rates, **more)
            self._note(scale, first)
            self._note(tracker, second)
        return True

    def _forget_written(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """Drop the numbers that an op writes beside its first argument, or in lists: they are not computed here."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in given if isinstance(given, (list, tuple)) else [given]:
                if place or given is not tensor:
                    self.written(tensor)

    def _real_call(self, func: Any, args: tuple, kwargs: dict[str, Any], draws: bool = False) -> RealCall | None:
        name = func._schema.name
        if func.namespace != "aten" or any(map(name.__contains__, _MEMORY)):
            return None
        if torch.Tag.nondeterministic_seeded in func.tags and not draws:
            return None
        if not all(map(self._is_known, (*args, *kwargs.values()))):
            return None
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        with _disable_current_modes(), torch.no_grad():
            return [self._real(arg) for arg in args], {key: self._real(value) for key, value in kwargs.items()}

    def _is_known(self, value: Any) -> bool:
        """True if :meth:`_real` has the value; most calls end here."""
        if isinstance(value, torch.Tensor):
            return (value.numel() == 1 or _is_followed(value)) and self._value(value) is not None
        return not isinstance(value, (list, tuple)) or (self._count_drawn(value) <= 1 and all(map(self._is_known, value)))

    def _real(self, value: Any) -> Any:
        """A known value as a real one, copied: an op may write to it."""
        if isinstance(value, (list, tuple)):
            return [self._real(each) for each in value]
        known = self._value(value) if isinstance(value, torch.Tensor) else None
        return value if known is None else known.reshape(value.shape).clone()


def _is_numpys(tensor: torch.Tensor | None) -> bool:
    """True for memory that is not PyTorch's."""
    return tensor is not None and not tensor.untyped_storage().resizable()


def _in_order(real: torch.Tensor) -> bool:
    """True for numbers that rise or fall, all of their storage."""
    if real.numel() * real.element_size() != real.untyped_storage().nbytes():
        return False
    if real.numel() == 1 or real.dtype not in _ORDERED:
        return real.numel() == 1
    first, second = real.flatten()[:-1], real.flatten()[1:]
    return bool((first <= second).all() or (first >= second).all())


def _is_followed(tensor: torch.Tensor) -> bool:
    """True for one element, and for a small tensor or a view of one."""
    count = tensor.numel()
    if count < 2 or count > _MOST:
        return count == 1
    return tensor.layout is torch.strided and tensor.untyped_storage().nbytes() <= _MOST * tensor.element_size()


def _seen_as(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a storage as ``tensor`` sees them."""
    with without_modes():
        return values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _answer(func: Any, call: RealCall, target: FakeTensor) -> Any:
    """The results of a real call, or what it has written; ``None`` where the CPU refuses what a GPU's kernels do not."""
    try:
        made = func(*call[0], **call[1])
        return call[0][0] if made is None else made
    except (RuntimeError, IndexError):
        if not on_gpu(target):
            raise
        return None
