"""Ops on each element that copy an argument first, or check one."""

from __future__ import annotations

from math import prod

import torch

from .call import KernelCall, nbytes, on_host, row
from .reductions import number, summed


@row(
    "abs angle",
    takes="of complex numbers: a complex result, after the real one (abs), or before it",
    source="UnaryOps.cpp, unary_op_impl_with_complex_to_float_out",
    seen="h100 (abs)",
)
def of_complex(call: KernelCall) -> None:
    tensor = call.get("self")
    if isinstance(tensor, torch.Tensor) and tensor.is_complex():
        call.temporary(nbytes(tensor))
        if "abs" not in call.name:
            call.result(0)


@row(
    "where.self where.self_out",
    takes="copies of arguments that have not the dtype of the result, and of a condition of bytes",
    source="TensorCompare.cpp, where_self_out",
)
def where(call: KernelCall) -> None:
    """A number on the host is no argument of the GPU."""
    out = call.outs[0]
    for name in ("self", "other"):
        tensor = call[name]
        if tensor.dtype != out.dtype and not on_host(tensor):
            call.temporary(prod(tensor.shape) * out.element_size())
    if call["condition"].dtype is torch.uint8:
        call.temporary(prod(call["condition"].shape))


@row(
    "normal",
    takes="where the deviations are a tensor: twice the smallest of them, what finding it stages, and a comparison, which end: "
    "before the result, and after it; where they are a number: a tensor as large as the result; a mean that is a number",
    source="DistributionTemplates.h, normal_impl, normal_out_impl, CHECK_NORMAL_TENSOR_STD",
    seen="h100",
)
def normal(call: KernelCall) -> None:
    deviations = call.get("std")
    if not isinstance(deviations, torch.Tensor):
        if isinstance(call.get("mean"), torch.Tensor):
            call.once(nbytes(call.outs[0]), "TEMPORARY")
        return
    for after in (False, True):
        if after:
            call.result(0)
        if deviations.numel():
            least = number(call, deviations, "min")
            call.free(call.temporary(1), least)
    if not isinstance(call.get("mean"), torch.Tensor):
        call.temporary(call.outs[0].element_size())


@row(
    "histc bincount",
    takes="where no range is given: the smallest number and the largest one, with what finding them stages; each ends; "
    "bincount: before the result, after weights in float64 that have another dtype",
    source="cuda/SummaryOps.cu, _histc_cuda_template, _bincount_cuda, _bincount_cuda_template",
    seen="h100 (histc)",
)
def histc(call: KernelCall) -> None:
    tensor, weights = call["self"], call.get("weights")
    if weights is not None and weights.dtype not in (torch.float32, torch.float64):
        call.temporary(weights.numel() * torch.float64.itemsize)
    if call.get("min") == call.get("max") and tensor.numel():
        for name in ("min", "max"):
            call.free(number(call, tensor, name))
    if "bincount" in call.name:
        call.result(0)


@row(
    "_sample_dirichlet",
    takes="the sums of what is drawn over the last axis, with what adding stages",
    source="cuda/Distributions.cpp, _s_dirichlet_cuda",
)
def dirichlet(call: KernelCall) -> None:
    drawn = call.outs[0]
    call.temporary(nbytes(drawn) // max(1, drawn.shape[-1]))
    with call.within():
        summed(call, drawn, [-1])


@row(
    "pow.Scalar",
    takes="the base as a number on the GPU: 8 bytes",
    source="Pow.cpp, pow_Scalar_out: wrapped_scalar_tensor",
    seen="h100 (7 sizes)",
)
def power_of_number(call: KernelCall) -> None:
    if call["self"] != 1:
        call.once(16 if isinstance(call["self"], complex) else 8, "TEMPORARY")
