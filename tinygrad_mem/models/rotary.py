"""Rotary position embeddings: the rotation, its frequencies, and how these are stretched for contexts longer than in training.

Sources: Su et al., *RoFormer*, 2021; Peng et al., *YaRN*, 2023, which also has the linear and the dynamic rule; Ding et al.,
*LongRoPE*, 2024; Grattafiori et al., *The Llama 3 herd of models*, 2024.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import Tensor, cat
from .configuration import Configuration, Rope


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (..., numbers of a head) with pairs (x[i], x[i + half]) turned by angles whose cosines and sines are (..., half).

    If a head has more than 2 * half numbers, the others stay as they are.
    """
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return cat((a * cos - b * sin, b * cos + a * sin, *([x[..., 2 * half :]] if x.shape[-1] > 2 * half else [])), -1)


def frequencies(rope: Rope, config: Configuration, tokens: int) -> tuple[np.ndarray, float]:
    """Radians per token of each pair of numbers of a head, float32 (rotated part / 2,), and a factor for cosines and sines.

    Args:
        tokens: the length of the sequence, which decides the stretching of ``dynamic`` and ``longrope``.
    """
    size = int(config.head_dim * rope.share)
    return _RULES[rope.kind](rope, config, size, tokens)


def radians(theta: float, size: int) -> np.ndarray:
    """Radians per token of each pair of ``size`` numbers, float32 (size / 2,): from 1 down to almost 1 / theta."""
    return (1 / np.float32(theta) ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))).astype(np.float32)


def _default(rope: Rope, config: Configuration, size: int, tokens: int) -> tuple[np.ndarray, float]:
    return radians(rope.theta, size), 1.0


def _linear(rope: Rope, config: Configuration, size: int, tokens: int) -> tuple[np.ndarray, float]:
    """Positions are divided by the factor."""
    return radians(rope.theta, size) / np.float32(rope.numbers["factor"]), 1.0


def _dynamic(rope: Rope, config: Configuration, size: int, tokens: int) -> tuple[np.ndarray, float]:
    """The base grows with the length, from the model's length on."""
    factor, known = rope.numbers["factor"], config.max_position_embeddings
    grown = factor * max(tokens, known) / known - (factor - 1)
    return radians(rope.theta * grown ** (size / (size - 2)), size), 1.0


def _llama3(rope: Rope, config: Configuration, size: int, tokens: int) -> tuple[np.ndarray, float]:
    """Long waves are stretched by the factor, short ones are not, and those between them in part."""
    plain, numbers = radians(rope.theta, size), rope.numbers
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    turns = numbers["original_max_position_embeddings"] * plain / (2 * math.pi)  # full turns in the original context
    part = np.clip((turns - low) / (high - low), 0, 1).astype(np.float32)
    return (1 - part) * plain / np.float32(numbers["factor"]) + part * plain, 1.0


def _longrope(rope: Rope, config: Configuration, size: int, tokens: int) -> tuple[np.ndarray, float]:
    """Each frequency has a factor of its own: one for short contexts, one for long ones."""
    numbers, original = rope.numbers, rope.numbers["original_max_position_embeddings"]
    factors = np.array(numbers["long_factor" if tokens > original else "short_factor"], np.float32)
    stretch = numbers.get("factor") or config.max_position_embeddings / original
    attention = numbers.get("attention_factor")
    if attention is None:
        attention = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    return radians(rope.theta, size) / factors, attention


def _yarn(rope: Rope, config: Configuration, size: int, tokens: int) -> tuple[np.ndarray, float]:
    """Slow frequencies are divided by the factor, fast ones are not, with a ramp between them; the scores get a factor."""
    numbers: dict[str, Any] = dict(rope.numbers)
    factor, original = numbers["factor"], numbers["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        """The index of the pair that makes ``turns`` turns in the original context."""
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(numbers.get("beta_fast") or 32), pair(numbers.get("beta_slow") or 1)
    if numbers.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2, dtype=np.float32) - low) / (high - low if high != low else 0.001), 0, 1)
    plain = radians(rope.theta, size)
    return plain / np.float32(factor) * ramp + plain * (1 - ramp), _yarn_factor(numbers, factor)


def _yarn_factor(numbers: dict[str, Any], factor: float) -> float:
    if numbers.get("attention_factor") is not None:
        return numbers["attention_factor"]

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if numbers.get("mscale") and numbers.get("mscale_all_dim"):
        return scale(numbers["mscale"]) / scale(numbers["mscale_all_dim"])
    return scale(1.0)


_RULES = {"default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "longrope": _longrope, "yarn": _yarn}
