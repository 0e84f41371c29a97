"""Figures of PyTorch's own programs: each is predicted for a GPU with PyTorch's own autograd, so these need PyTorch."""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from typing import Any

from ...memory import Category
from ..claim import Claim, Counted, Extra, Figure, Publication, paper, thread
from .logits import CUT_CROSS_ENTROPY


def _runs() -> Any:
    """The programs, which import PyTorch."""
    return import_module("..torch_runs", __package__)


def _layer(recompute: bool = False) -> int:
    return _runs().layer(recompute)


def selective() -> Fraction:
    return 1 - Fraction(_layer(True), _layer())


def resnet50_kept() -> Counted:
    """The bytes that the forward keeps: its activations, and the images."""
    track = _runs().resnet50()
    found = track.by_category(len(track.log) - 1)
    pooled = 4 * 16 * 2048
    part = Extra("the pooled features, which are freed before the tool takes its peak, in the backward", -pooled, -pooled)
    return Counted(found[Category.ACTIVATION] + found[Category.INPUT], (part,), track)


def resnet50_parameters() -> Counted:
    track = _runs().resnet50()
    return Counted(track.by_category(len(track.log) - 1)[Category.PARAMETER], track=track)


_MEGATRON = paper("2205.05198", "Korthikanti et al., Reducing activation recomputation in large transformer models, 2022")
_LAYER = "a layer of GPT-3 in PyTorch, 2,048 tokens in float16, predicted; bytes that its forward leaves, over numbers of input"
_FLASH = Publication("FlashAttention, README", "https://github.com/Dao-AILab/flash-attention#memory")
_ATTENTION = (
    "attention with dropout in PyTorch, 32 heads of 64 in float16, forward and backward, predicted: the ratio of the peaks"
)
_CUT = "the head and its loss in PyTorch, with all logits, predicted; the peak beside their inputs"

CLAIMS = [
    Claim(
        "cublas-workspace", Publication("PyTorch, CUDA environment variables",
        "https://docs.pytorch.org/docs/stable/cuda_environment_variables.html"),
        "The workspace of cuBLAS by default, before Hopper: 2 x 4,096 + 8 x 16 KiB.", Figure("8,519,680 B"),
        "a first product in PyTorch, predicted: bytes that stay, beside its result", lambda: _runs().workspace(),
        needs=("torch",), seconds=2,
    ),
    Claim(
        "foreach", Publication("PyTorch, torch.optim.Adam",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html"),
        "What a step on lists takes more at its peak, in times of the parameters.", Figure("about 1 times"),
        "a step of Adam on 64 equal matrices in PyTorch, predicted both ways: the difference of the peaks",
        lambda: Fraction(_runs().foreach()),
        "61 of 64: a step on lists has all square roots at once, one after the other has three arrays of one matrix.",
        needs=("torch",), seconds=1,
    ),
    Claim(
        "transformer-layer",
        _MEGATRON, "A transformer layer's activations, 34 + 5as/h bytes for each number of its input, for GPT-3.",
        Figure("114.0 bytes a number"), _LAYER, lambda: Fraction(_layer(), 2048 * 12_288),
        "32,768 bytes more: mean and deviation of two layer norms, which the formula leaves out.", needs=("torch",), seconds=1,
    ),
    Claim(
        "selective-recompute", _MEGATRON, "What recomputing attention alone saves of these activations, for GPT-3.",
        Figure("70 %"),
        "the same layer with torch.utils.checkpoint around the scores, predicted", selective, needs=("torch",), seconds=1,
    ),
    Claim(
        "flash-attention-2k", _FLASH, "How many times less memory attention of 2,048 tokens takes.", Figure("10 times"),
        _ATTENTION, lambda: Fraction(_runs().attention(2048)), needs=("torch",), seconds=1,
    ),
    Claim(
        "flash-attention-4k", _FLASH, "How many times less memory attention of 4,096 tokens takes.", Figure("20 times"),
        _ATTENTION, lambda: Fraction(_runs().attention(4096)),
        "Twice the tokens, twice the factor: the scores are quadratic, the rest is linear.", needs=("torch",), seconds=1,
    ),
    Claim(
        "peft-2196-parameters", thread("huggingface/peft", 2196),
        "The parameters of ResNet-50 with one output, as MemTracker has them.",
        Figure("89.68 MiB"), "a forward in PyTorch on the CPU, predicted", resnet50_parameters, needs=("torch",), seconds=2,
    ),
    Claim(
        "peft-2196-activations", thread("huggingface/peft", 2196),
        "The activations of ResNet-50 for 16 images of 224 x 224, as MemTracker has them.",
        Figure("1,310.95 MiB"), "a forward in PyTorch on the CPU, predicted; its activations and the images", resnet50_kept,
        "The tool takes the parts of its peak a moment later.", needs=("torch",), seconds=2,
    ),
    Claim(
        "cut-cross-entropy-baseline", CUT_CROSS_ENTROPY,
        "What the usual loss of Gemma 2 takes in its forward: 8,192 tokens, 256,000 words. MB are 2**20 bytes.",
        Figure("24,000.0 MiB"), _CUT, lambda: _runs().whole_loss(False),
        "Logits, capped, in bfloat16, kept for backward: twice 4,000 MiB. In float32, and the softmax's: twice 8,000 MiB.",
        needs=("torch",), seconds=1,
    ),
    Claim(
        "cut-cross-entropy-baseline-backward", CUT_CROSS_ENTROPY,
        "What the usual loss of Gemma 2 takes in forward and backward: 8,192 tokens, 256,000 words. MB are 2**20 bytes.",
        Figure("28,000.0 MiB"), _CUT, lambda: _runs().whole_loss(True), needs=("torch",), seconds=1,
    ),
]  # fmt: skip
