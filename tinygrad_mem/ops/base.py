"""The base of all ops: one class with ``forward`` above ``backward``, on raw arrays.

``forward(ctx, *inputs, **params)`` checks, allocates, calls kernels, and saves arrays by name. ``backward(ctx, *grads)`` gets
one gradient per output (``None`` for an unused output, if there are several) and returns one gradient per input (or ``None``),
of the *broadcast* shape: the engine reduces it to the input's shape and casts it to the input's dtype.

Rules, each checked by ``tests/ops/test_contract.py``:

- Memory is taken through ``ctx`` only, and kernels allocate nothing.
- ``ctx.save(x=x)`` keeps an input, an output or a buffer that this op allocated, never a view of one. If only the gradient of
  one of several inputs needs an array, save it under ``ctx.needs[i]``, so that nothing is kept for a branch without gradients.
- ``backward`` returns its incoming gradient, a view of it, or buffers that it allocated; never a saved array. It writes
  into the incoming gradient only when ``ctx.owns_grad``.
- No array is kept on ``ctx`` by assignment; shapes, axes and numbers may be.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from ..devices import device as Device
from ..dtypes import bool as bool_
from ..dtypes import category, is_floating
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

Array = Any  # numpy.ndarray or cupy.ndarray: ops use only what both have


def root_of(array: Any) -> Any:
    """The array that owns ``array``'s memory: itself, or its base."""
    base = array.base
    while type(base) is type(array):
        array, base = base, base.base
    return array


def refuses_writes(array: Any) -> bool:
    """True if the memory is read-only, or has two elements in one place, as an expanded array. NumPy marks most of these, CuPy
    none."""
    flags = array.flags
    if not flags.c_contiguous and any(step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)):
        return array.size > 0
    return not getattr(flags, "writeable", True)


def overlaps_itself(array: Any) -> bool:
    """True if elements share memory, as those of overlapping windows, or cannot easily be told not to."""
    if array.flags.forc:
        return False
    reach = array.itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True) if size > 1):
        if step < reach:
            return True
        reach += (size - 1) * step
    return False


def address_of(array: Any) -> int:
    """The address of the array's first element."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr


def want_target(target: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Refuse to write a result of this shape and dtype into ``target``: of another shape, or a dtype of a lower category."""
    if target.shape != shape:
        raise ShapeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(shape)}: "
            "an in-place op cannot grow its tensor; use the op that makes a new one"
        )
    if target.dtype != dtype and category(target.dtype) < category(dtype):
        raise DTypeError(
            f"result type {dtype} can't be cast to the desired output type {target.dtype}: "
            "an in-place op keeps its tensor's dtype; use the op that makes a new one"
        )


class RowsGradient:
    """A gradient of a few rows of a table: row ``index[i]`` of ``shape`` gets ``values[i]``; equal entries are summed.

    Attributes:
        index: (n) int64, an array that nothing else uses.
        values: (n, features).
    """

    __slots__ = ("index", "shape", "values")

    def __init__(self, index: Array, values: Array, shape: tuple[int, ...]) -> None:
        self.index, self.values, self.shape = index, values, shape

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype


class SliceGradient:
    """A gradient of ``shape`` that is ``values`` in ``array[key]`` and 0 elsewhere. It is added in place to other gradients."""

    __slots__ = ("key", "shape", "values")

    def __init__(self, key: tuple, values: Array, shape: tuple[int, ...]) -> None:
        self.key, self.values, self.shape = key, values, shape

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype


