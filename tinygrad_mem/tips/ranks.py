"""Tips about several ranks: what one rank keeps when the others share the work. They are predicted for rank 0, not run."""

from __future__ import annotations

from functools import partial
from typing import Any

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist

from .. import nn
from ..distributed.optim import ZeroRedundancyOptimizer
from ..distributed.pipelining import PipelineStage, Schedule1F1B
from ..distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from ..distributed.zero import divided
from ..models.names import Named
from ..models.parallel import Mesh, MeshTraining, TransformerSize
from ..techniques import accumulate
from .tip import Build, Case, Scene, Tip, Training, classify

RANKS = 4
WIDTH, INNER, LAYERS, PARTS = 256, 1024, 8, 4


ADAM = partial(tm.optim.Adam, lr=1e-3)
one_rank = partial(classify, optimizer=ADAM)


def data_parallel(scene: Scene, optimizer: Any = ADAM) -> Training:
    model = nn.parallel.DistributedDataParallel(scene.model(), gradient_as_bucket_view=True)
    return classify(scene, model, batch_size=scene.batch_size // RANKS, optimizer=optimizer)


zero_1 = partial(data_parallel, optimizer=partial(ZeroRedundancyOptimizer, optimizer_class=tm.optim.Adam, lr=1e-3))


def sharded(scene: Scene, zero: int) -> Training:
    """ZeRO 2: fully_shard(each layer, reshard_after_forward=False); ZeRO 3: fully_shard(each layer)."""
    return classify(scene, divided(scene.model(), zero), batch_size=scene.batch_size // RANKS, optimizer=ADAM)


def _pair(divide: Any = lambda layer, how: layer) -> nn.Sequential:
    """A layer that widens and one that narrows. Each is divided as soon as it is made."""
    wide = divide(nn.Linear(WIDTH, INNER), ColwiseParallel())
    return nn.Sequential(wide, nn.GELU(), divide(nn.Linear(INNER, WIDTH), RowwiseParallel()))


def tensor_parallel(scene: Scene) -> Training:
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    model = _pair(lambda layer, how: parallelize_module(layer, mesh, how))
    return classify(scene, model, optimizer=ADAM)


def _blocks(count: int) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count)])


def all_layers(scene: Scene) -> Training:
    model = scene.model()
    x, y = scene.data()
    window = accumulate(model, ADAM(model.parameters()), PARTS)
    return Training(lambda: window.split(x, y, scene.loss).item(), model)


def pipeline(scene: Scene) -> Training:
    rank = dist.get_rank()
    layers = _blocks(LAYERS // RANKS)
    x, y = scene.data()
    stage = PipelineStage(layers, rank, RANKS, x.device, x[: len(x) // PARTS])
    schedule = Schedule1F1B(stage, PARTS, scene.loss)
    rule = ADAM(layers.parameters())

    def step() -> float:
        schedule.step(*[x] * stage.is_first, target=y, return_outputs=False)
        rule.step()
        rule.zero_grad()
        return 0.0

    return Training(step, layers)


GPT = TransformerSize(layers=2, width=256, heads=4, key_heads=4, inner=1024, vocabulary=512, tokens=512)


def transformer(scene: Scene, **mesh: Any) -> Training:
    """The step of a transformer over a mesh."""
    training = MeshTraining(GPT, Mesh(micro=scene.batch_size, **mesh), dtype=tm.float32)
    tokens = tm.zeros(scene.batch_size, GPT.tokens // mesh.get("context", 1), dtype=tm.int64)

    def step() -> float:
        training.step(tokens, tokens)
        return 0.0

    return Training(step, training.stages[0])


def _tip(name: str, says: str, before: Build, after: Build, scene: Scene, free: bool = False) -> Tip:
    return Tip(name, says, (Case(before, after, ranks=RANKS),), scene, free)


PAIR = Scene(Named(_pair, (WIDTH,), WIDTH), 64)
DEEP = Scene(Named(partial(_blocks, LAYERS), (WIDTH,), WIDTH), 256)
BIG = Scene(DEEP.network, 1024)
TEXTS = Scene(Named(partial(_blocks, LAYERS), (GPT.tokens,), GPT.vocabulary, tokens=GPT.vocabulary), 2)  # only the batch counts
TIPS = (
    _tip("data_parallel", "Divide the batch over 4 ranks.", one_rank, data_parallel, BIG, free=True),
    _tip("zero_1", "Shard the optimizer's state over the ranks: ZeRO 1.", data_parallel, zero_1, DEEP, free=True),
    _tip("zero_2", "Shard gradients and optimizer state over the ranks: ZeRO 2.", data_parallel,
         partial(sharded, zero=2), DEEP, free=True),
    _tip("zero_3", "Shard parameters, gradients and optimizer state: ZeRO 3.", data_parallel,
         partial(sharded, zero=3), DEEP, free=True),
    _tip("tensor_parallel", "Divide each layer's weight over the ranks.", one_rank, tensor_parallel, PAIR),
    _tip("sequence_parallel", "Divide the tokens between tensor parallel layers, too.",
         partial(transformer, tensor=RANKS, sequence=False), partial(transformer, tensor=RANKS, sequence=True), TEXTS),
    _tip("pipeline", "Give each rank some of the layers, and pass micro-batches on.", all_layers, pipeline, DEEP),
    _tip("context_parallel", "Divide each sequence over the ranks.",
         partial(transformer, data=RANKS), partial(transformer, context=RANKS), TEXTS),
)  # fmt: skip
