"""The memory of every rank of a program: those that cannot differ are predicted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .track import Track


class Alike(NamedTuple):
    """Ranks whose runs ask for the same bytes, and the track of one of them."""

    ranks: tuple[int, ...]
    track: Track


def of_all(predict: Callable[[int], tuple[Track, list[np.ndarray]]], size: int) -> list[Alike]:
    """The ranks from 0 to ``size - 1``, in groups of those that are alike.

    Args:
        predict: the track of a rank, and the answers that depended on the rank: each as an array of what every rank would have
            been told. If a rank would have been told the same in all of them, its run would have been the same.
    """
    rest = np.arange(size)
    found = []
    while rest.size:
        rank = int(rest[0])
        track, answers = predict(rank)
        same = np.ones(size, bool)
        for answer in answers:
            same &= answer == answer[rank]
        alike = rest[same[rest]]
        found.append(Alike(tuple(alike.tolist()), track))
        rest = rest[~same[rest]]
    return found


def told(meta: Any) -> list[np.ndarray]:
    """The answers of process groups that depended on the rank, in a dry run on ``meta``."""
    return list(vars(meta).get("told", {}).values())
