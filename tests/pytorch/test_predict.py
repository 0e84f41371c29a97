"""``pytorch.predict``: bytes, categories and decisions of PyTorch programs, on a GPU that is not there and on the CPU."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tinygrad_mem import pytorch
from tinygrad_mem.errors import ArgumentError, DataDependenceError, DeviceError, NotOfferedError
from tinygrad_mem.memory import Category, Kind

GPU = "cuda"


def mlp(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 8)).to(device)


def train(
    device: str,
    make: Callable[[Any], Any] = lambda parameters: torch.optim.Adam(parameters),
    steps: int = 2,
    model: Callable[[str], nn.Module] = mlp,
    shape: tuple[int, ...] = (64, 256),
) -> None:
    network = model(device)
    optimizer = make(network.parameters())
    for _ in range(steps):
        x, y = torch.randn(*shape, device=device), torch.randint(0, 8, shape[:1], device=device)
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()


def measured_peak(run: Callable[[], object]) -> int:
    """The peak of PyTorch's CPU allocator in a real run, from the events of its profiler."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    now = peak = 0
    result: Any = profile.profiler
    for event in result.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("make", [sgd])
def test_on_the_cpu_the_peak_is_that_of_pytorchs_allocator(make: Callable[[Any], Any]):
    assert pytorch.predict(train, "cpu", make, device="cpu").peak == measured_peak(lambda: train("cpu", make))


# --- bytes on the GPU -----------------------------------------------------------------------------------------------------


