"""Language models: nanoGPT's weights and losses, real text, and what padding costs beside packing, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tests.memory.test_predict import assert_predicted
from tests.networks import MORE, our_peak, run_under, under_pytorch
from tests.pytorch_memory import pytorch_peak
from tests.texts import encode, load_docstrings
from tinygrad_mem import memory, nn
from tinygrad_mem.models import bert, gpt
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.attention.varlen import varlen_attn
from tinygrad_mem.techniques import select_labelled
from tinygrad_mem.utils.data import BucketBatchSampler, DataLoader, PadCollate, TokenBatchSampler, pack_collate

TEXTS = load_docstrings(400)
TEXT = (Path(__file__).parents[2] / "tutorials" / "lesson.py").read_text(encoding="utf-8")  # the same on each Python
BLOCK = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias"]
BLOCK += ["ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"]
NANO_GPT = ["transformer.wte.weight", "transformer.wpe.weight", *[f"transformer.h.{i}.{key}" for i in (0, 1) for key in BLOCK]]
NANO_GPT += ["transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"]
SMALL = {"layers": 2, "heads": 2, "width": 24, "context": 32, "vocabulary": 256}


def windows(count: int, length: int, seed: int) -> np.ndarray:
    """Pieces of the text, one byte longer than ``length``, int64."""
    text = encode(TEXT).astype(np.int64)
    places = np.random.default_rng(seed).integers(0, len(text) - length - 1, count)
    return np.stack([text[i : i + length + 1] for i in places])


def letters_alone(text: np.ndarray) -> float:
    """The loss of who knows how often each byte of ``text`` comes, and nothing else."""
    counts = np.bincount(text)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def test_a_state_dict_of_nanogpt_loads_as_it_is_and_twenty_losses_are_pytorchs():
    torch.manual_seed(0)
    mine, other = gpt.GPT(**SMALL).double(), under_pytorch("gpt").GPT(**SMALL).double()
    state = other.state_dict()
    assert list(state) == NANO_GPT
    mine.load_state_dict({key: tm.tensor(value.numpy()) for key, value in state.items()})
    assert mine.lm_head.weight is mine.transformer.wte.weight
    batches, losses = [windows(3, 32, step) for step in range(20)], []
    for library, network in ((tm, mine), (torch, other)):
        rule, found = library.optim.AdamW(network.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.1), []
        for batch in batches:
            tokens = library.tensor(batch)
            logits = network(tokens[:, :-1])
            loss = library.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            rule.zero_grad()
            loss.backward()
            library.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            rule.step()
            found.append(loss.item())
        losses.append(found)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
    assert losses[0][-1] < losses[0][0] - 0.5


def test_a_gpts_loss_in_chunks_is_the_loss_of_all_logits():
    """And PyTorch's, with its gradients; logits of 1,024 tokens are 196 MiB with GPT-2's vocabulary, and are not there."""
    mine, other = gpt.GPT(**SMALL).double(), under_pytorch("gpt").GPT(**SMALL).double()
    other.load_state_dict({key: torch.tensor(values(value)) for key, value in mine.state_dict().items()})
    tokens = windows(3, 32, 0)
    tokens[0, 5:] = -100  # a shorter text
    inputs, targets = np.maximum(tokens[:, :-1], 0), tokens[:, 1:]
    expected = other.loss(torch.tensor(inputs), torch.tensor(targets))
    expected.backward()
    for chunk in (None, 7, 1024):
        mine.zero_grad()
        loss = mine.loss(tm.tensor(inputs), tm.tensor(targets), loss_chunk=chunk)
        np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-12)
        loss.backward()
        for p, q in zip(mine.parameters(), other.parameters(), strict=True):
            np.testing.assert_allclose(values(p.grad), q.grad.numpy(), rtol=1e-9, atol=1e-12)

    def peak(chunk: int | None) -> int:
        with tm.device("meta"):
            model, x = gpt.GPT(1, 2, 64, 1024, 50257), tm.zeros(1, 1024, dtype=tm.int64)
            with memory.track("meta") as track:
                before = tm.device("meta").pool.used_bytes()
                model.loss(x, x, chunk).backward()
            return track.peak - before

    logits, table = 1024 * 50257 * 4, 50257 * 64 * 4
    assert logits <= peak(None) - table <= 2.1 * logits
    assert table <= peak(1024) <= 2 * table + 1024 * 1024 * 4 + (1 << 23), "the table's gradient twice: of its two uses"


def test_a_gpt_keeps_nothing_that_grows_with_the_square_of_the_tokens():
    with tm.device("meta"):
        model = gpt.GPT(**{**SMALL, "context": 4096})
        totals = [memory.saved(model, tm.zeros(1, n, dtype=tm.int64)).total for n in (1024, 2048, 4096)]
    assert totals[2] - totals[1] == 2 * (totals[1] - totals[0])


def test_a_transformers_step_needs_less_than_pytorchs():
    """Two layers, 128 tokens, with Adam: the same network, batch and precision."""
    (workload,) = (each for each in MORE if each.network == "GPT")
    ours = our_peak(workload, "meta")
    theirs = pytorch_peak(run_under(torch, workload))
    assert 0.85 * theirs < ours < theirs


def test_a_gpt_learns_real_text():
    tm.manual_seed(0)
    model = gpt.GPT(**{**SMALL, "width": 32, "heads": 4, "context": 48})
    rule, losses = tm.optim.AdamW(model.parameters(), 6e-3), []
    for step in range(100):
        tokens = tm.tensor(windows(12, 48, step))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        rule.zero_grad()
        loss.backward()
        rule.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(256), rel=0.05)
    assert np.mean(losses[-10:]) < letters_alone(encode(TEXT)) - 0.2


def hidden_tokens(tokens: np.ndarray, real: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """15 % of the real tokens become 256, and are the labels; -100 elsewhere."""
    chosen = (rng.random(tokens.shape) < 0.15) & real
    chosen[0, 0] = True
    return np.where(chosen, 256, tokens), np.where(chosen, tokens, -100)


def test_a_masked_language_model_learns_real_text_of_any_length():
    """Batches by a budget of tokens, padded to their longest, and logits of the hidden tokens only."""
    tm.manual_seed(0)
    rng = np.random.default_rng(0)
    data: list[Any] = [encode(text[:48]).astype(np.int64) for text in TEXTS[:40]]
    sampler = TokenBatchSampler([len(d) for d in data], 600, generator=tm.Generator().manual_seed(1))
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=PadCollate())  # type: ignore[arg-type]
    model = bert.MaskedLanguageModel(1, 4, 64, context=48, vocabulary=257, dropout=0.0)
    rule, losses = tm.optim.AdamW(model.parameters(), 3e-3), []
    while len(losses) < 200:
        for batch in loader:
            real = ~values(batch.padding_mask)
            tokens, labels = hidden_tokens(values(batch.tokens), real, rng)
            places = tm.tensor(np.flatnonzero(labels != -100))
            logits = model(tm.tensor(tokens), batch.padding_mask, places)
            assert len(logits) == len(places)
            loss = F.cross_entropy(logits, tm.tensor(labels[labels != -100]))
            rule.zero_grad()
            loss.backward()
            rule.step()
            losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(257), rel=0.15)
    assert np.mean(losses[-15:]) < letters_alone(np.concatenate(data)) - 0.4


def test_masked_positions_alone_have_the_loss_of_all():
    tm.manual_seed(0)
    model = bert.MaskedLanguageModel(1, 2, 16, context=20, vocabulary=50, dropout=0.0).double()
    tokens = tm.randint(0, 50, (3, 20))
    labels = np.where(np.random.default_rng(0).random((3, 20)) < 0.2, 7, -100)
    whole = F.cross_entropy(model(tokens).flatten(0, 1), tm.tensor(labels).flatten())
    some = F.cross_entropy(
        model(tokens, positions=tm.tensor(np.flatnonzero(labels != -100))), tm.tensor(labels[labels != -100])
    )
    np.testing.assert_allclose(some.item(), whole.item(), rtol=1e-12)
    rows, wanted = select_labelled(model(tokens), tm.tensor(labels))
    np.testing.assert_allclose(F.cross_entropy(rows, wanted).item(), whole.item(), rtol=1e-12)


@pytest.mark.parametrize(("batch", "length"), [(2, 24), (5, 11)])
def test_a_step_is_as_predicted(batch: int, length: int):
    def step() -> None:
        model = bert.MaskedLanguageModel(2, 4, 32, context=24, vocabulary=90)
        rule = tm.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(2):
            tokens, places = tm.zeros(batch, length, dtype=tm.int64), tm.arange(0, batch * length, 7)
            loss = F.cross_entropy(model(tokens, tm.zeros(batch, length, dtype=tm.bool), places), places % 90)
            rule.zero_grad()
            loss.backward()
            rule.step()

    assert_predicted(step)


# --- padded, bucketed, packed ---------------------------------------------------------------------------------------------

WIDTH, HEADS = 16, 2


class Attention(nn.Module):
    """Projection, attention, projection: padded with a mask, or packed."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def padded(self, x: Any, hidden: Any) -> Any:
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2) for part in self.into(x).split(WIDTH, -1))
        y = F.scaled_dot_product_attention(q, k, v, hidden.logical_not().view(n, 1, 1, t))
        return self.out(y.transpose(1, 2).reshape(n, t, WIDTH))

    def packed(self, x: Any, cu: Any, longest: int) -> Any:
        q, k, v = (part.view(len(x), HEADS, -1) for part in self.into(x).split(WIDTH, -1))
        return self.out(varlen_attn(q, k, v, cu, cu, longest, longest).reshape(len(x), WIDTH))


