"""A stand-in for ``torch.onnx``, so that published files import: nothing is exported."""

from __future__ import annotations

from typing import Any


def is_in_onnx_export() -> bool:
    """Return False: nothing is exported."""
    return False


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Any, opset_version: int) -> None:
    """Do nothing: nothing is exported."""


def parse_args(*arg_descriptors: str) -> Any:
    """Return the function itself, as a decorator."""
    return lambda fn: fn