def rounded(*sizes: int) -> int:
    return sum(-(-size // 512) * 512 for size in sizes)


PARAMETERS = rounded(256 * 512 * 4, 512 * 4, 512 * 256 * 4, 256 * 4, 256 * 8 * 4, 8 * 4)


def test_parameters_gradients_and_state_have_their_bytes():
    track = pytorch.predict(train, GPU)
    by = track.by_category()
    assert by[Category.PARAMETER] == PARAMETERS
    assert by[Category.OPTIMIZER_STATE] == 2 * PARAMETERS  # the steps of Adam are counted on the CPU
    assert track.device == "cuda:0"
    assert track.fits
    assert track.notes == []


def optimizer_ops(make: Callable[[Any], Any], device: str = GPU) -> list[tuple[str, int]]:
    log = pytorch.predict(train, device, make, device=device).log
    return [(e.op, e.requested) for e in log if e.kind is Kind.MALLOC and e.phase == "optimizer" and e.op != "zeros_like"]


def test_optimizers_step_with_lists_on_a_gpu_as_they_do_by_default():
    """Adam's square roots of all parameters are alive at once; one after the other on the CPU, and where lists are off."""
    sizes = [4 * count for count in (256 * 512, 512, 512 * 256, 256, 256 * 8, 8)]
    assert optimizer_ops(torch.optim.Adam) == [("_foreach_sqrt", size) for size in sizes] * 2
    assert optimizer_ops(lambda parameters: torch.optim.SGD(parameters, lr=0.1)) == []
    single = [(op, size) for size in sizes for op in ("sqrt", "div_Tensor")] * 2
    assert optimizer_ops(lambda parameters: torch.optim.Adam(parameters, foreach=False)) == single
    assert optimizer_ops(lambda parameters: torch.optim.Adam(parameters, fused=True)) == [("zeros", 4)] * 6
    assert "sqrt" in (on_cpu := {op for op, _ in optimizer_ops(torch.optim.Adam, "cpu")})
    assert "_foreach_sqrt" not in on_cpu


def test_clipping_takes_norms_of_lists():
    def run() -> None:
        model = mlp(GPU)
        model(torch.empty(2, 256, device=GPU)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    log = pytorch.predict(run).log
    norms = [e.requested for e in log if e.kind is Kind.MALLOC and e.op == "_foreach_norm_Scalar"]
    assert norms == [6 * 2 * 4, *[4] * 6]  # two chunks of 65,536 elements in the largest of six tensors


def test_reserved_bytes_come_from_the_allocators_model():
    track = pytorch.predict(train, GPU)
    replay = pytorch.replay(track)
    assert track.peak_reserved == replay.peak_reserved
    assert track.peak == replay.peak_allocated
    assert track.peak <= track.peak_reserved
    assert track.peak_reserved % (2 << 20) == 0


def test_a_block_says_who_asked_for_it():
    def run() -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(GPU)
        model(torch.randn(4, 8, device=GPU)).sum().backward()

    track = pytorch.predict(run)
    asked = [event for event in track.log if event.kind is Kind.MALLOC and event.role != "WORKSPACE"]
    forward = [event for event in asked if event.phase == "forward"]
    assert [(event.op, event.module) for event in forward] == [("addmm", "Sequential.0"), ("relu", "Sequential.1")]
    assert all(event.line.endswith(" run") and "test_predict.py" in event.line for event in forward)
    backward = {(event.op, event.module) for event in asked if event.phase == "backward"}
    assert ("threshold_backward", "Sequential.1") in backward
    assert ("mm", "Sequential.0") in backward
    names = {event.note for event in track.log if event.kind is Kind.NAME}
    assert names == {"Sequential.0.weight", "Sequential.0.bias"}


def test_what_is_saved_for_backward_is_an_activation_until_the_graph_ends():
    def run() -> None:
        x = torch.randn(1 << 10, device=GPU, requires_grad=True)
        y = x.exp()
        y.sum().backward()
        torch.empty(1, device=GPU)
        del y

    track = pytorch.predict(run)
    entered = [event for event in track.log if event.kind is Kind.ENTER and event.role == "ACTIVATION"]
    assert [(event.op, event.note) for event in entered] == [("ExpBackward0", "result")]
    left = [event for event in track.log if event.kind is Kind.LEAVE]
    assert [event.address for event in left] == [entered[0].address] or not left  # or the block itself ended first


def test_dropout_keeps_a_mask_of_booleans_as_on_a_gpu():
    track = pytorch.predict(lambda: F.dropout(torch.ones(1 << 12, device=GPU), 0.5))
    made = [(event.op, event.requested) for event in track.log if event.kind is Kind.MALLOC]
    assert made == [("ones", 4 << 12), ("native_dropout", 1 << 12), ("native_dropout", 4 << 12)]  # the mask first


def test_a_move_frees_what_was_there():
    def run() -> None:
        model = nn.Linear(256, 256, bias=False).to(GPU)
        model.half()

    track = pytorch.predict(run)
    assert track.peak == 256 * 256 * 4 + 256 * 256 * 2  # the new weight beside the old one
    assert track.by_category() == {Category.PARAMETER: 256 * 256 * 4, Category.INPUT: 256 * 256 * 2}  # nobody calls it


def test_memory_of_the_cpu_is_not_the_gpus():
    track = pytorch.predict(lambda: torch.zeros(1 << 20) + torch.ones(1, device=GPU).cpu())
    assert track.peak == 512


def made(run: Callable[[], object], work: bool = False, **options: Any) -> list[tuple[str, int]]:
    """The requests of ``run`` beyond its first mark: ops and bytes; ``work``: also of workspaces."""
    log = pytorch.predict(run, **options).log
    events = [event for event in log if event.kind is Kind.MALLOC and (work or event.role != "WORKSPACE")]
    start = next(number for number, event in enumerate(events) if event.requested == START)
    return [(event.op, event.requested) for event in events[start + 1 :]]


START = 12_345


@pytest.mark.parametrize(
    ("dtype", "width", "masked", "first"),
    [
        (torch.bfloat16, 64, False, [("_scaled_dot_product_flash_attention", 2 * 4 * 16 * 64 * 2)]),
        (torch.bfloat16, 60, False, [("constant_pad_nd", 2 * 4 * 16 * 64 * 2)] * 3),
        (torch.float32, 64, False, [("_scaled_dot_product_efficient_attention", 2 * 4 * 16 * 64 * 4)]),
        (torch.bfloat16, 64, True, [("scalar_tensor", 2), ("scalar_tensor", 2), ("where_self", 16 * 16 * 2)]),
        (torch.float32, 62, False, [("mul_Scalar", 2 * 4 * 16 * 62 * 4)] * 2),
        (torch.float64, 64, False, [("mul_Scalar", 2 * 4 * 16 * 64 * 8)] * 2),
    ],
)
def test_attention_runs_the_kernel_that_cuda_takes(dtype: torch.dtype, width: int, masked: bool, first: list):
    def run() -> None:
        q, k, v = (torch.randn(2, 4, 16, width, device=GPU, dtype=dtype) for _ in range(3))
        mask = torch.ones(16, 16, device=GPU, dtype=torch.bool) if masked else None
        torch.empty(START, device=GPU, dtype=torch.uint8)
        F.scaled_dot_product_attention(q, k, v, mask)

    assert made(run)[: len(first)] == first


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ("2.5", [("zeros_like", 512), ("logical_not", 256)]),
        ("2.6", [("scalar_tensor", 2), ("logical_not", 256), ("scalar_tensor", 2), ("where_self", 512)]),
        ("2.11", [("scalar_tensor", 2), ("scalar_tensor", 2), ("where_self", 512)]),
    ],
)
def test_a_mask_of_booleans_becomes_numbers_by_the_version(version: str, first: list):
    def run() -> None:
        q, mask = torch.randn(2, 4, 16, 64, device=GPU, dtype=torch.bfloat16), torch.ones(16, 16, device=GPU, dtype=torch.bool)
        torch.empty(START, device=GPU, dtype=torch.uint8)
        F.scaled_dot_product_attention(q, q, q, mask)

    assert made(run, version=version)[: len(first)] == first


@pytest.mark.parametrize(
    ("tokens", "wide", "padded"),
    [(200, 200, 0), (204, 204, 208), (200, 208, 0), (200, 204, 208), (1, 1, 8)],
    ids=["as an H100 did", "not a multiple of 8", "rows of a wider mask", "rows that are not aligned", "one token"],
)
def test_efficient_attention_pads_a_mask_whose_rows_begin_at_no_multiple_of_8(tokens: int, wide: int, padded: int):
    def run() -> None:
        q, mask = torch.randn(1, 2, tokens, 32, device=GPU), torch.ones(tokens, wide, device=GPU)
        torch.empty(START, device=GPU, dtype=torch.uint8)
        F.scaled_dot_product_attention(q, q, q, mask[:, :tokens])

    pads = [("constant_pad_nd", tokens * padded * 4)] if padded else []
    result = ("_scaled_dot_product_efficient_attention", 2 * tokens * 32 * 4)
    assert made(run)[: len(pads) + 1] == [*pads, result]


def test_attention_asks_as_an_h100_did():
    """The bytes that were recorded: cuDNN's in 16 bits, with heads that are shared; efficient attention in float32;
    PyTorch's formula, which adds its mask in place."""

    def run(dtype: torch.dtype, keys: int, math: bool = False) -> None:
        q, k, v = (torch.randn(2, n, 512, 64, device=GPU, dtype=dtype, requires_grad=not math) for n in (8, keys, keys))
        torch.empty(START, device=GPU, dtype=torch.uint8)
        if math:
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
                F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            made = F.scaled_dot_product_attention(q, k, v, enable_gqa=keys != 8)
            made.backward(torch.ones_like(made))

    def asked(*args: Any) -> list[int]:
        return [size for _, size in made(lambda: run(*args), gpu="H100", version="2.11", work=True)]

    mib, sums = 1 << 20, 4 * 2 * 8 * 512
    assert asked(torch.bfloat16, 8) == [8, 8, mib, sums, 256, mib, mib, mib, mib, 2 * mib + sums + 256]
    assert asked(torch.bfloat16, 2) == [8, 8, mib, sums, 256, mib, mib, mib // 4, mib // 4, 4 * mib + sums + 256]
    tiles = 2 * 8 * 8 * (64 * 64 * 4 + 16)
    assert asked(torch.float32, 8) == [2 * mib, sums, *[2 * mib] * 5, sums, sums, tiles, *[2 * mib] * 3]
    scores = 2 * 8 * 512 * 512 * 4
    assert asked(torch.bfloat16, 8, True).count(scores) == 2  # of the product and of softmax


def test_attention_obeys_the_switches():
    def run() -> None:
        q = torch.randn(2, 4, 16, 64, device=GPU, dtype=torch.bfloat16)
        torch.empty(START, device=GPU, dtype=torch.uint8)
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
            F.scaled_dot_product_attention(q, q, q)

    assert made(run)[0] == ("_to_copy", 2 * 4 * 16 * 64 * 4)  # the formula runs in float32


def recurrent_run(retain: bool = False, **options: Any):
    def run() -> None:
        layer = nn.LSTM(16, 32, 2, **options).to(GPU)
        x = torch.randn(5, 3, 16, device=GPU)
        torch.empty(START, device=GPU, dtype=torch.uint8)
        layer(x)[0].sum().backward(retain_graph=retain)

    return run


def test_a_recurrent_layer_runs_in_one_call_and_says_what_is_not_known():
    weights = 4 * (4 * 32 * (16 + 32 + 2) + 4 * 32 * (32 + 32 + 2))
    steps, state = 4 * 5 * 3 * 32, 4 * 2 * 3 * 32
    reserve = 256 + 2 * 5 * steps + steps  # four gates and the cell, and what the second layer reads
    workspace = (16 << 20) + 2 * 17 * steps
    sizes = [size for _, size in made(recurrent_run())]
    forward = [state, state, steps, state, state, workspace, reserve]
    assert sizes[:7] == forward
    backward = [state, state, steps, 4 * 5 * 3 * 16, state, state, workspace, weights, workspace]  # gradients lie in a buffer
    assert sizes[-len(backward) :] == backward
    track = pytorch.predict(recurrent_run())
    assert [why for why, size in track.unknown.items() if "recurrent" in why and size > 10 * steps]


def test_a_graph_that_is_kept_keeps_the_reserve_of_a_recurrent_layer():
    sizes = [[size for _, size in made(recurrent_run(retain))] for retain in (False, True)]
    assert len(sizes[1]) == len(sizes[0]) + 1
    assert sizes[1].count(sizes[0][6]) == 2  # cuDNN writes to a copy


def test_weights_of_bfloat16_are_put_into_one_buffer_in_each_call():
    weights = 2 * (4 * 32 * (16 + 32 + 2) + 4 * 32 * (32 + 32 + 2))
    ran = [size for _, size in made(recurrent_run()) if size == 2 * weights]

    def half() -> None:
        layer = nn.LSTM(16, 32, 2).to(GPU, torch.bfloat16)
        torch.empty(START, device=GPU, dtype=torch.uint8)
        layer(torch.randn(5, 3, 16, device=GPU, dtype=torch.bfloat16))

    assert len(ran) == 1  # of gradients
    assert [size for _, size in made(half)].count(weights) == 1


def test_dropout_of_a_recurrent_layer_has_states_of_random_numbers_once():
    def run() -> None:
        layer = nn.LSTM(16, 32, 2, dropout=0.5).to(GPU)
        torch.empty(START, device=GPU, dtype=torch.uint8)
        for _ in range(2):
            layer(torch.randn(5, 3, 16, device=GPU))

    track = pytorch.predict(run, gpu="H100")
    assert [event.requested for event in track.log if event.kind is Kind.MALLOC].count(6_488_064) == 1  # as recorded


def test_recurrent_cells_are_one_kernel_after_their_products():
    def run() -> None:
        cell = nn.LSTMCell(64, 128, device=GPU), nn.GRUCell(64, 128, device=GPU)
        x = torch.randn(8, 64, device=GPU, requires_grad=True)
        torch.empty(START, device=GPU, dtype=torch.uint8)
        cell[0](x)
        cell[1](x)

    sizes = [size for _, size in made(run) if size < 1 << 20]
    lstm = [4096, 4096, 16384, 16384, 16384, 4096, 4096]
    assert sizes == [*lstm[1:], 4096, 12288, 12288, 20480, 4096]


def test_gradients_of_a_cells_bias_are_one_for_both_and_summed_as_any():
    """Of the bias of the input's gates, and of that of the state's: the second is a copy, as an H100 recorded."""

    def run() -> None:
        cell = nn.LSTMCell(64, 128, device=GPU)
        x = torch.randn(8, 64, device=GPU, requires_grad=True)
        torch.empty(START, device=GPU, dtype=torch.uint8)
        cell(x)[0].sum().backward()

    sizes = [size for _, size in made(run)]
    assert sizes[sizes.index(2048) - 2 :][:4] == [16384, 4096, 2048, 2048]
    assert pytorch.predict(run).unknown == {}


def test_backward_through_a_recurrent_layer_in_evaluation_fails_as_in_pytorch():
    def run() -> None:
        layer = nn.LSTM(16, 32).to(GPU).eval()
        layer(torch.randn(5, 3, 16, device=GPU))[0].sum().backward()

    with pytest.raises(RuntimeError, match="only be called in training mode"):
        pytorch.predict(run)


def test_a_recurrent_layer_in_evaluation_keeps_its_input_for_a_gradient():
    """As ``derivatives.yaml`` says, whether the layer trains or not: only its reserve is empty."""

    def run(trains: bool) -> None:
        table, layer = nn.Embedding(100, 16).to(GPU), nn.LSTM(16, 32).to(GPU).train(trains)
        made, _ = layer(table(torch.zeros(50, 30, device=GPU, dtype=torch.long)))
        before = torch.cuda.memory_allocated()
        del made, _
        ended.append(before - torch.cuda.memory_allocated())

    ended: list[int] = []
    for trains in (True, False):
        pytorch.predict(run, trains)
    size = 4 * 50 * 30
    reserve = 256 + 5 * size * 32
    assert ended[0] - ended[1] == -(-reserve // 512) * 512
    assert ended[1] >= size * (16 + 32)


def test_a_recurrent_layer_without_cudnn_is_refused():
    def run() -> None:
        with torch.backends.cudnn.flags(enabled=False):
            nn.LSTM(16, 32).to(GPU)(torch.randn(5, 3, 16, device=GPU))

    with pytest.raises(NotOfferedError, match="Leave cuDNN on"):
        pytorch.predict(run)


# --- autocast as on CUDA --------------------------------------------------------------------------------------------------


def dtypes(call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype = torch.bfloat16) -> torch.dtype:
    found = []

    def run() -> None:
        x, half = torch.randn(4, 4, device=GPU), torch.randn(4, 4, device=GPU, dtype=dtype)
        with torch.autocast("cuda", dtype=dtype):
            found.append(call(x, half).dtype)

    pytorch.predict(run)
    return found[0]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x, half: x @ x, torch.bfloat16),
        (lambda x, half: F.linear(x, x), torch.bfloat16),
        (lambda x, half: torch.einsum("ij,jk->ik", x, x), torch.bfloat16),
        (lambda x, half: half.exp(), torch.float32),
        (lambda x, half: half.pow(2), torch.float32),
        (lambda x, half: half.sum(), torch.float32),
        (lambda x, half: half.softmax(-1), torch.float32),
        (lambda x, half: half.norm(), torch.float32),
        (lambda x, half: F.layer_norm(half, (4,)), torch.float32),
        (lambda x, half: F.cross_entropy(half, torch.zeros(4, dtype=torch.long, device=GPU)), torch.float32),
        (lambda x, half: half.relu(), torch.bfloat16),
        (lambda x, half: half + x, torch.float32),
        (lambda x, half: torch.dot(half[0], x[0]), torch.float32),
        (lambda x, half: x.double() @ x.double(), torch.float64),
    ],
)
def test_autocast_decides_as_on_cuda(call: Callable[..., torch.Tensor], expected: torch.dtype):
    assert dtypes(call) == expected


