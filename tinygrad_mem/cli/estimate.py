"""``python -m tinygrad_mem estimate``: the memory of a training step, layer by layer, without running it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import tinygrad_mem as tm

from .. import memory, nn
from ..errors import ArgumentError
from ..memory.accounting import Layer, account, watch
from ..memory.ranks import in_runs
from ..models.names import Named
from ..models.precision import Step
from ..techniques import lora as add_lora
from ..techniques import optimizer_in_backward, paged_optimizer, quantize_frozen
from ..text import visible
from . import estimate_mesh, estimate_ranks, estimate_torch
from .estimate_mesh import OverMesh
from .networks import IN_BACKWARD, OPTIMIZERS, budget_of, network_of
from .torch_programs import Asked
from .users import is_torch

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a part of a path
_ROOMY = 80  # a narrower terminal has no room for outputs and the formulas of parameters


@dataclass
class Estimate:
    """An estimate in bytes; by category at the peak of the second step.

    Attributes:
        trained: how many of the parameters are trained.
        loss: the loss, in a few words.
        host: bytes of optimizer state in host memory.
        offloaded: most bytes of checkpoints' inputs in host memory.
        fits: whether the peak is within the budget; ``None`` without a budget.
    """

    network: str
    batch_size: int
    device: str
    layers: list[Layer]
    parameters: int
    trained: int
    by_category: dict[str, int]
    peak_used: int
    peak_reserved: int
    phase: str
    loss: str
    host: int
    offloaded: int
    budget: int | None
    fits: bool | None


def run(
    *,
    network: str,
    batch_size: int,
    sample: str | None,
    tokens: str | None,
    optimizer: str,
    precision: str,
    master_weights: bool,
    paged: bool,
    accumulate: int,
    recompute: str | None,
    offload: bool,
    tile: int | None,
    budget: str | None,
    gpu: str | None,
    lora: int | None,
    quantize: str | None,
    checkpoint: bool,
    advise: bool,
    device: str | None,
    ranks: int | None,
    rank: int,
    zero: int,
    tensor: int,
    pipeline: int,
    context: int,
    picture: Path | None,
    as_json: bool,
) -> int:
    """Estimate and print. Returns 1 if the peak exceeds the budget, or what ``--gpu`` has, else 0.

    Raises:
        ArgumentError: no such network, no such size, a class that fails, a network without chains of blocks to recompute.
        DeviceError: ``device`` is neither ``cpu`` nor ``cuda``, or CuPy is not installed, which ``cuda`` needs.
    """
    if is_torch(network):
        ours = {"master_weights": master_weights, "quantize": quantize, "paged": paged, "tile": tile, "zero": zero}
        over = {"tensor": tensor > 1, "pipeline": pipeline > 1, "context": context > 1}
        _refuse_for_torch(recompute=recompute, offload=offload, picture=picture, **ours, **over)
        made = (network, sample, tokens, batch_size, optimizer, precision, accumulate, lora, checkpoint, device or "cuda")
        return estimate_torch.run(Asked(*made, (rank, ranks or 1) if rank or ranks else None), budget, gpu, advise, as_json)
    if gpu is not None or checkpoint or advise or rank:
        raise ArgumentError(f"--gpu, --checkpoint, --advise and --rank are for programs of PyTorch, and {network} is none")
    if ranks is not None:
        _refuse_for_ranks(lora=lora, paged=paged, offload=offload, tile=tile)
    if offload and recompute is None and tile is None:
        raise ArgumentError("--offload keeps the inputs of recomputed parts on the host: give --recompute or --tile too")
    if quantize is not None and lora is None:
        raise ArgumentError("--quantize freezes the weights, so that nothing would be trained: give --lora too")
    if ranks is None and (zero or picture is not None or max(tensor, pipeline, context) > 1):
        raise ArgumentError("--zero, --tensor, --pipeline, --context and --picture are for several ranks: give --ranks too")
    if batch_size % accumulate:
        raise ArgumentError(f"--accumulate {accumulate} does not divide --batch-size {batch_size}")
    in_backward = _is_in_backward(optimizer, ranks, accumulate, precision)
    room = None if budget is None else budget_of(budget)
    rule = partial(OPTIMIZERS[optimizer], **({"master_weights": True} if master_weights else {}))
    if ranks is not None and estimate_mesh.is_meant(network, tensor, pipeline, context):
        over = (network, tokens, batch_size, rule, precision, accumulate, recompute, device or "cpu")
        return estimate_mesh.run(OverMesh(*over, ranks, tensor, pipeline, context, zero), room, picture, as_json)
    named = network_of(network, sample, tokens)
    if tile is not None:
        if not named.tiles:
            raise ArgumentError(f"--tile is for models such as llama-3.1-8b, or of a config.json, and {network} is none")
        named = named.with_own_loss(tile)
    if recompute is not None:
        named = named.recomputed(recompute)
    if ranks is not None:
        asked = estimate_ranks.Several(network, named, batch_size, rule, precision, accumulate, device or "cpu", ranks, zero)
        return estimate_ranks.run(asked, room, picture, as_json)
    found = _estimate(
        *(network, named, batch_size, rule, in_backward, precision, accumulate, room, device or "cpu"),
        *(lora, quantize, paged, offload),
    )
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        _show(found, Console())
    return int(found.fits is False)


def _refuse_for_torch(**ours: Any) -> None:
    """Refuse options that are for networks of tinygrad_mem."""
    for name, given in ours.items():
        if given:
            raise ArgumentError(f"--{name.replace('_', '-')} is for networks of tinygrad_mem; write it in a function")


def _refuse_for_ranks(**alone: Any) -> None:
    """Refuse options that are for one rank."""
    for name, given in alone.items():
        if given:
            raise ArgumentError(f"--{name} is for one rank: leave --ranks out")


def _is_in_backward(optimizer: str, ranks: int | None, accumulate: int, precision: str) -> bool:
    """True if the optimizer updates each parameter in backward; refused with what needs gradients after it."""
    if optimizer in IN_BACKWARD and (ranks is not None or accumulate > 1 or precision in ("autocast", "half")):
        raise ArgumentError(
            f"--optimizer {optimizer} updates each parameter in backward, so gradients are not added up, scaled or averaged: "
            "leave --ranks, --accumulate and --precision half or autocast out"
        )
    return optimizer in IN_BACKWARD


def _estimate(
    network: str,
    named: Named,
    batch_size: int,
    rule: Callable[..., Any],
    in_backward: bool,
    precision: str,
    accumulate: int,
    room: int | None,
    device: str,
    lora: int | None,
    quantize: str | None,
    paged: bool,
    offload: bool,
) -> Estimate:
    layers: list[Layer] = []
    count, trained, loss_name, host, offloaded = 0, 0, "", 0, 0
    ready, packed = (None, 0) if quantize is None else _quantized(precision, named.make, quantize)

    def steps() -> None:
        nonlocal count, trained, loss_name, host, offloaded
        step = Step(precision, "cuda", offload)  # loss scaling as on a GPU
        model = step.make(named.make) if ready is None else ready.to_empty(device=device)
        if lora is not None:
            _add_lora(model, lora)
        parameters = [p for p in model.parameters() if p.requires_grad]
        count, trained = packed + _count(model.parameters()), _count(parameters)
        layers.extend(watch(model))
        update = rule(parameters, **step.options)
        if paged:
            paged_optimizer(update)
        if in_backward:
            optimizer_in_backward(update)
        loss_name = step.train(model, update, named, batch_size, accumulate)
        if paged or offload:
            pool = tm.device(device).host(pinned=True).pool
            host, offloaded = pool.used_bytes(), pool.peak_used - pool.used_bytes()

    track = memory.predict(steps, like=device)
    account(track, layers, _last_forward(track))
    moment = track.at_peak()
    categories = {category.value: size for category, size in moment.by_category.items()}
    reserved = track.pool("end").reserved
    fits = None if room is None else moment.used <= room
    return Estimate(
        *(network, batch_size, device, layers, count, trained, categories, moment.used, reserved, moment.phase, loss_name),
        *(host, offloaded, room, fits),
    )


def _quantized(precision: str, make: Callable[[], Any], quant_type: str) -> tuple[Any, int]:
    """The model with frozen weights in codes, without memory, and how many more parameters it has than its arrays elements.

    It is made before the prediction: a program that reads weights file by file never has all of them in full.
    """
    with tm.device("meta"):
        model = Step(precision, "cpu").make(make)
        before = _count(model.parameters())
        quantize_frozen(model, quant_type)
    return model, before - _count(model.parameters())


def _count(parameters: Iterable[Any]) -> int:
    return sum(p.numel() for p in parameters)


def _add_lora(model: nn.Module, rank: int) -> None:
    """LoRA on the layers that peft chooses for models of Llama's family: query and value; on all linear layers of others."""
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    usual = next((each for each in (("q_proj", "v_proj"), ("qkv_proj",)) if set(each) <= names), "all-linear")
    add_lora(model, rank, target_modules=usual)


