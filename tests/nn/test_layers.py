"""Every layer against PyTorch's of the same name, with the same weights."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import against_torch, flat, values
from tests.nn.rows import ROWS, Row
from tests.profiles import share_of_each
from tinygrad_mem import nn
from tinygrad_mem.devices import device

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # PyTorch, of layers that it made itself
CONTAINERS = {"Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
CONTAINERS |= {"TransformerEncoder", "TransformerDecoder"}  # of layers that are given: tests/nn/test_transformer.py
CONTAINERS |= {"DataParallel"}  # of a module that is given: tests/sturdy/test_stand_ins.py
HALF = ("Linear", "Bilinear", "Conv2d", "ConvTranspose2d", "BatchNorm2d", "LayerNorm", "RMSNorm", "GroupNorm", "PReLU", "GELU")
every_row = pytest.mark.parametrize("row", ROWS, ids=str)


def ours(row: Row, **more: Any) -> Any:
    return row.make(nn, tm.tensor, **more)


def theirs(row: Row) -> Any:
    return row.make(torch.nn, torch.tensor)


def loaded(row: Row) -> tuple[Any, Any]:
    """Both layers in float64, with PyTorch's weights, moved off their first values."""
    mine, other = ours(row).double(), theirs(row).double()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    mine.load_state_dict({k: tm.tensor(v.numpy()) for k, v in other.state_dict().items()})
    return mine, other


def asked(row: Row, mine: Any, other: Any, dtype: str) -> tuple[Any, Any, list[np.ndarray]]:
    """Both layers as functions of the inputs that get gradients: a target of 1 and -1 gets none."""
    arrays = row.inputs(np.random.default_rng(5))
    if row.name not in ("CosineEmbeddingLoss", "MarginRankingLoss"):
        return mine, other, arrays
    *arrays, target = arrays
    target = target.astype(dtype)
    return lambda *x: mine(*x, tm.tensor(target)), lambda *x: other(*x, torch.tensor(target)), arrays


def test_every_layer_has_a_row():
    layers = {n for n, v in vars(nn).items() if isinstance(v, type) and issubclass(v, nn.Module)}
    assert layers - {row.name for row in ROWS} == CONTAINERS


@every_row
def test_same_text_and_same_state(row: Row):
    mine, other = ours(row), theirs(row)
    assert repr(mine) == repr(other)
    assert list(mine.state_dict()) == list(other.state_dict())
    assert [tuple(t.shape) for t in mine.state_dict().values()] == [tuple(t.shape) for t in other.state_dict().values()]
    assert [n for n, _ in mine.named_parameters()] == [n for n, _ in other.named_parameters()]
    for (name, p), q in zip(mine.state_dict().items(), other.state_dict().values(), strict=True):
        assert str(q.dtype) == f"torch.{p.dtype}", name


@pytest.mark.parametrize("row", share_of_each(ROWS, 2, lambda row: row.name), ids=str)
def test_same_results_and_gradients_in_float32(row: Row):
    mine, other = loaded(row)
    mine.float().eval()
    other.float().eval()
    run, reference, arrays = asked(row, mine, other, "float32")
    against_torch(run, reference, arrays, "float32", tolerance=(1e-4, 1e-5))


@pytest.mark.parametrize("row", [r for r in ROWS if r.name in HALF], ids=str)
def test_half_is_near_float32(row: Row):
    """float16 arithmetic accumulates in float32: results are float32's, rounded."""
    full, _ = loaded(row)
    full.half()  # rounds the weights, so that both have the same
    half = copy.deepcopy(full)
    full.float()
    arrays = [a.astype("f2") for a in row.inputs(np.random.default_rng(5))]
    x = [tm.tensor(a.astype("f4"), requires_grad=True) for a in arrays]
    h = [tm.tensor(a, requires_grad=True) for a in arrays]
    expected, found = full(*x), half(*h)
    assert found.dtype == tm.float16
    np.testing.assert_allclose(values(found), values(expected), rtol=4e-3, atol=4e-3)
    expected.sum().backward()
    found.sum().backward()
    for a, b in zip((*h, *half.parameters()), (*x, *full.parameters()), strict=True):
        assert a.grad.dtype == tm.float16
        np.testing.assert_allclose(values(a.grad), values(b.grad), rtol=2e-2, atol=2e-2)


