"""Views, rearrangements, copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import tinygrad_mem as tm
from tests.case import OpCase
from tests.ops.cases.elementwise import normal
from tinygrad_mem.autograd.inplace import apply_
from tinygrad_mem.nn import functional as F
from tinygrad_mem.ops.convert import Upload

X = normal((3, 4, 5))
EYE = np.eye(5, 4)


def same(name: str, op: Any, run: Any, inputs: Any = X) -> OpCase:
    """An expression that reads the same for both libraries."""
    return OpCase(name, op, run, run, inputs)


CASES = [
    same("view", "View", lambda x: x.reshape(-1).view(12, 5)),
    same("permute", "Permute", lambda x: x.permute(2, 0, 1)),
    same("transpose", "Permute", lambda x: x.transpose(0, -1)),
    same("expand", "Expand", lambda x: x.expand(2, 3, 4, 5), normal((3, 1, 5))),
    same("slice", "Slice", lambda x: x[1:, ..., ::2]),
    same("select", "Slice", lambda x: x[-1]),
    same("unsqueeze", "Slice", lambda x: x.unsqueeze(1)),
    same("split", "Slice", lambda x: x.split([1, 3], 1)),
    same("diagonal", "Diagonal", lambda x: x.diagonal(1, 1, 2)),
    same("diagonal_below", "Diagonal", lambda x: x.diagonal(-1, 0, 1)),
    same("windows", "Windows", lambda x: x.unfold(2, 3, 1)),
    same("as_strided", "AsStrided", lambda x: x.contiguous().as_strided((3, 4, 2), (7, 2, 1), 1)),
    same("clone", "Clone", lambda x: x.clone()),
    same("repeat", "Clone", lambda x: x.repeat(2, 1, 3)),
    OpCase("cast", "Cast", lambda x: x.half().to(x.dtype), lambda x: x.half().to(x.dtype), X, smooth=False),
    OpCase("copy", "Copy", lambda x, y: (x * 1).copy_(y), lambda x, y: (x * 1).copy_(y), normal((4, 5), (5,))),
    OpCase("cat", "Cat", lambda x, y: tm.cat([x, y], 1), lambda x, y: torch.cat([x, y], 1), normal((3, 4), (3, 2))),
    OpCase("stack", "Cat", lambda x, y: tm.stack([x, y], 1), lambda x, y: torch.stack([x, y], 1), normal((3, 4), (3, 4))),
    same("flip", "Flip", lambda x: x.flip(0, 2)),
    same("roll", "Cat", lambda x: x.roll(1, 1)),
    same("tril", "Triangle", lambda x: x.tril()),
    same("triu", "Triangle", lambda x: x.triu(1)),
    OpCase("pad", "Pad", lambda x: F.pad(x, (1, 2, 0, 1)), lambda x: torch.nn.functional.pad(x, (1, 2, 0, 1)), X),
    OpCase("pad_crop", "Pad", lambda x: F.pad(x, (-1, 2)), lambda x: torch.nn.functional.pad(x, (-1, 2)), X),
    OpCase(
        "pad_reflect",
        "Cat",
        lambda x: F.pad(x, (1, 2), mode="reflect"),
        lambda x: torch.nn.functional.pad(x, (1, 2), mode="reflect"),
        X,
    ),
    OpCase(
        "upload",
        "Upload",
        lambda x: apply_(Upload, x * 1, values=EYE),
        lambda x: torch.nn.init.eye_(x * 1),
        normal((5, 4)),
        grad=False,
    ),
    OpCase("draw", "Draw", lambda x: (x * 1).normal_(), lambda x: (x * 1).normal_(), X, exact=False),
]
