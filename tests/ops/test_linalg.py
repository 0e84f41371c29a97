"""Products against PyTorch: shapes, layouts, dtypes, memory; and what they refuse."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch
from tests.profiles import pairs
from tests.witness import numpy_allocations
from tinygrad_mem.devices import device
from tinygrad_mem.functional.einsum import bilinear
from tinygrad_mem.functional.linalg import linear
from tinygrad_mem.kernels.numpy.fast import blas, threads

SIZE = st.integers(0, 4)
LEAD = st.lists(st.integers(1, 3), max_size=2)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + len(shape)).standard_normal(shape)


@st.composite
def factors(draw):
    """Two shapes that matmul takes: vectors, matrices, batches that broadcast."""
    n, k, m = draw(SIZE), draw(SIZE), draw(SIZE)
    lead = draw(LEAD)
    left, right = [[1 if draw(st.booleans()) else s for s in lead][draw(st.integers(0, len(lead))) :] for _ in range(2)]
    a = [k] if draw(st.booleans()) and draw(st.booleans()) else [*left, n, k]
    b = [k] if draw(st.booleans()) and draw(st.booleans()) else [*right, k, m]
    return a, b


@given(factors(), st.sampled_from(["float64", "float32"]))
def test_matmul(shapes, dtype):
    against_torch(tm.matmul, torch.matmul, [values(*shapes[0]), values(*shapes[1], seed=1)], dtype)
    against_torch(lambda x, y: x @ y, lambda x, y: x @ y, [values(*shapes[0]), values(*shapes[1], seed=1)], dtype)


LARGE = [
    ((300, 40), (40, 500)), ((700, 3), (3, 900)), ((4, 9000), (9000, 700)), ((9000,), (9000, 40)), ((9000, 40), (40,)),
    ((9, 100, 90), (9, 90, 80)), ((9, 100, 90), (1, 90, 80)), ((1, 100, 90), (1, 90, 280)), ((100, 90), (5, 90, 80)),
    ((2, 3, 50, 60), (3, 60, 70)), ((5, 4000, 9), (9,)), ((900,), (5, 900, 30)), ((9000,), (9000,)),
]  # fmt: skip


@pytest.mark.parametrize(("shapes", "cores"), pairs(LARGE, [1, 2, 5]))
def test_large_products_are_shared(shapes: tuple[tuple, tuple], cores: int, monkeypatch: pytest.MonkeyPatch):
    """Rows, columns or matrices to each thread, while BLAS keeps to one, and gets its threads back."""
    left, right = shapes
    monkeypatch.setattr(threads._pool, "size", cores)
    monkeypatch.setattr(blas, "_SHARE", 1 << 12)
    monkeypatch.setattr(blas, "GRAIN", 1 << 10)
    a, b = values(*left), values(*right, seed=1)
    expected = np.matmul(a, b)
    out = np.full_like(expected, np.nan)
    before = blas._get_threads and blas._get_threads()
    blas.matmul(a, b, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    assert (blas._get_threads and blas._get_threads()) == before


TURNS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.mT,
    "strided": lambda x: x[..., ::2, ::2],
    "columns": lambda x: x[..., 1:4],
    "expanded": lambda x: x[..., :1].expand(*x.shape),
    "broadcast": lambda x: x[:1].expand(*x.shape),
    "swapped": lambda x: x.transpose(0, 1),
    "stepped": lambda x: x[::2],
}


@pytest.mark.parametrize("right", TURNS)
@pytest.mark.parametrize("left", TURNS)
def test_layouts(left, right):
    x, y = values(6, 6, 6), values(6, 6, 6, seed=1)

    def run(x, y):
        a, b = TURNS[left](x), TURNS[right](y)
        n = min(a.shape[0], b.shape[0])
        k = min(a.shape[-1], b.shape[-2])
        return a[:n, :, :k] @ b[:n, :k]

    against_torch(run, run, [x, y])


def test_transposed_factors_are_not_copied():
    """BLAS reads them in place: neither our pool nor NumPy gives out more than the result."""
    x, y, batch = tm.rand(300, 200), tm.rand(100, 200), tm.rand(4, 200, 300)
    pool = device("cpu").pool
    for run, size in (
        (lambda: x @ y.T, 300 * 100 * 4),
        (lambda: x.T @ x, 200 * 200 * 4),
        (lambda: x[:, :100] @ y[:, :100].T, 300 * 100 * 4),
        (lambda: batch.mT @ batch, 4 * 300 * 300 * 4),
        (lambda: batch @ x, 4 * 200 * 200 * 4),
    ):
        pool.free_all_blocks()
        used, reserved = pool.used_bytes(), pool.total_bytes()
        with numpy_allocations() as sizes:
            result = run()
        assert pool.used_bytes() - used == -(-size // 512) * 512
        assert pool.total_bytes() - reserved <= -(-size // 512) * 512
        assert [n for n in sizes if n > 64] == []
        del result


@pytest.mark.parametrize("shapes", [((64, 3000), (3000, 50)), ((2, 3, 40), (2, 40, 5)), ((700, 3), (3, 900)), ((5, 40), (40,))])
def test_float16_is_accumulated_in_float32(shapes):
    x, y = (np.random.default_rng(i).random(s).astype(np.float16) for i, s in enumerate(shapes))
    exact = np.matmul(x.astype("f8"), y.astype("f8"))
    a, b = tm.tensor(x).requires_grad_(), tm.tensor(y).requires_grad_()
    found = a @ b
    np.testing.assert_allclose(found.detach().numpy().astype("f8"), exact, rtol=6e-4)
    found.sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (tm.float16, tm.float16)
    c, d = torch.tensor(x.astype("f8")).requires_grad_(), torch.tensor(y.astype("f8")).requires_grad_()
    (c @ d).sum().backward()
    np.testing.assert_allclose(a.grad.numpy().astype("f8"), c.grad.numpy(), rtol=1e-3)
    np.testing.assert_allclose(b.grad.numpy().astype("f8"), d.grad.numpy(), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers(dtype: str, dev: str):
    """Also of transposed matrices, and where the result leaves the dtype."""
    x, y, many = (np.arange(n, dtype=dtype).reshape(shape) for n, shape in ((6, (2, 3)), (12, (4, 3)), (60, (5, 4, 3))))
    for left, right in ((x, y.T), (x, y.T[:, 0]), (many, y.T), (x[None, :, :] * 9, many.swapaxes(1, 2))):
        against_torch(tm.matmul, torch.matmul, [left, right], device=dev, grad=False)


@given(st.lists(st.integers(0, 3), max_size=3), st.integers(0, 4), st.integers(1, 4), st.booleans())
def test_linear(lead, inputs, outputs, bias):
    arrays = [values(*lead, inputs), values(outputs, inputs, seed=1), *([values(outputs, seed=2)] if bias else [])]
    against_torch(linear, torch.nn.functional.linear, arrays)


@pytest.mark.parametrize("frozen", [(True, False, False), (False, True, False), (True, True, False), (False, False, True)])
def test_linear_saves_what_is_needed(frozen):
    inputs = [tm.rand(5, 6), tm.rand(7, 6), tm.rand(7)]
    for t, still in zip(inputs, frozen, strict=True):
        t.requires_grad_(not still)
    saved = set(linear(*inputs).grad_fn.saved)
    assert saved == {name for name, other in (("x", 1), ("weight", 0)) if not frozen[other]}


def test_linear_of_non_contiguous_inputs():
    x, w, b = values(6, 5), values(6, 7, seed=1), values(14, seed=2)
    run = lambda f: lambda x, w, b: f(x.T, w.T, b[::2])  # noqa: E731
    against_torch(run(linear), run(torch.nn.functional.linear), [x, w, b])
    three = values(4, 3, 6)
    run = lambda f: lambda x, w: f(x.transpose(0, 1), w.T)  # noqa: E731
    against_torch(run(linear), run(torch.nn.functional.linear), [three, w])


def test_sixteen_layers_save_eight_mebibytes():
    """A linear layer's output is relu's, and relu's is the next layer's input: one array of 512 KiB a layer."""
    weights = [tm.rand(512, 512, requires_grad=True) for _ in range(16)]
    x = tm.rand(256, 512)
    before = device("cpu").pool.used_bytes()
    for weight in weights:
        x = linear(x, weight).relu()
    assert device("cpu").pool.used_bytes() - before <= 8.01 * 2**20


@given(st.integers(1, 3), st.sampled_from([0, 1, 0.5, 2]), st.sampled_from([0, 1, -2]), st.integers(0, 1))
def test_added_products(b, beta, alpha, case):
    options = {"beta": beta, "alpha": alpha}
    name, shapes = [
        ("addmm", [(3, 1), (3, 4), (4, 5)]),
        ("baddbmm", [(3, 5), (b, 3, 4), (b, 4, 5)]),
    ][case]
    run = lambda x, *rest: getattr(x, name)(*rest, **options)  # noqa: E731
    against_torch(run, run, [values(*s, seed=i) for i, s in enumerate(shapes)])


def test_added_products_in_place():
    for alpha, beta in ((1, 1), (2, 0.5), (1, 0)):
        run = lambda x, a, b: (x * 1).addmm_(a, b, alpha=alpha, beta=beta)  # noqa: B023, E731
        against_torch(run, run, [values(3, 5), values(3, 4), values(4, 5)])
    found = tm.addmm(tm.tensor([float("nan")]), tm.ones(2, 2), tm.ones(2, 2), beta=0)
    assert found.tolist() == [[2, 2], [2, 2]]


def test_vectors_and_the_rest():
    v, w, m = values(4), values(4, seed=1), values(4, 4)
    against_torch(tm.dot, torch.dot, [v, w])
    against_torch(tm.outer, torch.outer, [v, values(3)])
    against_torch(tm.ger, torch.ger, [v, w])
    against_torch(tm.mv, torch.mv, [m, v])
    against_torch(tm.trace, torch.trace, [m])
    against_torch(bilinear, torch.nn.functional.bilinear, [values(2, 5, 3), values(2, 5, 4), values(6, 3, 4), values(6)])
    x = tm.tensor(m)
    x @= tm.tensor(m)
    np.testing.assert_allclose(x.numpy(), m @ m)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ba", [(2, 3)]),
        ("ii", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("iij->ji", [(3, 3, 2)]),
        ("ij->", [(2, 3)]),
        ("ij->j", [(2, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("i,i->", [(3,), (3,)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("b h q d, b h k d -> b h q k", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bhqk,bkhd->bqhd", [(2, 3, 4, 5), (2, 5, 3, 6)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (3, 4, 5)]),
        ("...ij,jk", [(2, 3, 4), (4, 5)]),
        ("...i->...", [(2, 3, 4)]),
        ("i...->...", [(2, 3, 4)]),
        ("...,...->...", [(2, 1), (3,)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("ab,ab,ab->a", [(2, 3), (2, 3), (2, 3)]),
        ("a,b,c->cab", [(2,), (3,), (4,)]),
        ("ij,kl->ijkl", [(2, 3), (4, 5)]),
        ("aab,bcc->ac", [(2, 2, 3), (3, 4, 4)]),
        ("ij,jk->k", [(2, 3), (3, 4)]),
        ("Ab,bC", [(2, 3), (3, 4)]),
        (",ij->ij", [(), (2, 3)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ij,jk->ik", [(0, 3), (3, 4)]),
        ("ij,jk->ik", [(2, 0), (0, 4)]),
    ],
)
def test_einsum(equation, shapes):
    arrays = [np.asarray(values(*s, seed=i)) for i, s in enumerate(shapes)]
    against_torch(lambda *t: tm.einsum(equation, *t), lambda *t: torch.einsum(equation, *t), arrays)


LETTERS = "abcd"


@given(st.data())
def test_random_einsums(data):
    sizes = {c: data.draw(st.integers(1, 3)) for c in LETTERS}
    terms = data.draw(st.lists(st.text(LETTERS, max_size=4), min_size=1, max_size=3))
    used = sorted({c for t in terms for c in t})
    result = "".join(data.draw(st.lists(st.sampled_from(used), unique=True, max_size=4))) if used else ""
    equation = ",".join(terms) + "->" + result
    arrays = [np.asarray(values(*[sizes[c] for c in t], seed=i)) for i, t in enumerate(terms)]
    against_torch(lambda *t: tm.einsum(equation, *t), lambda *t: torch.einsum(equation, *t), arrays, tolerance=(1e-9, 1e-9))


@pytest.mark.parametrize("equation", [",,d->", "a,a,d->a", "ab,a,a,d->b", "a,d->a"])
def test_products_before_a_sum_of_integers_do_not_wrap_round(equation: str):
    arrays = [np.full([3] * len(term), 99, np.uint8) for term in equation.split("->")[0].split(",")]
    found = tm.einsum(equation, *map(tm.tensor, arrays))
    assert found.dtype == tm.int64
    assert found.tolist() == np.einsum(equation, *[a.astype(np.int64) for a in arrays]).tolist()


@given(st.data())
def test_random_einsums_of_integers_that_broadcast(data):
    """A sum of int32 is int64: which dimensions are summed before a product also decided whether it wrapped round."""
    sizes = {c: data.draw(st.integers(1, 3)) for c in LETTERS}
    term = st.lists(st.sampled_from(LETTERS), unique=True, max_size=3).map("".join)
    terms = data.draw(st.lists(term, min_size=1, max_size=3))
    used = sorted({c for t in terms for c in t})
    result = "".join(data.draw(st.lists(st.sampled_from(used), unique=True, max_size=4))) if used else ""
    dtype = data.draw(st.sampled_from(["int32", "int64", "uint8"]))
    rng = np.random.default_rng(0)
    shapes = [[data.draw(st.sampled_from([1, sizes[c]])) for c in t] for t in terms]
    arrays = [np.asarray(rng.integers(0, 99, shape), dtype) for shape in shapes]
    equation = ",".join(terms) + "->" + result
    mine = tm.einsum(equation, *map(tm.tensor, arrays)).numpy()
    exact = torch.einsum(equation, *[torch.tensor(x).long() for x in arrays]).numpy()
    np.testing.assert_array_equal(mine, exact.astype(mine.dtype))
    with contextlib.suppress(RuntimeError):  # it refuses the product of its own int64 with another factor
        assert mine.dtype == torch.einsum(equation, *map(torch.tensor, arrays)).numpy().dtype


def test_einsum_forms():
    x, y = values(2, 3), values(3, 4)
    against_torch(lambda x, y: tm.einsum("ij,jk", [x, y]), lambda x, y: torch.einsum("ij,jk", [x, y]), [x, y])
    run = lambda lib: lambda x, y: lib.einsum(x, [0, 51], y, [51, 27], [27, 0])  # noqa: E731
    against_torch(run(tm), run(torch), [x, y])
    run = lambda lib: lambda x, y: lib.einsum(x, [..., 1], y, [1, ...])  # noqa: E731
    against_torch(run(tm), run(torch), [values(2, 3), values(3, 2)])


@pytest.mark.parametrize("equation", ["bqhd,bkhd->bhqk", "bhqd,bhkd->bhqk", "bhqk,bkhd->bhqd", "bij,bkj->bik", "ij,kj->ki"])
def test_einsum_copies_nothing_that_blas_can_read(equation):
    """Batches stay apart dimensions, so that the factors are views of the operands: they are what is saved."""
    operands = [tm.rand(*[{"b": 2, "h": 3}.get(c, 8) for c in t]) for t in equation.partition("->")[0].split(",")]
    pool = device("cpu").pool
    before = pool.used_bytes()
    result = tm.einsum(equation, *[x.requires_grad_() for x in operands])
    assert pool.used_bytes() - before == -(-result.nbytes // 512) * 512


@pytest.mark.parametrize(("dims", "shapes"), [(1, [(2, 3), (3, 4)]), (0, [(2,), (3,)]), (2, [(2, 3, 4), (3, 4, 5)])])
def test_tensordot(dims, shapes):
    arrays = [values(*s) for s in shapes]
    against_torch(lambda a, b: tm.tensordot(a, b, dims), lambda a, b: torch.tensordot(a, b, dims), arrays)
    pairs = ([2, 0], [-1, 1])
    arrays = [values(2, 3, 4), values(5, 2, 4)]
    against_torch(lambda a, b: tm.tensordot(a, b, dims=pairs), lambda a, b: torch.tensordot(a, b, dims=pairs), arrays)


INF = float("inf")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norm", {}),
        ("norm", {"ord": "fro"}),
        ("norm", {"ord": 3, "dim": 1}),
        ("norm", {"ord": "fro", "dim": (0, 1), "keepdim": True}),
        ("vector_norm", {}),
        ("vector_norm", {"ord": 1, "dim": 0}),
        ("vector_norm", {"ord": INF, "keepdim": True}),
    ],
)
def test_linalg_norms(name, options):
    against_torch(
        lambda x: getattr(tm.linalg, name)(x, **options), lambda x: getattr(torch.linalg, name)(x, **options), [values(3, 4)]
    )


def test_linalg_products():
    against_torch(tm.linalg.matmul, torch.linalg.matmul, [values(2, 3), values(3, 4)])


def test_products_on_meta():
    x = tm.zeros(1000, 1000, device="meta")
    assert (x @ x).shape == (1000, 1000)
    assert tm.einsum("ij,kj->ki", x, x).device.type == "meta"


@pytest.mark.parametrize(
    ("run", "error", "match"),
    [
        (lambda: tm.zeros(2, 3) @ tm.zeros(2, 3), RuntimeError, "shapes cannot be multiplied"),
        (lambda: tm.zeros(2, 3, 4) @ tm.zeros(3, 4), RuntimeError, "shapes cannot be multiplied"),
        (lambda: tm.zeros(2, 3, 4) @ tm.zeros(3, 4, 5), RuntimeError, "do not broadcast"),
        (lambda: tm.tensor(1.0) @ tm.zeros(3), RuntimeError, "at least 1D, but they are 0D and 1D"),
        (lambda: tm.matmul(tm.zeros(3), 2), TypeError, "argument 'other'.* must be Tensor"),
        (lambda: tm.zeros(2, 2) @ tm.zeros(2, 2, dtype=tm.float64), RuntimeError, "expected m1 and m2 to have the same dtype"),
        (lambda: tm.mm(tm.zeros(2), tm.zeros(2, 2)), RuntimeError, "mm: argument 1 must be a 2-D tensor"),
        (lambda: tm.bmm(tm.zeros(2, 3, 3), tm.zeros(3, 3, 3)), RuntimeError, "batch sizes differ"),
        (lambda: tm.dot(tm.zeros(2), tm.zeros(3)), RuntimeError, "inconsistent tensor size"),
        (lambda: tm.addmm(tm.zeros(3), tm.zeros(2, 2), tm.zeros(2, 2)), RuntimeError, "addmm"),
        (lambda: tm.addmm(tm.zeros(2), tm.zeros(2, 3), tm.zeros(2, 2)), RuntimeError, "cannot be multiplied"),
        (lambda: tm.addmm(tm.zeros(2).long(), tm.zeros(2, 2), tm.zeros(2, 2)), RuntimeError, "same dtype"),
        (lambda: linear(tm.zeros(2, 3), tm.zeros(4, 5)), RuntimeError, "linear: mat1 and mat2 shapes cannot be multiplied"),
        (lambda: linear(tm.zeros(2, 3), tm.zeros(4, 3), tm.zeros(3)), RuntimeError, "linear: bias has shape"),
        (lambda: linear(tm.zeros(2, 3).double(), tm.zeros(4, 3)), RuntimeError, "must have the same dtype"),
        (lambda: tm.tensordot(tm.zeros(2), tm.zeros(3), 1), RuntimeError, "contracted dimensions need to match"),
        (lambda: tm.einsum("ij,jk", tm.zeros(2, 3)), RuntimeError, "names 2 operands, found 1"),
        (lambda: tm.einsum("ij", tm.zeros(2)), RuntimeError, "name 2 dimensions, the operand has 1"),
        (lambda: tm.einsum("i->j", tm.zeros(2)), RuntimeError, "each must be in an operand"),
        (lambda: tm.einsum("i->ii", tm.zeros(2)), RuntimeError, "once in the output"),
        (lambda: tm.einsum("i,i", tm.zeros(2), tm.zeros(3)), RuntimeError, "subscript 'i' has size 3 and 2"),
        (
            lambda: tm.einsum("ii,j", tm.zeros(1, 2), tm.zeros(3)),
            RuntimeError,
            "'i' is repeated for an operand of sizes 1 and 2",
        ),
        (lambda: tm.einsum("i?", tm.zeros(2, 3)), RuntimeError, "letters"),
        (lambda: tm.einsum(tm.zeros(2), [52]), RuntimeError, r"in the range \[0, 52\)"),
        (lambda: tm.linalg.norm(tm.zeros(2, 2), "nuc"), NotImplementedError, "ord='nuc' of a matrix is not offered"),
        (lambda: tm.linalg.norm(tm.zeros(2, 2, 2), 1, (0, 2)), NotImplementedError, "ord=1 of a matrix is not offered"),
        (lambda: tm.linalg.norm(tm.zeros(2), "fro"), RuntimeError, "a matrix norm needs a 2-D tensor"),
        (lambda: tm.linalg.norm(tm.zeros(2, 2, 2), 2), RuntimeError, "the input must be 1D or 2D. Got 3D"),
    ],
)
def test_refusals(run, error, match):
    with pytest.raises(error, match=match):
        run()


FEW = [(256, 320), (512, 1024), (1012, 64)]  # with parts of equal width; 1,009 terms have none


@pytest.mark.parametrize(("rows", "shape"), pairs([1, 2, 5, 32, 33, 64, 65], [*FEW, (1009, 128), (300, 1000), (9000, 20)]))
def test_products_of_few_rows(rows: int, shape: tuple, monkeypatch: pytest.MonkeyPatch):
    """As with OpenBLAS's kernels for AVX-512: in parts or not, on one thread or several."""
    monkeypatch.setattr(blas, "for_avx512", True)
    monkeypatch.setattr(blas, "_SHARE", 1 << 12)
    generator = np.random.default_rng(0)
    a, b, turned = (generator.standard_normal(s).astype(np.float32) for s in ((rows, shape[0]), shape, shape[::-1]))
    parts = [blas.few_rows(rows, other) is not np.matmul for other in (b, turned.T)]
    assert parts == [1 < rows < 33 and rows * b.size > blas.SMALL and shape in FEW, 1 < rows < 65 and rows * shape[0] < 125e3]
    for other in (b, turned.T):
        expected = a.astype(np.float64) @ other
        for cores in (1, 2, 3):
            monkeypatch.setattr(threads._pool, "size", cores)
            out = np.full(expected.shape, np.nan, np.float32)
            blas.matmul(a, other, out=out)
            np.testing.assert_allclose(out, expected, rtol=1e-5, atol=5e-4)


