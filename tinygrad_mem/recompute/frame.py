"""One call of a checkpointed function: its inputs, the arrays that it did not keep, and how to compute them again.

In the forward, a pack hook replaces every array that an op saves by a :class:`Wanted`, so that the array is freed when the
forward no longer needs it. When backward asks for the first of them, the function runs again. What its ops save then is given
to backward by number.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, ClassVar, NamedTuple

from .. import scope
from ..autograd.core import Node, observed, remember
from ..autograd.graph import saved_tensors_hooks
from ..autograd.node_hooks import PackedArray, TrackedSaved
from ..autograd.tensor import Tensor
from ..callbacks import callback_depth
from ..devices import Draws, noted
from ..errors import CheckpointError, RecomputationStoppedError
from ..nesting import rebuilt
from ..ops.base import Op
from ..scope import local
from ..source import source_line


class Checkpoint(Op):
    """Keeps one input of a checkpointed function until its backward. Saves x."""

    saves: ClassVar[tuple[str, ...]] = ("x",)
    differentiable: ClassVar[bool] = False

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.saved["x"] = x  # whether or not it needs a gradient
        return x


class Wanted:
    """Replaces an array in a node that does not keep it. When the node drops it, the array is no longer needed."""

    __slots__ = ("__weakref__", "index")

    def __init__(self, index: int) -> None:
        self.index = index


class Row(NamedTuple):
    """A record of an array that an op saved, to compare with the recomputation.

    Attributes:
        place: which input of the op it is; ``None`` for a result or a buffer of the op.
        order: the number of the op among those that the function recorded in its thread.
    """

    op: type[Op]
    name: str
    shape: tuple[int, ...]
    dtype: Any  # NumPy's dtype, not its name, which is slow to make
    line: str
    place: int | None
    order: int

    @classmethod
    def of(cls, tensor: Tensor, debug: bool, order: int) -> Row:
        node, name, place = local.saving
        array = tensor.array
        line = source_line() if debug else ""
        return cls(node.op, name, array.shape, array.dtype, line, place, order)

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        return f"{self.op.__name__} saved {self.name}, shape {list(self.shape)}, {self.dtype}{where}"


class Frame:
    """A call of a checkpointed function; it lives as long as a node needs one of its arrays.

    The nodes that the call recorded refer to the frame. It refers to none of them, and not to the result. Separate nodes save
    the call's inputs: so these are counted, checked for in-place writes, and packed by an outer checkpoint.

    Args:
        again: a context for the recomputation.
        rng, stop, check, debug: ``preserve_rng_state``, ``early_stop``, ``determinism_check`` and ``debug`` of a checkpoint.

    Attributes:
        ended: the forward has ended. Until then a backward inside the function computes again only what it needs, and what
            the function has entered by then (of a nested selective checkpoint) does not see it.
    """

    ended = False

    def __init__(
        self,
        function: Callable,
        args: tuple,
        kwargs: dict,
        *,
        again: AbstractContextManager = nullcontext(),  # noqa: B008 (it has no state)
        rng: bool = True,
        stop: bool = True,
        check: bool = True,
        debug: bool = False,
    ) -> None:
        tensors: list[Tensor] = []
        self.function, self.again = function, again
        self.layout = _take_out((args, kwargs), tensors)
        self.stop, self.check, self.debug = stop, check, debug
        self.switches = scope.switches()
        self.draws = noted() if rng else Draws()
        self.rows: list[Row] = []
        self.wanted: list[weakref.ref[Wanted]] = []
        self.inputs = [_keep(tensor) for tensor in tensors]
        self.needs = [tensor.requires_grad for tensor in tensors]
        self.depth, self.run = callback_depth(), local.run
        self.start = local.recorded[self.depth]

    def note(self, tensor: Tensor) -> Wanted:
        """The pack hook of the forward: the array is not kept."""
        wanted = Wanted(len(self.rows))
        self.rows.append(Row.of(tensor, self.debug, local.recorded[self.depth] - self.start))
        self.wanted.append(weakref.ref(wanted))
        return wanted

    def hand_out(self, wanted: Wanted) -> Tensor:
        """The unpack hook of the forward: return the array, and drop the frame's reference to it."""
        kept = {} if local.walk is None else local.walk.kept
        values = kept.get(self)
        if values is None or wanted.index not in values:
            values = kept[self] = self.recompute()
        device, held = values.pop(wanted.index)
        (array,) = held.values()
        return Tensor._wrap(array, device)

    def recompute(self) -> dict[int, tuple]:
        """Run the function again, up to the last array that is still needed.

        Raises:
            CheckpointError: it did not do the same as in the forward.
        """
        run = Rerun(self)
        before = dict(local.__dict__)
        try:
            with ExitStack() as stack:
                stack.enter_context(scope.switched(self.switches))
                stack.enter_context(self.draws.again())
                local.autocast = local.autocast and local.autocast.fresh()  # its cache of casts is freed with it
                stack.enter_context(scope.setting(phase="recompute", op="", line=""))  # afterwards backward's op runs again
                if not self.ended:
                    stack.enter_context(scope.setting(run=self.run))
                args, kwargs = _put_in(self.layout, self._twins())
                stack.enter_context(self.again)
                stack.enter_context(saved_tensors_hooks(run.take, run.give))
                run.start = local.recorded[run.depth]  # the recomputation of its inputs, and the context, may have recorded ops
                if run.spares:
                    run.before = local.run
                    stack.enter_context(scope.setting(run=run.between))
                with suppress(RecomputationStoppedError):
                    self.function(*args, **kwargs)
        finally:
            scope.restore_local(before)  # if an interrupt came between two of the contexts
        run.finish()
        return run.values

    def _twins(self) -> list[Tensor]:
        """The inputs, detached, with the same requires_grad."""
        twins = []
        for node, need in zip(self.inputs, self.needs, strict=True):
            node.open(True)
            value = node.saved["x"]
            twin = Tensor._wrap(value.array() if isinstance(value, PackedArray) else value, node.device)
            twin._storage = next((storage for _, storage, _ in node.versions), None)
            twin._requires_grad = need
            twins.append(twin)
        return twins


