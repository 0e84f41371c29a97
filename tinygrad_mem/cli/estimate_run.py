"""The run that ``estimate`` predicts, and what is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tinygrad_mem as tm

from .. import memory, nn
from ..errors import ArgumentError
from ..memory.accounting import account, watch
from ..memory.unroll import NUMBER, repeated
from ..models.names import Named
from ..models.precision import Step
from ..techniques import lora as add_lora
from ..techniques import optimizer_in_backward, paged_optimizer, quantize_frozen
from .estimate_layers import Estimate
from .estimate_options import EstimateOptions


class EstimateRun:
    """Two steps of a network."""

    def __init__(self, asked: EstimateOptions, named: Named) -> None:
        self.asked, self.named = asked, named
        self._packed = 0  # how many more weights there are than codes
        self._found = Estimate(asked.network, asked.batch, asked.on, budget=asked.room)

    def estimate(self) -> Estimate:
        """Predict the step."""
        found = self._found
        track = self._from_few() or self._predict(self.named.make)
        account(track, found.layers, _last_forward(track))
        moment = track.at_peak()
        found.by_category = {category.value: size for category, size in moment.by_category.items()}
        found.peak_used, found.peak_reserved, found.phase = moment.used, track.pool("end").reserved, moment.phase
        found.fits = None if found.budget is None else track.fits(found.budget)
        return found

    def _from_few(self) -> memory.Track | None:
        """The track, from those of the same network with fewer layers; ``None`` if it does not follow from them."""
        named = self.named
        few = named.few
        if few is None or self.asked.paged or self.asked.offload:  # what the host has is not in the track
            return None
        track = repeated(lambda layers: self._predict(lambda: few(layers)), *named.depth)
        if track is not None:
            outputs = {NUMBER.sub("*", layer.name): layer.output for layer in self._found.layers}
            with tm.device("meta"):
                self._begin(self._ready(named.make) or Step(self.asked.precision, "cpu").make(named.make))
            for layer in self._found.layers:
                layer.output = outputs[NUMBER.sub("*", layer.name)]
        return track

    def _predict(self, make: Callable[[], Any]) -> memory.Track:
        return memory.predict(self._steps, make, self._ready(make), like=self.asked.on)

    def _ready(self, make: Callable[[], Any]) -> Any:
        """The model with frozen weights in codes, without memory; ``None`` if they are not quantized.

        It is made before the prediction: a program that reads weights file by file never has all of them in full.
        """
        if self.asked.quantize is None:
            return None
        with tm.device("meta"):
            model = Step(self.asked.precision, "cpu").make(make)
            before = _count(model.parameters())
            quantize_frozen(model, self.asked.quantize)
        self._packed = before - _count(model.parameters())
        self._found.stacked = _count(p for p in model.parameters() if p.ndim == 3)
        return model

    def _begin(self, model: nn.Module) -> list[Any]:
        """Add LoRA, and look at the model. Returns the parameters to train."""
        if self.asked.lora is not None:  # as peft chooses for models of Llama's family: query and value
            names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
            usual = next((each for each in (("q_proj", "v_proj"), ("qkv_proj",)) if set(each) <= names), "all-linear")
            add_lora(model, self.asked.lora, target_modules=usual)
        trained = [p for p in model.parameters() if p.requires_grad]
        self._found.layers, self._found.trained = watch(model), _count(trained)
        self._found.parameters = self._packed + _count(model.parameters())
        return trained

    def _steps(self, make: Callable[[], Any], ready: Any) -> None:
        step = Step(self.asked.precision, "cuda", self.asked.offload)  # loss scaling as on a GPU
        model = step.make(make) if ready is None else ready.to_empty(device=self.asked.on)
        update = self.asked.rule(self._begin(model), **step.options)
        if self.asked.paged:
            paged_optimizer(update)
        if self.asked.in_backward:
            optimizer_in_backward(update)
        self._found.loss = step.train(model, update, self.named, self.asked.batch, self.asked.accumulate)
        if self.asked.paged or self.asked.offload:
            pool = tm.device(self.asked.on).host(pinned=True).pool
            self._found.host, self._found.offloaded = pool.used_bytes(), pool.peak_used - pool.used_bytes()


def _count(parameters: Iterable[Any]) -> int:
    return sum(p.numel() for p in parameters)


def _last_forward(track: memory.Track) -> int:
    """The event before the first backward, when all activations are kept."""
    line = track.timeline()
    code = line.texts.index("backward") if "backward" in line.texts else -1
    found = (line.phase == code).nonzero()[0]
    if not len(found):
        raise ArgumentError("nothing ran backward: does the network have parameters, and does its output depend on them?")
    return int(line.event[found[0]]) - 1