def test_autocast_keeps_casts_of_weights_until_its_region_ends():
    def run() -> None:
        model = nn.Linear(256, 256, bias=False).to(GPU)
        x = torch.randn(1, 256, device=GPU)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(x)
            model(x)
        torch.empty(1, device=GPU)

    track = pytorch.predict(run)
    casts = [event for event in track.log if event.kind is Kind.MALLOC and event.role == "WEIGHT_CAST"]
    assert [event.requested for event in casts] == [256 * 256 * 2]
    last = next(event for event in reversed(list(track.log)) if event.kind is Kind.MALLOC)
    freed = [number for number, event in enumerate(track.log) if event.kind is Kind.FREE and event.address == casts[0].address]
    assert freed[0] < list(track.log).index(last)


def test_a_product_of_losses_that_is_unsafe_is_refused_as_pytorch_refuses_it():
    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        dtypes(lambda x, half: F.binary_cross_entropy(x, x))


# --- numbers and decisions ------------------------------------------------------------------------------------------------


def test_losses_may_be_logged():
    def run() -> None:
        loss = torch.randn(4, device=GPU).sum()
        total = 0.0
        total += loss.item()
        print(f"{loss.item():.3f} {total / 2} {float(loss)}")

    (note,) = pytorch.predict(run).notes
    assert note.partition(" run: ")[2].startswith("a plain number is needed")


