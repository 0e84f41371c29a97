"""ZeRO 1: each rank keeps the optimizer's state of its own parameters only, and sends the parameters that it has updated."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import absent as _absent
from .. import io as files
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DataDependenceError, NotOfferedError, RankError
from ..optim.loading import group_options
from ..optim.optimizer import Optimizer
from .collectives import broadcast_together
from .cut import divided_over
from .groups import inside, own_group

__getattr__ = _absent.refuses("distributed")


class ZeroRedundancyOptimizer(Optimizer):
    """Divides the parameters among the ranks. A step updates this rank's own, and gives them to all others.

    Each parameter belongs to one rank, as in PyTorch: from the largest to the smallest, each goes to the rank with the fewest
    elements so far. All ranks must have the same gradients when they step, as after ``DistributedDataParallel``.

    Memory:
        The optimizer's state, and master weights, of this rank's parameters: 1 / N of all on N ranks, if the parameters divide
        evenly. Parameters are not cut, so the rank with the largest ones has more. Parameters and gradients stay whole. The
        broadcasts need no buffers.
    Price:
        A broadcast of all parameters in each step.
    Do not use when:
        Parameters and gradients take the memory: ``distributed.fsdp.fully_shard`` divides them too.

    Args:
        params: tensors, or dicts of ``"params"`` and options; the same on all ranks.
        optimizer_class: the optimizer of each rank's parameters.
        process_group: the ranks; by default all.
        parameters_as_bucket_view, overlap_with_ddp: False.
        defaults: options of ``optimizer_class``.

    Attributes:
        optim: this rank's optimizer.

    Raises:
        ArgumentError: this rank is not in the group.
        NotOfferedError: an argument is True that must be False.

    Source: Rajbhandari et al., *ZeRO: Memory optimizations toward training trillion parameter models*, 2020.

    >>> model = nn.parallel.DistributedDataParallel(model)
    >>> optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.Adam, lr=0.01)
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        process_group: Any = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        if parameters_as_bucket_view or overlap_with_ddp:
            raise NotOfferedError(
                "ZeroRedundancyOptimizer: parameters_as_bucket_view and overlap_with_ddp are not offered: leave them out. "
                "Parameters are sent without a copy"
            )
        if optimizer_class.needs_closure:
            raise NotOfferedError(
                f"ZeroRedundancyOptimizer: {optimizer_class.__name__} needs all gradients at once: use another optimizer"
            )
        group = own_group("ZeroRedundancyOptimizer", process_group)
        self.process_group, self._group, self._class = process_group, group, optimizer_class
        self.half_state = optimizer_class.half_state
        self.optim: Any = None
        self._sizes = [0] * group.size()
        self._owners: list[list[list[Tensor]]] = []  # for each group, for each rank: its parameters
        self._gathered: dict[int, dict] | None = None
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As :meth:`Optimizer.add_param_group`; the parameters are divided among the ranks."""
        super().add_param_group(param_group)
        whole = self.param_groups[-1]
        if divided_over(whole["params"], self._group):
            raise ArgumentError(
                "ZeroRedundancyOptimizer: parameters are divided over these ranks already, and so is the optimizer's state: "
                "use the plain optimizer"
            )
        parts = in_parts(whole["params"], self._sizes)
        self._owners.append(parts)
        kinds = [tuple((p.array.shape, p.dtype) for p in part) for part in parts]
        numbers = np.array([kinds.index(kind) for kind in kinds])
        self._group.choose(lambda ranks: numbers[ranks])  # ranks with parameters of the same shapes are alike
        mine = {"params": parts[self._group._rank], **group_options(whole)}
        if self.optim is None:
            self.optim = self._class([mine], **self.defaults)
            self.state, self.squares = self.optim.state, self.optim.squares
        else:
            self.optim.add_param_group(mine)
        self._exchange_options(self.optim.param_groups, self.param_groups)

    def _exchange_options(self, given: list[dict], taken: list[dict]) -> None:
        """Give the groups of one optimizer the options of the other's: schedules change them here, the rule there."""
        for source, group in zip(given, taken, strict=True):
            group.update(group_options(source))

    def _move(self, closure: Callable[[], Any] | None = None) -> Any:
        self._exchange_options(self.param_groups, self.optim.param_groups)
        loss = self.optim.step(closure)
        self._exchange_options(self.optim.param_groups, self.param_groups)
        owned = [(rank, p) for parts in self._owners for rank, part in enumerate(parts) for p in part]
        broadcast_together(owned, self.process_group)
        self._opt_called, self._gathered = True, None
        self._moves += 1
        return loss

    # --- state dicts ----------------------------------------------------------------------------------------------------

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Send the state of all ranks to the rank ``to``, whose :meth:`state_dict` then has all of it. All ranks call it.

        The bytes go through host memory outside of the pool. The tensors that arrive are on the cpu.

        Raises:
            DataDependenceError: in a prediction; tensors on ``meta`` have no values.
        """
        if self._group.device_type == "meta":
            raise DataDependenceError("consolidate_state_dict: tensors on meta have no values to send")
        root, me = inside(self.process_group, to, "consolidate_state_dict"), self._group._rank
        gathered = {me: self.optim.state_dict()}
        for rank in range(self._group.size()):
            if rank == root:
                continue
            if me == rank:
                file = io.BytesIO()
                files.save(gathered[me], file)
                packed = np.frombuffer(file.getvalue(), np.uint8)
                self._group.send(np.array([packed.size]), root, _TAG).wait()
                self._group.send(packed, root, _TAG).wait()
            elif me == root:
                self._group.recv(size := np.zeros(1, np.int64), rank, _TAG).wait()
                self._group.recv(packed := np.empty(int(size[0]), np.uint8), rank, _TAG).wait()
                gathered[rank] = files.load(io.BytesIO(packed.tobytes()), map_location="cpu")
        self._gathered = gathered if me == root else None

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, as the plain optimizer's: after :meth:`consolidate_state_dict`, on the rank that it names.

        Raises:
            RankError: the state was not sent to this rank since the last step.
        """
        if self._gathered is None:
            raise RankError(
                "Optimizer state has not been consolidated on this rank. Please call `consolidate_state_dict(to=0)` on all "
                "ranks beforehand if you meant to save the global state."
            )
        found = super().state_dict()
        numbers = self._numbers()
        found["state"] = {
            numbers[id(p)]: self._gathered[rank]["state"][mine]
            for rank in range(self._group.size())
            for mine, p in enumerate([p for parts in self._owners for p in parts[rank]])
            if mine in self._gathered[rank]["state"]
        }
        found["state"] = dict(sorted(found["state"].items()))
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the whole, such as a plain optimizer's. This rank keeps the state of its own parameters.

        Raises:
            ValueError, TypeError: as :meth:`Optimizer.load_state_dict`; nothing was changed.
        """
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
            self.optim.load_state_dict(state_dict)  # it says what is wrong
        given = [len(group["params"]) for group in state_dict["param_groups"]]
        wanted = [len(group["params"]) for group in self.param_groups]
        if given != wanted:
            raise ArgumentError(f"loaded state dict: its groups have {given} parameters, those of this optimizer have {wanted}")
        of = dict(zip(self._numbers(), [n for group in state_dict["param_groups"] for n in group["params"]], strict=True))
        local = {"state": {}, "param_groups": []}
        count = 0
        for group, whole in zip(self.optim.param_groups, state_dict["param_groups"], strict=True):
            mine = list(range(count, count + len(group["params"])))
            count += len(mine)
            for n, p in zip(mine, group["params"], strict=True):
                if of[id(p)] in state_dict["state"]:
                    local["state"][n] = state_dict["state"][of[id(p)]]
            local["param_groups"].append({"params": mine, **group_options(whole)})
        self.optim.load_state_dict(local)
        self.state, self._gathered = self.optim.state, None
        self._exchange_options(self.optim.param_groups, self.param_groups)

    def _step(self, due: list[tuple[dict[str, Any], Tensor]]) -> None:
        raise NotOfferedError("optimizer_in_backward with ZeroRedundancyOptimizer: no rank updates all parameters: use step()")

    def __getstate__(self) -> dict[str, Any]:
        raise NotOfferedError("ZeroRedundancyOptimizer: a process group cannot be copied: copy its state_dict()")


_TAG = 4201  # of the messages of consolidate_state_dict


def in_parts(params: list[Tensor], sizes: list[int]) -> list[list[Tensor]]:
    """Divide parameters: from the largest to the smallest, each to the rank with the fewest elements.

    Args:
        sizes: the elements that each rank has; those of the new parameters are added.
    """
    parts: list[list[Tensor]] = [[] for _ in sizes]
    for p in sorted(params, key=lambda p: -p.numel()):
        rank = sizes.index(min(sizes))
        parts[rank].append(p)
        sizes[rank] += p.numel()
    return parts
