"""The table of what CUDA's kernels ask for beside their results, beside recordings of real GPUs and by hand from sources."""

from __future__ import annotations

import inspect
import math
import re
from itertools import takewhile
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from tests.pytorch import kernels_page  # noqa: E402
from tests.pytorch.recorded import traces  # noqa: E402
from tinygrad_mem.pytorch.program.kernels import ROWS, Gpu, Kernels, Requests, attention, cub, recurrent  # noqa: E402
from tinygrad_mem.pytorch.program.kernels.call import KernelCall, row  # noqa: E402
from tinygrad_mem.pytorch.program.kernels.reductions import axes, staged  # noqa: E402

aten = torch.ops.aten
SMALL = Gpu(capability=(7, 5), processors=72, threads=1024, version=(2, 6))  # 144 blocks of 512 threads, as cnn-small's GPU
H100, A100 = Gpu((9, 0), 132, version=(2, 6)), Gpu(capability=(8, 0), processors=108, version=(2, 6))


def empty(*shape: int, dtype: Any = torch.float32) -> Any:
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype)


def asked(beside: Requests) -> list[int]:
    return [step.size for step in beside.steps if step.kind in ("ask", "keep")]


def beside(gpu: Gpu, func: Any, *args: Any, outs: Any, **kwargs: Any) -> Requests:
    return Kernels(gpu).beside(func, args, kwargs, outs)


def follows(name: str, op: str) -> list[tuple[int, list[int]]]:
    """Of each first request of an op in a recording: its bytes, and those of the requests by the same op after it."""
    found: list[tuple[int, list[int]]] = []
    before = ""
    for action, _, size, _, by in traces(name):
        if action != "alloc":
            continue
        if by != op:
            before = by
            continue
        if before == op:
            found[-1][1].append(size)
        else:
            found.append((size, []))
        before = by
    return found


# --- recordings -----------------------------------------------------------------------------------------------------------


def test_every_staging_buffer_of_any_in_the_recording() -> None:
    """``any`` over masks of 1 to 1,966,080 elements, 310 times; the mask is the request before."""
    masks = [event for event in traces("cnn-small") if event[0] == "alloc"]
    checked = 0
    for place, (_, _, size, _, op) in enumerate(masks):
        if op != "ne_Tensor" or masks[place + 1][4] != "any":
            continue
        theirs = [each[2] for each in takewhile(lambda each: each[4] == "any", masks[place + 1 :])]
        mask = empty(size, dtype=torch.bool)
        ours = beside(SMALL, aten.any.default, mask, outs=empty(dtype=torch.bool))
        assert theirs == [1, *asked(ours)], size
        checked += 1
    assert checked == 310


def test_every_mean_of_the_recording() -> None:
    """Over 1,966,080 numbers: 576 and 4 bytes, in this order, the last ends first."""
    theirs = [sizes for first, sizes in follows("cnn-small", "mean_dim") if first == 4]
    ours = beside(SMALL, aten.mean.default, empty(1, 30, 256, 256), outs=empty())
    assert {tuple(sizes) for sizes in theirs} == {(576, 4)} == {tuple(asked(ours))}
    ends = [step.block for step in ours.events(1) if step.kind == "free"]
    assert ends == [step.block for step in reversed(ours.steps)]


def test_the_language_model_stages_nothing() -> None:
    """Its sums over 512 tokens are below what blocks share: the recording has no second request of ``sum`` or ``mean``."""
    assert all(not more for _, more in follows("lm-medium-128-train", "mean_dim"))
    ours = beside(H100, aten.sum.dim_IntList, empty(4, 128, 1024), [0, 1], outs=empty(1024))
    assert asked(ours) == []


def test_the_gradient_of_an_index_as_recorded() -> None:
    """512 indices into 10,000 rows: each request and each end of the recording, in order."""
    events = traces("lm-medium-128-train")
    first = next(place for place, event in enumerate(events) if event[4] == "remainder_Tensor")
    theirs, names = [], {}
    for action, address, size, _, _ in events[first:]:
        if action == "alloc":
            names[address] = len(theirs)
            theirs.append(("ask", size))
        elif action == "free_requested":
            theirs.append(("free", names[address]))
        if len(theirs) == 12:
            break
    indices = empty(4, 128, dtype=torch.int64)
    ours, names = [], {}
    table = empty(10_000, 1024)
    found = beside(A100, aten._index_put_impl_.default, table, [indices], empty(4, 128, 1024), True, True, outs=table)
    for step in found.events(0):
        if step.kind == "ask":
            names[step.block] = len(ours)
            ours.append(("ask", step.size))
        elif step.kind == "free":
            ours.append(("free", names[step.block]))
    assert ours == theirs


def test_products_of_the_recording() -> None:
    """A bias: 1 MiB of cuBLASLt, but not for one column; backward's thread keeps 8.125 MiB after its first result."""
    requests = [event for event in traces("cnn-small") if event[0] == "alloc"]
    lt = [requests[place + 1][2] for place, event in enumerate(requests) if event[4] == "addmm" and event[2] in (800, 400, 80)]
    assert set(lt) == {1 << 20}
    kernels = Kernels(SMALL)
    args = (empty(25), empty(4, 50), empty(50, 25))
    assert asked(kernels.beside(aten.addmm.default, args, {}, empty(4, 25))) == [1 << 20, 8_519_680]
    assert asked(kernels.beside(aten.addmm.default, args, {}, empty(4, 25))) == [1 << 20]
    one = (empty(1), empty(4, 50), empty(50, 1))
    assert asked(kernels.beside(aten.addmm.default, one, {}, empty(4, 1))) == []
    assert [event[2] for event in requests if event[4] == "!mm"] == [8_519_680]
    backward = kernels.beside(aten.mm.default, (empty(4, 25), empty(25, 50)), {}, empty(4, 50), thread="autograd")
    assert asked(backward) == [8_519_680]
    assert [step.kind for step in backward.events(1)] == ["result", "keep"]


def test_the_mask_of_dropout_comes_first() -> None:
    ours = beside(SMALL, aten.native_dropout.default, empty(64), 0.5, True, outs=(empty(64), empty(64, dtype=torch.bool)))
    assert follows("cnn-small", "native_dropout")[0] == (64, [256])
    assert [step.block for step in ours.events(2)] == [1, 0]