@pytest.mark.parametrize(
    "decide",
    [
        lambda: 1 if torch.randn(4, device=GPU).sum() > 0 else 2,
        lambda: torch.randn(4, device=GPU).sum().item() > 0,
        lambda: range(int(torch.randn((), device=GPU))),
        lambda: torch.randn(4, device=GPU).repeat_interleave(torch.randint(1, 9, (4,), device=GPU)),
        lambda: sorted([torch.randn(4, device=GPU).sum().item(), 0.5]),
    ],
)
def test_a_decision_by_a_value_is_refused_with_the_users_line(decide: Callable[[], object]):
    with pytest.raises(DataDependenceError, match=r"predict: at .*test_predict\.py:\d+ <lambda>"):
        pytorch.predict(decide)


def test_counters_are_known():
    seen = []

    def run() -> None:
        count = torch.tensor(0, device=GPU)
        count += 2
        seen.extend([count.item(), bool(count == 2), int(count.cpu())])
        view = count.view(1)
        view.add_(torch.randint(0, 9, (1,), device=GPU))
        with pytest.raises(DataDependenceError):
            bool(count == 2)

    pytorch.predict(run)
    assert seen == [2, True, 2]


@pytest.mark.parametrize("device", [GPU, "cpu"])
@pytest.mark.parametrize(
    "write",
    [
        lambda t, x: t.uniform_(),
        lambda t, x: t.normal_(),
        lambda t, x: t.bernoulli_(0.5),
        lambda t, x: torch._foreach_add_([t], 1),
        lambda t, x: torch._foreach_copy_([t], [x]),
        lambda t, x: t.copy_(x),
        lambda t, x: t.view(1).add_(x),
        lambda t, x: t.data.mul_(x),
        lambda t, x: t.__setitem__(0, x[0]),
        lambda t, x: torch.add(x, x, out=t),
        lambda t, x: torch._amp_foreach_non_finite_check_and_unscale_([x], t, torch.ones(1, device=x.device)),
    ],
)
def test_a_number_that_was_written_to_is_not_the_old_one(write: Callable[..., object], device: str):
    """A prediction may know the new number; it may not believe the old one."""
    found = []

    def run() -> None:
        known, unknown = torch.zeros(1, device=device), torch.randn(1, device=device)
        write(known, unknown)
        found.append(str(known.item()))

    pytorch.predict(run, device=device)
    assert found[0] in ("unknown", "1.0")


