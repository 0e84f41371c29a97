"""Interactive figures (plotly) of a track: the timeline by category, the life of each block, the peak by module."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..blocks import Block
from ..sizes import bytes_text
from .palette import COLOURS, phases, sample

if TYPE_CHECKING:
    from ..track import Track

POINTS = 3000  # moments of the timeline that are drawn
BLOCKS = 1000  # most blocks whose lives are drawn: the largest
LEAST = 1e-3  # share of the peak: smaller blocks of a module are one tile
_MARGIN = {"l": 64, "r": 12, "t": 28, "b": 42}
_TICKS = {"showgrid": True, "zeroline": False, "automargin": True}


def timeline(track: Track) -> dict[str, Any]:
    """Bytes in use by category after each event, phases shaded, the peak marked."""
    from plotly import graph_objects

    line = track.timeline()
    at = sample(line, POINTS)
    top = line.peak()
    figure = graph_objects.Figure()
    for category in line.categories:
        figure.add_scatter(
            x=at.tolist(),
            y=line.bytes(category)[at].tolist(),
            name=category.value,
            stackgroup="used",
            mode="lines",
            line={"shape": "hv", "width": 0},
            fillcolor=COLOURS[category],
            hovertemplate="%{y:,d} B",
        )
    figure.add_scatter(
        x=at.tolist(),
        y=line.used[at].tolist(),
        name="in use",
        mode="lines",
        line={"shape": "hv", "width": 1},
        showlegend=False,
        meta="ink",
        hovertemplate="<b>%{y:,d} B</b>",
    )
    stretches = phases(line, len(line) * 0.008)
    for _, start, stop in stretches[1::2]:
        figure.add_vrect(x0=start, x1=stop, fillcolor="#808080", opacity=0.14, line_width=0, layer="below")
    height = int(line.used[top])
    side = "right" if 4 * top > 3 * len(line) else "left" if 4 * top < len(line) else "center"  # the label stays inside
    figure.add_annotation(
        x=top, y=height, text=f"peak {bytes_text(height)}", showarrow=True, arrowhead=2, ax=0, ay=-26, xanchor=side
    )
    figure.update_layout(
        hovermode="x unified",
        margin=_MARGIN,
        xaxis={"title": "allocations and frees, in order", "range": [0, max(len(line) - 1, 1)], **_TICKS},
        yaxis={"range": [0, height * 1.2], **_bytes_axis(height), **_TICKS},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"},
        meta={"phases": stretches},  # the page labels phases that are wide enough
    )
    return figure.to_plotly_json()


def _bytes_axis(most: int) -> dict[str, Any]:
    """Ticks at round numbers of a 1024-based unit."""
    unit = next((size for size in (1 << 60, 1 << 50, 1 << 40, 1 << 30, 1 << 20, 1 << 10) if most >= size), 1)
    step = next(s for s in (m * 10**e for e in range(10) for m in (1, 2, 5)) if most <= 6 * s * unit) * unit
    values = list(range(0, int(most * 1.2) + 1, step))
    return {"tickvals": values, "ticktext": [bytes_text(value).replace(".00", "") for value in values]}


def largest(track: Track, most: int = BLOCKS) -> tuple[list[Block], int]:
    """The largest blocks of the whole run in order of allocation, and the number of all blocks."""
    count, kept = 0, []
    for count, block in enumerate(track.blocks(), 1):  # noqa: B007 (the count is of all, not of those that are kept)
        entry = (block.rounded, -block.born, block)
        if len(kept) < most:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
    return sorted((block for _, _, block in kept), key=lambda block: block.born), count


def lives(track: Track, found: list[Block]) -> dict[str, Any]:
    """A bar for each block, from malloc to free, in its category's colour, at the lowest place that is free all that time."""
    from plotly import graph_objects

    line = track.timeline()
    bars: dict[str, list] = {key: [] for key in ("base", "x", "y", "width", "color", "text")}
    top = 1
    for block, place in zip(found, _places(found), strict=True):
        top = max(top, place + block.rounded)
        for start, stop, category in _periods(block, len(track.log)):
            first, last = np.searchsorted(line.event, [start, stop]).tolist()
            if last > first:
                bars["base"].append(first)
                bars["x"].append(last - first)
                bars["y"].append(place + block.rounded / 2)
                bars["width"].append(block.rounded)
                bars["color"].append(COLOURS[category])
                bars["text"].append(_words(block, category.value))
    figure = graph_objects.Figure(
        graph_objects.Bar(
            orientation="h",
            base=bars["base"],
            x=bars["x"],
            y=bars["y"],
            width=bars["width"],
            marker={"color": bars["color"], "line": {"width": 0.3, "color": "rgba(128,128,128,0.6)"}},
            hovertext=bars["text"],
            hoverinfo="text",
            textposition="none",
        )
    )
    figure.update_layout(
        margin=_MARGIN,
        hovermode="closest",
        showlegend=False,
        xaxis={"title": "allocations and frees, in order", "range": [0, max(len(line) - 1, 1)], **_TICKS},
        yaxis={"range": [0, top * 1.03], **_bytes_axis(top), **_TICKS},
    )
    return figure.to_plotly_json()