class Rerun:
    """A running recomputation. It compares what ops save with the forward, and keeps the arrays that are needed.

    If the op that saves the last needed array saves only its inputs, it does not run: its inputs exist already.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame, self.rows, self.stop = frame, frame.rows, frame.stop or not frame.ended
        self.values: dict[int, tuple] = {}
        self.error: CheckpointError | None = None
        self.count = 0
        self.last = max((i for i, wanted in enumerate(frame.wanted) if wanted() is not None), default=-1)
        self.trace: list[Row] = []
        self.before: Any = None  # what runs ops around this
        final = self.rows[self.last].order if self.last >= 0 else 0
        self.final = next((i for i, row in enumerate(self.rows) if row.order == final), 0)
        self.spares = self.stop and self.last >= 0 and all(row.place is not None for row in self._finals())
        self.depth, self.start = callback_depth(), 0

    def _finals(self) -> list[Row]:
        return self.rows[self.final : self.last + 1]

    def between(self, function: Callable[..., Any], *args: Any, **params: Any) -> Any:
        """Run an op, unless it is the last one and need not run."""
        node, row = args[0] if args else None, self.rows[self.last]
        if self.count != self.final or not isinstance(node, Node) or node.op is not row.op:
            return scope.run_by(self.before, function, *args, **params)
        order = local.recorded[self.depth] + 1 - self.start
        if order != row.order or node.target is not None or True not in node.needs or callback_depth() != self.depth:
            return scope.run_by(self.before, function, *args, **params)
        for listener in scope.listeners:
            listener.skipped(node)
        for each in self._finals():
            local.saving = node, each.name, each.place
            try:
                self.take(Tensor._wrap(args[1 + (each.place or 0)], node.device))
            finally:
                local.saving = None
        raise RecomputationStoppedError("all that backward needs has been recomputed")

    def take(self, tensor: Tensor) -> Tensor:
        """The pack hook."""
        index, frame = self.count, self.frame
        self.count += 1
        node, name, _ = local.saving
        array = tensor.array
        if frame.debug or (frame.check and not self._matches(index, node.op, name, array)):
            self._compare(index, Row.of(tensor, frame.debug, local.recorded[self.depth] - self.start))
        if index < len(frame.wanted) and frame.wanted[index]() is not None:
            self.values[index] = tensor.device, _held(node, name, array)
        if self.stop and index == self.last:
            raise RecomputationStoppedError("all that backward needs has been recomputed")
        return tensor

    @staticmethod
    def give(tensor: Tensor) -> Tensor:
        """The unpack hook, if the function itself runs backward."""
        return tensor

    def _matches(self, index: int, op: type[Op], name: str, array: Any) -> bool:
        if index >= len(self.rows):
            return False
        row = self.rows[index]
        return row[0] is op and row[1] == name and row[2] == array.shape and row[3] == array.dtype

    def _compare(self, index: int, row: Row) -> None:
        if self.frame.debug:
            self.trace.append(row)
        if not self.frame.check or self.error is not None:
            return
        if index >= len(self.rows):
            self._differs(f"the forward saved {len(self.rows)} arrays, the recomputation has saved more: {row}")
        elif row[:4] != self.rows[index][:4]:
            self._differs(f"at saved array {index + 1} of {len(self.rows)}: in the forward {self.rows[index]}; now {row}")

    def _differs(self, what: str) -> None:
        message = (
            f"checkpoint: the function did something else when it was recomputed, {what}. It must do the same both times: "
            "draw random numbers from the package's generators, and not depend on what changes in between."
        )
        if self.frame.debug:
            for title, rows in (("the forward", self.rows), ("the recomputation, so far", self.trace)):
                message += "\n".join([f"\n{title}:", *(f"  {i + 1}. {row}" for i, row in enumerate(rows))])
        self.error = CheckpointError(message)
        raise self.error

    def finish(self) -> None:
        """Check that all needed arrays were found."""
        if self.error is None and (self.count <= self.last or (not self.stop and self.count < len(self.rows))):
            found = f"the forward saved {len(self.rows)} arrays, the recomputation {self.count}"
            self._differs(f"{found}: in the forward {self.rows[self.count]}")
        if self.error is not None:  # the function caught it
            raise self.error


def _held(node: Node, name: str, array: Any) -> dict:
    """An array for the node that saved it in the forward. The tracker counts it as an activation while it is alive."""
    if not scope.listeners:
        return {name: array}
    held = TrackedSaved({name: array})
    held.op, held.module, held.line = node.op.__name__, node.module, node.line
    for listener in scope.listeners:
        listener.saved(node, name, array)
    return held


def _keep(tensor: Tensor) -> Node:
    """A node that keeps an input; it is on no tape."""
    node = Node(tensor.device, (False,))
    node.op = Checkpoint
    (observed if scope.listeners else scope.run)(Checkpoint.forward, node, tensor.array)
    remember(node, (tensor,), ())
    return node


class _Place(NamedTuple):
    """The place of a tensor among the arguments."""

    index: int


def _take_out(value: Any, tensors: list) -> Any:
    """``value`` with places instead of tensors, also in tuples, lists and dicts. Equal tensors have the same place."""
    if isinstance(value, Tensor):
        for index, tensor in enumerate(tensors):
            if tensor is value:
                return _Place(index)
        tensors.append(value)
        return _Place(len(tensors) - 1)
    return rebuilt(value, lambda item: _take_out(item, tensors))


def _put_in(value: Any, tensors: list) -> Any:
    """The inverse of :func:`_take_out`."""
    if type(value) is _Place:
        return tensors[value.index]
    return rebuilt(value, lambda item: _put_in(item, tensors))