def test_a_gradient_scaler_takes_its_step():
    def run() -> None:
        model = mlp(GPU)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(4, 256, device=GPU)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(str(scaler.get_scale()))

    scales: list[str] = []
    assert pytorch.predict(run).by_category(at="end").get(Category.OPTIMIZER_STATE, 0) in (0, PARAMETERS)
    state = [event for event in pytorch.predict(run).log if event.kind is Kind.MALLOC and event.role == "OPTIMIZER_STATE"]
    assert sum(event.rounded for event in state) == PARAMETERS
    assert set(scales) == {"65536.0"}


# --- a card that is too small ---------------------------------------------------------------------------------------------


def test_a_program_gets_pytorchs_error_when_the_card_is_full():
    def run() -> None:
        kept = torch.empty(1 << 20, device=GPU)
        torch.empty(1 << 30, device=GPU)
        del kept

    track = pytorch.predict(run, capacity=64 << 20)
    assert not track.fits
    assert "out of memory" in track.out_of_memory.lower()
    assert next(mark.text for mark in track.marks).startswith("out of memory")

    def caught() -> None:
        try:
            torch.empty(1 << 30, device=GPU)
        except torch.OutOfMemoryError:
            torch.empty(1 << 20, device=GPU)

    assert pytorch.predict(caught, capacity="64 MiB").peak == 4 << 20
    with pytest.raises(ValueError, match="'64 apples' is not a size"):
        pytorch.predict(caught, capacity="64 apples")


