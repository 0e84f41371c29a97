"""Elementwise arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tinygrad_mem as tm
from tests.case import OpCase

Inputs = Callable[[np.random.Generator], list[np.ndarray]]
SHAPE = (4, 5)


def normal(*shapes: tuple[int, ...], shift: float = 0.0, scale: float = 1.0) -> Inputs:
    return lambda rng: [shift + scale * rng.standard_normal(s) for s in (shapes or (SHAPE,))]


def positive(*shapes: tuple[int, ...]) -> Inputs:
    return lambda rng: [0.5 + rng.random(s) for s in (shapes or (SHAPE,))]


def within(low: float, high: float) -> Inputs:
    return lambda rng: [rng.uniform(low, high, SHAPE)]


def bounded(rng: np.random.Generator) -> list[np.ndarray]:
    """Numbers, and bounds of which some are beyond them."""
    return [rng.standard_normal(SHAPE), rng.uniform(-2, 0, SHAPE), rng.uniform(0, 2, SHAPE)]


def x_bytes(*arrays: Any) -> int:
    return arrays[0].nbytes


def y_bytes(*arrays: Any) -> int:
    return arrays[-1].nbytes


def both(x: Any, y: Any, out: Any) -> int:
    return x.nbytes + y.nbytes


def unary(name: str, saved: Any, inputs: Inputs | None = None, op: str = "", **options: Any) -> OpCase:
    """A function that both libraries call by the same name."""
    mine, theirs = getattr(tm, name), getattr(torch, name)
    return OpCase(name, op or name.capitalize(), mine, theirs, inputs or normal(), saved, **options)


CASES = [
    OpCase("add", "Add", tm.add, torch.add, normal(SHAPE, SHAPE)),
    OpCase("add_broadcast", "Add", tm.add, torch.add, normal((3, 1, 5), (4, 1))),
    OpCase(
        "add_alpha",
        ["Add", "Mul"],
        lambda x, y: tm.add(x, y, alpha=3),
        lambda x, y: torch.add(x, y, alpha=3),
        normal(SHAPE, (5,)),
    ),
    OpCase("sub", "Sub", tm.sub, torch.sub, normal(SHAPE, SHAPE)),
    OpCase("rsub_number", "Sub", lambda x: 2.5 - x, lambda x: 2.5 - x, normal()),
    OpCase("mul", "Mul", tm.mul, torch.mul, normal(SHAPE, SHAPE), both),
    OpCase("mul_broadcast", "Mul", tm.mul, torch.mul, normal(SHAPE, (4, 1)), both),
    OpCase("mul_number", "Mul", lambda x: x * 3, lambda x: x * 3, normal()),
    OpCase("div", "Div", tm.div, torch.div, lambda rng: [rng.standard_normal(SHAPE), 1 + rng.random(SHAPE)], both),
    OpCase("div_number", "Div", lambda x: x / 4, lambda x: x / 4, normal()),
    OpCase("rdiv_number", "Div", lambda x: 2 / x, lambda x: 2 / x, positive(), x_bytes),
    OpCase("pow", "Pow", tm.pow, torch.pow, positive(SHAPE, SHAPE), lambda x, y, out: x.nbytes + y.nbytes + out.nbytes),
    OpCase("pow_number", "Pow", lambda x: x**3, lambda x: x**3, normal(), x_bytes),
    OpCase("rpow_number", "Pow", lambda x: 2.0**x, lambda x: 2.0**x, normal(), lambda x, out: x.nbytes + out.nbytes),
    OpCase(
        "addcmul",
        "Addcmul",
        lambda x, a, b: tm.addcmul(x, a, b, value=0.7),
        lambda x, a, b: torch.addcmul(x, a, b, value=0.7),
        normal(SHAPE, (4, 1), SHAPE),
        lambda x, a, b, out: a.nbytes + b.nbytes,
    ),
    OpCase(
        "addcdiv",
        "Addcdiv",
        lambda x, a, b: tm.addcdiv(x, a, b, value=-2),
        lambda x, a, b: torch.addcdiv(x, a, b, value=-2),
        lambda rng: [rng.standard_normal(SHAPE), rng.standard_normal(SHAPE), 1 + rng.random((4, 1))],
        lambda x, a, b, out: a.nbytes + b.nbytes,
    ),
    OpCase("lerp", "Lerp", lambda x, y: tm.lerp(x, y, 0.7), lambda x, y: torch.lerp(x, y, 0.7), normal(SHAPE, SHAPE)),
    OpCase(
        "lerp_weight",
        "Lerp",
        tm.lerp,
        torch.lerp,
        lambda rng: [rng.standard_normal(SHAPE), rng.standard_normal((4, 1)), rng.random(SHAPE)],
        lambda x, end, weight, out: x.nbytes + end.nbytes + weight.nbytes,
    ),
    OpCase("square", "Square", tm.square, torch.square, normal(), x_bytes),
    OpCase("maximum", "Maximum", tm.maximum, torch.maximum, normal(SHAPE, SHAPE), both),
    OpCase("minimum", "Minimum", tm.minimum, torch.minimum, normal(SHAPE, SHAPE), both),
    OpCase("remainder", "Remainder", tm.remainder, torch.remainder, positive(SHAPE, SHAPE), both),
    OpCase("fmod_number", "Remainder", lambda x: tm.fmod(x, 0.7), lambda x: torch.fmod(x, 0.7), normal()),
    OpCase(
        "div_floor",
        "DivRound",
        lambda x, y: tm.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        positive(SHAPE, SHAPE),
    ),
    OpCase(
        "div_trunc_integers",
        "DivRound",
        lambda x, y: tm.div(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda rng: [rng.integers(-50, 50, SHAPE), rng.integers(1, 9, SHAPE)],
        grad=False,
    ),
    OpCase("neg", "Neg", tm.neg, torch.neg, normal()),
    unary("abs", x_bytes),
    unary("sign", None),
    unary("floor", None, op="Round"),
    unary("ceil", None, op="Round"),
    unary("round", None, op="Round"),
    unary("trunc", None, op="Round"),
    unary("exp", y_bytes),
    unary("exp2", y_bytes),
    unary("expm1", y_bytes),
    unary("log", x_bytes, positive()),
    unary("log1p", x_bytes, positive()),
    unary("log2", x_bytes, positive()),
    unary("log10", x_bytes, positive()),
    unary("sqrt", y_bytes, positive()),
    unary("rsqrt", y_bytes, positive()),
    unary("reciprocal", y_bytes, positive()),
    unary("sin", x_bytes),
    unary("cos", x_bytes),
    unary("tan", y_bytes),
    unary("asin", x_bytes, within(-0.9, 0.9)),
    unary("acos", x_bytes, within(-0.9, 0.9)),
    unary("atan", x_bytes),
    unary("sinh", x_bytes),
    unary("cosh", x_bytes),
    unary("tanh", y_bytes),
    unary("sigmoid", y_bytes),
    unary("erf", x_bytes),
    unary("erfc", x_bytes),
    unary("erfinv", y_bytes, within(-0.9, 0.9)),
    OpCase("atan2", "Atan2", tm.atan2, torch.atan2, normal(SHAPE, SHAPE), both),
    OpCase("clamp", "Clamp", lambda x: tm.clamp(x, -0.5, 0.5), lambda x: torch.clamp(x, -0.5, 0.5), normal(), x_bytes),
    OpCase("clamp_min", "Clamp", lambda x: x.clamp(min=0.1), lambda x: x.clamp(min=0.1), normal(), x_bytes),
    OpCase("clamp_tensors", ["Where", "Where"], tm.clamp, torch.clamp, bounded, lambda x, low, high, y: 2 * y.size),
    OpCase(
        "where",
        "Where",
        lambda c, x, y: tm.where(c, x, y),
        lambda c, x, y: torch.where(c, x, y),
        lambda rng: [rng.random(SHAPE) > 0.5, rng.standard_normal(SHAPE), rng.standard_normal((5,))],
        lambda c, x, y, out: c.nbytes,
    ),
    OpCase(
        "masked_fill",
        "MaskedFill",
        lambda x, m: x.masked_fill(m, 2.0),
        lambda x, m: x.masked_fill(m, 2.0),
        lambda rng: [rng.standard_normal(SHAPE), rng.random(SHAPE) > 0.5],
        lambda x, m, out: m.nbytes,
    ),
    OpCase("nan_to_num", "NanToNum", tm.nan_to_num, torch.nan_to_num, normal(), x_bytes),
    OpCase("fill", "Fill", lambda x: (x * 1).fill_(3.0), lambda x: (x * 1).fill_(3.0), normal()),
    OpCase("compare", "Compare", lambda x, y: x < y, lambda x, y: x < y, normal(SHAPE, (5,)), grad=False),
    OpCase("logical_and", "Compare", tm.logical_and, torch.logical_and, normal(SHAPE, SHAPE), grad=False),
    OpCase("isfinite", "Classify", tm.isfinite, torch.isfinite, normal(), grad=False),
    OpCase(
        "bitwise_and",
        "Bitwise",
        lambda x, y: x & y,
        lambda x, y: x & y,
        lambda rng: [rng.integers(0, 99, SHAPE), rng.integers(0, 99, SHAPE)],
        grad=False,
    ),
    OpCase("bitwise_not", "BitwiseNot", lambda x: ~x, lambda x: ~x, lambda rng: [rng.integers(0, 99, SHAPE)], grad=False),
]
