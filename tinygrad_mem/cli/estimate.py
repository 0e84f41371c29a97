"""``python -m tinygrad_mem estimate``: the memory of a training step, layer by layer, without running it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console

import tinygrad_mem as tm

from .. import memory, nn
from ..errors import ArgumentError
from ..memory.accounting import Layer, account, watch
from ..models.names import Named
from ..models.precision import Step
from ..techniques import lora as add_lora
from ..techniques import optimizer_in_backward, paged_optimizer, quantize_frozen
from . import estimate_mesh, estimate_ranks, estimate_torch
from .estimate_layers import Estimate, show
from .estimate_options import EstimateOptions
from .networks import network_of
from .torch_programs import Asked
from .users import is_torch


def run(**options: Any) -> int:
    """Estimate and print. Returns 1 if the peak exceeds the budget, or what ``--gpu`` has, else 0.

    Args:
        options: see :class:`~.estimate_options.EstimateOptions`.

    Raises:
        ArgumentError: no such network, no such size, a class that fails, a network without chains of blocks to recompute.
        DeviceError: ``device`` is neither ``cpu`` nor ``cuda``, or CuPy is not installed, which ``cuda`` needs.
    """
    asked = EstimateOptions(**options)
    if is_torch(asked.network):
        return _of_torch(asked)
    asked.check()
    room = asked.room
    if asked.ranks is not None and estimate_mesh.is_meant(asked):
        return estimate_mesh.run(asked, asked.ranks, room)
    named = _network(asked)
    if asked.ranks is not None:
        return estimate_ranks.run(asked, named, asked.ranks, room)
    found = _estimate(asked, named, room)
    if asked.as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show(found, Console(), asked.layers)
    return int(found.fits is False)


def _of_torch(asked: EstimateOptions) -> int:
    asked.check_torch()
    program = Asked(
        network=asked.network,
        sample=asked.sample,
        tokens=asked.tokens,
        batch_size=asked.batch_size,
        optimizer=asked.optimizer,
        precision=asked.precision,
        accumulate=asked.accumulate,
        lora=asked.lora,
        checkpoint=asked.checkpoint,
        device=asked.device or "cuda",
        place=(asked.rank, asked.ranks or 1) if asked.rank or asked.ranks else None,
    )
    return estimate_torch.run(program, asked.budget, asked.gpu, asked.advise, asked.as_json)


def _network(asked: EstimateOptions) -> Named:
    """The network, some tokens at a time and recomputed as asked."""
    named = network_of(asked.network, asked.sample, asked.tokens)
    if asked.tile is not None:
        if not named.tiles:
            raise ArgumentError(f"--tile is for models such as llama-3.1-8b, or of a config.json, and {asked.network} is none")
        named = named.with_own_loss(asked.tile)
    return named if asked.recompute is None else named.recomputed(asked.recompute)


def _estimate(asked: EstimateOptions, named: Named, room: int | None) -> Estimate:
    layers: list[Layer] = []
    count, trained, loss_name, host, offloaded = 0, 0, "", 0, 0
    ready, packed = (None, 0) if asked.quantize is None else _quantized(asked.precision, named.make, asked.quantize)

    def steps() -> None:
        nonlocal count, trained, loss_name, host, offloaded
        step = Step(asked.precision, "cuda", asked.offload)  # loss scaling as on a GPU
        model = step.make(named.make) if ready is None else ready.to_empty(device=asked.on)
        if asked.lora is not None:
            _add_lora(model, asked.lora)
        parameters = [p for p in model.parameters() if p.requires_grad]
        count, trained = packed + _count(model.parameters()), _count(parameters)
        layers.extend(watch(model))
        update = asked.rule(parameters, **step.options)
        if asked.paged:
            paged_optimizer(update)
        if asked.in_backward:
            optimizer_in_backward(update)
        loss_name = step.train(model, update, named, asked.batch_size, asked.accumulate)
        if asked.paged or asked.offload:
            pool = tm.device(asked.on).host(pinned=True).pool
            host, offloaded = pool.used_bytes(), pool.peak_used - pool.used_bytes()

    track = memory.predict(steps, like=asked.on)
    account(track, layers, _last_forward(track))
    moment = track.at_peak()
    categories = {category.value: size for category, size in moment.by_category.items()}
    reserved = track.pool("end").reserved
    return Estimate(
        network=asked.network,
        batch_size=asked.batch_size,
        device=asked.on,
        layers=layers,
        parameters=count,
        trained=trained,
        by_category=categories,
        peak_used=moment.used,
        peak_reserved=reserved,
        phase=moment.phase,
        loss=loss_name,
        host=host,
        offloaded=offloaded,
        budget=room,
        fits=None if room is None else moment.used <= room,
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
