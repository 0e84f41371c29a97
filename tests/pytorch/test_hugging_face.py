"""Hugging Face's models from a configuration, on the CPU: the predicted peak is that of PyTorch's allocator, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from tests.profiles import some
from tests.pytorch_memory import pytorch_peak
from tinygrad_mem import pytorch

transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500, "intermediate_size": 128}
SIZES_OF_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500, "n_positions": 64}


def language_model(kind: str, **sizes: Any) -> Any:
    """A small model of a kind."""
    return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **(sizes or SIZES)))


def with_lora() -> Any:
    """A frozen Llama with adapters of peft's."""
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
EVERY = [(name, way) for name in MODELS for way in ("forward", *RULES)]
ROWS = some(EVERY, [("GPT-2", "SGD"), ("llama", "forward"), ("opt", "SGD"), ("llama with LoRA", "Adam")])


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), ROWS, ids=str)
def test_the_peak_is_that_of_pytorchs_allocator(name: str, way: str):
    predicted = pytorch.predict(program, name, way, device="cpu")
    assert predicted.peak == pytorch_peak(lambda: program(name, way))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True])
def test_without_a_cache_no_mask_is_made(grad: bool):
    """transformers makes a mask where it sees fake tensors: it cannot ask them whether sequences are packed into a row."""

    def run() -> Any:
        model, ids = MODELS["llama"](), torch.zeros(2, 32, dtype=torch.long)
        with torch.set_grad_enabled(grad):
            return model, model(input_ids=ids, use_cache=False).logits

    found = pytorch.predict(run, device="cpu")
    assert found.peak == pytorch_peak(run)
    assert any("position ids were taken as those of one sequence a row" in note for note in found.notes)


def test_a_number_that_is_kept_for_backward_is_a_tensor():
    """``x * 0.5`` keeps a tensor of 8 bytes, from the forward to the backward."""

    def run() -> torch.Tensor:
        x = torch.empty(1000, requires_grad=True)
        made = [x * 0.5 for _ in range(100)]
        made[0].sum().backward()
        return made[-1]

    found = pytorch.predict(run, device="cpu").peak
    assert found == pytorch_peak(run)
    assert found > 4 * 1000 * 101 + 100 * 8
