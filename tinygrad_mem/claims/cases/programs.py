"""Figures of PyTorch's own programs: each is predicted for a GPU with PyTorch's own autograd, so these need PyTorch."""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from typing import Any

from ..claim import Claim, Figure, Publication, paper


def _runs() -> Any:
    """The programs, which import PyTorch."""
    return import_module("..torch_runs", __package__)


def selective() -> Fraction:
    return 1 - Fraction(_runs().layer(True), _runs().layer(False))


_MEGATRON = paper("2205.05198", "Korthikanti et al., Reducing activation recomputation in large transformer models, 2022")
_LAYER = "a layer of GPT-3 in PyTorch, 2,048 tokens in float16, predicted; bytes that its forward leaves, over numbers of input"
_FLASH = Publication("FlashAttention, README", "https://github.com/Dao-AILab/flash-attention#memory")
_ATTENTION = (
    "attention with dropout in PyTorch, 32 heads of 64 in float16, forward and backward, predicted: the ratio of the peaks"
)
CLAIMS = [
    Claim(
        "cublas-workspace", Publication("PyTorch, CUDA environment variables",
        "https://docs.pytorch.org/docs/stable/cuda_environment_variables.html"),
        "The workspace of cuBLAS by default, before Hopper: 2 x 4,096 + 8 x 16 KiB.", Figure("8,519,680 B"),
        "a first product in PyTorch, predicted: bytes that stay, beside its result", lambda: _runs().workspace(),
        needs=("torch",), seconds=2,
    ),
    Claim(
        "transformer-layer",
        _MEGATRON, "A transformer layer's activations, 34 + 5as/h bytes for each number of its input, for GPT-3.",
        Figure("114.0 bytes a number"), _LAYER, lambda: Fraction(_runs().layer(False), 2048 * 12_288),
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
]  # fmt: skip
