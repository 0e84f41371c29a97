"""The order in which backward runs the nodes of a graph, as where a GPU has a thread for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .watch import Watch

_LATER = 1 << 40
_numbers_of_nodes: Callable[[], int] = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]

SEVERAL_STREAMS = (
    "a graph was made in several streams. PyTorch runs each op of backward in its forward's stream; here all ran in the one "
    "that called backward. The bytes in use are the same, but for workspaces of cuBLAS; more may be reserved"
)


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


def in_one_stream(watch: Watch, engine: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function that runs backward, to see if an op of its graph ran in another stream than the current one."""

    def run(*args: Any, **kwargs: Any) -> Any:
        ledger = watch.ledger
        if ledger.graph_streams | {ledger.stream} != {ledger.stream}:
            watch.note(SEVERAL_STREAMS)
            ledger.mixed = True
        ledger.graph_streams.clear()
        return engine(*args, **kwargs)

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
