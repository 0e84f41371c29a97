"""The colours of every picture and page, and the phases of a run as stretches that can be seen."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np

from ..attribution import Category
from ..timeline import Timeline

# After Okabe and Ito: told apart by every kind of colour vision, and in grey by their lightness
COLOURS = {
    Category.PARAMETER: "#0072B2",
    Category.MASTER_WEIGHT: "#003B5C",
    Category.BUFFER: "#999999",
    Category.OPTIMIZER_STATE: "#56B4E9",
    Category.GRADIENT: "#D55E00",
    Category.WEIGHT_CAST: "#332288",
    Category.INPUT: "#882255",
    Category.ACTIVATION: "#009E73",
    Category.WORKSPACE: "#CC79A7",
    Category.TEMPORARY: "#F0E442",
    Category.UNTRACKED: "#CCCCCC",
    Category.UNCOUNTED: "#E69F00",
}


def phases(timeline: Timeline, shortest: float) -> list[tuple[str, int, int]]:
    """(name, first moment, the one after the last), one after the other; runs of shorter ones are one, without a name."""
    changes = np.flatnonzero(np.diff(timeline.phase)) + 1
    edges = [0, *changes.tolist(), len(timeline)]
    stretches = [(timeline.texts[timeline.phase[a]], a, b) for a, b in pairwise(edges)]
    found = []
    for name, group in groupby(stretches, key=lambda stretch: stretch[0] if stretch[2] - stretch[1] >= shortest else ""):
        members = list(group)
        found.append((name, members[0][1], members[-1][2]))
    return found
