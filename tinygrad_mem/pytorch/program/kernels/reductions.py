"""Reductions. If few results need many values, blocks of threads share a result, and stage their parts in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from .call import Gpu, KernelCall, accumulated, nbytes, row, up
from .cub import scan

_WARP = 32
_INT_MAX = torch.iinfo(torch.int32).max
_16_BITS = (torch.float16, torch.bfloat16)


@dataclass
class Dim:
    """An axis of a reduction.

    Attributes:
        size: of the axis.
        step: of the input, in elements.
        out: step of the result; 0 where the axis is reduced.
    """

    size: int
    step: int
    out: int


def axes(tensor: torch.Tensor, reduced: Sequence[int]) -> list[Dim]:
    """The axes of a reduction as kernels see them: the fastest first, neighbours joined where one step leads through both.

    Source: ``TensorIterator.cpp``, ``reorder_dimensions`` and ``coalesce_dimensions``.
    """
    dims, step = [], 1
    for axis in reversed(range(tensor.dim())):
        kept = axis not in reduced
        dims.append(Dim(tensor.shape[axis], tensor.stride(axis), step if kept else 0))
        step *= tensor.shape[axis] if kept else 1
    return _coalesce(_reorder(dims))


def _reorder(dims: list[Dim]) -> list[Dim]:
    dims = list(dims)
    for i in range(1, len(dims)):
        at = i
        for j in range(i - 1, -1, -1):
            swap = _compare(dims[j], dims[at])
            if swap > 0:
                dims[j], dims[at] = dims[at], dims[j]
                at = j
            elif swap < 0:
                break
    return dims


def _compare(a: Dim, b: Dim) -> int:
    """1 if ``b`` belongs before ``a``; -1 if not; 0: either."""
    if (a.out == 0) != (b.out == 0):
        return 1 if b.out == 0 else -1
    for one, other in ((a.out, b.out), (a.step, b.step)):
        if one == 0 or other == 0:
            continue
        if one != other:
            return -1 if one < other else 1
        if a.size > b.size:
            return 1
    return 0


def _coalesce(dims: list[Dim]) -> list[Dim]:
    joined: list[Dim] = []
    for dim in dims:
        last = joined[-1] if joined else Dim(1, 0, 0)
        if last.size == 1:
            joined[-1:] = [dim]
        elif dim.size == 1 or (last.size * last.step == dim.step and last.size * last.out == dim.out):
            last.size *= dim.size
        else:
            joined.append(dim)
    return joined


def power(size: int, most: int) -> int:
    """The largest power of two that is not above ``size``; at most ``most``."""
    return most if size >= most else 1 << (max(size, 1).bit_length() - 1)


def _vector(dims: list[Dim], first: int, offset: int) -> int:
    """The number of results that a thread makes at once. Source: ``Reduce.cuh``, ``get_output_vec_size``."""
    size = 4
    steps = [dim.step for place, dim in enumerate(dims) if place != first]
    for number in (offset, dims[first].size, *steps):
        while number % size:
            size //= 2
    return size


def staged(dims: list[Dim], gpu: Gpu, element: int, vector: int = 4, offset: int = 0) -> tuple[int, int]:
    """Bytes of the staging buffer and of the semaphores of a reduction; ``(0, 0)`` if each result is one block's.

    Args:
        dims: its axes, from :func:`axes`.
        element: bytes of the type that accumulates.
        vector: how many values a thread loads at once.
        offset: of the input in its storage, in elements.

    Source: ``Reduce.cuh``, ``setReduceConfig``, ``global_memory_size`` and ``semaphore_size``.
    """
    outputs = prod(dim.size for dim in dims if dim.out)
    inputs = prod(dim.size for dim in dims) // max(outputs, 1)
    reduced = sum(dim.out == 0 for dim in dims)
    along = reduced == len(dims) or dims[0].step < dims[reduced].step
    across, down = (inputs, outputs) if along else (outputs, inputs)
    wide = 1
    if dims and (dims[0].step if along else dims[reduced].step) == 1:
        long = across >= 128 if gpu.version >= (2, 10) else across > 128
        if along and long and reduced == 1 and (vector >= 4 or gpu.version >= (2, 7)):
            across //= vector
        elif not along:
            wide = _vector(dims, reduced, offset)
            across //= wide
    width, height = _block(across, down, 512 // wide)
    step_in, step_out = (width, 1) if along else (1, width)
    if up(inputs, step_in) < min(height * 16, 256):
        return 0, 0  # each warp makes results of its own
    step_in *= height
    values = up(inputs, step_in)
    grid = up(outputs // wide, step_out)
    target = gpu.processors * (gpu.threads // (width * height))
    if values < 256 or grid > target:
        return 0, 0
    shared = max(min(up(target, grid), up(values, 16)), up(values, 256))
    if shared <= 1:
        return 0, 0
    return element * outputs * shared * (1 if along else width * wide), 4 * grid


def _block(across: int, down: int, most: int) -> tuple[int, int]:
    """Width and height of a block of threads. Source: ``Reduce.cuh``, ``set_block_dimension``."""
    across, down = power(across, most), power(down, most)
    width = min(across, _WARP)
    height = min(down, most // width)
    return min(across, most // height), height


def reduce(call: KernelCall, tensor: torch.Tensor, reduced: Any, element: int, vector: int = 4) -> None:
    """Ask for the staging of a reduction of ``tensor`` over the axes ``reduced``."""
    if prod(tensor.shape) == 0:
        return
    if isinstance(reduced, int):
        reduced = [reduced]
    over = [axis % max(tensor.dim(), 1) for axis in reduced] if reduced else range(tensor.dim())
    dims, width = axes(tensor, over), tensor.element_size()
    parts = _parts(dims, width)
    if parts > 1 and tensor.dtype in _16_BITS:
        call.ask(element * prod(dim.size for dim in axes(tensor, over) if dim.out))  # what the parts add up to
    for _ in range(parts):
        asked = [call.ask(size) for size in staged(dims, call.gpu, element, vector, int(tensor.storage_offset()))]
        if parts > 1:
            call.free(*reversed(asked))


def _parts(dims: list[Dim], width: int) -> int:
    """Halve axes until places of a part, in bytes, are numbers of 32 bits; return the number of parts.

    Source: ``TensorIterator.cpp``, ``can_use_32bit_indexing`` and ``get_dim_to_split``.
    """
    parts = 1
    while 1 + sum((dim.size - 1) * dim.step * width for dim in dims) > _INT_MAX:
        longest = max(dims, key=lambda dim: (dim.size - 1) * dim.step)
        longest.size = up(longest.size, 2)
        parts *= 2
    return parts


def loads(call: KernelCall, dtype: torch.dtype) -> int:
    """The number of values that a thread of a sum loads at once: 4, or 8 of 16 bits since PyTorch 2.7."""
    return 8 if dtype in _16_BITS and call.gpu.version >= (2, 7) else 4


@row(
    "sum mean prod nansum",
    takes="staging, with one value for each block (in float32 for 16 bits); a copy of an input that is summed in another dtype "
    "(bool, int32)",
    source="cuda/Reduce.cuh, setReduceConfig; ReduceOps.cpp, make_reduction_from_out_ty",
    seen="cnn-small (576 and 4 bytes)",
)
def sums(call: KernelCall) -> None:
    summed(call, call["self"], call.get("dim"), call.outs[0].dtype)


def summed(call: KernelCall, tensor: torch.Tensor, dim: Any = None, into: torch.dtype | None = None) -> None:
    """Ask for what a sum allocates; ``into``: the dtype of the sum, if it is not the tensor's."""
    dtype = tensor.dtype
    if into not in (None, dtype) and not (dtype in _16_BITS and into == torch.float32):
        call.temporary(prod(tensor.shape) * into.itemsize)
        dtype = into
    reduce(call, tensor, dim, accumulated(dtype), loads(call, dtype))


