"""Gradients of a few rows of a table: which rows, and their values, instead of an array of the table's size.

``torch.sparse_coo`` with one sparse dimension, as far as a gradient needs it. Backward carries
:class:`~tinygrad_mem.ops.base.RowsGradient` of raw arrays. A leaf's ``grad`` is a :class:`SparseTensor`, which is no
:class:`Tensor`: functions of tensors refuse it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import scope
from ..errors import ShapeError
from ..ops.base import RowsGradient
from .gradients import add_rows, copy_rows, dense, join_rows
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

    def __init__(self, rows: RowsGradient, device: Any, of: Tensor | None = None) -> None:
        self.device = device
        self._coalesced = len(rows.index) < 2
        self._hold(rows, of)

    def _hold(self, rows: RowsGradient, of: Tensor | None = None) -> None:
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

    def _empty(self, count: int) -> RowsGradient:
        empty = self.device.empty
        return RowsGradient(empty((count,), _INT64), empty((count, self.shape[1]), self.dtype), self.shape)

    def to_dense(self) -> Tensor:
        """An array of the table's size."""
        return Tensor._wrap(scope.run(dense, self.device, self.rows), self.device)

    def summed(self) -> Tensor:
        """Values (n, features) whose norm is that of the whole: of a row that is named again, 0 but for the first time."""
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
        made = SparseTensor(copy_rows(self.device, self.rows), self.device)
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

    def become_grad_of(self, leaf: Tensor) -> None:
        """Do what ``leaf.grad = self`` means.

        Raises:
            ShapeError: it has another shape, dtype or device.
        """
        if self.shape != leaf.array.shape or self.device is not leaf.device or self.dtype != leaf._dtype_of_grad(self):
            raise ShapeError(
                f"assigned grad has data of a different size, type or device: expected {list(leaf.shape)}, {leaf.dtype} on "
                f"{leaf.device}, found {list(self.shape)}, {self.dtype} on {self.device}"
            )
        leaf._grad = self  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SparseTensor(shape={list(self.shape)}, rows={self._nnz()}, dtype={self.dtype}, device={self.device})"


def parts(grad: Any) -> tuple[Tensor, ...]:
    """The tensors whose memory a gradient is: itself, or of a sparse one its indices and its values."""
    return grad._parts if isinstance(grad, SparseTensor) else (grad,)


def accumulate_rows(leaf: Tensor, grad: Any, owned: bool) -> None:
    """Add to ``leaf.grad`` where it, or what is added, is sparse: rows to rows by joining them, else it becomes dense."""
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
