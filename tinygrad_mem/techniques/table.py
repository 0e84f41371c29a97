"""The techniques, as data: their names are those of their tests and tutorials."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Technique:
    """One way to need less memory.

    Attributes:
        name: also of its tests, ``tests/techniques/test_NAME.py``.
        use: the public names, from ``tinygrad_mem`` on.
        memory: what becomes smaller, and by how much.
        price: what it costs.
        equal: how the numbers compare with those of a plain step.
        not_with: names of techniques that it cannot be used with; both raise.
    """

    name: str
    use: tuple[str, ...]
    memory: str
    price: str
    equal: str
    not_with: tuple[str, ...] = ()


_ROWS = (
    Technique(
        "accumulation",
        ("techniques.accumulate",),
        "activations of one micro-batch instead of the batch: 1 / k; all gradients stay",
        "more and smaller kernels",
        "the rounding of sums; with batch norm, other statistics",
        ("in_backward",),
    ),
    Technique(
        "in_backward",
        ("techniques.optimizer_in_backward",),
        "one gradient at a time instead of all",
        "nothing",
        "bit for bit",
        ("accumulation",),
    ),
    Technique(
        "selection",
        ("techniques.select_labelled",),
        "logits of the positions that have a label instead of all",
        "a gather, and a scatter in backward",
        "the rounding of sums",
    ),
)
TABLE = {row.name: row for row in _ROWS}