def test_grouped_mm_refuses():
    x, y, ends = tm.zeros(4, 2), tm.zeros(2, 2, 8), tm.tensor([1, 4], dtype=tm.int32)
    grouped = tm.nn.functional.grouped_mm
    assert grouped(tm.zeros(2, 3, 2), y).shape == (2, 3, 8)
    for error, match, arguments, more in (
        (tm.errors.DTypeError, "Offsets have to be int32", (x, y), {"offs": ends.long()}),
        (tm.errors.DTypeError, "matrices of one dtype", (x, y.double()), {"offs": ends}),
        (tm.errors.ShapeError, "Have to provide offsets", (x, y), {}),
        (tm.errors.ShapeError, "no offset if both matrices are 3d", (tm.zeros(2, 3, 2), y), {"offs": ends}),
        (tm.errors.ShapeError, "contraction dimension", (tm.zeros(4, 3), y), {"offs": ends}),
        (tm.errors.ShapeError, "offs has one end a group", (x, y), {"offs": ends[:1]}),
        (
            tm.errors.ShapeError,
            r"offs must not decrease, .* 4 rows of mat_a, found \[1, 5\]",
            (x, y),
            {"offs": ends + ends // 4},
        ),
        (tm.errors.ShapeError, r"found \[3, 1\]", (x, y), {"offs": tm.tensor([3, 1], dtype=tm.int32)}),
        (tm.errors.NotOfferedError, "without bias, in one dtype", (x, y), {"offs": ends, "bias": tm.zeros(8)}),
        (tm.errors.NotOfferedError, "without bias, in one dtype", (x, y), {"offs": ends, "out_dtype": tm.float64}),
        (tm.errors.NotOfferedError, "write others as matmul", (x, tm.zeros(2, 8)), {"offs": ends}),
    ):
        with pytest.raises(error, match=match):
            grouped(*arguments, **more)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_grouped_mm_as_pytorch(dtype: str):
    """Experts, one of which gets no rows."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((7, 8)), rng.standard_normal((3, 8, 16))]
    found = []
    for lib in (tm, torch):
        x, y = (lib.tensor(a).to(getattr(lib, dtype)).requires_grad_() for a in arrays)
        out = lib.nn.functional.grouped_mm(x, y, offs=lib.tensor([2, 2, 7], dtype=lib.int32))
        (out * lib.arange(16).to(out.dtype)).sum().backward()
        found.append([t.detach().float().numpy() for t in (out, x.grad, y.grad)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol={"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype], atol=1e-2)


def test_solve_triangular_refuses():
    a, b, solve = tm.eye(3), tm.ones(3, 2), tm.linalg.solve_triangular
    for error, match, arguments, more in (
        (tm.errors.ShapeError, r"as many rows as B has rows: found \[3, 3\] and \[2, 3\]", (a, b.t()), {}),
        (tm.errors.ShapeError, r"as many rows as B has columns", (a, b), {"left": False}),
        (tm.errors.ShapeError, "A must be square", (b, b), {}),
        (tm.errors.ShapeError, r"found \[3, 3\] and \[3\]", (a, tm.ones(3)), {}),
        (tm.errors.DTypeError, "must be float32 or float64, found .*float16", (a.half(), b.half()), {}),
        (tm.errors.DTypeError, "must be float32 or float64", (a, b.double()), {}),
    ):
        with pytest.raises(error, match=match):
            solve(*arguments, upper=True, **more)
    assert solve(tm.zeros(2, 2), tm.ones(2, 1), upper=False).isinf().any()