# --- what stays as it was -------------------------------------------------------------------------------------------------


def state() -> tuple:
    return (
        random.getstate(),
        tuple(map(str, np.random.get_state())),  # noqa: NPY002 (it is the user's)
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_default_device(),
        torch.cuda.is_available,
        torch.cuda.memory_allocated,
        torch.compile,
        torch.clear_autocast_cache,
        torch.utils.swap_tensors,
        torch.is_autocast_enabled("cuda"),
    )


def untidy(error: BaseException | None) -> None:
    random.random()
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_default_device("cuda")
    torch.empty(3)
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [None, ValueError("mine"), KeyboardInterrupt()])
def test_everything_is_as_before(error: BaseException | None):
    before = state()
    if error is None:
        pytorch.predict(untidy, None)
    else:
        with pytest.raises(type(error)):
            pytorch.predict(untidy, error)
    assert state() == before


def test_the_users_error_has_the_users_line():
    with pytest.raises(RuntimeError) as caught:
        pytorch.predict(lambda: torch.randn(4, 4, device=GPU) @ torch.randn(3, 3, device=GPU))
    assert any("test_predict.py" in note for note in caught.value.__notes__)


def test_a_model_that_was_made_outside_is_refused():
    model = mlp("cpu")
    before = [parameter.data_ptr() for parameter in model.parameters()]
    with pytest.raises(DeviceError, match="outside of the prediction"):
        pytorch.predict(lambda: model.to(GPU))
    with pytest.raises(DeviceError, match="outside of the prediction"):
        pytorch.predict(lambda: model(torch.randn(1, 256)), device="cpu")
    assert [parameter.data_ptr() for parameter in model.parameters()] == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_another_thread_trains_meanwhile_as_ever():
    def real() -> list[float]:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(8, 8, generator=generator, requires_grad=True)
        found = []
        for _ in range(20):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.dropout(weight @ weight, 0.0).softmax(-1).square().sum()
            (gradient,) = torch.autograd.grad(loss, weight)
            found.append(gradient.sum().item())
        return found

    expected, found = real(), []
    thread = threading.Thread(target=lambda: found.extend(real()))

    def run() -> None:
        thread.start()
        train(GPU)
        thread.join()

    pytorch.predict(run)
    assert found == expected


