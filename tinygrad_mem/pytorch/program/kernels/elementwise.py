"""Ops on each element that copy an argument first, or check one."""

from __future__ import annotations

from math import prod

import torch

from .call import KernelCall, nbytes, row
from .reductions import reduce_once


@row(
    "abs", "angle",
    takes="of complex numbers: a complex result before the real one",
    source="aten/src/ATen/native/UnaryOps.cpp, unary_op_impl_with_complex_to_float_out",
)  # fmt: skip
def of_complex(call: KernelCall) -> None:
    tensor = call.get("self")
    if isinstance(tensor, torch.Tensor) and tensor.is_complex():
        call.ask(nbytes(tensor), "TEMPORARY")
        call.result(0)


@row(
    "where.self",
    takes="copies of arguments that have not the dtype of the result, and of a condition of bytes",
    source="aten/src/ATen/native/TensorCompare.cpp, where_self_out",
)
def where(call: KernelCall) -> None:
    """A number on the host is no argument of the GPU."""
    out = call.outs[0]
    call.result(0)
    for name in ("self", "other"):
        tensor = call[name]
        if tensor.dtype != out.dtype and getattr(tensor, "fake_device", tensor.device).type != "cpu":
            call.ask(prod(tensor.shape) * out.element_size(), "TEMPORARY")
    if call["condition"].dtype is torch.uint8:
        call.ask(prod(call["condition"].shape), "TEMPORARY")


@row(
    "normal",
    takes="where the deviations are a tensor, before the result and again after it: the smallest of them, what finding it "
    "stages, and a comparison; they end first",
    source="aten/src/ATen/native/DistributionTemplates.h, CHECK_NORMAL_TENSOR_STD",
    seen="h100",
)
def normal(call: KernelCall) -> None:
    deviations = call.get("std")
    if not isinstance(deviations, torch.Tensor) or not deviations.numel():
        return
    _check(call, deviations)
    call.result(0)
    _check(call, deviations)


def _check(call: KernelCall, deviations: torch.Tensor) -> None:
    """None of the deviations is below 0."""
    least = call.ask(deviations.element_size(), "TEMPORARY")
    reduce_once(call, deviations, None, deviations.element_size())
    call.free(call.ask(1, "TEMPORARY"), least)
