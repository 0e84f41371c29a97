"""The embedding layers."""

from __future__ import annotations

from typing import Any

from ..autograd.grad_mode import no_grad
from ..autograd.tensor import Tensor
from ..functional import creation
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter

__all__ = ("Embedding", "EmbeddingBag")


class _Table(Module):
    """The base of both layers: ``weight`` (num_embeddings, embedding_dim), whose row ``padding_idx`` is 0."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    weight: Parameter

    def _make_table(self, given: Tensor | None, device: Any, dtype: Any, freeze: bool = False) -> None:
        size = [self.num_embeddings, self.embedding_dim]
        if given is None:
            self.weight = Parameter(creation.empty(*size, device=device, dtype=dtype), requires_grad=not freeze)
            self.reset_parameters()
            return
        if list(given.shape) != size:
            raise ValueError(
                f"Shape of weight does not match num_embeddings and embedding_dim: {list(given.shape)}, expected {size}"
            )
        self.weight = Parameter(given, requires_grad=not freeze)

    def reset_parameters(self) -> None:
        """Initialize the table again."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                init.zeros_(self.weight[self.padding_idx])


class Embedding(_Table):
    """Rows of a table: integer (...) -> (..., embedding_dim). The first values are normal. Saves the index, not the table.

    Args:
        padding_idx: a row that is 0 and gets no gradient.

    Raises:
        ValueError: ``padding_idx`` is outside of the table.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.max_norm, self.norm_type = _row(padding_idx, num_embeddings), max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self._make_table(_weight, device, dtype, _freeze)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )

    def extra_repr(self) -> str:
        defaults = {"padding_idx": None, "max_norm": None, "norm_type": 2, "scale_grad_by_freq": False, "sparse": False}
        return f"{self.num_embeddings}, {self.embedding_dim}{self._shown_unless(**defaults)}"

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """A layer over a given table (rows, columns).

        Args:
            freeze: the table requires no gradient.
        """
        options = padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings, freeze
        return cls(*_size(embeddings), *options)


class EmbeddingBag(_Table):
    """The sum, mean or maximum of rows of a table, bag by bag: integer (bags, length), or flat and offsets -> (bags, features).

    The looked-up rows are never all in memory. The first values of the table are normal.

    Args:
        mode: ``"mean"``, ``"sum"`` or ``"max"``.
        include_last_offset: the last offset is the end of the last bag.
        padding_idx: a row that is 0 at first, is left out of bags, and gets no gradient.

    Raises:
        ValueError: ``padding_idx`` is outside of the table.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.mode, self.sparse = scale_grad_by_freq, mode, sparse
        self.include_last_offset, self.padding_idx = include_last_offset, _row(padding_idx, num_embeddings)
        self._make_table(_weight, device, dtype)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        options = self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse
        last = per_sample_weights, self.include_last_offset, self.padding_idx
        return F.embedding_bag(input, self.weight, offsets, *options, *last)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        text += self._shown_unless(max_norm=None, norm_type=2, scale_grad_by_freq=False)
        return f"{text}, mode={self.mode!r}{self._shown_unless(padding_idx=None)}"

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """A layer over a given table (rows, columns).

        Args:
            freeze: the table requires no gradient.
        """
        options = max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset, padding_idx
        layer = cls(*_size(embeddings), *options)
        layer.weight.requires_grad = not freeze
        return layer


def _size(table: Tensor) -> tuple[int, int]:
    if table.dim() != 2:
        raise ValueError("Embeddings parameter is expected to be 2-dimensional")
    return table.size(0), table.size(1)


def _row(padding_idx: int | None, rows: int) -> int | None:
    """``padding_idx`` as a number that is not negative."""
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise ValueError(f"Padding_idx must be within num_embeddings, found {padding_idx} for {rows}")
    return padding_idx % rows
