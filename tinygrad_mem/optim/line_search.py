"""A search along a direction for a step that satisfies the strong Wolfe conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..autograd.tensor import Tensor

_DECREASE = 1e-4  # the share of the decrease that the slope promises which a step must reach
_CURVATURE = 0.9  # a step may keep at most this share of the slope
_SMALLEST = 1e-9  # a bracket that moves no parameter by more is not searched any further


class LinePoint(NamedTuple):
    """A point on the line.

    Attributes:
        t: the length of the step to it, in multiples of the direction.
        loss: the loss there.
        gradient: the flat gradient there.
        slope: the gradient along the direction.
    """

    t: Any
    loss: float
    gradient: Tensor
    slope: Any


Evaluate = Callable[[Any, LinePoint], LinePoint]
"""``evaluate(t, keep)`` gives the point at ``t``. It may overwrite all gradients but that of ``keep``."""


def strong_wolfe(evaluate: Evaluate, start: LinePoint, t: Any, longest: Any, most: int) -> LinePoint:
    """Find a step with less loss and a flatter slope: bracket it, then narrow the bracket by cubic interpolation.

    Only the gradients of two points are read later: those of the lowest one and of the newest one. So two arrays are enough
    for any number of evaluations.

    Args:
        evaluate: see :data:`Evaluate`.
        start: the point at 0.
        t: the first step to try.
        longest: the largest element of the direction, without its sign.
        most: the number of evaluations after the first one.

    Returns:
        the point to go to.

    Source: Nocedal and Wright, *Numerical Optimization*, 2006, algorithms 3.5 and 3.6; PyTorch's constants.
    """
    before, point, count = start, evaluate(t, start), 0
    while count < most:
        rises = point.loss > start.loss + _DECREASE * point.t * start.slope
        if rises or (count > 1 and point.loss >= before.loss):
            break
        if _is_flat(point, start):
            return point
        if point.slope >= 0:
            break
        nearest = point.t + 0.01 * (point.t - before.t)
        t = _cubic_minimum(before, point, nearest, point.t * 10)
        before, point = point, evaluate(t, point)
        count += 1
    else:
        before = start
    return _narrowed(evaluate, start, [before, point], longest, most, count)


def _narrowed(evaluate: Evaluate, start: LinePoint, bracket: list[LinePoint], longest: Any, most: int, count: int) -> LinePoint:
    """Narrow a bracket until the step is good, the bracket is small or ``count`` is ``most``. Returns its lowest point."""
    low, stuck = _lower(bracket), False
    while count < most and not abs(bracket[1].t - bracket[0].t) * longest < _SMALLEST:
        t, stuck = _inside(bracket, _cubic_minimum(*bracket), stuck)
        point = evaluate(t, bracket[low])
        count += 1
        if point.loss > start.loss + _DECREASE * point.t * start.slope or point.loss >= bracket[low].loss:
            bracket[1 - low] = point
            low = _lower(bracket)
            continue
        flat = _is_flat(point, start)
        if not flat and point.slope * (bracket[1 - low].t - bracket[low].t) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = point
        if flat:
            break
    return bracket[low]


def _lower(bracket: list[LinePoint]) -> int:
    return 0 if bracket[0].loss <= bracket[1].loss else 1


def _is_flat(point: LinePoint, start: LinePoint) -> bool:
    return bool(abs(point.slope) <= -_CURVATURE * start.slope)


def _inside(bracket: list[LinePoint], t: Any, stuck: bool) -> tuple[Any, bool]:
    """``t``, moved away from an end of the bracket if it is the second time that it is close to one.

    Returns:
        the step, and whether it is close to an end for the first time.
    """
    a, b = bracket[0].t, bracket[1].t
    first, last = min(a, b), max(a, b)
    margin = 0.1 * (last - first)
    if not min(last - t, t - first) < margin:
        return t, False
    if stuck or t >= last or t <= first:
        return (last - margin if abs(t - last) < abs(t - first) else first + margin), False
    return t, True


def _cubic_minimum(a: LinePoint, b: LinePoint, least: Any = None, most: Any = None) -> Any:
    """Find where the cubic with the losses and slopes of two points is lowest, within bounds: by default the points."""
    if least is None:
        least, most = (a.t, b.t) if a.t <= b.t else (b.t, a.t)
    middle = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = middle * middle - a.slope * b.slope
    if not square >= 0:
        return (least + most) / 2.0
    root = np.sqrt(square)
    if a.t <= b.t:
        t = b.t - (b.t - a.t) * ((b.slope + root - middle) / (b.slope - a.slope + 2 * root))
    else:
        t = a.t - (a.t - b.t) * ((a.slope + root - middle) / (a.slope - b.slope + 2 * root))
    return min(max(t, least), most)
