"""The family of Llama against transformers: names, counts, logits; its memory against predictions; its cache; its files."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.predicted import difference, difference_on_gpu
from tests.profiles import pairs, share
from tinygrad_mem import memory
from tinygrad_mem.models.configuration import FAMILIES, Configuration, configuration
from tinygrad_mem.models.key_values import Cache
from tinygrad_mem.models.llama import LanguageModel, llama
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.models.published import PUBLISHED, published
from tinygrad_mem.models.weights import load_weights
from tinygrad_mem.recompute import checkpoint_blocks
from tinygrad_mem.techniques import checkpoints_on_cpu

transformers = pytest.importorskip("transformers")

TINY = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8}
TINY |= {"num_key_value_heads": 4, "max_position_embeddings": 64}
STRETCHED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 2.1, 2.2, 2.3]}
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-3.1": {
        "rope_parameters": STRETCHED | {"original_max_position_embeddings": 32, "rope_theta": 5e5},
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    },
    "llama-yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "llama-linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "llama-dynamic": {"max_position_embeddings": 10, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    "mistral": {"sliding_window": 5},
    "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24},
    "gemma3_text": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention"]},
    "phi3": {"sliding_window": 6},
    "phi3-long": {"max_position_embeddings": 64, "original_max_position_embeddings": 8, "rope_scaling": LONG},
    "mixtral": {},
    "qwen3_moe": {"head_dim": 16, "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "norm_topk_prob": True},
}  # fmt: skip
COUNTS = {
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192, "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496, "llama-3.1-8b": 8_030_261_248, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824, "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552, "qwen2-0.5b": 494_032_768, "qwen2-1.5b": 1_543_714_304, "qwen2-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648, "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360, "qwen3-32b": 32_762_123_264, "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984, "gemma-2-27b": 27_227_128_320, "gemma-3-1b": 999_885_952, "gemma-3-4b": 3_880_263_168,
    "phi-3-mini-4k": 3_821_079_552, "phi-3-medium-4k": 13_960_238_080, "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
}  # fmt: skip


def fields(case: str) -> dict[str, Any]:
    return {"model_type": case.partition("-")[0], **TINY, **CASES[case]}


def theirs(said: dict[str, Any]) -> Any:
    said = copy.deepcopy(said)
    config = transformers.AutoConfig.for_model(said.pop("model_type"), pad_token_id=0, **said)
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_config(config, **how)


def both(case: str) -> tuple[LanguageModel, Any]:
    """Our model and transformers', with the same random weights, in float64."""
    torch.manual_seed(0)
    other = theirs(fields(case)).double().eval()
    for parameter in other.parameters():
        parameter.data = torch.randn_like(parameter) * 0.2
    mine = llama(fields(case)).double().eval()
    mine.load_state_dict({name: tm.tensor(value.numpy()) for name, value in other.state_dict().items()})
    return mine, other


def tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, TINY["vocab_size"], shape)  # 0 is the padding, which gets no gradient there


