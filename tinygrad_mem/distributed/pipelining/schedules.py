"""The order in which a rank runs the forwards and backwards of its stages: the schedules differ in nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ... import scope
from ...autograd.tensor import Tensor
from ...errors import ArgumentError, NotOfferedError
from ...functional.join import cat
from .stage import PipelineStage


class PipelineAction(NamedTuple):
    """One forward or backward of a rank.

    Attributes:
        kind: ``F`` or ``B``.
        stage: which of this rank's stages.
        chunk: the micro-batch.
    """

    kind: str
    stage: int
    chunk: int


class PipelineSchedule:
    """The base of all schedules. Every rank makes one, and calls :meth:`step`.

    Args:
        n_microbatches: into how many equal parts a batch is cut, along dimension 0.
        loss_fn: of the last stage's output and the target of a micro-batch, a mean over its samples.
        scale_grads: gradients are those of the mean over micro-batches, not of the sum.
        args_chunk_spec, kwargs_chunk_spec, output_merge_spec: not offered: tensors are cut and joined along dimension 0.

    Raises:
        ArgumentError: the schedule does not fit the stages.
    """

    def __init__(
        self,
        stages: list[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
    ) -> None:
        if args_chunk_spec or kwargs_chunk_spec or output_merge_spec:
            raise NotOfferedError(
                f"{type(self).__name__}: chunk and merge specs are not offered: tensors are cut and joined along dimension 0"
            )
        if n_microbatches < 1:
            raise ArgumentError(f"{type(self).__name__}: n_microbatches is 1 or more, found {n_microbatches}")
        self._stages, self._n_microbatches, self._loss_fn = list(stages), n_microbatches, loss_fn
        self.scale_grads = scale_grads
        self._size = stages[0].group.size()  # ranks of the pipeline
        self.actions = self._order(stages[0].stage_index % self._size)

    def _order(self, rank: int) -> list[PipelineAction]:
        """The actions of a rank of the pipeline, in order."""
        raise NotImplementedError

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict | None = None,
        **kwargs: Any,
    ) -> Any:
        """Forward and backward of one batch; gradients are added to those of the parameters.

        Args:
            args: the batch, on the rank of the first stage.
            target: on the rank of the last stage.
            losses: gets the loss of each micro-batch there, without its graph.
            return_outputs: keep the outputs of the last stage and return them, joined; without it nothing keeps them.
            loss_kwargs: keyword arguments of ``loss_fn``.
            kwargs: keyword arguments of this rank's stages; tensors are cut.

        Raises:
            ArgumentError: a batch cannot be divided into equal micro-batches; arguments are missing.
        """
        first, last = self._stages[0].is_first, self._stages[-1].is_last
        if bool(args) != first:
            raise ArgumentError(
                f"{type(self).__name__}.step: the rank of the first stage gives the batch, and no other rank; found "
                f"{len(args)} arguments on the rank of stages {[s.stage_index for s in self._stages]}"
            )
        if last and self._loss_fn is None:
            raise ArgumentError(f"{type(self).__name__}.step: the rank of the last stage needs a loss_fn")
        count = self._n_microbatches
        _check_parts(count, *args, *kwargs.values(), target if last else None)
        results = _Results(return_outputs, losses)
        backwards = [action for action in self.actions if action.kind == "B"]
        final = {action.stage: action for action in backwards}  # the last one of each stage
        for stage in self._stages:
            stage.begin()
        for action in self.actions:
            stage = self._stages[action.stage]
            chunk = action.chunk
            if action.kind == "F":
                mine = tuple(_part(x, count, chunk) for x in args) if stage.is_first else ()
                outputs = stage.forward(chunk, mine, {name: _part(x, count, chunk) for name, x in kwargs.items()})
                del mine
                if stage.is_last:
                    results.add(chunk, outputs, self._loss(outputs, _part(target, count, chunk), loss_kwargs or {}))
                del outputs
            else:
                scale = 1 / count if self.scale_grads else 1
                loss = results.root(chunk, scale) if stage.is_last else None
                stage.backward(chunk, loss, final[action.stage] is action)
                del loss
        for stage in self._stages:
            stage.finish()
        return results.joined() if last else None

    def _loss(self, outputs: tuple, target: Any, options: dict) -> Tensor:
        assert self._loss_fn is not None
        return self._loss_fn(outputs[0] if len(outputs) == 1 else outputs, target, **options)


class _Results:
    """The losses of the last stage, and its outputs if the caller wants them."""

    def __init__(self, wanted: bool, losses: list | None) -> None:
        self._wanted, self._outputs, self._edges, self._losses = wanted, {}, {}, losses
        if losses is not None:
            losses.clear()

    def add(self, chunk: int, outputs: tuple, loss: Tensor) -> None:
        """Keep where the gradient of the loss goes; of the tensors, keep only what is needed."""
        self._edges[chunk] = loss.edge(), loss
        if self._losses is not None:
            self._losses.append(loss.detach())
        if self._wanted:
            self._outputs[chunk] = tuple(x.detach() for x in outputs)

    def root(self, chunk: int, scale: float) -> tuple:
        """The edge of a micro-batch's loss, and its gradient."""
        edge, loss = self._edges.pop(chunk)
        with scope.phase("backward"):
            grad = loss.device.empty(loss.array.shape, loss.dtype)
            loss.device.kernels.fill(scale, out=grad)
        return edge, grad

    def joined(self) -> Any:
        """All outputs, or ``None``."""
        if not self._outputs:
            return None
        columns = [cat(list(each)) for each in zip(*(self._outputs[i] for i in sorted(self._outputs)), strict=True)]
        return columns[0] if len(columns) == 1 else tuple(columns)


