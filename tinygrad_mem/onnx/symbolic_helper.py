"""A stand-in for ``torch.onnx.symbolic_helper``: nothing is exported."""

from __future__ import annotations

from typing import Any


def parse_args(*arg_descriptors: str) -> Any:
    """The function itself, as a decorator."""
    return lambda fn: fn
