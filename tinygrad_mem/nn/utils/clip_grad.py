"""Clipping gradients, in place, without a temporary of any gradient's size."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...autograd.grad_mode import no_grad
from ...autograd.gradients import SparseTensor
from ...autograd.tensor import Tensor
from ...errors import GraphError, pins_nothing
from ...functional import choose, creation, join, reduce

Tensors = Tensor | Iterable[Tensor]


def _list(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _gradients(parameters: Tensors) -> list[Tensor]:
    every = _list(parameters)
    if any(p._stepped_in_backward for p in every):
        raise GraphError(
            "clipping: optimizer_in_backward has used and freed each of these gradients before the others were "
            "known. Give max_norm to optimizer_in_backward, or use a plain step to clip."
        )
    return [p.grad for p in every if p.grad is not None]


def _numbers(t: Tensor) -> Tensor:
    """An array with the norm of the gradient: for a sparse one, its values with equal rows summed."""
    return t.summed() if isinstance(t, SparseTensor) else t.detach()


def _over_ranks(tensors: list[Tensor], norm_type: float) -> list[Tensor]:
    """The norms of tensors that are divided over ranks, of all parts, for those that are divided over the same groups."""
    groups: dict[tuple, list[Tensor]] = {}
    for t in tensors:
        if t._shard is not None:
            groups.setdefault(t._shard.groups, []).append(t)
    found = []
    for parts in groups.values():
        local = [reduce.norm(t.detach(), norm_type) for t in parts if t.numel()]
        local = local or [creation.zeros((), dtype=parts[0].dtype, device=parts[0].device)]
        found.append(parts[0]._shard.total_norm(reduce.norm(join.stack(local), norm_type), norm_type))
    return found


@pins_nothing
@no_grad()
def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """The norm of all tensors as one vector: 0-d, on the device of the first.

    Gradients of which each rank has a part (``fully_shard``, tensor parallel) count as wholes: all ranks must call it.

    Args:
        norm_type: the p of the p-norm; ``inf`` is the largest absolute value.
        error_if_nonfinite: raise when the norm is inf or nan (this waits for the value).
        foreach: ignored.

    Raises:
        RuntimeError: the norm is not finite and ``error_if_nonfinite`` is True.
    """
    every = _list(tensors)
    if not every:
        return creation.tensor(0.0)
    norm_type = float(norm_type)
    alone = [reduce.norm(_numbers(t), norm_type) for t in every if t._shard is None]
    norms = [norm.to(every[0].device) for norm in (*alone, *_over_ranks(every, norm_type))]
    total = reduce.norm(join.stack(norms), norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


@pins_nothing
@no_grad()
def clip_grads_with_norm_(parameters: Tensors, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale all gradients by ``max_norm / total_norm`` if that is below 1."""
    factor = choose.clamp(max_norm / (total_norm + 1e-6), max=1.0)  # type: ignore[operator]
    for grad in _gradients(parameters):
        grad.mul_(factor.to(grad.device))


@pins_nothing
def clip_grad_norm_(
    parameters: Tensors, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Scale all gradients so that their common norm is at most ``max_norm``. Returns the norm before.

    Raises:
        RuntimeError: see :func:`get_total_norm`.
        GraphError: an optimizer updates the parameters in backward.
    """
    every = _list(parameters)
    total = get_total_norm(_gradients(every), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(every, float(max_norm), total, foreach)
    return total


@pins_nothing
@no_grad()
def clip_grad_value_(parameters: Tensors, clip_value: float, foreach: bool | None = None) -> None:
    """Clamp each element of each gradient to ``[-clip_value, clip_value]``."""
    for grad in _gradients(parameters):
        grad.clamp_(min=-float(clip_value), max=float(clip_value))