def test_each_family_has_a_case():
    assert {case.partition("-")[0] for case in CASES} == set(FAMILIES)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_are_those_of_transformers(case: str):
    mine, other = both(case)
    ids = tokens(2, 12)
    found, wanted = mine(tm.tensor(ids)), other(torch.tensor(ids), use_cache=False).logits
    # both compute angles in float32
    np.testing.assert_allclose(
        found.detach().numpy(), wanted.detach().numpy(), rtol=1e-5, atol=2e-6 * wanted.abs().max().item()
    )
    found.square().mean().backward()
    wanted.square().mean().backward()
    parameters = dict(other.named_parameters())
    assert len(parameters) == sum(1 for _ in mine.parameters())
    for name, p in mine.named_parameters():
        grad = parameters[name].grad
        largest = grad.abs().max().item()
        np.testing.assert_allclose(p.grad.numpy(), grad.numpy(), rtol=1e-4, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_parameters_of_transformers(name: str):
    with tm.device("meta"), torch.device("meta"):
        mine, other = llama(published(name)), theirs(PUBLISHED[name])
    assert {k: tuple(v.shape) for k, v in mine.state_dict().items()} == {
        k: tuple(v.shape) for k, v in other.state_dict().items()
    }
    assert sum(p.numel() for p in mine.parameters()) == COUNTS[name]
    assert NETWORKS[name].tokens == published(name).vocab_size


@pytest.mark.parametrize("case", CASES)
def test_a_step_and_generation_are_predicted(case: str):
    said = fields(case) | {"num_hidden_layers": 2}  # one with a window and one without, where there are both
    if "layer_types" in said:
        said["layer_types"] = said["layer_types"][:2]
    config = configuration(said)

    def step() -> None:
        model = llama(config)
        update = tm.optim.AdamW(model.parameters())
        ids = tm.tensor(tokens(2, 8))
        for _ in range(2):
            update.zero_grad()
            model.loss(ids, ids).backward()
            update.step()

    def inference() -> None:
        model = llama(config)
        with tm.no_grad():
            model(tm.tensor(tokens(2, 8)))
            model(tm.tensor(tokens(2, 8)), last=1)

    def generation() -> None:
        """With a static cache, which slides where the model has windows of 4 to 6 tokens; of some models it is quantized."""
        model = llama(config)
        for bits in share((None, 8, 4), 3, case):
            generated(model, Cache(config, 2, 8, bits=bits), 4)
            model.prefill(tm.tensor(tokens(2, 8)), Cache(config, 2, 8, bits=bits), 3)

    for run in (step, inference, generation):
        assert difference(run) == "", run.__name__


def generated(model: LanguageModel, cache: Cache, steps: int) -> tm.Tensor:
    """The logits of a prompt of 4 tokens, and of ``steps`` more, each alone."""
    ids = tm.tensor(tokens(2, 4 + steps))
    with tm.no_grad():
        found = [model(ids[:, :4], cache)]
        found += [model(ids[:, i : i + 1], cache) for i in range(4, 4 + steps)]
        return tm.cat(found, 1)


def assert_close(found: np.ndarray, wanted: np.ndarray, model: LanguageModel, near: float = 1e-10) -> None:
    """Two ways to the same float64 numbers. A router's weights are rounded to float32, as in transformers: products that differ
    in their last bit, as they may by the number of rows, differ by a float32's last bit after it.
    """
    relative = 1e-10
    if any(model.config.experts):
        relative = near = float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(found, wanted, rtol=relative, atol=near * np.abs(wanted).max())


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("phi3-long", "llama-dynamic")])
def test_with_a_cache_the_logits_are_the_same(case: str):
    model = both(case)[0]
    whole = model(tm.tensor(tokens(2, 12))).detach().numpy()
    cache = Cache(model.config, 2, 12, tm.float64)
    assert_close(generated(model, cache, 8).numpy(), whole, model)
    assert cache.length == 12
    rough = [generated(model, Cache(model.config, 2, 12, tm.float64, bits=bits), 8).numpy() for bits in (8, 4)]
    errors = [np.abs(each - whole).mean() / np.abs(whole).mean() for each in rough]
    assert 0 < errors[0] < 0.1, errors
    assert errors[0] < errors[1] < 1, errors


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_bytes_of_a_cache(bits: int | None):
    config = configuration(fields("mistral"))  # three layers with a window of 5

    def made() -> Cache:
        return Cache(config, 2, 12, tm.float16, bits=bits)

    rows, head = 2 * 5 * config.num_key_value_heads, config.head_dim
    codes, ranges = (rows * head * 2, 0) if bits is None else (rows * head * bits // 8, rows * 8)
    rounded = [-(-size // 512) * 512 for size in (codes, ranges)]
    assert memory.predict(made).peak == 3 * 2 * sum(rounded)


def test_a_cache_that_is_too_short_or_of_other_bits():
    model = llama(fields("llama"))
    with pytest.raises(ValueError, match=r"Cache: 4 tokens were read and 1 come, there is room for 4"):
        generated(model, Cache(model.config, 2, 4), 1)
    with pytest.raises(ValueError, match="bits is 4, 8 or None, found 3"):
        Cache(model.config, 2, 4, bits=3)


def test_the_bytes_of_experts_do_not_depend_on_the_choice():
    def step(spread: bool) -> None:
        model = llama(fields("mixtral"))
        if not spread:
            for block in model.model.layers:
                tm.nn.init.zeros_(block.mlp.gate.weight)  # all tokens choose the first two
        ids = tm.tensor(tokens(2, 8))
        model.loss(ids, ids).backward()

    assert difference(lambda: step(False)) == difference(lambda: step(True)) == ""
    assert memory.predict(step, False).peak == memory.predict(step, True).peak


@pytest.mark.parametrize("case", ["qwen3", "gemma2", "phi3", "mixtral"])
def test_the_loss_and_its_gradients_in_tiles_are_the_same(case: str):
    model, ids = both(case)[0].train(), tm.tensor(tokens(2, 12))
    found = []
    for tile in (None, 5):
        loss = model.in_tiles(tile).loss(ids, ids)
        found.append([loss.detach().numpy(), *(g.numpy() for g in tm.autograd.grad(loss, list(model.parameters())))])
    for a, b in zip(*found, strict=True):
        assert_close(a, b, model, 1e-12)


@pytest.mark.parametrize("case", ["llama", "gemma3_text"])
@pytest.mark.parametrize("how", ["sqrt", "every-block", 2])
def test_blocks_in_segments_have_the_same_gradients(case: str, how: str | int):
    """Also where layers have different position embeddings."""
    ids, found = tm.tensor(tokens(2, 12)), []
    for segments in (False, True):
        model = both(case)[0].train()
        loss = (checkpoint_blocks(model, how) if segments else model).loss(ids, ids)
        found.append([loss.detach().numpy(), *(g.numpy() for g in tm.autograd.grad(loss, list(model.parameters())))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def long_step(case: str, tile: int | None = None, device: str = "cpu", **changes: Any) -> None:
    """A step with every block recomputed, the inputs of blocks on the host."""
    with tm.device(device):
        model = llama(fields(case) | changes).in_tiles(tile)
        checkpoint_blocks(model, "every-block")
        ids = tm.tensor(tokens(1, 32), device=device)
        with checkpoints_on_cpu(pin_memory=True):
            loss = model.loss(ids, ids)
        memory.mark("forward")
        loss.backward()


@pytest.mark.parametrize("case", ["llama", "gemma2", "qwen3_moe"])
def test_a_step_with_a_long_context_is_predicted(case: str):
    assert difference(lambda: long_step(case, 5)) == ""


def test_bytes_of_a_long_context_by_formula():
    """What is kept on the device until backward does not depend on the number of blocks, nor on the widths inside."""
    kept = [
        memory.predict(
            long_step, "llama", 8, num_hidden_layers=layers, intermediate_size=inner, vocab_size=97 + inner
        ).by_category("forward")[memory.Category.ACTIVATION]
        for layers, inner in ((2, 96), (7, 96), (2, 4096))
    ]
    row = 4 * 32 * TINY["hidden_size"]
    # the last norm keeps its input (and a number a token); the loss keeps its own, and a number a token, and a number
    assert kept == [row + 512 + row + 512 + 512] * 3


@pytest.mark.parametrize(("case", "piece"), pairs(list(CASES), [1, 5, 12]))
def test_a_prompt_in_pieces_has_the_same_logits(case: str, piece: int):
    """A usual run takes one or two of the pieces of each model."""
    model = both(case)[0]
    ids = tm.tensor(tokens(2, 14))
    kept = [Cache(model.config, 2, 14, tm.float64) for _ in range(2)]
    found = model.prefill(ids[:, :13], kept[0], piece)
    with tm.no_grad():
        whole = model(ids[:, :13], kept[1], last=1)
        after = [model(ids[:, 13:], cache).numpy() for cache in kept]
    for a, b in ((found.numpy(), whole.numpy()), after):
        assert_close(a, b, model)
    assert kept[0].length == kept[1].length == 14


def test_bytes_of_a_prompt_in_pieces_by_formula():
    """Of a piece: a block's input, its sum with attention, their norm; the activated gate, up, their product; two tables."""
    config = configuration(fields("llama") | {"intermediate_size": 512, "max_position_embeddings": 1024})

    def run(piece: int) -> None:
        model = llama(config)
        ids = tm.zeros(1, 1024, dtype=tm.int64)
        model.prefill(ids, Cache(config, 1, 1024), piece)

    peaks = {piece: memory.predict(run, piece).peak for piece in (64, 128, 256, 1024)}
    token = 4 * (3 * config.hidden_size + 3 * config.intermediate_size) + 2 * 4 * config.head_dim // 2
    for few, many in pairwise(sorted(peaks)):
        assert peaks[many] - peaks[few] == (many - few) * token
    assert difference(lambda: run(256)) == ""


def test_a_prompt_that_is_too_long_or_in_no_pieces():
    model = llama(fields("llama"))
    with pytest.raises(ValueError, match="a piece has 1 token or more, found 0"):
        model.prefill(tm.tensor(tokens(1, 4)), Cache(model.config, 1, 4), 0)
    with pytest.raises(ValueError, match="65 tokens: this model has positions for 64"):
        model.prefill(tm.tensor(tokens(1, 65)), Cache(model.config, 1, 65), 8)


@pytest.mark.parametrize("case", ["llama-3.1", "mixtral", "qwen3_moe"])
def test_published_files_load(case: str, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    mine, other = both(case)
    transformers.utils.logging.disable_progress_bar()
    other.save_pretrained(tmp_path, max_shard_size="100KB")  # with the names of the hub, in several files
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = llama(tmp_path / "config.json").double()
    load_weights(model, tmp_path)
    for name, value in mine.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name].numpy(), value.numpy(), err_msg=name)
    file = sorted(tmp_path.glob("*.safetensors"))[0]
    content = safetensors.load_file(file)
    with pytest.raises(RuntimeError, match="there are no values for "):
        load_weights(model, file)
    name = next(iter(content))
    safetensors.save_file({name: content[name][:1].clone()}, tmp_path / "short.safetensors")
    with pytest.raises(RuntimeError, match=r"has shape \[1, \d+"):
        load_weights(model, tmp_path / "short.safetensors")
    safetensors.save_file({"other": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(RuntimeError, match="LanguageModel has no parameter for 'other'"):
        load_weights(model, tmp_path / "other.safetensors")


def test_a_sequence_beyond_the_model_s():
    with pytest.raises(ValueError, match="65 tokens: this model has positions for 64"):
        llama(fields("llama"))(tm.tensor(tokens(1, 65)))


def test_fewer_layers():
    whole = published("gemma-3-1b")
    part = whole.shrunk(7)
    assert isinstance(part, Configuration)
    assert (part.num_hidden_layers, part.windows) == (7, (512,) * 5 + (None, 512))
    with pytest.raises(ValueError, match="the model has 26 layers, found 27"):
        whole.shrunk(27)


@pytest.mark.cuda
@pytest.mark.parametrize("case", ["mistral", "gemma2", "mixtral"])
def test_a_step_and_generation_on_a_gpu_are_predicted(case: str):
    config = configuration(fields(case))

    def run() -> None:
        with tm.device("cuda"):
            model = llama(config)
            ids = tm.tensor(tokens(2, 8), device="cuda")
            model.loss(ids, ids).backward()
            tm.optim.SGD(model.parameters(), lr=0.1).step()
            with tm.no_grad():
                cache = Cache(config, 2, 8, bits=8)
                model(ids[:, :4], cache)
                model(ids[:, 4:5], cache)

    assert difference_on_gpu(run) == ""


@pytest.mark.cuda
def test_a_step_with_a_long_context_on_a_gpu_is_predicted():
    assert difference_on_gpu(lambda: long_step("gemma2", 5, "cuda")) == ""
