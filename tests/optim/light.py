"""Optimizers that PyTorch has not, or has with other roundings: the options with which the nets of all optimizers try them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tinygrad_mem import optim

LIGHT: list[tuple[str, dict[str, Any]]] = [
    ("Lion", {}),
    ("Lion", {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1, "maximize": True}),
    ("AdamMini", {}),
    ("AdamMini", {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("Muon", {"adamw": True}),
    ("Muon", {"lr": 0.02, "nesterov": False, "weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw", "adamw": True}),
    ("GaLore", {"rank": 2, "update_proj_gap": 20}),
    ("GaLore", {"lr": 0.01, "rank": 3, "update_proj_gap": 9, "scale": 1.5, "weight_decay": 0.1, "maximize": True}),
    ("APOLLO", {"rank": 3, "update_proj_gap": 20}),
    ("APOLLO", {"lr": 0.01, "rank": 2, "scale": 2.0, "weight_decay": 0.1, "maximize": True, "scale_type": "tensor"}),
    ("APOLLOMini", {"update_proj_gap": 7}),
    ("Adam4bit", {"min_4bit_size": 0}),
    ("AdamW4bit", {"weight_decay": 0.1, "block_size": 64, "min_4bit_size": 0, "maximize": True}),
    ("Lomo", {}),
    ("Lomo", {"lr": 0.1, "clip_grad_value": 0.3, "maximize": True}),
    ("AdaLomo", {}),
    ("AdaLomo", {"lr": 0.1, "decay_rate": -0.5, "clip_threshold": 1.5, "eps": 0.1, "maximize": True}),
]
NAMES = sorted({name for name, _ in LIGHT})
WHOLE = tuple(name for name in NAMES if getattr(optim, name).needs_whole)
"""Rules that need a whole parameter: its parts move otherwise."""


def rule(name: str) -> Callable[..., Any]:
    """The optimizer, with what it needs to take parameters of any shape."""
    return partial(getattr(optim, name), **({"adamw": True} if name == "Muon" else {}))
