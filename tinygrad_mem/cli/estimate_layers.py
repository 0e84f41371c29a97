"""An estimate of a network on one device, and its tables for a terminal: the layers that keep the most, and the peak."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..memory.accounting import Layer
from ..memory.ranks import in_runs
from ..memory.unroll import NUMBER
from ..text import visible
from .screen import with_columns

_BOTH = 80  # a narrower terminal has no room for sizes in MB and in MiB, or for wide gaps
_BYTES_ALONE = 60  # a narrower terminal has no room for sizes in MiB beside those in bytes
_GAP = 2  # columns between two of a narrow table
_NAME = 8  # columns of a layer's name at least, in a terminal that is narrower still
_ROOMY = 120  # a narrower terminal has no room for outputs and the formulas of parameters
_MOST = 5  # rows that are shown without ``--layers``


@dataclass
class Estimate:
    """An estimate in bytes; by category at the peak of the second step.

    Attributes:
        trained: how many of the parameters are trained.
        stacked: weights of experts that are not quantized, because they are no layer of class Linear.
        loss: the loss, in a few words.
        host: bytes of optimizer state in host memory.
        offloaded: most bytes of checkpoints' inputs in host memory.
        fits: whether the pool stays within the budget; ``None`` without a budget.
    """

    network: str
    batch_size: int
    device: str
    layers: list[Layer] = field(default_factory=list)
    parameters: int = 0
    trained: int = 0
    stacked: int = 0
    by_category: dict[str, int] = field(default_factory=dict)
    peak_used: int = 0
    peak_reserved: int = 0
    phase: str = ""
    loss: str = ""
    host: int = 0
    offloaded: int = 0
    budget: int | None = None
    fits: bool | None = None


def show(found: Estimate, console: Console, every_layer: bool) -> None:
    """Print an estimate; without ``every_layer`` only the rows of layers that keep the most."""
    rows = _group_alike([layer for layer in found.layers if layer.parameters or layer.kept or layer.temporary])
    shown = rows if every_layer else sorted(rows, key=_kept_bytes, reverse=True)[:_MOST]
    console.print(_layers(found, [row for row in rows if row in shown], console.width))
    if len(shown) < len(rows):
        console.print(f"{len(rows) - len(shown)} more rows: --layers\n")
    console.print(_totals(found, console.width))
    kept = found.host or sum(found.by_category.get(name, 0) for name in ("optimizer state", "master weights"))
    console.print(f"The loss is {found.loss}.")
    if found.trained != found.parameters:
        console.print(f"{found.trained:,} parameters are trained, {found.trained / found.parameters:.2%} of them.")
    if found.stacked:
        console.print(
            f"{found.stacked:,} weights of experts are not quantized: a parameter holds those of all experts of a layer, and "
            "only layers of class Linear are quantized, as by bitsandbytes under transformers 5."
        )
    console.print(f"The optimizer keeps {kept / found.trained:.3f} bytes per trained parameter.")
    if found.offloaded:
        console.print(f"The host holds {found.offloaded:,} bytes of inputs of recomputed parts until their backward.")
    if found.host:
        console.print(f"The host holds these {found.host:,} bytes; the device has those of one parameter at a time, in a step.")
    say_if_it_fits("fits", found.fits, found.peak_used, found.budget, console)


def say_if_it_fits(word: str, fits: bool | None, peak: int, budget: int | None, console: Console) -> None:
    """Print the answer to a budget, if there is one; ``word``: the word, or sentence, for one that is large enough."""
    if budget is None:
        return
    left = budget - peak
    said = f"{word}, {left:,} bytes are left" if fits else f"does not fit: {-left:,} bytes too many"
    if not fits and left >= 0:
        said = f"does not fit: {left:,} bytes are left at the peak, but the free pieces are too small for a request"
    console.print(f"A budget of {budget:,} bytes: {said}.", style="bold")


def _kept_bytes(row: list[Layer]) -> int:
    return sum(layer.kept for layer in row)


def _layers(found: Estimate, rows: list[list[Layer]], width: int) -> Table:
    """A line for each row, and one for all layers. In a wide terminal also the outputs, and how parameters are counted."""
    roomy = width >= _ROOMY
    gap: dict[str, Any] = {} if width >= _BOTH else {"padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    kept, most = _kept_bytes(found.layers), max((layer.temporary for layer in found.layers), default=0)
    digits = [len(f"{size:,}") for size in (found.parameters, kept, most)]  # a number is not cut
    title = Text(visible(f"{found.network}, batch {found.batch_size}, on {found.device}"))
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, **gap)
    table.add_column("layer", overflow="fold", max_width=max(width - sum(digits) - 3 * _GAP, _NAME) if gap else None)
    if roomy:
        table.add_column("output", overflow="fold")
    table.add_column("parameters", justify="right", min_width=digits[0])
    repeated = any(len(layers) > 1 for layers in rows)
    table.add_column("kept for\nbackward" + ", each" * repeated, justify="right", min_width=digits[1])
    temporary = sum(digits) + 3 * _GAP + _NAME <= width  # else the column would be cut
    if temporary:
        table.add_column("temporary", justify="right", min_width=digits[2])
    for layers in rows:
        layer, count = layers[0], f"{len(layers)} x " * (len(layers) > 1)
        output = [" x ".join(map(str, layer.output))] * roomy
        formula = f"{layer.formula} = " * roomy
        parameters = f"{formula}{layer.parameters:,}" if layer.parameters else ""
        name = Text(visible(f"{count}{_name(layers) or found.network} {layer.kind}"))
        table.add_row(name, *output, parameters, f"{layer.kept:,}", *[f"{layer.temporary:,}"] * temporary)
    table.add_section()
    table.add_row("all layers", *[""] * roomy, f"{found.parameters:,}", f"{kept:,}", style="bold")
    return table


def _group_alike(layers: list[Layer]) -> list[list[Layer]]:
    """Layers that differ in nothing but one number of their names, such as that of a block."""
    rows: dict[tuple, list[Layer]] = {}
    for layer in layers:
        name = NUMBER.sub("*", layer.name)
        rows.setdefault((name, layer.kind, layer.output, layer.formula, layer.kept, layer.temporary), []).append(layer)
    split = [[layers] if _varying(layers) is not None else [[each] for each in layers] for layers in rows.values()]
    return [row for part in split for row in part]


def _varying(layers: list[Layer]) -> int | None:
    """The place of the one part of their names that differs; ``None`` if several do."""
    parts = [layer.name.split(".") for layer in layers]
    places = [i for i, values in enumerate(zip(*parts, strict=True)) if len(set(values)) > 1]
    return places[0] if len(places) == 1 else None


def _name(layers: list[Layer]) -> str:
    """One name for all of them, with the range of their numbers: ``layers.0-31.norm``."""
    place = _varying(layers)
    if place is None:
        return layers[0].name
    parts = layers[0].name.split(".")
    parts[place] = in_runs(sorted(int(layer.name.split(".")[place]) for layer in layers)).replace(" ", "")
    return ".".join(parts)


def _totals(found: Estimate, width: int) -> Table:
    units = {"bytes": 1, "MB (1000²)": 10**6, "MiB (1024²)": 1 << 20}
    if width < _BOTH:
        del units["MB (1000²)"]
    if width < _BYTES_ALONE:
        del units["MiB (1024²)"]
    table = Table(title=f"the peak, in {found.phase} of the second step", title_justify="left", title_style="bold")
    with_columns(table, "", *(f">{unit}" for unit in units))
    rows = sorted(found.by_category.items(), key=lambda item: -item[1])
    for name, size in (*rows, ("peak used", found.peak_used), ("reserved by the pool", found.peak_reserved)):
        if name == "peak used":
            table.add_section()
        shown = [f"{size:,}" if unit == 1 else f"{size / unit:,.2f}" for unit in units.values()]
        table.add_row(name, *shown, style="bold" if name == "peak used" else "")
    return table
