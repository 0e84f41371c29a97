"""Recurrent layers: all steps of a layer as one op."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.case import OpCase
from tinygrad_mem.functional.recurrent import recurrent_layer

T, N, I, H = 9, 4, 3, 5
SHORT = (4, 4, 3, 1)  # sequences at each step of a packed batch
GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


def inputs(mode: str, ways: int, sizes: tuple[int, ...], bias: bool = True):
    """Rows, the states before the first step, and the weights of each direction."""

    def make(rng: np.random.Generator) -> list[np.ndarray]:
        rows = GATES[mode] * H
        states = [rng.standard_normal((ways, sizes[0], H)) for _ in range(1 + (mode == "LSTM"))]
        shapes = [(rows, I), (rows, H), (rows,), (rows,)][: 4 if bias else 2] * ways
        return [rng.standard_normal((sum(sizes), I)), *states, *[rng.standard_normal(s) / 2 for s in shapes]]

    return make


def _split(mode: str, bias: bool, arrays: tuple) -> tuple[list, list]:
    """States, and weights with ``None`` for the biases that there are not."""
    count = 1 + (mode == "LSTM")
    states, weights = list(arrays[:count]), list(arrays[count:])
    if not bias:
        weights = [w for i in range(0, len(weights), 2) for w in (*weights[i : i + 2], None, None)]
    return states, weights


def ours(mode: str, sizes: tuple[int, ...], bias: bool = True, recompute: int = 0):
    def run(x: Any, *arrays: Any) -> Any:
        states, weights = _split(mode, bias, arrays)
        return recurrent_layer(mode, x, states, weights, sizes, recompute)

    return run


def theirs(mode: str, ways: int, sizes: tuple[int, ...], bias: bool = True):
    def run(x: torch.Tensor, *arrays: torch.Tensor) -> list[torch.Tensor]:
        count = 1 + (mode == "LSTM")
        states, weights = list(arrays[:count]), list(arrays[count:])
        function = getattr(torch._VF, mode.lower())
        hx = tuple(states) if mode == "LSTM" else states[0]
        return list(function(x, torch.tensor(sizes), hx, weights, bias, 1, 0.0, True, ways == 2))

    return run


def saved(mode: str, ways: int, sizes: tuple[int, ...], recompute: int = 0):
    """Input, first states and output, the weights; and of the gates and cells what the docstring says."""

    def formula(x: np.ndarray, h0: np.ndarray, *rest: np.ndarray) -> int:
        outputs = 3 if mode == "LSTM" else 2
        y, item, remakes = rest[-outputs], x.itemsize, recompute and mode in ("LSTM", "GRU")
        weights = [a for a in rest[:-outputs] if a.ndim == 2 or (remakes and a.ndim == 1)]
        total = x.nbytes + h0.nbytes + y.nbytes + sum(w.nbytes for w in weights)
        if mode in ("LSTM", "GRU") and not recompute:
            total += ways * 4 * H * len(x) * item
        if mode == "LSTM":
            total += ways * -(-len(sizes) // (recompute or 512 // sizes[0])) * sizes[0] * H * item
        return total

    return formula


def _case(name: str, mode: str, ways: int = 1, sizes: tuple[int, ...] = (N,) * T, bias: bool = True, recompute: int = 0):
    run, reference = ours(mode, sizes, bias, recompute), theirs(mode, ways, sizes, bias)
    made, formula = inputs(mode, ways, sizes, bias), saved(mode, ways, sizes, recompute)
    return OpCase(name, mode.partition("_")[0], run, reference, made, formula, smooth=mode != "RNN_RELU")


CASES = [
    *[_case(mode.lower(), mode) for mode in GATES],
    *[_case(f"{mode.lower()} both ways, packed", mode, 2, SHORT) for mode in GATES],
    *[_case(f"{mode.lower()} no bias", mode, bias=False) for mode in ("RNN_TANH", "LSTM", "GRU")],
    *[_case(f"{mode.lower()} made again", mode, 2, SHORT, recompute=3) for mode in ("LSTM", "GRU")],
]
