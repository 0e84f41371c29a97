"""Colours, drawn moments and visible phases, shared by all pictures and pages."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np

from ..attribution import Category
from ..record import Record
from ..timeline import Timeline

# After Okabe and Ito: distinct for every kind of colour vision, and in grey by their lightness
COLOURS = {
    Category.PARAMETER: "#0072B2",
    Category.MASTER_WEIGHT: "#003B5C",
    Category.BUFFER: "#999999",
    Category.OPTIMIZER_STATE: "#56B4E9",
    Category.GRADIENT: "#D55E00",
    Category.WEIGHT_CAST: "#332288",
    Category.COMMUNICATION: "#E69F00",
    Category.INPUT: "#882255",
    Category.ACTIVATION: "#009E73",
    Category.WORKSPACE: "#CC79A7",
    Category.TEMPORARY: "#F0E442",
    Category.UNTRACKED: "#CCCCCC",
    Category.UNKNOWN: "#666666",
}
LINES = ("#1A1A1E", "#B0102A", "#9A3FC8", "#6B7A00", "#00868B", "#8C510A")
"""Colours of all else that is drawn, so that a category's colour means that category in every picture."""


def name_of(track: Record) -> str:
    """A title for a run: which networks ran, what they did, and where, as ``"LeNet: forward, backward, optimizer on cpu"``."""
    modules, did = (_in_order(track, column) for column in ("module", "phase"))
    networks = list(dict.fromkeys(path.partition(".")[0] for path in modules))
    named = ", ".join(networks[:3]) + (f" and {len(networks) - 3:,} more" if networks[3:] else "")
    steps = ", ".join(phase for phase in did if phase != "user")
    return f"{': '.join(part for part in (named, steps) if part) or 'A run'} on {track.device}"


def _in_order(track: Record, column: str) -> list[str]:
    """The texts of a column of the log, each once, in the order of their first events; without the empty one."""
    codes, first = np.unique(track.log.column(column), return_index=True)
    return [track.log.texts[code] for code in codes[np.argsort(first)] if track.log.texts[code]]


def phases(timeline: Timeline, shortest: float) -> list[tuple[str, int, int]]:
    """(name, first moment, moment after the last) of each phase in order. Adjacent short phases are one, without a name.

    The phase ``user`` is named "your code".
    """
    changes = np.flatnonzero(np.diff(timeline.phase)) + 1
    edges = [0, *changes.tolist(), len(timeline)]
    names = [timeline.texts[code] for code in timeline.phase[edges[:-1]]]
    stretches = [("your code" if name == "user" else name, a, b) for name, (a, b) in zip(names, pairwise(edges), strict=True)]
    found = []
    for name, group in groupby(stretches, key=lambda stretch: stretch[0] if stretch[2] - stretch[1] >= shortest else ""):
        members = list(group)
        found.append((name, members[0][1], members[-1][2]))
    return found


def sample(timeline: Timeline, points: int) -> np.ndarray:
    """Positions of at most about ``points`` moments that show the same curve: first, highest and lowest of each interval.

    The peak is among them.
    """
    if len(timeline) <= points:
        return np.arange(len(timeline))
    used, edges = timeline.used, np.linspace(0, len(timeline), max(points // 3, 1) + 1).astype(int)
    pairs = [(a, b) for a, b in pairwise(edges) if a < b]
    kept = [(a, a + int(np.argmax(used[a:b])), a + int(np.argmin(used[a:b]))) for a, b in pairs]
    return np.unique([*np.ravel(kept), len(timeline) - 1])