PER_TOKEN = 4 * (WIDTH + 3 * WIDTH + WIDTH + HEADS)  # the input, query with key and value, the result, a number a head
WEIGHTS = 4 * (WIDTH * WIDTH)  # the second projection's: the input needs no gradient


def kept(run: Any) -> int:
    return memory.saved(run).total


def test_padded_bucketed_and_packed_on_the_lengths_of_real_text():
    """A pass over documentation strings in batches of 16: places that are computed, and bytes that are kept, exactly."""
    data: list[Any] = [encode(text[:400]) for text in TEXTS[:256]]
    lengths = np.array([len(d) for d in data])
    order = np.random.default_rng(0).permutation(256)
    by_chance = [order[i : i + 16].tolist() for i in range(0, 256, 16)]
    ways = {"longest of all": by_chance, "longest of the batch": by_chance, "bucketed": list(BucketBatchSampler(lengths, 16))}
    layer, places, most = Attention(), {}, {}
    for way, batches in ways.items():
        sizes = [16 * (lengths.max() if way == "longest of all" else lengths[batch].max()) for batch in batches]
        places[way] = int(sum(sizes))
        largest = batches[int(np.argmax(sizes))]
        batch = PadCollate()([data[i] for i in largest])
        t = int(max(sizes)) // 16
        hidden = tm.tensor(np.arange(t) >= lengths[largest][:, None])
        x = tm.zeros(16, t, WIDTH)
        if way != "longest of all":
            assert tuple(batch.tokens.shape) == (16, t)
        most[way] = kept(lambda x=x, hidden=hidden: layer.padded(x, hidden))
        assert most[way] == 16 * t * PER_TOKEN + 16 * t + WEIGHTS, "and a byte a place: the mask"
    largest = max(by_chance, key=lambda batch: lengths[batch].sum())
    packed = pack_collate([data[i] for i in largest])
    total = int(lengths[largest].sum())
    assert len(packed.tokens) == total
    x = tm.zeros(total, WIDTH)
    most["packed"] = kept(lambda: layer.packed(x, packed.cu_seqlens, packed.longest))
    assert most["packed"] == total * PER_TOKEN + 4 * 17 + WEIGHTS
    places["packed"] = int(lengths.sum())
    assert places["packed"] < places["bucketed"] < 1.1 * places["packed"]
    assert 1.5 * places["bucketed"] < places["longest of the batch"] < places["longest of all"]
    assert most["packed"] < 0.75 * most["longest of the batch"] <= 0.75 * most["longest of all"]


def test_packed_is_padded():
    """The same numbers for every real token, and the same gradients."""
    tm.manual_seed(0)
    layer, lengths = Attention().double(), np.array([5, 9, 1])
    cu = np.array([0, 5, 14, 15], np.int32)
    rows = np.random.default_rng(0).standard_normal((15, WIDTH))
    full = np.zeros((3, 9, WIDTH))
    real = np.arange(9) < lengths[:, None]
    full[real] = rows
    results = []
    for packed in (True, False):
        layer.zero_grad()
        if packed:
            y = layer.packed(tm.tensor(rows), tm.tensor(cu), 9)
        else:
            y = layer.padded(tm.tensor(full), tm.tensor(~real)).flatten(0, 1).index_select(0, tm.tensor(np.flatnonzero(real)))
        y.square().sum().backward()
        results.append([values(y), *[values(p.grad) for p in layer.parameters()]])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
