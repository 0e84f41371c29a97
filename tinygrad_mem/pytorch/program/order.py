"""The order in which backward runs the nodes of a graph, as where a GPU has a thread for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LATER = 1 << 40
_numbers_of_nodes: Callable[[], int] = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]


def in_order(engine: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function that runs backward. Nodes made in backward (for gradients of gradients) then run after forward's.

    Of the nodes that are ready, autograd runs the one with the highest number, and each thread counts its own nodes. A GPU's
    thread makes nodes only in backward, so its numbers stay below those of the program's thread.

    Source: ``torch/csrc/autograd/engine.cpp``, ``CompareNodeTaskTime``; ``ATen/SequenceNumber.cpp``.
    """
    made: list[range] = []  # numbers of nodes that backward has made

    def run(roots: Any, gradients: Any, keep: bool, create: bool, *args: Any, **kwargs: Any) -> Any:
        if made:
            _number([root.grad_fn for root in roots], made)
        first = _numbers_of_nodes()
        found = engine(roots, gradients, keep, create, *args, **kwargs)
        if create:
            made.append(range(first, _numbers_of_nodes()))
        return found

    return run


def _number(left: list[Any], made: list[range]) -> None:
    """Give the nodes below these that forward made higher numbers than all others have."""
    seen = set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [below for below, _ in node.next_functions]
        number = node._sequence_nr()
        if number < _LATER and not any(number in numbers for numbers in made):
            node._set_sequence_nr(number + _LATER)
