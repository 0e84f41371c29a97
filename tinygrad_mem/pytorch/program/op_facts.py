"""The facts of an op that decide how a prediction runs it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .composite import OF_OTHERS
from .formulas import SETS

aten = torch.ops.aten
FILLS = {  # in place, without memory of their own; fake tensors would decompose them into ops that have
    getattr(getattr(aten, name), overload)
    for name in ["uniform_", "normal_", "exponential_", "bernoulli_", "random_", "geometric_", "log_normal_", "cauchy_"]
    for overload in getattr(aten, name).overloads()
    if overload != "Tensor"
}
RESIZES = {aten.resize_.default, aten.resize_as_.default, *SETS}
WITHOUT_SHAPES = {  # in place: PyTorch has no kernels for fake tensors
    *[aten._fused_sgd_.default, aten._fused_adagrad_.default],
    *[op.tensor_lr for op in (aten._fused_sgd_, aten._fused_adagrad_, aten._fused_adam_, aten._fused_adamw_)],
}
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_OWN_KERNEL = torch._C.DispatchKey.CPU  # where the CPU has one, such as of silu's backward, CUDA has one
_PYTHON = "torch_nn"  # PyTorch's own ops that are written in Python
_WHOLE = {aten._native_multi_head_attention.default, aten._transformer_encoder_layer_fwd.default}
_COUNTED = ("aten", "prim", "prims")
_BY_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_MARKS = "profiler"  # ``record_function``, which every step of an optimizer calls: without tensors


class OpFacts(NamedTuple):
    """The facts of an op that are needed before each of its calls.

    Attributes:
        op: held, so that no other object gets its id.
        fills: it writes in place, and takes no memory.
        composite: PyTorch makes it of other ops.
        python: it is written in Python.
        of_others: a GPU's kernel is made of other ops; see :data:`.composite.OF_OTHERS`.
        foreign: it is not in PyTorch's own tables.
        resizes: positions and names of arguments whose storage it may replace or resize.
        marks: it marks a range for a profiler.
        by_values: its result, or the size of it, follows from values.
        lists: it writes to each tensor of a list, as another op does to a single tensor.
    """

    op: Any
    fills: bool
    composite: bool
    python: bool
    of_others: bool
    foreign: bool
    resizes: tuple[int | str, ...]
    marks: bool
    lists: bool
    by_values: bool


FACTS: dict[int, OpFacts] = {}  # by the id of the op: PyTorch hashes ops slowly


def facts_of(op: Any) -> OpFacts:
    """The facts of an op, from now on in :data:`FACTS`."""
    python, foreign = op.namespace == _PYTHON, op.namespace not in _COUNTED
    composite = op.has_kernel_for_dispatch_key(_COMPOSITE) and not op.has_kernel_for_dispatch_key(_OWN_KERNEL)
    whole, marks = composite or op in _WHOLE, op.namespace == _MARKS
    lists = op._schema.is_mutable and op._schema.name.startswith("aten::_foreach_")
    outs = [each.name for each in op._schema.arguments if each.kwarg_only and each.is_out]
    resizes = (0,) if op in RESIZES else tuple(outs)
    found = OpFacts(
        op, op in FILLS, whole, python, op in OF_OTHERS, foreign, resizes, marks, lists, bool(_BY_VALUES & {*op.tags})
    )
    return FACTS.setdefault(id(op), found)


def op_name(op: Any) -> str:
    """``"mul_Tensor"``, as recordings of a GPU name it."""
    return op._schema.name.removeprefix("aten::") + (f"_{op._overloadname}" if op._overloadname != "default" else "")
