"""Attention of several heads and the transformer against PyTorch's: masks, weights, stacks, 20 steps of training, messages."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import values
from tests.memory.test_predict import assert_predicted
from tests.profiles import examples
from tinygrad_mem import memory, nn
from tinygrad_mem.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # PyTorch, of layers that it made itself


def both(name: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    """The layer in float64 twice, with PyTorch's weights."""
    torch.manual_seed(1)
    other = getattr(torch.nn, name)(*args, **options).double()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(torch.randn(p.shape) * 0.2)
    mine = getattr(nn, name)(*args, **options).double()
    mine.load_state_dict({k: tm.tensor(v.numpy()) for k, v in other.state_dict().items()})
    return mine, other


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(values(found), expected.detach().numpy(), rtol=1e-9, atol=1e-10)


def same_gradients(mine: Any, other: Any) -> None:
    for (name, p), q in zip(mine.named_parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            np.testing.assert_allclose(values(p.grad), q.grad.numpy(), rtol=1e-9, atol=1e-10, err_msg=name)


@given(
    data=st.data(),
    batch_first=st.booleans(),
    need_weights=st.booleans(),
    average=st.booleans(),
    itself=st.booleans(),
    extra=st.booleans(),
)
@settings(max_examples=examples(60))
def test_masks_and_weights(data: Any, batch_first: bool, need_weights: bool, average: bool, itself: bool, extra: bool):
    mine, other = both("MultiheadAttention", 6, 3, batch_first=batch_first, add_bias_kv=extra, add_zero_attn=extra)
    count, rows = 2, 4
    columns = rows if itself else 5
    shape = lambda n: (count, n, 6) if batch_first else (n, count, 6)  # noqa: E731
    q, k, v = normal(*shape(rows)), normal(*shape(columns), seed=1), normal(*shape(columns), seed=2)
    rng = np.random.default_rng(3)
    options: dict[str, Any] = {}
    kinds = st.sampled_from(["none", "bool", "float"])
    padding, pairs, whole = data.draw(kinds), data.draw(kinds), data.draw(st.booleans())
    if padding != "none":
        hidden = np.arange(columns) >= np.array([[columns - 2], [columns]])
        options["key_padding_mask"] = hidden if padding == "bool" else np.where(hidden, -np.inf, 0.5)
    if pairs != "none":
        size = (count * 3, rows, columns) if whole else (rows, columns)
        hidden = rng.random(size) < 0.3
        hidden[..., 0] = False  # a row that sees nothing is nan where weights are asked for
        options["attn_mask"] = hidden if pairs == "bool" else np.where(hidden, -2.0, 0.25)
    given = [{key: library.tensor(m) for key, m in options.items()} for library in (tm, torch)]
    more = {"need_weights": need_weights, "average_attn_weights": average}
    inputs = [[library.tensor(a) for a in (q, k, v)] for library in (tm, torch)]
    for tensors in inputs:
        if itself:
            tensors[:] = [tensors[0]] * 3
        tensors[0].requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch, of masks of two kinds
        (y, w), (z, x) = mine(*inputs[0], **given[0], **more), other(*inputs[1], **given[1], **more)
    same(y, z)
    assert (w is None) == (x is None)
    if w is not None:
        same(w, x)
    seed = normal(*y.shape, seed=5)
    y.backward(tm.tensor(seed))
    z.backward(torch.tensor(seed))
    same(inputs[0][0].grad, inputs[1][0].grad)
    same_gradients(mine, other)


def test_static_keys_and_values():
    mine, other = both("MultiheadAttention", 4, 2)
    q, fixed = normal(5, 3, 4), [normal(6, 7, 2, seed=n) for n in (1, 2)]
    for need in (True, False):
        results = []
        for library, layer in ((tm, mine), (torch, other)):
            static = dict(zip(("static_k", "static_v"), map(library.tensor, fixed), strict=True))
            x = library.tensor(q)
            weights = (layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0, layer.out_proj.weight)
            results.append(
                library.nn.functional.multi_head_attention_forward(
                    x, x, x, 4, 2, *weights, layer.out_proj.bias, need_weights=need, **static
                )
            )
        same(results[0][0], results[1][0])


def test_the_hint_and_a_padding_mask_together_make_no_matrix():
    """PyTorch joins the two into (N, heads, T, T); here the triangle is known to the tiles."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double()
    x, triangle = tm.tensor(normal(3, 64, 8), requires_grad=True), nn.Transformer.generate_square_subsequent_mask(64).double()
    padding = tm.tensor(np.arange(64) >= np.array([[64], [40], [1]]))
    with_hint = layer(x, triangle, padding, is_causal=True)
    np.testing.assert_allclose(values(with_hint), values(layer(x, triangle, padding)), rtol=1e-10, atol=1e-12)
    rows = memory.saved(lambda: layer(x, triangle, padding, is_causal=True))
    assert max(row.bytes for row in rows) == 3 * 64 * 24 * 8, "query, key and value"


@pytest.mark.parametrize(
    "appended", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}]
)
@pytest.mark.parametrize("padding", ["none", "bool", "numbers"])
def test_the_hint_hides_no_appended_token(appended: dict, padding: str):
    """All queries see it, with the hint and without. PyTorch hides it if there is the hint, and no padding."""
    mine, other = both("MultiheadAttention", 8, 2, batch_first=True, **appended)
    found = []
    for library, layer in ((tm, mine), (torch, other)):
        x = library.tensor(normal(3, 5, 8))
        hidden = library.tensor(np.arange(5) >= np.array([[5], [4], [2]]))
        masks = {"none": None, "bool": hidden, "numbers": hidden.double() * -3}
        triangle = library.ones(5, 5, dtype=library.bool).triu(1)
        if padding == "numbers":  # PyTorch warns of masks of two kinds
            triangle = library.zeros(5, 5, dtype=library.float64).masked_fill(triangle, float("-inf"))
        for hint in (False, True) if library is tm else (False,):
            found.append(layer(x, x, x, masks[padding], need_weights=False, attn_mask=triangle, is_causal=hint)[0])
    for each in found[:2]:
        np.testing.assert_allclose(values(each), found[2].detach().numpy(), rtol=1e-10, atol=1e-12)


def test_self_attention_is_one_projection():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = tm.randn(3, 10, 8, requires_grad=True)
    rows = memory.saved(lambda: layer(x, x, x, need_weights=False))
    one, parameters = x.nbytes, 4 * 8 * 8 * 4
    assert rows.total == 5 * one + 4 * 3 * 2 * 10 + parameters, "x; query, key, value; the result; a number a row and head"


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_and_decoder_stacks(norm_first: bool, activation: str):
    results, networks = [], []
    for library in (tm, torch):
        torch.manual_seed(0)
        n = library.nn
        options = {"norm_first": norm_first, "activation": activation, "dropout": 0.0}
        layers = n.TransformerEncoderLayer(6, 2, 10, **options), n.TransformerDecoderLayer(6, 3, 10, **options)
        stacks = n.TransformerEncoder(layers[0], 2, n.LayerNorm(6)), n.TransformerDecoder(layers[1], 2)
        networks.append(n.ModuleList(stacks).double())
    networks[0].load_state_dict({k: tm.tensor(v.numpy()) for k, v in networks[1].state_dict().items()})
    assert repr(networks[0]) == repr(networks[1])
    hidden = np.arange(7) >= np.array([[7], [4], [5]])
    for library, (encoder, decoder) in zip((tm, torch), networks, strict=True):
        src, tgt = library.tensor(normal(7, 3, 6)), library.tensor(normal(5, 3, 6, seed=1))
        triangle = library.nn.Transformer.generate_square_subsequent_mask(5).double()
        seen = encoder(src, src_key_padding_mask=library.tensor(hidden))
        y = decoder(tgt, seen, tgt_mask=triangle, memory_key_padding_mask=library.tensor(hidden), tgt_is_causal=True)
        y.backward(library.tensor(normal(5, 3, 6, seed=2)))
        results.append(y)
    same(*results)
    same_gradients(*networks)


@pytest.mark.parametrize("norm_first", [False, True])
def test_twenty_steps_of_training(norm_first: bool):
    """Losses of a transformer in float64, step by step, with Adam."""
    mine, other = both("Transformer", 8, 2, 2, 2, 16, 0.0, norm_first=norm_first, batch_first=True)
    src, tgt = normal(4, 6, 8), normal(4, 5, 8, seed=1)
    losses = []
    for library, network in ((tm, mine), (torch, other)):
        rule, found = library.optim.Adam(network.parameters(), 1e-3), []
        mask = library.nn.Transformer.generate_square_subsequent_mask(5).double()
        x, y = library.tensor(src), library.tensor(tgt)
        for _ in range(20):
            loss = library.nn.functional.mse_loss(network(x, y, tgt_mask=mask), y)
            rule.zero_grad()
            loss.backward()
            rule.step()
            found.append(loss.item())
        losses.append(found)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
    assert losses[0][-1] < losses[0][0]


def test_recomputed_with_the_same_dropout():
    """The masks of attention are drawn again from their tickets: gradients bit for bit, and less is kept."""
    results, sizes = [], []
    for recompute in (False, True):
        tm.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True)
        x = tm.randn(3, 20, 8, requires_grad=True)
        tm.manual_seed(1)

        def run(layer: Any = layer, x: Any = x, recompute: bool = recompute) -> Any:
            return tm.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)

        tm.manual_seed(1)
        run().square().sum().backward()
        results.append([values(p.grad) for p in (x, *layer.parameters())])
        sizes.append(memory.saved(run).total)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    assert sizes[1] < 0.2 * sizes[0]


def test_under_autocast_it_computes_in_half_precision():
    tm.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    x, hidden = tm.randn(3, 20, 8, requires_grad=True), tm.tensor(np.arange(20) >= np.array([[20], [5], [9]]))
    bias = tm.zeros(20, 20)
    expected = values(layer(x, bias, hidden))
    with tm.autocast("cpu", dtype=tm.float16):
        y = layer(x, bias, hidden)
        q = F.linear(x, tm.eye(8)).view(3, 20, 2, 4).transpose(1, 2)
        assert F.scaled_dot_product_attention(q, q, q).dtype == tm.float16
    y.sum().backward()
    np.testing.assert_allclose(values(y), expected, rtol=2e-2, atol=2e-2)
    assert all(p.grad is not None and p.grad.dtype == tm.float32 for p in layer.parameters())


@pytest.mark.parametrize("need_weights", [False, True])
def test_learned_rows_under_autocast(need_weights: bool):
    """They are float32, and the projected keys are not: it raised a DTypeError."""
    mine, other = both("MultiheadAttention", 6, 3, add_bias_kv=True)
    x = np.random.default_rng(0).normal(size=(5, 2, 6)).astype("float32")
    with tm.autocast("cpu", dtype=tm.bfloat16):
        y = mine.float()(*[tm.tensor(x)] * 3, need_weights=need_weights)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = other.float()(*[torch.tensor(x)] * 3, need_weights=need_weights)[0]
    assert str(expected.dtype) == f"torch.{y.dtype}"
    np.testing.assert_allclose(values(y.float()), expected.detach().float().numpy(), rtol=3e-2, atol=3e-2)
    y.float().sum().backward()
    assert mine.bias_k.grad.dtype == tm.float32


ENCODERS: dict[str, tuple[dict, dict]] = {
    "fast": ({}, {}),
    "activation": ({"activation": "gelu"}, {}),
    "norm first": ({"norm_first": True}, {}),
    "tokens first": ({"batch_first": False}, {}),
    "no bias": ({"bias": False}, {}),
    "one head": ({"nhead": 1}, {}),
    "not nested": ({}, {"enable_nested_tensor": False}),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("end", [True, False], ids=["padded at the end", "padded before"])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_leaves_out_padding_where_pytorch_does(name: str, recorded: bool, end: bool):
    of_layer, of_stack = ENCODERS[name]
    weights, found, x = {}, [], normal(2, 4, 4)
    for lib in (torch, tm):
        options = {"nhead": 2, "batch_first": True, **of_layer}
        layer = lib.nn.TransformerEncoderLayer(4, dim_feedforward=6, **options)
        encoder = lib.nn.TransformerEncoder(layer, 2, lib.nn.LayerNorm(4), **of_stack).double().eval()
        weights = weights or {k: v.numpy() for k, v in encoder.state_dict().items()}
        encoder.load_state_dict({k: lib.tensor(v) for k, v in weights.items()})
        tokens = lib.tensor(x if layer.self_attn.batch_first else x.swapaxes(0, 1).copy())
        hidden = lib.tensor([[False, False, True, True], [False] * 4])
        with lib.set_grad_enabled(recorded):
            found.append(encoder(tokens, src_key_padding_mask=hidden if end else hidden.flip(1)).detach().numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


def test_dropout_in_training_only():
    tm.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.5)
    x = tm.randn(5, 3, 8)
    assert (values(layer(x)) != values(layer(x))).any()
    layer.eval()
    np.testing.assert_array_equal(values(layer(x)), values(layer(x)))


def test_copies_of_a_layer_are_its_own():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 3)
    first, *others = encoder.layers
    for other in others:
        for p, q in zip(first.parameters(), other.parameters(), strict=True):
            assert p is not q
            np.testing.assert_array_equal(values(p), values(q))
    assert copy.deepcopy(encoder).num_layers == 3


_X = tm.ones(5, 2, 4)


def mha(*args: Any, **options: Any) -> Any:
    return nn.MultiheadAttention(4, 2)(*(args or (_X, _X, _X)), **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.MultiheadAttention(4, 3), AssertionError, "embed_dim must be divisible by num_heads: 4 is not by 3"),
        (lambda: nn.MultiheadAttention(0, 1), ValueError, "must be greater than 0, got embed_dim=0 and num_heads=1"),
        (lambda: mha(tm.ones(5, 2, 3), _X, _X), RuntimeError, "was expecting embedding dimension of 4, but got 3"),
        (lambda: mha(_X, tm.ones(6, 2, 4), _X), RuntimeError, r"key shape \(6, 2, 4\) does not match value shape \(5, 2, 4\)"),
        (lambda: mha(tm.ones(4), _X, _X), RuntimeError, r"batches of sequences \(3 dimensions\) or single ones"),
        (lambda: mha(is_causal=True), RuntimeError, "Need attn_mask if specifying the is_causal hint"),
        (
            lambda: mha(key_padding_mask=tm.ones(5, 2, dtype=tm.bool)),
            RuntimeError,
            r"expecting key_padding_mask of shape \(2, 5\), but got \(5, 2\)",
        ),
        (
            lambda: mha(attn_mask=tm.ones(4, 5)),
            RuntimeError,
            r"The shape of the 2D attn_mask is \(4, 5\), but should be \(5, 5\)",
        ),
        (lambda: mha(attn_mask=tm.ones(2, 5, 5)), RuntimeError, r"The shape of the 3D attn_mask is \(2, 5, 5\)"),
        (lambda: mha(attn_mask=tm.ones(5, 5).long()), RuntimeError, "only bool and floating types of attn_mask are supported"),
        (lambda: mha(attn_mask=tm.ones(5, 5, device="meta")), RuntimeError, "same device"),
        (lambda: nn.MultiheadAttention(4, 2, dropout=1.5)(_X, _X, _X), ValueError, "between 0 and 1, but got 1.5"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="tanh"), RuntimeError, "activation should be relu/gelu, not tanh"),
        (lambda: nn.Transformer(4, 2, 1, 1, 4)(_X, tm.ones(3, 1, 4)), RuntimeError, "the batch number of src and tgt must be"),
        (lambda: nn.Transformer(4, 2, 1, 1, 4)(tm.ones(3, 2, 5), _X), RuntimeError, "must be equal to d_model, 4"),
    ],
)
def test_refused(call: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        call()


def test_on_meta_it_takes_what_the_cpu_takes():
    """A training step: the same peak, to the byte, used and reserved."""

    def step() -> None:
        layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True), 2)
        rule = tm.optim.Adam(layer.parameters(), 1e-3)
        x = tm.randn(3, 40, 16)
        for _ in range(2):
            loss = F.mse_loss(layer(x), x)
            rule.zero_grad()
            loss.backward()
            rule.step()

    assert_predicted(step)
