"""Layers whose weights are divided over the ranks of a group. ``parallelize_module`` makes them of ordinary ones."""

from __future__ import annotations

from ....autograd.core import apply
from ....autograd.shape import normalize_dim
from ....autograd.tensor import Tensor
from ....functional.door import LOWER, public
from ....nn import Embedding, Linear
from ....nn import functional as F
from ....ops.base import Op
from ....ops.linalg import Linear as LinearOp
from ...group import ProcessGroup
from ...regions import copy_to, gather_along, gather_from, reduce_from, reduce_scatter_along, reduce_scatter_to
from ..placement import Placement, Shard


class GatheredLinear(Op):
    """A linear layer of an input whose rows are divided over ranks; each rank computes its own outputs of all rows.

    The rows of all ranks are gathered in forward, not kept, and gathered again in backward, for the weight's gradient. The
    gradient of the input is summed over the ranks, and each gets its part.

    Saves x if weight needs a gradient, which is this rank's part of the rows, and weight if x does.

    Source: Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022, section 4.2.2.
    """

    saves = ("x", "weight")
    outputs = ()

    @staticmethod
    def forward(ctx, x, weight, bias, *, group, axis):
        ctx.group, ctx.axis = group, axis
        out = LinearOp.forward(ctx, gather_along(ctx, x, group, axis), weight, bias)
        if ctx.needs[1]:
            ctx.save(x=x)  # in place of the rows of all ranks
        return out

    @staticmethod
    def backward(ctx, gy):
        part = ctx.take("x")
        if part is not None:
            ctx.saved["x"] = gather_along(ctx, part, ctx.group, ctx.axis)
        gx, gw, gb = LinearOp.backward(ctx, gy)
        if ctx.keeps_graph and part is not None:
            ctx.saved["x"] = part
        del part
        return None if gx is None else reduce_scatter_along(ctx, gx, ctx.group, ctx.axis), gw, gb


@public(cpu=LOWER, cuda=LOWER)
def gathered_linear(input: Tensor, weight: Tensor, bias: Tensor | None, group: ProcessGroup, dim: int) -> Tensor:
    """``nn.functional.linear`` of the rows of all ranks, gathered along ``dim``.

    Args:
        input: this rank's part of the rows; they are not its last dimension.
        weight, bias: this rank's part of the outputs.

    Saves: the input, which is this rank's part of the rows, and the weight.

    Price: two all-gathers and a reduce-scatter of the rows.

    Raises:
        DeviceError: a device that the group does not serve. DimensionError: the input has no dimension ``dim``.
    """
    group.check_device("gathered_linear", input)
    if group.size() == 1:
        return F.linear(input, weight, bias)
    return apply(GatheredLinear, input, weight, bias, group=group, axis=normalize_dim(dim, input.ndim))


class _OverRanks:
    """The base of these layers.

    Attributes:
        group: the ranks.
        layouts: how its input and its output are divided over them.
    """

    group: ProcessGroup
    layouts: tuple[Placement, Placement]

    def extra_repr(self) -> str:
        said = f"rank {self.group._rank} of {self.group.size()}, {self.layouts[0]} -> {self.layouts[1]}"
        return f"{super().extra_repr()}, {said}"  # type: ignore[misc]


class ColumnLinear(_OverRanks, Linear):
    """A linear layer of which each rank has some of the outputs: the weight is cut along its first dimension."""

    def forward(self, input: Tensor) -> Tensor:
        given, wanted = self.layouts
        if isinstance(given, Shard):
            y = gathered_linear(input, self.weight, self.bias, self.group, given.dim)
        else:
            y = F.linear(copy_to(input, self.group), self.weight, self.bias)
        return y if isinstance(wanted, Shard) else gather_from(y, self.group, -1)


class RowLinear(_OverRanks, Linear):
    """A linear layer of which each rank has some of the inputs; the results of all ranks are summed.

    The bias, which all ranks have whole, is added to the sum.
    """

    def forward(self, input: Tensor) -> Tensor:
        y = _summed(F.linear(input, self.weight), self.group, self.layouts[1])
        return y if self.bias is None else y.add_(self.bias)


class VocabularyEmbedding(_OverRanks, Embedding):
    """A table of which each rank has some of the rows: a rank gives zeros for rows of others, and all are summed.

    Saves the index, counted from this rank's first row, and a mask of the others' (8 bytes and 1 byte an entry).
    """

    def forward(self, input: Tensor) -> Tensor:
        rows, size = self.weight.shape[0], self.group.size()
        first, padding = rows * self.group._rank, self.padding_idx
        padding = padding - first if padding is not None and 0 <= padding - first < rows else None
        if size == 1:
            return F.embedding(input, self.weight, padding)
        index = input - first
        others = (index < 0).logical_or_(index >= rows)
        y = F.embedding(index.masked_fill_(others, 0), self.weight, padding).masked_fill_(others.unsqueeze(-1), 0)
        return _summed(y, self.group, self.layouts[1])


def _summed(y: Tensor, group: ProcessGroup, wanted: Placement) -> Tensor:
    """The sum of all ranks' ``y``, a new tensor that nothing has saved, in the wanted layout."""
    return reduce_scatter_to(y, group, wanted.dim) if isinstance(wanted, Shard) else reduce_from(y, group, inplace=True)
