"""Paged optimizer state: it is kept in host memory, and is copied to the device for a step, one parameter after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import scope
from ..autograd.gradients import SparseTensor
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..devices import round_up
from ..errors import ArgumentError, NotOfferedError
from ..optim import state as states
from ..optim.optimizer import Optimizer


def paged_optimizer(optimizer: Optimizer) -> Optimizer:
    """Keep the state of ``optimizer`` in host memory from here on, also what it has already. Returns the optimizer.

    Memory:
        Between steps the device holds no state: with Adam 8 bytes per parameter less. In a step it holds the state of one
        parameter at a time, in a block for the largest: the sum of its arrays, each rounded up to 512 bytes. Gradients are
        there then, activations are not. The host (``device.host(pinned=True)``) holds all of it, in pinned memory. (Paged
        optimizers of bitsandbytes use unified memory instead: what the device holds is between this and the whole state, as the
        driver decides.) On ``cpu`` and ``meta`` the host is a second pool beside the first: the bytes can be counted, but the
        machine saves nothing.
    Price:
        The state crosses the bus twice in each step, and the device waits for it. The numbers are the same bit for bit.
    Do not use when:
        Few parameters are trained, as with LoRA: the state is small. Or the peak is where activations are highest and there is
        room for the state: use 8-bit moments, which stay on the device.

    State dicts are those of a plain optimizer, with tensors of the host; each loads the other's.

    Raises:
        NotOfferedError: an optimizer that evaluates the loss itself or keeps another optimizer; in a step, a sparse gradient.
        ArgumentError: the state is paged already; a parameter is on the host, so its state is there too.

    Source: Dettmers, Pagnoni, Holtzman and Zettlemoyer, *QLoRA: efficient finetuning of quantized LLMs*, 2023.

    >>> optimizer = paged_optimizer(tm.optim.AdamW(model.parameters()))
    """
    kind: Any = type(optimizer)
    if issubclass(kind, _Paged):
        raise ArgumentError("paged_optimizer: the state of this optimizer is paged already")
    if optimizer.needs_closure or isinstance(getattr(optimizer, "optim", None), Optimizer):
        raise NotOfferedError(
            f"paged_optimizer: {kind.__name__} does not update each parameter from its own gradient: use another optimizer"
        )
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.device.host_of is not None:
                raise ArgumentError(
                    f"paged_optimizer: a parameter of shape {list(p.shape)} is on the host, and so is its state: "
                    "use the plain optimizer"
                )
    optimizer.__class__ = type(kind.__name__, (_Paged, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p in optimizer.state:
                optimizer.state[p] = _out(optimizer.state[p], p, optimizer._kept(group, p))
    return optimizer


class _Paged(Optimizer):
    """An optimizer whose state is on the host: this class comes before the optimizer's own class."""

    _stages: dict[Device, Any]  # during a step: the memory on the device for the state of the parameter that is being updated

    def _step(self, due: list[tuple[dict[str, Any], Tensor]]) -> None:
        for _, p in due:
            if isinstance(p._grad, SparseTensor):
                raise NotOfferedError("a paged optimizer does not take sparse gradients: use a plain optimizer for embeddings")
        try:
            super()._step(due)
        finally:
            self._stages = {}
        for device in {p.device for _, p in due}:
            device.synchronize()  # the host may read the state now

    def _make_missing(self, due: list[tuple[dict[str, Any], Tensor]], fresh: dict[Tensor, dict[str, Tensor]]) -> None:
        made: dict[Tensor, dict[str, Tensor]] = {}
        for group, p in due:
            if p not in fresh:
                super()._make_missing([(group, p)], made)
            if made:
                fresh[p] = _out(made.pop(p), p, self._kept(group, p))  # the device has those of one parameter

    def _workspaces(self, due: list[tuple[dict[str, Any], Tensor]]) -> dict[Any, Any]:
        sizes: dict[Device, int] = {}
        for group, p in due:
            arrays = self._kept(group, p).values()
            size = sum(round_up(int(np.prod(a.shape)) * a.dtype.itemsize) for a in arrays)
            sizes[p.device] = max(sizes.get(p.device, 0), size)
        with scope.setting(new_role="OPTIMIZER_STATE"):
            self._stages = {d: d.empty((size,), np.dtype(np.uint8)) for d, size in sizes.items() if size}
        return super()._workspaces(due)

    def _update(self, group: dict[str, Any], p: Tensor, g: Any, state: dict[str, Any], first: bool) -> None:
        device, here, at = p.device, {}, 0
        for name in self._kept(group, p):
            host = state[name].array
            if host.size:
                here[name] = Tensor._wrap(device.window(self._stages[device], at, host), device)
                device.from_host(host, here[name].array)
                at += round_up(host.nbytes)
        used = state | here
        super()._update(group, p, g, used, first)
        for name, value in used.items():
            if name in here:
                device.to_host(value.array, state[name].array)
            else:
                state[name] = value

    def _loaded(self, values: dict[str, Any], p: Tensor, group: dict[str, Any], roots: bool) -> dict[str, Any]:
        return _out(super()._loaded(values, p, group, roots), p, self._kept(group, p))


def _out(state: dict[str, Any], p: Tensor, names: Any) -> dict[str, Any]:
    """The state of ``p`` with the arrays ``names`` copied to the host."""
    host = p.device.host(pinned=True)
    found = dict(state)
    for name, value in state.items():
        if name in names and isinstance(value, Tensor):
            array = host.empty(value.array.shape, value.dtype)
            if array.size:
                p.device.to_host(value.array, array)
            found[name] = states.report_state(Tensor._wrap(array, host), p, name)
    return found
