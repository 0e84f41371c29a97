"""Recurrent layers and their single steps. One node per layer: see :mod:`tinygrad_mem.ops.recurrent`."""

from __future__ import annotations

import math
import warnings
from numbers import Number
from typing import Any

from ..autograd.tensor import Tensor
from ..errors import ArgumentError, NotOfferedError, ShapeError
from ..functional import creation, join, recurrent
from ..scope import local
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter
from .utils.rnn import Layout, PackedSequence, layout_of, packed

__all__ = ("GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell")

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


class RNNBase(Module):
    """The base of recurrent layers: ``weight_ih_l0``, ``weight_hh_l0``, ``bias_ih_l0``, ``bias_hh_l0``, one set per layer, and
    one per direction, with ``_reverse`` after the names. The first values are uniform in ±1 / sqrt(hidden_size).

    Attributes:
        recompute: if it is k, backward computes the gates again, k steps at a time, instead of keeping them. By default 0: keep
            them. Set it on the layer: ``lstm.recompute = 32``. The price is one more forward of the layer, a third of a step.
    """

    mode: str
    proj_size = 0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        _check_options(input_size, hidden_size, num_layers, bias, batch_first, dropout)
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers "
                f"greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=2 if type(self).__init__ is RNNBase.__init__ else 3,
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.recompute = bidirectional, 0
        rows = _GATES[self.mode] * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * (1 + bidirectional)
            for way in range(1 + bidirectional):
                sizes = ((rows, width), (rows, hidden_size), (rows,), (rows,))
                for name, size in zip(_names(layer, way)[: 4 if bias else 2], sizes, strict=False):
                    setattr(self, name, Parameter(creation.empty(*size, device=device, dtype=dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction, in order."""
        ways = [(layer, way) for layer in range(self.num_layers) for way in range(1 + self.bidirectional)]
        return [[getattr(self, name) for name in _names(*way)[: 4 if self.bias else 2]] for way in ways]

    def flatten_parameters(self) -> None:
        """Does nothing: weights are read in place."""

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """The outputs of the last layer at all steps, and the last states of all layers.

        Args:
            input: (T, N, input_size), or (N, T, input_size) with ``batch_first``, (T, input_size) without a batch, or a
                PackedSequence.
            hx: the state before the first step (layers * directions, N, hidden_size), for an LSTM a pair; ``None``: zeros.

        Raises:
            ValueError, RuntimeError: dtypes or shapes do not fit the layer.
        """
        cells = self.mode == "LSTM"
        if isinstance(input, PackedSequence):
            layout = layout_of(input)
            rows, states = input.data, _permuted(hx, layout, input.sorted_indices)
            self._check(rows, states, layout.sizes[0], 2, "packed")
            y, last = self._layers(rows, states, layout.sizes, steps=cells)
            last = _permuted(last, layout, input.unsorted_indices)
            return packed(y, layout, input), tuple(last) if cells else last[0]
        if input.ndim not in (2, 3):
            kind = "LSTM" if cells else "GRU" if self.mode == "GRU" else "RNN"
            tensor = "" if cells else " tensor"
            raise ArgumentError(f"{kind}: Expected input to be 2D or 3D, got {input.ndim}D{tensor} instead")
        states = [] if hx is None else list(hx) if cells else [hx]
        batched, axis = input.ndim == 3, 0 if self.batch_first else 1
        if not batched:
            _check_dimensions(states, 2, "unbatched 2-D")
            input, states = input.unsqueeze(axis), [state.unsqueeze(1) for state in states]
        else:
            _check_dimensions(states, 3, "batched 3-D")
        steps, count = input.shape[1 - axis], input.shape[axis]
        self._check(input, states, count, 3, "padded")
        if not steps:
            raise ShapeError(f"Expected sequence length to be larger than 0 in RNN, found input {list(input.shape)}")
        turned = input.transpose(0, 1) if self.batch_first else input
        y, last = self._layers(turned.reshape(steps * count, self.input_size), states, (count,) * steps, steps=False)
        y = y.reshape(steps, count, y.shape[1])
        y = y.transpose(0, 1) if self.batch_first else y
        if not batched:
            y, last = y.squeeze(axis), [state.squeeze(1) for state in last]
        return y, tuple(last) if cells else last[0]

    def _layers(self, rows: Tensor, states: list[Tensor], sizes: tuple[int, ...], steps: bool) -> tuple[Tensor, list[Tensor]]:
        """Run all layers over packed rows. Returns the outputs of the last layer, and the last states, stacked.

        ``steps``: PyTorch's CPU computes the layer step by step, as it does a GRU; that decides its dtype under autocast.
        """
        ways, weights = 1 + self.bidirectional, self.all_weights
        found = []
        for layer in range(self.num_layers):
            mine = [state if self.num_layers == 1 else state.narrow(0, layer * ways, ways) for state in states]
            given = [
                w for way in weights[layer * ways : (layer + 1) * ways] for w in (way if self.bias else [*way, None, None])
            ]
            if steps or self.mode == "GRU":
                rows, *last = recurrent.layer_of_steps(mine[::-1], self.mode, rows, given, sizes, self.recompute)
            else:
                rows, *last = recurrent.recurrent_layer(self.mode, rows, mine, given, sizes, self.recompute)
            found.append(last)
            if layer < self.num_layers - 1:
                rows = F.dropout(rows, self.dropout, self.training)
        if self.num_layers == 1:
            return rows, found[0]
        return rows, [join.cat(list(part)) for part in zip(*found, strict=True)]

    def _check(self, input: Tensor, states: list[Tensor], count: int, dims: int, kind: str) -> None:
        weight = self.weight_ih_l0
        if input.dtype != weight.dtype and local.autocast is None:
            raise ArgumentError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({weight.dtype}). "
                f"Convert input: input.to({weight.dtype}), or convert model: model.to({input.dtype})"
            )
        if input.ndim != dims:
            raise ShapeError(f"input must have {dims} dimensions, got {input.ndim}: {kind} input of {list(input.shape)}")
        if input.shape[-1] != self.input_size:
            raise ShapeError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {input.shape[-1]}")
        expected = (self.num_layers * (1 + self.bidirectional), count, self.hidden_size)
        for i, state in enumerate(states):
            if tuple(state.shape) != expected:
                which = f"hidden[{i}]" if self.mode == "LSTM" else "hidden"
                raise ShapeError(f"Expected {which} size {expected}, got {list(state.shape)}")

    def extra_repr(self) -> str:
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False}
        return f"{self.input_size}, {self.hidden_size}{self._shown_unless(**defaults)}"


def _names(layer: int, way: int) -> list[str]:
    return [f"{kind}_l{layer}{'_reverse' * way}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def _permuted(hx: Any, layout: Layout, indices: Tensor | None) -> list[Tensor]:
    """States in the order of a packed batch."""
    states = [] if hx is None else list(hx) if isinstance(hx, (tuple, list)) else [hx]
    return states if layout.order is None or indices is None else [state.index_select(1, indices) for state in states]


def _check_dimensions(states: list[Tensor], dims: int, kind: str) -> None:
    if any(state.ndim != dims for state in states):
        if len(states) > 1:
            found = ", ".join(f"{state.ndim}-D" for state in states)
            raise ShapeError(f"For {kind} input, hx and cx should also be {dims}-D but got ({found}) tensors")
        raise ShapeError(f"For {kind} input, hx should also be {dims}-D but got {states[0].ndim}-D tensor")


def _check_options(input_size: Any, hidden_size: Any, num_layers: int, bias: Any, batch_first: Any, dropout: Any) -> None:
    if not isinstance(dropout, Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:  # type: ignore[operator]
        raise ValueError("dropout should be a number in range [0, 1] representing the probability of an element being zeroed")
    flags, sizes = {"bias": bias, "batch_first": batch_first}, {"input_size": input_size, "hidden_size": hidden_size}
    for kind, values in ((bool, flags), (int, sizes)):
        for name, value in values.items():
            if not isinstance(value, kind):
                raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(value).__name__}")
    for name, value in (sizes | {"num_layers": num_layers}).items():
        if value <= 0:
            raise ValueError(f"{name} must be greater than zero, found {value}")


class RNN(RNNBase):
    """``h = tanh(weight_ih @ x + bias_ih + weight_hh @ h + bias_hh)`` at each step, or relu of it.

    Kept for backward: inputs and outputs of each layer, nothing else.

    Args:
        nonlinearity: "tanh" or "relu".
        num_layers: the number of layers; each reads the outputs of the one before.
        dropout: applied to the outputs of all layers but the last.
        bidirectional: a second direction, from the last step to the first; outputs have twice hidden_size features.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        self.mode, self.nonlinearity = f"RNN_{nonlinearity.upper()}", nonlinearity
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)


class LSTM(RNNBase):
    """Long short-term memory: ``c = f c + i g``, ``h = o tanh(c)``, where i, f, g and o are gates of ``W x + b + U h + d``.

    Kept for backward besides inputs and outputs: 4 numbers per step, sequence and unit (the gates), and the cells once every
    512 rows; with :attr:`recompute` = k, the cells every k steps and no gates.

    Args:
        num_layers, dropout, bidirectional: as :class:`RNN`.
        proj_size: not offered.

    Source: Hochreiter and Schmidhuber, *Long short-term memory*, 1997.
    """

    mode = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        if proj_size:
            raise NotOfferedError("LSTM: proj_size is not offered: use a smaller hidden_size, or a Linear behind the layer")


class GRU(RNNBase):
    """Gated recurrent unit: ``h = (1 - z) n + z h``, ``n = tanh(W x + b + r (U h + d))``, where r and z are gates.

    Kept for backward besides inputs and outputs: 4 numbers per step, sequence and unit; none with :attr:`recompute`.

    Args:
        num_layers, dropout, bidirectional: as :class:`RNN`.

    Source: Cho et al., *Learning phrase representations using RNN encoder-decoder*, 2014; r is applied as PyTorch applies it.
    """

    mode = "GRU"


class RNNCellBase(Module):
    """The base of single steps: ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh``, uniform in ±1 / sqrt(hidden_size)."""

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        sizes = {"weight_ih": (rows, input_size), "weight_hh": (rows, hidden_size), "bias_ih": (rows,), "bias_hh": (rows,)}
        for name, size in sizes.items():
            absent = not bias and name.startswith("bias")
            made = None if absent else Parameter(creation.empty(*size, device=device, dtype=dtype))
            self.register_parameter(name, made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        bound = 1.0 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _step(self, function: Any, input: Tensor, states: list[Tensor] | None) -> list[Tensor]:
        """The new states for the old ones, (N, ...) or without N."""
        name, batched = type(self).__name__, input.ndim == 2
        if input.ndim not in (1, 2):
            raise ArgumentError(f"{name}: Expected input to be 1D or 2D, got {input.ndim}D instead")
        for i, state in enumerate(states or ()):
            if state.ndim not in (1, 2):
                which = "hidden" if states is not None and len(states) == 1 else f"hx[{i}]"
                raise ArgumentError(f"{name}: Expected {which} to be 1D or 2D, got {state.ndim}D instead")
        x = input if batched else input.unsqueeze(0)
        first: list[Any] = [None] * (1 + isinstance(self, LSTMCell)) if states is None else states
        if states is not None and not batched:
            first = [state.unsqueeze(0) for state in states]
        self._check(x, first)
        given = first[0] if len(first) == 1 else first
        made = function(x, given, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        last = [made] if isinstance(made, Tensor) else list(made)
        return last if batched else [state.squeeze(0) for state in last]

    def _check(self, x: Tensor, states: list) -> None:
        if x.shape[1] != self.input_size:
            raise ShapeError(f"input has inconsistent input_size: got {x.shape[1]} expected {self.input_size}")
        for i, state in enumerate(states):
            if state is not None and state.shape[0] != x.shape[0]:
                raise ShapeError(f"Input batch size {x.shape[0]} doesn't match hidden{i} batch size {state.shape[0]}")
            if state is not None and state.shape[1] != self.hidden_size:
                raise ShapeError(f"hidden{i} has inconsistent hidden_size: got {state.shape[1]}, expected {self.hidden_size}")

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}{self._shown_unless(bias=True)}"


class RNNCell(RNNCellBase):
    """One step of :class:`RNN`: (N, input_size), (N, hidden_size) -> (N, hidden_size), or without N."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def extra_repr(self) -> str:
        return super().extra_repr() + self._shown_unless(nonlinearity="tanh")

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"Unknown nonlinearity: {self.nonlinearity}")
        function = getattr(recurrent, f"rnn_{self.nonlinearity}_cell")
        return self._step(function, input, None if hx is None else [hx])[0]


class LSTMCell(RNNCellBase):
    """One step of :class:`LSTM`: (N, input_size), two states (N, hidden_size) -> the same two; or without N."""

    gates = 4

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._step(recurrent.lstm_cell, input, None if hx is None else list(hx))
        return h, c


class GRUCell(RNNCellBase):
    """One step of :class:`GRU`: (N, input_size), (N, hidden_size) -> (N, hidden_size), or without N."""

    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step(recurrent.gru_cell, input, None if hx is None else [hx])[0]
