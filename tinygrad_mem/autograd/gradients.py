"""Copies and sums of gradients, and the two kinds of gradient that are not plain arrays.

:class:`~tinygrad_mem.ops.base.RowsGradient` has a few rows of a table, :class:`~tinygrad_mem.ops.base.SliceGradient` one
slice. The core uses only :data:`PARTIAL`, :func:`add_partial` and :func:`accumulate_rows` of this file. Users get rows as a
:class:`SparseTensor`: the part of ``torch.sparse_coo`` with one sparse dimension that a gradient needs. It is not a
:class:`Tensor`, and functions of tensors refuse it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import scope
from ..devices import refuse_outside
from ..errors import ShapeError
from ..ops.base import RowsGradient, SliceGradient
from .tensor import Tensor

PARTIAL = frozenset({RowsGradient, SliceGradient})
_INT64 = np.dtype(np.int64)


def copy(device: Any, array: Any, dtype: np.dtype | None = None) -> Any:
    """A contiguous copy of ``array``, cast to ``dtype`` if one is given."""
    out = device.empty(array.shape, dtype or array.dtype)
    device.kernels.copy(array, out=out)  # copies cast
    return out


def unbroadcast(device: Any, grad: Any, shape: tuple) -> Any:
    """Sum ``grad`` over the axes along which ``shape`` was broadcast.

    Raises:
        ShapeError: ``shape`` does not broadcast to the gradient's shape.
    """
    lead = grad.ndim - len(shape)
    if lead < 0 or any(n != 1 and n != g for n, g in zip(shape, grad.shape[lead:], strict=True)):
        raise ShapeError(f"a backward returned a gradient of shape {list(grad.shape)} for an input of shape {list(shape)}")
    axes = tuple(range(lead)) + tuple(lead + i for i, n in enumerate(shape) if n == 1 and grad.shape[lead + i] != 1)
    out = device.empty(shape, grad.dtype)
    kept = (1,) * lead + shape
    device.kernels.sum(grad, axes, out=out.reshape(kept))
    return out


def memory_of(grad: Any) -> Any:
    """The array that has the gradient's memory."""
    return grad.values if type(grad) in PARTIAL else grad


def whole(device: Any, part: SliceGradient, dtype: np.dtype) -> Any:
    """An array of the whole shape: the slice, and 0 elsewhere."""
    out = device.empty(part.shape, dtype)
    device.kernels.fill(0, out=out)
    device.kernels.copy(part.values, out=out[part.key])
    return out


def dense(device: Any, rows: RowsGradient) -> Any:
    """``rows`` as an array of the whole shape."""
    out = device.empty(rows.shape, rows.dtype)
    device.kernels.fill(0, out=out)
    device.kernels.add_rows(rows.values, rows.index, out)
    return out


def copy_rows(device: Any, rows: RowsGradient, dtype: np.dtype | None = None) -> RowsGradient:
    """A copy of the values. The indices are not copied: no two gradients share them."""
    return RowsGradient(rows.index, copy(device, rows.values, dtype), rows.shape)


def join_rows(device: Any, first: RowsGradient, second: RowsGradient) -> RowsGradient:
    """Two sets of rows as one, concatenated."""
    count = len(first.index) + len(second.index)
    made = RowsGradient(device.empty((count,), _INT64), device.empty((count, first.shape[1]), first.dtype), first.shape)
    cut = len(first.index)
    for part, index, values in ((first, made.index[:cut], made.values[:cut]), (second, made.index[cut:], made.values[cut:])):
        device.kernels.copy(part.index, out=index)
        device.kernels.copy(part.values, out=values)
    return made


def add_rows(device: Any, array: Any, owned: bool, rows: RowsGradient) -> Any:
    """``array + rows``, written into ``array`` if the engine owns it."""
    out = array if owned else copy(device, array)
    device.kernels.add_rows(rows.values, rows.index, out)
    return out