def _last_forward(track: memory.Track) -> int:
    """The event before the first backward, when all activations are kept."""
    line = track.timeline()
    code = line.texts.index("backward") if "backward" in line.texts else -1
    found = (line.phase == code).nonzero()[0]
    if not len(found):
        raise ArgumentError("nothing ran backward: does the network have parameters, and does its output depend on them?")
    return int(line.event[found[0]]) - 1


def _show(found: Estimate, console: Console) -> None:
    table = Table(
        title=Text(visible(f"{found.network}, batch {found.batch_size}, on {found.device}")),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
    )
    table.add_column("layer", overflow="fold")
    roomy = console.width >= _ROOMY
    if roomy:
        table.add_column("output", overflow="fold")
    table.add_column("parameters", justify="right", min_width=len(f"{found.parameters:,}"))
    rows = _alike([layer for layer in found.layers if layer.parameters or layer.kept or layer.transient])
    repeated = any(len(layers) > 1 for layers in rows)
    table.add_column("kept for backward" + ", by each" * repeated, justify="right", min_width=_digits(found, "kept"))
    table.add_column("temporary", justify="right", min_width=_digits(found, "transient"))
    for layers in rows:
        layer, count = layers[0], f"{len(layers)} times " * (len(layers) > 1)
        output = [" x ".join(map(str, layer.output))] * roomy
        formula = f"{layer.formula} = " * roomy
        parameters = f"{formula}{layer.parameters:,}" if layer.parameters else ""
        name = Text(visible(f"{count}{_name(layers) or found.network} {layer.kind}"))
        table.add_row(name, *output, parameters, f"{layer.kept:,}", f"{layer.transient:,}")
    table.add_section()
    kept = sum(layer.kept for layer in found.layers)
    table.add_row("all layers", *[""] * roomy, f"{found.parameters:,}", f"{kept:,}", "", style="bold")
    console.print(table)
    console.print(_totals(found))
    kept = found.host or sum(found.by_category.get(name, 0) for name in ("optimizer state", "master weights"))
    console.print(f"The loss is {found.loss}.")
    if found.trained != found.parameters:
        console.print(f"{found.trained:,} parameters are trained, {found.trained / found.parameters:.2%} of them.")
    console.print(f"The optimizer keeps {kept / found.trained:.3f} bytes per trained parameter.")
    if found.offloaded:
        console.print(f"The host holds {found.offloaded:,} bytes of inputs of recomputed parts until their backward.")
    if found.host:
        console.print(f"The host holds these {found.host:,} bytes; the device has those of one parameter at a time, in a step.")
    if found.budget is not None:
        left = found.budget - found.peak_used
        fits = f"fits, {left:,} bytes are left" if left >= 0 else f"does not fit: {-left:,} bytes too many"
        console.print(f"A budget of {found.budget:,} bytes: {fits}.", style="bold")


