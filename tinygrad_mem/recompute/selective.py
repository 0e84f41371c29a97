"""Selective recomputation: the results of some ops are kept, the other ops run again.

Source: Korthikanti et al., *Reducing activation recomputation in large transformer models*, 2022.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any

from .. import scope
from ..autograd.core import Node
from ..autograd.node_hooks import tell_saved
from ..autograd.shape import root_of
from ..callbacks import callback_depth
from ..errors import ArgumentError, CheckpointError, NotOfferedError
from ..interrupts import signal_safe
from ..ops.base import Op
from ..scope import local


class CheckpointPolicy(Enum):
    """The choice for an op's result: it is kept, or computed again. ``MUST`` and ``PREFER`` mean the same here."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4
    PREFER_CPU_OFFLOAD = 5


_SAVE = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
_OFFLOAD = (CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD)


class SelectiveCheckpointContext:
    """The first argument of a policy.

    Attributes:
        is_recompute: False: a policy is asked in the forward alone.
    """

    def __init__(self, *, is_recompute: bool) -> None:
        self.is_recompute = is_recompute


Policy = Callable[..., CheckpointPolicy | bool]


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Policy | Iterable[str | type[Op]], allow_cache_entry_mutation: bool = False
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The two contexts of a checkpoint that keeps the results of some ops: ``checkpoint(f, x, context_fn=...)``.

    Memory: the results of the kept ops, and what those ops save besides their inputs, until the recomputation reaches the op.
    Price: the forward of all other ops. Views and in-place ops always run again: they need no memory.

    Args:
        policy_fn_or_list: the ops to keep, by the names that reports give them (``"Linear"``, ``"Conv"``, ...), or
            ``policy(ctx, op, *arrays, **params)``, called before each op of the forward: ``op`` is its class, ``arrays`` are
            its raw inputs. It returns a :class:`CheckpointPolicy`, or True to keep. The recomputation keeps to its answers.
        allow_cache_entry_mutation: allow in-place ops inside the function to write into a kept result.

    Raises:
        ArgumentError: there is no such op.
        CheckpointError: in backward, a kept result was written in place, or the ops ran in another order.
        NotOfferedError: the policy asks for offload.
    """
    policy = policy_fn_or_list if callable(policy_fn_or_list) else _policy_of_names(policy_fn_or_list)
    forward = Keeping(policy)
    return forward, Giving(forward, allow_cache_entry_mutation)


def _policy_of_names(ops: Iterable[str | type[Op]]) -> Policy:
    names = {op if isinstance(op, str) else getattr(op, "__name__", repr(op)) for op in ops}
    unknown = sorted(names - Op.registry.keys())
    if unknown:
        known = ", ".join(sorted(Op.registry))
        raise ArgumentError(f"create_selective_checkpoint_contexts: no op {', '.join(unknown)}; there are {known}")
    return lambda ctx, op, *arrays, **params: op.__name__ in names


class KeptResult:
    """The results of one run of an op, and what each saved array was: an input, a result, or a buffer of the op."""

    __slots__ = ("attributes", "node", "op", "outputs", "several", "shapes", "sources", "writer")

    def __init__(self, node: Node, before: set[str], arrays: tuple, out: Any) -> None:
        self.op, self.several, self.writer, self.shapes = node.op, type(out) is tuple, "", _shapes(arrays)
        self.outputs = outputs = out if self.several else (out,)
        self.attributes = {name: value for name, value in vars(node).items() if name not in before}
        self.sources = {name: _source(array, arrays, outputs) or ("own", array) for name, array in node.saved.items()}
        keeper = self.node = Node(node.device, node.needs)  # on no tape: it reports to listeners what is kept
        keeper.op, keeper.module, keeper.line = node.op, node.module, node.line
        keeper.saved = {f"result {i}": array for i, array in enumerate(outputs)}
        keeper.saved.update({name: array for name, (where, array) in self.sources.items() if where == "own"})
        keeper.remembers = True
        if scope.listeners:
            tell_saved(keeper)

    def give(self, node: Node, arrays: tuple) -> Any:
        """Return the kept results, and set up ``node`` as the op did."""
        vars(node).update(self.attributes)
        places = {"input": arrays, "result": self.outputs}
        node.saved = {n: at if where == "own" else places[where][at] for n, (where, at) in self.sources.items()}
        return self.outputs if self.several else self.outputs[0]


def _shapes(arrays: tuple) -> list:
    return [getattr(array, "shape", None) for array in arrays]


def _source(array: Any, arrays: tuple, outputs: tuple) -> tuple[str, Any] | None:
    """The number of the input, or of the result, that a saved array is; ``None`` if it is neither."""
    for where, among in (("input", arrays), ("result", outputs)):
        for i, candidate in enumerate(among):
            if candidate is array:
                return where, i
    return None


class _Between(AbstractContextManager):
    """Intercepts the ops that run in this thread."""

    def __enter__(self) -> None:
        self.run, self.depth = local.run, callback_depth()
        local.run = self.between

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            local.run = self.run
        del self.run

    def between(self, function: Callable[..., Any], *args: Any, **params: Any) -> Any:
        """Run an op's forward on a node and arrays, or another function of the engine."""
        raise NotImplementedError

    def chooses(self, args: tuple) -> bool:
        """True if this is an op whose result may be kept."""
        node = args[0] if args else None
        if not isinstance(node, Node) or node.target is not None or node.op.view or not node.op.differentiable:
            return False
        return not local.once and callback_depth() == self.depth


