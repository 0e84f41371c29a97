"""L-BFGS: Newton's direction, from the last steps and the changes of the gradient along them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from .. import scope
from ..autograd.grad_mode import enable_grad, no_grad
from ..autograd.gradients import SparseTensor
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, NotOfferedError, is_whole, pins_nothing
from ..interrupts import cleanup, uninterrupted
from . import loading
from . import state as states
from .line_search import LinePoint, strong_wolfe
from .optimizer import Optimizer
from .state import options, refuse_shards

__all__ = ("LBFGS",)

_ASSUMED = (
    "LBFGS.step decides by values, which a prediction does not have. It is assumed that no tolerance ends a step before "
    "max_iter, that each change of the gradient joins the history, and that a line search takes its first point. The history "
    "of a real run may be shorter: its peak is this one or less."
)
_VECTORS = ("d", "prev_flat_grad")
_LISTS = ("old_dirs", "old_stps", "ro")
_NUMBERS = ("t", "H_diag", "prev_loss")


class LBFGS(Optimizer):
    """Newton's method without a matrix of second derivatives: a history of steps and gradient changes approximates it.

    A step evaluates ``closure`` several times. It has up to ``max_iter`` iterations, each with a direction, a move along it,
    and a new gradient. All gradients are one flat vector, so all parameters have one dtype and one device.

    If ``closure`` raises, memory runs out or Ctrl-C comes, the current iteration is undone: parameters and state are those
    after the last complete iteration, and the next step continues from there.

    Memory: ``8 * min(k - 1, history_size) + 8`` bytes a float32 parameter after k iterations (over all steps): ``old_dirs`` and
    ``old_stps`` have ``history_size`` vectors each at most, ``d`` and ``prev_flat_grad`` are one each. An iteration needs 16
    more; a line search needs 12 more on top, also while ``closure`` runs. In a prediction (``memory.predict``) values decide
    nothing: it assumes the longest history that there can be, and says so in a warning.

    Price: one or more forwards and backwards an iteration; every iteration reads the whole history twice.

    Do not use when: each batch is another one. Differences of gradients of two batches say nothing of the curvature.

    Args:
        params: parameters; groups are not offered, as in PyTorch.
        lr, max_iter, max_eval, tolerance_grad, tolerance_change, history_size: as in PyTorch.
        line_search_fn: ``"strong_wolfe"``, or ``None`` for steps of length ``lr``.

    Raises:
        ValueError: a negative rate, no room for a history, more than one group.

    Source: Liu and Nocedal, *On the limited memory BFGS method for large scale optimization*, 1989.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if max_eval is None:
            max_eval = max_iter * 5 // 4
        super().__init__(params, options(locals()))

    needs_closure = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the one group there is. Raises: ValueError: there is one already."""
        if self.param_groups:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        super().add_param_group(param_group)

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if group.get("master_weights"):
            raise NotOfferedError("LBFGS: master_weights is not offered; train float32 parameters")
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise ArgumentError(f"only 'strong_wolfe' is supported, found line_search_fn={group['line_search_fn']!r}")
        if not is_whole(group["history_size"]):
            raise ArgumentError(f"LBFGS: history_size: expected 1 or more, found {group['history_size']!r}")

    def _loaded(self, values: dict[str, Any], p: Tensor, group: dict[str, Any], roots: bool) -> dict[str, Any]:
        return _loaded(values, p, sum(each.numel() for each in group["params"]))

    # --- a step ---------------------------------------------------------------------------------------------------------

    def _move(self, closure: Callable[[], Any] | None = None) -> Any:
        if not callable(closure):
            raise ArgumentTypeError(
                "LBFGS.step: expected a closure that computes the loss and its gradients and returns the loss, found "
                f"{closure!r:.60}"
            )
        params = self.param_groups[0]["params"]
        refuse_shards("LBFGS", params)  # first: a rank may have none of the elements
        if not sum(p.numel() for p in params):
            raise ArgumentError(f"LBFGS.step: its {len(params)} parameters have no elements: give it parameters with elements")
        self._opt_called = True
        step = _Step(self, closure)
        if step.assumes:
            warnings.warn(_ASSUMED, stacklevel=3)
        with no_grad(), scope.phase("optimizer"), scope.quiet_numpy():
            return step.run()


class _Step:
    """One step.

    Attributes:
        state: the optimizer's state after the last complete iteration. It is replaced, and not changed.
        evaluations: how often the closure was called in this step.
        assumes: True in a prediction, where numbers of tensors are those that lead to the longest history.
    """

    def __init__(self, optimizer: LBFGS, closure: Callable[[], Any]) -> None:
        self.optimizer, self.closure = optimizer, closure
        self.group = optimizer.param_groups[0]
        self.params: list[Tensor] = self.group["params"]
        first = self.params[0]
        kinds = {f"{p.dtype} on {p.device}" for p in self.params}
        if len(kinds) > 1:
            raise ArgumentError(
                "LBFGS.step: all gradients are one vector, so parameters should have one dtype and one device, found "
                f"{', '.join(sorted(kinds))}"
            )
        self.device, self.dtype, self.size = first.device, first.dtype, sum(p.array.size for p in self.params)
        self.kind = np.float64 if self.dtype == np.float64 else np.float32
        self.state = optimizer.state.get(first, {})
        self.evaluations, self._counted = 0, 0
        self.assumes = scope.local.dry is self.device
        self._outside = scope.local.phase, np.geterr()

    @pins_nothing
    def run(self) -> Any:
        """Make the iterations. Returns the first result of the closure."""
        result, loss = self._evaluate()
        self._iterate(loss)
        uninterrupted(self._keep, self.state)  # with the evaluations after the last iteration
        return result

    def _iterate(self, loss: float) -> None:
        gradient, group = self._gradient(self._vector()), self.group
        change, optimal = group["tolerance_change"], self._largest(gradient) <= group["tolerance_grad"]
        for left in reversed(range(0 if optimal else group["max_iter"])):
            before, found = loss, self._direction(gradient)
            d, t = found["d"], self._length(gradient)
            start = LinePoint(0, loss, gradient, self._number(gradient.dot(d), -math.inf))
            if start.slope > -change:
                self._commit(start, found | {"t": float(t)}, move=False)
                break
            if group["line_search_fn"] is not None:
                t, loss, gradient = self._search(start, d, t)
                self._commit(start, found | {"t": float(t)})
                optimal = self._largest(gradient) <= group["tolerance_grad"]
            else:
                self._commit(start, found | {"t": float(t)})
                if left:
                    _, loss = self._evaluate()
                    gradient = self._gradient(self._vector())
                    optimal = self._largest(gradient) <= group["tolerance_grad"]
            if not left or self.evaluations >= group["max_eval"] or optimal:
                break
            if self._largest(d) * abs(t) <= change or abs(loss - before) < change:
                break

    def _length(self, gradient: Tensor) -> Any:
        """The length of the step to try: the learning rate, and in the first iteration at most a gradient of sum 1."""
        lr = float(self.group["lr"])
        if self.state.get("n_iter"):
            return lr
        return min(1.0, 1.0 / self._number(gradient.norm(1), 1.0)) * lr

    def _direction(self, gradient: Tensor) -> dict[str, Any]:
        """The direction from here, and the history with the change of the gradient since the last iteration."""
        kept, most = self.state, self.group["history_size"]
        if not kept.get("n_iter"):
            return {"d": -gradient, "old_dirs": [], "old_stps": [], "ro": [], "H_diag": 1}
        changes, steps, ro, scale = [*kept["old_dirs"]], [*kept["old_stps"]], [*kept["ro"]], kept["H_diag"]
        y, s = gradient - kept["prev_flat_grad"], kept["d"] * kept["t"]
        ys = self._number(y.dot(s), 1.0)
        if ys > 1e-10:
            surplus = max(0, len(ro) + 1 - most)
            changes, steps, ro = [*changes[surplus:], y], [*steps[surplus:], s], [*ro[surplus:], float(1.0 / ys)]
            scale = float(ys / self._number(y.dot(y), 1.0))
        del y, s
        d, shares = -gradient, [None] * most
        for i in reversed(range(len(ro))):
            shares[i] = float(self._number(steps[i].dot(d), 0.0) * ro[i])
            self._add_to(d.array, changes[i].array, -shares[i])
        d.mul_(scale)
        for i in range(len(ro)):
            share = self._number(changes[i].dot(d), 0.0) * ro[i]
            self._add_to(d.array, steps[i].array, shares[i] - share)
        return {"d": d, "old_dirs": changes, "old_stps": steps, "ro": ro, "H_diag": scale, "al": shares}

    def _search(self, start: LinePoint, d: Tensor, t: Any) -> tuple[Any, float, Tensor]:
        """Search along ``d``. Returns the step to make, and the loss and the gradient after it; nothing has moved yet."""
        here = self._vector()
        for p, part in zip(self.params, self._parts(here), strict=True):
            scope.run(self.device.kernels.copy, p.array, out=part)
        evaluate = partial(self._try, d, here, [self._vector(), self._vector()])
        point = strong_wolfe(evaluate, start, t, self._largest(d), self.group["max_eval"] - self.evaluations)
        return point.t, point.loss, point.gradient

    def _try(self, d: Tensor, here: Tensor, vectors: list[Tensor], t: Any, keep: LinePoint) -> LinePoint:
        """Evaluate the loss at ``here + t * d``. Its gradient is in that vector which is not the gradient of ``keep``."""
        gradient = vectors[0] if keep.gradient is not vectors[0] else vectors[1]
        try:
            self._go(d, t)
            _, loss = self._evaluate()
            self._gradient(gradient)
        finally:
            cleanup(self._put_back, here)
        return LinePoint(t, loss, gradient, self._number(gradient.dot(d), 0.0))

    # --- what is written ------------------------------------------------------------------------------------------------

    def _commit(self, start: LinePoint, found: dict[str, Any], move: bool = True) -> None:
        """End an iteration: move the parameters and replace the state, both or neither."""
        count = self.state.get("n_iter", 0) + 1
        new = {**self.state, **found, "n_iter": count, "prev_flat_grad": start.gradient, "prev_loss": start.loss}
        uninterrupted(self._write, new, move)

    def _write(self, new: dict[str, Any], move: bool) -> None:
        if move:
            self._go(new["d"], new["t"])
        self._keep(new)
        self.optimizer._moves += 1
        for name, vector in states.tensors(new):
            states.report_state(vector, None, name)

    def _keep(self, new: dict[str, Any]) -> None:
        """Replace the state, in which the evaluations so far are counted."""
        calls = self.state.get("func_evals", 0) + self.evaluations - self._counted
        self._counted = self.evaluations
        self.state = {"func_evals": calls, "n_iter": 0, **new} | {"func_evals": calls}
        self.optimizer.state[self.params[0]] = self.state

    def _go(self, d: Tensor, t: Any) -> None:
        """Move the parameters by ``t * d``."""
        for p, part in zip(self.params, self._parts(d), strict=True):
            self._add_to(p.array, part, t)
            p.storage.written("LBFGS.step")

    def _put_back(self, here: Tensor) -> None:
        for p, part in zip(self.params, self._parts(here), strict=True):
            scope.run(self.device.kernels.copy, part, out=p.array)
            p.storage.written("LBFGS.step")

    # --- vectors and numbers --------------------------------------------------------------------------------------------

    def _evaluate(self) -> tuple[Any, float]:
        """Call the closure as its caller would. Returns its result, and the loss as a number."""
        phase, numpy = self._outside
        with enable_grad(), scope.phase(phase), np.errstate(**numpy):
            result = self.closure()
        self.evaluations += 1
        if self.assumes:
            return result, math.nan
        if not loading.is_number(result) and not (isinstance(result, Tensor) and result.numel() == 1):
            raise ArgumentTypeError(f"LBFGS.step: expected a closure that returns the loss, a number, found {result!r:.60}")
        return result, float(result)

    def _vector(self) -> Tensor:
        return Tensor._wrap(self.device.empty((self.size,), self.dtype), self.device)

    def _parts(self, vector: Tensor) -> Iterator[Any]:
        """The part of a vector that belongs to each parameter, in the parameter's shape."""
        at = 0
        for p in self.params:
            yield vector.array[at : at + p.array.size].reshape(p.array.shape)
            at += p.array.size

    def _gradient(self, out: Tensor) -> Tensor:
        """Write the gradients of all parameters into ``out``; 0 where there is none."""
        kernels = self.device.kernels
        for p, part in zip(self.params, self._parts(out), strict=True):
            if p._grad is None:
                scope.run(kernels.fill, 0, out=part)
            else:
                dense = p._grad.to_dense() if isinstance(p._grad, SparseTensor) else p._grad
                scope.run(kernels.copy, dense.array, out=part)
        return out

    def _add_to(self, array: Any, other: Any, share: Any) -> None:
        """array += share * other."""
        with self.device.current():
            scope.run(self.device.kernels.sgd_step, array, other, None, -float(share), 0.0, 0.0, 0.0, False, False)

    def _largest(self, vector: Tensor) -> Any:
        """The largest element, without its sign."""
        return max(abs(self._number(vector.amax(), math.nan)), abs(self._number(vector.amin(), math.nan)))

    def _number(self, x: Tensor, assumed: float) -> Any:
        """The element of ``x``, rounded as PyTorch rounds it; in a prediction ``assumed``."""
        return self.kind(assumed if self.assumes else x.item())