@row(
    "count_nonzero",
    takes="before the result, a mask of one byte for each element; what its sum allocates",
    source="TensorAdvancedIndexing.cpp, count_nonzero_cuda",
    seen="h100",
)
def count_nonzero(call: KernelCall) -> None:
    tensor = call["self"]
    call.temporary(prod(tensor.shape) if tensor.dtype != torch.bool else 0)
    call.result(0)
    summed(call, tensor.new_empty(tensor.shape, dtype=torch.bool), call["dim"], torch.int64)


def number(call: KernelCall, tensor: torch.Tensor, name: str) -> int:
    """Ask for one number of all elements, ``"sum"`` or an extreme, and for its staging, which is freed at once."""
    width = tensor.element_size()
    found = call.temporary(width)
    with call.within():
        if name == "sum":
            summed(call, tensor)
        else:
            extreme(call, tensor)
    return found


def extreme(call: KernelCall, tensor: torch.Tensor) -> None:
    """The largest or smallest of all elements, as ``max(tensor)`` finds it: in a contiguous copy."""
    if call.contiguous(tensor):
        tensor = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    reduce(call, tensor, None, tensor.element_size())


@row(
    "any all",
    takes="staging, with one byte for each block; for a tensor of one element instead one byte",
    source="cuda/ReduceLogicKernel.cu; ReduceOps.cpp, allany_impl",
    seen="cnn-small (16, 32, 64, 128 and 144 bytes, and 4), h100",
)
def logic(call: KernelCall) -> None:
    tensor = call["self"]
    if prod(tensor.shape) == 1:
        return call.once(1 if tensor.dtype != torch.bool else 0, "TEMPORARY")
    reduce(call, tensor, call.get("dim"), 1)