@pytest.mark.parametrize("device", ["meta", "xpu"])
def test_devices_of_another_kind_are_refused(device: str):
    with pytest.raises(ArgumentError, match='expected device="cuda" or "cpu"'):
        pytorch.predict(lambda: None, device=device)


# --- found by reading ------------------------------------------------------------------------------------------------------


def test_a_prediction_may_be_asked_for_where_gradients_are_off():
    peak = pytorch.predict(train, GPU).peak
    with torch.no_grad():
        assert pytorch.predict(lambda: torch.ones(1, device=GPU)).peak == 512
        assert pytorch.predict(with_gradients).peak == peak
    with torch.inference_mode():
        assert pytorch.predict(lambda: torch.ones(1, device=GPU)).peak == 512


def with_gradients() -> None:
    with torch.enable_grad():
        train(GPU)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projected_lstm_has_two_sizes_of_state():
    shapes = []

    def run() -> None:
        output, (hidden, cell) = nn.LSTM(16, 32, proj_size=8, bidirectional=True).to(GPU)(torch.randn(5, 3, 16, device=GPU))
        shapes.extend([tuple(output.shape), tuple(hidden.shape), tuple(cell.shape)])
        (output.sum() + cell.sum()).backward()

    pytorch.predict(run)
    real, (hidden, cell) = nn.LSTM(16, 32, proj_size=8, bidirectional=True)(torch.randn(5, 3, 16))
    assert shapes == [tuple(real.shape), tuple(hidden.shape), tuple(cell.shape)]


def test_a_prediction_of_the_cpu_counts_nothing_of_the_gpus():
    def run() -> None:
        torch.empty(START, dtype=torch.uint8)
        convolution = nn.Conv2d(3, 8, 3, device=GPU)
        convolution(torch.ones(2, 3, 16, 16, device=GPU)).sum().backward()

    made = [event for event in pytorch.predict(run, device="cpu").log if event.kind is Kind.MALLOC]
    assert [event.requested for event in made if event.op != "uniform_"] == [START]


def test_ops_of_the_cpu_are_the_cpus_in_inference_too():
    def run() -> None:
        x = torch.randn(2, 4, 16, 64)
        with torch.inference_mode():
            F.scaled_dot_product_attention(x, x, x)
            nn.LSTM(4, 4)(torch.randn(3, 2, 4))
            F.batch_norm(x, None, None, training=True)
        torch.ones(1, device=GPU)

    assert pytorch.predict(run).peak == 512


def test_a_tensor_may_be_used_on_a_stream():
    def run() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.ones(1, device=GPU)
        x.record_stream(stream)
        x.record_stream(torch.cuda.current_stream())

    own = vars(torch.Tensor).get("record_stream")
    track = pytorch.predict(run)
    assert track.peak == 512
    ((why, most),) = track.unknown.items()
    assert "which blocks another stream keeps from being used again" in why
    assert most == 2 * 2**20, "a segment of its own"
    assert pytorch.predict(lambda: torch.ones(1, device=GPU).record_stream(torch.cuda.current_stream())).unknown == {}
    assert vars(torch.Tensor).get("record_stream") is own


@pytest.mark.parametrize("enters", ["stream", "StreamContext", "itself", "set_stream", "accelerator"])
def test_each_stream_has_blocks_of_its_own(enters: str):
    """The default stream cannot use the segment of 20 MiB that another stream left; that stream can."""

    def ask() -> None:
        torch.ones(3 * 2**20, dtype=torch.uint8, device=GPU)

    def run() -> None:
        stream, first = torch.cuda.Stream(), torch.cuda.current_stream()
        assert first == torch.cuda.default_stream() != stream
        within = {"stream": torch.cuda.stream, "StreamContext": torch.cuda.StreamContext, "itself": lambda s: s}.get(enters)
        for _ in range(2):
            if within is not None:
                with within(stream), within(stream):
                    assert torch.cuda.current_stream() == stream
                    ask()
            else:
                (torch.accelerator if enters == "accelerator" else torch.cuda).set_stream(stream)
                ask()
                torch.cuda.set_stream(torch.cuda.default_stream())
        assert torch.cuda.current_stream() == first
        ask()

    found = pytorch.predict(run)
    assert (found.peak, found.peak_reserved, found.unknown, found.notes) == (3 << 20, 40 << 20, {}, [])
    assert found.streams == [1, 1, 0]
    assert pytorch.replay(found).peak_reserved == 40 << 20
    assert pytorch.replay(found, "expandable_segments:True").peak_reserved == 40 << 20


