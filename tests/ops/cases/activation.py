"""Activations."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as theirs

from tests.case import OpCase
from tests.ops.cases.elementwise import normal, x_bytes, y_bytes
from tinygrad_mem.nn import functional as ours


def case(name: str, op: str, saved: Any, label: str = "", tolerance: Any = None, **options: Any) -> OpCase:
    """An activation that both libraries call by the same name, on values on both sides of every bend."""
    mine, other = getattr(ours, name), getattr(theirs, name)
    return OpCase(
        label or name, op, lambda x: mine(x, **options), lambda x: other(x, **options), normal((4, 6), scale=2.0), saved
    )


CASES = [
    case("relu", "ReLU", y_bytes),
    OpCase("relu_in_place", "ReLU", lambda x: (x + 1).relu_(), lambda x: (x + 1).relu_(), normal(), y_bytes),
    case("relu6", "Ramp", y_bytes),
    case("leaky_relu", "LeakyReLU", y_bytes),
    case("leaky_relu", "LeakyReLU", x_bytes, "leaky_relu_negative", negative_slope=-0.2),
    case("leaky_relu", "LeakyReLU", y_bytes, "leaky_relu_one", negative_slope=1.0),
    case("elu", "ELU", x_bytes, alpha=0.7),
    case("selu", "ELU", x_bytes),
    OpCase(
        "celu",  # PyTorch's float64 gradient rounds 1 / alpha to float32: the formula is the reference
        "ELU",
        lambda x: ours.celu(x, 1.3),
        lambda x: torch.where(x > 0, x, 1.3 * torch.expm1(x / 1.3)),
        normal((4, 6), scale=2.0),
        x_bytes,
    ),
    case("gelu", "GELU", x_bytes),
    case("gelu", "GELU", x_bytes, "gelu_tanh", approximate="tanh"),
    case("silu", "SiLU", x_bytes),
    case("mish", "Mish", x_bytes),
    case("softplus", "Softplus", x_bytes, beta=1.5, threshold=2.0),
    case("softsign", "Softsign", x_bytes),
    case("logsigmoid", "LogSigmoid", x_bytes),
    OpCase(
        "hardsigmoid",  # PyTorch's float64 kernel rounds 1/6 to float32: the formula is the reference
        "Ramp",
        ours.hardsigmoid,
        lambda x: torch.clamp(x / 6 + 0.5, 0, 1),
        normal((4, 6), scale=2.0),
        y_bytes,
    ),
    case("hardswish", "Hardswish", x_bytes),
    case("hardtanh", "Ramp", y_bytes, min_val=-0.5, max_val=1.5),
    case("threshold", "Threshold", x_bytes, threshold=0.1, value=20.0),
    OpCase("prelu", "PReLU", ours.prelu, theirs.prelu, normal((4, 3, 5), (3,)), lambda x, w, out: x.nbytes + w.nbytes),
    OpCase(
        "prelu_one_weight", "PReLU", ours.prelu, theirs.prelu, normal((4, 3, 5), (1,)), lambda x, w, out: x.nbytes + w.nbytes
    ),
]
