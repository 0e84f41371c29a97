"""The parts of a training step, told from a recording: in which part each event happened, and in which step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .recording import Action, Recording
from .stacks import Origins

PHASES = ("", "user", "data", "forward", "backward", "recompute", "optimizer")
"""The phases, by their code; ``""``: not known."""
CODE = {name: code for code, name in enumerate(PHASES)}
_IN_A_STEP = np.array([name in ("forward", "backward", "recompute", "optimizer") for name in PHASES])
_FORWARD, _BACKWARD = CODE["forward"], CODE["backward"]


@dataclass
class Parts:
    """Columns, one entry an event, and one more for the end of the recording.

    Attributes:
        phase: code of the part of the step, as an index into ``PHASES``.
        sure: whether a stack says so; else it is that of the events before it, or of a thread without Python.
        step: number of the step; one begins with the first forward after a backward or an optimizer's step.
        stretch: number of the part: how often the phase has changed.
    """

    phase: np.ndarray
    sure: np.ndarray
    step: np.ndarray
    stretch: np.ndarray


def steps(recording: Recording, origins: Origins) -> Parts:
    """The part of a step in which each event happened.

    Where stacks are of Python alone, one without frames is of a thread that runs no Python: most likely autograd's own.
    A free whose stack was not recorded happened in the same part as what was asked for before it.
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
    phase, sure = _carried_on(phase, sure & (phase > 0))
    forward = _FORWARD if np.any(phase == _FORWARD) else CODE["user"]  # a network need not be made of modules
    part = _last(np.where(_IN_A_STEP[phase] | (phase == forward), phase, 0))
    before = np.concatenate([part[:1] * 0, part[:-1]])
    begins = (phase == forward) & (before != forward) & (before > 0)
    changes = np.concatenate([phase[:1] > len(PHASES), phase[1:] != phase[:-1]])
    columns = phase, sure, np.cumsum(begins, dtype=np.int32), np.cumsum(changes, dtype=np.int32)
    return Parts(*(np.append(column, column[-1:] if len(column) else column.dtype.type(0)) for column in columns))


def _carried_on(phase: np.ndarray, sure: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The phases, and where one is not known that of the events before."""
    carried = _last(phase)
    return carried, sure & (carried == phase)


def _last(column: np.ndarray) -> np.ndarray:
    """Of each entry the last up to it that is not 0."""
    if not len(column):
        return column
    place = np.maximum.accumulate(np.where(column > 0, np.arange(len(column), dtype=np.int32), 0))
    return column[place]
