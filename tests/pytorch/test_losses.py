"""Losses and norms as CUDA's kernels run them: what is asked for beside results, and what is saved for backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tinygrad_mem import pytorch
from tinygrad_mem.memory import Kind

START = 77_777


def events(run: Callable[[], Any]) -> str:
    """``"+96 -0"``: 96 bytes are asked for, and the first of these requests ends."""
    numbers: dict[int, int] = {}
    found: list[str] = []
    began = False
    for event in pytorch.predict(run).log:
        if event.kind is Kind.MALLOC and began:
            numbers[event.address] = len([each for each in found if each[0] == "+"])
            found.append(f"+{event.requested}")
        elif event.kind is Kind.FREE and event.address in numbers:
            found.append(f"-{numbers.pop(event.address)}")
        began |= event.requested == START
    return " ".join(found)


def mark() -> None:
    torch.empty(START, dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # the number, in memory that was made for all losses and stays so, then the losses of all elements
        (F.mse_loss, "+1024 +1024 -1 -0"),
        (F.smooth_l1_loss, "+1024 +1024 -1 -0"),
        (F.binary_cross_entropy, "+1024 +4 -1 -0"),
        (F.soft_margin_loss, "+1024 +4 -1 -0"),
        (F.huber_loss, "+1024 +4 -0 -1"),
        (lambda x, y: F.mse_loss(x, y, reduction="none"), "+1024 -0"),
        # the logarithm of the sigmoid, 1 - target of which the losses are made, the mean
        (F.binary_cross_entropy_with_logits, "+1024 +1024 +4 -1 -0 -2"),
        # the largest, their size and a mask, and x less the largest, before the result
        (lambda x, _: torch.logsumexp(x, 0), "+32 +32 +8 -2 -1 +1024 +32 -3 -0 -4"),
    ],
)
def test_a_loss_asks_for_the_losses_of_all_elements_too(loss: Callable[..., Any], expected: str):
    def run() -> None:
        x, y = (torch.empty(32, 8, device="cuda") for _ in range(2))
        mark()
        loss(x, y)

    assert events(run) == expected


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy])
def test_a_list_of_losses_holds_the_losses_of_all_elements(loss: Callable[..., Any]):
    """Detached ones too: they share the memory. Recorded on an H100: 4,000 bytes, not 4, for 1,000 elements."""

    def run() -> list[torch.Tensor]:
        return [loss(*(torch.empty(1000, device="cuda") for _ in range(2))).detach() for _ in range(10)]

    assert pytorch.predict(run).peak >= 10 * 4096


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="before PyTorch 2.9")
@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_an_rms_norm_is_one_kernel_that_keeps_its_input_and_a_number_of_each_row(dtype: torch.dtype, width: int):
    def run() -> None:
        norm = nn.RMSNorm(64, device="cuda", dtype=dtype)
        x = torch.empty(32, 64, device="cuda", dtype=dtype, requires_grad=True)
        mark()
        made = norm(x)
        made.backward(made.detach())

    size = 32 * 64 * width
    assert events(run).startswith(f"+{size} +128 +{size} +{64 * width} -1 ")


def test_an_op_of_nobody_known_is_named():
    @torch.library.custom_op("tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    track = pytorch.predict(lambda: twice(torch.empty(8, device="cuda")))
    assert any("tests.twice.default: an op that PyTorch's tables do not have" in note for note in track.notes)


def test_a_gradient_is_copied_for_a_layer_norm_after_its_results_are_asked_for():
    """As on an H100: the gradient of a sum is one number for all places."""

    def run() -> None:
        norm = nn.LayerNorm(64, device="cuda")
        total = norm(torch.empty(32, 64, device="cuda", requires_grad=True)).sum()
        mark()
        total.backward()

    assert events(run).startswith("+4 +8192 +256 +256 +8192 -4 ")


def test_an_rms_norm_has_gradients_of_gradients():
    """Its number of each row to the power of three, then products as large as the input: recorded on an H100."""

    def run() -> None:
        norm, x = nn.RMSNorm(64, device="cuda"), torch.empty(32, 64, device="cuda", requires_grad=True)
        made = norm(x)
        mark()
        (found,) = torch.autograd.grad(made, x, torch.empty_like(made), create_graph=True)
        found.sum().backward()

    assert events(run).startswith("+8192 +128 +8192 +8192 +128 -3 +8192 +8192 +8192 +8192 +8192 ")


def test_dropout_within_a_function_transform_keeps_a_mask_of_booleans():
    def run() -> None:
        x = torch.empty(32, 8, device="cuda")
        mark()
        torch.func.grad(lambda t: F.dropout(t, 0.5, True).sum())(x)

    assert events(run).startswith("+256 +1024 +4 ")


def test_what_an_op_returns_beside_its_result_ends_in_order():
    """Not the last one first, as Python's tuples do; so the H100 had it."""

    def run() -> None:
        norm = nn.BatchNorm2d(8, device="cuda")
        with torch.no_grad():
            x = torch.empty(4, 8, 5, 5, device="cuda")
            mark()
            norm(x)

    assert events(run) == "+3200 +32 +32 -1 -2 -0"


