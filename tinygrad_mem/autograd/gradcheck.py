"""``gradcheck``: backward compared with numerical derivatives, by element or by random projection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import DTypeError, GradcheckError, pins_nothing
from .backward import grad
from .tensor import Tensor


@pins_nothing
def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    fast_mode: bool = False,
) -> bool:
    """Compare ``func``'s backward with central differences of its forward, in float64. Returns True if they agree.

    Args:
        func: takes ``inputs``, returns a tensor or a tuple of tensors.
        inputs: those that require grad are checked. Their values are changed and then restored.
        eps: half the step of the differences.
        raise_exception: raise :class:`GradcheckError` instead of returning False.
        nondet_tol: the largest difference allowed between two runs on the same inputs.
        fast_mode: check one random projection of the Jacobian: two evaluations per input instead of two per element.

    Raises:
        ValueError: no input requires grad.
        DTypeError: an input that requires grad is not float64.
        GradcheckError: they differ; the message names output, input, elements and both values.
    """
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    checked = [i for i, x in enumerate(args) if isinstance(x, Tensor) and x.requires_grad]
    if not checked:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them have requires_grad=True."
        )
    for i in checked:
        if args[i].dtype != np.float64:
            raise DTypeError(
                f"gradcheck: input {i} is {args[i].dtype}; differences of eps={eps} need float64: call .double() on it"
            )
    check = _Check(func, args, checked, eps, atol, rtol, nondet_tol)
    try:
        check.deterministic()
        check.fast() if fast_mode else check.by_element()
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _values(tensor: Tensor) -> np.ndarray:
    return np.array(tensor.detach()._host())


class _Check:
    """One call of :func:`gradcheck`."""

    def __init__(
        self, func: Callable, args: tuple, checked: list[int], eps: float, atol: float, rtol: float, nondet_tol: float
    ) -> None:
        self.func, self.args, self.checked = func, args, checked
        self.eps, self.atol, self.rtol, self.nondet_tol = eps, atol, rtol, nondet_tol

    def outputs(self) -> list[Tensor]:
        """The floating outputs of one run."""
        found = self.func(*self.args)
        found = [found] if isinstance(found, Tensor) else list(found)
        return [t for t in found if isinstance(t, Tensor) and t.is_floating_point()]

    def run(self) -> list[np.ndarray]:
        """The outputs' values at the present inputs."""
        return [_values(t) for t in self.outputs()]

    def backward(self, output: Tensor, direction: np.ndarray) -> list[np.ndarray]:
        """The gradients of all checked inputs for one gradient of ``output``."""
        inputs = [self.args[i] for i in self.checked]
        if not output.requires_grad:
            return [np.zeros(x.shape) for x in inputs]
        seed = Tensor._wrap(output.device.empty(direction.shape, output.dtype), output.device)
        output.device.upload(direction.astype(output.dtype), seed.array)
        found = grad(output, inputs, seed, retain_graph=True, allow_unused=True)
        return [np.zeros(x.shape) if g is None else _values(g) for x, g in zip(inputs, found, strict=True)]

    def deterministic(self) -> None:
        """Check that two runs give the same outputs, and two backwards the same gradients."""
        first, second = self.outputs(), self.outputs()
        for index, (a, b) in enumerate(zip(first, second, strict=True)):
            self._check_same(_values(a), _values(b), f"output {index} differs between two runs on the same inputs")
            direction = np.random.default_rng(index).random(tuple(a.shape))
            pairs = zip(self.checked, self.backward(a, direction), self.backward(b, direction), strict=True)
            for i, mine, other in pairs:
                self._check_same(mine, other, f"the gradient of output {index} for input {i} differs between two runs")

    def _check_same(self, a: np.ndarray, b: np.ndarray, what: str) -> None:
        same = np.isclose(a, b, rtol=0, atol=self.nondet_tol, equal_nan=True)
        if not same.all():
            at = tuple(int(n) for n in np.argwhere(~same)[0])
            raise GradcheckError(
                f"gradcheck: not deterministic: {what}, at element {at}: {a[at]!r} and {b[at]!r}. "
                "Seed its random numbers, or set nondet_tol."
            )

    def difference(self, index: int, step: np.ndarray) -> list[np.ndarray]:
        """The derivative of all outputs along ``step`` of one input."""
        tensor = self.args[index]
        start = _values(tensor)
        try:
            tensor.device.upload(start + self.eps * step, tensor.array)
            above = self.run()
            tensor.device.upload(start - self.eps * step, tensor.array)
            below = self.run()
        finally:
            tensor.device.upload(start, tensor.array)
        return [(a - b) / (2 * self.eps) for a, b in zip(above, below, strict=True)]

    def by_element(self) -> None:
        """The whole Jacobian of every output for every input."""
        outputs = self.outputs()
        analytical = [self._rows(output) for output in outputs]
        for position, index in enumerate(self.checked):
            x = self.args[index]
            columns = []
            for flat in range(x.numel()):
                step = np.zeros(x.shape)
                step.flat[flat] = 1
                columns.append(self.difference(index, step))
            for number, output in enumerate(outputs):
                numerical = np.array([c[number].ravel() for c in columns]).reshape(x.numel(), output.numel()).T
                self._compare(number, index, output, numerical, analytical[number][position])

    def _rows(self, output: Tensor) -> list[np.ndarray]:
        """For each checked input, the Jacobian of ``output`` by backward: one row for each element of the output."""
        rows = []
        for flat in range(output.numel()):
            direction = np.zeros(output.shape)
            direction.flat[flat] = 1
            rows.append([g.ravel() for g in self.backward(output, direction)])
        sizes = [self.args[i].numel() for i in self.checked]
        return [np.array([r[k] for r in rows]).reshape(output.numel(), n) for k, n in enumerate(sizes)]

    def _compare(self, number: int, index: int, output: Tensor, numerical: np.ndarray, analytical: np.ndarray) -> None:
        wrong = ~np.isclose(analytical, numerical, self.rtol, self.atol)
        if not wrong.any():
            return
        error = np.where(wrong, np.nan_to_num(np.abs(analytical - numerical), nan=np.inf), -1)
        row, column = np.unravel_index(int(error.argmax()), error.shape)
        at = tuple(map(int, np.unravel_index(row, tuple(output.shape) or (1,))))
        of = tuple(map(int, np.unravel_index(column, tuple(self.args[index].shape) or (1,))))
        raise GradcheckError(
            f"Jacobian mismatch for output {number} with respect to input {index}: {int(wrong.sum())} of {wrong.size} entries; "
            f"the worst is output element {at}, input element {of}: numerical: {numerical[row, column]:.10g}, "
            f"analytical: {analytical[row, column]:.10g}"
        )

    def fast(self) -> None:
        """Compare ``v J u`` for random directions; in a small Jacobian that differs, find the element."""
        rng = np.random.default_rng(0)
        outputs = self.outputs()
        weights = [_direction(rng, o) for o in outputs]
        analytical = [self.backward(o, v) for o, v in zip(outputs, weights, strict=True)]
        for position, index in enumerate(self.checked):
            u = _direction(rng, self.args[index])
            derivatives = self.difference(index, u)
            for number, v in enumerate(weights):
                numerical = float((v * derivatives[number]).sum())
                exact = float((analytical[number][position] * u).sum())
                scale = max(1.0, float(np.abs(u).sum() * np.abs(v).sum()))
                if np.isclose(exact, numerical, self.rtol, self.atol * scale):
                    continue
                if self.args[index].numel() * outputs[number].numel() <= 1 << 16:
                    self.by_element()
                raise GradcheckError(
                    f"Jacobian mismatch for output {number} with respect to input {index} along a random direction: "
                    f"numerical: {numerical:.10g}, analytical: {exact:.10g}. Use fast_mode=False to find the element."
                )


def _direction(rng: np.random.Generator, tensor: Tensor) -> np.ndarray:
    direction = rng.random(tuple(tensor.shape)) + 0.1
    return direction / max(float(np.linalg.norm(direction)), 1e-12)
