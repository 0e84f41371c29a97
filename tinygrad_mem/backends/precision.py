"""PyTorch's switch for faster, less precise products. It can be set; products keep the precision of their operands."""

from __future__ import annotations

from ..errors import ArgumentError

_precision = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of float32 products: ``"highest"``, ``"high"`` or ``"medium"``. All compute as ``"highest"`` here.

    Raises:
        ArgumentError: it is another word.
    """
    global _precision
    if precision not in ("highest", "high", "medium"):
        raise ArgumentError(f"set_float32_matmul_precision: expected 'highest', 'high' or 'medium', found {precision!r}")
    _precision = precision


def get_float32_matmul_precision() -> str:
    """The precision that was set."""
    return _precision