def _places(found: list[Block]) -> list[int]:
    """First fit: for each block in order of allocation, the lowest place that is free during its whole life."""
    live: list[tuple[int, int, int]] = []  # (place, end, when it is free again), by place
    places = []
    for block in found:
        live = [entry for entry in live if entry[2] > block.born]
        place = 0
        for start, end, _ in live:
            if start - place >= block.rounded:
                break
            place = max(place, end)
        places.append(place)
        live.append((place, place + block.rounded, block.died if block.died is not None else 1 << 62))
        live.sort()
    return places


def _periods(block: Block, events: int) -> list[tuple[int, int, Any]]:
    """(first event, event after the last, category) of each period in which the block had one category."""
    ends = [*(at for at, _ in block.categories), block.died if block.died is not None else events]
    return [(a, b, category) for (a, b), (_, category) in zip(pairwise(ends), block.categories, strict=True)]


def _words(block: Block, category: str) -> str:
    """The hover text of a block. Plotly interprets some HTML, so names are escaped."""
    asked = f" ({block.requested:,} requested)" if block.requested != block.rounded else ""
    rows = [
        f"<b>{block.rounded:,} B</b>{asked}, {category}",
        block.deduced,
        block.owner,
        f"allocated in {block.phase}",
        block.line,
    ]
    return "<br>".join(escaped(row) if i else row for i, row in enumerate(rows) if row)


def escaped(text: str) -> str:
    """``text`` escaped, so that plotly shows it unchanged."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def peak(track: Track) -> dict[str, Any]:
    """The blocks of the peak as nested tiles: modules, then their blocks. Areas are bytes."""
    from plotly import graph_objects

    sizes: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)  # bytes of each colour
    kinds: dict[tuple[str, ...], str] = {}
    blocks = track.live("peak")
    least = LEAST * sum(block.rounded for block in blocks)
    for block in blocks:
        path = (*block.home.split("."), "") if block.home else ("no module", "")
        what = block.name.rpartition(".")[2] or block.op or block.owner
        leaf = (*path, "smaller blocks" if block.rounded < least else f"{block.category.value}: {what}")
        for node in (leaf, *_above(leaf)):
            sizes[node][COLOURS[block.category]] += block.rounded
        kinds[leaf] = block.category.value  # shown by its colour
    nodes = list(sizes)
    figure = graph_objects.Figure(
        graph_objects.Treemap(
            ids=["/".join(node) for node in nodes],
            parents=["/".join(next(_above(node))) if node else "" for node in nodes],
            labels=[escaped(node[-1].removeprefix(f"{kinds.get(node)}: ")) if node else "peak" for node in nodes],
            values=[sizes[node].total() for node in nodes],
            branchvalues="total",
            marker={"colors": [sizes[node].most_common(1)[0][0] for node in nodes], "line": {"width": 0.5}},
            customdata=[int("" in node) for node in nodes],  # the page shows modules in a paler colour than their blocks
            texttemplate=["%{label}<br>%{value:,d} B" if "" in node else "%{label}" for node in nodes],
            text=[escaped("/".join(filter(None, node))) for node in nodes],  # ids are shown as HTML
            hovertemplate="<b>%{value:,d} B</b><br>%{text}<br>%{percentRoot:.2%} of the peak<extra></extra>",
            tiling={"pad": 1},
            meta="tiles",
        )
    )
    figure.update_layout(margin={"l": 4, "r": 4, "t": 8, "b": 4}, uniformtext={"minsize": 10, "mode": "hide"})
    return figure.to_plotly_json()


def _above(node: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The tiles around a tile, innermost first. A leaf has an empty name before its own, which tells it from a module."""
    while node:
        node = node[:-2] if node[-2:-1] == ("",) else node[:-1]
        yield node
