"""A prediction as the page gets it: numbers, and the lines of command and code."""

from __future__ import annotations

from typing import Any

from ..memory import Track
from ..memory.render.palette import phases, sample
from .setting import StepSetting, predict

POINTS = 120
"""Points of a timeline: first, highest and lowest of each of 40 stretches."""
FULL = 500
"""The height of the peak in a timeline, whose heights are whole numbers."""
WIDE = 1000
"""The width of a timeline."""


def answer(setting: StepSetting, named: Any, rule: Any, in_backward: bool) -> dict[str, Any]:
    """The prediction of a setting: bytes are exact, and heights of the timeline are rounded.

    Args:
        named, rule, in_backward: the network, what makes its optimizer, and whether this steps in backward.
    """
    track = predict(setting, named, rule, in_backward)
    at_peak, line = track.at_peak(), track.timeline()
    held = track.by_category()
    return {
        "peak": track.peak,
        "reserved": track.pool("end").reserved,
        "phase": at_peak.phase,
        "by_category": {each.value: held.get(each, 0) for each in line.categories},
        "command": setting.command(),
        "code": setting.code(rule, in_backward),
        **_timeline(track),
    }


def _timeline(track: Track) -> dict[str, Any]:
    """The places of its moments, the height of each category there, and the name and width of each phase."""
    line = track.timeline()
    at = sample(line, POINTS)
    return {
        "events": len(line),
        "at": (at * WIDE // max(len(line) - 1, 1)).tolist(),
        "heights": [(line.bytes(each)[at] * FULL / track.peak).round().astype(int).tolist() for each in line.categories],
        "phases": [(name, round((stop - start) / len(line), 4)) for name, start, stop in phases(line, len(line) * 0.01)],
    }
