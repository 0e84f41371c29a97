"""One parameter that is cut along its first dimension: each rank has some rows, and gathers the others for a while."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ... import scope
from ...autograd.core import accumulate
from ...autograd.gradients import SparseTensor, copy
from ...autograd.node_hooks import call_hooks
from ...autograd.tensor import Tensor
from ...dtypes import is_floating
from ...errors import ArgumentError, DeviceError, GraphError, NotOfferedError
from ...nn.parameter import Parameter
from ...optim.optimizer import Optimizer
from ..buffers import buffer
from ..cut import Cut
from ..group import ProcessGroup, ReduceOp, Work
from .policies import CPUOffloadPolicy, OffloadPolicy


class ShardedParameter:
    """A parameter, of which this rank keeps ``mine`` rows, and the leaf that represents all of it in the graph.

    Rows are dealt as ``chunk`` does: each rank has ``ceil(rows / ranks)`` of them, the last ones fewer or none. The parameter
    stays the same object, with fewer rows. Its other form, ``full``, is in the modules while all rows are here. Outside of that
    time ``full`` has a shape but no memory.

    Attributes:
        path: the parameter's path in the unit.
        cut: its name and its place among the ranks.
        parameter: this rank's rows; what optimizers see.
        host: the device of these, if they are offloaded; else ``None``.
        full: the leaf of the graph whose gradient is complete.
        whole: the gathered rows and padding, or ``None``.
        places: the modules that have the parameter, and its name in each.
    """

    def __init__(
        self, name: str, parameter: Parameter, places: list[tuple[Any, str]], group: ProcessGroup, offload: OffloadPolicy
    ) -> None:
        self.path, self.parameter, self.group = name, parameter, group
        self.places = [(weakref.ref(module), each) for module, each in places]
        rows = parameter.array.shape[0]
        self.shape, self.chunk = parameter.array.shape, -(-rows // group.size())
        self.mine = int(group.choose(lambda rank: np.clip(rows - rank * self.chunk, 0, self.chunk)))
        start = min(rows, group._rank * self.chunk)
        device = parameter.device
        self.host = device.host(pinned=offload.pin_memory) if isinstance(offload, CPUOffloadPolicy) else None
        own = (self.host or device).empty((self.mine, *self.shape[1:]), parameter.dtype)
        if self.host is None:
            device.kernels.copy(parameter.array[start : start + self.mine], out=own)
        else:
            _to_host(device, parameter.array[start : start + self.mine], own)
        parameter.data = Tensor._wrap(own, self.host or device)
        scope.report_role(parameter.array, "PARAMETER", parameter)
        parameter._shard = self.cut = Cut(name, group, self.shape, start, parameter._shard)
        self.full = Tensor._wrap(_nowhere(self.shape, parameter.dtype), device)
        self.whole: Any = None
        self.values: tuple = ()  # the storage and the version of the rows that were gathered
        self._work: Work | None = None

    # --- gathering

    def start(self, dtype: np.dtype | None) -> None:
        """Begin to gather all rows, as ``dtype``; this rank's rows are sent from their place among all."""
        p, group = self.parameter, self.group
        device, n = self._device(), group.size()
        whole = buffer(device, (n * self.chunk, *self.shape[1:]), dtype or p.dtype, "all_gather")
        slot = whole[group._rank * self.chunk :][: self.chunk]
        if self.host is None:
            device.kernels.copy(p.array, out=slot[: self.mine])
        else:
            self._bring(device, slot[: self.mine])
        if self.mine < self.chunk:
            device.kernels.fill(0, out=slot[self.mine :])
        self.whole, self.full.device = whole, device
        self.values = p.storage, p.storage.version
        self._work = group.all_gather(whole, slot, self.cut.name)

    def _device(self) -> Any:
        """The device on which the rows are gathered."""
        p = self.parameter
        if self.host is None:
            return p.device
        if p.device is not self.host:
            raise DeviceError(
                f"{self.cut.name} was moved to {p.device} after fully_shard, whose CPUOffloadPolicy keeps it on the host: "
                f"leave the move out, forward brings the rows to {self.full.device}"
            )
        return self.full.device

    def _bring(self, device: Any, slot: Any) -> None:
        """Copy this rank's rows from the host, where they may be written afterwards. A cast is the device's work."""
        array = self.parameter.array
        there = slot if slot.dtype == array.dtype else buffer(device, array.shape, array.dtype, "all_gather")
        if array.size:
            device.from_host(array, there)
        if there is not slot:
            device.kernels.copy(there, out=slot)
        device.synchronize()

    def finish(self, grad_dtype: np.dtype | None = None) -> None:
        """Wait for the rows, and put them into the modules. ``grad_dtype``: of the gradient; by default that of the rows."""
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        p, full = self.parameter, self.full
        full.array = self.whole[: self.shape[0]]
        if full._requires_grad != p._requires_grad:
            full.requires_grad_(p._requires_grad)
        full._grad_dtype = ... if grad_dtype is None else grad_dtype
        self._show(full)
        self._version = full.storage.version

    def drop(self) -> str | None:
        """Drop the gathered rows: arrays that nodes took of them stay until those nodes are done.

        Returns:
            What wrote them in place, if something did.
        """
        if self.whole is None:
            return None
        self.finish()
        storage, dtype = self.full.storage, self.whole.dtype
        written = storage.writer if storage.version != self._version else None
        self.whole = None
        self.full.array = _nowhere(self.shape, dtype)
        storage.written("reshard")
        self._show(self.parameter)
        return written

    def same(self, values: tuple) -> bool:
        """Return whether this rank's rows are those of ``values``, a storage and its version."""
        storage, version = values
        return self.parameter.storage is storage and storage.version == version

    def _show(self, tensor: Tensor) -> None:
        for reference, name in self.places:
            module = reference()
            if module is not None:
                module._parameters[name] = tensor

    # --- gradients

    def begin_reducing(self, dtype: np.dtype | None) -> Reducing:
        """Take the gradient of ``full``, divided by the number of ranks; begin to add up those of all ranks, in ``dtype``."""
        grad, device = self.full.grad, self.full.device
        if isinstance(grad, SparseTensor):
            raise NotOfferedError(f"fully_shard: {self.cut.name} has a sparse gradient: use Embedding(sparse=False)")
        assert grad is not None
        rows, padded = self.shape[0], self.group.size() * self.chunk
        array = grad.array
        if rows != padded or dtype not in (None, array.dtype):
            sent = buffer(device, (padded, *self.shape[1:]), dtype or array.dtype, "reduce_scatter")
            device.kernels.copy(array, out=sent[:rows])
            device.kernels.fill(0, out=sent[rows:])
        else:
            sent = array
            scope.report_role(sent, "COMMUNICATION", grad)  # until the gradient is freed
        device.kernels.multiply(sent, 1 / self.group.size(), out=sent)
        self.full.grad = None
        return Reducing(self, sent, grad if sent is array else None)

    def take(self, out: Any) -> None:
        """Let this rank's rows of the average be the gradient of the parameter, or add them to it."""
        p, device = self.parameter, self.full.device
        wanted = p._dtype_of_grad(out)
        if out.dtype != wanted or (self.mine < self.chunk and self.host is None):
            out = copy(device, out[: self.mine], wanted)
        if self.host is not None:
            here = self.host.empty((self.mine, *self.shape[1:]), out.dtype)
            _to_host(device, out[: self.mine], here)
            out = here
            del here
        grad, owned = call_hooks(p._hooks or {}, out, True, p.device)
        del out
        accumulate(p, grad, owned)


