"""A unit: the parameters that are gathered together, and when.

In the forward of its module a unit is gathered. What nodes save of the gathered rows is replaced by :class:`StandIn`, so that
the rows can go after the forward, although the graph needs them again. Backward gathers the unit when it enters the module's
outputs, or when it asks for what a stand-in stands for. When it leaves the inputs, or when the last gradient has arrived, the
gradients are reduced and the rows go.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from ...autograd.border import behind_border
from ...autograd.graph import saved_tensors_hooks
from ...autograd.hooks import RemovableHandle
from ...autograd.node_hooks import hooks_here
from ...autograd.tensor import Tensor
from ...errors import GraphError
from ...nesting import mapped
from ...scope import local
from ...techniques.packing import UnpackedTensor
from ..group import ProcessGroup
from .policies import MixedPrecisionPolicy
from .shard import Reducing, ShardedParameter


class Unit:
    """The parameters of one ``fully_shard``.

    Attributes:
        shards: its parameters.
        root: whether no other unit is around it.
        family: shared by the units of one root.
        keeps: whether the rows stay after the forward; ``None``: if it is the root and a backward follows.
        syncs: whether backward reduces gradients.
        due: the number of forwards whose backward has not left the module.
        busy: a backward that has not ended has used it.
    """

    def __init__(
        self, shards: list[ShardedParameter], group: ProcessGroup, keeps: bool | None, precision: MixedPrecisionPolicy
    ) -> None:
        self.shards, self.group, self.keeps, self.precision = shards, group, keeps, precision
        self.root, self.family = True, Family()
        self.syncs, self.due, self.busy = True, 0, False
        self.watched = False  # whether backward tells when it leaves the module: an input requires a gradient
        self.before: weakref.ref[Unit] | None = None  # the unit whose forward ended before this one's
        self._here: dict[int, ShardedParameter] = {}  # the address of gathered rows -> whose they are

    def listen(self) -> None:
        """Call :meth:`arrived` for each gradient of its parameters. They refer to the unit weakly."""
        arrived = partial(_gradient_arrived, weakref.ref(self))
        for shard in self.shards:
            shard.full._post_accumulate = {}
            RemovableHandle(shard.full._post_accumulate, arrived)

    def join(self, root: Unit, prefix: str) -> None:
        """Put the unit under ``root``, at the path ``prefix``."""
        self.root, self.family = self is root, root.family
        for shard in self.shards:
            shard.cut.name = f"{prefix}{shard.path}"

    # --- gathering

    def start(self) -> None:
        """Start to gather, unless the rows are here or are being gathered."""
        if self.shards and self.shards[0].whole is not None:
            if all(shard.same(shard.values) for shard in self.shards):
                return
            self.drop()
        for shard in self.shards:
            shard.start(self.precision.param_dtype)

    def gather(self) -> None:
        """Give the modules the gathered parameters."""
        self.start()
        if not self._here:
            for shard in self.shards:
                shard.finish(self.precision.reduce_dtype)
            self._here = {shard.full.device.address(shard.whole) or 0: shard for shard in self.shards if shard.whole.size}

    def drop(self) -> None:
        """Give the modules this rank's rows. In-place writes to gathered rows are refused: they would be lost."""
        self._here = {}
        written = [f"{shard.cut.name}, by {writer}" for shard in self.shards if (writer := shard.drop())]
        if written:
            raise GraphError(
                f"parameters were written in place while they were gathered: {'; '.join(written)}. This is lost. Write "
                "between steps, into this rank's rows, or leave the parameters out with ignored_params."
            )

    # --- forward

    def forward(self, function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """Run the forward of the module with all rows."""
        if self.busy and local.walk is None:
            self._forget()
        if self.root:
            self.family.last = None
        self.gather()
        if self.precision.cast_forward_inputs and self.precision.param_dtype is not None:
            args, kwargs = _each((args, kwargs), _cast(self.precision.param_dtype))
        recorded = local.grad_enabled
        try:
            result = self._recorded(function, args, kwargs) if recorded else function(*args, **kwargs)
        except BaseException:
            if local.walk is None:
                self.drop()
            raise
        if local.walk is not None:  # a recomputation: backward needs the rows now
            self._use()
            return result
        if recorded:
            self.due += 1
            self.before, self.family.last = self.family.last, weakref.ref(self)
        if not (recorded and self.root if self.keeps is None else self.keeps):
            self.drop()
        return result

    def _recorded(self, function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """The forward, with stand-ins for the rows, between nodes that tell when backward enters and leaves the module."""
        (args, kwargs), self.watched = _behind_node((args, kwargs), self._leave)
        packing = Packing(self)
        with saved_tensors_hooks(packing.pack, packing.unpack):
            result = function(*args, **kwargs)
        if self.precision.output_dtype is not None:
            result = _each(result, _cast(self.precision.output_dtype))
        return _behind_node(result, self._enter)[0]

    def _forget(self) -> None:
        """Drop gradients after a backward that ended with an error: those not yet reduced are not of a whole batch."""
        self.busy, self.due = False, 0
        self.drop()
        for shard in self.shards:
            shard.full.grad = None

    # --- backward

    def _use(self) -> Reductions | None:
        """Note that the running backward uses this unit."""
        walk = local.walk
        if walk is None:
            return None
        backward = walk.kept.get(self.group)
        if backward is None:
            backward = walk.kept[self.group] = Reductions()
            walk.at_end.append(backward.finish)
        backward.units[self], self.busy = None, True
        return backward

    def _enter(self) -> None:
        """Backward comes to the outputs of the module: gather it, and start with the unit that comes next."""
        self._use()
        self.gather()
        before = None if self.before is None else self.before()
        if before is not None and before.due:
            before._use()  # if it is not needed after all, the end of the backward drops it
            before.start()

    def _leave(self) -> None:
        """Backward has passed the inputs of the module."""
        self.due = max(0, self.due - 1)
        self._end()

    def arrived(self) -> None:
        """The gradient of a parameter is complete on this rank."""
        if self._use() is not None and not (self.due and self.watched) and not self._waits():
            self._end()

    def _waits(self) -> bool:
        """True if gradients of the unit's parameters are still to come."""
        return any(id(shard.full) in local.walk.pending for shard in self.shards)

    def _end(self) -> None:
        """Nodes of the module have run: drop the rows; reduce the gradients if they are complete."""
        self.drop()
        backward = self._use()
        if self.syncs and backward is not None and not self._waits():
            backward.reduce(self)

    def take(self, stand_in: StandIn) -> Tensor:
        """The rows that a node saved."""
        shard = stand_in.shard
        if not shard.same(stand_in.values):
            raise GraphError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{shard.cut.name} was written by {shard.parameter.storage.writer or 'an assignment'} after the forward that "
                "gathered it. Call backward() before optimizer.step()."
            )
        stays = bool(self._here) or self._use() is not None
        self.gather()
        device = shard.full.device
        place = device.block(shard.whole)
        assert place is not None
        found = Tensor._wrap(device.window(place[0], stand_in.offset, stand_in), device)
        if not stays:
            self.drop()
        return found

    def find(self, tensor: Tensor) -> ShardedParameter | None:
        """The parameter whose gathered rows a tensor shows; ``None`` if it shows something else."""
        found = self._here.get(tensor.device.address(tensor.array) or 0) if self._here else None
        return None if found is None or found.full.device is not tensor.device else found


def _gradient_arrived(unit: weakref.ref[Unit], leaf: Tensor) -> None:
    found = unit()
    if found is not None:
        found.arrived()


class Family:
    """The units under one root.

    Attributes:
        last: the unit whose forward ended last.
        unsent: units with gradients of backwards that did not reduce them, in the order of these, which is that of all ranks.
    """

    last: weakref.ref[Unit] | None = None

    def __init__(self) -> None:
        self.unsent: dict[weakref.ref[Unit], None] = {}


class Reductions:
    """The units of a group of ranks in a running backward. Only one unit's gradients are on their way at a time."""

    def __init__(self) -> None:
        self.units: dict[Unit, None] = {}
        self._reducing: list[Reducing] = []

    def reduce(self, unit: Unit) -> None:
        """Wait for the gradients that are on their way, and send those of ``unit``."""
        due = [shard for shard in unit.shards if shard.full.grad is not None]
        if due:
            self.wait()
        for shard in due:
            self._reducing.append(shard.begin_reducing(unit.precision.reduce_dtype))

    def wait(self) -> None:
        """Wait for the gradients that are on their way."""
        while self._reducing:
            self._reducing.pop(0).finish()

    def finish(self) -> None:
        """The end of a backward: reduce what is left, such as gradients of units of which some parameters got none, or that an
        earlier backward used which did not reduce."""
        for family in {unit.family: None for unit in self.units}:
            kept = [unit for reference in family.unsent if (unit := reference()) is not None and unit.syncs]
            self.units |= dict.fromkeys(unit for unit in kept if unit not in self.units)
        for unit in self.units:
            unit.drop()
            if unit.syncs:
                self.reduce(unit)
                unit.family.unsent.pop(weakref.ref(unit), None)
            else:
                unit.family.unsent[weakref.ref(unit)] = None
            unit.busy, unit.due = False, 0
        self.wait()


class StandIn:
    """A placeholder in a node for gathered rows: their parameter, and the part of it."""

    __slots__ = ("dtype", "offset", "shape", "shard", "strides", "unit", "values")

    def __init__(self, unit: Unit, shard: ShardedParameter, array: Any) -> None:
        place = shard.full.device.block(array)
        assert place is not None
        self.unit, self.shard, self.values, self.offset = unit, shard, shard.values, place[1]
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype


class Packing:
    """The saved-tensor hooks of one forward of a unit. Arrays that are not the unit's go to the enclosing hooks, if any."""

    def __init__(self, unit: Unit) -> None:
        self._unit, self._outer = unit, hooks_here()

    def pack(self, tensor: Tensor) -> Any:
        shard = self._unit.find(tensor)
        if shard is not None:
            return StandIn(self._unit, shard, tensor.array)
        return self._outer[0](tensor) if self._outer else UnpackedTensor(tensor)

    def unpack(self, packed: Any) -> Tensor:
        if type(packed) is StandIn:
            return packed.unit.take(packed)
        return self._outer[1](packed) if self._outer else packed.get()


def _cast(dtype: Any) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype=dtype) if tensor.is_floating_point() else tensor


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with each tensor in it changed; tuples, lists and dicts are looked into."""
    return mapped(value, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


def _behind_node(value: Any, passes: Callable[[], None]) -> tuple[Any, bool]:
    """``value`` with its tensors that require gradients behind a node that calls ``passes``; and whether there are any."""
    found: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            found[id(tensor)] = tensor
        return tensor

    _each(value, note)
    if not found:
        return value, False
    after = dict(zip(found, behind_border([*found.values()], lambda node, grads: passes()), strict=True))
    return _each(value, lambda tensor: after.get(id(tensor), tensor)), True
