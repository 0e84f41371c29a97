"""Reversible residual blocks: backward computes the input of each block from its output, so that no block keeps anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import scope
from ..autograd import grad as gradients
from ..autograd.function import Function
from ..autograd.grad_mode import enable_grad
from ..autograd.tensor import Tensor
from ..devices import Draws, noted
from ..errors import ArgumentError, ShapeError
from ..functional import join
from ..nn.containers import ModuleList
from ..nn.module import Module


class ReversibleBlock(Module):
    """(x1, x2) -> (x1 + f(x2), x2 + g(x1 + f(x2))): a residual block that can be computed backwards.

    Called alone it is an ordinary module of one tensor, whose halves along ``dim`` are x1 and x2. In a
    :class:`ReversibleSequential` it keeps nothing.

    Args:
        f, g: modules whose output has the shape of their input; they may contain batch norm and dropout.
    """

    def __init__(self, f: Module, g: Module, dim: int = 1) -> None:
        super().__init__()
        self.f, self.g, self.dim = f, g, dim

    def forward(self, input: Tensor) -> Tensor:
        x1, x2 = halves(input, self.dim)
        y1 = x1 + shaped(self.f, x2)
        return join.cat([y1, x2 + shaped(self.g, y1)], self.dim)


class ReversibleSequential(Module):
    """Reversible blocks one after another. Backward needs only the output of the last one.

    Args:
        blocks: :class:`ReversibleBlock`, all with the same ``dim``.

    Memory:
        The input, the output and what the backward of one ``f`` or ``g`` needs, however many blocks there are. So with depth
        the peak grows only by parameters and their gradients. (All gradients of the blocks' parameters exist before the first
        is delivered: ``optimizer_in_backward`` saves nothing inside.)
    Price:
        One more forward.
    Do not use when:
        Blocks change the shape of their input, or precision is low. The inputs are computed by subtraction, and rounding errors
        add up over the blocks to about ``depth * eps`` of the values: 1e-5 for 100 blocks in float32, percents in float16.

    Batch norm updates its statistics in the forward only, dropout draws the same masks again, and autocast is respected.

    Raises:
        ArgumentError: no blocks, other modules than blocks, or different ``dim``. In forward, ShapeError: a size that cannot be
            halved, or an ``f`` that changes the shape.

    Source: Gomez et al., *The reversible residual network: backpropagation without storing activations*, 2017.
    """

    def __init__(self, *blocks: ReversibleBlock) -> None:
        super().__init__()
        wrong = next((type(b).__name__ for b in blocks if not isinstance(b, ReversibleBlock)), None)
        if not blocks or wrong:
            raise ArgumentError(f"ReversibleSequential: expected ReversibleBlocks, found {wrong or 'none'}")
        if len({b.dim for b in blocks}) > 1:
            raise ArgumentError(f"ReversibleSequential: blocks halve along different dimensions: {[b.dim for b in blocks]}")
        self.blocks = ModuleList(blocks)
        self.dim = blocks[0].dim

    def forward(self, input: Tensor) -> Tensor:
        x1, x2 = halves(input, self.dim)
        run = ReversiblePass([part for block in self.blocks for part in (block.f, block.g)])
        if scope.local.grad_enabled:
            y1, y2 = Couple.apply(run, x1, x2, *run.parameters)
        else:
            y1, y2 = run.forward(x1, x2)
        return join.cat([y1, y2], self.dim)


def halves(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The two halves along ``dim``, as views."""
    if not -input.ndim <= dim < input.ndim or input.shape[dim] % 2:
        raise ShapeError(f"reversible: dimension {dim} of shape {list(input.shape)} cannot be halved")
    x1, x2 = input.chunk(2, dim)
    return x1, x2


def shaped(part: Module, x: Tensor) -> Tensor:
    """``part(x)``, which must have x's shape."""
    y = part(x)
    if y.shape != x.shape:
        raise ShapeError(
            f"reversible: {type(part).__name__} made shape {list(y.shape)} of {list(x.shape)}; f and g must keep the shape, "
            "since their result is added to the other half"
        )
    return y


class ReversiblePass:
    """One forward through f, g, f, g, ...: each is added to the half that the next one reads."""

    def __init__(self, parts: Iterable[Module]) -> None:
        self.parts = list(parts)
        self.parameters = list(dict.fromkeys(p for part in self.parts for p in part.parameters() if p.requires_grad))
        self.switches = scope.switches()
        self.draws: list[Draws] = []  # the random draws of each part

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """(left, right) -> (right, left + part(right)) for each part."""
        for part in self.parts:
            self.draws.append(noted())
            with self.draws[-1]:
                left, right = right, left + shaped(part, right)
        return left, right

    def backward(self, left: Tensor, right: Tensor, grads: list[Tensor], found: dict[Tensor, Tensor]) -> None:
        """From the last part to the first: compute its input, the gradients of that (in ``grads``) and of the parameters."""
        for part, draws in zip(reversed(self.parts), reversed(self.draws), strict=True):
            own = [p for p in part.parameters() if p.requires_grad]
            with draws.again(), enable_grad(), scope.phase("recompute"):
                leaf = left.detach().requires_grad_()
                y = shaped(part, leaf)
            left, right = right - y.detach(), left
            before = gradients(y, [leaf, *own], grads[1], allow_unused=True)
            del y, leaf
            for p, g in zip(own, before[1:], strict=True):
                if g is not None:
                    found[p] = g if p not in found else found[p] + g
            other = grads[1]
            grads[:] = [other, grads[0] if before[0] is None else grads[0] + before[0]]
            del before, other


class Couple(Function):
    """The whole pass as one node, which saves its two outputs."""

    @staticmethod
    def forward(ctx: Any, run: ReversiblePass, x1: Tensor, x2: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        ctx.run = run
        y1, y2 = run.forward(x1, x2)
        ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    def backward(ctx: Any, g1: Tensor, g2: Tensor) -> tuple:
        run, found, grads = ctx.run, {}, [g1, g2]
        del g1, g2
        before = dict(scope.local.__dict__)
        try:
            with scope.switched(run.switches):
                run.backward(*ctx.saved_tensors, grads, found)
        finally:
            scope.restore_local(before)  # where an interrupt came between two of the contexts
        return None, *grads, *[found.pop(p, None) for p in run.parameters]
