"""Views, rearrangements and indexing against PyTorch; views and in-place writes together."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, assert_same, values
from tinygrad_mem.nn import functional as F

X = np.random.default_rng(0).standard_normal((3, 4, 5))

SAME = {
    "view": lambda x: x.view(12, 5),
    "view_inferred": lambda x: x.view(-1, 2),
    "reshape_copy": lambda x: x.transpose(0, 1).reshape(3, -1),
    "reshape_view_of_slices": lambda x: x[:, 1:3].reshape(3, 2, 5, 1),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "squeeze_all": lambda x: x[:1, :, :1].squeeze(),
    "expand": lambda x: x[:1].expand(6, -1, 5),
    "movedim": lambda x: x.movedim(0, 2),
    "mT": lambda x: x.mT,
    "T": lambda x: x[0].T,
    "narrow": lambda x: x.narrow(1, -3, 2),
    "select": lambda x: x.select(1, -1),
    "unbind": lambda x: x.unbind(1),
    "chunk": lambda x: x.chunk(3, 1),
    "split": lambda x: x.split(2, 1),
    "diagonal": lambda x: x.diagonal(-1, 1, 2),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((1, -2), (0, 2)),
    "roll_flat": lambda x: x.roll(7),
    "repeat": lambda x: x.repeat(2, 1, 1, 3),
    "tile": lambda x: x.tile((2,)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "diff": lambda x: x.diff(dim=1),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "iteration": lambda x: [row * 2 for row in x],
    "integer": lambda x: x[1],
    "slices": lambda x: x[:, 1:3, ::2],
    "ellipsis": lambda x: x[..., -1],
    "new_axis": lambda x: x[None, :, None],
    "list": lambda x: x[[0, 2, 0]],
    "pairs": lambda x: x[[0, 1], [1, 3]],
    "inner_pairs": lambda x: x[:, [0, 1], [2, 2]],
    "separated": lambda x: x[[0, 1], :, [2, 3]],
    "negative": lambda x: x[-1, [-1, 0]],
    "mask": lambda x: x[x > 0],
    "row_mask": lambda x: x[[True, False, True]],
    "broadcast_index": lambda x: x[[[0], [1]], [[1, 2]]],
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", SAME)
def test_same_expression_same_result(name, dtype):
    against_torch(SAME[name], SAME[name], [X], dtype)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("amounts", [(1, 2), (0, 3), (2, 1, 1, 0)])
def test_pad(mode, amounts):
    x = X if len(amounts) == 2 else X[None]
    against_torch(lambda t: F.pad(t, amounts, mode=mode), lambda t: torch.nn.functional.pad(t, amounts, mode=mode), [x])


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_basic_indexing(sizes, data):
    parts: list[Any] = []
    for n in sizes[: data.draw(st.integers(0, len(sizes)))]:
        parts += [None] * data.draw(st.integers(0, 1))  # a new axis, which takes none of the tensor's
        parts.append(data.draw(st.one_of(st.integers(-n, n - 1), st.slices(n).filter(lambda s: s.step is None or s.step > 0))))
    key = tuple(parts)
    x = np.random.default_rng(len(key)).standard_normal(sizes)
    against_torch(lambda t: t[key], lambda t: t[key], [x])


WRITES = {
    "row": lambda x, v: x.__setitem__(0, v[0]),
    "slices": lambda x, v: x.__setitem__((slice(None), slice(1, 3)), 2.0),
    "list": lambda x, v: x.__setitem__([0, 2], v[:2]),
    "pairs": lambda x, v: x.__setitem__(([0, 1], [1, 3]), v[0, 0]),
    "mask": lambda x, v: x.__setitem__(x > 0, 0.5),
    "broadcast": lambda x, v: x.__setitem__((..., 0), v[0, 0, 0]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing(name):
    def run(x, v):
        y = x * 2
        WRITES[name](y, v)
        return y * y

    against_torch(run, run, [X, X + 1])


PROGRAM = ["add_", "mul_", "row", "column", "transpose", "relu_", "write", "copy", "double"]


def play(steps: list[str], x):
    """Views and in-place writes in any order; every tensor that was made is part of the result."""
    made = [x * 1.5]
    for number, step in enumerate(steps):
        t = made[number % len(made)]
        if step == "add_":
            t.add_(0.5)
        elif step == "mul_":
            t.mul_(1.25)
        elif step == "relu_":
            t.relu_()
        elif step == "write" and t.ndim:
            t[..., :1] = 0.75
        elif step == "copy":
            t.copy_(made[0].detach().sum() * 0.01 + t.detach() * 0.5)
        elif step == "row" and t.ndim > 1:
            made.append(t[1])
        elif step == "column" and t.ndim > 1:
            made.append(t[:, 1:])
        elif step == "transpose" and t.ndim > 1:
            made.append(t.t())
        elif step == "double":
            made.append(t * 2)
    return sum((t.sum() * (i + 1) for i, t in enumerate(made)), start=0)


@given(steps=st.lists(st.sampled_from(PROGRAM), max_size=9))
def test_random_programs_of_views_and_writes(steps):
    """Where PyTorch refuses, because a saved tensor was overwritten, we do too."""
    x = np.random.default_rng(len(steps)).standard_normal((3, 4))
    try:
        play(steps, torch.tensor(x, requires_grad=True)).backward()
    except RuntimeError:
        with pytest.raises(tm.errors.GraphError, match="modified by an inplace operation"):
            play(steps, tm.tensor(x, requires_grad=True)).backward()
        return
    against_torch(lambda t: play(steps, t), lambda t: play(steps, t), [x])


@pytest.mark.parametrize(("ndim", "order"), [(3, "channels_last"), (4, "channels_last"), (5, "channels_last_3d")])
def test_the_order_of_elements_in_memory_is_told_as_by_pytorch(ndim: int, order: str):
    told = set()
    for shape in itertools.product((1, 2, 3)[: 7 - ndim], repeat=ndim):
        for axes in (tuple(range(ndim)), (0, ndim - 1, *range(1, ndim - 1)), tuple(reversed(range(ndim)))):
            mine, other = (lib.zeros(shape).permute(axes) for lib in (tm, torch))
            found = mine.is_contiguous(), mine.is_contiguous(memory_format=order)
            assert found == (other.is_contiguous(), other.is_contiguous(memory_format=getattr(torch, order))), (shape, axes)
            told.add(found)
    assert len(told) == (2 if ndim == 3 else 4)


def test_views_share_memory_and_versions():
    x = tm.zeros(3, 4)
    y = x[1].view(2, 2)
    y[0, 0] = 5.0
    assert x[1, 0].item() == 5.0
    assert x._version == y._version == 1
    assert y._base is x
    assert x._base is None


def test_a_saved_tensor_that_was_overwritten_is_named_with_both_ops():
    x = tm.ones(3, requires_grad=True)
    b = x * 2
    c = b * b
    b += 1
    with pytest.raises(tm.errors.GraphError, match=r"Mul saved 'x' at version 0; Add has written to it since"):
        c.sum().backward()


def test_a_view_that_was_written_counts_for_what_was_saved_of_the_whole():
    x = tm.ones(3, requires_grad=True)
    b = x * 2
    c = b.exp() * b
    b[0].zero_()
    with pytest.raises(tm.errors.GraphError, match="modified by an inplace operation"):
        c.sum().backward()


def test_leaves_that_require_grad_are_not_written():
    x = tm.ones(3, requires_grad=True)
    with pytest.raises(tm.errors.GraphError, match="a leaf Variable that requires grad"):
        x.add_(1)
    with pytest.raises(tm.errors.GraphError, match="a view of a leaf Variable that requires grad"):
        x[0].add_(1)
    with tm.no_grad():
        x.add_(1)
        x[0] = 7.0
    assert x.tolist() == [7.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("run", "error", "words"),
    [
        (lambda x: x.view(7), tm.errors.ShapeError, "is invalid for input of size"),
        (lambda x: x.view(-1, -1), tm.errors.ShapeError, "only one dimension"),
        (lambda x: x.transpose(0, 1).view(12), tm.errors.ShapeError, "view size is not compatible"),
        (
            lambda x: x.permute(0, 0),
            tm.errors.ShapeError,
            r"permute: .* expected 2 different numbers from 0 to 1, found \[0, 0\]",
        ),
        (lambda x: x.transpose(0, 2), tm.errors.DimensionError, "Dimension out of range"),
        (lambda x: x.expand(3, 5), tm.errors.ShapeError, "must match the existing size"),
        (lambda x: x[3], tm.errors.DimensionError, "out of bounds for dimension 0 with size 3"),
        (lambda x: x[0, 0, 0], tm.errors.DimensionError, "too many indices"),
        (lambda x: x[[0, 3]], tm.errors.DimensionError, "out of bounds"),
        (lambda x: x[::-1], ValueError, "step must be greater than zero"),
        (lambda x: x["a"], TypeError, "only integers"),
        (lambda x: x[tm.ones(3)], tm.errors.DimensionError, "must be long, int"),
        (lambda x: x[tm.ones(2, dtype=tm.bool)], tm.errors.DimensionError, "shape of the mask"),
        (lambda x: x.split([1, 1]), tm.errors.ShapeError, "sum exactly"),
        (lambda x: x.narrow(0, 2, 2), tm.errors.DimensionError, "exceeds dimension size"),
        (lambda x: tm.cat([x, x[:, :2]]), tm.errors.ShapeError, "Sizes of tensors must match"),
        (lambda x: tm.stack([x, x[:, :2]]), tm.errors.ShapeError, "equal size"),
        (lambda x: x.gather(0, tm.tensor([[5, 0, 0, 0]])), tm.errors.DimensionError, "out of bounds"),
        (lambda x: x.gather(0, tm.zeros(1, 4)), tm.errors.DTypeError, "int64"),
        (
            lambda x: tm.gather(x, 0, tm.tensor([[0]]), sparse_grad=True),
            tm.errors.NotOfferedError,
            "gradient is dense",
        ),
        (lambda x: x.index_select(0, tm.tensor([-1])), tm.errors.DimensionError, "out of bounds"),
        (lambda x: F.pad(x, (5, 0), mode="reflect"), tm.errors.ShapeError, "Padding size"),
        (lambda x: F.pad(x, (1,)), tm.errors.ShapeError, "divisible by 2"),
        (lambda x: x.to("meta")[x.to("meta") > 0], tm.errors.DataDependenceError, "depends on values"),
    ],
)
def test_refusals_say_what_is_wrong(run, error, words):
    x = tm.ones(3, 4)
    before = x.tolist()
    with pytest.raises(error, match=words):
        run(x)
    assert x.tolist() == before


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
@pytest.mark.parametrize("n", [0, 1, 1500])
def test_a_permutation_has_each_number_once(n: int, dtype: str, dev: str):
    found = tm.randperm(n, dtype=getattr(tm, dtype), device=dev)
    assert sorted(values(found).tolist()) == list(range(n))
    assert found.dtype == getattr(tm, dtype)


def test_random_numbers_repeat_from_their_seed():
    for draw in (lambda: tm.randn(3, 4), lambda: tm.rand(3), lambda: tm.randint(0, 9, (5,)), lambda: tm.randperm(7)):
        tm.manual_seed(3)
        first = draw().tolist()
        tm.manual_seed(3)
        state = tm.get_rng_state()
        assert draw().tolist() == first
        assert draw().tolist() != first
        tm.set_rng_state(state)
        assert draw().tolist() == first


def test_random_numbers_have_their_moments():
    tm.manual_seed(0)
    x = tm.randn(100_000)
    assert abs(x.mean().item()) < 0.02
    assert abs(x.std().item() - 1) < 0.02
    u = tm.rand(100_000)
    assert 0 <= u.min().item() < u.max().item() < 1
    assert abs(u.mean().item() - 0.5) < 0.01
    assert sorted(tm.randperm(100).tolist()) == list(range(100))
    assert abs(tm.empty(100_000).bernoulli_(0.3).mean().item() - 0.3) < 0.01
    for shape in ((), (1, 2, 3)):
        with pytest.raises(tm.errors.ShapeError, match="prob_dist must be 1 or 2 dim"):
            tm.multinomial(tm.ones(shape), 1)
    counts = tm.multinomial(tm.tensor([1.0, 3.0, 0.0]), 10_000, replacement=True)
    assert counts.max().item() == 1
    assert abs(counts.float().mean().item() - 0.75) < 0.02


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint8", "bool"])
def test_creation_and_casts(dtype):
    for name in ("zeros", "ones"):
        assert_same(getattr(tm, name)(2, 3, dtype=dtype), getattr(torch, name)(2, 3, dtype=getattr(torch, dtype)), (0, 0))
    x = np.array([[0.0, 1.0], [2.0, 3.0]])
    assert_same(tm.tensor(x).to(dtype), torch.tensor(x).to(getattr(torch, dtype)), (0, 0))
    assert_same(tm.full((2,), 1, dtype=dtype), torch.full((2,), 1, dtype=getattr(torch, dtype)), (0, 0))


@pytest.mark.parametrize("make", ["tensor", "as_tensor"])
def test_what_is_too_large_for_the_dtype_is_inf(make: str):
    """Without a warning, as PyTorch has it."""
    for data, dtype in (([70000.0, -1e6], "float16"), (np.array([7e4]), "float16"), ([1e300], "float32"), (1e300, None)):
        mine, other = (getattr(lib, make)(data, dtype=dtype and getattr(lib, dtype)) for lib in (tm, torch))
        assert_same(mine, other, (0, 0))
        assert np.isinf(mine.numpy()).all()


DATA = [
    *[f"[np.ones(2, {d!r})]" for d in ("f8", "f4", "f2", "i8", "i4", "i2", "u1", "i1", "?", ">f8")],
    *[f"[np.{d}(1)]" for d in ("float64", "float32", "float16", "int64", "int32", "int16", "uint8", "bool_")],
    "[np.ones(2, 'i4'), np.ones(2)]",
    "[np.ones(2, 'u1'), np.ones(2, 'i1')]",
    "[np.ones(2, 'f2'), np.ones(2, 'i8')]",
    "[np.ones(2), [1, 2]]",
    "[[1.0, 2.0], np.ones(2, 'f2')]",
    "[np.ones(0, 'i8')]",
    "[[]]",
    "()",
    "[np.float16(1), 2.0]",
    "[np.int32(1), 2.0, True]",
    "[np.float64(1), 1]",
    "[np.int16(1), 1]",
    "[True, np.uint8(1)]",
    "[[np.ones(2), np.ones(2)]]",
    "[lib.tensor(1.0, dtype=lib.float64), 2.0]",
    "[lib.tensor(1, dtype=lib.int16)]",
    "[[lib.tensor(True)], [lib.tensor(1.0, dtype=lib.float16)]]",
    "np.float64(1)",
    "range(3)",
    "[range(3)]",
]


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list", "ignore:To copy construct")  # PyTorch's
@pytest.mark.parametrize("make", ["tensor", "as_tensor"])
@pytest.mark.parametrize("default", ["float32", "float64"])
def test_the_dtype_of_a_list_is_what_all_in_it_are_promoted_to(make: str, default: str):
    made = []
    for lib in (tm, torch):
        before = lib.get_default_dtype()
        lib.set_default_dtype(getattr(lib, default))
        made.append([getattr(lib, make)(eval(data, {"np": np, "lib": lib})) for data in DATA])
        lib.set_default_dtype(before)
    for data, mine, other in zip(DATA, *made, strict=True):
        assert f"torch.{mine.dtype}" == str(other.dtype), data
        assert_same(mine, other, (0, 0))


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_tensor_of_a_tensor_stays_on_its_device():
    for lib in (tm, torch):
        here, nowhere = lib.ones(3), lib.ones(3, device="meta")
        for make in (lib.tensor, lib.as_tensor):
            assert make(nowhere).device.type == make(nowhere, dtype=lib.float64).device.type == "meta"
            with lib.device("meta"):
                assert make(here).device.type == make([here[0]]).device.type == "meta"
            assert make(here, device="meta").device.type == "meta"
        assert lib.tensor(here.requires_grad_()).requires_grad is False
        assert lib.tensor(here).data_ptr() != here.data_ptr()
    told: list = []
    tm.memory.predict(lambda: told.append(tm.tensor(tm.tensor([1.0, 2.0]), dtype=tm.int64).tolist()))
    assert told == [[1, 2]]


def test_ranges():
    for arguments in ((5,), (1, 5), (1, 8, 3), (0.5, 2.0, 0.5), (5, 1, -2)):
        assert_same(tm.arange(*arguments), torch.arange(*arguments), (1e-6, 1e-6))
    assert_same(tm.linspace(0, 1, 5), torch.linspace(0, 1, 5), (1e-6, 1e-6))
    assert_same(tm.eye(3, 4), torch.eye(3, 4), (0, 0))
    for mine, other in zip(
        tm.meshgrid(tm.arange(3), tm.arange(4), indexing="xy"),
        torch.meshgrid(torch.arange(3), torch.arange(4), indexing="xy"),
        strict=True,
    ):
        assert_same(mine, other, (0, 0))


def test_numpy_shares_memory_both_ways():
    a = np.zeros(3, np.float32)
    t = tm.from_numpy(a)
    t += 1
    assert a.tolist() == [1.0, 1.0, 1.0]
    t.numpy()[0] = 5
    assert a[0] == 5
    with pytest.raises(ValueError, match="negative"):
        tm.from_numpy(a[::-1])
    with pytest.raises(TypeError, match=r"expected np\.ndarray"):
        tm.from_numpy([1.0])


@pytest.mark.parametrize(
    "values", [[1.0, 2.5], [[1, 2], [3, 4]], [True, False], [], [[]], 3.0, [1e10, 1e-10], [float("nan"), float("inf")]]
)
def test_a_tensor_prints_what_it_holds(values):
    text = repr(tm.tensor(values))
    assert text.startswith("tensor(")
    assert text.endswith(")")


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, -1), (2, 3), (3, 3)])
def test_what_expand_repeats_nothing_of_may_be_written(shape: tuple[int, ...]):
    """As in PyTorch: a place that several elements share is refused, a new axis of size 1 shares none."""
    found = []
    for lib in (tm, torch):
        x = lib.zeros(3)
        try:
            x.expand(shape).copy_(lib.arange(3.0).expand(shape))
        except RuntimeError:
            found.append("refused")
        else:
            found.append(x.tolist())
    assert found[0] == found[1]
    x = tm.zeros(3, requires_grad=True)
    y = (x * 2).expand(1, 3)
    y.mul_(3)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0, 6.0]


@pytest.mark.parametrize("chunks", [1, 3])
def test_chunks_of_nothing_are_as_many_as_were_asked_for(chunks: int):
    assert [tuple(part.shape) for part in tm.chunk(tm.zeros(2, 0), chunks, 1)] == [(2, 0)] * chunks


@pytest.mark.parametrize("value", [True, np.bool_(True), 2, np.int64(2), 2.5, np.float64(2.5)], ids=repr)
def test_full_of_a_number_has_pytorchs_dtype(value):
    assert str(torch.full((2,), value).dtype) == f"torch.{tm.full((2,), value).dtype.name}"


@pytest.mark.parametrize(
    "call",
    [f"pad(x, (0, 0, 0, 0), mode='{mode}')" for mode in ("constant", "reflect", "replicate", "circular")]
    + [f"{name}(x, 1)" for name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")]
    + ["pixel_shuffle(x.view(4, 4, 1, 1), 2)", "pixel_unshuffle(x.view(4, 1, 2, 2), 2)"],
)
def test_what_gives_new_memory_does_so_where_nothing_moves(call: str):
    x = tm.zeros(1, 1, 4, 4, requires_grad=True)
    y = eval(f"F.{call}", {"F": F, "x": x})
    y.detach().fill_(4)
    assert x.sum().item() == 0
    y.sum().backward()
    assert x.grad.sum().item() == 16
