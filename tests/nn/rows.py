"""One row a layer, and one an option that changes what it does: made by both frameworks, fed the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Make = Callable[[np.random.Generator], list[np.ndarray]]


@dataclass(frozen=True)
class Row:
    """Attributes: ``random`` layers are compared in eval mode only; ``tolerance`` is wider where PyTorch rounds to float32."""

    name: str
    args: tuple
    inputs: Make
    options: dict[str, Any] = field(default_factory=dict)
    random: bool = False
    tolerance: float = 1e-10

    def __str__(self) -> str:
        return f"{self.name}{self.args}{self.options or ''}".replace(" ", "")

    def make(self, nn: Any, tensor: Callable[[np.ndarray], Any], **more: Any) -> Any:
        """The layer, made by the framework whose ``nn`` this is; arrays in the options become its tensors."""
        options = {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in self.options.items()}
        return getattr(nn, self.name)(*self.args, **options, **more)


def normal(*shapes: tuple[int, ...]) -> Make:
    """Normal inputs."""
    return lambda rng: [rng.standard_normal(s) for s in shapes]


def distinct(*shape: int) -> Make:
    """All values different, so that a maximum is at one place."""
    return lambda rng: [rng.permutation(int(np.prod(shape))).reshape(shape) / 7.0]


def indices(high: int, *shape: int) -> Make:
    """Integers."""
    return lambda rng: [rng.integers(0, high, shape)]


_ROWS_OF_4 = normal((3, 4))


def _r(name: str, *args: Any, of: Make = _ROWS_OF_4, random: bool = False, **options: Any) -> Row:
    tolerance = 1e-7 if name in ("Hardsigmoid", "CELU") else 1e-10  # PyTorch holds 1 / 6 and 1 / alpha in float32
    return Row(name, args, of, options, random, tolerance)


def _probabilities(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.uniform(0.05, 0.95, (4, 3)), rng.uniform(0, 1, (4, 3))]


def _classes(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal((4, 3)), np.array([0, 2, 1, 2])]


def _sequences(rng: np.random.Generator) -> list[np.ndarray]:
    return [np.log(rng.dirichlet(np.ones(4), (6, 2))), np.array([[1, 3], [3, 1]]), np.array([6, 5]), np.array([2, 1])]


def _distribution(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal((4, 3)), rng.dirichlet(np.ones(3), 4)]


def _signed(*shapes: tuple[int, ...]) -> Make:
    """Normal inputs, and a target of 1 and -1 for each row of the first."""

    def make(rng: np.random.Generator) -> list[np.ndarray]:
        return [*(rng.standard_normal(s) for s in shapes), np.sign(rng.standard_normal(shapes[0][0]))]

    return make


def _places(*shape: int, inside: int) -> Make:
    """Values, and for each another one of ``inside`` places of its plane."""

    def make(rng: np.random.Generator) -> list[np.ndarray]:
        size = int(np.prod(shape[2:]))
        places = np.stack([rng.permutation(inside)[:size] for _ in range(shape[0] * shape[1])])
        return [rng.standard_normal(shape), places.reshape(shape)]

    return make


def _variances(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal((4, 3)), rng.standard_normal((4, 3)), rng.uniform(0.2, 2, (4, 1))]


_X1, _X2, _X3 = normal((2, 4, 9)), normal((2, 4, 6, 7)), normal((2, 4, 4, 5, 4))
_PAIR, _TRIPLE = normal((4, 5), (4, 5)), normal((4, 5), (4, 5), (4, 5))
_WEIGHT = np.array([0.5, 1.0, 2.0], np.float32)

LINEAR = [
    _r("Identity", 54, unused=1),
    _r("Linear", 4, 5),
    _r("Linear", 4, 5, bias=False, of=normal((2, 3, 4))),
    _r("Bilinear", 4, 3, 5, of=normal((2, 4), (2, 3))),
    _r("Bilinear", 4, 3, 5, bias=False, of=normal((2, 4), (2, 3))),
    _r("Flatten", of=normal((2, 3, 4))),
    _r("Flatten", 0, 1, of=normal((2, 3, 4))),
    _r("Unflatten", 1, (2, 2)),
]
CONVOLUTION = [
    _r("Conv1d", 4, 6, 3, of=_X1),
    _r("Conv1d", 4, 6, 3, stride=2, padding=1, groups=2, of=_X1),
    _r("Conv2d", 4, 6, 3, of=_X2),
    _r("Conv2d", 4, 6, (3, 2), (2, 1), (1, 0), 2, 2, False, of=_X2),
    _r("Conv2d", 4, 6, 3, padding="same", of=_X2),
    _r("Conv2d", 4, 6, (2, 3), padding="same", padding_mode="circular", of=_X2),
    _r("Conv2d", 4, 6, 3, padding=1, padding_mode="reflect", of=_X2),
    _r("Conv2d", 4, 6, 3, padding="valid", padding_mode="replicate", of=_X2),
    _r("Conv3d", 4, 2, 2, of=_X3),
    _r("ConvTranspose1d", 4, 3, 3, stride=2, output_padding=1, of=_X1),
    _r("ConvTranspose2d", 4, 6, 3, 2, 1, 1, 2, of=_X2),
    _r("ConvTranspose2d", 4, 6, 3, bias=False, dilation=2, of=_X2),
    _r("ConvTranspose3d", 4, 2, 2, stride=2, of=_X3),
    _r("Unfold", 2, 1, 1, 2, of=_X2),
    _r("Fold", (4, 5), (2, 2), of=normal((2, 8, 12))),
]
NORM = [
    _r("BatchNorm1d", 4, of=normal((5, 4))),
    _r("BatchNorm1d", 4, of=_X1),
    _r("BatchNorm2d", 4, of=_X2),
    _r("BatchNorm2d", 4, affine=False, of=_X2),
    _r("BatchNorm2d", 4, bias=False, of=_X2),
    _r("BatchNorm2d", 4, track_running_stats=False, of=_X2),
    _r("BatchNorm2d", 4, 1e-3, None, of=_X2),
    _r("BatchNorm3d", 4, momentum=0.3, of=_X3),
    _r("SyncBatchNorm", 4, of=normal((5, 4))),
    _r("SyncBatchNorm", 4, 1e-3, None, bias=False, of=_X2),
    _r("SyncBatchNorm", 4, affine=False, track_running_stats=False, of=normal((2, 4, 2, 3, 2, 2))),
    _r("InstanceNorm1d", 4, of=_X1),
    _r("InstanceNorm2d", 4, affine=True, of=_X2),
    _r("InstanceNorm2d", 4, affine=True, of=normal((4, 5, 6))),
    _r("InstanceNorm2d", 4, track_running_stats=True, of=_X2),
    _r("InstanceNorm3d", 4, of=_X3),
    _r("LayerNorm", 4),
    _r("LayerNorm", (3, 4), eps=1e-3, of=normal((2, 3, 4))),
    _r("LayerNorm", 4, bias=False),
    _r("LayerNorm", 4, elementwise_affine=False),
    _r("RMSNorm", 4),
    _r("RMSNorm", (3, 4), 1e-5, False, of=normal((2, 3, 4))),
    _r("GroupNorm", 2, 4, of=_X2),
    _r("GroupNorm", 2, 4, affine=False, of=_X1),
    _r("LocalResponseNorm", 2, of=_X2),
]
ACTIVATION = [
    *[_r(name) for name in ("Tanh", "Sigmoid", "LogSigmoid", "Softsign", "ReLU", "ReLU6", "SELU", "SiLU")],
    *[_r(name) for name in ("Mish", "Hardsigmoid", "Hardswish", "LeakyReLU", "ELU", "CELU", "GELU", "Softplus", "Hardtanh")],
    *[_r(name) for name in ("PReLU", "GLU")],
    _r("LeakyReLU", 0.3),
    _r("ELU", 0.7),
    _r("CELU", 0.7),
    _r("GELU", "tanh"),
    _r("Softplus", 2.0, 1.0),
    _r("Hardtanh", -0.5, 0.7),
    _r("PReLU", 4, 0.1),
    _r("GLU", 0, of=normal((4, 3))),
    _r("Threshold", 0.1, 20.0),
    _r("Softmax", 1),
    _r("Softmax", dim=-1),
    _r("LogSoftmax", 0),
]
POOLING = [
    _r("MaxPool1d", 2, of=distinct(2, 3, 9)),
    _r("MaxPool2d", 2, of=distinct(2, 3, 6, 7)),
    _r("MaxPool2d", 3, 2, 1, of=distinct(2, 3, 6, 7)),
    _r("MaxPool2d", (3, 2), stride=(2, 1), dilation=(1, 2), ceil_mode=True, of=distinct(2, 3, 6, 7)),
    _r("MaxPool2d", 2, return_indices=True, of=distinct(2, 3, 6, 7)),
    _r("MaxPool3d", 2, of=distinct(2, 2, 4, 5, 4)),
    _r("AvgPool1d", 2, of=_X1),
    _r("AvgPool2d", 3, 2, 1, of=_X2),
    _r("AvgPool2d", (2, 3), count_include_pad=False, padding=1, ceil_mode=True, of=_X2),
    _r("AvgPool2d", 2, divisor_override=3, of=_X2),
    _r("AvgPool3d", 2, of=_X3),
    _r("AdaptiveAvgPool1d", 4, of=_X1),
    _r("AdaptiveAvgPool2d", (1, 1), of=_X2),
    _r("AdaptiveAvgPool2d", (4, None), of=_X2),
    _r("AdaptiveAvgPool3d", 2, of=_X3),
    _r("AdaptiveMaxPool1d", 4, of=distinct(2, 3, 9)),
    _r("AdaptiveMaxPool2d", 3, of=distinct(2, 3, 6, 7)),
    _r("AdaptiveMaxPool2d", 3, True, of=distinct(2, 3, 6, 7)),
    _r("AdaptiveMaxPool3d", 2, of=distinct(2, 2, 4, 5, 4)),
    _r("MaxUnpool2d", (2, 3), of=_places(2, 3, 2, 2, inside=24)),
    _r("MaxUnpool2d", 3, 2, 1, of=_places(2, 3, 2, 3, inside=15)),
]
OTHERS = [
    _r("Dropout", 0.3, random=True),
    _r("Dropout", 0.0),
    _r("Dropout1d", 0.3, random=True, of=_X1),
    _r("Dropout2d", 0.3, random=True, of=_X2),
    _r("Dropout3d", 0.3, random=True, of=_X3),
    _r("AlphaDropout", 0.3, random=True),
    _r("Embedding", 7, 3, of=indices(7, 2, 4)),
    _r("Embedding", 7, 3, padding_idx=-2, of=indices(7, 2, 4)),
    _r("EmbeddingBag", 7, 3, of=indices(7, 2, 4)),
    _r("EmbeddingBag", 7, 3, mode="max", padding_idx=-2, of=indices(7, 2, 4)),
    _r("EmbeddingBag", 7, 3, mode="sum", max_norm=2.0, norm_type=1.0, of=indices(7, 2, 4)),
    _r("Upsample", scale_factor=2, of=_X2),
    _r("Upsample", (5, 9), mode="bilinear", of=_X2),
    _r("UpsamplingNearest2d", scale_factor=2, of=_X2),
    _r("UpsamplingBilinear2d", (8, 9), of=_X2),
    _r("ChannelShuffle", 2, of=_X2),
    _r("PixelShuffle", 2, of=_X2),
    _r("PixelUnshuffle", 2, of=normal((2, 3, 4, 6))),
    *[_r(f"ConstantPad{n}d", 2, 3.5, of=x) for n, x in ((1, _X1), (2, _X2), (3, _X3))],
    _r("ConstantPad2d", (1, 2, 0, 1), -1.0, of=_X2),
    *[_r(f"{mode}Pad{n}d", 1, of=x) for mode in ("Zero", "Reflection") for n, x in ((1, _X1), (2, _X2), (3, _X3))],
    *[_r(f"{mode}Pad{n}d", 2, of=x) for mode in ("Replication", "Circular") for n, x in ((1, _X1), (2, _X2), (3, _X3))],
    _r("ReflectionPad2d", (1, 2, 3, 0), of=_X2),
    _r("CosineSimilarity", of=_PAIR),
    _r("PairwiseDistance", keepdim=True, of=_PAIR),
]
RECURRENT = [
    *[_r(name, 4, 5, of=normal((6, 3, 4))) for name in ("RNN", "LSTM", "GRU")],
    *[_r(name, 4, 5, 2, bidirectional=True, batch_first=True, of=normal((6, 3, 4))) for name in ("RNN", "LSTM", "GRU")],
    *[_r(name, 4, 5, 3, dropout=0.3, random=True, of=normal((6, 3, 4))) for name in ("RNN", "LSTM", "GRU")],
    *[_r(name, 4, 5, bias=False, of=normal((6, 4))) for name in ("RNN", "LSTM", "GRU")],
    *[_r(name, 4, 5, 2, of=normal((6, 3, 4), (2, 3, 5))) for name in ("RNN", "GRU")],
    _r("RNN", 4, 5, 2, "relu", of=normal((6, 3, 4))),
    *[_r(name, 4, 5) for name in ("RNNCell", "LSTMCell", "GRUCell")],
    *[_r(name, 4, 5, False, of=normal((4,))) for name in ("RNNCell", "LSTMCell", "GRUCell")],
    *[_r(name, 4, 5, of=normal((3, 4), (3, 5))) for name in ("RNNCell", "GRUCell")],
    _r("RNNCell", 4, 5, nonlinearity="relu"),
]
_TOKENS = normal((5, 2, 4))
_BATCH_FIRST = {"batch_first": True}
ATTENTION = [
    _r("MultiheadAttention", 4, 2, of=normal((5, 2, 4), (6, 2, 4), (6, 2, 4))),
    _r("MultiheadAttention", 4, 2, add_bias_kv=True, add_zero_attn=True, of=normal((5, 4), (6, 4), (6, 4))),
    _r("MultiheadAttention", 4, 1, bias=False, kdim=3, vdim=5, of=normal((2, 5, 4), (2, 6, 3), (2, 6, 5)), **_BATCH_FIRST),
    _r("TransformerEncoderLayer", 4, 2, 8, 0.0, of=_TOKENS),
    _r("TransformerEncoderLayer", 4, 2, 8, norm_first=True, activation="gelu", random=True, of=_TOKENS, **_BATCH_FIRST),
    _r("TransformerDecoderLayer", 4, 2, 8, 0.0, of=normal((5, 2, 4), (3, 2, 4))),
    _r("TransformerDecoderLayer", 4, 2, 8, 0.0, norm_first=True, bias=False, of=normal((5, 4), (3, 4))),
    _r("Transformer", 4, 2, 2, 1, 8, 0.0, of=normal((5, 2, 4), (3, 2, 4))),
    _r("Transformer", 4, 2, 1, 2, 8, 0.0, "gelu", norm_first=True, of=normal((2, 5, 4), (2, 3, 4)), **_BATCH_FIRST),
]
LOSS = [
    *[_r(name, of=_PAIR) for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss")],
    _r("MSELoss", reduction="sum", of=_PAIR),
    _r("MSELoss", reduction="none", of=_PAIR),
    _r("SmoothL1Loss", beta=0.3, of=_PAIR),
    _r("HuberLoss", "sum", 0.3, of=_PAIR),
    _r("CrossEntropyLoss", of=_classes),
    _r("CrossEntropyLoss", weight=_WEIGHT, ignore_index=2, label_smoothing=0.1, of=_classes),
    _r("CrossEntropyLoss", of=_distribution),
    _r("LinearCrossEntropyLoss", 3, 5, of=_classes),
    _r("LinearCrossEntropyLoss", 3, 5, bias=True, ignore_index=2, label_smoothing=0.1, reduction="sum", of=_classes),
    _r("NLLLoss", of=_classes),
    _r("NLLLoss", weight=_WEIGHT, reduction="sum", of=_classes),
    _r("KLDivLoss", reduction="batchmean", of=_distribution),
    _r("BCELoss", of=_probabilities),
    _r("BCELoss", weight=_WEIGHT, of=_probabilities),
    _r("BCEWithLogitsLoss", of=_probabilities),
    _r("BCEWithLogitsLoss", weight=_WEIGHT, pos_weight=_WEIGHT, of=_probabilities),
    _r("CosineEmbeddingLoss", 0.2, of=_signed((4, 5), (4, 5))),
    _r("MarginRankingLoss", 0.2, of=_signed((4,), (4,))),
    _r("CTCLoss", of=_sequences),
    _r("CTCLoss", 2, "sum", True, of=_sequences),
    _r("GaussianNLLLoss", of=_variances),
    _r("GaussianNLLLoss", full=True, eps=0.5, reduction="sum", of=_variances),
    _r("TripletMarginLoss", of=_TRIPLE),
    _r("TripletMarginLoss", 0.5, 1.5, 0.1, True, of=_TRIPLE),
]
ROWS = [*LINEAR, *CONVOLUTION, *NORM, *ACTIVATION, *POOLING, *OTHERS, *RECURRENT, *ATTENTION, *LOSS]
