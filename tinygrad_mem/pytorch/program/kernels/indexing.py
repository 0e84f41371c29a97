"""Indexing with tensors, and the gradients of it, which sort the indices first."""

from __future__ import annotations

from itertools import zip_longest
from math import prod

import torch

from .call import LONG, KernelCall, accumulated, nbytes, on_host, one_axis, row
from .cub import radix_sort, scan, scan_by_key, select, unique, unique_by_key
from .cub import reduce as cub_reduce
from .reductions import number
from .sorting import sorted_along

_ROWS = 10  # of a partial sum: NROWS_PER_THREAD
_FEW = 3072  # indices that are not sorted
_MAX = 2  # the mode of a bag


@row(
    "_index_put_impl_ index_put_ index_put _unsafe_index_put",
    takes="as index. With accumulate, for n indices of 8 bytes: for each tensor of indices, a wrapped copy, freed at once "
    "(none if it is on the host), and the positions in the flattened tensor; sorted positions, their original order, "
    "arange(n), and the temporary storage of CUB's sort (1 byte up to 2,304 indices); a copy of a value that is not "
    "contiguous. A value that is a number is copied from the host, except with a single mask",
    source="cuda/Indexing.cu, index_put_with_sort_kernel; CUB dispatch_radix_sort.cuh; TensorAdvancedIndexing.cpp, "
    "_index_put_impl_, canDispatchToMaskedFill",
    seen="lm-medium-128-train, h100",
)
def index_put(call: KernelCall) -> None:
    """Add or put values at places of a tensor; only what adds is sorted."""
    target, value = call["self"], call["values"]
    indices = [index for index in call["indices"] if index is not None]
    masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
    host = value.dim() == 0 and on_host(value)  # a number
    if host and len(indices) == len(masks) == 1 and not call.get("accumulate"):
        return  # written by ``masked_fill_``
    call.temporary(host * value.element_size())
    if masks or not indices:
        call.bound(5 * LONG * prod(target.shape), "the number of indices in a mask depends on its values")
        return
    if not (call.get("accumulate") or call.gpu.deterministic):
        return alike(call, indices)
    count = prod(torch.broadcast_shapes(*(index.shape for index in indices)))
    size = count * LONG
    for index in indices:
        if index.dtype == torch.int32 and not _elsewhere(call, index):
            call.temporary(prod(index.shape) * LONG)
    _linear(call, size, [_elsewhere(call, index) for index in indices])
    _values(call, count)
    sort_pairs(call, size, count, LONG, _bits(target, call["indices"]))


def alike(call: KernelCall, indices: list[torch.Tensor]) -> None:
    """Copies of indices of the host, of those of int32, and of those whose strides differ after broadcasting.

    Source: ``TensorAdvancedIndexingUtils.h``, ``make_info``; ``TensorAdvancedIndexing.cpp``, ``all_strides_match``.
    """
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return  # their places have a number that is a value
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    spread = [index.expand(shape) for index in indices]
    count = prod(shape)
    moved = [call.temporary(count * each.element_size()) if _elsewhere(call, each) else None for each in spread]
    spread = [torch.empty(shape, device="meta") if copy else each for copy, each in zip(moved, spread, strict=True)]
    differ = len({each.stride() for each in spread}) > 1
    for index, each, copy in zip(indices, spread, moved, strict=True):
        if index.dtype == torch.int32 or (differ and not each.is_contiguous()):
            call.temporary(count * LONG)
            if copy:
                call.free(copy)


def _elsewhere(call: KernelCall, index: torch.Tensor) -> bool:
    """True for an index of the host, beside a tensor of the GPU."""
    return on_host(index) and not on_host(call["self"])


@row(
    "index.Tensor _unsafe_index",
    takes="before the result, a copy of indices that are on the host; 8 bytes for each index: for indices of int32, and for "
    "indices that are not contiguous if strides differ",
    source="TensorAdvancedIndexing.cpp, AdvancedIndex, make_info",
    seen="lm-medium-128-train (nothing: one index)",
)
def index(call: KernelCall) -> None:
    alike(call, [each for each in call["indices"] if each is not None])
    call.result(0)


@row(
    "embedding",
    takes="a copy of indices that cannot be viewed as one axis, such as ids[:, :-1]",
    source="Embedding.cpp, embedding_symint: indices.reshape(-1)",
)
def embedding(call: KernelCall) -> None:
    indices = call["indices"]
    if indices.numel() and not one_axis(zip(indices.stride(), indices.shape, strict=True)):
        call.temporary(nbytes(indices))
        call.result(0)


