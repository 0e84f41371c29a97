"""The bytes of a script after each of its statements, beside those of PyTorch's own allocator."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tests.pytorch.random_programs import MARK
from tests.pytorch.test_random_programs import predicted_bytes, real_bytes

Mark = Callable[[], Any]
Script = Callable[..., Any]  # of what is called after each statement, and a device


def check_bytes(script: Script) -> int:
    """On the CPU the bytes after each statement are PyTorch's, and peaks differ by no more than the bound that is returned."""

    def run() -> Any:
        kept = script(lambda: torch.empty(MARK, dtype=torch.uint8), "cpu")
        return SimpleNamespace(kept=kept, refused=())

    program: Any = run
    program()  # what PyTorch keeps from its first use is not the program's
    real, _ = real_bytes(program)
    predicted, _, track = predicted_bytes(program)
    assert [now for _, now in predicted] == [now for _, now in real]
    bound = sum(track.unknown.values())
    assert all(found <= peak <= found + bound for (found, _), (peak, _) in zip(predicted, real, strict=True))
    return bound