class Reducing:
    """The gradient of a parameter while the ranks add it up."""

    def __init__(self, shard: ShardedParameter, sent: Any, grad: Tensor | None) -> None:
        device = shard.full.device
        self._shard, self._grad = shard, grad
        self._out = device.empty((shard.chunk, *shard.shape[1:]), sent.dtype)
        self._work = shard.group.reduce_scatter(self._out, sent, ReduceOp.SUM, shard.cut.name)

    def finish(self) -> None:
        """Wait for the sum, and give the parameter its rows."""
        self._work.wait()
        self._grad, out, self._out = None, self._out, None
        self._shard.take(out)


def _to_host(device: Any, array: Any, out: Any) -> None:
    """Copy to the host, and wait: the cpu reads it next."""
    if array.size:
        device.to_host(array, out)
        device.synchronize()


def check(name: str, parameter: Parameter) -> None:
    """Check that a parameter can be cut."""
    if isinstance(parameter._shard, Cut):
        raise ArgumentError(
            f"fully_shard: {name} is sharded already, as {parameter._shard.name}. Call fully_shard from the inside out: first "
            "blocks, then the network. Weights that two modules share must be in one unit: shard the module that holds both"
        )
    if parameter.ndim == 0:
        raise ArgumentError(
            f"fully_shard doesn't support scalar parameters. Change {name} to a 1D tensor with numel equal to 1."
        )
    if parameter.grad is not None:
        raise GraphError(f"fully_shard: {name} has a gradient, which would be lost: call zero_grad() first")
    if any(parameter in optimizer.state for optimizer in Optimizer._living.all()):
        raise GraphError(
            f"fully_shard: an optimizer has state of the whole {name}, which would not fit its rows: make the optimizer after "
            "fully_shard, or before the first step; a checkpoint brings its state"
        )


def _nowhere(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of this shape that takes no memory. A computation that reads it by mistake gives nan."""
    value = np.full((), np.nan if is_floating(dtype) else 0, dtype)
    return np.broadcast_to(value, shape)
