"""Convolutions, batch norm and pools on a GPU: layouts, order, and bytes that an H100 recorded (PyTorch 2.11, cuDNN 9.19)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tinygrad_mem import pytorch  # noqa: E402
from tinygrad_mem.memory import Kind  # noqa: E402
from tinygrad_mem.pytorch.program.kernels import Gpu, Kernels, batch_norm  # noqa: E402
from tinygrad_mem.pytorch.program.kernels.convolution import Convolution, Image, Problem, strides  # noqa: E402

aten = torch.ops.aten
H100 = Gpu((9, 0), 132, version=(2, 11))
HALF, LAST = torch.bfloat16, torch.channels_last


def empty(*shape: int, dtype: Any = torch.float32, last: bool = False) -> Any:
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, memory_format=LAST if last else torch.contiguous_format)


def events(func: Any, *args: Any, outs: Any) -> list[tuple[str, int]]:
    """``("ask", bytes)``, ``("result", index)`` and ``("free", place of the request)``."""
    found, places, order = Kernels(H100).beside(func, args, {}, outs), {}, []
    for step in found.events(len(outs) if isinstance(outs, tuple) else 1):
        if step.kind == "ask":
            places[step.block] = len(places)
        number = {"ask": step.size, "result": step.block}.get(step.kind)
        order.append((step.kind, places[step.block] if number is None else number))
    return order


def convolved(x: Any, weight: Any, out: Any, padding: int = 1, stride: int = 1, groups: int = 1) -> list[tuple[str, int]]:
    args = (x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    return events(aten.convolution.default, *args, outs=out)


def backward(grad: Any, x: Any, weight: Any, mask: Any = (True, True, False), groups: int = 1) -> list[tuple[str, int]]:
    args = (grad, x, weight, [weight.shape[0]], [1, 1], [1, 1], [1, 1], False, [0, 0], groups, list(mask))
    outs = tuple(each if wanted else None for each, wanted in zip((x, weight, empty(weight.shape[0])), mask, strict=True))
    return events(aten.convolution_backward.default, *args, outs=outs)


def strides_on_a_gpu(run: Any, *kinds: Any) -> list[tuple[int, ...]]:
    """The strides of what ``run`` makes in a prediction."""
    made: list[tuple[int, ...]] = []
    pytorch.predict(lambda: made.extend(each.stride() for each in run(*kinds)), gpu="H100", version="2.11")
    return made


# --- order and layout -----------------------------------------------------------------------------------------------------


def test_copies_and_workspace_of_a_convolution_come_in_order() -> None:
    """``op/conv 3x3 bfloat16``, ``op/conv transposed input`` (its copies) and ``op/conv 3x3 input last``."""
    x, weight = empty(8, 64, 32, 32, dtype=HALF), empty(64, 64, 3, 3, dtype=HALF)
    assert convolved(x, weight, x) == [("result", 0), ("ask", 2_170_896), ("free", 0)]
    turned, copy = convolved(x.transpose(2, 3), weight, x), ("ask", 1_048_576)
    assert turned == [copy, ("result", 0), ("ask", 2_170_896), ("free", 1), ("free", 0)]
    last = empty(8, 64, 32, 32, dtype=HALF, last=True)
    assert convolved(last, weight, last) == [("result", 0), ("ask", 73_728), ("free", 0)]


def test_a_gradient_that_is_not_dense_is_copied_for_each_of_two() -> None:
    """``net/DenseNet-121/bf16``: a part of the gradient of a concatenation; each copy ends with what it is for."""
    x, weight = empty(4, 128, 28, 28, dtype=HALF), empty(32, 128, 3, 3, dtype=HALF)
    grad = empty(4, 512, 28, 28, dtype=HALF)[:, :32]
    one = [("ask", 200_704), ("result", 0), ("ask", 1_077_264), ("free", 1), ("free", 0)]
    two = [("ask", 200_704), ("result", 1), ("ask", 1_077_264), ("free", 3), ("free", 2)]
    first, *rest = one
    assert backward(grad, x, weight)[1:] == [rest[0], first, *rest[1:], *two]


def test_the_own_kernel_of_depthwise_asks_for_the_weights_gradient_first() -> None:
    """Of float32 and bfloat16; of float16 cuDNN runs, and in channels last always."""
    for dtype, order in ((torch.float32, [1, 0]), (HALF, [1, 0]), (torch.float16, [0, 1])):
        x, weight = empty(8, 64, 32, 32, dtype=dtype), empty(64, 1, 3, 3, dtype=dtype)
        assert backward(x, x, weight, groups=64)[1:] == [("result", index) for index in order]
        assert convolved(x, weight, x, groups=64) == [("result", 0)]
    x, weight = empty(8, 64, 32, 32, last=True), empty(64, 1, 3, 3)
    assert backward(x, x, weight, groups=64)[1:] == [("result", 0), ("result", 1)]
    large = empty(8, 64, 32, 32, dtype=torch.float16), empty(64, 1, 7, 7, dtype=torch.float16)
    assert backward(large[0], *large, groups=64)[1:] == [("result", 1), ("result", 0)]


def test_results_of_a_convolution_are_in_the_layout_of_cudnn() -> None:
    """A GPU's layouts, whatever library PyTorch was built with."""

    def run(dtype: Any) -> Any:
        x = torch.empty(2, 4, 8, 6, device="cuda", dtype=dtype).to(memory_format=LAST).requires_grad_()
        weight = torch.empty(6, 4, 3, 3, device="cuda", dtype=dtype, requires_grad=True)
        made = F.conv2d(x, weight)
        return made, *torch.autograd.grad(made, (x, weight), made)

    last = [(6 * 24, 1, 24, 6), (4 * 48, 1, 24, 4), (4 * 9, 1, 12, 4)]
    assert strides_on_a_gpu(run, torch.float32) == last
    assert strides_on_a_gpu(run, torch.float64) == [(144, 24, 4, 1), (192, 48, 6, 1), (36, 9, 3, 1)]


