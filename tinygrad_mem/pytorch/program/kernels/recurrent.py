"""Recurrent layers by cuDNN: one buffer of all weights, what is kept for backward, and the workspace."""

from __future__ import annotations

from math import prod

import torch

from .call import KernelCall, nbytes, row

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # relu, tanh, LSTM, GRU


def kept(mode: int, hidden: int, layers: int, directions: int, steps: int, batch: int, width: int, dropout: bool) -> int:
    """Bytes that backward needs of a recurrent layer: each step's gates, state and cell in each layer, and dropout's masks.

    cuDNN does not say what its reserve holds (``cudnnGetRNNTempSpaceSizes``). What the gradient is made of is: of an LSTM four
    gates, the cell and its tanh; of a GRU three gates and what the state gave to the third; and the layer's result.
    """
    values = {2: 6, 3: 4}.get(mode, 1) + 1
    cells = layers * directions * steps * batch * hidden
    masks = (layers - 1) * directions * steps * batch * hidden if dropout else 0
    return cells * values * width + masks


@row(
    "_cudnn_rnn",
    takes="the buffer of weights where they do not lie in one; a workspace and a reserve that cuDNN asks for: not known "
    "(bounded by what the gradient is made of, twice)",
    source="aten/src/ATen/native/cudnn/RNN.cpp, _cudnn_rnn; cudnnGetRNNTempSpaceSizes",
)
def rnn(call: KernelCall) -> None:
    weights, given = call["weight"], call["weight_buf"]
    if given is None:
        call.ask(sum(nbytes(weight) for weight in weights), "TEMPORARY")
    tensor = call["input"]
    call.contiguous(tensor)
    steps, batch = (tensor.shape[1], tensor.shape[0]) if call["batch_first"] else tensor.shape[:2]
    size = kept(
        call["mode"], call["hidden_size"], call["num_layers"], 2 if call["bidirectional"] else 1, steps, batch,
        tensor.element_size(), bool(call["train"] and call["dropout"]),
    )  # fmt: skip
    gates = _GATES.get(call["mode"], 4) * call["hidden_size"] * steps * batch * tensor.element_size()
    call.bound(
        (2 * size if call["train"] else 0) + gates + (16 << 20), "cuDNN alone knows the workspace and reserve of its layers"
    )


@row(
    "_cudnn_rnn_backward",
    takes="gradients of all weights in one buffer; a workspace that only cuDNN knows",
    source="aten/src/ATen/native/cudnn/RNN.cpp, _cudnn_rnn_backward_input, _cudnn_rnn_backward_weight",
)
def rnn_backward(call: KernelCall) -> None:
    call.ask(sum(nbytes(weight) for weight in call["weight"]), "TEMPORARY")
    gates = _GATES.get(call["mode"], 4) * call["hidden_size"] * prod(call["input"].shape[:2])
    call.bound(2 * gates * call["input"].element_size() + (16 << 20), "cuDNN alone knows the workspace of its layers")


@row(
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    takes="nothing: the gates are a result",
    source="aten/src/ATen/native/cuda/RNN.cu",
)  # fmt: skip
def cells(call: KernelCall) -> None:
    for argument in call.func._schema.arguments:
        value = call[argument.name]
        if isinstance(value, torch.Tensor):
            call.contiguous(value)
