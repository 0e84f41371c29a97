"""LoRA: the numbers of peft, the bytes of each of its forms, and what it does not save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.predicted import difference
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import round_up
from tinygrad_mem.models.llama import llama
from tinygrad_mem.models.precision import Step
from tinygrad_mem.models.published import published
from tinygrad_mem.techniques import LoraLinear, lora

peft = pytest.importorskip("peft")

FORMS = [{}, {"use_rslora": True}, {"use_dora": True}]
N, IN, OUT, R = 64, 256, 384, 8


def theirs(name: str) -> str:
    """peft's name of a parameter of ours."""
    for matrix in ("lora_A", "lora_B"):
        name = name.replace(f"{matrix}.weight", f"{matrix}.default.weight")
    return "base_model.model." + name.replace("lora_magnitude_vector", "lora_magnitude_vector.default.weight")


def both(**options: Any) -> tuple[nn.Module, Any]:
    """Our model and peft's, with the same random numbers, in float64."""
    torch.manual_seed(0)
    sizes = [(6, 8), (8, 5), (5, 3)]
    other = torch.nn.Sequential(*[torch.nn.Linear(*each) for each in sizes]).double()
    mine = nn.Sequential(*[nn.Linear(*each) for each in sizes]).double()
    mine.load_state_dict({name: tm.tensor(value.numpy()) for name, value in other.state_dict().items()})
    how = {"r": 2, "lora_alpha": 6, **options}
    other = peft.get_peft_model(other, peft.LoraConfig(target_modules=["0", "1"], **how)).double()
    lora(mine, target_modules=["0", "1"], dtype=tm.float64, **how)
    values = other.state_dict()
    for name, value in mine.state_dict().items():
        if "lora_A" in name or "lora_B" in name:
            values[theirs(name)].copy_(torch.randn_like(values[theirs(name)]))
        value.copy_(tm.tensor(values[theirs(name)].numpy()))
    return mine, other


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_equal_to_peft(form: dict):
    mine, other = both(**form)
    x = np.random.default_rng(0).standard_normal((4, 6))
    for _ in range(3):
        found, wanted = mine(tm.tensor(x)), other(torch.tensor(x))
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-10, atol=1e-12)
        found.square().mean().backward()
        wanted.square().mean().backward()
        parameters = dict(other.named_parameters())
        for name, p in mine.named_parameters():
            q = parameters[theirs(name)]
            assert p.requires_grad == q.requires_grad, name
            if q.grad is not None:
                np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)
        for library, model in ((tm, mine), (torch, other)):
            library.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01).step()
            for p in model.parameters():
                p.grad = None


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_dropout_is_pefts(form: dict):
    """Where both drop the same elements. In evaluation nothing is dropped."""
    mine, other = both(lora_dropout=0.5, **form)
    for i, size in ((0, 6), (1, 8)):
        kept = np.arange(4 * size).reshape(4, size) % 3 * 1.5
        ours, theirs = mine[i].lora_dropout, other.base_model.model[i].lora_dropout["default"]
        for layer, scale in ((ours, tm.tensor(kept)), (theirs, torch.tensor(kept))):
            layer.forward = lambda x, own=layer, scale=scale: x * scale if own.training else x
    x = np.random.default_rng(0).standard_normal((4, 6))
    for trains in (True, False):
        found, wanted = mine.train(trains)(tm.tensor(x)), other.train(trains)(torch.tensor(x))
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_merged_and_unmerged_it_is_the_same(form: dict):
    mine, _ = both(**form)
    x = tm.tensor(np.random.default_rng(0).standard_normal((4, 6)))
    before = mine(x).detach().numpy()
    for change in ("merge", "merge", "unmerge", "unmerge"):  # the second of each does nothing
        for layer in (mine[0], mine[1]):
            getattr(layer, change)()
        np.testing.assert_allclose(mine(x).detach().numpy(), before, rtol=1e-10, atol=1e-12)


def test_it_begins_as_the_model_was_and_trains_nothing_else():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Linear(5, 3))
    x = tm.randn(4, 6)
    before, frozen = model(x).detach().numpy(), list(model.parameters())
    assert lora(model, r=2) is model
    np.testing.assert_array_equal(model(x).detach().numpy(), before)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == [f"{layer}.lora_{matrix}.weight" for layer in (0, 2) for matrix in "AB"]  # not the output layer
    assert not any(p.requires_grad for p in frozen)


def saved(dtype: Any = tm.float32, **options: Any) -> int:
    """Bytes that one layer saves beside parameters, of an input of N rows that requires a gradient."""
    layer = lora(nn.Sequential(nn.Linear(IN, OUT, dtype=dtype)), r=R, target_modules="0", **options)
    rows = memory.saved(layer, tm.randn(N, IN, dtype=dtype).requires_grad_())
    parameters = {tuple(p.shape) for p in layer.parameters()}
    return sum(row.bytes for row in rows if row.first and tuple(row.shape) not in parameters)