def _linear(call: KernelCall, size: int, host: list[bool]) -> None:
    """The place of each index in the flattened tensor, once it is checked. Source: ``Indexing.cu``, ``wrapIndexOnce``.

    Args:
        host: of each index, whether it is on the host. There it is checked and multiplied; then it is copied.
    """
    for place, here in enumerate(host):
        if not here and (not call.get("unsafe", False) or "impl" not in call.name):
            for _ in range(2):  # the largest and the smallest index, each compared with a number
                found = number(call, call["self"].new_empty(size // LONG, dtype=torch.int64), "max")
                call.free(call.temporary(1), found)
        wrapped = () if here else (call.temporary(size),)
        placed = call.temporary(size)
        call.free(*wrapped)
        if place:
            call.free(placed)


def _values(call: KernelCall, count: int) -> None:
    """Values that are expanded, or not contiguous, are copied."""
    values, target = call["values"], call["self"]
    given = [index is not None for index in call["indices"]]
    rest = prod(size for size, indexed in zip_longest(target.shape, given) if not indexed)
    if prod(values.shape) < count * rest:
        call.temporary(count * rest * values.element_size())
    else:
        call.contiguous(values)


def _bits(target: torch.Tensor, indices: list) -> int:
    """Bits of the largest place. Source: ``Indexing.cu``, ``largestIndex``."""
    last = max((place for place, index in enumerate(indices) if index is not None), default=0)
    inner = prod(target.shape[last + 1 :])
    return max(1, ((prod(target.shape) - 1) // max(1, inner)).bit_length())


def sort_pairs(call: KernelCall, size: int, count: int, width: int, bits: int) -> None:
    """The arrays of a sort of indices: sorted, original, 0...n-1, and CUB's own."""
    call.temporary(size, size)
    numbers = call.temporary(size)
    work = call.ask(radix_sort(call.gpu, count, width, width, bits))
    call.free(work, numbers)


@row(
    "embedding_dense_backward",
    takes="above 3,072 indices, or with scale_grad_by_freq: before the result, sorted indices, their original order, "
    "arange(n), and CUB's sort; after it, where each segment (the rows of one index) and each of its parts begins, and a row "
    "in float32 for every 10 indices and every segment",
    source="cuda/Embedding.cu, embedding_dense_backward_cuda; EmbeddingBackwardKernel.cu",
    seen="h100",
)
def embedding_backward(call: KernelCall) -> None:
    call.copies("indices", "grad_output")
    _sorted_sums(call, call["grad_output"], prod(call["indices"].shape) > _FEW or call["scale_grad_by_freq"])


def _sorted_sums(call: KernelCall, grad: torch.Tensor, sorts: bool) -> None:
    """The indices are sorted before the result is asked for; then rows of one index are summed, in parts.

    Source: ``EmbeddingBackwardKernel.cu``, ``embedding_backward_cuda_kernel``.
    """
    if not sorts:
        return call.result(0)
    count, width = prod(call["indices"].shape), call["indices"].element_size()
    sort_pairs(call, count * width, count, width, 8 * width)
    if call["scale_grad_by_freq"]:
        call.temporary(count * width)
        for _ in range(2):
            call.once(scan_by_key(call.gpu, count, width))
    call.result(0)
    most = min(count, call["num_weights"])
    parts = count // _ROWS + most
    call.temporary(count * width, LONG)
    keys = call.ask(count * width)
    chosen = call.ask(unique_by_key(call.gpu, count, width))
    call.free(chosen, keys)
    call.temporary(most * width, most * width)
    call.once(scan(most, width))
    call.temporary(LONG, parts * width, parts * grad.shape[-1] * accumulated(grad.dtype))


@row(
    "_embedding_bag _embedding_bag_forward_only",
    takes="nothing; the results are allocated in this order: sizes of the bags, the bag of each index, the output, indices of "
    "the maxima",
    source="cuda/EmbeddingBag.cu, _embedding_bag_cuda",
    seen="h100 (_embedding_bag)",
)
def embedding_bag(call: KernelCall) -> None:
    call.copies("indices", "offsets", "weight")
    call.result(2, 1, 0, 3)


@row(
    "_embedding_bag_backward _embedding_bag_dense_backward",
    takes="mode max: nothing; else what embedding_dense_backward allocates for many indices",
    source="cuda/EmbeddingBag.cu, embedding_bag_backward_cuda_sum_avg",
    seen="h100",
)
def embedding_bag_backward(call: KernelCall) -> None:
    call.copies("indices", "grad")
    _sorted_sums(call, call["grad"], call["mode"] != _MAX and prod(call["indices"].shape) > 0)


@row(
    "index_reduce index_reduce_",
    takes="mean: counts, as large as the result; ones as large as the source, and a mask of the result, each freed at once",
    source="cuda/Indexing.cu, index_reduce_func_cuda",
    seen="h100",
)
def index_reduce(call: KernelCall) -> None:
    target = call["self"]
    if call["reduce"] == "mean":
        call.temporary(nbytes(target))
        call.once(nbytes(call["source"]), "TEMPORARY")
        call.once(prod(target.shape), "TEMPORARY")


@row(
    "scatter_reduce.two scatter_reduce_.two",
    takes="mean: ones as large as the source, counts as large as the result, and a mask of the result",
    source="TensorAdvancedIndexing.cpp, scatter_reduce_two",
    seen="h100",
)
def scatter_reduce(call: KernelCall) -> None:
    target = call["self"]
    if call["reduce"] == "mean":
        call.temporary(nbytes(call["src"]), nbytes(target), prod(target.shape))


@row(
    "masked_scatter_backward",
    takes="the elements that the mask selects, zeros for the rest, and both joined: a bound, because their number depends on "
    "values",
    source="TensorAdvancedIndexing.cpp, masked_scatter_backward_symint; cuda/Nonzero.cu",
)
def masked_scatter_backward(call: KernelCall) -> None:
    grad = call["grad_output"]
    count = prod(grad.shape)
    temporary = cub_reduce(call.gpu, count, 4) + select(call.gpu, count) + 8 * 512
    call.bound(
        count * (1 + LONG * grad.dim()) + 2 * nbytes(grad) + temporary, "how many elements a mask selects depends on its values"
    )


@row(
    "embedding_renorm_",
    takes="sorted indices, and what their sort allocates; the different ones, how many (8 bytes), and CUB's selection",
    source="cuda/Embedding.cu, embedding_renorm_cuda_",
    seen="h100",
)
def embedding_renorm(call: KernelCall) -> None:
    indices = call["indices"]
    if not indices.numel():
        return
    call.temporary(nbytes(indices))
    with call.within():
        call.temporary(indices.numel() * LONG)
        sorted_along(call, indices, -1)
    call.temporary(nbytes(indices), LONG)
    call.once(unique(call.gpu, indices.numel(), indices.element_size()))


@row(
    "nonzero",
    takes="before the result: the count (4 bytes) and the temporary storage of CUB's reduction; after it, that of CUB's "
    "selection",
    source="cuda/Nonzero.cu, nonzero_cuda_out_impl",
    seen="h100",
)
def nonzero(call: KernelCall) -> None:
    tensor, count = call["self"], prod(call["self"].shape)
    call.contiguous(tensor)
    call.ask(4)
    call.once(cub_reduce(call.gpu, count, 4))
    call.result(0)
    if tensor.dim():
        call.once(select(call.gpu, count))


@row(
    "masked_select masked_scatter masked_scatter_",
    takes="masked_scatter: an index of 8 bytes for each element of the mask, a copy of a mask that is broadcast, and CUB's "
    "scan; masked_select: the indices of True, a bound, because their number depends on values",
    source="cuda/IndexKernel.cpp, masked_scatter__cuda; IndexKernel.cu, launch_masked_scatter_kernel",
    seen="h100",
)
def masked(call: KernelCall) -> None:
    tensor, shape = call["self"], torch.broadcast_shapes(call["mask"].shape, call["self"].shape)
    count = prod(shape)
    if "scatter" in call.name:
        call.ask(count * LONG)
        call.contiguous(call["mask"].expand(shape))
        call.once(scan(count, LONG))
    else:
        call.bound(
            count * LONG * tensor.dim(), "masked_select allocates an index for each True, and their number depends on values"
        )


@row(
    "index_add_ index_add scatter_add_ scatter_add scatter gather index_select",
    takes="nothing, unless deterministic algorithms are on",
    source="cuda/Indexing.cu, ScatterGatherKernel.cu",
    seen="lm-medium-128-train",
)
def in_place(call: KernelCall) -> None:
    if call.gpu.deterministic:
        call.bound(6 * nbytes(call["self"]), "deterministic algorithms sort the indices")