# --- a state dict ------------------------------------------------------------------------------------------------------


def _loaded(values: dict[str, Any], p: Tensor, size: int) -> dict[str, Any]:
    """Copy the state in ``values``, of any framework, to the device of ``p``; 0-d tensors become numbers.

    Args:
        p: the first parameter, whose dtype and device all vectors have.
        size: the number of elements of all parameters.

    Raises:
        ArgumentError: something is missing, or has another length.
        ArgumentTypeError: something has another type.
    """
    kept = states.StateArray((size,), p.dtype)
    made = {name: value for name, value in values.items() if name not in (*_VECTORS, *_LISTS, *_NUMBERS, "al")}
    for name in ("func_evals", "n_iter"):
        made[name] = int(_number(name, values.get(name, 0)))
    if not made["n_iter"]:
        return made  # no iteration was made: PyTorch may have saved the names, without vectors
    loading.mapping("state[...]", values, (*_VECTORS, *_LISTS, *_NUMBERS))
    for name in _VECTORS:
        made[name] = _vector(name, values[name], p, kept)
    for name in _NUMBERS:
        made[name] = _number(name, values[name])
    for name in (*_LISTS, "al"):
        loading.like(f"state[...][{name!r}]", values.get(name, []), [], same_length=False)
    lengths = {name: len(values[name]) for name in _LISTS}
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"loaded state dict: old_dirs, old_stps and ro should have one length, found {lengths}")
    made["old_dirs"] = [_vector("old_dirs", each, p, kept) for each in values["old_dirs"]]
    made["old_stps"] = [_vector("old_stps", each, p, kept) for each in values["old_stps"]]
    made["ro"] = [_number("ro", each) for each in values["ro"]]
    made["al"] = [None if each is None else _number("al", each) for each in values.get("al", [])]
    return made


def _vector(name: str, value: Any, p: Tensor, kept: states.StateArray) -> Any:
    if not hasattr(value, "shape"):
        raise ArgumentTypeError(f"state[...][{name!r}]: expected a tensor of {kept.shape[0]:,} elements, found {value!r:.60}")
    return states.loaded(name, value, p, kept, False)


def _number(name: str, value: Any) -> float:
    loading.like(f"state[...][{name!r}]", value, 0.0)
    return value.item() if hasattr(value, "item") else value