def test_a_single_channel_is_copied_into_channels_last() -> None:
    """``net/LeNet/channels last``: PyTorch asks which layout the strides suggest."""
    assert strides_on_a_gpu(lambda: [torch.empty(8, 1, 28, 28, device="cuda").to(memory_format=LAST)]) == [(784, 1, 28, 1)]
    assert strides((8, 1, 28, 28), True) == (784, 1, 28, 1)
    assert not Image.of(empty(8, 1, 28, 28)).last
    assert Image.of(empty(8, 1, 28, 28)).dense(True)


def test_a_convolution_that_cudnn_does_not_take_is_products() -> None:
    """``info/nn.functional.conv_transpose2d 1``: as much padding of the result as the stride; 12,576 bytes beside 32 MiB."""
    x, weight, out = empty(1, 2, 4, 4), empty(2, 2, 4, 5), empty(1, 4, 22, 22)
    args = (x, weight, None, [1, 1], [0, 0], [1, 1], True, [1, 1], 2)
    found = Kernels(H100).beside(aten.convolution.default, args, {}, out)
    assert [(step.kind, step.size) for step in found.steps] == [("keep", 32 << 20)]
    assert 12_576 < found.bounds[0].size < 40_000


def test_without_cudnn_nothing_is_in_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    x = torch.empty(2, 4, 8, 6, device="meta").to(memory_format=LAST)
    weight = torch.empty(6, 4, 3, 3, device="meta")
    given = {
        "input": x,
        "weight": weight,
        "groups": 1,
        "transposed": False,
        "stride": [1],
        "dilation": [1],
        "output_padding": [0],
    }
    assert Convolution(given).slow
    assert not Convolution(given).last
    assert Convolution({**given, "weight": weight[:4, :1], "groups": 4}).depthwise


# --- workspaces of cuDNN --------------------------------------------------------------------------------------------------


def problem(kind: str, x: Any, weight: Any, out: Any, groups: int = 1, dense: bool = True) -> Problem:
    given = Image.of(x), Image.of(weight), Image.of(out)
    return Problem(kind, *given, groups, given[0].last or given[2].last, dense)


@pytest.mark.parametrize(
    ("kind", "shapes", "options", "recorded", "room"),
    [
        ("weight", [(64, 16, 32, 32), (16, 16, 3, 3), (64, 16, 32, 32)], {}, 73_400_320, 2),
        ("weight", [(8, 96, 56, 56), (96, 1, 7, 7), (8, 96, 56, 56)], {"last": True}, 87_008_887, 4),
        ("weight", [(8, 52, 1, 1), (440, 52, 1, 1), (8, 440, 1, 1)], {"dtype": HALF}, 732_160, 1.1),
        ("weight", [(8, 2048, 8, 8), (384, 2048, 1, 1), (8, 384, 8, 8)], {"dtype": HALF}, 25_166_096, 1.7),
        ("input", [(8, 256, 56, 56), (256, 256, 3, 3), (8, 256, 56, 56)], {}, 70_517_167, 1.3),
        ("result", [(8, 512, 28, 28), (512, 512, 3, 3), (8, 512, 28, 28)], {"dtype": HALF}, 25_952_687, 2.1),
        ("result", [(8, 2, 9, 7), (3, 2, 3, 3), (8, 3, 9, 7)], {}, 0, 0),
    ],
)
def test_the_largest_recorded_workspaces_are_below_the_bound(
    kind: str, shapes: list[tuple[int, ...]], options: dict, recorded: int, room: float
) -> None:
    """The bound has room, but not much: a bound that is always true tells nothing."""
    x, weight, out = [empty(*shape, **options) for shape in shapes]
    found = problem(kind, x, weight, out, groups=x.shape[1] if weight.shape[1] == 1 else 1)
    assert recorded < found.most(H100)
    if recorded:
        assert found.most(H100) < recorded * room


