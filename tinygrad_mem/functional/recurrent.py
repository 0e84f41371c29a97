"""Recurrent layers, one op for all time steps and directions of a layer; and their single steps, as in ``torch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError
from ..ops import recurrent as ops
from ..ops.recurrent_run import chunk_steps
from .door import FIRST, LOWER, public

_KINDS = {"RNN_TANH": ops.RNN, "RNN_RELU": ops.RNN, "LSTM": ops.LSTM, "GRU": ops.GRU}


@public(cpu=LOWER, cuda=LOWER)
def recurrent_layer(
    mode: str, input: Tensor, states: Sequence[Any], weights: Sequence[Any], sizes: Any, recompute: int = 0
) -> tuple[Tensor, ...]:
    """All time steps of a layer: rows (sum of sizes, features) -> rows (sum of sizes, directions * H), and the last states.

    Args:
        mode: RNN_TANH, RNN_RELU, LSTM or GRU.
        input: packed rows: the first steps of all sequences, then their second steps, and so on.
        states: the state before the first step (directions, sequences, H), for an LSTM also the cell; empty: zeros.
        weights: w_ih, w_hh, b_ih and b_hh, and four more for a second direction; biases may be ``None``.
        sizes: the number of sequences at each step, which never rises.
        recompute: compute the gates again in backward, this many steps at a time, instead of keeping them; 0 keeps them.

    Saves: of an LSTM and of a GRU four numbers a row, unit and direction, and of an LSTM the cells once every chunk of steps
    (512 rows); with ``recompute`` the cells alone; further input, output and weights. The ops' docstrings say it in bytes.

    Raises:
        ShapeError, DTypeError: the parts do not fit each other.
    """
    return _layer(mode, input, states, weights, sizes, recompute)


@public(cpu=FIRST, cuda=LOWER)
def layer_of_steps(
    states: Sequence[Any], mode: str, input: Tensor, weights: Sequence[Any], sizes: Any, recompute: int = 0
) -> tuple[Tensor, ...]:
    """:func:`recurrent_layer` where PyTorch's CPU adds products in half precision to a state, whose dtype the result has.

    Args:
        states: as in :func:`recurrent_layer`, but the cell of an LSTM is the first: its dtype counts.
        mode, input, weights, sizes, recompute: as in :func:`recurrent_layer`.
    """
    return _layer(mode, input, states[::-1], weights, sizes, recompute)


def _layer(
    mode: str, input: Tensor, states: Sequence[Any], weights: Sequence[Any], sizes: Any, recompute: int
) -> tuple[Tensor, ...]:
    sizes = tuple(sizes)
    steps = recompute or chunk_steps(sizes)
    hx, cx = (*states, None, None)[:2]
    options = {"sizes": sizes, "steps": steps, "remake": bool(recompute) and mode in ("LSTM", "GRU")}
    return apply(_KINDS[mode], input, hx, cx, *weights, relu=mode == "RNN_RELU", **options)


def _cell(mode: str, input: Tensor, hx: Any, weights: tuple) -> tuple[Tensor, ...]:
    """One step: input (N, features), states (N, H) -> states."""
    if input.ndim != 2:
        raise ArgumentError(f"expected an input of 2 dimensions (batch, features), found {list(input.shape)}")
    states = [None if state is None else state.unsqueeze(0) for state in hx]
    sizes = (input.shape[0],)
    if mode in ("LSTM", "GRU"):
        _, *last = layer_of_steps(states[::-1], mode, input, weights, sizes)
    else:
        _, *last = recurrent_layer(mode, input, states, weights, sizes)
    return tuple(state.squeeze(0) for state in last)


@public(cuda=LOWER)
def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """``tanh(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh)``: (N, features), (N, H) -> (N, H).

    Saves: input, both states and weights.
    """
    return _cell("RNN_TANH", input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


@public(cuda=LOWER)
def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """``relu(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh)``: (N, features), (N, H) -> (N, H).

    Saves: input, both states and weights.
    """
    return _cell("RNN_RELU", input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


@public(cuda=LOWER)
def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """One step of a gated recurrent unit: (N, features), (N, H) -> (N, H).

    Saves: input, both states, weights and four numbers a unit.
    """
    return _cell("GRU", input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


@public(cuda=LOWER)
def lstm_cell(
    input: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One step of long short-term memory: (N, features), and a state and a cell (N, H) -> a state and a cell.

    Saves: input, both states, weights and five numbers a unit.
    """
    h, c = _cell("LSTM", input, hx, (w_ih, w_hh, b_ih, b_hh))
    return h, c
