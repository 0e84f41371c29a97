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
        "chunking",
        ("nn.functional.linear_cross_entropy", "techniques.chunked"),
        "the scores of one tile instead of all and their gradient; a function's temporaries for one chunk",
        "the scores are computed again in backward",
        "the rounding of sums; chunked: bit for bit, where the function's rows do not depend on each other",
    ),
    Technique(
        "compression",
        ("techniques.compressed",),
        "what is saved in 16, 8, 4 or 2 bits an element, and 8 bytes a group",
        "a pass over it in forward and one in backward; noise in gradients",
        "each saved value within its group's range over 2**bits - 1, and right on average",
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
        "inplace",
        ("techniques.InPlaceABN",),
        "one array instead of two for each pair of batch norm and activation",
        "a division an element in backward",
        "the rounding of an inverse: about ulp(y) / abs(weight)",
    ),
    Technique(
        "offload",
        ("autograd.graph.save_on_cpu",),
        "what is saved for backward lies on the host; the device holds what the running op uses",
        "two copies of it between device and host",
        "bit for bit",
    ),
    Technique(
        "recompute",
        ("utils.checkpoint.checkpoint", "utils.checkpoint.checkpoint_sequential"),
        "of a function nothing is kept but its inputs; of n alike ones in sqrt(n) segments, 2 sqrt(n) results instead of n",
        "one more forward at most",
        "bit for bit",
    ),
    Technique(
        "reversible",
        ("techniques.ReversibleSequential",),
        "nothing of any block is kept: the peak does not grow with depth, but for parameters and gradients",
        "one more forward",
        "the rounding of the way back, which adds up over depth",
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