EVALUATED = share_of_each(ROWS, 2, lambda row: (row.name, "in evaluation"))
TRAINED = [*((row, True) for row in ROWS), *((row, False) for row in ROWS if row in EVALUATED or row.random)]


@pytest.mark.parametrize(("row", "training"), TRAINED, ids=str)
def test_same_results_and_gradients(row: Row, training: bool):
    if row.random and training:
        pytest.skip("random: the numbers are not PyTorch's")
    mine, other = loaded(row)
    mine.train(training)
    other.train(training)
    run, reference, arrays = asked(row, mine, other, "float64")
    against_torch(run, reference, arrays, "float64", tolerance=(row.tolerance, row.tolerance))
    for (name, p), q in zip(mine.named_parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            np.testing.assert_allclose(values(p.grad), q.grad.numpy(), rtol=1e-10, atol=1e-10, err_msg=name)
    for (name, b), c in zip(mine.named_buffers(), other.buffers(), strict=True):
        np.testing.assert_allclose(values(b), c.numpy(), rtol=1e-10, atol=1e-10, err_msg=name)


@every_row
def test_on_meta_it_has_the_same_shapes_and_no_memory(row: Row):
    options = {k: v for k, v in row.options.items() if not isinstance(v, np.ndarray)}
    with tm.device("meta"):
        layer = getattr(nn, row.name)(*row.args, **options)
    assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    arrays = [a.astype("f4") if a.dtype.kind == "f" else a for a in row.inputs(np.random.default_rng(5))]
    with torch.no_grad():
        expected = theirs(row)(*[torch.tensor(a) for a in arrays])
    inputs = [tm.tensor(a, device="meta") for a in arrays]
    if row.name == "CTCLoss":  # its lengths decide about sizes
        with pytest.raises(tm.errors.DataDependenceError, match="no values"):
            layer(*inputs)
        inputs[2:] = [a.tolist() for a in arrays[2:]]
    found = layer(*inputs)
    pairs = zip(flat(found), flat(expected), strict=True)
    assert all(tuple(f.shape) == tuple(e.shape) and f.is_meta for f, e in pairs)


@every_row
def test_copies_and_pickles_are_equal_and_apart(row: Row):
    layer = ours(row)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(twin) is type(layer)
        assert repr(twin) == repr(layer)
        assert all(type(p) is nn.Parameter and p.requires_grad for p in twin.parameters())
        for (name, a), b in zip(layer.state_dict().items(), twin.state_dict().values(), strict=True):
            np.testing.assert_array_equal(values(a), values(b), err_msg=name)
            assert not np.shares_memory(values(a), values(b))


@every_row
def test_half(row: Row):
    layer = ours(row)
    before = list(layer.parameters())
    assert layer.half() is layer
    assert all(p is q and p.dtype == tm.float16 for p, q in zip(layer.parameters(), before, strict=True))
    assert all(b.dtype == (tm.float16 if b.is_floating_point() else tm.int64) for b in layer.buffers())


MADE = [row for row in ROWS if row.name in ("Linear", "Bilinear", "Conv2d", "ConvTranspose2d", "BatchNorm2d", "LayerNorm")]
MADE += [row for row in ROWS if row.name in ("RMSNorm", "GroupNorm", "InstanceNorm2d", "PReLU", "Embedding")]


@pytest.mark.parametrize("row", MADE, ids=str)
def test_device_and_dtype_arguments(row: Row):
    layer = ours(row, device="meta", dtype=tm.float64)
    assert all(p.is_meta and p.dtype == tm.float64 for p in layer.parameters())


@pytest.mark.parametrize("row", MADE, ids=str)
def test_a_deleted_layer_is_gone_at_once(row: Row):
    pool = device("cpu").pool
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        layer = nn.Sequential(nn.Sequential(ours(row)))
        assert pool.used_bytes() > before or not list(layer.parameters())
        del layer
        assert pool.used_bytes() == before
    finally:
        gc.enable()


FIRST = [
    ("Linear", (300, 200), {}),
    ("Conv2d", (30, 40, 3), {"groups": 2}),
    ("ConvTranspose2d", (30, 40, 3), {}),
    ("Bilinear", (20, 30, 40), {}),
    ("Embedding", (1000, 100), {}),
]


@pytest.mark.parametrize(("name", "args", "options"), FIRST, ids=[f[0] for f in FIRST])
def test_first_values_have_pytorchs_distribution(name: str, args: tuple, options: dict):
    torch.manual_seed(0)
    mine, other = getattr(nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)
    a, b = np.sort(values(mine.weight).ravel()), np.sort(other.weight.detach().numpy().ravel())
    scale = b.std()
    assert abs(a.mean()) < 0.05 * scale
    assert abs(a.std() / scale - 1) < 0.03
    at = np.linspace(0.01, 0.99, 25)
    np.testing.assert_allclose(np.quantile(a, at), np.quantile(b, at), atol=0.1 * scale)
    if name != "Embedding":
        assert abs(values(mine.bias)).max() <= abs(other.bias.detach().numpy()).max() * 1.3


def test_padding_row_of_an_embedding_is_zero():
    assert not values(nn.Embedding(5, 3, padding_idx=2).weight)[2].any()


def test_embedding_from_pretrained():
    table = tm.randn(5, 3)
    layer = nn.Embedding.from_pretrained(table)
    assert not layer.weight.requires_grad
    assert layer.weight.array is table.array
    assert nn.Embedding.from_pretrained(table, freeze=False).weight.requires_grad
    assert nn.Embedding.from_pretrained(table.int())(tm.tensor([0])).dtype == tm.int32


def test_transposed_convolution_takes_an_output_size():
    mine, other = loaded(Row("ConvTranspose2d", (4, 3, 3), lambda rng: [], {"stride": 2}))
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 5))
    against_torch(lambda x: mine(x, [12, 12]), lambda x: other(x, output_size=[12, 12]), [x])
    with pytest.raises(ValueError, match=r"requested an output size of \[13, 13\], but valid sizes range from 11 to 12"):
        mine(tm.tensor(x), [13, 13])