def test_the_usual_workspace_is_copies_in_channels_last() -> None:
    def likely(*shapes: tuple[int, ...], gpu: Gpu = H100, kind: str = "result", dense: bool = True, **options: Any) -> int:
        return problem(kind, *[empty(*shape, **options) for shape in shapes], dense=dense).likely(gpu)

    same = (8, 64, 32, 32), (64, 64, 3, 3), (8, 64, 32, 32)
    assert likely(*same, dtype=HALF) == 2_170_896
    assert likely(*same, dtype=HALF, kind="weight") == 2_170_896
    assert likely(*same, kind="input") == 4_341_776
    assert likely(*same, gpu=Gpu((7, 5), 72)) == 0, "float32 without TF32"
    assert likely(*same, dtype=HALF, last=True) == 0
    little = (4, 128, 14, 14), (32, 128, 3, 3), (4, 32, 14, 14)
    assert likely(*little, kind="input") == 0, "of float32 with few products"
    assert likely(*little, kind="input", dtype=HALF) == 324_624
    one = (64, 32, 16, 16), (64, 32, 1, 1), (64, 64, 8, 8)
    assert likely(*one, dtype=HALF, dense=False) == 1_572_880
    assert likely((8, 64, 32, 32), (128, 64, 1, 1), (8, 128, 32, 32)) == 0
    assert likely((8, 3, 32, 32), (64, 3, 3, 3), (8, 64, 32, 32), dtype=HALF) == 0


def test_measured_algorithms_may_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = empty(8, 64, 32, 32), empty(64, 64, 3, 3)
    args = (x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    chosen = Kernels(H100).beside(aten.convolution.default, args, {}, x).bounds[0]
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    measured = Kernels(H100).beside(aten.convolution.default, args, {}, x).bounds[0]
    assert measured.size - chosen.size == 4 * (2 * 8 * 64 + 64 * 64) * 64 * 33 * 8  # transforms of 64 x 33 complex numbers
    assert "measures" in measured.why


def test_what_measured_algorithms_took_is_below_the_bound() -> None:
    """On an H200 with cuDNN 9.19, in a convolution and both gradients. They differ much: some take a hundredth of the bound."""
    rows = json.loads((Path(__file__).parent / "recordings" / "h200-measured-convolutions.json").read_text(encoding="utf-8"))
    shares = []
    for *shapes, groups, dtype, last, dense, recorded in rows:
        x, weight, out = [
            Image.of(empty(*shape, dtype=getattr(torch, dtype), last=last and len(shape) == 4)) for shape in shapes
        ]
        found = [Problem(kind, x, weight, out, groups, last, dense) for kind in ("result", "input", "weight")]
        shares.append(recorded / max(each.most(H100) + each.measured for each in found))
    assert 0.5 < max(shares) < 1
    assert len(shares) == len(rows) == 174


# --- batch norm and pools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "forward", "backwards"),
    [((8, 64, 32, 32), 67_124, 45_092), ((4, 512, 14, 14), 54_768, 37_952), ((64, 16, 32, 32), 529_460, 350_756)],
)
def test_cudnns_batch_norm_in_channels_last(shape: tuple[int, ...], forward: int, backwards: int) -> None:
    x, row = empty(*shape, last=True), empty(shape[1])
    results = [("result", 0), ("result", 1), ("result", 2)]
    args = (x, row, row, row, row, True, 0.1, 1e-5)
    assert events(aten.cudnn_batch_norm.default, *args, outs=(x, row, row)) == [*results, ("ask", forward), ("free", 0)]
    args = (x, x, row, row, row, row, row, 1e-5, empty(0, dtype=torch.uint8))
    assert events(aten.cudnn_batch_norm_backward.default, *args, outs=(x, row, row)) == [
        *results,
        ("ask", backwards),
        ("free", 0),
    ]