def test_bytes_that_a_layer_saves():
    x, thin = round_up(N * IN * 4), round_up(N * R * 4)
    assert saved() == x + thin
    assert saved(lora_dropout=0.1) == x + thin  # the copy that dropout made, and not x
    assert saved(train_a=False) == thin
    assert saved(tm.float16) == x + thin  # a copy of x in float32, and not x
    assert saved(use_dora=True) >= x + thin + round_up(N * OUT * 4)


def step(form: dict | None, steps: int = 2, size: int = 512) -> None:
    model = nn.Sequential(nn.Linear(size, size, bias=False), nn.ReLU(), nn.Linear(size, size, bias=False))
    if form is not None:
        lora(model, r=R, target_modules=("0", "2"), **form)
    update = tm.optim.Adam([p for p in model.parameters() if p.requires_grad])
    for _ in range(steps):
        update.zero_grad()
        model(tm.ones(16, size)).sum().backward()
        update.step()


def test_bytes_of_gradients_and_optimizer_state():
    whole, thin, fa = (memory.predict(step, form).by_category() for form in (None, {}, {"train_a": False}))
    weights, matrices = 2 * 512 * 512 * 4, 4 * 512 * R * 4
    category = memory.Category
    assert whole[category.PARAMETER] == weights
    assert thin[category.PARAMETER] == weights + matrices
    assert whole[category.OPTIMIZER_STATE] == 2 * weights
    assert thin[category.OPTIMIZER_STATE] == 2 * matrices
    assert fa[category.OPTIMIZER_STATE] == matrices


@pytest.mark.parametrize("form", [*FORMS, {"train_a": False}, {"lora_dropout": 0.1}], ids=str)
def test_a_step_is_predicted(form: dict):
    assert difference(lambda: step(form, size=64)) == ""


def test_of_the_big_networks():
    """Llama-3-8B in bfloat16: gradients and moments of 8 billion parameters go, and the activations stay."""

    def train(adapters: bool) -> None:
        model = Step("bfloat16", "cpu").make(lambda: llama(published("llama-3-8b")))
        if adapters:
            lora(model, r=16, target_modules=("q_proj", "v_proj"))
        update = tm.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        ids = tm.zeros(1, 256, dtype=tm.int64)
        for _ in range(2):
            update.zero_grad()
            model.loss(ids, ids).backward()
            update.step()

    parameters, table = 8_030_261_248, 128_256 * 4096  # whose gradient, the last in backward, is not there at the peak
    whole, thin = (memory.predict(train, adapters) for adapters in (False, True))
    gone = 6 * parameters - 2 * table  # a gradient and two moments, 2 bytes each
    assert 0.98 * gone < whole.peak - thin.peak < gone
    matrices = 32 * 16 * (4096 + 4096 + 4096 + 1024)  # of q_proj and of v_proj
    assert thin.by_category()[memory.Category.OPTIMIZER_STATE] == 2 * 4 * matrices


def test_never_above_pytorch_with_peft():
    def train() -> Any:
        layers = [torch.nn.Linear(512, 512, bias=False), torch.nn.ReLU(), torch.nn.Linear(512, 512, bias=False)]
        model = peft.get_peft_model(torch.nn.Sequential(*layers), peft.LoraConfig(r=R, target_modules=["0", "2"]))
        update = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], foreach=False)
        for _ in range(2):
            update.zero_grad()
            model(torch.ones(16, 512)).sum().backward()
            update.step()
        return model

    other, ours = pytorch_peak(train), training.requested(memory.predict(step, {}))
    assert 0.6 * other <= ours <= other, (ours, other)


def test_refusals_in_words():
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Conv1d(1, 1, 1), nn.Linear(8, 5))

    for r in (0, 7, 2.0, True):
        with pytest.raises(ValueError, match=r"expected a rank r from 1 to 6 for 0, 6 -> 8, found"):
            lora(model(), r=r)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no module's path ends with 'q_proj'; linear layers are 0, 2"):
        lora(model(), target_modules=("q_proj",))
    with pytest.raises(NotImplementedError, match="lora: 1 is a Conv1d: only layers of class Linear are offered"):
        lora(model(), target_modules="1")
    with pytest.raises(ValueError, match="dropout probability"):
        lora(model(), r=2, lora_dropout=1.5)
    with pytest.raises(
        ValueError, match="lora: the model has one linear layer, 0, which is taken for its output: nothing is left"
    ):
        lora(nn.Sequential(nn.Linear(2, 2)), r=1)  # it would freeze all, and train nothing
    with pytest.raises(ValueError, match="lora: the model has no linear layer: nothing is left to change"):
        lora(nn.ReLU(), r=1)
    kept = model()
    with pytest.raises(ValueError, match="no module's path"):
        lora(kept, target_modules=("0", "other"))
    with pytest.raises(ValueError, match="dropout probability"):
        lora(kept, r=2, lora_dropout=1.5)
    assert all(p.requires_grad for p in kept.parameters())  # nothing was changed
    assert not any(isinstance(each, LoraLinear) for each in kept.modules())
