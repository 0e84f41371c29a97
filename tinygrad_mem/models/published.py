"""The configurations of published language models, as in their ``config.json`` on Hugging Face's hub.

Only fields that decide shapes, bytes or numbers are here.
"""

from __future__ import annotations

from typing import Any

from .configuration import Configuration, configuration

_FIRST = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
_FIRST += ("num_attention_heads", "num_key_value_heads")


def _sizes(*values: Any, **more: Any) -> dict[str, Any]:
    """The values of the fields ``_FIRST``, in their order, and more fields."""
    return dict(zip(_FIRST, values, strict=True)) | more


def _llama3(width: int, inner: int, layers: int, heads: int, factor: float | None = None, **more: Any) -> dict[str, Any]:
    """``factor``: that by which 3.1 and 3.2 stretch the context of 8,192 tokens."""
    stretched = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    more |= {"rope_theta": 500_000.0, "rms_norm_eps": 1e-5}
    more |= {"max_position_embeddings": 131_072 if factor else 8192, "rope_scaling": stretched if factor else None}
    return _sizes("llama", 128_256, width, inner, layers, heads, 8, **more)


_QWEN = {"rope_theta": 1_000_000.0, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6}
_QWEN3 = _QWEN | {"head_dim": 128, "max_position_embeddings": 40_960}
_GEMMA3 = {"head_dim": 256, "sliding_window": 1024, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0}
_LLAMA2 = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
_TIED = {"tie_word_embeddings": True}

PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-2-7b": _sizes("llama", 32_000, 4096, 11_008, 32, 32, 32, **_LLAMA2),
    "llama-2-13b": _sizes("llama", 32_000, 5120, 13_824, 40, 40, 40, **_LLAMA2),
    "llama-2-70b": _sizes("llama", 32_000, 8192, 28_672, 80, 64, 8, **_LLAMA2),
    "llama-3-8b": _llama3(4096, 14_336, 32, 32),
    "llama-3-70b": _llama3(8192, 28_672, 80, 64),
    "llama-3.1-8b": _llama3(4096, 14_336, 32, 32, 8.0),
    "llama-3.1-405b": _llama3(16_384, 53_248, 126, 128, 8.0),
    "llama-3.2-1b": _llama3(2048, 8192, 16, 32, 32.0, head_dim=64, **_TIED),
    "llama-3.2-3b": _llama3(3072, 8192, 28, 24, 32.0, head_dim=128, **_TIED),
    "mistral-7b-v0.1": _sizes(
        "mistral", 32_000, 4096, 14_336, 32, 32, 8, sliding_window=4096, max_position_embeddings=32_768, rms_norm_eps=1e-5
    ),
    "mistral-7b-v0.3": _sizes(
        *("mistral", 32_768, 4096, 14_336, 32, 32, 8),
        sliding_window=None, max_position_embeddings=32_768, rms_norm_eps=1e-5, rope_theta=1_000_000.0,
    ),
    "qwen2-0.5b": _sizes("qwen2", 151_936, 896, 4864, 24, 14, 2, **_QWEN, **_TIED),
    "qwen2-1.5b": _sizes("qwen2", 151_936, 1536, 8960, 28, 12, 2, **_QWEN, **_TIED),
    "qwen2-7b": _sizes("qwen2", 152_064, 3584, 18_944, 28, 28, 4, **_QWEN),
    "qwen2.5-14b": _sizes("qwen2", 152_064, 5120, 13_824, 48, 40, 8, **_QWEN),
    "qwen2.5-32b": _sizes("qwen2", 152_064, 5120, 27_648, 64, 40, 8, **_QWEN),
    "qwen2.5-72b": _sizes("qwen2", 152_064, 8192, 29_568, 80, 64, 8, **_QWEN),
    "qwen3-0.6b": _sizes("qwen3", 151_936, 1024, 3072, 28, 16, 8, **_QWEN3, **_TIED),
    "qwen3-4b": _sizes("qwen3", 151_936, 2560, 9728, 36, 32, 8, **_QWEN3, **_TIED),
    "qwen3-8b": _sizes("qwen3", 151_936, 4096, 12_288, 36, 32, 8, **_QWEN3),
    "qwen3-32b": _sizes("qwen3", 151_936, 5120, 25_600, 64, 64, 8, **_QWEN3),
    "gemma-2-2b": _sizes("gemma2", 256_000, 2304, 9216, 26, 8, 4),
    "gemma-2-9b": _sizes("gemma2", 256_000, 3584, 14_336, 42, 16, 8),
    "gemma-2-27b": _sizes("gemma2", 256_000, 4608, 36_864, 46, 32, 16, head_dim=128, query_pre_attn_scalar=144),
    "gemma-3-1b": _sizes(
        "gemma3_text", 262_144, 1152, 6912, 26, 4, 1, **_GEMMA3 | {"sliding_window": 512}, max_position_embeddings=32_768
    ),
    "gemma-3-4b": _sizes(
        "gemma3_text", 262_208, 2560, 10_240, 34, 8, 4, **_GEMMA3, rope_scaling={"rope_type": "linear", "factor": 8.0}
    ),
    "phi-3-mini-4k": _sizes("phi3", 32_064, 3072, 8192, 32, 32, 32, sliding_window=2047),
    "phi-3-medium-4k": _sizes("phi3", 32_064, 5120, 17_920, 40, 40, 10, sliding_window=2047),
    "mixtral-8x7b": _sizes("mixtral", 32_000, 4096, 14_336, 32, 32, 8, max_position_embeddings=32_768, sliding_window=None),
    "qwen3-30b-a3b": _sizes("qwen3_moe", 151_936, 2048, 6144, 48, 32, 4, **_QWEN3, norm_topk_prob=True),
}  # fmt: skip
"""By name: the fields of their ``config.json``."""


def published(name: str) -> Configuration:
    """The configuration of a published model. Raises KeyError if there is none of that name."""
    return configuration(PUBLISHED[name])
