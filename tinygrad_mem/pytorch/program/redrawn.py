"""``nn.init.trunc_normal_``: it draws numbers outside of its bounds again, until none is left."""

from __future__ import annotations

import sys
from typing import Any

_NOTE = (
    "nn.init.trunc_normal_ draws numbers outside of its bounds again: the usual number of times was taken. While it draws once "
    "more, up to two more tensors of that size are in use"
)
_HALF = 0.5  # of the numbers that are drawn evenly are kept, about


class Redrawn:
    """Answers whether numbers are left to draw again, as they usually are. Source: ``torch/nn/init.py``."""

    def __init__(self) -> None:
        self._round = 0

    def left(self, note: Any) -> bool | None:
        """True if numbers are left; ``None``: it is not ``trunc_normal_`` that asks."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_name != "_no_grad_trunc_normal_":
            frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.replace("\\", "/").endswith("torch/nn/init.py"):
            return None
        values = frame.f_locals
        tensor, evenly = values["tensor"], "pending" in values
        first = "result" not in values or (not evenly and values["result"] is tensor)
        self._round = 1 if first else self._round + 1
        outside = _HALF if evenly else 1 - values["p"]
        if outside:
            note(_NOTE)
        return tensor.numel() * outside**self._round >= 1
