"""Frozen weights in NF4 and int8: the paper's table in every bin, bytes by hand, and LoRA over them with peft's numbers."""

from __future__ import annotations

import contextlib
import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.models.test_llama import CASES, fields, theirs, transformers
from tests.ops.cases.quantize import NF4
from tests.predicted import difference, difference_on_gpu
from tests.profiles import some
from tinygrad_mem import memory, nn
from tinygrad_mem.autograd.core import apply
from tinygrad_mem.devices import device, round_up
from tinygrad_mem.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from tinygrad_mem.errors import ArgumentError, NotOfferedError
from tinygrad_mem.functional.quantize import quantize_blocks
from tinygrad_mem.kernels.code_tables import TABLES
from tinygrad_mem.models.llama import llama
from tinygrad_mem.models.precision import Step
from tinygrad_mem.models.published import published
from tinygrad_mem.nn.parallel import DistributedDataParallel
from tinygrad_mem.ops.quantize import Quantize
from tinygrad_mem.techniques import LoraLinear, QuantizedLinear, compressed, lora, quantize_frozen, save_on_cpu

KINDS = [("nf4", True), ("nf4", False), ("int8", False)]
KIND = pytest.mark.parametrize(("quant_type", "double"), KINDS, ids=["nf4", "nf4 without double quantization", "int8"])
N, IN, OUT, R = 64, 256, 384, 8


def quantized(layer: nn.Linear, quant_type: str = "nf4", double: bool | None = None) -> QuantizedLinear:
    """The layer, quantized."""
    model = nn.Sequential(layer)
    return quantize_frozen(model, quant_type, double, "0").get_submodule("0")  # type: ignore[return-value]


