"""Each published figure: what is found is the number by hand, and verdict and row are those of ``docs/claims.md``."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache, partial

import pytest

from tests.claims import page
from tests.profiles import some
from tinygrad_mem.claims import CLAIMS, EXPLAINED, REFUTED, Claim, Judged, examine
from tinygrad_mem.claims.cases.activations import VGG16, vgg16_rows
from tinygrad_mem.claims.cases.parameters import count
from tinygrad_mem.claims.cases.states import LLAMA_65B as LLAMA_65B_SIZES
from tinygrad_mem.models.llama import llama

LLAMA_70B, LLAMA_7B_LINEAR = 70_553_706_496, 32 * (4 * 4096**2 + 3 * 4096 * 11_008)
LLAMA_7B, LLAMA_8B, LLAMA_65B, RESNET50, BERT = 6_738_415_616, 8_030_261_248, 65_285_660_672, 25_557_032, 108_310_272
LLAMA_2_70B, BERT_LARGE = 68_976_648_192, 335_143_938
GPT2_XL_INPUT, LLAMA_INPUTS, READ = 32 * 1024 * 1600, 32 * 4096 * 4096, 1343
VIT, GPT3, ZERO, T5 = 304_326_632, 174_604_259_328, 128 * 9536 * 6144, 64 * 6400 * 6960
MIB, GIB = 1 << 20, 1 << 30
BLOCKS = 1.0002
"""Blocks are multiples of 512 bytes: so much more, at most, than the parameters' own bytes."""


def blocks(size: float) -> tuple[float, float]:
    """A size, and the same in blocks."""
    return size, size * BLOCKS


