"""The numbers of a language model, as in the ``config.json`` beside the weights of a published model.

It reads the families of ``llama.py``. The names of the fields are those of the file.

Source: the configuration classes of Hugging Face's transformers 5, which also read files of older versions.
"""

from __future__ import annotations

import json
import math
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

_ORIGINAL = "original_max_position_embeddings"
_STRETCHING: dict[str, tuple[str, ...]] = {
    "default": (), "linear": (), "dynamic": (), "yarn": (_ORIGINAL,), "longrope": (_ORIGINAL,),
    "llama3": (_ORIGINAL, "low_freq_factor", "high_freq_factor"),
}  # fmt: skip
"""How the wavelengths of a position embedding may be stretched, and the numbers that it needs."""
_SMALL = 1e-9
_LARGEST = 1 << 31
_MOST_LAYERS = 10_000
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
        gemma: Gemma's differences: norms multiply by 1 + weight, the embedding is scaled, and norms come after each part too.
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
    fields = source if isinstance(source, Mapping) else _read_json(Path(source))
    if isinstance(fields.get("text_config"), Mapping):  # of a model that also reads images
        fields = fields["text_config"]
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(f"{each} ({models})" for each, models in FAMILIES.items())
        raise ArgumentError(f"{name}: the model_type {kind!r} is not offered. There are {known}")
    if fields.get("quantization_config") is not None:
        raise ArgumentError(
            f"{name}: quantization_config says that the weights are quantized already, which is not offered. Leave it out for "
            "the model in full; --quantize nf4 and techniques.quantize_frozen quantize it"
        )
    return _checked(_Fields(name, _DEFAULTS[kind] | dict(fields), kind).read())  # null in a file is not the default