def parts(n: int, out: int, quant_type: str, double: bool) -> list[int]:
    """Bytes of the arrays of a matrix of n weights in ``out`` rows, by hand."""
    if quant_type == "int8":
        return [n, 4 * out]
    blocks = -(-n // 64)
    return [n // 2, blocks, 4 * -(-blocks // 256), 4] if double else [n // 2, 4 * blocks]


# --- the table


def test_the_table_is_the_papers_to_the_last_bit_and_its_rule():
    """Its rule: quantiles of the normal distribution at even probabilities, 8 positive, 7 negative, and 0; divided by the last.

    The paper's figures were computed in float32, and so differ from the rule in the 7th digit.
    """
    np.testing.assert_array_equal(TABLES["nf4"].numbers, NF4.astype(np.float32))
    outermost = (1 - 1 / 30 + 1 - 1 / 32) / 2
    positive, negative = (norm.ppf(np.linspace(outermost, 0.5, count + 1)[:-1]) for count in (8, 7))
    rule = np.sort(np.concatenate([positive, [0.0], -negative])) / positive[0]
    np.testing.assert_allclose(NF4, rule, rtol=0, atol=2e-7)


def test_each_number_goes_to_the_nearest_of_the_16(dev: str):
    """In every bin: at its number, and close to both of its borders."""
    middles = (NF4[1:] + NF4[:-1]) / 2
    np.testing.assert_array_equal(TABLES["nf4"].borders[:-1], middles.astype(np.float32))
    low, high = np.append(-1.0, middles + 1e-6), np.append(middles - 1e-6, 1.0)
    shares = np.stack([low, NF4, high], 1).reshape(-1)  # 48, among them -1 and 1
    block = np.append(shares, [0.0] * 16) * 3.5
    found = quantized(nn.Linear(64, 1, bias=False).to(dev))
    layer = nn.Linear(64, 1, bias=False, device=dev)
    with tm.no_grad():
        layer.weight.copy_(tm.tensor(block.astype(np.float32)[None]))
    found = quantized(layer, double=False)
    codes = found.codes.cpu().numpy()
    numbers = np.stack([codes & 15, codes >> 4], 1).reshape(-1)[:48]
    np.testing.assert_array_equal(numbers, np.repeat(np.arange(16), 3))
    assert found.absmax.cpu().numpy() == [3.5]
    wanted = np.repeat(NF4, 3).astype(np.float32) * np.float32(3.5)
    np.testing.assert_array_equal(found.dequantized().cpu().numpy()[0, :48], wanted)


def test_double_quantization_by_its_rule():
    """The scales, less their mean, in blocks of 256: each is the nearest of 256 numbers times the largest of its block."""
    rng = np.random.default_rng(0)
    layer = nn.Linear(64, 600, bias=False)
    weight = (rng.standard_normal((600, 64)) * rng.uniform(0.1, 3, (600, 1))).astype(np.float32)
    with tm.no_grad():
        layer.weight.copy_(tm.tensor(weight))
    found = quantized(layer)
    absmax = np.abs(weight).max(1)
    offset = absmax.mean(dtype=np.float64)
    np.testing.assert_allclose(found.offset.numpy(), offset, rtol=1e-6)
    numbers = TABLES["dynamic"].values["d"]
    for start in (0, 256, 512):
        some = absmax[start : start + 256] - found.offset.item()
        top = np.abs(some).max()
        np.testing.assert_allclose(found.nested.numpy()[start // 256], top, rtol=1e-6)
        errors = np.abs(numbers[found.absmax.numpy()[start : start + 256]] * top - some)
        nearest = np.abs(numbers[:, None] * top - some).min(0)
        np.testing.assert_allclose(errors, nearest, rtol=0, atol=1e-6)
    scales = numbers[found.absmax.numpy()] * np.repeat(found.nested.numpy(), 256)[:600] + found.offset.item()
    plain = quantized(layer, double=False)
    np.testing.assert_array_equal(found.codes.numpy(), plain.codes.numpy())
    shares = plain.dequantized(tm.float64).numpy() / absmax[:, None].astype(np.float64)
    np.testing.assert_allclose(found.dequantized().numpy(), shares * scales[:, None], rtol=1e-5, atol=1e-6)


def test_int8_rounds_each_row_to_even_steps():
    layer = nn.Linear(50, 7)
    found, weight = quantized(layer, "int8"), layer.weight.numpy()
    top = np.abs(weight).max(1, keepdims=True)
    np.testing.assert_array_equal(found.codes.numpy().reshape(7, 50), np.rint(weight / top * np.float32(127)) + 127)
    np.testing.assert_array_equal(found.absmax.numpy(), top[:, 0])
    assert np.abs(found.dequantized().numpy() - weight).max() <= (top / 127 / 2).max() * 1.0001


@KIND
def test_a_block_with_a_number_that_is_not_finite_is_not_finite(quant_type: str, double: bool, dev: str):
    for bad in (np.nan, np.inf):
        layer = nn.Linear(64, 3, bias=False, device=dev)
        with tm.no_grad():
            layer.weight[1, 5] = bad
        found = quantized(layer, quant_type, double).dequantized().cpu().numpy()
        assert not np.isfinite(found[1, 5])
        assert np.isfinite(found[[0, 2]]).all() != double


@KIND
def test_zeros_stay_zeros(quant_type: str, double: bool):
    layer = nn.Linear(64, 3, bias=False)
    with tm.no_grad():
        layer.weight[1] = 0.0
        layer.weight[2, :32] = 0.0
    found = quantized(layer, quant_type, double).dequantized().numpy()
    assert np.abs(found[1]).max() <= (0.02 if double else 0)  # the scale 0 is rounded too
    assert (found[2, :32] == 0).all()


# --- bytes


@KIND
def test_bytes_of_the_weights(quant_type: str, double: bool):
    """To the byte: what the arrays hold, and what the pool counts, which rounds each up to 512."""
    sizes = parts(IN * OUT, OUT, quant_type, double)
    found = quantized(nn.Linear(IN, OUT, bias=False), quant_type, double)
    assert [p.numel() * p.dtype.itemsize for p in found.parameters()] == sizes
    assert not any(p.requires_grad for p in found.parameters())

    def make() -> None:
        layer = quantized(nn.Linear(IN, OUT, bias=False), quant_type, double)
        memory.mark("made")
        del layer

    found = memory.predict(make).by_category("made")
    assert found[memory.Category.PARAMETER] == sum(found.values()) == sum(map(round_up, sizes))
    if double:
        assert sum(sizes) == IN * OUT * (0.5 + 1 / 64 + 4 / (64 * 256)) + 4


def saved(quant_type: str | None, double: bool, dtype: Any = tm.float32, **options: Any) -> int:
    """Bytes that a layer with LoRA saves beside parameters, of an input of N rows that requires a gradient."""
    model = nn.Sequential(nn.Linear(IN, OUT, dtype=dtype))
    if quant_type:
        quantize_frozen(model, quant_type, double, "0")
    if options:
        lora(model, target_modules="0", **options)
    rows = memory.saved(model, tm.randn(N, IN, dtype=dtype).requires_grad_())
    held = {p.storage for p in model.parameters()}
    assert len(held) == sum(1 for _ in model.parameters())
    shapes = {tuple(p.shape) for p in model.parameters()}
    return sum(row.bytes for row in rows if row.first and tuple(row.shape) not in shapes)


@KIND
def test_bytes_that_a_frozen_base_does_and_does_not_save(quant_type: str, double: bool):
    """Nothing by itself; LoRA keeps the input (cast, and with dropout the dropped copy), as it does over any frozen layer."""
    x, thin = round_up(N * IN * 4), round_up(N * R * 4)
    assert saved(quant_type, double) == 0
    assert saved(quant_type, double, r=R) == saved(None, False, r=R) == x + thin
    assert saved(quant_type, double, r=R, lora_dropout=0.1) == x + thin
    assert saved(quant_type, double, r=R, train_a=False) == thin
    assert saved(quant_type, double, tm.float16, r=R) == x + thin  # the copy in float32, and not the input in float16


def step(quant_type: str | None, double: bool | None = None, size: int = 512, **how: Any) -> None:
    model = nn.Sequential(nn.Linear(size, size, bias=False), nn.ReLU(), nn.Linear(size, size, bias=False))
    if quant_type is not None:
        quantize_frozen(model, quant_type, double, ("0", "2"))
    lora(model, r=R, target_modules=("0", "2"), **how)
    update = tm.optim.Adam([p for p in model.parameters() if p.requires_grad])
    for _ in range(2):
        update.zero_grad()
        model(tm.ones(16, size)).sum().backward()
        update.step()
    memory.mark("the end")


@KIND
def test_bytes_of_a_step(quant_type: str, double: bool):
    """The weights shrink by the formula; each exists in float32 while it is multiplied; nothing else changes."""
    plain, small = memory.predict(step, None), memory.predict(step, quant_type, double)
    category, weight, matrices = memory.Category, 512 * 512 * 4, 4 * 512 * R * 4
    codes = sum(map(round_up, parts(512 * 512, 512, quant_type, double)))
    last = plain.by_category("the end"), small.by_category("the end")
    assert [each[category.PARAMETER] for each in last] == [2 * weight + matrices, 2 * codes + matrices]
    for each in (category.GRADIENT, category.OPTIMIZER_STATE):
        assert last[0][each] == last[1][each] == matrices * (2 if each == category.OPTIMIZER_STATE else 1)
    whole = [block for block in small.blocks() if block.op.startswith("QuantizedLinear") and block.rounded >= weight]
    assert {block.rounded for block in whole} == {weight}
    assert len(whole) == 2 * 3  # in both forwards, and in the second one's backward: the first layer's input needs no gradient


@KIND
@pytest.mark.parametrize("how", [{}, {"lora_dropout": 0.1, "use_dora": True}], ids=str)
def test_a_step_is_predicted(quant_type: str, double: bool, how: dict):
    assert difference(lambda: step(quant_type, double, 64, **how)) == ""


@pytest.mark.cuda
def test_a_step_on_a_gpu_is_predicted():
    assert difference_on_gpu(lambda: step("nf4", True, 64)) == ""


def language_model(case: str, quant_type: str, dtype: Any = tm.float32) -> None:
    """Two steps of QLoRA of a small model of a family."""
    model = Step(str(dtype), "cpu").make(lambda: llama(fields(case)))
    lora(quantize_frozen(model, quant_type), r=4)
    update = tm.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    ids = tm.zeros(2, 10, dtype=tm.int64)
    for _ in range(2):
        update.zero_grad()
        model.loss(ids, ids).backward()
        update.step()


def test_codes_are_neither_offloaded_nor_compressed():
    """They are there anyway: the host gets activations, and gradients are the same bit for bit."""
    tm.manual_seed(0)
    model = quantize_frozen(nn.Sequential(nn.Linear(96, 640), nn.Tanh(), nn.Linear(640, 640), nn.Tanh(), nn.Linear(640, 3)))
    host, found = device("cpu").pool.host(), []
    for around in (contextlib.nullcontext(), save_on_cpu(), compressed(bits=16)):
        x = tm.linspace(-1, 1, 64 * 96).reshape(64, 96).requires_grad_() * 1
        x.retain_grad()
        with around:
            y = model(x)
            moved = host.used_bytes()
        y.sum().backward()
        found.append((x.grad.numpy(), moved))
    (plain, none), (offloaded, moved), (half, _) = found
    np.testing.assert_array_equal(plain, offloaded)
    assert (none, moved) == (0, 2 * 64 * 640 * 4)
    np.testing.assert_allclose(half, plain, rtol=0.02, atol=0.02 * np.abs(plain).max())


def held(how: str, **options: Any) -> dict[memory.Category, int]:
    """Bytes after a forward of a small Llama, by category: all of it trained (``full``), LoRA, or QLoRA."""

    def run() -> None:
        model = llama(fields("llama"))
        if how == "nf4":
            quantize_frozen(model)
        if how != "full":
            lora(model, r=4, target_modules=("q_proj", "v_proj"), **options)
        update = tm.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        ids = tm.zeros(2, 10, dtype=tm.int64)
        model.loss(ids, ids).backward()
        update.step()
        memory.mark("a step has ended")
        update.zero_grad()
        loss = model.loss(ids, ids)
        memory.mark("forward ends")
        loss.backward()

    track = memory.predict(run)
    found = track.by_category("forward ends")
    return found | {memory.Category.GRADIENT: track.by_category("a step has ended")[memory.Category.GRADIENT]}


def test_weights_stay_gradients_and_moments_go_activations_mostly_stay():
    """To the byte, on a small Llama: 3 blocks of width 64, 2 x 10 tokens, LoRA of rank 4 on queries (64) and values (32)."""
    full, thin, nf4 = held("full"), held("lora"), held("nf4")
    category = memory.Category
    adapters = 3 * sum(map(round_up, (4 * 4 * 64, 4 * 4 * 64, 4 * 4 * 64, 4 * 4 * 32)))
    assert thin[category.PARAMETER] == full[category.PARAMETER] + adapters
    block = (64 * 64, 64 * 32, 64 * 32, 64 * 64, 64 * 96, 64 * 96, 96 * 64)
    shapes = ((64, 64), (32, 64), (32, 64), (64, 64), (96, 64), (96, 64), (64, 96))
    codes = [sum(map(round_up, parts(n, out, "nf4", True))) for n, (out, _) in zip(block, shapes, strict=True)]
    assert nf4[category.PARAMETER] == thin[category.PARAMETER] - 3 * sum(round_up(4 * n) for n in block) + 3 * sum(codes)
    for each in (thin, nf4):
        assert each[category.GRADIENT] == adapters
        assert each[category.OPTIMIZER_STATE] == 2 * adapters
    assert full[category.GRADIENT] == full[category.PARAMETER]
    assert full[category.OPTIMIZER_STATE] == 2 * full[category.PARAMETER]
    assert nf4[category.ACTIVATION] == thin[category.ACTIVATION], "codes change no activation"
    assert 0.6 * full[category.ACTIVATION] < thin[category.ACTIVATION] < full[category.ACTIVATION]


def test_with_dropout_each_adapter_keeps_its_own_copy_of_the_input():
    """Without dropout queries and values share it. With it each keeps a dropped copy, and nobody the input."""
    category, x = memory.Category, round_up(2 * 10 * 64 * 4)
    for how in ("lora", "nf4"):
        plain, dropped = held(how), held(how, lora_dropout=0.1)
        assert dropped[category.ACTIVATION] - plain[category.ACTIVATION] == 3 * (2 - 1) * x


FAMILIES = [case for case in CASES if not case.startswith(("mixtral", "qwen3_moe")) or case == "mixtral"]


@pytest.mark.parametrize("case", some(FAMILIES, ["llama", "gemma2", "phi3"]))
def test_of_each_family_a_step_is_predicted(case: str):
    for quant_type in some(["nf4", "int8"], ["nf4"]):
        assert difference(lambda: language_model(case, quant_type)) == ""  # noqa: B023


@pytest.mark.cuda
@pytest.mark.parametrize("case", some(FAMILIES, ["qwen2"]))
def test_of_each_family_a_step_on_a_gpu_is_predicted(case: str):
    for quant_type in some(["nf4", "int8"], ["nf4"]):
        assert difference_on_gpu(lambda: language_model(case, quant_type)) == ""  # noqa: B023


@pytest.mark.parametrize("case", CASES)
def test_the_same_layers_are_quantized_as_by_transformers(case: str, monkeypatch: pytest.MonkeyPatch):
    """Not the experts' matrices, which are no layers. The layers of bitsandbytes, which needs a GPU, are played here."""
    bitsandbytes = pytest.importorskip("transformers.integrations.bitsandbytes")
    played = type("Linear4bit", (torch.nn.Module,), {"__init__": lambda self, *sizes, **how: torch.nn.Module.__init__(self)})
    monkeypatch.setattr(bitsandbytes, "bnb", SimpleNamespace(nn=SimpleNamespace(Linear4bit=played)), raising=False)
    config = transformers.BitsAndBytesConfig(load_in_4bit=True)
    other = bitsandbytes.replace_with_bnb_linear(theirs(fields(case)), ["lm_head"], config)
    mine = quantize_frozen(llama(fields(case)))
    wanted = {name for name, module in other.named_modules() if type(module) is played}
    assert {name for name, module in mine.named_modules() if type(module) is QuantizedLinear} == wanted
    assert len(wanted) >= 3 * mine.config.num_hidden_layers
    assert any("experts" in name for name, _ in mine.named_parameters()) == ("moe" in case or case == "mixtral")


def test_of_the_big_networks():
    """Llama-3-8B: 224 matrices of 6,979,321,856 weights; embedding, norms and output stay in bfloat16."""

    with tm.device("meta"):  # as a program that reads its weights file by file: never all in bfloat16
        model = quantize_frozen(Step("bfloat16", "cpu").make(lambda: llama(published("llama-3-8b"))))
    track = memory.predict(lambda: (model.to_empty(device="cpu"), memory.mark("made")))
    n, others = 6_979_321_856, 8_030_261_248 - 6_979_321_856
    exact = n * (0.5 + 1 / 64 + 4 / (64 * 256)) + 2 * others
    found = track.by_category("made")[memory.Category.PARAMETER]
    assert found == track.peak
    assert exact <= found <= exact + 4 * 224 * 512
    assert round(exact / 1e9, 2) == 5.7


# --- numbers


def pair(quant_type: str, double: bool, **options: Any) -> tuple[Any, Any]:
    """Our quantized model with LoRA, and peft's over the dequantized weights, in float64."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = [(64, 40), (40, 48), (48, 3)]
    mine: Any = nn.Sequential(*[nn.Linear(*each) for each in sizes]).double()
    quantize_frozen(mine, quant_type, double)
    other = torch.nn.Sequential(*[torch.nn.Linear(*each) for each in sizes]).double()
    for ours, layer in zip(mine, other, strict=True):
        weight = ours.dequantized(tm.float64) if isinstance(ours, QuantizedLinear) else ours.weight.detach()
        layer.weight.data, layer.bias.data = torch.tensor(weight.numpy()), torch.tensor(ours.bias.detach().numpy())
    how = {"r": 2, "lora_alpha": 6, **options}
    other = peft.get_peft_model(other, peft.LoraConfig(target_modules=["0", "1"], **how)).double()
    lora(mine, target_modules=["0", "1"], dtype=tm.float64, **how)
    values = dict(other.named_parameters())
    for name, value in mine.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            theirs = values["base_model.model." + name.replace(".weight", ".default.weight")]
            theirs.data = torch.randn_like(theirs)
            value.data.copy_(tm.tensor(theirs.detach().numpy()))
    return mine, other


@KIND
@pytest.mark.parametrize("form", [{}, {"use_dora": True}], ids=str)
def test_equal_to_pytorch_with_peft_on_the_dequantized_weights(quant_type: str, double: bool, form: dict):
    mine, other = pair(quant_type, double, **form)
    values = np.random.default_rng(0).standard_normal((4, 64))
    for _ in range(3):
        x, y = tm.tensor(values).requires_grad_(), torch.tensor(values).requires_grad_()
        found, wanted = mine(x), other(y)
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-10, atol=1e-10)
        found.square().mean().backward()
        wanted.square().mean().backward()
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-9, atol=1e-10)
        for library, model in ((tm, mine), (torch, other)):
            library.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01).step()
            for p in model.parameters():
                p.grad = None


@KIND
@pytest.mark.parametrize("form", [{}, {"use_dora": True}], ids=str)
def test_merged_and_unmerged_it_is_the_same(quant_type: str, double: bool, form: dict):
    mine, _ = pair(quant_type, double, **form)
    x = tm.tensor(np.random.default_rng(0).standard_normal((4, 64)))
    before, names, codes = mine(x).detach().numpy(), list(mine.state_dict()), mine[0].base_layer.codes.numpy().copy()
    for change in ("merge", "merge", "unmerge", "unmerge"):  # the second of each does nothing
        for layer in (mine[0], mine[1]):
            getattr(layer, change)()
        np.testing.assert_allclose(mine(x).detach().numpy(), before, rtol=1e-10, atol=1e-10)
        assert (mine[0].merged_weight is None) == (change == "unmerge")
    assert list(mine.state_dict()) == names
    np.testing.assert_array_equal(mine[0].base_layer.codes.numpy(), codes)


def test_merged_bytes():
    """A matrix in the dtype of the thin ones, beside the codes, until unmerge."""
    model = lora(quantize_frozen(nn.Sequential(nn.Linear(IN, OUT)), target_modules="0"), r=R, target_modules="0")
    layer: Any = model.get_submodule("0")
    pool = device("cpu").pool
    before = pool.used_bytes()
    layer.merge()
    assert pool.used_bytes() - before == round_up(IN * OUT * 4)
    layer.unmerge()
    assert pool.used_bytes() == before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_the_product_is_in_the_inputs_dtype(dtype: str):
    layer = quantized(nn.Linear(96, 40))
    x = tm.randn(5, 96).to(dtype).requires_grad_()
    layer.bias.data = layer.bias.data.to(dtype)
    y = layer(x)
    y.sum().backward()
    assert str(y.dtype) == str(x.grad.dtype) == dtype
    wanted = nn.functional.linear(x.detach(), layer.dequantized(x.dtype), layer.bias)
    np.testing.assert_array_equal(y.detach().float().numpy(), wanted.float().numpy())


def test_autocast_lowers_the_product_and_leaves_the_scales():
    layer, x = quantized(nn.Linear(96, 40)), tm.randn(5, 96)
    with tm.autocast("cpu", dtype=tm.bfloat16):
        y = layer(x)
    assert y.dtype == tm.bfloat16
    low = nn.functional.linear(x.bfloat16(), layer.dequantized(tm.bfloat16), layer.bias.bfloat16())
    np.testing.assert_array_equal(y.float().numpy(), low.float().numpy())


def test_a_retained_graph_and_a_checkpoint_dequantize_again():
    layer, x = quantized(nn.Linear(96, 40)), tm.randn(5, 96, requires_grad=True)
    y = layer(x).sum()
    y.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * first)
    x.grad = None
    tm.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), first)


# --- files and copies


@KIND
def test_a_state_dict_is_saved_and_loaded(quant_type: str, double: bool, tmp_path: Any):
    def made() -> nn.Module:
        model = nn.Sequential(nn.Linear(96, 64), nn.Linear(64, 8), nn.Linear(8, 2))
        return lora(quantize_frozen(model, quant_type, double), r=2)

    model, other, x = made(), made(), tm.randn(4, 96)
    own = ["codes", "absmax", *["nested", "offset"] * double, "bias"]
    names = [f"0.base_layer.{name}" for name in own]
    assert [name for name in model.state_dict() if name.startswith("0.base_layer")] == names
    tm.save(model.state_dict(), tmp_path / "model.safetensors")
    assert not np.array_equal(model(x).detach().numpy(), other(x).detach().numpy())
    other.load_state_dict(tm.load(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(model(x).detach().numpy(), other(x).detach().numpy())
    np.testing.assert_array_equal(copy.deepcopy(model)(x).detach().numpy(), model(x).detach().numpy())
    whole = nn.Sequential(nn.Linear(96, 64), nn.Linear(64, 8), nn.Linear(8, 2))
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.codes"'):
        quantize_frozen(copy.deepcopy(whole), quant_type, double).load_state_dict(whole.state_dict())


def test_it_moves_to_a_gpu_and_back(dev: str):
    layer, x = quantized(nn.Linear(96, 40)), tm.randn(5, 96)
    before = layer(x).numpy()
    np.testing.assert_allclose(layer.to(dev)(x.to(dev)).cpu().numpy(), before, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(layer.to("cpu")(x).numpy(), before)


# --- refusals


def test_refusals_in_words():
    def model() -> Any:
        return nn.Sequential(nn.Linear(6, 8), nn.Conv1d(1, 1, 1), nn.Linear(8, 5))

    with pytest.raises(ValueError, match="quant_type is 'nf4' or 'int8', found 'fp4'"):
        quantize_frozen(model(), "fp4")
    with pytest.raises(NotImplementedError, match="int8 has one scale a row: double_quantization is for nf4"):
        quantize_frozen(model(), "int8", True)
    with pytest.raises(ValueError, match="quantize_frozen: no module's path ends with 'q_proj'; linear layers are 0, 2"):
        quantize_frozen(model(), target_modules="q_proj")
    with pytest.raises(NotImplementedError, match="quantize_frozen: 1 is a Conv1d: only layers of class Linear are offered"):
        quantize_frozen(model(), target_modules=("0", "1"))
    with pytest.raises(ValueError, match=r"quantize_frozen: 0.lora_A is LoRA's: quantize the model first, and add LoRA then"):
        quantize_frozen(lora(model(), r=2))
    tied = model()
    tied.again = nn.Linear(6, 8)
    tied.again.weight = tied[0].weight
    with pytest.raises(ValueError, match="the weight of 0 is another module's too: leave it out of target_modules"):
        quantize_frozen(tied, target_modules="0")
    watched = model()
    watched[0].register_forward_hook(lambda module, inputs, output: None)
    with pytest.raises(ValueError, match="0 has hooks, which a quantized layer would not have: remove them first"):
        quantize_frozen(watched, target_modules="0")
    with pytest.raises(ValueError, match="0 has rows of 70000, int8 takes up to 65536: use nf4"):
        quantize_frozen(nn.Sequential(nn.Linear(70_000, 2, device="meta")), "int8", target_modules="0")
    kept = model()
    with pytest.raises(ValueError, match="no module's path"):
        quantize_frozen(kept, target_modules=("0", "other"))
    assert all(p.requires_grad for p in kept.parameters())  # nothing was changed
    assert not any(isinstance(each, (LoraLinear, QuantizedLinear)) for each in kept.modules())


def test_numbers_are_floating():
    with pytest.raises(TypeError, match="quantize_blocks: expected a floating tensor, found int64"):
        quantize_blocks(tm.arange(64), "nf4", 64, True)
    with pytest.raises(TypeError, match="quantize: expected a floating tensor, found int64"):
        apply(Quantize, tm.arange(64), bits=8, group=16, ticket=(3, 4))
    layer = quantized(nn.Linear(64, 3))
    for run in (lambda: layer(tm.ones(2, 64, dtype=tm.int64)), lambda: layer.dequantized(tm.int64)):
        with pytest.raises(TypeError, match="dequantized numbers have a floating dtype, found int64"):
            run()


def test_the_base_is_neither_trained_nor_cast_nor_written():
    layer = quantized(nn.Linear(96, 40))
    model = nn.Sequential(layer, nn.Linear(40, 2))
    for cast in (
        model.float,
        model.half,
        model.double,
        model.bfloat16,
        lambda: model.to(tm.float32),
        lambda: model.type("float32"),
    ):
        with pytest.raises(
            NotImplementedError, match=r"QuantizedLinear: its weight is quantized. Cast the model first, and quant"
        ):
            cast()
    with pytest.raises(
        NotImplementedError, match=r"this layer's weight is in nf4 and cannot be read or written: dequantized\(\)"
    ):
        layer.weight.data.zero_()
    with pytest.raises(RuntimeError, match="only Tensors of floating point dtype can require gradients, found uint8"):
        model.requires_grad_()
    x = tm.randn(2, 96, requires_grad=True)
    layer.nested.requires_grad_()
    with pytest.raises(RuntimeError, match="a weight in nf4 is frozen, and its scales cannot be trained"):
        layer(x)
    layer.nested.requires_grad_(False)
    y = layer(x).sum()
    layer.codes.zero_()
    with pytest.raises(RuntimeError, match=r"QuantizedLinear saved 'codes' at version 0; .* has written to it since"):
        y.backward()
    with pytest.raises(RuntimeError, match=r"linear: mat1 and mat2 shapes cannot be multiplied: x is 2x5, weight is 40x96"):
        layer(tm.randn(2, 5))


# --- over ranks (its numbers and bytes there: tests/distributed/programs/quantized.py)


def over_ranks(first: str) -> None:
    dist.init_process_group()
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 3))
    if first == "param_dtype":
        fully_shard(lora(quantize_frozen(model), 4), mp_policy=MixedPrecisionPolicy(param_dtype=tm.bfloat16))
    model = DistributedDataParallel(model) if first == "DDP" else fully_shard(model)
    quantize_frozen(model) if first != "LoRA" else lora(model, 4)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("fully_shard", "quantize_frozen: 0.weight is divided among ranks: call quantize_frozen first, and fully_shard then"),
        ("LoRA", "lora: 0.weight is divided among ranks: call lora first, and fully_shard then"),
        ("DDP", "quantize_frozen: module.0.weight has a hook on its gradient, as DistributedDataParallel"),
        ("param_dtype", "param_dtype casts all parameters, and 0.base_layer.codes is no floating one: leave param_dtype out"),
    ],
)
def test_over_ranks_it_comes_first(first: str, said: str):
    with pytest.raises((ArgumentError, NotOfferedError), match=said):
        memory.predict(over_ranks, first, world_size=2)