def test_a_stream_has_a_workspace_of_cublas_and_graphs_of_several_are_reported():
    """As CUDA graphs are warmed up. PyTorch gives the first of 32 streams again."""

    def step(x: torch.Tensor, backward: bool = True) -> torch.Tensor:
        made = (x @ x).sum()
        if backward:
            made.backward()
        return made

    def run(mixed: bool) -> None:
        x = torch.ones(4, 4, device=GPU, requires_grad=True)
        streams = [torch.cuda.Stream() for _ in range(33)]
        assert streams[0] == streams[32]
        with torch.cuda.stream(streams[0]):
            made = step(x, not mixed)
        if mixed:
            made.backward()
        else:
            step(x)

    alone, mixed = (pytorch.predict(run, each, gpu="H100", version="2.11") for each in (False, True))
    workspaces = [sum(block.requested == 32 << 20 for block in found.blocks()) for found in (alone, mixed)]
    assert workspaces == [4, 2], "of the program's thread and of backward's, for each stream"
    assert not alone.notes
    assert not alone.unknown
    assert "a graph was made in several streams" in mixed.notes[0]
    assert "which blocks another stream keeps" in next(iter(mixed.unknown))


def test_a_peak_that_depends_on_the_drivers_addresses_is_bounded():
    """11.5 MiB find two free blocks of 12 MiB: a whole segment, and what is left of one of 20 MiB. Where they take the first,
    the last 11 MiB are split from 20 MiB; where they take the other, they get the 12 MiB whole. That of 20 MiB lies below the
    other, since 14 MiB fill the gap beside that."""

    def run(last: float) -> None:
        def ask(mebibytes: float) -> torch.Tensor:
            return torch.empty(int(mebibytes * 2**20), dtype=torch.uint8, device=GPU)

        first, between, second = ask(11.5), ask(14), ask(8)
        del first
        third = ask(11.5)
        del second
        return third, ask(last), between

    found = pytorch.predict(run, 11)
    assert found.peak == 38 << 20
    ((why, most),) = found.unknown.items()
    assert most == 1 << 20
    assert "addresses the driver gives" in why
    assert pytorch.predict(run, 12).unknown == {}


def test_a_block_that_waits_for_another_stream_is_bounded():
    def run() -> None:
        torch.ones(1000, dtype=torch.uint8, device=GPU).record_stream(torch.cuda.Stream())

    assert list(pytorch.predict(run).unknown.values()) == [2 * 2**20], "a request that it would have served needs a segment"


def test_a_refused_resize_is_pytorchs_error_too():
    def run() -> None:
        torch.empty(0, device=GPU).resize_(1 << 30)

    assert not pytorch.predict(run, capacity=64 << 20).fits


def test_a_program_that_asks_nothing_of_the_device_is_reported():
    track = pytorch.predict(lambda: torch.ones(3))
    assert [note for note in track.notes if "asked for no memory of cuda:0" in note]


@pytest.mark.parametrize("of", [torch.imag, lambda x: x.imag], ids=["function", "attribute"])
def test_the_imaginary_part_of_a_conjugate_is_refused(of: Any):
    """PyTorch negates it in a copy, once in each op that reads it; that copy was not counted."""
    x = torch.ones(3, dtype=torch.complex64)
    assert of(x.conj()).is_neg()
    with pytest.raises(
        NotOfferedError, match=r"the imaginary part of a conjugate.*Write -x\.imag in place of x\.conj\(\)\.imag"
    ):
        pytorch.predict(lambda: of(torch.ones(3, dtype=torch.complex64, device=GPU).conj()) * 2)
    with pytest.raises(NotOfferedError, match=r"torch\._neg_view: PyTorch negates it in a copy.*Write -x"):
        pytorch.predict(lambda: vars(torch)["_neg_view"](torch.ones(3, device=GPU)))
    assert pytorch.predict(lambda: -of(torch.ones(300, dtype=torch.complex64, device=GPU))).peak == 2560 + 1536
