"""Hugging Face's models from a configuration, small, and the programs in which their CPU peaks are compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500, "intermediate_size": 128}
SIZES_OF_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500, "n_positions": 64}


def language_model(kind: str, **sizes: Any) -> Any:
    """A small model of a kind."""
    import transformers  # it takes seconds, and is not needed to list what there is

    return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **(sizes or SIZES)))


def with_lora() -> Any:
    """A frozen Llama with adapters of peft's."""
    import peft

    return peft.get_peft_model(language_model("llama"), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2": partial(language_model, "gpt2", **SIZES_OF_GPT2),
    **{kind: partial(language_model, kind, **SIZES, num_key_value_heads=2) for kind in ("llama", "qwen2", "mistral", "phi")},
    "gpt_neox": partial(language_model, "gpt_neox"),
    "gemma": partial(language_model, "gemma", **SIZES, num_key_value_heads=2, head_dim=16),
    "opt": partial(language_model, "opt", **SIZES, ffn_dim=128, word_embed_proj_dim=64, max_position_embeddings=64),
    "llama with LoRA": with_lora,
}
RULES = {"SGD": partial(torch.optim.SGD, lr=1e-3, momentum=0.9), "Adam": partial(torch.optim.Adam, lr=1e-3)}
PROGRAMS = [(name, way) for name in MODELS for way in ("forward", *RULES)]


def program(name: str, way: str) -> Any:
    """One forward under ``no_grad``, or two training steps."""
    model, ids = MODELS[name](), torch.zeros(2, 32, dtype=torch.long)
    if way == "forward":
        with torch.no_grad():
            return model, model(input_ids=ids).logits
    rule = RULES[way]([parameter for parameter in model.parameters() if parameter.requires_grad])
    for _ in range(2):
        rule.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        rule.step()
    return model, rule, loss