@row(
    "amax amin aminmax max min",
    takes="staging, with one value for each block (aminmax: two); for max and min of all elements first a contiguous copy",
    source="cuda/ReduceMaxValuesKernel.cu, ReduceAMinMaxKernel.cu; ReduceAllOps.cpp, max, min",
)
def extremes(call: KernelCall) -> None:
    if call.get("other") is not None:
        return  # of two tensors
    tensor = call["self"]
    if call.name in ("aten::max", "aten::min"):
        return extreme(call, tensor)
    pairs = 2 if "aminmax" in call.name else 1
    reduce(call, tensor, call.get("dim"), tensor.element_size() * pairs)


@row(
    "max.dim min.dim argmax argmin",
    takes="staging, with a value and its index for each block",
    source="cuda/ReduceArgMaxKernel.cu; ReduceMaxValuesKernel.cu, max_launch_kernel",
)
def extremes_with_places(call: KernelCall) -> None:
    reduce(call, call["self"], call.get("dim"), 16)


@row("norm linalg_vector_norm", takes="as sum", source="cuda/ReduceNormKernel.cu")
def norm(call: KernelCall) -> None:
    reduce(call, call["self"], call.get("dim"), accumulated(call["self"].dtype))


@row(
    "std var std_mean var_mean",
    takes="staging, with the mean, the squared deviations and two counts for each block",
    source="cuda/ReduceMomentKernel.cu; SharedReduceOps.h, WelfordData",
)
def moments(call: KernelCall) -> None:
    reduce(call, call["self"], call.get("dim"), 32 if call["self"].dtype == torch.float64 else 16, 2)


@row(
    "logsumexp",
    takes="before the result: the maxima, then their absolute values and a mask of infinite ones, and the input minus the "
    "maxima, as large as the input; the staging of the maxima and of the sum",
    source="ReduceOps.cpp, logsumexp_out_impl",
    seen="h100",
)
def log_sum_exp(call: KernelCall) -> None:
    tensor, out = call["self"], call.outs[0]
    call.temporary(nbytes(out))
    with call.within():
        reduce(call, tensor, call["dim"], out.element_size())
    size, mask = call.temporary(nbytes(out)), call.temporary(prod(out.shape))
    call.free(mask, size)
    call.temporary(prod(tensor.shape) * out.element_size())  # the difference
    call.result(0)
    reduce(call, tensor, call["dim"], accumulated(out.dtype))


