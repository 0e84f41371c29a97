"""Ops on each element that copy an argument first, or check one."""

from __future__ import annotations

from math import prod

import torch

from .call import KernelCall, nbytes, on_host, row
from .reductions import number, summed


@row(
    "abs angle",
    takes="for complex numbers, a complex temporary: after the real result (abs) or before it (angle)",
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
    takes="before the result: copies of arguments whose dtype is not the result's, or that are a number on the host, and of a "
    "condition of uint8",
    source="TensorCompare.cpp, where_self_out",
    seen="h100 (a number on the host)",
)
def where(call: KernelCall) -> None:
    out = call.outs[0]
    for name in ("self", "other"):
        tensor = call[name]
        if tensor.dtype != out.dtype or (on_host(tensor) and not tensor.dim()):
            call.temporary(prod(tensor.shape) * out.element_size())
    if call["condition"].dtype is torch.uint8:
        call.temporary(prod(call["condition"].shape))
    if "out" not in call.func._overloadname:
        call.result(0)


@row(
    "normal",
    takes="if std is a tensor, once before and once after the result: its minimum, with the staging of that, and a comparison, "
    "freed at once; if std is a number and mean a tensor: a temporary as large as the result; if mean is a number and std a "
    "tensor: that number",
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
    takes="without a range: the minimum and the maximum, each with its staging, freed at once; bincount allocates its result "
    "after them, and first of all a copy in float64 of weights that are neither float32 nor float64",
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
    "kaiser_window blackman_window",
    takes="before the result: arange; for blackman_window also two multiples of it and their difference, each as large",
    source="TensorFactories.cpp, kaiser_window, blackman_window",
)
def windows(call: KernelCall) -> None:
    if call["window_length"] > 1:
        longer = call["window_length"] + call.get("periodic", True)  # a periodic window is a part of one
        call.temporary(*[longer * call.outs[0].element_size()] * (1 if "kaiser" in call.name else 4))
        call.result(0)


@row(
    "_sample_dirichlet",
    takes="the sums of the samples over the last axis, and the staging of these sums",
    source="cuda/Distributions.cpp, _s_dirichlet_cuda",
)
def dirichlet(call: KernelCall) -> None:
    drawn = call.outs[0]
    call.temporary(nbytes(drawn) // max(1, drawn.shape[-1]))
    with call.within():
        summed(call, drawn, [-1])


@row(
    "pow.Scalar",
    takes="the base, as a number on the GPU: 8 bytes",
    source="Pow.cpp, pow_Scalar_out: wrapped_scalar_tensor",
    seen="h100 (7 sizes)",
)
def power_of_number(call: KernelCall) -> None:
    if call["self"] != 1:
        call.once(16 if isinstance(call["self"], complex) else 8, "TEMPORARY")
