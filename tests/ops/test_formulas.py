"""Every kernel computes its plain formula: wherever an op, a layer or an optimizer calls it, on every device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import OpCase, ours
from tests.memory.test_predicted import RULES, layer, trained, trained_rows
from tests.nn.rows import ROWS
from tests.profiles import every, on_devices, pairs, share_of_each
from tinygrad_mem.devices import device
from tinygrad_mem.dtypes import is_floating
from tinygrad_mem.errors import DTypeError
from tinygrad_mem.kernels import numpy as kernels

from .cases import CASES
from .test_contract import arrays_of, step

pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCE = {"float64": 1e-7, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}  # of the largest number, or of 1

signature = cache(inspect.signature)  # of a kernel, asked at each of its calls
SPARSE = ("SGD", "SparseAdam", "Adagrad")


def copied(value: Any) -> Any:
    """Arrays as NumPy's own, floats of them as float64; all else as it is."""
    if isinstance(value, (tuple, list)):
        return type(value)([copied(part) for part in value])
    if not hasattr(value, "__array_interface__") and not hasattr(value, "__cuda_array_interface__"):
        return value
    array = np.array(value.get() if hasattr(value, "get") else value)
    return array.astype(np.float64) if is_floating(array.dtype) else array


def numbers_as_computed(given: dict[str, Any]) -> dict[str, Any]:
    """Numbers beside arrays, rounded to float32 where nothing is wider: so does the kernel, and a comparison tells."""
    if any(str(getattr(x, "dtype", "")) == "float64" for x in given.values()):
        return given
    with np.errstate(all="ignore"):
        return {name: float(np.float32(x)) if type(x) is float else x for name, x in given.items()}


def check(name: str, kernel: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> bool:
    """Run a kernel, and compare what it writes with its formula; whether it has one."""
    plain = getattr(getattr(kernels, name), "formula", None)
    if plain is None:
        kernel(*args, **kwargs)
        return False
    bound = signature(kernel).bind(*args, **kwargs)
    bound.apply_defaults()
    given = numbers_as_computed(bound.arguments)
    taken = [name for name, p in signature(plain).parameters.items() if name in given or p.default is p.empty]
    copies = {name: copied(given[name]) for name in taken}
    roots = [n for n in getattr(getattr(kernels, name), "roots", ()) if str(getattr(given[n], "dtype", "")) == "float16"]
    with np.errstate(all="ignore"):
        wanted = plain(**copies | {name: copies[name] ** 2 for name in roots})
        for root in roots:
            wanted[root] = np.sqrt(wanted[root])
    kernel(*args, **kwargs)
    for buffer, value in (wanted if isinstance(wanted, dict) else {"out": wanted}).items():
        if given[buffer] is not None:
            compare(f"{name}: {buffer}", given[buffer], value)
    return True


def compare(what: str, buffer: Any, wanted: Any) -> None:
    """Fail where a buffer is not what the formula says, by more than its dtype explains."""
    tolerance = TOLERANCE.get(str(buffer.dtype), 0)
    found = copied(buffer)
    wanted = np.broadcast_to(wanted, found.shape)
    if tolerance:
        with np.errstate(all="ignore"):
            wanted = wanted.astype(buffer.dtype).astype(np.float64)  # beyond the range of the dtype it is inf
    largest = np.max(np.abs(wanted), initial=1, where=np.isfinite(wanted))
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * largest, err_msg=what)


class Checked:
    """A device's kernels, each compared with its formula wherever it is called."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self.real, name)
        if name.endswith("_workspace"):
            return kernel

        def checked(*args: Any, **kwargs: Any) -> None:
            check(name, kernel, args, kwargs)

        return checked


class Named:
    """A device's kernels, and the names of those that were called."""

    def __init__(self, real: Any) -> None:
        self.real, self.called = real, set()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self.real, name)


@pytest.fixture
def checked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """The kernels of the device ``dev``, or of the CPU, compared with their formulas."""
    on = device(request.getfixturevalue("dev") if "dev" in request.fixturenames else "cpu")
    found = Checked(on.kernels)
    monkeypatch.setattr(on, "kernels", found)
    return found


def run(case: OpCase, dtype: str, dev: str) -> None:
    """Forward and backward."""
    tm.manual_seed(1)
    step(case, ours(arrays_of(case), dtype, dev, grad=case.grad))


ON = [(case, "cpu") for case in CASES]
# On a GPU test_contract.py compares all rows in float64: of each op a usual run takes a third of them here, and at least one.
ON += [(case, "cuda") for case in share_of_each(CASES, 3, lambda case: str(case.op))]