class Keeping(_Between):
    """The forward: keeps the results of the chosen ops.

    Attributes:
        answers: the policy's answers, by op.
        kept: the results in order; ``None``: used.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy, self.about = policy, SelectiveCheckpointContext(is_recompute=False)
        self.answers: defaultdict[type[Op], list[bool]] = defaultdict(list)
        self.kept: list[KeptResult | None] = []

    def between(self, function: Callable[..., Any], *args: Any, **params: Any) -> Any:
        if not (self.chooses(args) and self._keeps(args, params)):
            node = args[0] if args else None
            if isinstance(node, Node) and node.target is not None:
                self._written(node)
            return scope.run_by(self.run, function, *args, **params)
        before = {*vars(args[0]), "saved"}
        out = scope.run_by(self.run, function, *args, **params)
        self.kept.append(KeptResult(args[0], before, args[1:], out))
        return out

    def _keeps(self, args: tuple, params: dict) -> bool:
        op = args[0].op
        answer = self.policy(self.about, op, *args[1:], **params)
        if answer in _OFFLOAD:
            raise NotOfferedError(f"{answer}: a policy that offloads is not offered; keep the result, or compute it again")
        self.answers[op].append(answer is True or answer in _SAVE)
        return self.answers[op][-1]

    def _written(self, node: Node) -> None:
        """An op is about to write into its first input: note that on the kept results in that memory."""
        root = root_of(node.target)
        for entry in self.kept:
            if entry is not None and any(root_of(array) is root for array in entry.outputs):
                entry.writer = node.op.__name__


class Giving(_Between):
    """The recomputation: returns the kept results in order, and frees them unless the graph is kept."""

    def __init__(self, forward: Keeping, mutation: bool) -> None:
        self.answers, self.kept, self.mutation = forward.answers, forward.kept, mutation

    def __enter__(self) -> None:
        super().__enter__()
        self.next = 0
        self.left = {op: iter(answers) for op, answers in self.answers.items()}

    def between(self, function: Callable[..., Any], *args: Any, **params: Any) -> Any:
        if not self.chooses(args) or not next(self.left.get(args[0].op, iter(())), True):
            return scope.run_by(self.run, function, *args, **params)
        node, index = args[0], self.next
        self.next += 1
        entry = self._entry(index, node, args[1:])
        if entry is None:  # an earlier backward has used it, and did not keep the graph
            return scope.run_by(self.run, function, *args, **params)
        if local.walk is None or not local.walk.keeps_graph:
            self.kept[index] = None
        for listener in scope.listeners:
            listener.skipped(node)
        return entry.give(node, args[1:])

    def _entry(self, index: int, node: Node, arrays: tuple) -> KeptResult | None:
        if index >= len(self.kept):
            raise CheckpointError(
                f"selective checkpoint: the recomputation runs one more {node.op.__name__} than the forward: the function "
                "must do the same both times"
            )
        entry = self.kept[index]
        if entry is None:
            return None
        if entry.op is not node.op or entry.shapes != _shapes(arrays):
            before, now = entry.op.__name__, node.op.__name__
            if before == now:
                before, now = f"{before} of {entry.shapes}", f"{now} of {_shapes(arrays)}"
            raise CheckpointError(
                f"selective checkpoint: result {index + 1} was kept of {before}, the recomputation runs {now} there: "
                "the function must do the same both times"
            )
        if entry.writer and not self.mutation:
            raise CheckpointError(
                f"selective checkpoint: the result of {entry.op.__name__} that was kept has been written in place by "
                f"{entry.writer}: keep another op's, use the op that makes a new tensor, or say allow_cache_entry_mutation=True"
            )
        return entry
