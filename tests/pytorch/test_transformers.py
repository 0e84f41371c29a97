"""Programs of Hugging Face's transformers in which the library asks for values: masks, and texts that may end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.profiles import some
from tests.pytorch.hugging_face import MODELS
from tests.pytorch_memory import pytorch_peak
from tinygrad_mem.pytorch import predict

pytest.importorskip("transformers")


def all_tokens(device: str = "cpu") -> torch.Tensor:
    return torch.ones(2, 32, dtype=torch.long, device=device)


def some_tokens(device: str = "cpu") -> torch.Tensor:
    made = all_tokens(device)
    made[0, :4] = 0
    return made


def steps(mask: Callable[..., torch.Tensor], device: str = "cpu") -> Any:
    model, ids = MODELS["llama"]().to(device), torch.randint(1, 500, (2, 32), device=device)
    loss = model(input_ids=ids, labels=ids, attention_mask=mask(device)).loss
    loss.backward()
    return model, loss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mask", [all_tokens, some_tokens])
def test_a_mask_is_made_where_a_mask_leaves_tokens_out(mask: Callable[..., torch.Tensor]):
    found = predict(steps, mask, device="cpu")
    assert found.peak == pytorch_peak(lambda: steps(mask))
    assert not found.notes
    assert not predict(steps, mask, "cuda").notes


@pytest.mark.filterwarnings("ignore")
def test_a_mask_whose_values_are_not_known_is_one_that_leaves_tokens_out():
    found = predict(steps, lambda device: (torch.rand(2, 32, device=device) > 0.1).long(), "cuda")
    assert ["assumed to hide some tokens" in note for note in found.notes] == [True]


def written(name: str, device: str = "cpu", **options: Any) -> Any:
    model, ids = MODELS[name]().to(device).eval(), torch.full((2, 4), 7, device=device)
    return model.generate(ids, max_new_tokens=3, pad_token_id=0, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["GPT-2", "llama"])
def test_a_text_is_predicted_with_all_its_tokens(name: str):
    found = predict(written, name, device="cpu", do_sample=False, min_new_tokens=3)
    assert found.peak == pytorch_peak(lambda: written(name, do_sample=False, min_new_tokens=3))
    assert any("as many tokens as it may" in note for note in found.notes)
    assert predict(written, name, "cuda", do_sample=True, top_k=8, top_p=0.9).peak > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some(["GPT-2", "llama"], ["llama"]))
def test_a_search_of_beams_is_predicted_with_all_its_tokens(name: str):
    options: dict[str, Any] = {"do_sample": False, "min_new_tokens": 3, "num_beams": 3}
    found = predict(written, name, device="cpu", **options)
    assert found.peak == pytorch_peak(lambda: written(name, **options))
    assert any("as many tokens as it may" in note for note in found.notes)