def test_workspaces_of_convolutions_are_below_the_bound() -> None:
    """Recorded: 5 x 5 kernels; forward 82,880, 51,328 and 205,056 bytes, backward 204,928, 84,032 and 50,168."""
    layers = [(30, 16, 256), (16, 32, 128), (32, 64, 64)]
    recorded = [more[0] for _, more in follows("cnn-small", "cudnn_convolution")[:3]]
    for (ins, outs, side), bytes_ in zip(layers, recorded, strict=True):
        x, weight, y = empty(1, ins, side, side), empty(outs, ins, 5, 5), empty(1, outs, side, side)
        one, two = [1, 1], [2, 2]
        found = beside(SMALL, aten.convolution.default, x, weight, None, one, two, one, False, [0, 0], 1, outs=y)
        assert asked(found) == []
        assert bytes_ < found.bounds[0].size < 64 << 20
        assert "heuristics" in found.bounds[0].why


# --- formulas, by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "settings", "size"),
    [
        (H100, {}, 32 << 20),
        (A100, {}, 8_519_680),
        (A100, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, 32 << 20),
        (A100, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, 1 << 17),
        (Gpu(capability=(12, 0), version=(2, 13)), {}, 32 << 20),
        (Gpu(capability=(12, 0), version=(2, 8)), {}, 8_519_680),
    ],
)
def test_the_workspace_of_cublas(gpu: Gpu, settings: dict[str, str], size: int) -> None:
    gpu = Gpu(gpu.capability, gpu.processors, version=gpu.version, settings=settings)
    assert asked(beside(gpu, aten.mm.default, empty(2, 3), empty(3, 4), outs=empty(2, 4))) == [size]


@pytest.mark.parametrize(
    ("version", "first", "second"),
    [((2, 6), [1 << 20, 32 << 20], [1 << 20]), ((2, 9), [32 << 20, 1 << 20], []), ((2, 13), [32 << 20], [])],
)
def test_the_workspace_of_cublaslt_by_version(version: tuple[int, int], first: list[int], second: list[int]) -> None:
    kernels = Kernels(Gpu((9, 0), 132, version=version))
    args = (empty(8), empty(4, 16), empty(16, 8))
    for sizes in (first, second):
        assert asked(kernels.beside(aten.addmm.default, args, {}, empty(4, 8))) == sizes


def test_a_product_copies_what_cublas_does_not_take() -> None:
    strided = empty(4, 6, 8)[:, :, ::2]
    assert asked(beside(A100, aten.bmm.default, strided, empty(4, 4, 5), outs=empty(4, 6, 5))) == [4 * 6 * 4 * 4, 8_519_680]
    turned = empty(4, 8, 6).transpose(1, 2)
    assert asked(beside(A100, aten.bmm.default, turned, empty(4, 8, 5), outs=empty(4, 6, 5))) == [8_519_680]


def test_sums_over_rows_stage_for_each_thread() -> None:
    """1,024 columns of 1,024 rows, four at a time: 8 x 16 blocks of 32 x 4 threads. A value for each thread of each result."""
    assert staged(axes(empty(4, 256, 1024), [0, 1]), H100, 4) == (4 * 1024 * 16 * 32 * 4, 4 * 8)
    assert staged(axes(empty(4, 128, 1024), [0, 1]), H100, 4) == (0, 0)


def test_axes_of_a_reduction_are_joined() -> None:
    assert [(d.size, d.step, d.out) for d in axes(empty(4, 8, 16), [0, 1])] == [(32, 16, 0), (16, 1, 1)]
    assert [(d.size, d.step, d.out) for d in axes(empty(4, 8, 16), [2])] == [(16, 1, 0), (32, 16, 1)]
    assert [(d.size, d.step, d.out) for d in axes(empty(4, 8, 16), [0, 1, 2])] == [(512, 1, 0)]
    turned = empty(4, 8, 16).transpose(0, 2)
    assert [(d.size, d.step, d.out) for d in axes(turned, [0])] == [(16, 1, 0), (4, 128, 1), (8, 16, 4)]  # the result's order


def test_a_sum_of_a_mask_copies_it() -> None:
    mask = empty(100, dtype=torch.bool)
    found = beside(H100, aten.sum.default, mask, outs=empty(dtype=torch.int64))
    assert asked(found) == [800]


def test_the_gradient_of_softmax_multiplies_first() -> None:
    y = empty(4, 10)
    assert asked(beside(H100, aten._softmax_backward_data.default, y, y, -1, torch.float32, outs=y)) == [160]


def test_norms_of_a_list() -> None:
    found = beside(H100, aten._foreach_norm.Scalar, [empty(200_000), empty(3)], 2, outs=[empty(), empty()])
    assert asked(found) == [2 * 4 * 4]
    assert [step.kind for step in found.events(2)] == ["ask", "result", "result", "free"]


def test_cub_sorts_little_in_one_tile() -> None:
    assert cub.radix_sort(A100, 2304, 8, 8, 14) == 1
    assert cub.radix_sort(A100, 0, 8, 8, 14) == 1
    large = cub.radix_sort(A100, 2305, 8, 8, 14)
    # 14 bits are two passes: 2 x 256 counts of 8 bytes, one tile of 3,840 x 256 x 4, two arrays, two counters; 255 to align
    assert large == 4096 + 1024 + 2 * math.ceil(2305 * 8 / 256) * 256 + 256 + 255


def test_the_gradient_of_a_long_embedding() -> None:
    ids = empty(4096, dtype=torch.int64)
    found = beside(A100, aten.embedding_dense_backward.default, empty(4096, 64), ids, 1000, -1, False, outs=empty(1000, 64))
    parts = 409 + 1000
    sizes = asked(found)
    assert sizes[:3] == [32_768] * 3
    assert sizes[-1] == parts * 64 * 4
    assert found.steps.index(next(step for step in found.steps if step.kind == "result")) == 6
    few = beside(A100, aten.embedding_dense_backward.default, empty(8, 64), ids[:8], 1000, -1, False, outs=empty(1000, 64))
    assert asked(few) == []


def test_gathered_parameters_are_copied_by_a_list_of_addresses() -> None:
    def copied(whole: Any, sizes: list[int]) -> list[int]:
        outs = [empty(whole.shape[0], size, dtype=whole.dtype) for size in sizes]
        return asked(beside(A100, aten.split_with_sizes_copy.out, whole, sizes, 1, out=outs, outs=None))

    assert copied(empty(8, 1024), [1000, 24]) == [8 * (3 * 2 + 2 + 1 + 3)]  # of 4,000 and 96 bytes: two tiles of 2,048 and one
    # 8,192 tiles x 64 rows are 152 times what the GPU takes: 13 rows and 12 tiles for each block of threads
    assert copied(empty(64, 4 << 20), [4 << 20]) == [8 * (3 + math.ceil((16 << 20) / (12 * 2048)) + 2)]
    with FakeTensorMode():
        assert (
            asked(beside(A100, aten.split_with_sizes_copy.out, empty(2, 4), [4], 1, out=[torch.empty(2, 4).half()], outs=None))
            == []
        )


