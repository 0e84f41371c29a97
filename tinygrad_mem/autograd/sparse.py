"""Gradients of a few rows of a table: which rows, and their values, instead of an array of the table's size.

``torch.sparse_coo`` with one sparse dimension, as far as a gradient needs it. The engine carries :class:`Rows` of raw arrays;
a leaf's ``grad`` is a :class:`SparseTensor`, which is no :class:`Tensor`: functions of tensors refuse it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import scope
from ..errors import ShapeError
from ..ops.base import Rows

if TYPE_CHECKING:
    from .tensor import Tensor

_INT64 = np.dtype(np.int64)


class SparseTensor:
    """The gradient of a table of ``shape`` (rows, features): zero but in the rows that are named; one named twice gets the sum.

    Memory: for each named row 8 bytes and its values.

    Attributes:
        device: where it lives.
        shape, dtype: of the table.
    """

    is_sparse, is_leaf, requires_grad, grad_fn = True, True, False, None
    layout = "sparse_coo"

    def __init__(self, rows: Rows, device: Any, of: Tensor | None = None) -> None:
        self.device = device
        self._coalesced = len(rows.index) < 2
        self._hold(rows, of)

    def _hold(self, rows: Rows, of: Tensor | None = None) -> None:
        from .tensor import Tensor

        self.rows = rows
        self._parts = Tensor._wrap(rows.index, self.device), Tensor._wrap(rows.values, self.device)
        for listener in scope.listeners:
            for part in self._parts:
                listener.role(part.array, "GRADIENT", part, of)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype:
        return self.rows.values.dtype

    @property
    def nbytes(self) -> int:
        """Of the indices and the values."""
        return self.rows.index.nbytes + self.rows.values.nbytes

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Two."""
        return len(self.shape)

    def numel(self) -> int:
        """Elements of the table."""
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
        """Whether each row is named once, in order."""
        return self._coalesced

    def indices(self) -> Tensor:
        """The rows that are named, (1, n) int64.

        Raises:
            ShapeError: some may be named twice.
        """
        return self._indices_of("indices").unsqueeze(0)

    def values(self) -> Tensor:
        """Their values, (n, features).

        Raises:
            ShapeError: some may be named twice.
        """
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
        """Each row once, in order, with the sum of its values.

        Raises:
            DataDependenceError: on ``meta``: how many rows these are depends on values.
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

    def _empty(self, count: int) -> Rows:
        return Rows(self.device.empty((count,), _INT64), self.device.empty((count, self.shape[1]), self.dtype), self.shape)

    def to_dense(self) -> Tensor:
        """An array of the table's size."""
        from .tensor import Tensor

        return Tensor._wrap(scope.run(dense, self.device, self.rows), self.device)

    def summed(self) -> Tensor:
        """Values (n, features) whose norm is that of the whole: of a row that is named again, 0 but for the first time."""
        from .tensor import Tensor

        first = self.device.empty(self.rows.index.shape, _INT64)
        values = self.device.empty(self.rows.values.shape, self.dtype)
        scope.run(self.device.kernels.sum_rows, self.rows.index, self.rows.values, first, values)
        return Tensor._wrap(values, self.device)

    def detach(self) -> SparseTensor:
        """Itself: no tape leads here."""
        return self

    detach_ = detach

    def clone(self) -> SparseTensor:
        """A copy with memory of its own."""
        made = SparseTensor(_owned(self.device, self.rows), self.device)
        made._coalesced = self._coalesced
        return made

    def mul_(self, other: Any) -> SparseTensor:
        """All values times a number."""
        self._parts[1].mul_(other)
        return self

    def zero_(self) -> SparseTensor:
        """No row is named any more; its memory is free."""
        self._hold(self._empty(0))
        self._coalesced = True
        return self

    def __repr__(self) -> str:
        return f"SparseTensor(shape={list(self.shape)}, rows={self._nnz()}, dtype={self.dtype}, device={self.device})"


def parts(grad: Any) -> tuple[Tensor, ...]:
    """The tensors whose memory a gradient is: itself, or of a sparse one its indices and its values."""
    return grad._parts if isinstance(grad, SparseTensor) else (grad,)


def dense(device: Any, rows: Rows) -> Any:
    """The array that ``rows`` stands for."""
    out = device.empty(rows.shape, rows.dtype)
    device.kernels.fill(0, out=out)
    device.kernels.add_rows(rows.values, rows.index, out)
    return out


def _copied(device: Any, array: Any, dtype: np.dtype | None = None) -> Any:
    out = device.empty(array.shape, dtype or array.dtype)
    device.kernels.copy(array, out=out)
    return out


def _owned(device: Any, rows: Rows) -> Rows:
    """A copy; the indices of a gradient are always its own."""
    return Rows(rows.index, _copied(device, rows.values), rows.shape)


def _joined(device: Any, first: Rows, second: Rows) -> Rows:
    """The one behind the other."""
    count = len(first.index) + len(second.index)
    made = Rows(device.empty((count,), _INT64), device.empty((count, first.shape[1]), first.dtype), first.shape)
    cut = len(first.index)
    for part, index, values in ((first, made.index[:cut], made.values[:cut]), (second, made.index[cut:], made.values[cut:])):
        device.kernels.copy(part.index, out=index)
        device.kernels.copy(part.values, out=values)
    return made


def _added(device: Any, array: Any, owned: bool, rows: Rows) -> Any:
    """``array`` and ``rows``, in the array where that is ours."""
    out = array if owned else _copied(device, array)
    device.kernels.add_rows(rows.values, rows.index, out)
    return out


def arrived(
    device: Any, present: Any, present_owned: bool, grad: Any, owned: bool, dtype: np.dtype, leaf: bool
) -> tuple[Any, bool]:
    """What ``grad`` adds up to with what is there, where either is rows; on its way to an op, it is dense.

    Returns:
        The sum, and whether it is the engine's alone.
    """
    if type(grad) is Rows and grad.dtype != dtype:
        grad, owned = Rows(grad.index, _copied(device, grad.values, dtype), grad.shape), True
    if type(grad) is Rows and not leaf:
        grad, owned = dense(device, grad), True
    if present is None:
        return grad, owned
    if type(present) is Rows:
        if type(grad) is Rows:
            return _joined(device, present, grad), True
        return _added(device, grad, owned, present), True
    if type(grad) is Rows:
        return _added(device, present, present_owned, grad), True
    out = present if present_owned else _copied(device, present)
    device.kernels.add(present, grad, out=out)
    return out, True


def accumulate(leaf: Tensor, grad: Any, owned: bool) -> None:
    """Add to ``leaf.grad`` where it, or what is added, is sparse: rows to rows by joining them, else it becomes dense."""
    device, present = leaf.device, leaf._grad
    if present is None:
        leaf._grad = SparseTensor(grad if owned else _owned(device, grad), device, leaf)  # type: ignore[assignment]
    elif isinstance(present, SparseTensor):
        if type(grad) is Rows:
            present._hold(_joined(device, present.rows, grad), leaf)
            present._coalesced = False
        else:
            leaf._take_grad(_added(device, grad, owned, present.rows))
    else:
        _added(device, present.array, True, grad)
        present.storage.written("backward")