def _alike(layers: list[Layer]) -> list[list[Layer]]:
    """Layers that differ in nothing but one number of their names, such as that of a block."""
    rows: dict[tuple, list[Layer]] = {}
    for layer in layers:
        name = _NUMBER.sub("*", layer.name)
        rows.setdefault((name, layer.kind, layer.output, layer.formula, layer.kept, layer.transient), []).append(layer)
    split = [[layers] if _varying(layers) is not None else [[each] for each in layers] for layers in rows.values()]
    return [row for part in split for row in part]


def _varying(layers: list[Layer]) -> int | None:
    """The place of the one part of their names that differs; ``None`` if several do."""
    parts = [layer.name.split(".") for layer in layers]
    places = [i for i, values in enumerate(zip(*parts, strict=True)) if len(set(values)) > 1]
    return places[0] if len(places) == 1 else None


def _name(layers: list[Layer]) -> str:
    """The name that they share, with the numbers of those that there are: ``layers.0-31.norm``."""
    place = _varying(layers)
    if place is None:
        return layers[0].name
    parts = layers[0].name.split(".")
    parts[place] = in_runs(sorted(int(layer.name.split(".")[place]) for layer in layers)).replace(" ", "")
    return ".".join(parts)


def _digits(found: Estimate, what: str) -> int:
    """The width of the largest number of a column, which is not to be cut."""
    sizes = [getattr(layer, what) for layer in found.layers]
    return len(f"{max(sizes, default=0) if what == 'transient' else sum(sizes):,}")


def _totals(found: Estimate) -> Table:
    table = Table(title=f"the peak, in {found.phase} of the second step", title_justify="left", title_style="bold")
    table.add_column("")
    for unit in ("bytes", "MB (1000²)", "MiB (1024²)"):
        table.add_column(unit, justify="right", no_wrap=True)
    for name, size in sorted(found.by_category.items(), key=lambda item: -item[1]):
        table.add_row(name, *_units(size))
    table.add_section()
    table.add_row("peak used", *_units(found.peak_used), style="bold")
    table.add_row("reserved by the pool", *_units(found.peak_reserved))
    return table


def _units(size: int) -> tuple[str, str, str]:
    return f"{size:,}", f"{size / 1e6:,.2f}", f"{size / (1 << 20):,.2f}"
