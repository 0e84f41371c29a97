"""The table of ``Tensor``'s methods: each is a public function with the tensor as its first argument.

``Tensor`` inherits this class for type checkers only; at run time the functions are put on ``Tensor`` below. So the tape
knows no op, and an editor knows every method.
"""

from __future__ import annotations

from ..autograd.tensor import Tensor
from . import elementwise


class Methods:
    """Name -> function."""

    # --- elementwise arithmetic, comparison, bits, and their operators and in-place forms

    mul = elementwise.mul
    __mul__ = elementwise.mul

    # --- activations

    # --- reductions, sorting, scans

    # --- linear algebra

    # --- shape, joining

    # --- indexing

    # --- conversion, copies, creation like this tensor

    # --- random fills

    # --- softmax


for _name, _function in list(vars(Methods).items()):
    if not _name.startswith("__") or _name.strip("_") not in ("module", "qualname", "doc", "dict", "weakref"):
        setattr(Tensor, _name, _function)