class Context:
    """The context of one run of an op: its device, its kernels, and the arrays that it saves for backward.

    Attributes:
        device, kernels: where the run happens.
        needs: one bool per input: True if its gradient is needed.
        saved: name -> array, filled by :meth:`save`, emptied when backward has run.
        owns_grad: True in ``backward`` if nothing else uses the incoming gradient, so that it may be overwritten.
        target: the array to write into when the op runs in place, else ``None``.
        packed: True if a saved-tensor hook packed the arrays. Unpacked arrays may be in use elsewhere, so they are not written.
    """

    owns_grad = False
    packed = False
    target: Array | None = None
    keeps_graph = False
    saved: dict[str, Array]
    op: Any

    def __init__(self, device: Device, needs: tuple[bool, ...]) -> None:
        self.device = device
        self.kernels = device.kernels
        self.needs = needs
        self.saved = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """An uninitialised buffer."""
        return self.device.empty(shape, dtype)

    def empty_like(self, x: Array) -> Array:
        """An uninitialised, contiguous buffer of ``x``'s shape and dtype."""
        return self.device.empty(x.shape, x.dtype)

    def workspace(self, size: int) -> Array:
        """``size`` bytes that a kernel needs while it runs; ``None`` for 0."""
        return self.device.workspace(size)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """A buffer of zeros."""
        out = self.device.empty(shape, dtype)
        self.kernels.fill(0, out=out)
        return out

    def output(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """The array for the result: a new buffer, or the target of an in-place run, which must fit."""
        if self.target is None:
            return self.device.empty(shape, dtype)
        want_target(self.target, shape, dtype)
        return self.target

    def output_like(self, x: Array) -> Array:
        """:meth:`output` of ``x``'s shape and dtype."""
        return self.output(x.shape, x.dtype)

    def output_copy(self, x: Array) -> Array:
        """:meth:`output_like` ``x``, with its values."""
        out = self.output(x.shape, x.dtype)
        if out is not x:
            self.kernels.copy(x, out=out)
        return out

    def copy(self, x: Array, dtype: np.dtype | None = None) -> Array:
        """A new contiguous array with the values of ``x``, in ``dtype`` if given."""
        out = self.device.empty(x.shape, x.dtype if dtype is None else dtype)
        self.kernels.copy(x, out=out)
        return out

    def cast(self, x: Array | None, dtype: np.dtype) -> Array:
        """``x`` itself if it is C-contiguous and of ``dtype``, else such a copy; ``None`` stays."""
        return x if x is None or (x.dtype == dtype and x.flags.c_contiguous) else self.copy(x, dtype)

    def contiguous(self, x: Array | None) -> Array:
        """``x`` itself if it is C-contiguous, else a copy; ``None`` stays."""
        return x if x is None or x.flags.c_contiguous else self.copy(x)

    def grad_buffer(self, grad: Array) -> Array:
        """An array for a gradient of ``grad``'s shape: ``grad`` itself if the engine owns it, else a new buffer."""
        return grad if self.owns_grad else self.device.empty(grad.shape, grad.dtype)

    def grad_copy(self, grad: Array) -> Array:
        """:meth:`grad_buffer` of ``grad``, with its values."""
        return grad if self.owns_grad else self.copy(grad)

    def grad_zeros(self, grad: Array) -> Array:
        """:meth:`grad_buffer` of ``grad``, with zeros."""
        out = self.grad_buffer(grad)
        self.kernels.fill(0, out=out)
        return out

    def broadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        """A view of ``x`` with ``shape``: repeated axes take no memory, and must not be written."""
        return x if x.shape == shape else self.device.xp.broadcast_to(x, shape)

    def save(self, **arrays: Array | None) -> None:
        """Keep ``arrays`` for backward, except ``None``; nothing if there will be none.

        An array that an in-place op is about to overwrite is copied.
        """
        if True not in self.needs:
            return
        for name, array in arrays.items():
            if array is not None:
                kept = self.copy(array) if array is self.target and name not in self.op.outputs else array
                self.saved[name] = kept

    def take(self, name: str) -> Array:
        """A saved array, for its last use in backward: it is dropped from ``saved``, unless the graph is retained.

        ``None`` if it was not saved.
        """
        if self.keeps_graph or name not in self.saved:
            return self.saved.get(name)
        return self.saved.pop(name)


class Op:
    """A differentiable rule. Subclasses define ``forward`` and ``backward``, both static.

    Attributes:
        saves: the names that ``forward`` may save, for listings and for the contract test.
        outputs: names of saved outputs: ``y`` unless given. They stay valid when the op runs in place.
        view: the result shares its first input's memory.
        differentiable: False for ops whose results have no gradient (comparisons, argmax, rounding to integers).
        takes_numbers: False for ops that want an array where others take a Python number too.
        same_everywhere: every element gets the same value, so that the op may write to elements that share memory.
        places: it writes elements at given places. In place, its other inputs may not be the tensor that it writes: it could
            read an element after it has been written.
    """

    saves: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[tuple[str, ...]] = ("y",)
    view: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    takes_numbers: ClassVar[bool] = True
    same_everywhere: ClassVar[bool] = False
    places: ClassVar[bool] = False
    registry: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__name__ in Op.registry and Op.registry[cls.__name__].__module__ != cls.__module__:
            raise TypeError(f"two ops are called {cls.__name__}: names appear in errors and listings, choose another")
        Op.registry[cls.__name__] = cls

    @staticmethod
    def forward(ctx: Context, *inputs: Any, **params: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        raise NotImplementedError


def want_floating(name: str, *arrays: Array | None) -> None:
    """Check that arrays are floating, before anything is allocated, so that all devices raise the same error.

    Raises:
        DTypeError: an array is not floating.
    """
    for x in arrays:
        if x is not None and not is_floating(x.dtype):
            raise DTypeError(f"{name}: expected a floating tensor, found {x.dtype}: convert it with .float()")


def refuse_bools(name: str, x: Array) -> None:
    """Raise DTypeError for an array of bools."""
    if x.dtype == bool_:
        raise DTypeError(f"{name}: expected numbers, found {x.dtype}: convert it with .float()")


def want_numbers(name: str, **numbers: Any) -> None:
    """Check that arguments are numbers. On ``meta``, which computes nothing, no kernel would raise.

    Raises:
        ArgumentTypeError: text, ``None`` or a sequence.
    """
    for which, number in numbers.items():
        if number is None or isinstance(number, (str, bytes, list, tuple)):
            raise ArgumentTypeError(f"{name}: {which} must be a number, found {type(number).__name__}")


def want_real(name: str, finite: bool = False, **numbers: Any) -> None:
    """Check that arguments are real numbers, which may be tensors of one element.

    Raises:
        ArgumentTypeError: anything else. ArgumentError: one must be ``finite``, and is not.
    """
    for which, number in numbers.items():
        try:
            good = math.isfinite(number) or not finite
        except TypeError:
            raise ArgumentTypeError(f"{name}: {which} must be a real number, found {type(number).__name__}") from None
        if not good:
            raise ArgumentError(f"{name}: {which} must be finite, found {number}: it would turn other elements into nan")


def broadcast(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of ``shapes``. Raises: ShapeError: two of them do not broadcast, in PyTorch's words."""
    if len(shapes) == 2 and shapes[0] == shapes[1]:
        return shapes[0]
    ndim = max(len(s) for s in shapes)
    result = [1] * ndim
    for shape in shapes:
        for axis, size in enumerate(shape, ndim - len(shape)):
            if size != 1 and result[axis] != size:
                if result[axis] != 1:
                    raise ShapeError(
                        f"{name}: the size of tensor a ({result[axis]}) must match the size of tensor b ({size}) at "
                        f"non-singleton dimension {axis}: shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast"
                    )
                result[axis] = size
    return tuple(result)