@pytest.mark.parametrize(("case", "dev"), on_devices(ON), ids=lambda v: v if isinstance(v, str) else v.name)
def test_of_ops(case: OpCase, dev: str, checked: Checked):
    run(case, "float32", dev)
    if dev == "cuda":  # its kernels of other dtypes are the same source
        return
    if every(2) == 1:  # NumPy's code is that of float32, and test_contract.py compares answers in float64
        run(case, "float64", dev)
    with suppress(DTypeError):  # a few ops refuse halves
        run(case, "float16", dev)


@pytest.mark.parametrize(("row", "train"), trained_rows(2, 4), ids=str)
def test_of_layers(row: Any, train: bool, checked: Checked):
    layer(row, train)


@pytest.mark.parametrize(("rule", "masters"), pairs(RULES, (False, True)), ids=str)
def test_of_optimizers(rule: tuple, masters: bool, checked: Checked):
    trained(*rule, masters, "float32")


def rows_moved(name: str, dtype: str) -> None:
    """A step of an optimizer that moves the rows of a table that have a gradient."""
    tm.manual_seed(1)
    table = tm.nn.Embedding(5, 3, sparse=True, dtype=getattr(tm, dtype))
    rule = getattr(tm.optim, name)(table.parameters(), lr=0.1)
    for _ in range(2):
        (table(tm.tensor([4, 1, 4, 0])) ** 2).sum().backward()
        rule.step()
        rule.zero_grad()


@pytest.mark.parametrize("name", SPARSE)
def test_of_optimizers_of_rows(name: str, checked: Checked):
    for dtype in ("float64", "float32"):
        rows_moved(name, dtype)


def arguments_beside_rows() -> dict[str, tuple]:
    """Arguments of kernels that no row's step calls: comparisons, bits, 8-bit states, sums of halves, scaled gradients."""
    numbers, others, flags = np.arange(4), np.arange(4)[::-1].copy(), np.zeros(4, bool)
    x, half = np.array([1.0, np.inf, -np.inf, np.nan], np.float32), np.arange(4, dtype=np.float16).reshape(2, 2)
    codes, top = np.arange(8, dtype=np.uint8), np.ones(2, np.float32)
    work = np.empty(kernels.matmul_workspace((2, 2), (2, 2), half.dtype), np.uint8)
    bits = ("bitwise_or", "bitwise_xor", "left_shift", "right_shift")
    tests = ("greater_equal", "less_equal", "not_equal", "logical_xor")
    p, g = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    return {
        **{name: (numbers, others, numbers.copy()) for name in bits},
        **{name: (numbers, others, flags.copy()) for name in tests},
        "isinf": (x, flags.copy()),
        "logical_not": (x, flags.copy()),
        "matmul_add": (half, half, half, 2.0, 3.0, work, half.copy()),
        "unscale": (x.copy(), 0.5, np.zeros((), np.float32)),
        "adam8bit_step": (p.copy(), g, codes, top, codes.copy(), top.copy(), 4, 0.1, 0.9, 0.99, 1e-8, 0.5, 0.0, 1.0, False),
        "sgd8bit_step": (p.copy(), g, codes.copy(), top.copy(), 4, 0.1, 0.9, 0.1, 0.0, False, False),
    }


@pytest.mark.parametrize("name", arguments_beside_rows())
def test_of_kernels_beside_rows(name: str):
    assert check(name, getattr(kernels, name), arguments_beside_rows()[name], {})


def test_every_formula_is_tried(monkeypatch: pytest.MonkeyPatch):
    """By the rows of ops, layers and optimizers: a kernel that none of them calls needs a row, or is not needed."""
    cpu = device("cpu")
    named = Named(cpu.kernels)
    monkeypatch.setattr(cpu, "kernels", named)
    for case in CASES:
        run(case, "float32", "cpu")
    for row in ROWS:
        layer(row, train=True)
    for rule in RULES:
        trained(*rule, False, "float32")
    for name in SPARSE:
        rows_moved(name, "float32")
    wanted = {name for name, kernel in vars(kernels).items() if callable(kernel) and getattr(kernel, "formula", None)}
    assert wanted - named.called == set(arguments_beside_rows())


def test_a_wrong_kernel_is_found():
    def add_and_one(x: np.ndarray, out: np.ndarray) -> None:
        np.add(x, 1, out=out)

    x, y = np.ones(3), np.ones(3)
    plain = kernels.relu
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(add_and_one, "formula", lambda x: x + 1, raising=False)
        patched.setattr(kernels, "relu", add_and_one)
        assert check("relu", add_and_one, (x, y), {})
        with pytest.raises(AssertionError, match="relu: out"):
            check("relu", plain, (x, y), {})