def _read_json(path: Path) -> Mapping[str, Any]:
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

    def number(self, field: str, least: float = 1, default: Any = None, most: float = math.inf) -> Any:
        """A number from ``least`` to ``most``."""
        found = self.fields.get(field)
        found = default if found is None else found
        if found is None:
            raise ArgumentError(f"{self.name}: {field} is missing")
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not least <= found <= most or found == math.inf:
            high = isinstance(found, int | float) and found > most
            limit = f"at most {most}" if high else f"at least {least}"
            raise ArgumentError(f"{self.name}: expected a number of {limit} for {field}, found {found!r}")
        return found

    def count(self, field: str, least: int = 1, default: Any = None) -> int:
        """A whole number that an array may have as its size."""
        found = self.number(field, least, default, _LARGEST)
        if found != int(found):
            raise ArgumentError(f"{self.name}: expected a whole number for {field}, found {found!r}")
        return int(found)

    def cap(self, field: str) -> float | None:
        return None if self.fields.get(field) is None else self.number(field, _SMALL)

    def items(self, field: str, kind: type) -> list[Any] | None:
        """A list of things of one kind; ``None`` if it is missing."""
        found = self.fields.get(field)
        if found is None:
            return None
        if not isinstance(found, list | tuple) or not all(type(each) is kind for each in found):
            names = {int: "whole numbers", float: "numbers", str: "names"}
            raise ArgumentError(f"{self.name}: expected a list of {names[kind]} for {field}, found {found!r}")
        return list(found)

    def flag(self, field: str) -> bool:
        found = self.fields.get(field) or False
        if not isinstance(found, bool):
            raise ArgumentError(f"{self.name}: expected true or false for {field}, found {found!r}")
        return found

    def read(self) -> Configuration:
        for field in _NEEDED:
            self.count(field)
        kind, layers = self.kind, int(self.number("num_hidden_layers", 1, None, _MOST_LAYERS))
        heads, width = self.count("num_attention_heads"), self.count("hidden_size")
        if self.fields.get("head_dim") is None and width % heads:
            raise ArgumentError(
                f"{self.name}: hidden_size={width} is not a multiple of num_attention_heads={heads}, and head_dim is missing"
            )
        head = self.count("head_dim", default=width // heads)
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
            scale=self.number("query_pre_attn_scalar", _SMALL, head) ** -0.5,
            windows=windows,
            ropes=self.ropes(windows),
            experts=experts,
            expert_size=self.count("moe_intermediate_size", default=self.count("intermediate_size")) if any(experts) else 0,
            experts_per_token=self.count("num_experts_per_tok") if any(experts) else 0,
            norm_topk_prob=kind == "mixtral" or self.flag("norm_topk_prob"),
            attention_bias=kind == "qwen2" or self.flag("attention_bias"),
            output_bias=kind != "qwen2" and self.flag("attention_bias"),
            mlp_bias=kind == "llama" and self.flag("mlp_bias"),
            attention_dropout=self.number("attention_dropout", 0, 0.0, 1),
            qk_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
            gemma=gemma,
            fused=kind == "phi3",
            attn_logit_softcapping=self.cap("attn_logit_softcapping") if gemma else None,
            final_logit_softcapping=self.cap("final_logit_softcapping") if gemma else None,
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
        window = self.fields.get("sliding_window")
        if self.kind.startswith("qwen") and not self.flag("use_sliding_window"):
            window = None
        if window is not None:
            window = self.count("sliding_window")
        kinds = self.items("layer_types", str)
        if kinds is None:
            pattern = None if self.fields.get("sliding_window_pattern") is None else self.count("sliding_window_pattern")
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
        if self.kind == "mixtral":
            return (self.count("num_local_experts"),) * layers
        if self.kind != "qwen3_moe":
            return (0,) * layers
        number = self.count("num_local_experts", 0, self.count("num_experts", 0))  # newer files use Mixtral's name
        step = self.count("decoder_sparse_step")
        dense = self.items("mlp_only_layers", int) or []
        if dense and not 0 <= min(dense) <= max(dense) < layers:
            raise ArgumentError(f"{self.name}: expected layers from 0 to {layers - 1} in mlp_only_layers, found {dense}")
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
        if not isinstance(kind, str) or kind not in _STRETCHING:
            raise ArgumentError(f"{self.name}: the rope_type {kind!r} is not offered: {', '.join(_STRETCHING)} are")
        base = self.number(theta, _SMALL, default)
        share = self.number("partial_rotary_factor", _SMALL, 1.0, 1)
        numbers = dict(numbers)
        if kind in ("yarn", "longrope", "llama3"):
            given = self.fields.get("original_max_position_embeddings") or self.fields.get("max_position_embeddings")
            numbers.setdefault("original_max_position_embeddings", given)
        inner = _Fields(f"{self.name}, rope_scaling", numbers, self.kind)
        inner.check_rope(kind)
        base, share = inner.number("rope_theta", _SMALL, base), inner.number("partial_rotary_factor", _SMALL, share, 1)
        return Rope(float(base), kind, float(share), numbers)

    def check_rope(self, kind: str) -> None:
        """Check the numbers of one way to stretch wavelengths."""
        if kind not in ("default", "longrope"):
            self.number("factor")
        for field in _STRETCHING[kind]:
            self.number(field, _SMALL)
        for field in ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
            if self.fields.get(field) is not None:
                self.number(field, 0)
        if kind == "llama3" and not self.fields["low_freq_factor"] < self.fields["high_freq_factor"]:
            low, high = self.fields["low_freq_factor"], self.fields["high_freq_factor"]
            raise ArgumentError(f"{self.name}: expected low_freq_factor < high_freq_factor, found {low} and {high}")
        if kind == "longrope" and not {"short_factor", "long_factor"} <= set(self.fields):
            raise ArgumentError(f"{self.name}: short_factor and long_factor are missing")


def _checked(found: Configuration) -> Configuration:
    heads, keys = found.num_attention_heads, found.num_key_value_heads
    if heads % keys:
        raise ArgumentError(f"expected num_attention_heads to be a multiple of num_key_value_heads, found {heads} and {keys}")
    for rope in {id(rope): rope for rope in found.ropes}.values():
        _check_rotated(found, rope)
    if any(found.experts) and not found.experts_per_token <= max(found.experts):
        raise ArgumentError(
            f"expected num_experts_per_tok to be at most the {max(found.experts)} experts, found {found.experts_per_token}"
        )
    return found


def _check_rotated(config: Configuration, rope: Rope) -> None:
    rotated = int(config.head_dim * rope.share)
    if rotated % 2 or not rotated:
        raise ArgumentError(
            f"expected an even number of rotated numbers in each head, found {rotated}: partial_rotary_factor={rope.share:g} "
            f"of head_dim={config.head_dim}"
        )
    for field in ("short_factor", "long_factor") if rope.kind == "longrope" else ():
        factors = rope.numbers[field]
        if not isinstance(factors, list | tuple) or len(factors) != rotated // 2 or not all(map(_positive, factors)):
            expected = f"{rotated // 2} positive numbers, one for each pair of a head's"
            raise ArgumentError(f"rope_scaling: expected {expected}, for {field}, found {factors!r}")


def _positive(number: Any) -> bool:
    return isinstance(number, int | float) and 0 < number < math.inf
