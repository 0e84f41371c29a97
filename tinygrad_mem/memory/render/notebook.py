"""A track in a notebook: a small curve and its peak, without libraries or scripts."""

from __future__ import annotations

import html

import numpy as np

from ..record import Record
from ..sizes import bytes_text
from ..timeline import Timeline
from .palette import COLOURS, sample

POINTS = 400  # moments that are drawn
WIDTH, HEIGHT = 640, 160


def summary(track: Record) -> str:
    """A curve stacked by category, and a table with each category's bytes at the peak."""
    timeline = track.timeline()
    if not len(timeline):
        return f"<p>A track of <code>{html.escape(track.device)}</code>: nothing was allocated.</p>"
    moment = track.at_peak()
    rows = "".join(
        f'<tr><td style="text-align:left"><span style="color:{COLOURS[category]}">&#9632;</span> {category.value}</td>'
        f'<td style="text-align:right">{size:,}</td><td style="text-align:right">{size / moment.used:.1%}</td></tr>'
        for category, size in sorted(moment.by_category.items(), key=lambda item: -item[1])
    )
    head = f"peak of {html.escape(track.device)}: {moment.used:,} bytes ({bytes_text(moment.used)}), in {moment.phase}"
    return f"""<div><p style="margin:0"><b>{head}</b></p>{_curve(timeline)}
<table style="font-variant-numeric:tabular-nums"><tbody>{rows}</tbody></table></div>"""


def _curve(timeline: Timeline) -> str:
    """The timeline as an svg: one area for each category, stacked."""
    at = sample(timeline, POINTS)
    x = np.repeat(np.append(at, len(timeline)) * (WIDTH / len(timeline)), 2)[1:-1]
    scale = HEIGHT / (int(timeline.used.max()) or 1)
    below = np.zeros(len(at))
    areas = []
    for category in timeline.categories:
        above = below + timeline.bytes(category)[at]
        xs, ys = np.append(x, x[::-1]), np.append(np.repeat(above, 2), np.repeat(below, 2)[::-1])
        points = " ".join(f"{a:.1f},{HEIGHT - b * scale:.1f}" for a, b in zip(xs, ys, strict=True))
        areas.append(f'<polygon fill="{COLOURS[category]}" points="{points}"><title>{category.value}</title></polygon>')
        below = above
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" style="width:100%;max-width:{WIDTH}px;height:auto"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="bytes in use" {size}>{"".join(areas)}</svg>'