BY_HAND: dict[str, float | Fraction | tuple[float, float]] = {
    # blocks of 12 h^2 + 13 h, 50,257 tokens, 1,024 positions, a last norm
    "gpt2-small-parameters": 12 * (12 * 768**2 + 13 * 768) + (50_257 + 1024 + 2) * 768,
    "gpt2-xl-parameters": 48 * (12 * 1600**2 + 13 * 1600) + (50_257 + 1024 + 2) * 1600,
    "resnet1202-parameters": 19_424_026,
    "resnet50-parameters": RESNET50,
    "vgg16-parameters": 138_357_544,
    # attention of 32 and 8 heads, 8 experts of three matrices, their router, two norms; embedding and output
    "mixtral-parameters": 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 8 * 3 * 4096 * 14_336 + 8 * 4096 + 2 * 4096)
    + (2 * 32_000 + 1) * 4096,
    "llama-3-405b-parameters": 126 * (2 * 16_384**2 + 2 * 16_384 * 1024 + 3 * 16_384 * 53_248 + 2 * 16_384)
    + (2 * 128_256 + 1) * 16_384,
    "adam-state": (2, 2.0002),
    "mixed-precision-18": (18, 18.01),
    "zero-16-bytes": (16, 16.01),
    "eight-bit-optimizers": (0.748, 1 - (2 + 8 / 2048) / 8),
    "cookbook-adamw": (12, 12.01),
    "cookbook-adam8bit": (4 + 2 + 8 / 2048, 6.03),
    "cookbook-momentum": (8, 8.01),
    # a byte for each number of the moments, two for those of a projection
    "galore-8bit": 1
    - Fraction(32 * 1024 * (2 * (4 * 4096 + 3 * 11_008) + 2 * 7 * 4096) + 2 * 2 * 32_000 * 4096 + 2 * 65 * 4096, 4 * LLAMA_7B),
    "apollo": (7.98, 8),
    "apollo-mini": (960, 1024),
    # int8 weights, moments of embedding and output; beside them the largest gradient and the activations of 256 tokens
    "apollo-7b": (7_006_265_344 + 8 * 2 * 32_000 * 4096, 10e9),
    "adafactor-four-bytes": (0.002, 0.0025),
    "estimate-memory-weights": 4 * BERT,
    "estimate-memory-half": blocks(16 * BERT),
    "llama-factory-full": blocks(18 * LLAMA_7B),
    "alst-144": blocks(18 * LLAMA_8B),
    "qlora-780": blocks(12 * LLAMA_65B),
    # the weights and the gradient of the embedding, over 16 bytes a parameter; one token's activations beside
    "lomo": ((2 * LLAMA_7B + 2 * 32_000 * 4096) / (16 * LLAMA_7B) * 0.99, 0.129),
    "lora-checkpoint": 2 * 96 * 2 * 2 * 12_288 * 4,
    "lora-weights": 2 * GPT3,
    "lora-gpt3-training": blocks(6 * GPT3),
    "llama-factory-full-70b": blocks(18 * LLAMA_2_70B),
    "llama-factory-pure": blocks(8 * LLAMA_7B),
    "stanford-alpaca-322": blocks(16 * LLAMA_7B),
    "llama-3-70b-full": blocks(8 * LLAMA_70B),
    # of 32 blocks four square matrices and three of 4,096 x 11,008 are projected, embedding and output are not
    "galore": (
        1 - (32 * 1024 * (4 * 3 * 4096 + 3 * (4096 + 2 * 11_008)) + 2 * 2 * 32_000 * 4096) / (2 * LLAMA_7B) - 0.001,
        1 - (32 * 1024 * (4 * 3 * 4096 + 3 * (4096 + 2 * 11_008)) + 2 * 2 * 32_000 * 4096) / (2 * LLAMA_7B) + 0.001,
    ),
    "adam-mini": (0.499, 0.5),
    # 4 bytes for 64 weights become 1, and 4 for 16,384; each of 224 layers keeps a mean
    "qlora-double-quantization": Fraction(3, 64) - Fraction(4, 64 * 256) - Fraction(4 * 224, LLAMA_7B_LINEAR),
    "qlora-double-quantization-65b": (0.0466 * 64.5e9, 0.0467 * 65e9),
    # NF4 of the blocks, embedding and output in 16 bits; of LoRA weights, gradients and two float32 moments; activations
    "qlora-48": (0.5159 * 64.76e9 + 4 * 32_000 * 8192 + 12 * 64 * 80 * (8 * 8192 + 3 * 30_208), 46e9),
    "llama-factory-qlora": (0.5159 * 6.47e9 + 4 * 32_000 * 4096, 4.6e9),
    "llama-factory-lora": (2 * LLAMA_7B, 14.2e9),
    "llama-factory-qlora-8bit": (7_006_265_344, 7.7e9),
    "llama-factory-qlora-70b": (0.5159 * 68.4e9 + 4 * 32_000 * 8192, 39e9),
    "litgpt-trained": 32 * 2 * 8 * (4096 + 4096),
    "litgpt-double-quantization": LLAMA_7B_LINEAR * 3 // 64 - LLAMA_7B_LINEAR * 4 // (64 * 256) - 4 * 224,
    "litgpt-double-quantization-13b": 40 * (4 * 5120**2 + 3 * 5120 * 13_824) * (3 * 256 - 4) // (64 * 256) - 4 * 280,
    "alpaca-lora-121": (7_006_265_344, 7.7e9),
    "alpaca-lora-121-13b": (13.3e9, 14.3e9),
    # a byte for each weight of the blocks, 4 for each row, embedding, output and norms in 16 bits
    "alpaca-lora-450": LLAMA_7B_LINEAR + 4 * 32 * (5 * 4096 + 2 * 11_008) + 2 * (2 * 32_000 * 4096 + 65 * 4096),
    "zero-none": 16 * ZERO,
    "zero-states": 4 * ZERO + 12 * ZERO // 64,
    "zero-gradients": 2 * ZERO + 14 * ZERO // 64,
    "zero-parameters": 16 * ZERO // 64,
    "deepspeed-zero2": 2 * T5 + 14 * T5 // 8,
    "deepspeed-zero3": 16 * T5 // 8,
    "vgg16-rows": 21,
    "vgg16-forward": 4 * 15_237_608,
    "torchinfo-144": 101 * 10_240 * 1024 * 4 + (1024 * 1024 + 1024) * 4,
    "torchinfo-144-measured": 101 * 10_240 * 1024 * 4 + (1024 * 1024 + 1024) * 4,
    "inplace-abn": (0.499, 0.501),
    # 32 bits become 2 and 8 bytes for 256 numbers; statistics and small tensors stay
    "actnn": (13, 32 / (2 + 64 / 256)),
    # 32 bits become 4 and 8 bytes for 256 numbers
    "gact": (7.2, 32 / (4 + 64 / 256)),
    "mixed-precision-half": (0.5, 0.52),
    # a rank's 8 bytes a parameter, inputs of blocks; logits in 16 bits, in float32, and their gradient in float32
    "liger": (0.49, 0.52),
    # 16 numbers for each of a block's input; statistics of norms and attention beside
    "zero-gpt2-activations": (48 * 32 * GPT2_XL_INPUT, 48 * 32.2 * GPT2_XL_INPUT),
    # the inputs of 48 blocks and of the last norm, and its statistics
    "zero-gpt2-recomputed": 49 * 2 * GPT2_XL_INPUT + 2 * 4 * 32 * 1024,
    # two normed inputs and two sums, queries, keys and values, turned and not, attention, four of 2.7 (or 3.5): 2 bytes each
    "lomo-16": (2 * (7 + 4 * 11_008 / 4096) * LLAMA_INPUTS, 2 * (9 + 4 * 11_008 / 4096) * LLAMA_INPUTS),
    "lomo-activations": (34 * GIB, 37 * GIB),
    "playbook-parameters": 2 * LLAMA_8B,
    "playbook-optimizer": 8 * LLAMA_8B,
    "playbook-activations": (2 * (6 + 4 * 3.5) * LLAMA_INPUTS, 2 * (8 + 4 * 3.5) * LLAMA_INPUTS),
    "playbook-predictor": 2 * LLAMA_8B,
    "chen-recomputed": (3.3e9, 3.6e9),
    "dtr-plain": 8_908_319_848 - 401 * (4 * 64 * 16 * 32 * 32) * 7 // 4,
    "dtr-time": (0.15, 0.16),
    "accelerate-4175": 36 * 131_072 * 4096 * 2,
    "accelerate-4175-long": 28 * 131_072 * 1024 * 2,
    "accelerate-4175-small": 24 * 32_768 * 1024 * 2,
    "transformers-48444": 36 * GIB,
    "step-in-backward": (3 * 4 * VIT, 3 * 4 * VIT + 0.4e9),
    "step-after-backward": (4 * 4 * VIT, 4 * 4 * VIT * 1.001),
    "trl-3678": 2 * 256 * 151_665 * 2,
    "trl-6858": 16_384 * 248_320 * 2,
    "cut-cross-entropy-logits": 4000 * MIB,
    "cut-cross-entropy": 2 * (8192 + 256_000) * 2304,
    "cut-cross-entropy-baseline": (24_000 * MIB, 24_000 * MIB + 4096),
    "cut-cross-entropy-baseline-backward": (28_000 * MIB, 28_000 * MIB + 4096),
    # logits and their gradient, less a tile of both
    "alst-tiled-loss": (2 * 4 * 15_360 * 128_256, 2 * 4 * 16_384 * 128_256),
    # keys and values of 2,048 tokens, and less than as much for a block's arrays
    "eleuther-inference": (2 * 32 * 4096 * 2048 * 2 / (2 * LLAMA_7B), 0.16),
    "vllm-token": 2 * 40 * 5120 * 2,
    "vllm-request": 2 * 40 * 5120 * 2 * 2048,
    "cublas-workspace": (2 * 4096 + 8 * 16) * 1024,
    "foreach": Fraction(61, 64),
    # and of two norms mean and deviation, 4 bytes each, for each token
    "transformer-layer": 34 + Fraction(5 * 96 * 2048, 12_288) + Fraction(2 * 2 * 4, 12_288),
    "selective-recompute": Fraction(80) / (114 + Fraction(16, 12_288)),
    # of each head scores, their softmax, its dropout, two gradients, a mask of bytes; over eight arrays of tokens x 64
    "flash-attention-2k": (10, 11),
    "flash-attention-4k": (20, 21),
    "peft-2196-parameters": 4 * (RESNET50 - 2049 * 1000 + 2049),
    "peft-2196-activations": (1311 * MIB, 1312 * MIB),
    "bert-large-weights": 2631 * MIB,
    "bert-large-training": (13_000 * MIB, 14_000 * MIB),
    # the context, and of each parameter weight, gradient and two moments
    "bert-large-accumulated": (READ * MIB + 16 * BERT_LARGE, 8_400 * MIB),
    "bert-large-recomputed": (READ * MIB + 16 * BERT_LARGE, 6_900 * MIB),
    "bert-large-half": (READ * MIB + 16 * BERT_LARGE, 12_300 * MIB),
    "bert-large-half-recomputed": (READ * MIB + 16 * BERT_LARGE, 7_275 * MIB),
    "bert-large-adafactor": (READ * MIB + 8 * BERT_LARGE, 11_200 * MIB),
    "bert-large-adafactor-all": (READ * MIB + 8 * BERT_LARGE, 4_847 * MIB),
    "bert-large-adam8bit": (READ * MIB + 10 * BERT_LARGE, 11_800 * MIB),
    "bert-large-adam8bit-all": (READ * MIB + 10 * BERT_LARGE, 5_363 * MIB),
}
SLOWER = [name for name, claim in CLAIMS.items() if 2 <= claim.seconds < 3]
USUAL = [*(name for name, claim in CLAIMS.items() if claim.seconds < 2), *SLOWER[::3]]


