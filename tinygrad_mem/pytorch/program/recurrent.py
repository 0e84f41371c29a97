"""Recurrent layers as on CUDA, where cuDNN runs all steps at once.

cuDNN keeps what backward needs in one *reserve space*, whose size it does not publish. Counted is the least that the formulas
need: of each step, layer and direction the gates, the cell, and the output between layers. The prediction says so.

Source: PyTorch, ``aten/src/ATen/native/cudnn/RNN.cpp``; "cuDNN: cudnnGetRNNTempSpaceSizes".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .kernels.recurrent import kept

Tensors = list[torch.Tensor]
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_WHY = "cuDNN alone knows the reserve and the workspace of its recurrent layers; counted is the least that backward needs"
_WORKSPACE = 16 << 20  # bytes: more than cuDNN's own scratch beside the gates


class _Recurrent(torch.autograd.Function):
    """One call of cuDNN. Saved: input, states, weights in one buffer, output, and the reserve space."""

    @staticmethod
    def forward(ctx: Any, shapes: tuple, input: torch.Tensor, *held: torch.Tensor) -> Any:
        output_shape, state_shapes, reserve, trains = shapes
        output = input.new_empty(output_shape)
        after = [input.new_empty(shape) for shape in state_shapes]
        if trains:
            kept = torch.empty(reserve, dtype=torch.uint8, device=input.device)
            ctx.save_for_backward(input, *held, output, kept)
        return (output, *after)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        input, *held, _, _ = ctx.saved_tensors
        gradients = tuple(gradient.contiguous() for gradient in gradients if gradient is not None)
        made = torch.empty_like(input) if ctx.needs_input_grad[1] else None
        states = [t for t in held if t.dim() == 3]
        weights = [t for t in held if t.dim() != 3]
        needed = zip(states, ctx.needs_input_grad[2:], strict=False)
        found = [torch.empty_like(state) if needs else None for state, needs in needed]
        buffer = input.new_zeros(sum(weight.numel() for weight in weights))
        pieces, start = [], 0
        for weight in weights:
            pieces.append(buffer[start : start + weight.numel()].view_as(weight))
            start += weight.numel()
        return None, made, *found, *pieces


def layer(name: str, bound: Callable[[int, str], None]) -> Callable[..., Any]:
    """``aten::lstm.input`` and its like for tensors on the GPU; ``bound`` hears how much more cuDNN may take."""

    def run(
        input: torch.Tensor,
        hx: Any,
        params: Tensors,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        states = list(hx) if name == "lstm" else [hx]
        if torch.is_autocast_enabled("cuda"):
            lower = torch.get_autocast_dtype("cuda")
            input, states, params = input.to(lower), [s.to(lower) for s in states], [p.to(lower) for p in params]
        directions, hidden = 2 if bidirectional else 1, states[-1].shape[-1]
        width = states[0].shape[-1] * directions  # less than the cell's, if it is projected
        steps, batch = input.shape[:2]
        masks = bool(train and dropout)
        reserve = kept(_MODES[name], hidden, num_layers, directions, steps, batch, input.element_size(), masks)
        bound(reserve + _WORKSPACE, _WHY)
        keeps = torch.is_grad_enabled() and train and any(t.requires_grad for t in (input, *states, *params))
        shapes = (*input.shape[:2], width), [state.shape for state in states], reserve, keeps
        output, *after = _Recurrent.apply(shapes, input, *states, *params)
        return (output, *after)

    return run


def layers(bound: Callable[[int, str], None]) -> dict[str, Callable[..., Any]]:
    """The kernels of all recurrent layers, by the name of the op."""
    return {f"{name}.input": layer(name, bound) for name in _MODES}


def flatten_parameters(module: torch.nn.RNNBase) -> None:
    """Put the weights of a layer on the GPU into one buffer, as ``_cudnn_rnn_flatten_weight`` does."""
    weights: list[Any] = module._flat_weights
    if not all(isinstance(w, torch.Tensor) and w.device.type == "cuda" and w.dtype == weights[0].dtype for w in weights):
        return
    with torch.no_grad():
        buffer, start = weights[0].new_empty(sum(w.numel() for w in weights)), 0
        for weight in weights:
            weight.data = buffer[start : start + weight.numel()].view_as(weight)
            start += weight.numel()