def add_part(device: Any, array: Any, owned: bool, part: SliceGradient) -> Any:
    """``array + part``, written into ``array`` if the engine owns it: slices of one tensor share one buffer."""
    out, values = array if owned else copy(device, array), part.values
    if values.dtype != out.dtype:
        values = copy(device, values, out.dtype)
    place = out[part.key]
    device.kernels.add(place, values, out=place)
    return out


def add_partial(
    device: Any, present: Any, present_owned: bool, grad: Any, owned: bool, dtype: np.dtype, leaf: bool
) -> tuple[Any, bool]:
    """``grad + present``, where either is of :data:`PARTIAL`. Only a leaf keeps rows.

    Returns:
        The sum, and whether the engine owns it.
    """
    if type(grad) is SliceGradient:
        if present is not None and type(present) is not RowsGradient:
            return add_part(device, present, present_owned, grad), True
        grad, owned = whole(device, grad, dtype), True
    if type(grad) is RowsGradient and grad.dtype != dtype:
        grad, owned = copy_rows(device, grad, dtype), True
    if type(grad) is RowsGradient and not leaf:
        grad, owned = dense(device, grad), True
    if present is None:
        return grad, owned
    if type(present) is RowsGradient:
        joins = type(grad) is RowsGradient
        return (join_rows(device, present, grad) if joins else add_rows(device, grad, owned, present)), True
    if type(grad) is RowsGradient:
        return add_rows(device, present, present_owned, grad), True
    out = present if present_owned else copy(device, present)
    device.kernels.add(present, grad, out=out)
    return out, True


def clear_gradient(parameter: Tensor, set_to_none: bool) -> None:
    """Drop the gradient, which frees its memory at once; or fill it with 0, which is not recorded as an op."""
    if set_to_none:
        parameter.grad = None  # before any local name holds it: it would live on, as a temporary
        return
    grad: Any = parameter._grad
    if isinstance(grad, SparseTensor):
        grad.zero_()
    elif grad is not None:
        refuse_outside(grad.device, "zero_grad")
        grad = grad.detach() if grad.grad_fn is not None else grad
        grad.device.kernels.fill(0, out=grad.array)
        grad.storage.written("zero_grad")
        parameter._grad = grad


# --- rows, for users --------------------------------------------------------------------------------------------------------


