"""The numbers of a language model, as in the ``config.json`` beside the weights of a published model.

It reads the families of ``llama.py``. The names of the fields are those of the file.

Source: the configuration classes of Hugging Face's transformers 5, which also read files of older versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ArgumentError

FAMILIES = {
    "llama": "Llama 2 and 3",
    "mistral": "Mistral",
    "qwen2": "Qwen 2 and 2.5",
    "qwen3": "Qwen 3",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3",
    "phi3": "Phi-3",
    "mixtral": "Mixtral",
    "qwen3_moe": "Qwen 3 with experts",
}
"""``model_type`` in the file, and the models that have it."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    "mistral": {"sliding_window": 4096, "max_position_embeddings": 131_072, "num_key_value_heads": 8},
    "qwen2": {"sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32_768, "num_key_value_heads": 32},
    "qwen3": {
        "sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32_768, "num_key_value_heads": 32,
        "head_dim": 128,
    },
    "gemma2": {
        "sliding_window": 4096, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
        "sliding_window_pattern": 2, "num_key_value_heads": 4,
    },
    "gemma3_text": {
        "sliding_window": 4096, "head_dim": 256, "max_position_embeddings": 131_072, "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256, "sliding_window_pattern": 6, "num_key_value_heads": 4, "rope_theta": 1_000_000.0,
    },
    "phi3": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "mixtral": {
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "rope_theta": 1_000_000.0,
        "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "qwen3_moe": {
        "sliding_window": 4096, "max_position_embeddings": 32_768, "num_key_value_heads": 4, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
}  # fmt: skip
"""What a file of the family need not say."""

_SCALINGS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class Rope:
    """A rotary position embedding.

    Attributes:
        theta: the base of the wavelengths.
        kind: how the wavelengths are stretched for contexts longer than in training: ``default`` (not at all), ``linear``,
            ``dynamic``, ``yarn``, ``longrope`` or ``llama3``.
        share: the part of each head that is rotated.
        numbers: what ``kind`` needs, as in ``rope_scaling``.
    """

    theta: float
    kind: str
    share: float
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Configuration:
    """The numbers of a model.

    Attributes:
        windows: for each layer, how many tokens a query sees, itself included; ``None``: all before it.
        ropes: for each layer, its position embedding.
        experts: for each layer, its number of experts; 0: one MLP.
        expert_size: the width inside an expert.
        attention_bias: biases of the projections of query, key and value. ``output_bias``: of the projection after attention.
        qk_norm: query and key are normalized in each head.
        scale: of the scores.
        gemma: Gemma's differences: norms multiply by 1 + weight, the embedding is scaled, and norms stand after each part too.
        fused: Phi-3's: query, key and value are one projection, and so are gate and up.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    activation: str
    scale: float
    windows: tuple[int | None, ...]
    ropes: tuple[Rope, ...]
    experts: tuple[int, ...]
    expert_size: int = 0
    experts_per_token: int = 0
    norm_topk_prob: bool = True
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.0
    qk_norm: bool = False
    gemma: bool = False
    fused: bool = False
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    @property
    def longest(self) -> int:
        """The longest sequence, in tokens."""
        rope = self.ropes[0]
        return int(self.max_position_embeddings * (rope.numbers["factor"] if rope.kind == "dynamic" else 1))

    def period(self) -> int:
        """After how many layers their kinds repeat."""
        kinds = list(zip(self.windows, self.ropes, self.experts, strict=True))
        return next(i for i in range(1, len(kinds) + 1) if kinds[i:] == kinds[:-i])

    def shrunk(self, layers: int) -> Configuration:
        """The same model with fewer layers: the last of a kind that the whole model has are left out.

        Raises:
            ArgumentError: there are not that many layers.
        """
        if not 0 < layers <= self.num_hidden_layers:
            raise ArgumentError(f"shrunk: the model has {self.num_hidden_layers} layers, found {layers}")
        parts = {name: getattr(self, name)[:layers] for name in ("windows", "ropes", "experts")}
        return replace(self, num_hidden_layers=layers, **parts)


def configuration(source: str | Path | Mapping[str, Any]) -> Configuration:
    """The configuration in a ``config.json``, or in a dict with its fields.

    Raises:
        ArgumentError: an architecture that is not offered, a field that is missing, of a wrong kind, or that contradicts
            another. FileNotFoundError: there is no such file.
    """
    name = "the configuration" if isinstance(source, Mapping) else str(source)
    fields = source if isinstance(source, Mapping) else _read(Path(source))
    if isinstance(fields.get("text_config"), Mapping):  # of a model that also reads images
        fields = fields["text_config"]
    kind = fields.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(f"{each} ({models})" for each, models in FAMILIES.items())
        raise ArgumentError(f"{name}: the model_type {kind!r} is not offered. There are {known}")
    return _checked(_Fields(name, _DEFAULTS[kind] | dict(fields), kind).read())  # null in a file is not the default


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArgumentError(f"{path}: expected the config.json of a model, found no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentError(f"{path}: expected an object with fields, found {type(found).__name__}")
    return found


class _Fields:
    """The fields of a file, with the defaults of its family."""

    def __init__(self, name: str, fields: Mapping[str, Any], kind: str) -> None:
        self.name, self.fields, self.kind = name, fields, kind

    def number(self, field: str, least: float = 1, default: Any = None) -> Any:
        """A number that is at least ``least``."""
        found = self.fields.get(field)
        found = default if found is None else found
        if found is None:
            raise ArgumentError(f"{self.name}: {field} is missing")
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not found >= least:
            raise ArgumentError(f"{self.name}: expected a number of at least {least} for {field}, found {found!r}")
        return found

    def count(self, field: str, least: int = 1, default: Any = None) -> int:
        """A whole number."""
        found = self.number(field, least, default)
        if found != int(found):
            raise ArgumentError(f"{self.name}: expected a whole number for {field}, found {found!r}")
        return int(found)

    def flag(self, field: str) -> bool:
        found = self.fields.get(field) or False
        if not isinstance(found, bool):
            raise ArgumentError(f"{self.name}: expected true or false for {field}, found {found!r}")
        return found

    def read(self) -> Configuration:
        """All of them."""
        for field in _NEEDED:
            self.count(field)
        kind, layers, heads = self.kind, self.count("num_hidden_layers"), self.count("num_attention_heads")
        head = self.count("head_dim", default=self.count("hidden_size") // heads)
        windows, gemma = self.windows(layers), kind.startswith("gemma")
        experts = self.experts(layers)
        return Configuration(
            model_type=kind,
            **{field: self.count(field) for field in _NEEDED},
            num_key_value_heads=self.count("num_key_value_heads", default=heads),
            head_dim=head,
            rms_norm_eps=self.number("rms_norm_eps", 0, 1e-6),
            max_position_embeddings=self.count("max_position_embeddings"),
            tie_word_embeddings=self.flag("tie_word_embeddings"),
            activation=self.activation(),
            scale=self.number("query_pre_attn_scalar", 1e-9, head) ** -0.5,
            windows=windows,
            ropes=self.ropes(windows),
            experts=experts,
            expert_size=self.count("moe_intermediate_size", default=self.count("intermediate_size")) if any(experts) else 0,
            experts_per_token=self.count("num_experts_per_tok") if any(experts) else 0,
            norm_topk_prob=kind == "mixtral" or self.flag("norm_topk_prob"),
            attention_bias=kind == "qwen2" or self.flag("attention_bias"),
            output_bias=kind != "qwen2" and self.flag("attention_bias"),
            mlp_bias=kind == "llama" and self.flag("mlp_bias"),
            attention_dropout=self.number("attention_dropout", 0, 0.0),
            qk_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
            gemma=gemma,
            fused=kind == "phi3",
            attn_logit_softcapping=self.fields.get("attn_logit_softcapping") if gemma else None,
            final_logit_softcapping=self.fields.get("final_logit_softcapping") if gemma else None,
        )

    def activation(self) -> str:
        """``silu``, or ``gelu`` in its approximation by tanh."""
        name = self.fields.get("hidden_activation") or self.fields.get("hidden_act")
        if name is None:
            name = "gelu_pytorch_tanh" if self.kind.startswith("gemma") else "silu"
        if name not in ("silu", "gelu_pytorch_tanh"):
            raise ArgumentError(f"{self.name}: the activation {name!r} is not offered: silu and gelu_pytorch_tanh are")
        return name

    def windows(self, layers: int) -> tuple[int | None, ...]:
        """The window of each layer."""
        window = self.fields.get("sliding_window")
        if self.kind.startswith("qwen") and not self.flag("use_sliding_window"):
            window = None
        if window is not None:
            window = self.count("sliding_window")
        kinds = self.fields.get("layer_types")
        if kinds is None:
            pattern = self.fields.get("sliding_window_pattern")
            first = self.count("max_window_layers", 0) if self.kind in ("qwen2", "qwen3") else 0
            return tuple(window if i >= first and (pattern is None or (i + 1) % pattern) else None for i in range(layers))
        if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
            raise ArgumentError(
                f"{self.name}: expected sliding_attention or full_attention in layer_types for each of {layers} layers, found "
                f"{len(kinds)}: {', '.join(sorted(set(map(str, kinds))))}"
            )
        if "sliding_attention" in kinds and window is None:
            raise ArgumentError(f"{self.name}: layer_types has sliding_attention, and sliding_window is missing")
        return tuple(window if each == "sliding_attention" else None for each in kinds)

    def experts(self, layers: int) -> tuple[int, ...]:
        """The number of experts of each layer."""
        if self.kind == "mixtral":
            return (self.count("num_local_experts"),) * layers
        if self.kind != "qwen3_moe":
            return (0,) * layers
        number = self.count("num_local_experts", 0, self.count("num_experts", 0))  # newer files use Mixtral's name
        step = self.count("decoder_sparse_step")
        dense = set(self.fields.get("mlp_only_layers") or ())
        return tuple(number if i not in dense and (i + 1) % step == 0 else 0 for i in range(layers))

    def ropes(self, windows: tuple[int | None, ...]) -> tuple[Rope, ...]:
        """The position embedding of each layer. In Gemma 3 layers with a window have one of their own."""
        found = self.fields.get("rope_parameters") or {}
        if self.kind != "gemma3_text":
            whole = self.rope(found or self.fields.get("rope_scaling") or {}, "rope_theta", 10_000.0)
            return (whole,) * len(windows)
        whole = self.rope(found.get("full_attention") or self.fields.get("rope_scaling") or {}, "rope_theta", 1_000_000.0)
        local = self.rope(found.get("sliding_attention") or {}, "rope_local_base_freq", 10_000.0)
        return tuple(whole if window is None else local for window in windows)

    def rope(self, numbers: Mapping[str, Any], theta: str, default: float) -> Rope:
        if not isinstance(numbers, Mapping):
            raise ArgumentError(f"{self.name}: expected an object for rope_scaling, found {numbers!r}")
        kind = numbers.get("rope_type", numbers.get("type", "default"))
        if self.kind == "phi3" and kind in ("su", "yarn"):
            kind = "longrope"
        if kind not in _SCALINGS:
            raise ArgumentError(f"{self.name}: the rope_type {kind!r} is not offered: {', '.join(_SCALINGS)} are")
        inner = _Fields(f"{self.name}, rope_scaling", numbers, self.kind)
        if kind not in ("default", "longrope"):
            inner.number("factor", 0)
        numbers = dict(numbers)
        if kind in ("yarn", "longrope", "llama3"):
            given = self.fields.get("original_max_position_embeddings") or self.fields.get("max_position_embeddings")
            numbers.setdefault("original_max_position_embeddings", given)
        for field in {"llama3": ("low_freq_factor", "high_freq_factor")}.get(kind, ()):
            inner.number(field, 0)
        if kind == "longrope" and not {"short_factor", "long_factor"} <= set(numbers):
            raise ArgumentError(f"{self.name}, rope_scaling: short_factor and long_factor are missing")
        base = numbers.get("rope_theta") or self.fields.get(theta) or default
        share = numbers.get("partial_rotary_factor") or self.fields.get("partial_rotary_factor") or 1.0
        return Rope(float(base), kind, float(share), numbers)


def _checked(found: Configuration) -> Configuration:
    """Check the numbers against each other."""
    heads, keys = found.num_attention_heads, found.num_key_value_heads
    if heads % keys:
        raise ArgumentError(
            f"num_attention_heads={heads} is not a multiple of num_key_value_heads={keys}: each key head is shared by as many"
        )
    if found.head_dim * found.ropes[0].share % 2:
        raise ArgumentError(f"a rotated head has pairs of numbers: head_dim={found.head_dim} is odd")
    if any(found.experts) and not found.experts_per_token <= max(found.experts):
        raise ArgumentError(f"num_experts_per_tok={found.experts_per_token} of {max(found.experts)} experts")
    return found
