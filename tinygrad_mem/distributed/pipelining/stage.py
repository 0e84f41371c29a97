"""A stage of a pipeline: some layers on one rank, and the micro-batches that are under way through them."""

from __future__ import annotations

from typing import Any

from ... import scope
from ...autograd import core
from ...autograd.tensor import Tensor
from ...devices import device as Device
from ...dtypes import is_floating
from ...errors import ArgumentError, NotOfferedError
from ...nn import Module
from ..buffers import buffer
from ..data_parallel import DistributedDataParallel
from ..fsdp import FSDPModule
from ..group import Work
from ..groups import own_group

_FORWARD, _BACKWARD = 0, 1


class PipelineStage:
    """Some layers of a network, which get their input from the stage before, and send their output to the next.

    Stage s runs on rank s of the group, modulo its size. A schedule calls :meth:`forward` and :meth:`backward`.

    Memory:
        For each micro-batch under way: its received input, and what the layers saved for its backward. An output is kept until
        the next stage has received it; its graph is kept longer. A rank with one stage waits for the send when it begins its
        next micro-batch, a rank with several when that stage sends again. Received arrays, and arrays while they are sent, are
        communication buffers. Backward writes into received gradients.

    Args:
        submodule: the layers.
        stage_index, num_stages: its place.
        device: of the tensors that it receives.
        input_args: tensors like its inputs of one micro-batch; only their shapes and dtypes count. Every stage but the first
            needs them, because stages do not send shapes to each other. So a prediction of one rank knows them too.
        output_args, output_grads, input_grads, dw_builder, get_mesh: accepted for compatibility; an output tells its own shape.
        group: the ranks of the pipeline; by default all.

    Raises:
        ArgumentError: the place does not exist or belongs to another rank, or ``input_args`` is missing.
    """

    def __init__(
        self,
        submodule: Module,
        stage_index: int,
        num_stages: int,
        device: Any,
        input_args: Tensor | tuple[Tensor, ...] | None = None,
        output_args: Any = None,
        output_grads: Any = None,
        input_grads: Any = None,
        group: Any = None,
        dw_builder: Any = None,
        get_mesh: Any = None,
    ) -> None:
        found = own_group("PipelineStage", group)
        if dw_builder is not None:
            raise NotOfferedError("PipelineStage: dw_builder is not offered: backward computes all gradients at once")
        if not 0 <= stage_index < num_stages:
            raise ArgumentError(f"Stage index {stage_index} is out of range of {num_stages}")
        self.submod, self.stage_index, self.num_stages = submodule, stage_index, num_stages
        self.device, self.group = Device(device), found
        self.is_first, self.is_last = stage_index == 0, stage_index == num_stages - 1
        if stage_index % found.size() != found._rank:
            raise ArgumentError(
                f"PipelineStage: stage {stage_index} of {num_stages} belongs to rank {stage_index % found.size()} of the "
                f"group, this is rank {found._rank}: the stages of rank r are r, r + {found.size()}, ..."
            )
        if input_args is None and not self.is_first:
            raise ArgumentError(
                f"PipelineStage: stage {stage_index} receives its input: give input_args, tensors of the shape and dtype of "
                "one micro-batch's; zeros(1).expand(shape) takes no memory"
            )
        self._inputs = [] if self.is_first else [(x.shape, x.dtype) for x in _tuple(input_args)]
        self._under_way: dict[int, tuple[list[Tensor], list]] = {}  # micro-batch -> its leaves, and the edges of its outputs
        self._sends: tuple[list[Work], list[Work]] = ([], [])

    def forward(self, chunk: int, args: tuple, kwargs: dict) -> tuple[Tensor, ...]:
        """Run the layers on a micro-batch, and send their outputs on. Returns the outputs of the last stage, else ``()``.

        Args:
            args: the inputs of the first stage; others receive theirs.
            kwargs: keyword arguments of any stage's module.
        """
        leaves = [Tensor._wrap(array, self.device) for array in self._received(_FORWARD, self._inputs)]
        for leaf in leaves:
            leaf.requires_grad_(is_floating(leaf.dtype))
        outputs = _tuple(self.submod(*(args if self.is_first else leaves), **kwargs))
        del args
        self._under_way[chunk] = leaves, [] if self.is_last else [_edge(x) for x in outputs if is_floating(x.dtype)]
        if self.is_last:
            return outputs
        self._send(_FORWARD, [x.array for x in outputs])
        return ()

    def backward(self, chunk: int, loss: tuple | None, syncs: bool) -> None:
        """Compute the gradients of a micro-batch, add those of the parameters, and send those of the inputs back.

        Args:
            loss: of the last stage: the edge of the loss, and its gradient's array.
            syncs: with data parallel or ``fully_shard``: this is the step's last micro-batch; its backward averages gradients.
        """
        leaves, edges = self._under_way.pop(chunk)
        if isinstance(self.submod, DistributedDataParallel):
            self.submod._reducer.expect(syncs)
        elif isinstance(self.submod, FSDPModule):
            self.submod.set_requires_gradient_sync(syncs)
        walk = core.Walk(False, None)
        walk.begin(self._roots(edges) if loss is None else [(*loss, True)])
        del edges, loss  # the walk alone holds the gradients now
        walk.finish()
        if not self.is_first:
            self._send(_BACKWARD, [self._gradient(leaf) for leaf in leaves if is_floating(leaf.dtype)])

    def _roots(self, edges: list) -> list:
        """The outputs' edges with the gradients that the next stage sends."""
        received = self._received(_BACKWARD, [like for _, like in edges])
        return [(edge, grad, True) for (edge, _), grad in zip(edges, received, strict=True) if edge is not None]

    def _gradient(self, leaf: Tensor) -> Any:
        """The gradient of an input, which leaves it; zeros if nothing depends on the input."""
        grad, leaf.grad = leaf.grad, None
        if grad is not None:
            return grad.array
        zeros = buffer(leaf.device, leaf.array.shape, leaf.dtype)
        leaf.device.kernels.fill(0, out=zeros)
        return zeros

    def _received(self, way: int, likes: list) -> list:
        """Arrays from the stage before, or gradients from the next one.

        This rank asks to receive before it waits for its own sends: two ranks that send to each other would else deadlock.
        """
        neighbour = self.stage_index + (1 if way == _BACKWARD else -1)
        with scope.phase("backward" if way == _BACKWARD else "forward"):
            arrays = [buffer(self.device, tuple(shape), dtype) for shape, dtype in likes]
        source, tag = neighbour % self.group.size(), 2 * self.stage_index + way
        works = [self.group.recv(array, source, tag) for array in arrays]
        if self.num_stages == self.group.size():  # else its neighbour may receive other stages' messages first
            self.finish()
        for work in works:
            work.wait()
        return arrays

    def _send(self, way: int, arrays: list) -> None:
        """Begin to send, when what was sent this way before is received."""
        self._wait(way)
        index = self.stage_index + (1 if way == _FORWARD else -1)
        for array in arrays:
            if not array.flags.c_contiguous:
                whole = buffer(self.device, array.shape, array.dtype)
                self.device.kernels.copy(array, out=whole)
                array = whole
            work = self.group.send(array, index % self.group.size(), 2 * index + way)
            scope.report_role(array, "COMMUNICATION", work)  # until the work is freed
            self._sends[way].append(work)

    def _wait(self, way: int) -> None:
        while self._sends[way]:
            self._sends[way].pop(0).wait()

    def begin(self) -> None:
        """Begin a step: drop what an earlier step left, which may have ended with an error."""
        self._under_way.clear()
        self._sends = ([], [])

    def finish(self) -> None:
        """Wait until all that this stage has sent is received, and let it go."""
        for way in (_FORWARD, _BACKWARD):
            self._wait(way)


def _tuple(x: Any) -> tuple:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _edge(x: Tensor) -> tuple:
    """The place where the gradient of a floating output goes, and its shape and dtype."""
    return (x.edge() if x.requires_grad else None), (x.array.shape, x.dtype)