class SparseTensor:
    """The sparse gradient of a table of ``shape`` (rows, features). Rows that it does not list are zero; duplicates are summed.

    Memory: 8 bytes and the values for each listed row.

    Attributes:
        device: where it lives.
        shape, dtype: of the table.
    """

    _shard: Any = None  # as of a tensor: it is never cut over ranks

    is_sparse, is_leaf, requires_grad, grad_fn = True, True, False, None
    layout = "sparse_coo"

    def __init__(self, rows: RowsGradient, device: Any, of: Tensor | None = None) -> None:
        self.device = device
        self._coalesced = len(rows.index) < 2
        self._hold(rows, of)

    def _hold(self, rows: RowsGradient, of: Tensor | None = None) -> None:
        self.rows = rows
        self._parts = Tensor._wrap(rows.index, self.device), Tensor._wrap(rows.values, self.device)
        for part in self._parts:
            scope.report_role(part.array, "GRADIENT", part, of)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype:
        return self.rows.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the indices and the values."""
        return self.rows.index.nbytes + self.rows.values.nbytes

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Two."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements of the table."""
        return self.shape[0] * self.shape[1]

    def sparse_dim(self) -> int:
        """One: rows."""
        return 1

    def dense_dim(self) -> int:
        """One: features."""
        return 1

    def _nnz(self) -> int:
        return len(self.rows.index)

    def is_coalesced(self) -> bool:
        """True if each row is listed once, in order."""
        return self._coalesced

    def indices(self) -> Tensor:
        """The listed rows, (1, n) int64. Raises: ShapeError: it is not coalesced."""
        return self._indices_of("indices").unsqueeze(0)

    def values(self) -> Tensor:
        """The values of the listed rows, (n, features). Raises: ShapeError: it is not coalesced."""
        self._indices_of("values")
        return self._parts[1]

    def _indices_of(self, what: str) -> Tensor:
        if not self._coalesced:
            raise ShapeError(f"Cannot get {what} on an uncoalesced tensor, please call .coalesce() first")
        return self._parts[0]

    def _indices(self) -> Tensor:
        return self._parts[0].unsqueeze(0)

    def _values(self) -> Tensor:
        return self._parts[1]

    def coalesce(self) -> SparseTensor:
        """The same gradient with each row listed once, in order.

        Raises:
            DataDependenceError: on ``meta``: the number of rows depends on values.
        """
        if self._coalesced:
            return self
        index = np.empty(len(self.rows.index), _INT64)
        self.device.download(self.rows.index, index)
        unique, places = np.unique(index, return_inverse=True)
        made = self._empty(len(unique))
        where = self.device.empty(places.shape, _INT64)
        self.device.upload(unique.astype(np.int64), made.index)
        self.device.upload(places.astype(np.int64), where)
        self.device.kernels.fill(0, out=made.values)
        scope.run(self.device.kernels.add_rows, self.rows.values, where, made.values)
        result = SparseTensor(made, self.device)
        result._coalesced = True
        return result

    def _empty(self, count: int) -> RowsGradient:
        empty = self.device.empty
        return RowsGradient(empty((count,), _INT64), empty((count, self.shape[1]), self.dtype), self.shape)

    def to_dense(self) -> Tensor:
        """An array of the table's size."""
        return Tensor._wrap(scope.run(dense, self.device, self.rows), self.device)

    def summed(self) -> Tensor:
        """Values (n, features) with the norm of the gradient: each first row has the sum of its duplicates, which are 0."""
        first = self.device.empty(self.rows.index.shape, _INT64)
        values = self.device.empty(self.rows.values.shape, self.dtype)
        scope.run(self.device.kernels.sum_rows, self.rows.index, self.rows.values, first, values)
        return Tensor._wrap(values, self.device)

    def detach(self) -> SparseTensor:
        """The gradient itself: it is not on the tape."""
        return self

    detach_ = detach

    def clone(self) -> SparseTensor:
        """A copy with memory of its own."""
        made = SparseTensor(copy_rows(self.device, self.rows), self.device)
        made._coalesced = self._coalesced
        return made

    def mul_(self, other: Any) -> SparseTensor:
        """All values times a number."""
        self._parts[1].mul_(other)
        return self

    def zero_(self) -> SparseTensor:
        """Remove all rows, and free their memory."""
        self._hold(self._empty(0))
        self._coalesced = True
        return self

    def become_grad_of(self, leaf: Tensor) -> None:
        """Set ``leaf.grad`` to this gradient. Raises: ShapeError: it has another shape, dtype or device."""
        if self.shape != leaf.array.shape or self.device is not leaf.device or self.dtype != leaf._dtype_of_grad(self):
            raise ShapeError(
                f"assigned grad has data of a different size, type or device: expected {list(leaf.shape)}, {leaf.dtype} on "
                f"{leaf.device}, found {list(self.shape)}, {self.dtype} on {self.device}"
            )
        leaf._grad = self  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SparseTensor(shape={list(self.shape)}, rows={self._nnz()}, dtype={self.dtype}, device={self.device})"


def parts(grad: Any) -> tuple[Tensor, ...]:
    """The tensors that hold a gradient's memory: itself, or the indices and values of a sparse one."""
    return grad._parts if isinstance(grad, SparseTensor) else (grad,)


def accumulate_rows(leaf: Tensor, grad: Any, owned: bool) -> None:
    """Add to ``leaf.grad`` if either is sparse. Rows and rows are concatenated; otherwise the sum is dense."""
    device, present = leaf.device, leaf._grad
    if present is None:
        leaf._grad = SparseTensor(grad if owned else copy_rows(device, grad), device, leaf)  # type: ignore[assignment]
    elif isinstance(present, SparseTensor):
        if type(grad) is RowsGradient:
            present._hold(join_rows(device, present.rows, grad), leaf)
            present._coalesced = False
        else:
            leaf._take_grad(add_rows(device, grad, owned, present.rows))
    else:
        add_rows(device, present.array, True, grad)
        present.storage.written("backward")