@cache
def judged(name: str) -> Judged:
    return examine(CLAIMS[name])


def test_there_are_many_and_each_has_its_number():
    assert set(BY_HAND) == set(CLAIMS)
    assert len(CLAIMS) >= 100


@pytest.mark.parametrize(
    "words",
    [
        *("Chen et al., Training deep nets", "In-place activated BatchNorm", "ZeRO, 2020", "ActNN", "GACT", "Adafactor"),
        *("8-bit optimizers", "FlashAttention", "QLoRA", "GaLore", "APOLLO", "Adam-mini", "Cut cross-entropy", "Liger"),
        *("Arctic long sequence", "Reducing activation recomputation", "Mixed precision training", "on a single GPU"),
        *("LLaMA-Factory", "DeepSpeed, Memory", "EleutherAI", "Ultra-Scale Playbook", "LitGPT", "alpaca-lora#121"),
        *("trl#3678", "peft#2196", "accelerate#4175"),
    ],
)
def test_what_people_cite_is_in_the_court(words: str):
    assert any(words in f"{claim.source.title} {claim.says}" for claim in CLAIMS.values())


@pytest.fixture(params=some(list(CLAIMS), USUAL))
def found(request: pytest.FixtureRequest) -> Judged:
    if missing := CLAIMS[request.param].missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    return judged(request.param)


