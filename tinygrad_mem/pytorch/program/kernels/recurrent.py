"""Recurrent layers by cuDNN: one buffer of all weights, what is kept for backward, and the workspace."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .call import Gpu, KernelCall, nbytes, row, up

_WIDE = {0: 1, 1: 1, 2: 5, 3: 6}  # numbers kept of each cell of a step: relu, tanh, LSTM (gates and cell), GRU
_SMALL = {0: 384, 1: 384}  # up to which size of state a layer stays in registers; else 192
_STREAM = 8 << 20  # bytes that cuDNN takes for the products of each layer and direction
_SOURCE = "cudnn/RNN.cpp"


class Cells(NamedTuple):
    """A recurrent layer's call, as cuDNN sees it. ``projected`` is ``hidden`` where the state is not projected."""

    mode: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    projected: int
    layers: int
    directions: int
    dtype: torch.dtype
    dropout: bool

    @property
    def layer(self) -> int:
        """Bytes of the states of all steps of one layer, before a projection."""
        return self.steps * self.batch * self.directions * self.hidden * self.dtype.itemsize

    def reserve(self) -> int:
        """Bytes that a layer keeps for backward.

        A cell keeps an LSTM's four gates and its state, a GRU's three gates with both of their sums, or an RNN's result; then
        the input of each layer but the first, and a bit for each number that dropout gets. Each part is a multiple of 32 bytes,
        and 256 bytes come before them. A projection keeps the state before and after it.
        """
        after = self.layer * self.projected // self.hidden
        between = (self.layers - 1) * after
        masks = between // self.dtype.itemsize / 8 if self.dropout else 0
        gates = self.layers * self.layer * _WIDE[self.mode]
        states = self.layers * (self.layer + after) if self.projected != self.hidden else 0
        return 256 + sum(32 * up(int(part), 32) for part in (gates, between, masks, states))

    def workspace(self) -> int:
        """Bytes of the workspace: about 17 times those of all states where they stay in registers, else about 8, or 16 of 16
        bits; and 8 MiB for each layer and direction."""
        small = self.projected == self.hidden <= _SMALL.get(self.mode, 192) and self.dtype is not torch.bfloat16
        times = 17 if small and self.dtype is not torch.float64 else 8 if self.dtype.itemsize > 2 else 16
        return self.layers * (times * self.layer + self.directions * _STREAM)

    def unsure(self, gpu: Gpu) -> int:
        """Bytes by which workspace and reserve may differ. They differed by at most 8 times the states, tiny ones by 24.

        1 MiB more, because PyTorch's allocator does not split off a rest of up to 1 MiB.
        """
        streams = self.layers * self.directions - (2 if gpu.capability == (9, 0) else 0)
        inputs = self.steps * self.batch * self.inputs * self.dtype.itemsize
        unseen = self.layers * self.directions > 2 or self.projected != self.hidden or self.dtype is torch.float64
        return 10 * self.layers * self.layer + 2 * inputs + (1 << 20) + max(0, streams) * _STREAM + unseen * self.reserve()


def random_states(gpu: Gpu) -> int:
    """Bytes of the random numbers' states that a process keeps for dropout: 24 for each thread that can run at once."""
    return gpu.processors * gpu.threads * 24


def _cells(call: KernelCall) -> Cells:
    tensor, batches = call["input"], call["batch_sizes"]
    steps, batch = (len(batches), batches[0]) if batches else tensor.shape[:2][:: -1 if call["batch_first"] else 1]
    hidden, dropout = call["hidden_size"], bool(call["dropout"]) and call["train"]
    return Cells(
        call["mode"], steps, batch, tensor.shape[-1], hidden, call["proj_size"] or hidden, call["num_layers"],
        2 if call["bidirectional"] else 1, tensor.dtype, dropout,
    )  # fmt: skip


WHY = "cuDNN alone knows the workspace and reserve of its recurrent layers: a row of the table of kernels says what is counted"


@row(
    "_cudnn_rnn",
    takes="a copy of an input that is not contiguous; one buffer for weights that are not in one already; a workspace; in "
    "training also a reserve. Only cuDNN knows both sizes. Counted for the reserve: 5 numbers (LSTM), 6 (GRU) or 1 for each "
    "cell of each layer, the input of each layer but the first, and a bit for each number that dropout gets. Counted for the "
    "workspace: 8 MiB for each layer and direction, and about 17 times the states; a bound says how far off this may be",
    source=f"{_SOURCE}, _cudnn_rnn; cudnnGetRNNTempSpaceSizes",
    seen="h100 (cuDNN 9.19: all reserves of one layer in both directions, or of two in one; all workspaces within the bound)",
)
def rnn(call: KernelCall) -> None:
    weights, given, tensor, cells = call["weight"], call["weight_buf"], call["input"], _cells(call)
    call.contiguous(tensor.transpose(0, 1) if call["batch_first"] else tensor)
    call.result(0, 1, 2)
    if given is None:
        call.temporary(sum(nbytes(weight) for weight in weights))
    call.ask(cells.workspace())
    call.ask(cells.reserve() if call["train"] else 0, role="ACTIVATION")
    call.bound(cells.unsure(call.gpu), WHY)