@row(
    "_foreach_norm",
    takes="before the results: for each tensor, one float32 for each 65,536 elements of the longest tensor",
    source="cuda/ForeachReduceOp.cu, foreach_tensor_norm_cuda",
)
def foreach_norm(call: KernelCall) -> None:
    tensors = call["self"]
    same = len({tensor.dtype for tensor in tensors}) == 1 and tensors[0].dtype.is_floating_point
    if same and call["ord"] in (1, 2, float("inf")):  # else one norm after another
        _of_chunks(call, tensors, accumulated(tensors[0].dtype))
        call.result(*range(len(call.outs)))


def _of_chunks(call: KernelCall, tensors: list[torch.Tensor], element: int) -> None:
    chunks = max(up(prod(tensor.shape), 65_536) for tensor in tensors)
    call.ask(len(tensors) * chunks * element)


@row(
    "_softmax_backward_data",
    takes="the product of gradient and output, as large as the input; copies of arguments that are not contiguous",
    source="cuda/SoftMax.cu, softmax_backward_cuda_out",
)
def softmax_backward(call: KernelCall) -> None:
    grad, output = call["grad_output"], call["output"]
    call.temporary(prod(grad.shape) * max(grad.element_size(), output.element_size()))
    call.contiguous(output)


@row(
    "_log_softmax_backward_data",
    takes="copies of arguments that are not contiguous",
    source="cuda/SoftMax.cu, host_softmax_backward",
)
def log_softmax_backward(call: KernelCall) -> None:
    call.copies("grad_output", "output")


@row(
    "_softmax _log_softmax cummax cummin median nanmedian kthvalue",
    takes="a copy of an input that is not contiguous; for median and nanmedian, before the results",
    source="cuda/SoftMax.cu, host_softmax; ScanUtils.cuh, scan_dim_with_indices; Sorting.cpp, median_with_indices_impl, "
    "kthvalue_out_cuda",
)
def copied(call: KernelCall) -> None:
    call.copies("self")
    if "median" in call.name:
        call.result(0, 1)


@row(
    "cumsum cumprod logcumsumexp",
    takes="a copy of an input that is not contiguous; if all elements are in one row: the temporary storage of CUB's scan, or, "
    "for a deterministic cumsum of floats, one number for each multiprocessor",
    source="cuda/ScanUtils.cuh, scan_dim; cub.cuh, inclusive_deterministic_scan; CUB dispatch_scan.cuh",
    seen="h100",
)
def cumulate(call: KernelCall) -> None:
    tensor, out = call["self"], call.outs[0]
    count = prod(tensor.shape)
    if tensor.dim() == 0 or count == 0:
        return
    if tensor.dtype != out.dtype:
        call.temporary(nbytes(out))
    else:
        call.contiguous(tensor)
    if count != tensor.shape[call["dim"]]:
        return
    inexact = out.is_floating_point() or out.is_complex()
    if call.gpu.deterministic and inexact and call.name.endswith("::cumsum"):
        tile = 16 * {16: 128, 8: 256}.get(out.element_size(), 512)
        call.once(min(call.gpu.processors, up(count, tile)) * out.element_size())
    else:
        call.once(scan(count, out.element_size(), plain(out.dtype)))


def plain(dtype: torch.dtype) -> bool:
    """True for a type of C++, False for a class, such as a complex number, or one of 16 bits."""
    return dtype not in _16_BITS and not dtype.is_complex


@row(
    "_foreach_max",
    takes="after the results: for each tensor, one number for each 65,536 elements of the longest tensor",
    source="cuda/ForeachReduceOp.cu, foreach_tensor_max_cuda",
    seen="h100",
)
def foreach_max(call: KernelCall) -> None:
    call.result(*range(len(call.outs)))
    _of_chunks(call, call["self"], call["self"][0].element_size())