def test_pytorchs_batch_norm_in_channels_last_stages_what_blocks_share() -> None:
    """``op/batch_norm (8, 64, 32, 32) bfloat16``: 2 x 32 blocks; with fewer pixels none share."""
    assert batch_norm.blocks(8192, 64) == (2, 32)
    assert batch_norm.blocks(126, 30) == (2, 1)
    x, row = empty(8, 64, 32, 32, dtype=HALF, last=True), empty(64)
    args = (x, row, row, row, row, True, 0.1, 1e-5)
    forward = events(aten.native_batch_norm.default, *args, outs=(x, row, row))
    assert forward[3:] == [("ask", 32_768), ("ask", 8), ("free", 1), ("free", 0)]
    args = (x, x, row, row, row, row, row, True, 1e-5, [True, True, True])
    assert events(aten.native_batch_norm_backward.default, *args, outs=(x, row, row)) == [
        *[("ask", 256), ("ask", 256), ("result", 1), ("result", 2), ("ask", 16_384), ("ask", 8), ("free", 3), ("free", 2)],
        *[("result", 0), ("free", 1), ("free", 0)],
    ]


def test_the_gradient_of_batch_norm_that_is_not_trained_is_in_rows() -> None:
    """``op/batch_norm eval``, channels last: an inverse deviation more, as cuDNN's forward saves none."""

    def run(trains: bool) -> Any:
        norm = torch.nn.BatchNorm2d(4, device="cuda").train(trains)
        x = torch.empty(2, 4, 3, 5, device="cuda").to(memory_format=LAST).requires_grad_()
        made = norm(x)
        return made, *torch.autograd.grad(made, x, made)

    assert strides_on_a_gpu(run, False) == [(60, 1, 20, 4), (60, 15, 5, 1)]
    assert strides_on_a_gpu(run, True) == [(60, 1, 20, 4), (60, 1, 20, 4)]
    x, row = empty(2, 30, 7, 9, last=True), empty(30)
    args = (x, x, row, row, row, empty(0), empty(0), False, 1e-5, [True, True, True])
    found = events(aten.native_batch_norm_backward.default, *args, outs=(x, row, row))
    assert [step[1] for step in found if step[0] == "ask"] == [120] * 3


def test_gradients_of_batch_norm_that_nobody_wants() -> None:
    """``held/random 160`` and ``271`` of an H200: in channels last those of weight and bias are made and dropped; an input's
    never is made."""
    x, row = empty(8, 4), empty(4)
    args = (x, x, row, row, row, row, row, True, 1e-5, [True, False, False])
    found = events(aten.native_batch_norm_backward.default, *args, outs=(x, None, None))
    assert [step for step in found if step not in [("result", 1), ("result", 2)]] == [
        *[("ask", 16)] * 4,
        *[("result", 0), ("free", 1), ("free", 0), ("free", 2), ("free", 3)],
    ]

    def run() -> None:
        norm = torch.nn.BatchNorm1d(4, device="cuda").eval()
        norm(torch.empty(8, 4, 9, device="cuda")).sum().backward()

    log = pytorch.predict(run, gpu="H100", version="2.11").log
    asked = [event.requested for event in log if event.kind is Kind.MALLOC and event.op == "native_batch_norm_backward"]
    assert asked == [16] * 3


def test_adaptive_max_pools_work_in_rows() -> None:
    """``op/adaptive max (2, 30, 7, 9) bfloat16``, channels last."""
    x, out = empty(2, 30, 7, 9, dtype=HALF, last=True), empty(2, 30, 3, 3, dtype=HALF, last=True)
    places = empty(2, 30, 3, 3, dtype=torch.int64, last=True)
    found = events(aten.adaptive_max_pool2d.default, x, [3, 3], outs=(out, places))
    assert found[2:5] == [("ask", 1080), ("ask", 4320), ("ask", 7560)]
    found = events(aten.adaptive_max_pool2d_backward.default, out, x, places, outs=x)
    assert found[1:4] == [("ask", 1080), ("ask", 4320), ("ask", 7560)]
    rows = empty(2, 30, 7, 9), empty(2, 30, 3, 3), empty(2, 30, 3, 3, dtype=torch.int64)
    assert events(aten.adaptive_max_pool2d.default, rows[0], [3, 3], outs=rows[1:]) == [("result", 0), ("result", 1)]