BAD = [
    (lambda: nn.Conv2d(3, 4, 3, groups=2), "in_channels must be divisible by groups"),
    (lambda: nn.Conv2d(4, 3, 3, groups=2), "out_channels must be divisible by groups"),
    (lambda: nn.Conv2d(4, 3, 3, groups=0), "groups must be a positive integer"),
    (lambda: nn.Conv2d(4, 3, 3, padding="some"), "Invalid padding string 'some'"),
    (lambda: nn.Conv2d(4, 3, 3, 2, padding="same"), "padding='same' is not supported for strided convolutions"),
    (lambda: nn.Conv2d(4, 3, 3, padding_mode="none"), "padding_mode must be one of"),
    (lambda: nn.ConvTranspose2d(4, 3, 3, padding_mode="reflect"), 'Only "zeros" padding mode is supported for ConvTranspose2d'),
    (lambda: nn.ConvTranspose2d(4, 3, 3)(tm.ones(1, 4, 5, 5), [1]), "output_size must have 2 or 4 elements"),
    (lambda: nn.BatchNorm2d(4)(tm.ones(2, 4)), r"expected 4D input \(got 2D input\)"),
    (lambda: nn.BatchNorm1d(4)(tm.ones(2, 4, 1, 1)), r"expected 2D or 3D input \(got 4D input\)"),
    (lambda: nn.InstanceNorm2d(4, affine=True)(tm.ones(2, 3, 5, 5)), "expected input's size at dim=1 to match num_features"),
    (lambda: nn.GroupNorm(3, 4), r"num_channels \(4\) must be divisible by num_groups \(3\)"),
    (lambda: nn.Dropout(1.5), "dropout probability has to be between 0 and 1, but got 1.5"),
    (lambda: nn.Embedding(3, 2, padding_idx=3), "Padding_idx must be within num_embeddings"),
    (lambda: nn.Embedding(3, 2, _weight=tm.ones(2, 2)), "Shape of weight does not match"),
    (lambda: nn.Embedding.from_pretrained(tm.ones(2)), "expected to be 2-dimensional"),
    (lambda: nn.Hardtanh(1.0, 0.0), "max_val must be larger than min_val"),
    (lambda: nn.Bilinear(0, 1, 1), "in1_features must be > 0"),
    (lambda: nn.LocalResponseNorm(2)(tm.ones(2, 3)), "Expected 3D or higher dimensionality input"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_arguments_are_refused(wrong: Any, message: str):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_unflatten_takes_ints_only():
    with pytest.raises(TypeError, match="invalid argument type for dim"):
        nn.Unflatten("a", (2, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unflattened_size must be a tuple of ints"):
        nn.Unflatten(1, 4)  # type: ignore[arg-type]
