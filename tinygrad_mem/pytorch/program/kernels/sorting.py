"""Sorting, the largest k, and what is drawn by sorting."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log, log2, prod

import torch

from .call import LONG, Gpu, KernelCall, nbytes, row, up
from .cub import (
    aliased,
    radix_sort,
    run_lengths,
    running_sum,
    scan,
    scan_by_key,
    thrust_extreme,
    thrust_reduce_by_key,
    thrust_sort,
)
from .cub import reduce as cub_reduce
from .cub import unique as distinct
from .reductions import number, plain, reduce, summed

_PAIR = 8
_SMALL = 4096  # elements of an axis that are sorted in place


def stable_sort(call: KernelCall, tensor: torch.Tensor, dim: int) -> None:
    """The requests of a sort along an axis of more than 4,096 elements.

    Source: ``cuda/SortStable.cu``, ``launch_stable_sort_kernel``.
    """
    length, width = tensor.shape[dim], tensor.element_size()
    batches, count = prod(tensor.shape) // length, prod(tensor.shape)
    bits = 8 * width
    if batches == 1 or length >= 1_000_000:
        call.ask(length * LONG)
        for _ in range(batches):
            call.once(radix_sort(call.gpu, length, width, LONG, bits))
    elif batches < 128:
        call.ask(count * _PAIR, count * _PAIR)
        sorted_keys = call.ask(count * width)
        call.once(radix_sort(call.gpu, count, width, _PAIR, bits))
        call.free(sorted_keys)
        call.once(radix_sort(call.gpu, count, LONG, 0, max(1, (batches - 1).bit_length())))  # by row
    else:
        call.ask(count * LONG)
        call.once(aliased(count * width, count * LONG))


def sorted_along(call: KernelCall, tensor: torch.Tensor, dim: int) -> None:
    """A sort into two results, ``values`` and ``indices``. Source: ``cuda/Sort.cpp``, ``sort_cuda_kernel``."""
    if tensor.dim() == 0 or prod(tensor.shape) == 0:
        return
    if tensor.shape[dim] <= _SMALL:
        call.once(tensor.shape[dim] * LONG, "TEMPORARY")  # 0...n-1, copied into the indices
        return
    if tensor.stride(dim) != 1:
        call.temporary(nbytes(tensor), nbytes(tensor), prod(tensor.shape) * LONG)
    stable_sort(call, tensor, dim)


@row(
    "sort argsort msort",
    takes="an axis of up to 4,096 elements: arange(n). A longer one: indices (8 bytes each; twice for 2 to 127 rows) and CUB's "
    "sort; if its stride is not 1, copies of values and indices",
    source="cuda/Sort.cpp, sort_cuda_kernel; SortStable.cu; CUB dispatch_radix_sort.cuh",
    seen="h100",
)
def sort(call: KernelCall) -> None:
    sorted_along(call, call["self"], call.get("dim", 0))


def _several_blocks(slices: int, length: int) -> bool:
    """True if blocks share a slice. Source: ``cuda/TensorTopK.cu``, ``should_use_multiblock``."""
    bounds = [(20, 20_000), (40, 10_000), (80, 8000), (199, 5000), (799, 3000), (4000, 800)]
    least = next((least for most, least in bounds if slices <= most), 400)
    return length >= least


def _items(gpu: Gpu, slices: int, length: int) -> int:
    """Elements of a thread, 4 to 64. Source: ``cuda/TensorTopK.cu``, ``get_items_per_thread``."""
    blocks = min(65_536 // (40 * 256), 32 if gpu.threads >= 2048 else 16)
    return max(4, min(up(length * slices, gpu.processors * blocks * 256), 64))


@row(
    "topk",
    takes="if several blocks share a slice: for each slice a value, two counts, two bit patterns (one of each before PyTorch "
    "2.7) and 256 sums of 4 bytes (one before 2.10); for each block 520 bytes; CUB's scan, twice. If k is above 4,096, what "
    "sorting the results allocates",
    source="cuda/TensorTopK.cu, mbtopk::launch; TensorTopK.cpp, topk_out_cuda; CUB scan_by_key",
    seen="h100",
)
def topk(call: KernelCall) -> None:
    largest(call, call["self"], call["dim"], call["k"], call["sorted"])


def largest(call: KernelCall, tensor: torch.Tensor, dim: int, k: int, ordered: bool = True) -> None:
    """Ask for what finding the ``k`` largest, or smallest, numbers along an axis allocates."""
    if tensor.dim() == 0 or prod(tensor.shape) == 0 or k == 0:
        return
    length = tensor.shape[dim]
    slices = prod(tensor.shape) // length
    if _several_blocks(slices, length):
        _many_blocks(call, tensor, slices, length)
    if ordered and k > _SMALL:
        values = tensor.new_empty([k if axis == dim % tensor.dim() else size for axis, size in enumerate(tensor.shape)])
        call.temporary(prod(values.shape) * LONG, nbytes(values))
        with call.within():
            sorted_along(call, values, dim)
        call.once(prod(values.shape) * LONG, "TEMPORARY")


def _many_blocks(call: KernelCall, tensor: torch.Tensor, slices: int, length: int) -> None:
    width = tensor.element_size()
    blocks = slices * up(length, _items(call.gpu, slices, length) * 256)
    late = call.gpu.version >= (2, 10)
    twice = 2 if call.gpu.version >= (2, 7) else 1
    once = 0 if late else slices * 4
    sums = slices * 256 * 4 if late else 0
    found = (twice * slices * 4, twice * slices * max(4, width))
    sizes = (slices * width, once, *found, blocks * 256 * 2, sums, blocks * 4, blocks * 4)
    asked = [call.ask(size) for size in sizes]
    for _ in range(2):  # where each block's values begin: those that are large enough, and those that are equal
        call.once(scan_by_key(call.gpu, blocks, 4))
    call.free(*reversed(asked))


@row(
    "randperm",
    takes="n as a number; arange(n); random keys, twice, of 4 bytes (of 8 bytes from about 40,000 on, to keep the chance of "
    "two equal keys under a tenth); CUB's sort",
    source="cuda/Randperm.cu; TensorFactories.h, check_supported_max_int_with_precision",
    seen="h100",
)
def randperm(call: KernelCall) -> None:
    n, out = call["n"], call.outs[0]
    if n == 0:
        return
    call.once(out.element_size(), "TEMPORARY")
    call.temporary(nbytes(out))
    bits = min(64, ceil(log2(n - (6 * n * n + 1) / (log(0.9) * 12))))
    key = 4 if bits <= 32 else 8
    call.temporary(n * key, n * key)
    call.once(radix_sort(call.gpu, n, key, out.element_size(), bits))


@row(
    "multinomial",
    takes="without replacement, or for one sample: checks of the probabilities (extremes, sums and masks), exponential random "
    "numbers as large as the probabilities, and what finding the largest of them allocates; else three copies of the "
    "probabilities, and, for one row, CUB's scan",
    source="Distributions.cpp, multinomial_out; cuda/MultinomialKernel.cu",
    seen="h100",
)
def multinomial(call: KernelCall) -> None:
    tensor, samples = call["self"], call["num_samples"]
    rows = prod(tensor.shape[:-1])
    if call["replacement"] and samples > 1:
        call.temporary(*[nbytes(tensor)] * 3)
        if rows == 1:
            call.once(scan(prod(tensor.shape), tensor.element_size(), plain(tensor.dtype)))
        return
    _checks(call, tensor, rows)
    call.temporary(nbytes(tensor))
    if samples == 1:
        reduce(call, tensor, -1, 16)
    else:
        call.temporary(rows * samples * tensor.element_size())
        largest(call, tensor, -1, samples)


def _checks(call: KernelCall, tensor: torch.Tensor, rows: int) -> None:
    """No probability is negative or infinite, and none of the sums is zero; two masks of one byte stay."""
    checked = []
    for name in ("max", "min"):
        checked += [number(call, tensor, name), call.temporary(1)]
    call.temporary(1)
    call.free(*reversed(checked))
    if tensor.dim() == 1:
        sums, empty = number(call, tensor, "sum"), call.temporary(1)
        call.free(sums)
    else:
        sums = call.temporary(rows * tensor.element_size())
        with call.within():
            summed(call, tensor, 1)
        empty = call.temporary(rows)
        call.temporary(1)
        call.free(empty, sums)
    call.once(1, "TEMPORARY")


@row(
    "_unique _unique2 unique_consecutive",
    takes="a copy of an input that is not contiguous. Unless consecutive: a sorted copy, and CUB's sort, for the inverse of "
    "indices too (8 bytes each, twice); for the inverse, a running sum (8 bytes for each element; consecutive: marks of 4 "
    "bytes) and CUB's scan; how many differ (8 bytes), and CUB's selection or counts. Of bool: its sum and two counts. "
    "unique_consecutive along an axis: as unique_dim",
    source="cuda/UniqueCub.cu, compute_unique, UniqueCub; CUB dispatch_select_if.cuh, dispatch_reduce_by_key.cuh",
    seen="h100 (int64)",
)
def unique(call: KernelCall) -> None:
    tensor, inverse, counts = call["self"], call["return_inverse"], call.get("return_counts", False)
    consecutive = "consecutive" in call.name
    if call.get("dim") is not None and (tensor.dim() != 1 or call.get("dim") != 0):
        return along_an_axis(call)
    if not tensor.numel():
        return
    call.contiguous(tensor)
    if tensor.dtype is torch.bool and not consecutive:
        call.ask(4)
        call.once(cub_reduce(call.gpu, tensor.numel(), 4))
        call.result(0)
        call.temporary(0 if counts else 2 * LONG)
        call.result(*([2] if counts else []), *([1] if inverse else []))
    else:
        _different(call, tensor, inverse, counts, consecutive, call.result)


def _different(
    call: KernelCall, tensor: torch.Tensor, inverse: bool, counts: bool, consecutive: bool, result: Callable[[int], object]
) -> None:
    """Ask for what finding different numbers takes; ``result`` is called where a result is asked for: 0 the numbers, 1 the
    inverse, 2 counts. Source: ``cuda/UniqueCub.cu``, ``UniqueCub``, ``compute_unique``."""
    gpu, count, width = call.gpu, tensor.numel(), tensor.element_size()
    blocks = []
    if not consecutive:
        blocks.append(call.temporary(nbytes(tensor)))  # sorted
        numbers = call.temporary(count * LONG * inverse)
        blocks.append(call.temporary(count * LONG * inverse))  # and the places where they were
        call.once(radix_sort(gpu, count, width, LONG * inverse, 8 * width))
        call.free(numbers)
    if inverse:
        result(1)
        sums = call.temporary(count * (4 if consecutive else LONG))
        call.once(running_sum(gpu, count))
        call.free(sums)
    result(0)
    blocks.append(call.temporary(LONG))  # how many differ
    if counts:
        result(2)
    call.once(run_lengths(count) if counts else distinct(gpu, count, width, plain(tensor.dtype)))
    call.free(*reversed(blocks))


@row(
    "unique_dim",
    takes="sorted copies of values and indices: a bound, because the number of results depends on values",
    source="cuda/Unique.cu, unique_dim_cuda_template",
)
def along_an_axis(call: KernelCall) -> None:
    tensor = call["self"]
    size = 3 * nbytes(tensor) + 4 * LONG * prod(tensor.shape) + 8 * 512
    call.bound(size, "the temporaries of unique along an axis depend on the values that it sorts")


@row(
    "isin.Tensor_Tensor",
    takes="for a few test elements, a mask of each element with each of them, and one of the elements; else what _unique takes "
    "for the elements, with the inverse, and for the test elements (if not assume_unique: all are counted as different), both "
    "joined, a sort of that, and three masks",
    source="TensorCompare.cpp, isin_Tensor_Tensor_out, isin_sorting; cuda/TensorCompare.cpp, isin_default_kernel_gpu",
    seen="h100 (int64)",
)
def isin(call: KernelCall) -> None:
    elements, tests = call["elements"], call["test_elements"]
    count, most = prod(elements.shape), prod(tests.shape)
    call.result(0)
    if most < int(10.0 * count**0.145):
        call.ask(count * most)
        call.ask(count)
    elif count:
        _isin_sorting(call, elements, tests)


def _isin_sorting(call: KernelCall, elements: torch.Tensor, tests: torch.Tensor) -> None:
    """Source: ``TensorCompare.cpp``, ``isin_sorting``."""
    kept: dict[int, int] = {}  # the inverse stays until the end, both lists of different numbers until they are joined

    def keep(tensor: torch.Tensor) -> Callable[[int], object]:
        return lambda result: kept.setdefault(result, call.temporary(tensor.numel() * LONG if result else nbytes(tensor)))

    lists = [call.contiguous(each) for each in (elements, tests)]
    if not call["assume_unique"]:
        lists = []
        for each in (elements, tests):
            _different(call, each, each is elements, False, False, keep(each))
            lists.append(kept.pop(0))
    total, dtype = elements.numel() + tests.numel(), torch.result_type(elements, tests)
    joined = elements.new_empty(total, dtype=dtype)
    whole = call.temporary(nbytes(joined))
    call.free(*reversed(lists))
    ordered, order = call.temporary(nbytes(joined)), call.temporary(total * LONG)
    with call.within():
        sorted_along(call, joined, 0)
    same = call.temporary(total)
    call.once(total, "TEMPORARY")
    mask = call.temporary(total)
    if kept:
        call.once(elements.numel(), "TEMPORARY")
    call.free(mask, same, ordered, order, whole, *kept.values())
    if not call["assume_unique"]:
        less = total * (4 * dtype.itemsize + 3 * LONG + 3) + 16 * 512
        call.bound(less, "isin was counted as if all numbers differed. With equal ones it needs less")


@row(
    "median.default nanmedian.default",
    takes="a sorted copy of all elements, their indices (8 bytes each), and a few numbers; nanmedian also a mask of one byte "
    "for each element, and what its sum allocates",
    source="cuda/Sorting.cpp, median_impl",
    seen="h100",
)
def median_of_all(call: KernelCall) -> None:
    tensor = call["self"]
    count = prod(tensor.shape)
    if not count:
        return
    copy = call.contiguous(tensor)
    call.temporary(nbytes(tensor))
    with call.within():
        call.temporary(count * LONG)
        sorted_along(call, tensor.new_empty(count), 0)
    call.free(copy)
    if "nan" not in call.name:
        call.temporary(1)  # whether the last one is a number
    else:
        mask = call.temporary(count)
        sum = call.temporary(LONG)
        with call.within():
            summed(call, tensor.new_empty(count, dtype=torch.bool), into=torch.int64)
        rest, half = call.temporary(LONG), call.temporary(4)
        call.temporary(LONG)  # the place
        call.free(half, rest, sum, mask)
    call.result(0)


@row(
    "mode",
    takes="a contiguous copy with the axis last, if it is not so already. For an axis of more than 2,048 elements: always a "
    "copy, and for each row: indices (8 bytes each), the temporary storage of Thrust's sort, the distinct values with their "
    "counts, and the temporary storage of counting them",
    source="cuda/TensorModeKernel.cpp, mode_kernel_impl; TensorModeKernel.cu, ModeImpl",
    seen="h100",
)
def mode(call: KernelCall) -> None:
    tensor, dim = call["self"], call["dim"]
    length = tensor.shape[dim] if tensor.dim() else 1
    if length == 1 or not prod(tensor.shape):
        return
    if length <= 2048:
        call.contiguous(tensor.transpose(dim, -1))
        return
    call.temporary(nbytes(tensor))
    gpu, width = call.gpu, tensor.element_size()
    for _ in range(prod(tensor.shape) // length):
        with call.within():
            call.temporary(length * LONG)
            call.once(thrust_sort(gpu, length, width, LONG))
            call.once(cub_reduce(gpu, length, 4) + 4)
            call.temporary(length * width, length * LONG)
            call.once(thrust_reduce_by_key(length))
            call.once(thrust_extreme(gpu))
            call.once(cub_reduce(gpu, length, 16) + 16)  # and where that number is
    less = length * (width + LONG) + thrust_extreme(gpu)
    call.bound(less, "mode was counted as if all numbers differed. With equal ones it needs less")


@row(
    "searchsorted bucketize",
    takes="copies of arguments that are not contiguous, and of arguments whose dtype is not the common one",
    source="cuda/Bucketization.cu; BucketizationUtils.h, searchsorted_maybe_trim_input_tensors",
)
def searchsorted(call: KernelCall) -> None:
    bounds, values = call.get("sorted_sequence", call.get("boundaries")), call["self"]
    call.contiguous(bounds)
    call.copies("sorter", "self")
    if isinstance(values, torch.Tensor):
        count, dtype = prod(values.shape), values.dtype
    else:
        count, dtype = 1, torch.float64 if isinstance(values, float) else torch.int64
        call.temporary(dtype.itemsize)
    both = torch.result_type(bounds, values)
    for many, kind in ((count, dtype), (prod(bounds.shape), bounds.dtype)):
        call.temporary(many * both.itemsize if kind != both and dtype != bounds.dtype else 0)
