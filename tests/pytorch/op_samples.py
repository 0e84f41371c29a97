"""PyTorch's own samples of each op, as programs: their memory in a prediction, and in PyTorch's allocator."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.opinfo.said import tables
from tinygrad_mem.errors import DataDependenceError, NotOfferedError
from tinygrad_mem.pytorch import predict
from tinygrad_mem.pytorch.program.alone import allocator_events


@dataclass(frozen=True)
class Outcome:
    """Of one sample.

    Attributes:
        kind: ``"equal"``; ``"bounded"``: the difference is within what the prediction says is unknown; ``"refused"``;
            ``"differs"``.
        words: what was found.
        off: bytes that the prediction lacks; below 0 for those that it has too many.
    """

    kind: str
    words: str = ""
    off: int = 0


class _Held:
    """A tensor of a sample, without its wish for a gradient: the program makes one that has it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.trained = tensor.detach(), tensor.requires_grad

    def again(self) -> torch.Tensor:
        return self.tensor.clone().requires_grad_(self.trained)


def outcomes(op: Any, most: int) -> Iterator[Outcome]:
    """Of at most ``most`` samples of an op, spread over all; samples that PyTorch itself refuses are left out."""
    dtype = torch.float32 if torch.float32 in op.dtypes or not op.dtypes else min(op.dtypes, key=str)
    trained = op.supports_autograd and dtype is torch.float32
    samples = list(op.sample_inputs_func(op, "cpu", dtype, trained))
    for sample in samples[:: -(-len(samples) // most)]:
        given = tree_map(lambda v: _Held(v) if isinstance(v, torch.Tensor) else v, (sample.input, sample.args, sample.kwargs))
        run = _program(op.op, given, trained)
        try:
            run()
        except (RuntimeError, NotImplementedError):
            continue
        yield _outcome(run)


def _program(function: Callable[..., Any], given: Any, trained: bool) -> Callable[[], Any]:
    def run() -> Any:
        first, args, kwargs = tree_map(lambda v: v.again() if isinstance(v, _Held) else v, given)
        made = function(first, *args, **kwargs)
        ends = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if trained and ends:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        return first, args, kwargs, made

    return run


def _outcome(run: Callable[[], Any]) -> Outcome:
    real = real_peak(run)
    try:
        found = predict(run, device="cpu")
    except (DataDependenceError, NotOfferedError) as error:
        return Outcome("refused", str(error))
    words = f"{found.peak} predicted, {real} real; {found.unknown}"
    if found.peak == real:
        return Outcome("equal", words)
    within = abs(found.peak - real) <= sum(found.unknown.values())
    return Outcome("bounded" if within else "differs", words, real - found.peak)


def real_peak(run: Callable[[], Any]) -> int:
    """The most bytes of PyTorch's CPU allocator that a program of one thread had at once."""
    gc.collect(0)
    events: list[int] = []
    with allocator_events(events):
        kept = run()
    del kept
    return max(0, *accumulate(events)) if events else 0


OPS = {f"{op.name} {op.variant_test_name}".strip(): op for op in tables.op_db}
