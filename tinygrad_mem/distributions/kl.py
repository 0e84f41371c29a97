"""Kullback-Leibler divergences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..autograd import Tensor
from ..functional.activation import softplus
from .bernoulli import Bernoulli
from .categorical import Categorical, OneHotCategorical
from .distribution import Distribution
from .independent import Independent
from .normal import Normal


def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    one = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    one = one.masked_fill(q.probs == 0, math.inf).masked_fill(p.probs == 0, 0)
    zero = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    zero = zero.masked_fill(q.probs == 1, math.inf).masked_fill(p.probs == 1, 0)
    return one + zero


def _categorical(p: Categorical, q: Categorical) -> Tensor:
    each = p.probs * (p.logits - q.logits)
    return each.masked_fill(q.probs == 0, math.inf).masked_fill(p.probs == 0, 0).sum(-1)


def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError
    return p._sum_events(kl_divergence(p.base_dist, q.base_dist))


_RULES: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {
    (Normal, Normal): _normal,
    (Bernoulli, Bernoulli): _bernoulli,
    (Categorical, Categorical): _categorical,
    (OneHotCategorical, OneHotCategorical): _categorical,
    (Independent, Independent): _independent,
}


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The expected ``p.log_prob(x) - q.log_prob(x)`` of x from p, of each variable of the batch.

    Raises:
        NotImplementedError: there is no formula for these two.
    """
    for first in type(p).__mro__:
        for second in type(q).__mro__:
            if (first, second) in _RULES:
                return _RULES[first, second](p, q)
    raise NotImplementedError(f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}")
