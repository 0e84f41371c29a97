"""Every elementwise op, activation, loss, reduction, norm and pooling on the values where formulas break, against PyTorch.

The rows are those of ``tests/ops/cases``; their floating inputs are replaced: by mixtures of zeros, subnormal, tiny, huge and
infinite numbers and nan; by one of them in an ordinary input; by lines of nothing else. What differs by choice is listed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import OpCase, flat, ours, theirs, values
from tests.ops.cases import CASES
from tests.ops.special_values import DIFFERENCES, ON_CUDA, OPEN, PATHS, SIGNS
from tests.profiles import every, share

ONE_BY_ONE = ("elementwise", "activation")
OVER_LINES = ("loss", "reduce", "norm", "pool", "softmax", "scan")
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2}


def rows(family: str) -> list[OpCase]:
    return [case for case in importlib.import_module(f"tests.ops.cases.{family}").CASES if case.exact]


def specials(dtype: str) -> np.ndarray:
    limits = np.finfo(dtype)
    large = [v for v in (1e10, 1e13, 1e20, 1e30) if v < limits.max]
    found = [0.0, limits.smallest_subnormal, limits.tiny, 0.5, 1.0, *large, limits.max, np.inf]
    return np.array([*found, *[-v for v in found], np.nan], dtype)


def is_listed(case: OpCase) -> bool:
    """Whether a list says what differs."""
    return case.name in DIFFERENCES or case.name.replace("_", " ") in SIGNS


def replaced(case: OpCase, dtype: str, one_by_one: bool, numbers: np.ndarray) -> Iterator[list[np.ndarray]]:
    """The inputs of a row with special values, of ``numbers``, in the place of its floating ones.

    Mixtures have all of them, and come first. A usual run then takes a twelfth of those of one value, others for each row and
    dtype; of a row of which a list says what differs, all of them, in one dtype.
    """
    listed = dtype == "float32" and is_listed(case)
    base = [np.asarray(a) for a in case.inputs(np.random.default_rng(3))]
    base = [a.astype(dtype) if a.dtype.kind == "f" else a for a in base]
    small = np.array([0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan], dtype)
    finite = numbers[np.isfinite(numbers) & (np.abs(numbers) < 1e14)]

    def made(change: Any) -> list[np.ndarray]:
        return [np.asarray(change(i, a.copy()), dtype) if a.dtype.kind == "f" else a for i, a in enumerate(base)]

    def one(value: float, place: int) -> Any:
        def change(i: int, a: np.ndarray) -> np.ndarray:
            if a.size:
                a.reshape(-1)[(7 * place + 3 * i) % a.size] = value
            return a

        return made(change)

    for seed, pool in enumerate([numbers, numbers, numbers, finite, small] if one_by_one else [small, small]):
        rng = np.random.default_rng(seed)
        yield made(lambda i, a, rng=rng, pool=pool: rng.choice(pool, a.shape))
    alone = numbers if one_by_one else small
    for value in alone if listed else share(alone, 12, (case.name, dtype)):
        yield made(lambda i, a, value=value: np.full(a.shape, value))
    places = [] if one_by_one else [*enumerate(numbers)]
    for place, value in places if listed else share(places, 12, (dtype, case.name)):
        if not 1e14 < abs(value) < np.inf:  # what sums of squares hold
            yield one(value, place)
    yield made(lambda i, a: np.round(a))


def run(
    lib: Any, case: OpCase, arrays: list[np.ndarray], dtype: str, device: str = "cpu"
) -> list[tuple[str, np.ndarray | None]] | Exception:
    """Results and gradients."""
    make, function, read = (ours, case.run, values) if lib is tm else (theirs, case.reference, lambda t: t.detach().numpy())
    try:
        inputs = make(arrays, dtype, grad=case.grad, **({"device": device} if lib is tm else {}))
        results = flat(function(*inputs))
        found: list = [("value", read(r)) for r in results]
        graph = [r for r in results if r.requires_grad]
        if graph:
            rng = np.random.default_rng(7)
            seeds = [np.asarray(rng.integers(1, 4, tuple(r.shape))).astype(dtype) for r in graph]
            lib.autograd.backward(graph, [lib.tensor(s, device=device) for s in seeds])
            found += [("gradient", None if t.grad is None else read(t.grad)) for t in inputs]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return error
    return found


def differ(mine: Any, other: Any, arrays: list[np.ndarray], dtype: str, one_by_one: bool) -> set[str]:
    """What differs: values, gradients, or which of the two refuses."""
    if isinstance(mine, Exception) or isinstance(other, Exception):
        return set() if isinstance(mine, Exception) and isinstance(other, Exception) else {"refusal"}
    limits = np.finfo(dtype)
    near = 4 * float(limits.tiny)
    if not one_by_one:  # sums are rounded in their order
        sizes = [np.abs(a[np.isfinite(a)], dtype=np.float64).max(initial=1.0) for a in arrays if a.dtype.kind == "f"]
        near = 200 * float(limits.eps) * max(sizes, default=1.0)
    found = set()
    for (what, a), (_, b) in zip(mine, other, strict=True):
        if a is None or b is None:
            found |= {what} if (a is None) != (b is None) else set()
        elif a.shape != b.shape or a.dtype != b.dtype:
            found.add(what)
        elif a.dtype.kind != "f":
            found |= {what} if (a != b).any() else set()
        else:
            wide, reference = a.astype(np.float64), b.astype(np.float64)
            if not np.isclose(wide, reference, TOLERANCE[dtype], near, equal_nan=True).all():
                found.add(what)
    return found


def other_signs(mine: Any, other: Any) -> bool:
    """Whether a 0 has another sign than PyTorch's."""
    if isinstance(mine, Exception) or isinstance(other, Exception):
        return False
    pairs = [(a, b) for (_, a), (_, b) in zip(mine, other, strict=True) if a is not None and b is not None]
    pairs = [(a, b) for a, b in pairs if a.dtype.kind == "f" and a.shape == b.shape]
    return any(((a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))).any() for a, b in pairs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [*ONE_BY_ONE, *OVER_LINES])