@pytest.mark.filterwarnings("ignore")
def test_what_is_found_is_the_number_by_hand(found: Judged):
    expected = BY_HAND[found.claim.name]
    assert found.found is not None
    if isinstance(expected, tuple):
        assert expected[0] <= found.found.value <= expected[1]
    else:
        assert found.found.value == expected


@pytest.mark.filterwarnings("ignore")
def test_verdict_and_row_are_those_of_the_page(found: Judged):
    assert page.row(found) == page.rows()[found.claim.name]


@pytest.mark.filterwarnings("ignore")
def test_a_difference_has_a_reason_and_parts_are_bounded(found: Judged):
    assert found.found is not None
    assert found.verdict is not None
    if found.verdict.kind == EXPLAINED:
        assert found.found.parts
    if found.verdict.kind in (EXPLAINED, REFUTED):
        assert found.claim.why
    for part in found.found.parts:
        assert part.least <= part.most
        assert part.least * part.most >= 0, "a part is more, or less"
    width = sum(part.most - part.least for part in found.found.parts)
    assert width < found.claim.stated.value / 2, "a bound that admits nearly anything explains nothing"


def test_the_page_has_every_claim_once_and_the_most_wrong_first():
    names = list(page.rows())
    assert sorted(names) == sorted(CLAIMS)
    text = page.PATH.read_text(encoding="utf-8")
    kinds = [re.search(r"\| (reproduced|explained|refuted)[ :]", page.rows()[name])[1] for name in names]  # type: ignore[index]
    assert kinds == sorted(kinds, key=("refuted", "explained", "reproduced").index)
    for kind in set(kinds):
        assert f"{kinds.count(kind)} {kind}" in text
    off = [float(m[1].replace(",", "")) for m in re.finditer(r"refuted: ([\d,.]+) times too", text)]
    assert off == sorted(off, reverse=True)


def test_the_readme_has_the_page_s_numbers():
    summary = page.PATH.read_text(encoding="utf-8").splitlines()[2]
    readme = " ".join((page.PATH.parents[1] / "README.md").read_text(encoding="utf-8").split())
    found = re.search(
        r"claims` recomputes (\d+) published figures .*?: (\d+) are reproduced, (\d+) are explained .*?, (\d+) are refuted",
        readme,
    )
    assert found is not None
    assert list(found.groups()) == re.findall(r"\d+", summary)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_records_are_whole(claim: Claim):
    assert re.fullmatch(r"[a-z0-9-]+", claim.name)
    assert claim.source.link.startswith("https://")
    assert claim.source.title
    assert claim.says.endswith(".")
    assert not claim.how.endswith(".")
    assert not claim.why or claim.why.endswith(".")
    low, high = claim.stated.range()
    assert low <= claim.stated.value
    assert high is None or claim.stated.value < high


def test_vgg16_is_the_textbook_s_table_and_not_its_total():
    assert vgg16_rows() == VGG16
    assert sum(weights for _, _, weights in VGG16) == 138_344_128
    assert sum(numbers for _, numbers, _ in VGG16) + 3 * 224 * 224 == 15_237_608


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinygrad_mem.claims.claim.find_spec", lambda name: None)
    left = examine(CLAIMS["bert-large-weights"])
    assert left.verdict is None
    assert left.data()["missing"] == ["torch", "transformers"]
    assert "verdict" not in left.data()


def test_llama_of_65_billion_is_the_paper_s():
    assert count(partial(llama, LLAMA_65B_SIZES)) == LLAMA_65B