def test_gradients_to_be_reduced_are_copied_by_a_list_of_addresses() -> None:
    def copied(given: Any, into: Any) -> list[int]:
        tensors, out = [empty(10, 3, dtype=given), empty(7, dtype=given)], empty(4, 11, dtype=into)
        return asked(beside(A100, aten._chunk_cat.out, tensors, 0, 4, out=out, outs=out))

    assert copied(torch.float32, torch.float32) == copied(torch.bfloat16, torch.float32) == [8 * (4 * 2 + 2 * 3 + 2)]
    assert copied(torch.float16, torch.float32) == [12 * 3 * 2, 8 * 2]  # padded to 12 rows and to 8
    turned, out = empty(3, 8).t(), empty(4, 6)  # an H100 recorded that it is copied, though it has no gaps
    assert asked(beside(A100, aten._chunk_cat.out, [turned], 0, 4, out=out, outs=out)) == [3 * 8 * 4]


def test_sorts_by_length() -> None:
    def sizes(*shape: int) -> list[int]:
        x = empty(*shape)
        return asked(beside(A100, aten.sort.default, x, outs=(x, empty(*shape, dtype=torch.int64))))

    assert sizes(3, 100) == [800]
    assert sizes(5000)[0] == 40_000
    assert sizes(2, 5000)[:2] == [80_000, 80_000]
    assert sizes(200, 5000)[0] == 8_000_000


def test_flash_attention() -> None:
    q = empty(2, 8, 256, 64, dtype=torch.bfloat16)
    forward = beside(A100, aten._scaled_dot_product_flash_attention.default, q, q, q, outs=[q])
    # 2 x 8 x 4 blocks on 216 units, and one block of keys: it cannot be split
    assert asked(forward) == []
    one, cache = empty(1, 8, 1, 64, dtype=torch.bfloat16), empty(1, 8, 4096, 64, dtype=torch.bfloat16)
    decode = beside(A100, aten._scaled_dot_product_flash_attention.default, one, cache, cache, outs=[one])
    parts = attention.splits(A100, 8, 16)
    assert parts > 1
    assert asked(decode) == [parts * 8 * 4, parts * 8 * 64 * 4]
    k = empty(2, 2, 256, 64, dtype=torch.bfloat16)
    args = (q.transpose(1, 2).contiguous().transpose(1, 2), q, k, k, q.transpose(1, 2).contiguous().transpose(1, 2))
    rest = (empty(2, 8, 256), None, None, 256, 256, 0.0, True, empty(dtype=torch.int64), empty(dtype=torch.int64))
    backward = beside(A100, aten._scaled_dot_product_flash_attention_backward.default, *args, *rest, outs=[q, k, k])
    assert asked(backward) == [2 * 8 * 256 * 4, 2 * 8 * 256 * 64 * 4, *[2 * 256 * 8 * 64 * 2] * 2]


BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("gpu", "dtype", "size", "options", "expected"),
    [
        (A100, BF16, 64, {}, "flash"),
        (A100, F32, 64, {}, "efficient"),
        (A100, F64, 64, {}, "math"),
        (A100, BF16, 64, {"mask": True}, "efficient"),
        (A100, BF16, 320, {}, "efficient"),
        (A100, F32, 66, {}, "math"),
        (SMALL, F16, 64, {}, "efficient"),
        (SMALL, BF16, 64, {}, "math"),
        (Gpu(capability=(12, 0), version=(2, 6)), BF16, 64, {}, "math"),
        (Gpu(capability=(12, 0), version=(2, 13)), BF16, 64, {}, "flash"),
        (Gpu((9, 0), version=(2, 13)), BF16, 64, {}, "cudnn"),
        (Gpu((9, 0), version=(2, 13), cudnn=91002), BF16, 64, {}, "flash"),
        (Gpu((9, 0), version=(2, 13), settings={"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}), BF16, 64, {}, "flash"),
        (Gpu((9, 0), version=(2, 10)), BF16, 64, {}, "flash"),  # the wheel's cuDNN is 9.10
        (Gpu((9, 0), version=(2, 11)), BF16, 64, {}, "cudnn"),
        (Gpu((9, 0), version=(2, 11)), BF16, 256, {}, "cudnn"),
        (Gpu((10, 0), version=(2, 11)), BF16, 256, {}, "flash"),
        (Gpu((9, 0), version=(2, 11)), BF16, 64, {"keys": 1}, "flash"),
        (Gpu((9, 0), version=(2, 11)), BF16, 64, {"queries": 1}, "cudnn"),
        (Gpu((9, 0), version=(2, 11)), BF16, 64, {"queries": 1, "dropout": 0.1}, "flash"),
        (A100, BF16, 64, {"heads": 2, "gqa": True}, "flash"),
        (A100, F32, 64, {"heads": 2, "gqa": True}, "math"),
        (A100, F32, 64, {"gqa": True}, "efficient"),  # as many heads: nothing is shared
        (A100, BF16, 64, {"keys": 32, "causal": True}, "efficient"),
    ],
)
def test_which_attention_runs(gpu: Gpu, dtype: Any, size: int, options: dict[str, Any], expected: str) -> None:
    q = empty(2, 8, options.get("queries", 16), size, dtype=dtype)
    k = empty(2, options.get("heads", 8), options.get("keys", 16), size, dtype=dtype)
    mask = empty(16, 16, dtype=torch.bool) if options.get("mask") else None
    asks = {name: options[name] for name in ("causal", "gqa", "dropout") if name in options}
    assert attention.backend(q, k, k, mask, gpu=gpu, **asks) == expected


def test_the_sums_of_efficient_attentions_backward() -> None:
    """As an H100 asked: tiles of 64 queries up to 64 numbers, of 128 beyond; 16 bytes before each. In 16 bits, from the source:
    also keys and values where 128 numbers are too many for registers, for each part of the keys."""

    def size(gpu: Gpu, width: int, dtype: Any, heads: int = 16, queries: int = 512, keys: int = 512) -> list[int]:
        q, k = empty(1, heads, queries, width, dtype=dtype), empty(1, heads, keys, width, dtype=dtype)
        return [attention._sums(gpu, tile, q, k, k) for tile in attention._tiles(gpu, dtype is not F32, width, False)]

    hopper = Gpu((9, 0), 132, version=(2, 11))
    assert size(hopper, 64, F32) == [2_099_200]
    assert size(hopper, 40, F32, queries=500, keys=500) == [2_099_200]
    assert size(hopper, 64, F32, heads=2, queries=100, keys=4096) == [65_600]
    assert size(hopper, 256, F32, heads=8)[0] == 4_196_352
    assert size(hopper, 128, BF16)[0] == 16 * 4 * (128 * 128 * 4 + 16)
    assert size(hopper, 256, BF16, heads=50)[0] == 50 * (4 * 512 * 2 * 256 * 4 + 4 * 4 * (128 * 64 * 4 + 16))
    assert size(SMALL, 256, F32, heads=8) == [8 * 8 * 4 * (64 * 64 * 4 + 16)]
    assert size(hopper, 256, BF16, heads=0) == [0, 0]


def test_attention_by_cudnn_with_one_query_is_bounded() -> None:
    """A cache of 1,000 and 4,096 keys: an H100 took 8,576 and 67,712 bytes, and none for 512."""
    for keys, took in ((512, 0), (1000, 8_576), (4096, 67_712)):
        one, cache = empty(1, 8, 1, 64, dtype=BF16), empty(1, 8, keys, 64, dtype=BF16)
        args = (one, cache, cache, None, False)
        found = beside(H100, aten._scaled_dot_product_cudnn_attention.default, *args, outs=[one, *[None] * 8])
        assert asked(found) == []
        assert took < found.bounds[0].size < 1 << 21


def test_a_product_of_nothing_makes_no_handle() -> None:
    assert asked(beside(H100, aten.mm.default, empty(5, 0), empty(0, 4), outs=empty(5, 4))) == []
    assert asked(beside(H100, aten.addmm.default, empty(4), empty(5, 0), empty(0, 4), outs=empty(5, 4))) == []


def test_products_of_groups_and_of_scaled_numbers_as_an_h100_asked() -> None:
    hopper, rows, weight = Gpu((9, 0), 132, version=(2, 11)), empty(256, 64, dtype=BF16), empty(4, 64, 32, dtype=BF16)
    ends, out = empty(4, dtype=torch.int32), empty(256, 32, dtype=BF16)
    assert asked(beside(hopper, aten._grouped_mm.default, rows, weight, ends, outs=out)) == [240, 67_584]
    left, right, one = empty(16, 32, dtype=torch.float8_e4m3fn), empty(32, 16, dtype=torch.float8_e4m3fn), empty()
    found = beside(hopper, aten._scaled_mm.default, left, right, one, one, outs=empty(16, 16))
    assert asked(found) == [32 << 20, 1 << 20]


def cells(mode: int, steps: int, batch: int, inputs: int, hidden: int, layers: int = 1, **options: Any) -> recurrent.Cells:
    ways, width = options.get("directions", 1), options.get("projected", hidden)
    dtype, dropout = options.get("dtype", torch.float32), options.get("dropout", False)
    return recurrent.Cells(mode, steps, batch, inputs, hidden, width, layers, ways, dtype, dropout)


RELU, LSTM, GRU = 1, 2, 3


@pytest.mark.parametrize(
    ("layer", "workspace", "reserve"),
    [
        (cells(LSTM, 64, 32, 256, 256), 23_429_632, 10_486_016),
        (cells(LSTM, 64, 32, 256, 256, dtype=torch.bfloat16), 32_637_440, 5_243_136),
        (cells(LSTM, 20, 8, 64, 128, 2), 19_521_856, 901_376),
        (cells(LSTM, 20, 8, 64, 128, 2, dtype=torch.float16), 18_149_696, 450_816),
        (cells(LSTM, 20, 8, 64, 128, 2, dtype=torch.bfloat16), 17_502_528, 450_816),
        (cells(LSTM, 20, 8, 64, 128, 2, dropout=True), 19_603_776, 903_936),
        (cells(LSTM, 20, 8, 64, 128, projected=32), 9_107_776, 512_256),
        (cells(LSTM, 8, 1, 9, 3), 8_392_096, 736),
        (cells(LSTM, 3, 2, 4, 3, directions=2), 16_780_960, 992),
        (cells(GRU, 20, 8, 64, 128, directions=2), 19_472_704, 983_296),
        (cells(GRU, 8, 2, 9, 3, 2), 16_783_712, 2_752),
        (cells(GRU, 8, 8, 8, 8, directions=2), 16_837_440, 24_832),
        (cells(RELU, 20, 8, 64, 128), 9_658_688, 82_176),
        (cells(RELU, 5, 3, 4, 3, 2), 16_781_376, 832),
        (cells(RELU, 4, 3, 9, 3, directions=2), 16_783_232, 544),
    ],
)
def test_what_cudnn_took_for_recurrent_layers_on_an_h100(layer: recurrent.Cells, workspace: int, reserve: int) -> None:
    assert layer.reserve() == reserve
    assert abs(layer.workspace() - workspace) < layer.unsure(Gpu((9, 0), 132))


def test_a_call_of_cudnns_layer_is_bounded() -> None:
    x, h = empty(10, 4, 32), empty(1, 4, 64)
    weights = [empty(256, 32), empty(256, 64), empty(256), empty(256)]
    args = (x, weights, 4, None, h, h, 2, 64, 0, 1, False, 0.0, True, False, [], None)
    found, layer = beside(A100, aten._cudnn_rnn.default, *args, outs=[x]), cells(LSTM, 10, 4, 32, 64)
    assert asked(found) == [(256 * 32 + 256 * 64 + 512) * 4, layer.workspace(), layer.reserve()]
    assert found.bounds[0].size == layer.unsure(A100)


def test_indices_of_unlike_strides_are_copied() -> None:
    """``x[rows[:, None], columns]``: 4 x 6 places of 8 bytes, twice. Indices that are alike, and one alone, are not copied."""
    x, rows, columns = empty(8, 8), empty(4, 1, dtype=torch.int64), empty(6, dtype=torch.int64)
    found = beside(A100, aten.index.Tensor, x, [rows, columns], outs=empty(4, 6))
    assert asked(found) == [4 * 6 * 8] * 2
    assert [step.kind for step in found.steps] == ["ask", "ask", "result"]
    assert asked(beside(A100, aten.index.Tensor, x, [columns, columns], outs=empty(6))) == []
    assert asked(beside(A100, aten.index.Tensor, x, [rows], outs=empty(4, 1, 8))) == []
    assert asked(beside(A100, aten.index.Tensor, x, [columns.int()], outs=empty(6, 8))) == [6 * 8]
    assert asked(beside(A100, aten.index_put_.default, x, [rows, columns], empty(4, 6), outs=x)) == [4 * 6 * 8] * 2


def test_ids_without_the_last_of_each_row_are_copied_for_an_embedding() -> None:
    ids, weight = empty(4, 129, dtype=torch.int64), empty(100, 16)
    assert asked(beside(A100, aten.embedding.default, weight, ids[:, :-1], outs=empty(4, 128, 16))) == [4 * 128 * 8]
    assert asked(beside(A100, aten.embedding.default, weight, ids, outs=empty(4, 129, 16))) == []
    assert asked(beside(A100, aten.embedding.default, weight, ids[:1, :-1], outs=empty(1, 128, 16))) == []
    assert asked(beside(A100, aten.embedding.default, weight, ids[:, 0], outs=empty(4, 16))) == []


def test_ops_on_each_element_that_copy_first() -> None:
    number = empty(10, dtype=torch.complex64)
    assert asked(beside(A100, aten.abs.default, number, outs=empty(10))) == [80]
    assert asked(beside(A100, aten.abs.default, empty(10), outs=empty(10))) == []
    mask, half = empty(4, 10, dtype=torch.bool), empty(10, dtype=torch.float16)
    with FakeTensorMode():
        half, number = torch.empty(10, dtype=torch.float16, device="cuda"), torch.empty(())
    assert asked(beside(A100, aten.where.self, mask, half, empty(4, 10), outs=empty(4, 10))) == [40]
    assert asked(beside(A100, aten.where.self, mask, half, number, outs=empty(4, 10, dtype=torch.float16))) == [2]
    one = beside(A100, aten.normal.float_Tensor, 0.0, empty(10), outs=empty(10))
    assert asked(one) == [4, 1, 4, 1, 4]
    check = ["ask", "ask", "free", "free"]
    assert [step.kind for step in one.events(1)] == [*check, "result", *check, "ask", "free"]


@pytest.mark.parametrize(("rows", "columns", "staged_bytes"), [(70_000, 64, [294_912, 4]), (100_000, 10, [])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_norm_of_many_rows_adds_up_parts(rows: int, columns: int, staged_bytes: list[int], dtype: Any) -> None:
    """Recorded on an H100: 32 rows a part, whose sum is a result of its own, in the place of the first one."""
    x, number, weight = empty(rows, columns, dtype=dtype), empty(rows, 1), empty(columns, dtype=dtype)
    outs = [x, weight, weight]
    gpu, width = Gpu((9, 0), 132, version=(2, 11)), dtype.itemsize
    args = (x, x, [columns], number, number, weight, weight, [True, True, True])
    found = beside(gpu, aten.native_layer_norm_backward.default, *args, outs=outs)
    part = -(-rows // 32) * columns * width
    assert asked(found) == [columns * width] * 2 + [part] * 2 + staged_bytes * 2
    assert [step.block for step in found.steps if step.kind == "result"] == [0, 1, 2]
    few = beside(Gpu((9, 0), 132, version=(2, 7)), aten.native_layer_norm_backward.default, *args, outs=outs)
    assert asked(few) == []


@pytest.mark.parametrize(
    ("shape", "forward", "backward"),
    [
        ((8, 64, 32, 32), [32_768, 8], [16_384, 8]),
        ((2, 128, 28, 56), [26_624, 16], [13_312, 16]),
        ((2, 30, 7, 9), [], []),
        ((3, 5), [], []),
    ],
)
def test_a_batch_norm_of_channels_beside_each_other_stages_its_sums(
    shape: tuple[int, ...], forward: list[int], backward: list[int]
) -> None:
    """Recorded on an H100 for bfloat16 in channels_last; the sums of 3 rows of 5 fit one block."""
    with FakeTensorMode():
        x = torch.empty(shape, dtype=torch.bfloat16)
        x = x.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else x
    each, none = empty(shape[1]), empty(0)
    made = beside(H100, aten.native_batch_norm.default, x, each, each, each, each, True, 0.1, 1e-5, outs=[x, each, each])
    assert asked(made) == forward
    evaluated = beside(H100, aten.native_batch_norm.default, x, each, each, each, each, False, 0.1, 1e-5, outs=[x, each, each])
    assert asked(evaluated) == []
    sums = [4 * shape[1]] * 2
    func, mask = aten.native_batch_norm_backward.default, [True, True, True]
    trained = beside(H100, func, x, x, each, each, each, each, each, True, 1e-5, mask, outs=[x, each, each])
    assert asked(trained) == sums + backward
    assert [step.block for step in trained.steps if step.kind == "result"] == [1, 2, 0]
    given = beside(H100, func, x, x, each, each, each, none, none, False, 1e-5, mask, outs=[x, each, each])
    assert asked(given) == [4 * shape[1], *sums, *backward]  # the inverse deviations first
    frozen = beside(H100, func, x, x, each, each, each, none, none, False, 1e-5, [True, False, False], outs=[x, None, None])
    assert asked(frozen) == [4 * shape[1]]


# --- the table itself -----------------------------------------------------------------------------------------------------


def test_the_page_is_the_table() -> None:
    assert kernels_page.PAGE.read_text(encoding="utf-8") == kernels_page.page()


def test_each_op_of_the_table_is_one_of_pytorchs() -> None:
    unknown = [op for op in ROWS if not hasattr(aten, op.split(".")[0])]
    assert unknown == ["miopen_batch_norm"] or unknown == []


def test_rows_read_arguments_that_their_ops_have() -> None:
    missing = []
    for op, found in ROWS.items():
        name, _, overload = op.partition(".")
        read = set(re.findall(r'call\["(\w+)"\]', inspect.getsource(found.rule)))
        packet = getattr(aten, name, None)
        for each in [overload] if overload else packet.overloads() if packet else []:
            schema = getattr(packet, each or "default")._schema
            if schema.name.startswith("aten::") and str(schema.arguments[0].type) != "t[]":
                missing += [f"{op}.{each}: {name}" for name in read - {argument.name for argument in schema.arguments}]
    assert missing == []


def test_a_bias_of_a_large_head_stages_more_than_its_gradient() -> None:
    """4,096 rows of 50,000: 391 groups of 128 results on 2,112 places: six blocks share each, a value for each thread."""
    found = beside(H100, aten.sum.dim_IntList, empty(4096, 50_000), [0], outs=empty(50_000))
    assert asked(found) == [4 * 50_000 * 6 * 32 * 4, 4 * 391]


def test_long_sums_run_in_parts() -> None:
    """2^30 numbers of 4 bytes: two parts of 2^29, one after the other, each staged by 528 blocks or more."""
    found = beside(H100, aten.sum.default, empty(1 << 30), outs=empty())
    half = beside(H100, aten.sum.default, empty(1 << 29), outs=empty())
    assert asked(found) == asked(half) * 2
    assert [step.kind for step in found.steps] == ["ask", "ask", "free", "free"] * 2


def test_an_op_without_a_row_asks_for_nothing() -> None:
    assert beside(H100, aten.relu.default, empty(3), outs=empty(3)) == Requests()


def test_an_op_has_one_row() -> None:
    with pytest.raises(ValueError, match="sum has a row: sums"):

        @row("sum", takes="nothing", source="nowhere")
        def again(call: KernelCall) -> None:
            return None


@pytest.mark.parametrize(
    ("shape", "stride", "copies"),
    [
        ((1, 8), (3, 1), False),  # one row: its step means nothing
        ((8, 1), (1, 3), False),
        ((4, 8), (3, 1), True),
        ((2, 1, 8), (8, 3, 1), False),  # a batch: dense as a whole
        ((2, 1, 8), (16, 3, 1), True),
        ((2, 4, 8), (64, 16, 2), True),
    ],
)
def test_a_product_copies_a_matrix_that_cublas_cannot_read(shape: tuple, stride: tuple, copies: bool) -> None:
    """By hand from ``prepare_matrix_for_cublas`` and ``prepare_batch_matrix_for_cublas``."""
    with FakeTensorMode():
        left = torch.empty_strided(shape, stride)
        right = torch.empty(*shape[:-2], shape[-1], 5)
        out = torch.empty(*shape[:-2], shape[-2], 5)
    func = aten.mm.default if len(shape) == 2 else aten.bmm.default
    sizes = [step.size for step in beside(A100, func, left, right, outs=out).steps if step.kind == "ask"]
    assert sizes == ([4 * math.prod(shape)] if copies else [])


# --- what sorts, and what reads pixels ------------------------------------------------------------------------------------


def test_the_median_of_all_elements_sorts_them():
    """Values of 4 bytes and places of 8, and once more 0...n-1 or what a longer sort takes; then a mask of one number."""
    few = beside(H100, aten.median.default, empty(50, 20), outs=empty())
    assert asked(few) == [4000, 8000, 8000, 1]
    many = beside(H100, aten.median.default, empty(500, 20), outs=empty())
    sort = beside(H100, aten.sort.default, empty(10_000), outs=[empty(10_000), empty(10_000, dtype=torch.int64)])
    assert asked(many) == [40_000, 80_000, *asked(sort), 1]
    steps = list(many.events(1))
    assert [step.kind for step in steps[-4:]] == ["ask", "result", "free", "free"], "the sorted values end last"
    assert asked(beside(H100, aten.median.dim, empty(50, 20), 1, outs=[empty(50), empty(50)])) == []


def test_mode_copies_an_axis_that_is_not_the_last():
    outs = [empty(50), empty(50)]
    assert asked(beside(H100, aten.mode.default, empty(50, 20), outs=outs)) == []
    assert asked(beside(H100, aten.mode.default, empty(20, 50), 0, outs=outs)) == [4000]
    long = beside(H100, aten.mode.default, empty(50, 3000), outs=outs)
    assert asked(long)[0] == 50 * 3000 * 4
    assert asked(long)[1:9] == asked(long)[9:17], "the same for each row"
    assert long.bounds[0].size > 3000 * 12


@pytest.mark.parametrize(
    ("values", "copies"),
    [
        (empty(100), []),
        (empty(200)[::2], [400]),
        (empty(100, dtype=torch.float64), [50 * 8]),
        (empty(100, dtype=torch.float16), [100 * 4]),
        (0.5, [8, 4]),
    ],
)
def test_places_among_sorted_numbers_take_copies_to_one_dtype(values: Any, copies: list[int]):
    op = aten.searchsorted.Scalar if isinstance(values, float) else aten.searchsorted.Tensor
    assert asked(beside(H100, op, empty(50), values, outs=empty(100, dtype=torch.int64))) == copies


def test_a_pooling_copies_a_gradient_that_is_spread():
    """As that of a sum, which is one number for all."""
    x, spread = empty(2, 3, 8, 8), empty(1).expand(2, 3, 4, 4)
    window = ([2, 2], [2, 2], [0, 0])
    places = empty(2, 3, 4, 4, dtype=torch.int64)
    for op, args in [
        (aten.max_pool2d_with_indices_backward.default, (spread, x, *window, [1, 1], False, places)),
        (aten.avg_pool2d_backward.default, (spread, x, *window, False, True, None)),
        (aten._adaptive_avg_pool2d_backward.default, (spread, x)),
        (aten.upsample_nearest2d_backward.default, (spread, [4, 4], [2, 3, 8, 8])),
        (aten.upsample_bicubic2d_backward.default, (spread, [4, 4], [2, 3, 8, 8], False)),
    ]:
        assert asked(beside(H100, op, *args, outs=x)) == [2 * 3 * 4 * 4 * 4], op
        assert asked(beside(H100, op, spread.contiguous(), *args[1:], outs=x)) == [], op


def test_what_reads_between_pixels_takes_any_strides():
    x, grid = empty(2, 3, 8, 16)[:, :, :, ::2], empty(2, 8, 8, 2)
    for op, args in [
        (aten.grid_sampler_2d.default, (x, grid, 0, 0, False)),
        (aten.upsample_bilinear2d.default, (x, [16, 16], False)),
        (aten.upsample_bicubic2d.default, (x, [16, 16], False)),
    ]:
        found = beside(H100, op, *args, outs=x)
        assert (asked(found), found.bounds) == ([], ()), op
    assert asked(beside(H100, aten.upsample_nearest2d.default, x, [16, 16], outs=x)) == [2 * 3 * 8 * 8 * 4]


# --- recordings of an H100 with PyTorch 2.11 ------------------------------------------------------------------------------

LATE, LONG, BOOL = Gpu((9, 0), 132, version=(2, 11)), torch.int64, torch.bool
IDS, NO_IDS = empty(3_000_000, dtype=LONG), empty(0, dtype=LONG)


def written(gpu: Gpu, func: Any, *args: Any, outs: Any) -> str:
    """The events of a call: ``+8`` a request, ``=`` a result, ``-0`` the end of the first request."""
    outs = outs if isinstance(outs, list) else [outs]
    found, names = [], {}
    for step in beside(gpu, func, *args, outs=outs).events(len(outs)):
        if step.kind == "result":
            found.append("=")
        elif step.kind == "free":
            found.append(f"-{names[step.block]}")
        else:
            names[step.block] = len(names)
            found.append(f"+{step.size}")
    return " ".join(found)


@pytest.mark.parametrize(
    ("call", "outs", "events"),
    [
        ((aten.topk.default, empty(20_000), 50), [empty(50), empty(50, dtype=LONG)],
         "= = +4 +8 +8 +10240 +1024 +80 +80 +1279 -7 +1279 -8 -6 -5 -4 -3 -2 -1 -0"),
        ((aten.topk.default, empty(3, 3_000_000), 3), [empty(3, 3), empty(3, 3, dtype=LONG)],
         "= = +12 +24 +24 +400896 +3072 +3132 +3132 +1279 -7 +1279 -8 -6 -5 -4 -3 -2 -1 -0"),
        ((aten.topk.default, empty(20_000), 10_000), [empty(10_000), empty(10_000, dtype=LONG)],
         "= = +4 +8 +8 +10240 +1024 +80 +80 +1279 -7 +1279 -8 -6 -5 -4 -3 -2 -1 -0 +80000 +40000 +80000 +131071 -12 -11 +80000 "
         "-13 -10 -9"),
        ((aten.sort.default, empty(10, 100_000)), [empty(10, 100_000), empty(10, 100_000, dtype=LONG)],
         "= = +8000000 +8000000 +4000000 +12200191 -3 -2 +180735 -4 -1 -0"),
        ((aten.sort.default, empty(70_000, 64), 0), [empty(70_000, 64), empty(70_000, 64, dtype=LONG)],
         "= = +17920000 +17920000 +35840000 +35840000 +35840000 +17920000 +54622719 -6 -5 +799231 -7 -4 -3 -2 -1 -0"),
        ((aten.randperm.default, 1_000_000), empty(1_000_000, dtype=LONG),
         "= +8 -0 +8000000 +8000000 +8000000 +16236031 -4 -3 -2 -1"),
        ((aten.nanmedian.default, empty(5000)), empty(),
         "+20000 +40000 +40000 +70143 -3 -2 -1 +5000 +8 +40000 -6 +8 +4 +8 -8 -7 -5 -4 = -9 -0"),
        ((aten.multinomial.default, empty(5000), 5), empty(5, dtype=LONG),
         "= +4 +1 +4 +1 +1 -3 -2 -1 -0 +4 +1 -5 +1 -7 +20000 +20 -9 -8 -6 -4"),
        ((aten.multinomial.default, empty(5, 6), 9), empty(5, 9, dtype=LONG),
         "= +4 +1 +4 +1 +1 -3 -2 -1 -0 +20 +5 +1 -6 -5 +1 -8 +120 +180 -10 -9 -7 -4"),
        ((aten.multinomial.default, empty(10_000_000), 5, True), empty(5, dtype=LONG),
         "= +40000000 +40000000 +40000000 +42495 -3 -2 -1 -0"),
        ((aten.logsumexp.default, empty(1_000_000), [0]), empty(),
         "+4 +492 +4 -2 -1 +4 +1 -4 -3 +4000000 = +492 +4 -7 -6 -5 -0"),
        ((aten.cumsum.default, empty(100_000), 0), empty(100_000), "= +1279 -0"),
        ((aten.cumsum.default, empty(10_000_000), 0), empty(10_000_000), "= +42495 -0"),
        ((aten.masked_scatter.default, empty(1_000_000), empty(1_000_000, dtype=BOOL), empty(9)), empty(1_000_000),
         "= +8000000 +18943 -1 -0"),
        ((aten.masked_scatter.default, empty(5, 5), empty(5, dtype=BOOL), empty(9)), empty(5, 5), "= +200 +25 +1279 -2 -1 -0"),
        ((aten.count_nonzero.dim_IntList, empty(5, 3), [0]), empty(3, dtype=LONG), "+15 = +120 -1 -0"),
        ((aten.histc.default, empty(5000), 50), empty(50), "= +4 -0 +4 -1"),
        ((aten.all.default, empty()), empty(dtype=BOOL), "= +1 -0"),
        ((aten.normal.Tensor_Tensor, empty(4, 6), empty(4, 6)), empty(4, 6), "+4 +1 -1 -0 = +4 +1 -3 -2"),
        ((aten.normal.Tensor_float, empty(12), 2.0), empty(12), "= +48 -0"),
        ((aten.index_reduce.default, empty(5, 5), 0, empty(10, dtype=LONG), empty(10, 5), "mean"), empty(5, 5),
         "= +100 +200 -1 +25 -2 -0"),
        ((aten.scatter_reduce.two, empty(10, 5), 0, empty(5, 5, dtype=LONG), empty(5, 5), "mean"), empty(10, 5),
         "= +100 +200 +50 -2 -1 -0"),
        ((aten.mode.default, empty(20_000)), [empty(), empty(dtype=LONG)],
         "= = +80000 +160000 +252799 -2 +21507 -3 +80000 +160000 +1535 -6 +85503 -7 +84751 -8 -5 -4 -1 -0"),
        ((aten.embedding_dense_backward.default, empty(60_000, 64), empty(60_000, dtype=LONG), 1000, -1, True), empty(1000, 64),
         "+480000 +480000 +480000 +991231 -3 -2 +480000 +1535 -5 +1535 -6 = +480000 +8 +480000 +1279 -10 -9 +8000 +8000 +1279 "
         "-13 +8 +56000 +1792000 -16 -15 -14 -12 -11 -8 -7 -4 -1 -0"),
        ((aten._unique2.default, IDS), [IDS, NO_IDS, NO_IDS], "= = +24000000 +24550399 -1 = +8 +6655 -3 -2 -0"),
        ((aten._unique2.default, IDS, True, True, True), [IDS, IDS, IDS],
         "+24000000 +24000000 +24000000 +48684543 -3 -1 = +24000000 +8703 -5 -4 = +8 = +63487 -7 -6 -2 -0"),
        ((aten.unique_consecutive.default, IDS, True, True), [IDS, IDS, IDS],
         "= +12000000 +8703 -1 -0 = +8 = +63487 -3 -2"),
        ((aten.isin.Tensor_Tensor, empty(10, dtype=LONG), empty(5000, dtype=LONG)), empty(10, dtype=BOOL),
         "= +80 +80 +80 +1 -3 -1 +80 +80 +1023 -6 -5 +80 +8 +1023 -9 -8 -2 -0 +40000 +58111 -11 +40000 +8 +1023 -14 -13 -10 "
         "+40080 -12 -7 +40080 +40080 +40080 +99327 -19 -18 +5010 +5010 -21 +5010 +10 -23 -22 -20 -16 -17 -15 -4"),
        ((aten.embedding_renorm_.default, empty(1000, 8), empty(60_000, dtype=LONG), 1.0, 2.0), empty(1000, 8),
         "= +480000 +480000 +480000 +991231 -3 -2 -1 +480000 +8 +1023 -6 -5 -4 -0"),
        ((aten.geqrf.default, empty(100, 100)), [empty(100, 100), empty(100)], "= = +4 +3145856 -1 -0"),
        ((aten.geqrf.default, empty(300, 300)), [empty(300, 300), empty(300)], "= = +4 +3326456 -1 -0"),
    ],
)  # fmt: skip
def test_every_event_of_an_op_as_recorded(call: tuple, outs: Any, events: str) -> None:
    assert written(LATE, *call, outs=outs) == events


def test_the_gradient_of_bags_as_recorded() -> None:
    ids = empty(500, dtype=LONG)
    args = (empty(500, 8), ids, ids, ids, ids, empty(0, dtype=LONG), 1000, False)
    found = written(LATE, aten._embedding_bag_backward.default, *args, 1, False, None, outs=empty(1000, 8))
    assert found == (
        "+4000 +4000 +4000 +1 -3 -2 = +4000 +8 +4000 +1279 -7 -6 +4000 +4000 +1279 -10 +8 +4400 +17600 "
        "-13 -12 -11 -9 -8 -5 -4 -1 -0"
    )
    assert written(LATE, aten._embedding_bag_backward.default, *args, 2, False, None, outs=empty(1000, 8)) == "="


@pytest.mark.parametrize(("version", "kept"), [((2, 6), "+4 +4 +4 +4"), ((2, 8), "+4 +4 +8 +8"), ((2, 11), "+4 +8 +8")])
def test_topk_keeps_other_arrays_in_other_versions(version: tuple[int, int], kept: str) -> None:
    """By hand from ``mbtopk::launch`` of each."""
    outs = [empty(50), empty(50, dtype=LONG)]
    found = written(Gpu((9, 0), 132, version=version), aten.topk.default, empty(100_000), 50, outs=outs)
    assert found.startswith(f"= = {kept} +50176")
    assert found.count("+1279") == 2


def test_a_cumsum_of_16_bits_keeps_what_each_tile_found_beside_its_state() -> None:
    """By hand: 1,000,000 in tiles of 128 x 30 are 261: states of 4 bytes, and twice 2 bytes; each on multiples of 256."""
    half = empty(1_000_000, dtype=torch.bfloat16)
    inner = math.ceil(293 * 4 / 256) * 256 + 2 * math.ceil(293 * 2 / 256) * 256 + 255
    assert asked(beside(LATE, aten.cumsum.default, half, 0, outs=half)) == [math.ceil(inner / 256) * 256 + 255]


@pytest.mark.parametrize(("count", "parts"), [(10_000, 2), (10_000_000, 132)])
def test_a_cumsum_that_must_be_deterministic_has_a_number_for_each_multiprocessor(count: int, parts: int) -> None:
    """By hand from ``inclusive_deterministic_scan``: tiles of 512 x 16."""
    torch.use_deterministic_algorithms(True)
    try:
        assert asked(beside(LATE, aten.cumsum.default, empty(count), 0, outs=empty(count))) == [parts * 4]
        whole = empty(count, dtype=LONG)
        assert asked(beside(LATE, aten.cumsum.default, whole, 0, outs=whole)) == [cub.scan(count, 8)]
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_thrust_takes_as_recorded() -> None:
    """To sort, and to count what is equal among, 3,000, 100,000 and 1,000,000 numbers of float32."""
    counts = [3000, 100_000, 1_000_000]
    assert [cub.thrust_sort(LATE, count, 4, 8) for count in counts] == [45_823, 1_228_159, 12_200_191]
    assert [cub.thrust_reduce_by_key(count) for count in counts] == [1535, 2047, 8447]


def test_tiles_of_a_selection_by_generation() -> None:
    """Each tile has a state of 16 bytes; 32 more, a request within a request, and 255 to align."""
    cards = [Gpu(capability=each) for each in ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0))]
    tiles = [320, 1792, 320, 4480, 3840]
    for gpu, tile in zip(cards, tiles, strict=True):
        states = math.ceil((math.ceil(1_000_000 / tile) + 32) * 16 / 256) * 256
        assert cub.unique_by_key(gpu, 1_000_000, 8) == states + 256 + 255


def test_tiles_of_different_numbers_by_generation_and_bytes() -> None:
    """By hand from ``tuning_select_if.cuh``: a state of 8 bytes for each tile. A class of 16 bits was not measured."""

    def bytes_of(tile: int) -> int:
        return math.ceil((math.ceil(1_000_000 / tile) + 32) * 8 / 256) * 256 + 256 + 255

    tiles = {
        (7, 5): (1280, 1280, 1280, 640), (8, 0): (19_840, 8064, 4608, 1920), (8, 9): (1280, 1280, 1280, 640),
        (9, 0): (5632, 5632, 6528, 4224), (10, 0): (8448, 5632, 5760, 4224),
    }  # fmt: skip
    for capability, each in tiles.items():
        gpu = Gpu(capability=capability)
        assert [cub.unique(gpu, 1_000_000, width) for width in (1, 2, 4, 8)] == list(map(bytes_of, each))
        assert cub.unique(gpu, 1_000_000, 2, plain=False) == bytes_of(1280)


def test_what_different_numbers_take_beside_sorts() -> None:
    """Of bool nothing is sorted. ``isin`` of numbers that differ is certain, and along an axis Thrust's temporaries are not."""
    mask, two = empty(5000, dtype=BOOL), empty(2, dtype=BOOL)
    counts = [empty(5000, dtype=LONG), empty(2, dtype=LONG)]
    assert written(LATE, aten._unique2.default, mask, True, True, True, outs=[two, *counts]) == "+4 +21503 -1 = = = -0"
    assert written(LATE, aten._unique2.default, mask, outs=[two, NO_IDS, NO_IDS]) == "= = +4 +21503 -1 = +16 -2 -0"
    for func, args in ((aten.unique_dim, (1,)), (aten.unique_consecutive, (False, False, 1))):
        assert beside(LATE, func.default, empty(5, 6), *args, outs=[empty(5, 6), NO_IDS, NO_IDS]).bounds
    assert not beside(LATE, aten.unique_consecutive.default, IDS, False, False, 0, outs=[IDS, NO_IDS, NO_IDS]).bounds
    known = beside(LATE, aten.isin.Tensor_Tensor, IDS, IDS, assume_unique=True, outs=mask)
    assert (asked(known)[:3], known.bounds) == ([48_000_000] * 3, ())
    assert beside(LATE, aten._unique2.default, NO_IDS, outs=[NO_IDS] * 3).steps == ()