def test_special_values(family: str, reliability: Any):
    found: dict[str, set[str]] = {}
    signs = set()
    one_by_one, tried = family in ONE_BY_ONE, 0
    with np.errstate(all="ignore"):
        for case in rows(family):
            others = ["float64", "float16"] if one_by_one else ["float64"]
            for dtype in ("float32", *(others if is_listed(case) else share(others, 2, case.name))):
                for arrays in replaced(case, dtype, one_by_one, specials(dtype)):
                    tried += 1
                    mine, other = run(tm, case, arrays, dtype), run(torch, case, arrays, dtype)
                    found.setdefault(case.name, set()).update(differ(mine, other, arrays, dtype, one_by_one))
                    if other_signs(mine, other):
                        signs.add(case.name.replace("_", " "))
    wrong = {}
    for name, what in found.items():
        listed, reason = DIFFERENCES.get(name, ("", ""))
        if what != set(listed.split()) and not (reason == PATHS and what <= set(listed.split())):
            wrong[name] = f"found {sorted(what) or 'nothing'}, listed {listed or 'nothing'}"
    assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong.items())
    named = {name.replace("_", " ") for name in found} & SIGNS.keys()
    assert signs <= named, "signs of 0 that are not PyTorch's"
    assert not {name for name in named - signs if SIGNS[name] not in OPEN}, "listed, and no difference"
    reliability("special values, forward and backward against PyTorch", tried)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", [*ONE_BY_ONE, *OVER_LINES])
def test_special_values_on_cuda_are_the_cpu_s(family: str):
    """With subnormal numbers they are those that the CPU gives with 0: CuPy compiles for GPUs that way."""
    tiny, numbers = np.finfo("float32").tiny, specials("float32")
    numbers = numbers[np.abs(numbers) != tiny]  # a step of nearly any formula makes less of it, which is 0
    wrong, tried, one_by_one = set(), 0, family in ONE_BY_ONE
    with np.errstate(all="ignore"):
        for case in rows(family):
            for number, arrays in enumerate(replaced(case, "float32", one_by_one, numbers)):
                if case.name not in ON_CUDA and (number < 6 // every(2) or number % 5 == 0):  # mixtures, a fifth of the others
                    tried += 1
                    flushed = [np.where(np.abs(a) < tiny, a * a.dtype.type(0), a) if a.dtype.kind == "f" else a for a in arrays]
                    found = [run(tm, case, arrays, "float32", "cuda"), run(tm, case, flushed, "float32")]
                    if differ(*found, arrays, "float32", one_by_one):
                        wrong.add(case.name)
    assert tried
    assert not wrong


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["maximum", "minimum", "norm_inf", "norm_minus_inf", "cummax", "cummin", "clamp"])
@pytest.mark.parametrize("seen", [False, True], ids=["", "seen by comparisons"])
def test_equal_subnormal_numbers_share_a_gradient_on_cuda(name: str, seen: bool, request: pytest.FixtureRequest):
    """NVIDIA's assembler lets some comparisons see what is 0 for others: at ties both operands had all of the gradient."""
    device = request.getfixturevalue("emulated").comparing_subnormals() if seen else nullcontext()
    case = next(case for case in CASES if case.name == name)
    some = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-39, -1e-39], np.float32)
    rng = np.random.default_rng(5)
    arrays = [rng.choice(some, np.shape(a)) for a in case.inputs(rng)]
    with device:
        found = run(tm, case, arrays, "float32", "cuda")
    expected = run(tm, case, [a * np.float32(0) for a in arrays], "float32")
    assert not isinstance(found, Exception)
    assert not isinstance(expected, Exception)
    for (_, one), (_, other) in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-37)  # type: ignore[arg-type]


def test_the_list_names_rows():
    assert set(DIFFERENCES) <= {case.name for case in CASES}
    assert SIGNS.keys() <= {case.name.replace("_", " ") for case in CASES}
    assert set(ON_CUDA) <= {case.name for case in CASES}
    assert all(reason for _, reason in DIFFERENCES.values())


def test_ends_of_the_range():
    """What was wrong once: a gradient that grew with the number, norms out of range, and erf that was not 0 at 0."""
    x = np.array([0.0, -0.0, 1e-300, -1e-10, 1e-3, 0.03, 0.0317, 0.1])
    np.testing.assert_allclose(tm.erf(tm.tensor(x)).numpy(), torch.erf(torch.tensor(x)).numpy(), rtol=1e-14)
    assert np.signbit(tm.erf(tm.tensor(x)).numpy()).tolist() == [False, True, False, True, *[False] * 4]
    for size in (1e10, 1e18, 1e20, 1e30):
        lines = np.full((1, 4), size, np.float32)
        found = [lib.nn.functional.cosine_similarity(*[lib.tensor(lines)] * 2).numpy() for lib in (tm, torch)]
        np.testing.assert_allclose(*found, rtol=1e-6)
    t = tm.tensor(np.logspace(0, 38, 39, dtype=np.float32), requires_grad=True)
    tm.nn.functional.mish(t).sum().backward()
    np.testing.assert_allclose(t.grad.numpy()[2:], 1.0, rtol=1e-6)
