"""What a prediction owes to the card that it is for: kernels, their launches, workspaces, and the memory that there is."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tinygrad_mem import pytorch
from tinygrad_mem.errors import ArgumentError
from tinygrad_mem.memory import Kind
from tinygrad_mem.pytorch.cards import CARDS, USUAL, GraphicsCard, card_of

MIB = 1 << 20
AMPERE, HOPPER = 8_519_680, 32 * MIB  # workspaces of cuBLAS


def products(count: int = 1) -> None:
    kept = torch.empty(16, 16, device="cuda")
    for _ in range(count):
        kept @ kept


@pytest.mark.parametrize(
    ("gpu", "workspace"),
    [
        ("T4", AMPERE),
        ("RTX 3090", AMPERE),
        ("4090", AMPERE),
        ("", AMPERE),
        ("V100 16GB", AMPERE),
        ("H100", HOPPER),
        ("B200", HOPPER),
        ("RTX 5090", HOPPER),
    ],
)
def test_cublas_takes_what_it_takes_on_this_card(gpu: str, workspace: int):
    assert pytorch.predict(products, gpu=gpu, version="2.13").peak == workspace + 2 * 1024


def test_settings_of_libraries_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert pytorch.predict(products, gpu="H100").peak == 128 * 1024 + 2 * 1024


def test_switches_of_pytorch_are_read_when_an_op_runs():
    """Scattered writes sort their places where PyTorch must be deterministic."""

    def run(deterministic: bool) -> None:
        torch.use_deterministic_algorithms(deterministic)
        places = torch.zeros(50, dtype=torch.int64, device="cuda")
        torch.empty(100, device="cuda").scatter_add_(0, places, torch.empty(50, device="cuda"))

    assert [len(pytorch.predict(run, flag).unknown) for flag in (False, True)] == [0, 1]


@pytest.mark.parametrize(
    ("gpu", "dtype", "op"),
    [
        ("T4", torch.float16, "_scaled_dot_product_efficient_attention"),
        ("V100 32GB", torch.float16, "_scaled_dot_product_efficient_attention"),
        ("T4", torch.bfloat16, "bmm"),
        ("RTX 4090", torch.bfloat16, "_scaled_dot_product_flash_attention"),
        ("H100", torch.bfloat16, "_scaled_dot_product_cudnn_attention"),
        ("H100", torch.float32, "_scaled_dot_product_efficient_attention"),
        ("RTX 5090", torch.float16, "_scaled_dot_product_flash_attention"),
    ],
)
def test_attention_runs_the_kernel_of_this_card(gpu: str, dtype: torch.dtype, op: str):
    def run() -> None:
        q = torch.empty(2, 4, 128, 64, device="cuda", dtype=dtype)
        F.scaled_dot_product_attention(q, q, q)

    assert op in {event.op for event in pytorch.predict(run, gpu=gpu).log}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_sum_over_rows_is_shared_by_blocks_that_fill_the_card(card: GraphicsCard):
    """4,096 rows of 50,000 columns, four at a time: 391 groups of blocks, of 32 x 4 threads. The card has places for ``places``
    blocks: so many blocks share a group that all places are taken; each of them stages a number for each of its 128 results."""
    places = card.processors * (card.threads // 128)
    shared = max(-(-places // 391), 4096 // 4 // 256) if places >= 391 else 1

    def run() -> None:
        torch.empty(4096, 50_000, device="cuda").sum(0)

    log = pytorch.predict(run, gpu=card.name, capacity=1 << 40).log
    asked = [event.requested for event in log if event.kind is Kind.MALLOC]
    assert asked[2:] == ([4 * 50_000 * shared * 128, 4 * 391] if shared > 1 else [])


def test_a_program_hears_of_its_card():
    def run() -> None:
        heard.append(torch.cuda.get_device_properties(0))
        heard.append(torch.cuda.get_device_capability())
        heard.append(torch.cuda.is_bf16_supported(including_emulation=False))

    heard: list = []
    pytorch.predict(run, gpu="geforce rtx 4090")
    found = heard[0]
    assert (found.name, found.major, found.minor, found.multi_processor_count) == ("NVIDIA RTX 4090", 8, 9, 128)
    assert found.total_memory == card_of("RTX 4090").room
    assert found.max_threads_per_multi_processor == 1536
    assert heard[1:] == [(8, 9), True]
    pytorch.predict(run, gpu="T4")
    assert heard[4:] == [(7, 5), False]
    pytorch.predict(run)
    assert heard[6].total_memory == USUAL.bytes


def test_a_card_that_is_named_has_its_memory():
    """And one that is not never refuses."""

    def run() -> None:
        torch.empty(20 << 30, dtype=torch.uint8, device="cuda")

    assert not pytorch.predict(run, gpu="T4").fits
    assert pytorch.predict(run, gpu="T4", capacity=21 << 30).fits
    assert pytorch.predict(run, gpu="RTX 4090").fits
    assert pytorch.predict(lambda: [run() for _ in range(100)]).fits


def test_the_advice_is_for_this_card():
    def run(batch_size: int) -> None:
        torch.empty(batch_size << 30, dtype=torch.uint8, device="cuda")

    for gpu in ("T4", "RTX 3090"):
        found = pytorch.advise(run, 1, gpu=gpu).batch[0]
        assert found.batch_size == math.floor(card_of(gpu).room / (1 << 30))


def test_the_version_of_pytorch_on_the_gpus_machine():
    def run() -> None:
        q = torch.empty(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
        F.scaled_dot_product_attention(q, q, q)

    for version, kernel in (("2.6", "flash"), ("2.13.1+cu130", "cudnn")):
        log = pytorch.predict(run, gpu="H100", version=version).log
        assert f"_scaled_dot_product_{kernel}_attention" in {event.op for event in log}
    with pytest.raises(ArgumentError, match=r"expected a version such as \"2.6\", found 'new'"):
        pytorch.predict(products, version="new")


def test_a_card_that_is_not_one_is_refused():
    with pytest.raises(ArgumentError, match="the GPU 'TPU' is not in the table: name one of RTX 3080"):
        pytorch.predict(products, gpu="TPU")
    with pytest.raises(ArgumentError, match="found gpu='T4' with device='cpu', which has no GPU"):
        pytorch.predict(products, gpu="T4", device="cpu")
