"""The costs of a chain's stages: a dry run of it on ``meta``."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import process_time
from typing import Any

from ..autograd import core
from ..autograd.core import apply
from ..autograd.shape import root_of
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..devices import dry_run, round_up
from ..errors import ArgumentError
from ..nn import Module, Parameter, Sequential
from ..ops.base import Op
from ..scope import local, run_by
from .checkpoint import checkpoint
from .schedule import Stage


@dataclass(frozen=True)
class Profile:
    """The costs of a Sequential's stages, in bytes as the pool rounds them.

    Attributes:
        stages: of each stage; with a loss, that is the last.
        sizes: how many modules each stage has: a module that writes into its input, or returns it, goes with the one before it,
            and so does one whose input nobody keeps for backward, as ReLU after Linear.
    """

    stages: tuple[Stage, ...]
    sizes: tuple[int, ...]


def profile(
    sequential: Sequential,
    input: Tensor,
    loss: Callable[[Any], Tensor] | None = None,
    time: str = "ops",
) -> Profile:
    """The costs of each stage of ``sequential`` when it is called with a tensor such as ``input``.

    Nothing is computed and no memory is taken: a copy of the modules runs on ``meta``, forward and backward, once as it is and
    once with every stage checkpointed. Bytes are exact for the chain as it ran. A stage's input counts until its backward is
    done; where it is gone earlier, a schedule's peak is below what :class:`Schedule` says, never above.

    Args:
        input: its shape, dtype and whether it requires a gradient are looked at, and its device: a GPU's kernels want other
            workspaces than the cpu's.
        loss: what follows the chain, called with its result (on ``meta``): a stage of its own, the last.
        time: ``"ops"`` counts operations, a backward as twice its forward; ``"measured"`` runs a copy on the cpu, in seconds of
            processor time.

    Raises:
        ArgumentError: there is no module, or ``time`` is something else.
    """
    if time not in ("ops", "measured"):
        raise ArgumentError(f"profile: time is 'ops' or 'measured', found {time!r}")
    if not len(sequential):
        raise ArgumentError("profile: there is no module to run")
    with dry_run(input.device.like) as meta:
        sizes = _sizes(list(_copy(sequential, meta)), _like(input, meta))
        plain, checkpointed = (_Run(_copy(sequential, meta), sizes, _like(input, meta), loss) for _ in range(2))
        plain.walk(recomputed=False)
        checkpointed.walk(recomputed=True)
        found = [
            {
                "output": plain.outputs[k],
                "saved": plain.saved[k],
                "forward_peak": checkpointed.forward_peaks[k],
                "recorded_peak": plain.forward_peaks[k],
                "backward_peak": plain.backward_peaks[k],
                "gradient": checkpointed.gradients[k],
                "parameters": plain.parameters[k],
            }
            for k in range(len(plain.outputs))
        ]
        times = [(ops, 2.0 * ops) for ops in plain.ops]
    if time == "measured":
        times = _seconds(sequential, sizes, input, loss)
    stages = [Stage(*each, **rest) for each, rest in zip(times, found, strict=True)]
    return Profile(tuple(stages), sizes)


def _copy(module: Sequential, where: Any) -> Sequential:
    """The modules on another device, with tensors of the same shapes, of no particular values."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        twin = _like(tensor, where)
        memo[id(tensor)] = Parameter(twin, tensor.requires_grad) if isinstance(tensor, Parameter) else twin
    return copy.deepcopy(module, memo)


def _like(tensor: Tensor, where: Any) -> Tensor:
    twin = Tensor._wrap(where.empty(tuple(tensor.shape), tensor.dtype), where)
    if not isinstance(tensor, Parameter):
        twin._requires_grad = tensor.requires_grad
    return twin


def _sizes(modules: list[Module], x: Any) -> tuple[int, ...]:
    """The number of modules that each stage has.

    A stage ends where its result is memory of its own, which the next module does not write, and which one of the two keeps.
    """
    sizes: list[int] = []
    begun = False  # whether a module has made memory of its own: before that all are one stage
    for module in modules:
        before = _between(x, None)
        version, memory = before._version, root_of(before.array)
        x = module(before)
        shares = before._version != version or (isinstance(x, Tensor) and root_of(x.array) is memory)
        memory = weakref.ref(memory)
        del before
        if sizes and (shares or not begun or memory() is None):
            sizes[-1] += 1
        else:
            sizes.append(1)
        begun = begun or not shares
    return tuple(sizes)


