"""The step and the part of a training step in which each event of a recording happened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .recording import Action, Recording
from .stacks import Origins

PHASES = ("", "user", "data", "forward", "backward", "recompute", "optimizer")
"""The phases, by their code; ``""`` if unknown."""
CODE = {name: code for code, name in enumerate(PHASES)}
_IN_A_STEP = np.array([name in ("forward", "backward", "recompute", "optimizer") for name in PHASES])
_FORWARD, _BACKWARD = CODE["forward"], CODE["backward"]


@dataclass
class Parts:
    """Columns with one entry for each event, and one more for the end of the recording."""

    phase: np.ndarray  # code of the part of the step, as an index into PHASES
    sure: np.ndarray  # a stack shows it; else it is taken from the events before it, or from a thread without Python
    step: np.ndarray  # number of the step. A step begins with the first forward after a backward or an optimizer's step
    stretch: np.ndarray  # number of the part: the number of changes of the phase before it


def steps(recording: Recording, origins: Origins) -> Parts:
    """The part of a step in which each event happened.

    If stacks have only Python frames, one without frames belongs to a thread that runs no Python: most likely autograd's own.
        A free without a recorded stack happened in the same part as the allocation before it.
    """
    events = recording.events
    phase = origins.each(events["stack"], lambda origin: CODE[origin.phase])
    sure = origins.each(events["stack"], lambda origin: int(origin.sure)) > 0
    asked = events["action"] == Action.ALLOC
    freed = (events["action"] == Action.FREE_REQUESTED) | (events["action"] == Action.FREE_COMPLETED)
    for some in (asked, freed):
        without = some & (events["stack"] == 0)
        if np.any(some & ~without) and not origins.has_cpp:
            phase[without], sure[without] = _BACKWARD, False
    carried = _last(phase)  # an unknown phase is that of the events before
    phase, sure = carried, sure & (phase > 0) & (carried == phase)
    forward = _FORWARD if np.any(phase == _FORWARD) else CODE["user"]  # a network may have no modules
    part = _last(np.where(_IN_A_STEP[phase] | (phase == forward), phase, 0))
    before = np.concatenate([part[:1] * 0, part[:-1]])
    begins = (phase == forward) & (before != forward) & (before > 0)
    changes = np.concatenate([phase[:1] > len(PHASES), phase[1:] != phase[:-1]])
    columns = phase, sure, np.cumsum(begins, dtype=np.int32), np.cumsum(changes, dtype=np.int32)
    return Parts(*(np.append(column, column[-1:] if len(column) else column.dtype.type(0)) for column in columns))


def _last(column: np.ndarray) -> np.ndarray:
    """For each entry, the last entry up to it that is not 0."""
    if not len(column):
        return column
    place = np.maximum.accumulate(np.where(column > 0, np.arange(len(column), dtype=np.int32), 0))
    return column[place]
