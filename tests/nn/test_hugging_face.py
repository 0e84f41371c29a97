"""Hugging Face's models, made from small configurations: converted, they train as under PyTorch and are predicted to the byte.

The package is no dependency of the tests: ``pip install transformers`` runs them.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.predicted import difference
from tests.profiles import pairs
from tinygrad_mem import from_torch
from tinygrad_mem.errors import NotOfferedError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = {**SIZES, "vocab_size": 96, "max_position_embeddings": 64}
FIRM = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
MODELS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 96, "resid_pdrop": 0, "embd_pdrop": 0}
        | {"attn_pdrop": 0},
    ),
    ("BertForMaskedLM", "BertConfig", WORDS | FIRM),
    ("LlamaForCausalLM", "LlamaConfig", WORDS | {"num_key_value_heads": 2}),
    ("MistralForCausalLM", "MistralConfig", WORDS | {"num_key_value_heads": 2, "sliding_window": 8}),
    (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 96, "dropout_rate": 0.0}
        | {"decoder_start_token_id": 0, "pad_token_id": 0},
    ),
    ("ViTForImageClassification", "ViTConfig", SIZES | FIRM | {"image_size": 32, "patch_size": 8, "num_labels": 5}),
    (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 64,
            "vocab_size": 96,
            "max_position_embeddings": 64,
            "dropout": 0,
        }
        | {"attention_dropout": 0},
    ),
]


def batch(library: Any, images: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    if images:
        arrays = {"pixel_values": rng.standard_normal((2, 3, 32, 32), np.float32), "labels": rng.integers(0, 5, (2,))}
    else:
        ids = rng.integers(1, 96, (2, 16))
        arrays = {"input_ids": ids, "labels": ids}
    return {name: library.tensor(array) for name, array in arrays.items()}


@pytest.mark.parametrize(("model", "recomputed"), pairs(MODELS, [False, True]), ids=lambda it: it[0] if it in MODELS else it)
def test_a_step_is_pytorchs_and_is_foretold(model: tuple[str, str, dict[str, Any]], recomputed: bool):
    name, config, sizes = model
    torch.manual_seed(0)
    theirs = getattr(transformers, name)(getattr(transformers, config)(**sizes)).train()
    images = "image_size" in sizes
    untouched = copy.deepcopy(theirs)  # checkpointing adds a hook, and hooks are refused
    ours = from_torch(theirs)
    for model in (ours, theirs) if recomputed else ():
        model.gradient_checkpointing_enable()
    mine, other = ours(**batch(tm, images)).loss, theirs(**batch(torch, images)).loss
    assert abs(mine.item() - other.item()) < 1e-5
    mine.backward()
    other.backward()
    gradients = dict(ours.named_parameters())
    for key, p in theirs.named_parameters():
        if p.grad is not None:
            np.testing.assert_allclose(gradients[key].grad.numpy(), p.grad.numpy(), rtol=1e-3, atol=2e-6, err_msg=key)
    del ours, mine, other, gradients

    def run() -> None:
        model = from_torch(untouched)
        if recomputed:
            model.gradient_checkpointing_enable()
        rule = tm.optim.AdamW(model.parameters())
        for _ in range(2):
            rule.zero_grad()
            model(**batch(tm, images)).loss.backward()
            rule.step()

    assert difference(run) == ""


def test_hooks_are_refused_in_words():
    _, config, sizes = MODELS[0]
    theirs = transformers.GPT2LMHeadModel(getattr(transformers, config)(**sizes))
    theirs.gradient_checkpointing_enable()
    with pytest.raises(NotOfferedError, match=r"transformer\.wte: its hooks are functions of PyTorch's; add your own"):
        from_torch(theirs)
