"""What hypothesis draws for each layer: a strategy for every option of its constructor, and the inputs that go with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

flag, factor = st.booleans(), st.sampled_from([0.1, 0.5, 1.0])
eps = st.sampled_from([1e-5, 1e-3, 0.5])
reduction = st.sampled_from(["none", "mean", "sum"])
words = {"size_average": st.sampled_from([None, True, False]), "reduce": st.sampled_from([None, True, False])}
probability = st.sampled_from([0.0, 1.0])  # the others are random: test_dropout compares distributions
Inputs = Callable[[Any, dict[str, Any], np.random.Generator], list[np.ndarray]]


class Drawn(NamedTuple):
    """Attributes: ``options`` by name; ``inputs(draw, options, rng)``; ``targets`` of the last inputs take no gradient."""

    options: dict[str, Any]
    inputs: Inputs
    targets: int = 0


def each(n: int, low: int, high: int) -> Any:
    """One number, or one an axis."""
    number = st.integers(low, high)
    return number | st.tuples(*[number] * n)


def image(n: int, channels: int | None, low: int = 4, high: int = 7, ties: bool = False) -> Inputs:
    """(N, C, ...) with n spatial axes, or without N."""

    def make(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
        c = draw(st.integers(1, 4)) if channels is None else channels
        lead = draw(st.sampled_from([(1, c), (2, c), (c,)]))
        shape = (*lead, *[draw(st.integers(low, high)) for _ in range(n)])
        return [rng.standard_normal(shape) if ties else rng.permutation(int(np.prod(shape))).reshape(shape) / 31.0 - 1.0]

    return make


def of(*shapes: tuple[int, ...]) -> Inputs:
    """One of these shapes, normal."""
    return lambda draw, options, rng: [rng.standard_normal(draw(st.sampled_from(shapes))) * 2]


def _bags(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
    """Indices of bags of one length, or flat ones and where bags start; int64 or int32."""
    kind = draw(st.sampled_from([np.int64, np.int32]))
    if draw(flag):
        return [rng.integers(0, 5, draw(st.sampled_from([(3, 2), (1, 5)]))).astype(kind)]
    marks = sorted(draw(st.lists(st.integers(0, 6), max_size=4)))
    return [rng.integers(0, 5, 6).astype(kind), np.array([0, *marks, *[6] * options["include_last_offset"]], kind)]


def same(count: int, *shapes: tuple[int, ...]) -> Inputs:
    """Several arrays of one of these shapes."""

    def make(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
        shape = draw(st.sampled_from(shapes))
        return [rng.standard_normal(shape) for _ in range(count)]

    return make


def signed(count: int, *shapes: tuple[int, ...], rows: bool = False) -> Inputs:
    """The same, and a target of 1 and -1 for each entry, or for each row."""

    def make(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
        arrays = same(count, *shapes)(draw, options, rng)
        shape = arrays[0].shape[:1] if rows else arrays[0].shape
        return [*arrays, np.where(rng.random(shape) < 0.5, -1.0, 1.0)]

    return make


anything = of((3, 4), (2, 3, 4), (4,), (0, 4), (1, 1))


def _elementwise(inplace: bool = False, **options: Any) -> Drawn:
    return Drawn({**options, **({"inplace": flag} if inplace else {})}, anything)


def _conv(n: int) -> Drawn:
    options = {
        "in_channels": st.just(4),
        "out_channels": st.sampled_from([2, 4]),
        "kernel_size": each(n, 1, 3),
        "stride": each(n, 1, 2),
        "padding": each(n, 0, 2) | st.sampled_from(["same", "valid"]),
        "dilation": each(n, 1, 2),
        "groups": st.sampled_from([1, 2]),
        "bias": flag,
        "padding_mode": st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    }
    return Drawn(options, image(n, 4, 5))


def _transposed(n: int) -> Drawn:
    options = {**_conv(n).options, "padding": each(n, 0, 1), "output_padding": each(n, 0, 1), "padding_mode": st.just("zeros")}
    return Drawn(options, image(n, 4, 3, 5))


def _norm(n: int, **more: Any) -> Drawn:
    options = {"num_features": st.just(3), "eps": eps, "momentum": factor | st.none(), "affine": flag, "bias": flag}
    return Drawn({**options, "track_running_stats": flag, **more}, image(n, 3))


_MAX = ("kernel_size", "stride", "padding", "dilation")


def _pool(n: int, *names: str, **more: Any) -> Drawn:
    sizes = {"kernel_size": each(n, 1, 3), "stride": each(n, 1, 3) | st.none(), "padding": each(n, 0, 1)}
    sizes["dilation"] = each(n, 1, 2)
    return Drawn({**{k: sizes[k] for k in names}, **more}, image(n, None, 5))


def _unpooled(n: int) -> Drawn:
    def make(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
        shape = (2, 3, *[draw(st.integers(3, 4)) for _ in range(n)])
        return [
            rng.standard_normal(shape),
            np.stack([rng.permutation(int(np.prod(shape[2:]))) for _ in range(6)]).reshape(shape),
        ]

    return Drawn({"kernel_size": st.integers(2, 3), "stride": st.just(2) | st.none(), "padding": st.integers(0, 1)}, make)


def _adaptive(n: int, **more: Any) -> Drawn:
    size = st.integers(1, 4)
    return Drawn({"output_size": size | st.tuples(*[size | st.none() if n > 1 else size] * n), **more}, image(n, None))


def _pad(n: int, **more: Any) -> Drawn:
    return Drawn({"padding": st.integers(0, 3) | st.tuples(*[st.integers(0, 3)] * (2 * n)), **more}, image(n, None))


def _classes(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
    rest = draw(st.sampled_from([(), (2,), (2, 3)]))
    return [rng.standard_normal((4, 3, *rest)), rng.integers(0, 3, (4, *rest))]


def _sequences(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
    lengths = [np.array(draw(st.tuples(*[st.integers(low, high)] * 2))) for low, high in ((4, 6), (0, 2))]
    return [np.log(rng.dirichlet(np.ones(4), (6, 2))), rng.integers(1, 3, (2, 2)), *lengths]


def _probabilities(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.uniform(0.05, 0.95, (4, 3)), rng.uniform(0, 1, (4, 3))]


def _positive(*shapes: tuple[int, ...]) -> Inputs:
    return lambda draw, options, rng: [rng.uniform(0.5, 3, s) for s in shapes]


def _query_key_value(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
    """A batch, or one sequence; keys and values of the widths that the layer was told."""
    lead = draw(st.sampled_from([(2,), ()]))
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    widths = (4, options["kdim"] or 4, options["vdim"] or 4)
    shapes = [
        (*lead, n, w) if options["batch_first"] else (n, *lead, w)
        for n, w in zip((rows, columns, columns), widths, strict=True)
    ]
    return [rng.standard_normal(s) for s in shapes]


_BLOCK = {
    "d_model": st.just(4),
    "nhead": st.sampled_from([1, 2, 4]),
    "dim_feedforward": st.integers(1, 6),
    "dropout": probability,
    "activation": st.sampled_from(["relu", "gelu"]),
    "layer_norm_eps": eps,
    "batch_first": flag,
    "norm_first": flag,
    "bias": flag,
}
_WEIGHT = st.none() | st.just(np.array([0.5, 1.0, 2.0]))
_PAIRS = same(2, (4, 5), (5,), (2, 3, 4))
_LOSS = {**words, "reduction": reduction}
_MARGIN = {"margin": st.sampled_from([0.0, 0.3])}
_DROP = {"p": probability, "inplace": flag}


def _recurrent(name: str) -> Drawn:
    def make(draw: Any, options: dict, rng: np.random.Generator) -> list[np.ndarray]:
        x = rng.standard_normal((*draw(st.sampled_from([(5, 3), (1, 2), (3, 1), (6,)])), 4))
        if name == "LSTM" or not draw(flag):  # its states are a pair: tests/nn/test_rnn.py
            return [x]
        count = options["num_layers"] * (1 + options["bidirectional"])
        batch = () if x.ndim == 2 else (x.shape[0 if options["batch_first"] else 1],)
        return [x, rng.standard_normal((count, *batch, options["hidden_size"]))]

    options = {
        "input_size": st.just(4),
        "hidden_size": st.integers(1, 5),
        "num_layers": st.integers(1, 3),
        "bias": flag,
        "batch_first": flag,
        "dropout": st.sampled_from([0.0, 1.0]),
        "bidirectional": flag,
    }
    more = {"RNN": {"nonlinearity": st.sampled_from(["tanh", "relu"])}, "LSTM": {"proj_size": st.just(0)}}
    return Drawn({**options, **more.get(name, {})}, make)


LAYERS: dict[str, Drawn] = {
    "Identity": Drawn({}, anything),
    "Linear": Drawn({"in_features": st.just(4), "out_features": st.integers(1, 5), "bias": flag}, of((3, 4), (2, 3, 4), (4,))),
    "Bilinear": Drawn(
        {"in1_features": st.just(4), "in2_features": st.just(4), "out_features": st.integers(1, 3), "bias": flag},
        same(2, (3, 4), (2, 3, 4), (4,)),
    ),
    "Flatten": Drawn({"start_dim": st.integers(-2, 1), "end_dim": st.integers(-1, 2)}, of((2, 3, 4), (0, 3, 4))),
    "Unflatten": Drawn({"dim": st.sampled_from([1, -1]), "unflattened_size": st.just((2, 2))}, of((3, 4), (0, 4))),
    "Embedding": Drawn(
        {
            "num_embeddings": st.just(5),
            "embedding_dim": st.integers(1, 3),
            "padding_idx": st.none() | st.integers(-5, 4),
            "max_norm": st.none() | st.just(0.7),
            "norm_type": st.sampled_from([1.0, 2.0]),
            "scale_grad_by_freq": flag,
            "sparse": st.just(False),  # True: tests/optim/test_sparse.py
        },
        lambda draw, options, rng: [rng.integers(0, 5, draw(st.sampled_from([(6,), (2, 3), (), (0,)])))],
    ),
    "EmbeddingBag": Drawn(
        {
            "num_embeddings": st.just(5),
            "embedding_dim": st.integers(1, 3),
            "max_norm": st.none() | st.just(0.7),
            "norm_type": st.sampled_from([1.0, 2.0]),
            "scale_grad_by_freq": st.just(False),  # True: tests/ops/test_embedding_bag.py
            "mode": st.sampled_from(["sum", "mean", "max"]),
            "sparse": st.just(False),  # True: there, too
            "include_last_offset": flag,
            "padding_idx": st.none() | st.integers(-5, 4),
        },
        _bags,
    ),
    **{f"Conv{n}d": _conv(n) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": _transposed(n) for n in (1, 2, 3)},
    "Unfold": Drawn(
        {"kernel_size": each(2, 1, 3), "dilation": each(2, 1, 2), "padding": each(2, 0, 1), "stride": each(2, 1, 2)},
        image(2, None, 5),
    ),
    "Fold": Drawn(
        {
            "output_size": st.just((4, 5)),
            "kernel_size": st.just(2) | st.just((2, 2)),
            "dilation": st.just(1),
            "padding": st.just(0) | st.just((0, 0)),
            "stride": st.just(1),
        },
        of((2, 8, 12), (4, 12)),
    ),
    **{f"BatchNorm{n}d": _norm(n) for n in (1, 2, 3)},
    "SyncBatchNorm": Drawn(
        {**_norm(1).options, "process_group": st.none()},
        of((2, 3), (2, 3, 5), (1, 3, 4, 5), (2, 3, 2, 3, 2), (2, 3, 2, 1, 2, 3), (3,), (2, 4, 5)),
    ),
    **{f"InstanceNorm{n}d": _norm(n, momentum=factor) for n in (1, 2, 3)},
    "LayerNorm": Drawn(
        {"normalized_shape": st.sampled_from([4, (4,), (3, 4)]), "eps": eps, "elementwise_affine": flag, "bias": flag},
        of((2, 3, 4), (3, 4)),
    ),
    "RMSNorm": Drawn(
        {"normalized_shape": st.sampled_from([4, (3, 4)]), "eps": eps | st.none(), "elementwise_affine": flag},
        of((2, 3, 4), (3, 4)),
    ),
    "GroupNorm": Drawn(
        {"num_groups": st.sampled_from([1, 2, 4]), "num_channels": st.just(4), "eps": eps, "affine": flag, "bias": flag},
        of((2, 4), (2, 4, 5), (1, 4, 3, 2)),
    ),
    "LocalResponseNorm": Drawn(
        {"size": st.integers(1, 4), "alpha": factor, "beta": factor, "k": st.sampled_from([1.0, 2.0])},
        of((2, 5, 3), (1, 4, 3, 2)),
    ),
    **{name: _elementwise() for name in ("Tanh", "Sigmoid", "LogSigmoid", "Softsign")},
    **{name: _elementwise(True) for name in ("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardsigmoid", "Hardswish")},
    "LeakyReLU": _elementwise(True, negative_slope=st.sampled_from([0.01, 0.5])),
    "ELU": _elementwise(True, alpha=factor),
    "CELU": _elementwise(True, alpha=st.sampled_from([0.5, 1.0, 2.0])),
    "GELU": _elementwise(approximate=st.sampled_from(["none", "tanh"])),
    "Softplus": _elementwise(beta=st.sampled_from([0.5, 2.0]), threshold=st.sampled_from([1.0, 20.0])),
    "Hardtanh": _elementwise(
        True,
        min_val=st.sampled_from([-1.0, -0.5]),
        max_val=st.sampled_from([0.5, 1.0]),
        min_value=st.none(),
        max_value=st.none(),
    ),
    "Threshold": _elementwise(True, threshold=factor, value=factor),
    "PReLU": Drawn({"num_parameters": st.sampled_from([1, 4]), "init": factor}, of((3, 4), (2, 4, 3))),
    "GLU": Drawn({"dim": st.sampled_from([-1, 0, 1])}, of((2, 4), (4, 6))),
    **{name: Drawn({"dim": st.integers(-2, 1)}, anything) for name in ("Softmax", "LogSoftmax")},
    **{f"MaxPool{n}d": _pool(n, *_MAX, return_indices=flag, ceil_mode=flag) for n in (1, 2, 3)},
    "MaxUnpool2d": _unpooled(2),
    "AvgPool1d": _pool(1, *_MAX[:3], ceil_mode=flag, count_include_pad=flag),
    **{
        f"AvgPool{n}d": _pool(
            n, *_MAX[:3], ceil_mode=flag, count_include_pad=flag, divisor_override=st.none() | st.integers(1, 5)
        )
        for n in (2, 3)
    },
    **{f"AdaptiveAvgPool{n}d": _adaptive(n) for n in (1, 2, 3)},
    **{f"AdaptiveMaxPool{n}d": _adaptive(n, return_indices=flag) for n in (1, 2, 3)},
    "Dropout": _elementwise(True, p=probability),
    "AlphaDropout": _elementwise(True, p=st.just(0.0)),
    **{f"Dropout{n}d": Drawn(_DROP, image(n, None)) for n in (1, 2, 3)},
    "Upsample": Drawn(
        {
            "size": st.none() | each(2, 1, 9),
            "scale_factor": st.none() | st.sampled_from([2, 1.5, 0.5, (2.0, 1.5)]),
            "mode": st.sampled_from(["nearest", "nearest-exact", "bilinear", "bicubic", "area"]),
            "align_corners": st.none() | flag,
            "recompute_scale_factor": st.none() | flag,
        },
        of((2, 3, 5, 6), (1, 1, 2, 3)),
    ),
    **{
        f"Upsampling{kind}2d": Drawn(
            {"size": st.none() | each(2, 1, 9), "scale_factor": st.none() | st.sampled_from([2, (3, 2)])}, of((2, 3, 5, 6))
        )
        for kind in ("Nearest", "Bilinear")
    },
    "PixelShuffle": Drawn({"upscale_factor": st.sampled_from([1, 2])}, image(2, 4)),
    "PixelUnshuffle": Drawn({"downscale_factor": st.sampled_from([1, 2])}, of((2, 3, 4, 6), (3, 2, 2))),
    "ChannelShuffle": Drawn({"groups": st.sampled_from([1, 2, 4])}, of((2, 4, 3, 2), (1, 8, 2))),
    **{f"ConstantPad{n}d": _pad(n, value=factor) for n in (1, 2, 3)},
    **{f"{kind}Pad{n}d": _pad(n) for kind in ("Zero", "Reflection", "Replication", "Circular") for n in (1, 2, 3)},
    **{name: _recurrent(name) for name in ("RNN", "LSTM", "GRU")},
    **{
        f"{name}Cell": Drawn(
            {
                "input_size": st.just(4),
                "hidden_size": st.integers(1, 5),
                "bias": flag,
                **({"nonlinearity": st.sampled_from(["tanh", "relu"])} if name == "RNN" else {}),
            },
            of((3, 4), (4,), (0, 4)),
        )
        for name in ("RNN", "LSTM", "GRU")
    },
    "MultiheadAttention": Drawn(
        {
            "embed_dim": st.just(4),
            "num_heads": st.sampled_from([1, 2, 3, 4]),
            "dropout": probability,
            "bias": flag,
            "add_bias_kv": flag,
            "add_zero_attn": flag,
            "kdim": st.none() | st.just(3),
            "vdim": st.none() | st.just(5),
            "batch_first": flag,
        },
        _query_key_value,
    ),
    "TransformerEncoderLayer": Drawn(_BLOCK, of((5, 2, 4), (3, 4))),
    "TransformerDecoderLayer": Drawn(_BLOCK, same(2, (2, 2, 4), (3, 4))),
    "Transformer": Drawn(
        {
            **_BLOCK,
            "num_encoder_layers": st.integers(1, 2),
            "num_decoder_layers": st.integers(1, 2),
            "custom_encoder": st.none(),
            "custom_decoder": st.none(),
        },
        same(2, (2, 2, 4), (3, 4)),
    ),
    "CosineSimilarity": Drawn({"dim": st.sampled_from([0, -1]), "eps": eps}, _PAIRS),
    "PairwiseDistance": Drawn({"p": st.sampled_from([1.0, 2.0, 3.0]), "eps": eps, "keepdim": flag}, _PAIRS),
    **{name: Drawn(_LOSS, _PAIRS) for name in ("L1Loss", "MSELoss")},
    "SmoothL1Loss": Drawn({**_LOSS, "beta": factor}, _PAIRS),
    "HuberLoss": Drawn({"reduction": reduction, "delta": factor}, _PAIRS),
    "CrossEntropyLoss": Drawn(
        {
            **_LOSS,
            "weight": _WEIGHT,
            "ignore_index": st.sampled_from([-100, 1]),
            "label_smoothing": st.sampled_from([0.0, 0.2]),
        },
        _classes,
    ),
    "LinearCrossEntropyLoss": Drawn(
        {
            "in_features": st.just(3),
            "num_classes": st.sampled_from([3, 5]),
            "out_features": st.just(()),  # these three: tests/techniques/test_chunking.py
            "options": st.none(),
            "weight": st.none(),
            "bias": flag,
            "reduction": reduction,
            "ignore_index": st.sampled_from([None, 1]),
            "label_smoothing": st.sampled_from([0.0, 0.2]),
        },
        lambda draw, options, rng: [rng.standard_normal((4, 3)), rng.integers(0, 3, 4)],
    ),
    "NLLLoss": Drawn({**_LOSS, "weight": _WEIGHT, "ignore_index": st.sampled_from([-100, 1])}, _classes),
    "CTCLoss": Drawn({"blank": st.sampled_from([0, 3]), "reduction": reduction, "zero_infinity": flag}, _sequences),
    "KLDivLoss": Drawn(
        {**_LOSS, "reduction": st.sampled_from(["none", "mean", "sum", "batchmean"]), "log_target": flag}, _probabilities
    ),
    "BCELoss": Drawn({**_LOSS, "weight": _WEIGHT}, _probabilities),
    "BCEWithLogitsLoss": Drawn({**_LOSS, "weight": _WEIGHT, "pos_weight": _WEIGHT}, _probabilities),
    "CosineEmbeddingLoss": Drawn({**_LOSS, **_MARGIN}, signed(2, (4, 5), rows=True), 1),
    "MarginRankingLoss": Drawn({**_LOSS, **_MARGIN}, signed(2, (4,), (2, 3)), 1),
    "GaussianNLLLoss": Drawn({"full": flag, "eps": eps, "reduction": reduction}, _positive((4, 3), (4, 3), (4, 1))),
    "TripletMarginLoss": Drawn(
        {**_LOSS, "margin": factor, "p": st.sampled_from([1.5, 2.0]), "eps": eps, "swap": flag}, same(3, (4, 5))
    ),
}
