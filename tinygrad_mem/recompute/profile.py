"""The costs of the stages of a chain, from a dry run on ``meta``."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ..autograd import core
from ..autograd.border import behind_border
from ..autograd.shape import root_of
from ..autograd.tensor import Tensor
from ..devices import dry_run, round_up
from ..errors import ArgumentError
from ..nn import Module, Parameter, Sequential
from ..scope import local, run_by, setting
from .checkpoint import checkpoint
from .schedule import Stage

M = TypeVar("M", bound=Module)


@dataclass(frozen=True)
class Profile:
    """The costs of a Sequential's stages, in bytes as the pool rounds them.

    Attributes:
        stages: the costs of each stage; the loss, if given, is the last.
        sizes: the number of modules in each stage. A module belongs to the stage of the module before it in three cases: it
            writes into its input, it returns its input, or its input is not kept for backward (as ReLU's after Linear).
    """

    stages: tuple[Stage, ...]
    sizes: tuple[int, ...]


def profile(sequential: Sequential, input: Tensor, loss: Callable[[Any], Tensor] | None = None) -> Profile:
    """The costs of each stage of ``sequential`` when it is called with a tensor such as ``input``.

    Nothing is computed and no memory is allocated: a copy of the modules runs on ``meta``, forward and backward, once as it is
    and once with every stage checkpointed. Bytes are exact for the chain as it ran. A stage's input is counted until its
    backward is done. If it is freed earlier, the peak of a schedule is below the one that :class:`Schedule` computes, never
    above.

    Args:
        input: an example. Its shape, dtype, device and ``requires_grad`` count; kernels of a GPU need other workspaces.
        loss: a function that follows the chain, called with its result (on ``meta``). It is the last stage.

    Times are numbers of operations; a backward counts twice its forward.

    Raises:
        ArgumentError: there is no module, or a module returns anything but one tensor.
    """
    if not len(sequential):
        raise ArgumentError("profile: there is no module to run")
    with dry_run(input.device.like) as meta:
        sizes = _sizes(list(copy_of(sequential, meta)), uninitialised(input, meta))
        plain, checkpointed = (
            _StageCosts(copy_of(sequential, meta), sizes, uninitialised(input, meta), loss) for _ in range(2)
        )
        plain.walk(recomputed=False)
        checkpointed.walk(recomputed=True)
        stages = [
            Stage(
                forward=float(ops),
                backward=2.0 * ops,
                output=plain.outputs[k],
                saved=plain.saved[k],
                forward_peak=checkpointed.forward_peaks[k],
                recorded_peak=plain.forward_peaks[k],
                backward_peak=plain.backward_peaks[k],
                gradient=checkpointed.gradients[k],
                parameters=plain.parameters[k],
            )
            for k, ops in enumerate(plain.ops)
        ]
    return Profile(tuple(stages), sizes)


def copy_of(module: M, where: Any) -> M:
    """A copy of ``module`` on another device; its tensors have the same shapes, and uninitialised values."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        twin = uninitialised(tensor, where)
        memo[id(tensor)] = Parameter(twin, tensor.requires_grad) if isinstance(tensor, Parameter) else twin
    return copy.deepcopy(module, memo)


def uninitialised(tensor: Tensor, where: Any) -> Tensor:
    """An uninitialised tensor of the same shape and dtype on another device."""
    twin = Tensor._wrap(where.empty(tuple(tensor.shape), tensor.dtype), where)
    if not isinstance(tensor, Parameter):
        twin._requires_grad = tensor.requires_grad
    return twin


def _sizes(modules: list[Module], x: Any) -> tuple[int, ...]:
    """The number of modules that each stage has.

    A stage ends after a module whose result has its own memory, if the next module does not write into this result, and one of
    the two modules keeps it for backward.
    """
    sizes: list[int] = []
    begun = False  # whether a module has allocated its result; before that all modules are one stage
    for k, module in enumerate(modules):
        if not isinstance(x, Tensor):
            raise _no_tensor(f"module {k - 1}", x)
        (before,) = behind_border([x], lambda node, grads: None)
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


def _no_tensor(part: str, found: Any) -> ArgumentError:
    return ArgumentError(f"profile: {part} returns a {type(found).__name__}; a chain's stages take and return one tensor")


class _StageCosts:
    """One forward and backward of a chain, measured between its stages.

    The input of a stage is held until its backward is done; it is counted at the stage before.
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
            function = partial(self._run_watched, stage, k)
            x = self._forward(k, partial(checkpoint, function) if recomputed else function, x)
        self._next()
        roots = [(x.edge(), x.device.empty(x.array.shape, x.array.dtype), True)]
        core.run(roots, keep_graph=False)
        self._next()

    def _forward(self, k: int, function: Callable[[Any], Any], x: Any) -> Any:
        self.bases.append(self.pool.used_bytes())
        self.pool.reset_peak()
        run, ops = local.run, []  # a listener could count too, but with one every module looks up its path

        def counted(function: Callable[..., Any], *args: Any, **params: Any) -> Any:
            ops.append(1)
            return run_by(run, function, *args, **params)

        with setting(run=counted):
            y = function(x)
        del x
        if not isinstance(y, Tensor):
            raise _no_tensor(f"stage {k}", y)
        self.ops.append(len(ops))
        self.forward_peaks.append(self.pool.peak_used - self.bases[k])
        self.saved.append(self.pool.used_bytes() - self.bases[k])
        self.outputs.append(round_up(y.nbytes))
        if k < len(self.stages) - 1:
            (y,) = behind_border([y], lambda node, grads: self._next())
        self.held.append(y)
        return y

    def _run_watched(self, stage: Callable[[Any], Any], k: int, x: Any) -> Any:
        if local.phase != "recompute":
            return stage(x)
        self.gradients[k] = self.pool.used_bytes() - self.bases[k] - self._behind()
        return stage(x)

    def _behind(self) -> int:
        """Bytes of gradients of the parameters of the later stages."""
        return sum(self.parameters[self.at + 1 :])

    def _next(self) -> None:
        """Backward reaches the stage before. Its result is no longer held."""
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
