"""Recurrent layers as on CUDA, where cuDNN runs all steps at once.

cuDNN keeps what backward needs in one *reserve space*, and works in a *workspace*; it publishes neither size.
``kernels/recurrent.py`` says how they are counted; the prediction says by how much they may differ.

Source: PyTorch, ``aten/src/ATen/native/cudnn/RNN.cpp``, ``aten/src/ATen/cudnn/AutocastRNN.cpp``, ``derivatives.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from ...errors import NotOfferedError
from .fake import fake_tensors, without_modes
from .kernels import Gpu
from .kernels.recurrent import WHY, Cells, random_states
from .refusing import check_devices

Tensors = list[torch.Tensor]
_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_FLAT = (torch.float64, torch.float32, torch.float16)
"""Dtypes whose weights a layer puts into one buffer. Those of bfloat16, which cuDNN takes too, are copied in each call."""
_WITHOUT = (
    "predict: torch.backends.cudnn.enabled is False. What a recurrent layer takes without cuDNN is not known. Leave cuDNN on"
)


class _LayerCall(NamedTuple):
    cells: Cells
    batch_first: bool
    trains: bool
    flat: bool


class _Recurrent(torch.autograd.Function):
    """One call of cuDNN. Saved: states, input, weights in one buffer, output, and the reserve space."""

    @staticmethod
    def forward(ctx: Any, call: _LayerCall, input: torch.Tensor, weights: int, *held: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.call, ctx.weights, cells = call, weights, call.cells
        dense = _by_step(call, input).contiguous()
        states = held[weights:]
        width = cells.projected * cells.directions
        strides = (width, cells.batch * width)[:: -1 if not call.batch_first else 1]
        rows = strides[1 - input.dim() :]  # a packed input has one axis for steps and sequences
        output = input.new_empty_strided((*input.shape[:-1], width), (*rows, 1))
        after = [state.new_empty(state.shape) for state in states]
        buffer = None if call.flat else input.new_empty(sum(weight.numel() for weight in held[:weights]))
        workspace = _bytes(input, cells.workspace())
        reserve = _bytes(input, cells.reserve()) if call.trains else None
        del workspace
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*reversed(states), input, *held[:weights], output, reserve, buffer)
        del dense
        return (output, *after)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call, cells = ctx.call, ctx.call.cells
        if not call.trains:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        *held, output, reserve, _ = ctx.saved_tensors
        count = len(held) - 1 - ctx.weights
        states, input, weights = held[:count][::-1], held[count], held[count + 1 :]
        if all(gradient is None for gradient in gradients):
            return None, None, None, *[None] * (ctx.weights + count)
        if _autograd._get_current_graph_task_keep_graph():
            reserve = reserve.clone()  # cuDNN writes to it
        first = _zeros(gradients[0], output)
        after = [_zeros(gradient, state) for gradient, state in zip(gradients[1:], states, strict=True)]
        dense, ends = _by_step(call, input).contiguous(), _by_step(call, first).contiguous()
        made = torch.empty_like(dense, memory_format=torch.contiguous_format)
        inner = [each.contiguous() for each in after]
        found = [torch.empty_like(state) for state in states]
        workspace = _bytes(input, cells.workspace())
        del workspace, inner, ends, dense
        pieces: list[Any] = [None] * ctx.weights
        if any(ctx.needs_input_grad[3 : 3 + ctx.weights]):
            dense = _by_step(call, input).contiguous()
            buffer = input.new_zeros(sum(weight.numel() for weight in weights))
            workspace = _bytes(input, cells.workspace())
            pieces = list(_pieces(buffer, weights))
            del workspace, dense
        while after:
            after.pop()
        del reserve, first
        needed = ctx.needs_input_grad[3 + ctx.weights :]
        for index, needs in enumerate(needed):
            found[index] = found[index] if needs else None  # type: ignore[call-overload]
        return None, _by_step(call, made) if ctx.needs_input_grad[1] else None, None, *pieces, *found


class _Lower(torch.autograd.Function):
    """A weight in another dtype, in its part of a buffer."""

    @staticmethod
    def forward(ctx: Any, place: list[torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
        ctx.dtype = weight.dtype
        return place[0].detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, gradients[0].to(ctx.dtype)


class _LstmCell(torch.autograd.Function):
    """The part of an LSTM's cell after its products, by one kernel. Saved: its arguments, a state, and all gates once more.

    Source: ``cuda/RNN.cu``, ``_thnn_fused_lstm_cell_cuda``, ``_thnn_fused_lstm_cell_backward_impl_cuda``.
    """

    @staticmethod
    def forward(ctx: Any, gates: torch.Tensor, hidden: torch.Tensor, cx: torch.Tensor, *biases: torch.Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        workspace, hy, cy = (torch.empty_like(each) for each in (gates, cx, cx))
        ctx.save_for_backward(cx, biases[1], hidden, biases[0], gates, cy, workspace)
        return hy, cy

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        cx, *_, workspace = ctx.saved_tensors
        gates, first = torch.empty_like(workspace), torch.empty_like(cx)
        bias = gates.sum(0) if any(ctx.needs_input_grad[3:]) else None
        return gates, gates, first if ctx.needs_input_grad[2] else None, bias, bias


class _GruCell(torch.autograd.Function):
    """The part of a GRU's cell after its products, by one kernel. Saved: its arguments, and five numbers for each of the state.

    Source: ``cuda/RNN.cu``, ``_thnn_fused_gru_cell_cuda``, ``_thnn_fused_gru_cell_backward_cuda``.
    """

    @staticmethod
    def forward(ctx: Any, gates: torch.Tensor, hidden: torch.Tensor, hx: torch.Tensor, *biases: torch.Tensor | None) -> Any:
        workspace = hx.new_empty(hx.shape[0], 5 * hx.shape[1])
        ctx.save_for_backward(biases[1], hidden, hx, biases[0], gates, workspace)
        return torch.empty_like(hx)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        batch, width = gradients[0].shape
        gates, hidden = (gradients[0].new_empty(batch, 3 * width) for _ in range(2))
        first = torch.empty_like(gradients[0])
        biases = [each.sum(0) if needs else None for each, needs in zip((gates, hidden), ctx.needs_input_grad[3:], strict=True)]
        return gates, hidden, first if ctx.needs_input_grad[2] else None, *biases


def lstm_cell(
    input: torch.Tensor, hx: Tensors, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """``aten::lstm_cell``. Source: ``RNN.cpp``, ``LSTMCell``."""
    return _LstmCell.apply(input.matmul(w_ih.t()), hx[0].matmul(w_hh.t()), hx[1], b_ih, b_hh)


def gru_cell(
    input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """``aten::gru_cell``. Source: ``RNN.cpp``, ``GRUCell``."""
    return _GruCell.apply(input.matmul(w_ih.t()), hx.matmul(w_hh.t()), hx, b_ih, b_hh)


def _by_step(call: _LayerCall, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, 1) if call.batch_first else tensor


def _bytes(like: torch.Tensor, size: int) -> torch.Tensor:
    return like.new_empty(size, dtype=torch.uint8)


def _zeros(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like, memory_format=torch.contiguous_format) if gradient is None else gradient


def _pieces(buffer: torch.Tensor, weights: Tensors) -> Iterator[torch.Tensor]:
    """The part of a buffer for each weight."""
    start = 0
    for weight in weights:
        yield buffer[start : start + weight.numel()].view(weight.shape)
        start += weight.numel()


def _lowered(input: torch.Tensor, states: Tensors, params: Tensors) -> tuple[torch.Tensor, Tensors, Tensors]:
    """Arguments as autocast makes them: weights in one buffer, then the states from the last to the first, then the input."""
    lower = torch.get_autocast_dtype("cuda")
    if any(weight.dtype != lower for weight in params):
        buffer = params[0].detach().new_zeros(sum(weight.numel() for weight in params), dtype=lower)
        params = [_Lower.apply([part], weight) for part, weight in zip(_pieces(buffer, params), params, strict=True)]  # type: ignore[misc]
    states = [state.to(lower) for state in reversed(states)][::-1]
    return input.to(lower), states, params


def layers(gpu: Gpu, bound: Callable[[int, str], None]) -> dict[str, Callable[..., Any]]:
    """The kernels of all recurrent layers and cells on the GPU, by the name of the op.

    Args:
        bound: called with the bytes by which cuDNN's memory may differ.
    """
    kept: Tensors = []  # what the process keeps: the states of dropout's random numbers
    cells = {"lstm_cell": lstm_cell, "gru_cell": gru_cell}
    of_layers = {"input": _layer, "data": _packed_layer}
    return {f"{name}.{kind}": partial(of_layers[kind], name, gpu, bound, kept) for name in _MODES for kind in of_layers} | cells


def _layer(
    name: str,
    gpu: Gpu,
    bound: Callable[[int, str], None],
    kept: Tensors,
    input: torch.Tensor,
    hx: Any,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    shape: tuple[int, int] | None = None,
) -> Any:
    """``shape``: steps and sequences of a packed input."""
    if not torch.backends.cudnn.enabled:
        raise NotOfferedError(_WITHOUT)
    states = list(hx) if name == "lstm" else [hx]
    check_devices(fake_tensors([input, *states, *params]))
    if train and dropout and not kept:
        input.new_empty((), dtype=torch.int64)  # a seed
        kept.append(_bytes(input.detach(), random_states(gpu)))
    if torch.is_autocast_enabled("cuda"):
        input, states, params = _lowered(input, states, params)
    _check_dtypes(input, hidden=states, parameter=params)
    steps, batch = shape or input.shape[:2][:: -1 if batch_first else 1]
    cells = Cells(
        _MODES[name], steps, batch, input.shape[-1], states[-1].shape[-1], states[0].shape[-1], num_layers,
        2 if bidirectional else 1, input.dtype, bool(train and dropout),
    )  # fmt: skip
    bound(cells.unsure(gpu), WHY)
    flat = len({weight.untyped_storage()._cdata for weight in params}) == 1
    output, *after = _Recurrent.apply(_LayerCall(cells, batch_first, train, flat), input, len(params), *params, *states)  # type: ignore[misc]
    return (output, *after)


def _check_dtypes(input: torch.Tensor, **others: Tensors) -> None:
    """Raise PyTorch's error where cuDNN gets tensors of several dtypes. Source: ``aten/src/ATen/native/RNN.h``."""
    for name, tensors in others.items():
        for each in tensors:
            if each.dtype != input.dtype:
                raise RuntimeError(
                    f"Input and {name} tensors are not the same dtype, found input tensor with {_NAMES.get(input.dtype)} and "
                    f"{name} tensor with {_NAMES.get(each.dtype)}"
                )


def _packed_layer(
    name: str, gpu: Gpu, bound: Any, kept: Tensors, input: torch.Tensor, batch_sizes: torch.Tensor, *args: Any
) -> Any:
    """A packed input. Source: ``cudnnGetRNNTempSpaceSizes``, which sizes memory by the longest sequence and the batch."""
    with without_modes():
        shape = len(batch_sizes), int(batch_sizes[0])
    run = partial(_layer, name, gpu, bound, kept, input)
    return run(*args, batch_first=False, shape=shape)


def flatten_parameters(module: torch.nn.RNNBase) -> None:
    """Put the weights of a layer on the GPU into one buffer, as ``_cudnn_rnn_flatten_weight`` does."""
    weights: list[Any] = module._flat_weights
    kinds = {(type(w), w.device.type, w.dtype) if isinstance(w, torch.Tensor) else None for w in weights}
    if len(kinds) != 1 or None in kinds or weights[0].device.type != "cuda" or weights[0].dtype not in _FLAT:
        return
    with torch.no_grad():
        for weight, part in zip(weights, _pieces(weights[0].new_empty(sum(w.numel() for w in weights)), weights), strict=True):
            weight.data = part