@pytest.mark.parametrize("largest", [torch.max, torch.min])
def test_the_gradient_of_the_largest_of_all_elements_joins_masks_in_place(largest: Callable[..., Any]):
    """As recorded on an H100: which are NaN, if the result is, which are equal; then how many, as int64, and the quotient."""

    def run() -> None:
        found = largest(torch.empty(5000, device="cuda", requires_grad=True))
        mark()
        found.backward(torch.empty((), device="cuda"))

    assert events(run) == "+4 +5000 +1 +5000 +8 +40000 -5 +4 +20000 -6 -4 -3 -2 -1 -0 -7"


@pytest.mark.parametrize(
    ("product", "shape", "expected"),
    [
        # a mask of zeros, how many there are and where (nowhere), result / input, and the gradient of it
        (lambda x: x.prod(), (1000,), "+4 +4 +1000 +4 +1 -4 +1023 -5 -3 -2 +4000 +4000 -6 -1 -7 -0"),
        # a mask of zeros, how many in each row (summed as int64), and in all
        (lambda x: x.prod(1), (1000, 10), "+4000 +4000 +10000 +8000 +80000 -4 +8 -5 +40000 +40000 -6 -3 -2 -1 -7 -0"),
        # gradient * result, a mask of zeros, if there are any; the sum from behind, divided by the input
        (lambda x: x.cumprod(0), (1000,),
         "+4000 +1023 -1 +4000 +4000 +1000 +1 -5 +4000 +4000 +1023 -8 +4000 -7 -6 +4000 -9 -4 -3 -2 -10 -0"),
    ],
)  # fmt: skip
def test_the_gradient_of_a_product_looks_for_zeros_as_on_an_h100(product: Callable[..., Any], shape: tuple, expected: str):
    def run() -> None:
        x = torch.empty(shape, device="cuda", requires_grad=True)
        mark()
        made = product(x)
        made.backward(torch.ones_like(made))
        del x, made  # Python 3.14 drops what a function holds from the last name to the first

    assert events(run) == expected


def test_a_product_says_what_zeros_would_take():
    def run() -> None:
        torch.empty(100, 10, device="cuda", requires_grad=True).prod(0).sum().backward()

    [(why, size)] = pytorch.predict(run).unknown.items()
    assert why == "the gradient of prod was counted for numbers without zeros. With zeros it needs more"
    assert size == 8 * 4096 + (8 * 2 + 8) * 1000 + 65_536


def test_products_in_torch_func_are_pytorchs_own():
    def run() -> None:
        torch.func.grad(lambda x: x.prod())(torch.empty(10, device="cuda"))

    assert any("ProdBackward0 was counted for numbers with zeros" in why for why in pytorch.predict(run).unknown)


def test_a_number_is_written_from_the_host():
    """An H100 asked for nothing where a mask says which, and for a number's copy where places do."""

    def masked() -> None:
        x = torch.empty(32, 8, device="cuda")
        mask = torch.empty(32, 8, dtype=torch.bool, device="cuda")
        mark()
        x[mask] = 0.5
        x[1:3] = 2

    def placed() -> None:
        x, places = torch.empty(32, 8, device="cuda"), torch.empty(5, dtype=torch.int64, device="cuda")
        mark()
        x[places] = 0.5

    assert events(masked) == ""
    assert events(placed) == "+4 -0"


def test_gradients_of_group_norm_with_one_value_a_channel():
    """Two numbers for each channel of each sample and two for each group: recorded on an H100."""

    def run() -> None:
        norm, x = nn.GroupNorm(1, 8, device="cuda"), torch.randn(8, 8, 1, device="cuda", requires_grad=True)
        made = norm(x)
        gradient = torch.ones_like(made)
        mark()
        made.backward(gradient)
        torch.empty(3, dtype=torch.uint8, device="cuda")

    assert events(run).startswith("+256 +32 +32 +256 +256 +32 +32 -6 -5 -4 -3 +3 -7")


def test_a_generator_of_the_host_draws_no_numbers_of_the_gpu():
    """PyTorch has asked for the memory when it refuses: recorded on an H100."""
    words = "Expected a 'cuda' device type for generator but found 'cpu'"

    def run(kind: str) -> None:
        generator = torch.Generator(kind)
        mark()
        with contextlib.suppress(RuntimeError):
            torch.rand(8, generator=generator, device="cuda")
        torch.empty(3, dtype=torch.uint8, device="cuda")

    assert events(lambda: run("cpu")) == "+32 -0 +3 -1"
    with pytest.raises(RuntimeError, match=words):
        pytorch.predict(lambda: torch.empty(8, device="cuda").normal_(generator=torch.Generator()))
    pytorch.predict(lambda: torch.empty(8, device="cuda").normal_(generator=torch.Generator("cuda")))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        pytorch.predict(lambda: torch.rand(8, generator=torch.Generator("cuda")))


def test_nodes_that_backward_made_run_after_those_of_forward():
    """A gradient penalty, whose peak on an H100 was this; the other order took 8,192 bytes less."""

    def run() -> nn.Module:
        critic = nn.Sequential(nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 1)).to("cuda")
        x = torch.randn(20, 100, device="cuda", requires_grad=True)
        (found,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        (found.norm(2, 1) - 1).square().mean().backward()
        return critic

    assert pytorch.predict(run, gpu="H100", version="2.11").peak == 68_355_584
