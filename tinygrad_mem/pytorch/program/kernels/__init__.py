"""Requests of CUDA's kernels and libraries to PyTorch's allocator beside an op's results: a table, one function a row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from . import (
    attention,
    batch_norm,
    blas,
    convolution,
    copies,
    decompositions,
    elementwise,
    fourier,
    indexing,
    linalg,
    moving,
    norms,
    recurrent,
    reductions,
    sorting,
)
from .call import NOTHING, ROWS, Gpu, KernelCall, KernelRow, Requests
from .unread import unread


class Kernels:
    """The table for one process on one GPU: it remembers the workspaces that libraries keep.

    Args:
        gpu: the GPU whose kernels run.
    """

    def __init__(self, gpu: Gpu | None = None) -> None:
        self.gpu = gpu or Gpu()
        self._kept: dict[Any, int] = {}

    def beside(self, func: Any, args: tuple, kwargs: Mapping[str, Any], outputs: Any, thread: str = "main") -> Requests:
        """The requests of a call of the op ``func`` beside its results.

        Args:
            func: an overload of an aten op.
            args, kwargs: its arguments: tensors with shapes and strides, fake ones too.
            outputs: its result, or a tuple or list of them.
            thread: ``"main"``, or ``"autograd"`` in backward, whose thread has library handles of its own; with the number of
                a stream, which has workspaces of its own.
        """
        found, outs = _row(func), list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        if found is None:
            return unread(func, args, kwargs, outs)
        call = KernelCall(func, args, kwargs, outs, self.gpu, thread, self._kept)
        found.rule(call)
        return Requests(tuple(call.steps), tuple(call.bounds))


@cache
def _row(func: Any) -> KernelRow | None:
    name = func._schema.name.removeprefix("aten::")
    overload = func._overloadname
    return ROWS.get(f"{name}.{overload}") or ROWS.get(name) or ROWS.get(name.removesuffix("_"))


def rows() -> list[KernelRow]:
    """Each row once, in the order of the table."""
    return list(dict.fromkeys(ROWS.values()))
