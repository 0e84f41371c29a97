"""Every tip's bytes, held to a formula of its network's sizes, with two sides. They are those of a run on ``meta``, which
``test_run.py`` holds to the cpu's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, recompute
from tinygrad_mem.devices import round_up
from tinygrad_mem.models.vgg import CONVOLUTIONS
from tinygrad_mem.tips import TIPS, Scene, precision, sequences
from tinygrad_mem.tips.measure import prediction_of
from tinygrad_mem.tips.recompute import F
from tinygrad_mem.tips.tip import SlimVGG

CASES = [(tip.name, case.when) for tip in TIPS.values() for case in tip.cases]
FLOAT = 4


@cache
def compared(name: str, when: str) -> memory.Comparison:
    tip = TIPS[name]
    (case,) = [case for case in tip.cases if case.when == when]
    before, after = (prediction_of(build, tip.scene, ranks=case.ranks) for build in (case.before, case.after))
    return before.compare(after)


def sizes(scene: Scene, itemsize: int = FLOAT) -> list[int]:
    """Bytes of each of the network's parameters, as the pool rounds them."""
    with tm.device("meta"):
        return [round_up(p.numel() * itemsize) for p in scene.model().parameters()]


def kept_in_four_bits() -> int:
    """Bytes of two moments of half a byte, and of the scales of blocks, of rows and of columns; of biases in float32."""
    scales = [round_up(FLOAT * -(-n * m // 128)) + round_up(FLOAT * (n + m)) for n, m in MATRICES]
    return sum(2 * round_up(n * m // 2) for n, m in MATRICES) + sum(scales) + _MOMENTS


def kept_by_muon(matrices: list[tuple[int, int]]) -> int:
    """Bytes in a step: matrices, gradients, momentum; Adam's moments of biases; the first matrix's workspace; a batch."""
    weights = sum(round_up(FLOAT * n * m) for n, m in matrices)
    biases = sum(round_up(FLOAT * n) for n, _ in matrices)
    n, m = matrices[0]
    work = FLOAT * (n * m + n * max(n, min(m, 1024)) + n * n + 1)
    return 3 * weights + 4 * biases + round_up(work) + 64 * 784 * FLOAT + 2 * 512  # of the batch also targets; the loss


def maps(batch: int = 16, side: int = 64, divide: int = 4) -> list[int]:
    """Bytes of the result of each convolution of the slim VGG16."""
    return [batch * width // divide * (side >> i) ** 2 * FLOAT for i, stage in enumerate(CONVOLUTIONS[16]) for width in stage]


def lines(last: bool) -> tuple[int, int, int]:
    """Characters of the longest line, of all lines, and places of the batch padded to the data's longest."""
    scene = sequences.CHARACTERS
    batches = sequences._lines(scene)
    lengths = [len(line) for line in batches[-1 if last else 0]]
    longest = max(len(line) for batch in batches[: None if last else -1] for line in batch)
    return longest, sum(lengths), scene.batch_size * scene.network.sample[0]


MLP, P = TIPS["sgd"].scene, sizes(TIPS["sgd"].scene)
MATRICES, VECTORS = [(512, 784), (512, 512), (10, 512)], [512, 512, 10]
ROWS = sum(round_up(FLOAT * size) for size in (*VECTORS, 1, 1, 1))  # Adam-mini's mean squares: of each row, and of each vector
_MOMENTS = 2 * sum(round_up(FLOAT * size) for size in VECTORS)  # Adam's, of the vectors
GALORE = sum(FLOAT * 16 * (n + 2 * m) for n, m in MATRICES[:2]) + 2 * FLOAT * 10 * 512 + _MOMENTS
GALORE += 2 * FLOAT * 16 * 784 + FLOAT * (512 * 512 + 512 + 512 * 784)  # the workspace of the first layer's step, with its SVD
APOLLO = sum(2 * round_up(FLOAT * m) + 512 for _, m in MATRICES) + _MOMENTS
GELUS = 1024 * 512 * FLOAT  # the inside of an MLP: of each token before and after GELU
THIN = 8 * (784 + 512 + 512 + 512) * FLOAT  # LoRA's matrices beside the first two layers
SCALES = 784 * 512 // 64  # of the first layer in 4 bits; at the peak it exists in both forms, and its scales in three
BOTH_FORMS = sum(map(round_up, (784 * 512 // 2, SCALES, 4 * SCALES, 4 * SCALES, 4 * -(-SCALES // 256), 4)))
MAPS = maps()
ALL_RESULTS = 2 * sum(MAPS) + sum(m // 4 for m in maps()[1:13:3])  # convolutions', norms'; pools' are less than a quarter
ROW, COLUMN = 512, 4000  # of the logits
LOGITS = ROW * COLUMN * FLOAT
SCORES = 4 * 4 * 256 * 256 * FLOAT
FIRST = 32 * 16 * 64 * 64 * FLOAT  # the first map of ``downsample``; pooling keeps a byte an index of it beside it
LAYER = 256 * 64 * FLOAT  # of the hundred
SKIPS = sum(8 * (8 << i) * (64 >> i) ** 2 * FLOAT for i in range(4))
BLOCK = 32 * 16 * 32 * 32 * FLOAT  # the map of a reversible block, and of ResNet-20's first stage

SHORT = lines(False)[0] / 64  # of the first batch's padding, what its longest line needs
FULL = lines(True)[1] / lines(True)[2]  # of the last batch's places, those with a character

Side = Callable[[memory.Comparison], bool]


def change(name: str, low: float, high: float) -> Side:
    return lambda found: low <= getattr(found, name).change <= high


def exactly(name: str, size: int) -> Side:
    return change(name, size, size)


def exactly_after(name: str, size: int) -> Side:
    return after(name, size, size)


def ratio(name: str, low: float, high: float) -> Side:
    return lambda found: low <= getattr(found, name).after / getattr(found, name).before <= high


def after(name: str, low: float, high: float) -> Side:
    return lambda found: low <= getattr(found, name).after <= high


NOTHING: list[Side] = [exactly("peak", 0), exactly("saved", 0)]


def _least() -> int:
    """What the best schedule needs, with parameters, momentum and the batch beside it."""
    scene = TIPS["optimal_checkpoints"].scene
    with tm.device("meta"):
        model: Any = scene.model()
        chain = tm.nn.Sequential(*model.features, tm.nn.AdaptiveAvgPool2d(1), tm.nn.Flatten(), model.classifier)
        x = scene.data()[0]
        costs = recompute.profile(chain, x, lambda y: F.cross_entropy(y, tm.randint(0, 10, (len(y),))))
    return recompute.front(costs.stages)[0][0] + 2 * sum(sizes(scene)) + x.nbytes


FORMULAS: dict[tuple[str, str], list[Side]] = {
    ("inplace_activation", "training"): NOTHING,
    ("inplace_activation", "inference"): NOTHING,
    ("inplace_operators", "training"): NOTHING,
    ("inplace_operators", "inference"): NOTHING,
    ("one_name", "training"): NOTHING,
    ("one_name", "inference"): [change("peak", -ALL_RESULTS, -ALL_RESULTS + 3 * max(MAPS)), exactly("saved", 0)],
    ("del", "no op saved it"): [change("peak", -2 * MAPS[0], -2 * MAPS[0] + 4096), exactly("saved", 0)],
    ("del", "backward needs it"): NOTHING,
    ("inplace", ""): [change("saved", -sum(MAPS) - 13 * 1024, -sum(MAPS)), change("peak", -sum(MAPS), -0.9 * sum(MAPS))],
    ("offload", ""): [after("saved", BLOCK, 1.1 * BLOCK), change("peak", -24 * BLOCK, -19 * BLOCK)],
    ("compression", ""): [ratio("saved", 0.25, 0.28), ratio("peak", 0.25, 0.5)],
    ("restart", "a name still holds the old training"): [  # parameters, gradients and momentum; images and labels
        exactly("peak", -(3 * sum(P) + 64 * 784 * FLOAT + 512)),
        exactly("saved", 0),
    ],
    ("restart", "no name holds it"): NOTHING,
    ("more_dropout", ""): NOTHING,
    ("pretrained", ""): [change("peak", -sum(P), -sum(P) + 3 * 64 * 784 * FLOAT), exactly("saved", 0)],  # more: inference
    ("item", "after backward"): [exactly("peak", -512), exactly("saved", 0)],
    ("item", "losses without a backward"): [ratio("saved", 0.249, 0.251), ratio("peak", 0.25, 0.27)],
    ("detach", ""): [ratio("saved", 0.249, 0.251), ratio("peak", 0.25, 0.27)],
    ("eval", ""): NOTHING,
    ("no_grad", ""): [after("saved", 0, 0), change("saved", -2.2 * sum(MAPS), -2 * sum(MAPS))],
    ("gc_collect", "a plain step"): NOTHING,
    ("gc_collect", "your own code makes cycles"): [exactly("peak", -3 * 8 * 64 * 784 * FLOAT), exactly("saved", 0)],
    ("empty_cache", ""): NOTHING,
    ("smaller_batch", ""): [ratio("saved", 0.5, 0.501), ratio("peak", 0.5, 0.56)],
    ("smaller_images", ""): [ratio("saved", 0.25, 0.252), ratio("peak", 0.25, 0.31)],
    ("split_batch", "losses summed, one backward"): [ratio("saved", 1, 1.001), ratio("peak", 0.98, 1)],
    ("split_batch", "a backward for each part"): [ratio("saved", 0.25, 0.252), ratio("peak", 0.5, 0.6)],
    ("accumulation", ""): [ratio("saved", 0.25, 0.252), ratio("peak", 0.5, 0.6)],
    ("fewer_channels", ""): [ratio("saved", 0.5, 0.502), ratio("peak", 0.25, 0.5)],
    ("no_norm", ""): [change("saved", -sum(MAPS) - 26 * 1024, -sum(MAPS)), change("peak", -sum(MAPS), -0.9 * sum(MAPS))],
    ("no_long_skips", ""): [exactly("saved", -SKIPS), change("peak", -1.25 * SKIPS, -SKIPS)],
    ("downsample", "pooling"): [ratio("saved", 0.4, 0.41), ratio("peak", 0.4, 0.42)],
    ("downsample", "a strided convolution"): [ratio("saved", 0.25, 0.252), ratio("peak", 0.25, 0.31)],
    ("downsample", "a stride instead of pooling"): [
        exactly("saved", -FIRST - FIRST // 16),
        exactly("peak", -FIRST - FIRST // 16),
    ],
    ("dropout", ""): [exactly("saved", -6 * 512 * 256 * FLOAT), exactly("peak", -6 * 512 * 256 * FLOAT)],
    ("checkpoint", ""): [ratio("saved", 1 / 3, 1 / 2), ratio("peak", 1 / 2, 2 / 3)],
    ("checkpoint_sequential", ""): [after("saved", 18 * LAYER, 20 * LAYER), change("saved", -82 * LAYER, -80 * LAYER)],
    ("optimal_checkpoints", ""): [lambda found: 0 <= found.peak.after - _least() <= 1 << 16, ratio("peak", 0.8, 0.9)],
    ("reversible", ""): [after("saved", 2 * BLOCK, 3 * BLOCK), ratio("peak", 0.2, 0.25)],
    ("half", ""): [ratio("saved", 0.5, 0.52), ratio("peak", 0.5, 0.75)],
    ("autocast", "activations outweigh parameters"): [ratio("saved", 0.5, 0.54), ratio("peak", 0.75, 0.95)],
    ("autocast", "parameters outweigh activations"): [change("peak", 2 * 3072 * 512 - 4 * 16 * 512, 2 * 3072 * 512)],
    ("master_weights", ""): [exactly("peak", sum(sizes(precision.SMALL))), exactly("saved", 0)],
    ("static_loss_scale", ""): [exactly("peak", 512), exactly("saved", 0)],
    ("dynamic_loss_scale", ""): [exactly("peak", 512), exactly("saved", 0)],
    ("float32_sums", ""): [exactly("peak", 0), exactly("saved", 0)],
    ("momentum", ""): [exactly("peak", -sum(P)), exactly("saved", 0)],
    ("sgd", ""): [exactly("peak", -2 * sum(P)), exactly("saved", 0)],
    ("half_states", ""): [exactly("peak", -2 * sum(P) + 2 * sum(sizes(MLP, 2))), exactly("saved", 0)],
    ("eight_bit", ""): [change("peak", -1.5 * sum(P), -1.49 * sum(P)), exactly("saved", 0)],
    ("adafactor", ""): [change("peak", -2 * sum(P), -1.99 * sum(P)), exactly("saved", 0)],
    ("four_bit", ""): [exactly("peak", kept_in_four_bits() - 2 * sum(P)), exactly("saved", 0)],
    ("lion", ""): [exactly("peak", -sum(P)), exactly("saved", 0)],
    ("adam_mini", ""): [exactly("peak", -sum(P) + ROWS), exactly("saved", 0)],
    ("galore", ""): [change("peak", GALORE - 2 * sum(P) - 2 * 64 * 512 * FLOAT, GALORE - 2 * sum(P)), exactly("saved", 0)],
    ("muon", "two matrices are most of the network"): [exactly_after("peak", kept_by_muon(MATRICES)), exactly("saved", 0)],
    ("muon", "of many matrices"): [
        exactly_after("peak", kept_by_muon([(256, 784), *[(256, 256)] * 12])),
        exactly("saved", 0),
    ],
    ("apollo_mini", ""): [exactly("peak", APOLLO - 2 * sum(P)), exactly("saved", 0)],
    ("adalomo", ""): [change("peak", -3 * sum(P) + max(P), -3 * sum(P) + max(P) + 32768), exactly("saved", 0)],
    ("lora", ""): [change("peak", -3 * sum(P) + 4 * THIN, -2.7 * sum(P)), exactly("saved", 2 * 64 * 8 * FLOAT)],
    ("paged", ""): [
        after("peak", 2 * sum(P) + 2 * max(P) + 64 * 784 * FLOAT + 1024, 2 * sum(P) + 2 * max(P) + 64 * 784 * FLOAT + 1024),
        exactly("saved", 0),
    ],
    ("quantized", ""): [after("peak", sum(P) + BOTH_FORMS, sum(P) + BOTH_FORMS), exactly("saved", 0)],
    ("in_backward", ""): [change("peak", -sum(P) + max(P), -sum(P) + max(P) + 4096), exactly("saved", 0)],
    ("zero_grad", "before forward"): [change("peak", -sum(P), -max(P)), exactly("saved", 0)],
    ("zero_grad", "between forward and backward"): [change("peak", -sum(P), -sum(P) / 2), exactly("saved", 0)],
    ("dynamic_padding", "the batch is short"): [
        ratio("saved", SHORT * 0.99, SHORT * 1.01),
        ratio("peak", SHORT, (1 + SHORT) / 2),
    ],
    ("dynamic_padding", "the longest is in it"): [exactly("saved", 0), change("peak", -2 * 16 * 64 * 8 * 2, 0)],
    ("packed_sequences", ""): [ratio("saved", FULL, 1.05 * FULL), ratio("peak", FULL, (1 + FULL) / 2)],
    ("selection", ""): [
        change("temporary", -1.6 * LOGITS, -1.59 * LOGITS),
        change("saved", -0.8 * LOGITS, -0.79 * LOGITS),
        change("peak", -1.6 * LOGITS, -1.59 * LOGITS),
    ],
    ("tiled", ""): [exactly("saved", -4 * GELUS), change("peak", -4 * GELUS, -4 * GELUS + 1024 * 64 * FLOAT)],
    ("chunking", ""): [
        change("temporary", -2 * LOGITS, -1.75 * LOGITS),
        change("saved", -LOGITS, -0.98 * LOGITS),
        change("peak", -2 * LOGITS, -1.75 * LOGITS),
    ],
    ("attention", ""): [change("saved", -2 * SCORES, -1.85 * SCORES), ratio("peak", 0.2, 0.25)],
    ("generators", ""): [
        change("peak", -23 * (64 * 784 * FLOAT + 512) - 1024, -23 * (64 * 784 * FLOAT + 512)),
        exactly("saved", 0),
    ],
    ("streaming", "a mapped file"): [exactly("peak", -4_000_000 * 8), exactly("saved", 0)],
    ("streaming", "a stream"): [exactly("peak", -4_000_000 * 8), exactly("saved", 0)],
    ("bigger_gpu", "how much bigger"): [ratio("saved", 1.998, 2), ratio("peak", 1.85, 2)],
    ("bigger_gpu", "the planner's smallest step instead"): [ratio("saved", 1 / 2, 2 / 3), ratio("peak", 1 / 2, 2 / 3)],
}


_WIDE = (512 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 - 128 * 10) * FLOAT  # what the head has more
_HIDDEN = 16 * 1024 * FLOAT  # the result of one of its hidden layers
FORMULAS["global_pooling", ""] = [
    change("peak", -3 * _WIDE - 4096, -3 * _WIDE + 4096),  # parameters, gradients, momentum
    change("saved", -3 * _HIDDEN, -2 * _HIDDEN),
]

# --- one of 4 ranks: what is divided shrinks by 3/4

_WEIGHT, _BIAS = 256 * 256 * FLOAT, 256 * FLOAT
_DEEP = 8 * (_WEIGHT + _BIAS)  # the parameters of eight layers
_ROWS = _DEEP - 8 * (_WEIGHT // 4 + 512)  # what a rank has less of them: 64 of 256 numbers of a bias take a block of 512
_BATCH = 1024 * 256 * FLOAT  # a result of a layer, and the input
_RESULT = 64 * 256 * FLOAT  # of a smaller batch, or of a micro-batch
_TOKENS = 2 * 512  # of two sequences
_PAIR = 256 * 1024 * FLOAT  # the weight of a layer that widens or narrows
FORMULAS |= {
    ("data_parallel", ""): [  # less: 18 results, 4-byte sums and 8-byte targets of samples; more: the buckets
        exactly("peak", _DEEP - 3 * (18 * _BATCH + 1024 * 12) // 4),
        exactly("saved", -3 * (16 * _BATCH + 1024 * 4) // 4),
    ],
    ("zero_1", ""): [exactly("peak", -3 * 2 * _DEEP // 4), exactly("saved", 0)],  # Adam's two moments
    ("zero_2", ""): [
        exactly("peak", -3 * _ROWS),
        exactly("saved", 0),
    ],  # moments and parameters; the whole ones replace buckets
    ("zero_3", ""): [  # as ZeRO 2; three layers are there instead of eight, one layer later, with the rows of its gradients
        exactly("peak", -3 * _ROWS - 5 * (_WEIGHT + _BIAS) - 2 * _RESULT + _WEIGHT // 4 + 512),
        exactly("saved", 0),
    ],
    ("tensor_parallel", ""): [  # parameters, moments and gradients but for the last bias; the result between the layers
        exactly("peak", -3 * (3 * (2 * _PAIR + 4096) + 2 * _PAIR + 4096 + 4 * _RESULT) // 4),
        exactly("saved", -3 * 2 * 4 * _RESULT // 4),
    ],
    ("sequence_parallel", ""): [  # inputs: of norms, of their layers and of GELU's; 8 bytes of each norm's statistics
        exactly("saved", -3 * _TOKENS * (2 * 16 * 256 + 2 * FLOAT * 256 + 5 * 8) // 4),
        ratio("peak", 0.7, 0.72),
    ],
    ("pipeline", ""): [  # parameters, gradients, moments; 6 results of a micro-batch, 3 numbers of the loss
        exactly("peak", -3 * 4 * _DEEP // 4 - 6 * _RESULT - 3 * 512),
        exactly("saved", -4 * _RESULT - 1024),
    ],
    ("context_parallel", ""): [ratio("saved", 0.25, 0.2502), ratio("peak", 0.57, 0.59)],
}


def test_every_case_has_a_formula():
    assert set(FORMULAS) == set(CASES)
    assert len(CASES) == len(set(CASES))


@pytest.mark.parametrize(("name", "when"), CASES)
def test_the_bytes_are_those_of_the_formula(name: str, when: str):
    found = compared(name, when)
    for number, holds in enumerate(FORMULAS[name, when]):
        assert holds(found), f"formula {number} of {name}, {when}:\n{found.peak}\n{found.saved}\n{found.temporary}"


@pytest.mark.parametrize(("name", "when"), [("sgd", ""), ("no_norm", ""), ("checkpoint_sequential", ""), ("zero_3", "")])
def test_a_formula_can_fail(name: str, when: str):
    """The same formulas of a comparison the other way round."""
    tip = TIPS[name]
    (case,) = [case for case in tip.cases if case.when == when]
    turned = prediction_of(case.after, tip.scene, ranks=case.ranks).compare(
        prediction_of(case.before, tip.scene, ranks=case.ranks)
    )
    assert not all(holds(turned) for holds in FORMULAS[name, when])


def test_the_slim_vgg_is_vgg16_with_fewer_channels():
    with tm.device("meta"):
        model = SlimVGG(divide=1)
    from tinygrad_mem.models.vgg import CifarVGG

    with tm.device("meta"):
        known = CifarVGG()
    assert [p.shape for p in model.features.parameters()] == [p.shape for p in known.features.parameters()]
