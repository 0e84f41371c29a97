"""Configurations that no model can have, and files that are none: each is refused in words, with what is known."""

from __future__ import annotations

import json

import pytest

from tests.models.test_llama import LONG, STRETCHED, TINY, fields
from tinygrad_mem.models.configuration import configuration

WRONG = [
    ({"model_type": "gpt_neox"}, "the model_type 'gpt_neox' is not offered. There are llama"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"num_hidden_layers": 0}, "expected a number of at least 1 for num_hidden_layers, found 0"),
    ({"num_hidden_layers": "3"}, "expected a number of at least 1 for num_hidden_layers, found '3'"),
    ({"vocab_size": 97.5}, "expected a whole number for vocab_size, found 97.5"),
    ({"num_key_value_heads": 3}, "expected num_attention_heads to be a multiple of num_key_value_heads, found 8 and 3"),
    ({"head_dim": 7}, "expected an even number of rotated numbers in each head, found 7: partial_rotary_factor"),
    ({"partial_rotary_factor": 0.1}, "expected an even number of rotated numbers in each head, found 0: partial_rotary_factor"),
    ({"partial_rotary_factor": 2.0}, "expected a number of at most 1 for partial_rotary_factor, found 2.0"),
    ({"model_type": ["llama"]}, r"the model_type \['llama'\] is not offered"),
    ({"hidden_size": 66}, "hidden_size=66 is not a multiple of num_attention_heads=8, and head_dim is missing"),
    ({"hidden_size": float("nan")}, "expected a number of at least 1 for hidden_size, found nan"),
    ({"hidden_size": 1 << 40}, "expected a number of at most 2147483648 for hidden_size, found 1099511627776"),
    ({"num_hidden_layers": 10**9}, "expected a number of at most 10000 for num_hidden_layers, found 1000000000"),
    ({"attention_dropout": 2}, "expected a number of at most 1 for attention_dropout, found 2"),
    (
        {"quantization_config": {"quant_method": "gptq"}},
        "the weights are quantized already, which is not offered. Leave it out",
    ),
    ({"rope_theta": "x"}, "expected a number of at least 1e-09 for rope_theta, found 'x'"),
    ({"rope_theta": -1}, "expected a number of at least 1e-09 for rope_theta, found -1"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling: expected a number of at least 1 for factor, found 0"),
    ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": "a"}}, "expected a number of at least 0 for beta_fast"),
    ({"rope_scaling": STRETCHED | {"low_freq_factor": 4.0}}, "expected low_freq_factor < high_freq_factor, found 4.0 and 4.0"),
    (
        {"rope_scaling": STRETCHED | {"original_max_position_embeddings": "x"}},
        "expected a number of at least 1e-09 for original_max_position_embeddings, found 'x'",
    ),
    (
        {"model_type": "phi3", "rope_scaling": LONG | {"short_factor": [1.0]}},
        r"expected 4 positive numbers, one for each pair of a head.s, for short_factor, found \[1.0\]",
    ),
    ({"model_type": "gemma2", "sliding_window_pattern": 0}, "expected a number of at least 1 for sliding_window_pattern"),
    ({"model_type": "gemma2", "final_logit_softcapping": 0}, "at least 1e-09 for final_logit_softcapping, found 0"),
    ({"model_type": "gemma2", "attn_logit_softcapping": "x"}, "at least 1e-09 for attn_logit_softcapping, found 'x'"),
    ({"layer_types": "full_attention"}, "expected a list of names for layer_types, found 'full_attention'"),
    ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "expected a list of whole numbers for mlp_only_layers, found 3"),
    ({"model_type": "qwen3_moe", "mlp_only_layers": [99]}, "expected layers from 0 to 2 in mlp_only_layers, found"),
    ({"hidden_act": "relu"}, "the activation 'relu' is not offered"),
    ({"tie_word_embeddings": "yes"}, "expected true or false for tie_word_embeddings, found 'yes'"),
    ({"rope_scaling": {"type": "ntk"}}, "the rope_type 'ntk' is not offered"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
    ({"rope_scaling": STRETCHED | {"low_freq_factor": None}}, "low_freq_factor is missing"),
    ({"rope_scaling": "linear"}, "expected an object for rope_scaling, found 'linear'"),
    ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "short_factor and long_factor are missing"),
    ({"layer_types": ["full_attention"]}, "in layer_types for each of 3 layers, found 1"),
    ({"layer_types": ["sliding_attention"] * 3}, "sliding_window is missing"),
    ({"model_type": "mixtral", "num_experts_per_tok": 9}, "expected num_experts_per_tok to be at most the 8 experts, found 9"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_wrong_configuration_is_refused_in_words(change: dict, said: str):
    with pytest.raises(ValueError, match=said):
        configuration({"model_type": "llama", **TINY, **change})


def test_files_that_are_no_configuration(tmp_path):
    file = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError):
        configuration(file)
    for content, said in (("{", "found no JSON"), ("[]", "expected an object with fields, found list")):
        file.write_text(content)
        with pytest.raises(ValueError, match=said):
            configuration(file)
    file.write_text(json.dumps({"model_type": "gemma3", "text_config": fields("gemma3_text")}))
    assert configuration(str(file)).model_type == "gemma3_text"