def _check_parts(count: int, *batch: Any) -> None:
    """Refuse tensors that cannot be divided into ``count`` equal parts."""
    for x in batch:
        if isinstance(x, Tensor) and (not x.ndim or x.shape[0] % count):
            raise ArgumentError(
                f"a batch {list(x.shape)} cannot be cut into {count} equal micro-batches along dimension 0: the mean of "
                "their losses would not be the batch's"
            )


def _part(x: Any, count: int, chunk: int) -> Any:
    """The micro-batch ``chunk`` of a tensor, a view; anything else as it is."""
    if not isinstance(x, Tensor):
        return x
    size = x.shape[0] // count
    return x[chunk * size : chunk * size + size]


class _OfOneStage(PipelineSchedule):
    def __init__(
        self, stage: PipelineStage, n_microbatches: int, loss_fn: Callable[..., Tensor] | None = None, *more: Any, **named: Any
    ) -> None:
        if stage.num_stages != stage.group.size():
            raise ArgumentError(
                f"{type(self).__name__}: one stage for each rank, found {stage.num_stages} stages on {stage.group.size()} "
                "ranks: use ScheduleInterleaved1F1B"
            )
        super().__init__([stage], n_microbatches, loss_fn, *more, **named)


class ScheduleGPipe(_OfOneStage):
    """All forwards, then all backwards: every stage keeps all micro-batches.

    Source: Huang et al., *GPipe*, 2019.
    """

    def _order(self, rank: int) -> list[PipelineAction]:
        return [PipelineAction(kind, 0, chunk) for kind in "FB" for chunk in range(self._n_microbatches)]


class Schedule1F1B(_OfOneStage):
    """A forward, a backward, a forward: stage i of p keeps at most p - i micro-batches.

    A stage begins with as many forwards as there are stages from it to the end. So the first stage keeps the most.

    Memory: parameters, gradients and optimizer state of this stage's layers; activations of min(p - i, m) of m micro-batches.
    Price: a rank waits for the others as long as p - 1 micro-batches take. Activations and their gradients are sent.
    Do not use when: a batch has fewer micro-batches than stages, or the layers need different times: most ranks wait then.

    Source: Narayanan et al., *PipeDream*, 2019; *Memory-Efficient Pipeline-Parallel DNN Training* (PipeDream-Flush), 2021.
    """

    def _order(self, rank: int) -> list[PipelineAction]:
        return _alternating(self._n_microbatches, self._size - rank - 1, lambda k: (0, k), lambda k: (0, k))


class ScheduleInterleaved1F1B(PipelineSchedule):
    """Several stages on each rank: rank r of p has the stages r, r + p, r + 2p, ... The pipeline fills and empties faster.

    Memory: rank r of p with v stages begins with (v - 1) p + 2 (p - r - 1) forwards, each of 1 / v of its layers: up to
    1 + (p - 1) / (p v) times what ``Schedule1F1B`` keeps on the first rank.

    Args:
        stages: this rank's, in order.
        n_microbatches: a multiple of the rounds of p that fit into it.
        backward_requires_autograd, defer_pp_recv: accepted for compatibility.

    Source: Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, 2021.
    """

    def __init__(
        self,
        stages: list[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *more: Any,
        backward_requires_autograd: bool = True,
        defer_pp_recv: bool = False,
        **named: Any,
    ) -> None:
        size, count = stages[0].group.size(), len(stages)
        if size == 1 or any(stage.num_stages != size * count for stage in stages):
            raise ArgumentError(
                f"ScheduleInterleaved1F1B: {size} ranks with {count} stages each have {size * count} stages, found "
                f"{stages[0].num_stages}; it needs two ranks or more"
            )
        rounds = max(1, n_microbatches // size)
        if n_microbatches % rounds:
            raise ArgumentError(
                f"Interleaved 1F1B requires the number of microbatches to be a multiple of the number of rounds ({rounds}), "
                f"but got {n_microbatches}: use a multiple of {size}"
            )
        self._round = n_microbatches // rounds
        super().__init__(stages, n_microbatches, loss_fn, *more, **named)

    def _order(self, rank: int) -> list[PipelineAction]:
        count, each = len(self._stages), self._round

        def at(k: int, backward: bool) -> tuple[int, int]:
            stage = k // each % count
            return (count - 1 - stage if backward else stage), k // (each * count) * each + k % each

        first = (count - 1) * each + 2 * (self._size - rank - 1)
        return _alternating(count * self._n_microbatches, first, lambda k: at(k, False), lambda k: at(k, True))


def _alternating(
    total: int, first: int, forward: Callable[[int], tuple], backward: Callable[[int], tuple]
) -> list[PipelineAction]:
    """``first`` forwards; then a forward and a backward in turns; then the other backwards."""
    first = min(first, total)
    order = [PipelineAction("F", *forward(k)) for k in range(first)]
    for k in range(total):
        if first + k < total:
            order.append(PipelineAction("F", *forward(first + k)))
        order.append(PipelineAction("B", *backward(k)))
    return order