class Between(Op):
    """Passes a tensor on between two stages, and says when its gradient comes. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Any, *, seen: Any) -> Any:
        ctx.seen = seen
        return x.view()

    @staticmethod
    def backward(ctx: Any, gy: Any) -> Any:
        if ctx.seen is not None:
            ctx.seen()
        return gy


def _between(x: Tensor, seen: Callable[[], None] | None) -> Tensor:
    passed = apply(Between, x, seen=seen)
    passed._storage = x.storage
    return passed


class _Ops(AbstractContextManager):
    """Counts the ops that this thread runs. (A listener would have every module look for its path.)"""

    def __enter__(self) -> _Ops:
        self.count, self.run = 0, local.run
        local.run = self._counted
        return self

    def __exit__(self, *exc: object) -> None:
        local.run = self.run
        del self.run

    def _counted(self, function: Callable[..., Any], *args: Any, **params: Any) -> Any:
        self.count += 1
        return run_by(self.run, function, *args, **params)


class _Run:
    """One forward and backward of a chain, measured between its stages.

    What a stage is called with is held until its backward is done: it is never counted as that stage's.
    """

    def __init__(self, chain: Sequential, sizes: tuple[int, ...], input: Tensor, loss: Any) -> None:
        modules = iter(chain)
        self.stages: list[Callable[[Any], Any]] = [Sequential(*[next(modules) for _ in range(n)]) for n in sizes]
        if loss is not None:
            self.stages.append(loss)
        self.input, self.pool = input, input.device.pool
        self.held: list[Any] = []  # results
        self.bases: list[int] = []  # bytes before each stage's forward
        self.parameters = [0] * len(self.stages)
        self.gradients = [0] * len(self.stages)
        self.backward_peaks = [0] * len(self.stages)
        self.outputs: list[int] = []
        self.saved: list[int] = []
        self.forward_peaks: list[int] = []
        self.ops: list[int] = []
        self.at = len(self.stages)  # the stage whose backward is under way

    def walk(self, recomputed: bool) -> None:
        """Forward and backward."""
        x: Any = self.input
        for k, stage in enumerate(self.stages):
            function = partial(self._watched, stage, k)
            x = self._forward(k, partial(checkpoint, function) if recomputed else function, x)
        self._next()
        roots = [(x.edge(), x.device.empty(x.array.shape, x.array.dtype), True)]
        core.run(roots, keep_graph=False)
        self._next()

    def _forward(self, k: int, function: Callable[[Any], Any], x: Any) -> Any:
        self.bases.append(self.pool.used_bytes())
        self.pool.reset_peak()
        with _Ops() as ops:
            y = function(x)
        del x
        if not isinstance(y, Tensor):
            raise ArgumentError(f"profile: stage {k} returns a {type(y).__name__}; a chain's stages take and return one tensor")
        self.ops.append(ops.count)
        self.forward_peaks.append(self.pool.peak_used - self.bases[k])
        self.saved.append(self.pool.used_bytes() - self.bases[k])
        self.outputs.append(round_up(y.nbytes))
        if k < len(self.stages) - 1:
            y = _between(y, self._next)
        self.held.append(y)
        return y

    def _watched(self, stage: Callable[[Any], Any], k: int, x: Any) -> Any:
        if local.phase != "recompute":
            return stage(x)
        self.gradients[k] = self.pool.used_bytes() - self.bases[k] - self._behind()
        return stage(x)

    def _behind(self) -> int:
        """Gradients of the parameters of the stages behind, and the chain's result."""
        return sum(self.parameters[self.at + 1 :])

    def _next(self) -> None:
        """Backward comes to the stage before, whose result is held no longer."""
        k = self.at
        if k < len(self.stages):
            self.backward_peaks[k] = self.pool.peak_used - self.bases[k] - self._behind()
            grads = sum(round_up(p.grad.nbytes) for p in self._parameters() if p.grad is not None)
            stays = grads + self.outputs[-1]  # the caller has the result
            self.parameters[k] = stays - self._behind()
            del self.held[k - 1 :]
        self.at = k - 1
        self.pool.reset_peak()

    def _parameters(self) -> list[Any]:
        return list(dict.fromkeys(p for stage in self.stages if isinstance(stage, Module) for p in stage.parameters()))


def _seconds(sequential: Sequential, sizes: tuple[int, ...], input: Tensor, loss: Any) -> list[tuple[float, float]]:
    """Processor time of each stage's forward and backward, on the cpu."""
    cpu = Device("cpu")
    chain = _copy(sequential, cpu)
    for tensor in (*chain.parameters(), *chain.buffers()):
        tensor.device.kernels.fill(0, out=tensor.array)
    modules = iter(chain)
    stages: list[Any] = [Sequential(*[next(modules) for _ in range(n)]) for n in sizes] + ([] if loss is None else [loss])
    x: Any = _like(input, cpu)
    cpu.kernels.fill(0, out=x.array)
    forward, backward = [], [process_time()]
    for k, stage in enumerate(stages):
        start = process_time()
        x = stage(x)
        forward.append(process_time() - start)
        if k < len(stages) - 1:
            x = _between(x, lambda: backward.append(process_time()))
    grad = cpu.empty(x.array.shape, x.array.dtype)
    cpu.kernels.fill(1, out=grad)
    backward[0] = process_time()
    core.run([(x.edge(), grad, True)], keep_graph=False)
    backward.append(process_time())
    spent = [b - a for a, b in pairwise(backward)][::-1]
    return list(zip(forward, spent, strict=True))
