"""bfloat16 is a dtype like the others: PyTorch's promotion, bits and words; a way in and out of everything; float16's bytes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import tinygrad_mem as tm
from tests.case import OpCase, flat, ours
from tests.ops.cases import CASES
from tests.ops.test_contract import SMALL, arrays_of, step
from tests.predicted import difference, facts, measured
from tests.profiles import share_of_each
from tests.witness import numpy_allocations
from tinygrad_mem import memory
from tinygrad_mem.devices.cuda import CUDA
from tinygrad_mem.errors import ArgumentError, DataDependenceError, NotOfferedError
from tinygrad_mem.utils.from_torch import from_torch

DTYPES = [dtype.name for dtype in tm.dtypes.ALL]


def theirs(name: str) -> torch.dtype:
    return getattr(torch, name)


def bits(t: Any) -> np.ndarray:
    """The bits of a tensor of bfloat16, ours or PyTorch's."""
    if isinstance(t, torch.Tensor):
        return t.detach().view(torch.int16).numpy().view(np.uint16)
    return t.detach().numpy().view(np.uint16)


# --- numbers


@pytest.mark.parametrize(("one", "two"), list(itertools.product(DTYPES, DTYPES)))
def test_dtypes_are_promoted_as_pytorchs(one: str, two: str):
    def name(dtype: Any) -> str:
        return str(dtype).removeprefix("torch.")

    assert name(tm.promote_types(getattr(tm, one), getattr(tm, two))) == name(torch.promote_types(theirs(one), theirs(two)))
    for shapes in (((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())):
        a, b = (tm.ones(*s, dtype=d) for s, d in zip(shapes, (one, two), strict=True))
        x, y = (torch.ones(s, dtype=theirs(d)) for s, d in zip(shapes, (one, two), strict=True))
        assert name((a * b).dtype) == name((x * y).dtype)
    for number in (2, 2.5, True):
        assert name((tm.ones(2, dtype=one) * number).dtype) == name((torch.ones(2, dtype=theirs(one)) * number).dtype)


def test_every_pattern_is_the_float_whose_upper_half_it_is():
    patterns = np.arange(1 << 16, dtype=np.uint16)
    found = tm.from_numpy(patterns.view(tm.bfloat16)).float().numpy()
    np.testing.assert_array_equal(found.view(np.uint32), patterns.astype(np.uint32) << 16)


def assert_rounded(x: np.ndarray, found: np.ndarray) -> None:
    expected = bits(torch.from_numpy(x).bfloat16())
    nan = np.isnan(x)
    np.testing.assert_array_equal(found[~nan], expected[~nan])
    assert (found[nan] & 0x7FFF > 0x7F80).all(), "nan stays nan"


@given(st.integers(0, 2**32 - 1), st.integers(1, 70_000))
def test_any_float_is_rounded_to_the_nearest_as_pytorch_does(seed: int, length: int):
    x = np.random.default_rng(seed).integers(0, 2**32, length, dtype=np.uint32).view(np.float32)
    assert_rounded(x, bits(tm.from_numpy(x).bfloat16()))


def test_ties_go_to_even():
    """Each bfloat16, the middle between it and the next, and the floats on either side of both."""
    at = (np.arange(0x7F80, dtype=np.uint32) << 16)[:, None] + np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001])
    x = np.concatenate([at.ravel(), at.ravel() | 1 << 31]).astype(np.uint32).view(np.float32)
    assert_rounded(x, bits(tm.from_numpy(x).bfloat16()))
    assert_rounded(x[::3], bits(tm.from_numpy(x[::3]).bfloat16()))


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_it_comes_from_every_dtype_and_goes_to_every_dtype(dtype: str):
    values = [0, 1, 2, 3, 100, 101] if dtype != "bool" else [0, 1, 1]
    mine, other = tm.tensor(values, dtype=dtype).bfloat16(), torch.tensor(values, dtype=theirs(dtype)).bfloat16()
    np.testing.assert_array_equal(bits(mine), bits(other))
    assert mine.to(dtype).tolist() == other.to(theirs(dtype)).tolist()


def test_its_limits_are_pytorchs():
    mine, other = tm.finfo(tm.bfloat16), torch.finfo(torch.bfloat16)
    for name in ("bits", "max", "min", "eps", "tiny", "smallest_normal", "resolution", "dtype"):
        assert getattr(mine, name) == getattr(other, name)
    assert str(mine) == str(other)
    assert tm.full((1,), mine.max, dtype=tm.bfloat16).item() == other.max
    for library in (tm, torch):
        with pytest.raises((ArgumentError, RuntimeError), match="overflow"):
            library.full((2,), 1e39, dtype=library.bfloat16)


def test_it_prints_as_pytorchs():
    for values in ([1.0, 2.5, -0.125], [[1e-9, 3e20], [float("nan"), float("inf")]], 3.14159, []):
        mine, other = tm.tensor(values, dtype=tm.bfloat16), torch.tensor(values, dtype=torch.bfloat16)
        assert repr(mine) == repr(other).replace("torch.", "")
    assert tm.ones(2).bfloat16().type() == "tinygrad_mem.BFloat16Tensor"
    assert tm.ones(2).type("tinygrad_mem.BFloat16Tensor").dtype == tm.bfloat16


def test_tensors_are_made_in_it():
    for name in ("zeros", "ones", "rand", "randn", "empty"):
        assert getattr(tm, name)(3, dtype=tm.bfloat16).dtype == tm.bfloat16
    assert (
        bits(tm.arange(0, 40, 0.5, dtype=tm.bfloat16)).tolist() == bits(torch.arange(0, 40, 0.5, dtype=torch.bfloat16)).tolist()
    )
    drawn = tm.rand(100_000, dtype=tm.bfloat16)
    assert 0 <= drawn.min().item() <= drawn.max().item() <= 1
    assert abs(drawn.float().mean().item() - 0.5) < 0.01
    whole = tm.empty(10_000, dtype=tm.bfloat16).random_()
    assert whole.max().item() <= 256, "integers that it has exactly"
    assert whole.max().item() > 200
    tm.manual_seed(3)
    narrow = tm.randn(64, dtype=tm.bfloat16)
    tm.manual_seed(3)
    assert bits(tm.randn(64).bfloat16()).tolist() == bits(narrow).tolist()


def test_it_may_be_the_default():
    tm.set_default_dtype(tm.bfloat16)
    try:
        assert tm.ones(2).dtype == tm.tensor([1.5]).dtype == (tm.ones(2, dtype=tm.int64) / 2).dtype == tm.bfloat16
        assert tm.nn.Linear(2, 2)(tm.ones(1, 2)).dtype == tm.bfloat16
    finally:
        tm.set_default_dtype(tm.float32)


# --- the ways in and out


def test_numpy_shows_the_same_memory():
    """PyTorch refuses, as NumPy knows no bfloat16; our dtypes are NumPy's, and ml_dtypes' is one of them."""
    x = tm.ones(3, dtype=tm.bfloat16)
    array = x.numpy()
    array[0] = 5
    assert array.dtype == tm.bfloat16
    assert x.tolist() == [5.0, 1.0, 1.0]
    assert type(x[0].item()) is float
    assert tm.from_numpy(array).data_ptr() == x.data_ptr()


def test_dlpack_both_ways_without_a_copy():
    x = tm.arange(6, dtype=tm.bfloat16).reshape(2, 3)
    other = torch.utils.dlpack.from_dlpack(x.T)
    assert other.dtype == torch.bfloat16
    other[0, 0] = 7
    assert x[0, 0].item() == 7
    for back in (tm.from_dlpack(other), tm.from_dlpack(torch.utils.dlpack.to_dlpack(other))):
        assert back.dtype == tm.bfloat16
        back[1, 1] += 1
        assert back.tolist() == other.tolist()
    assert x.tolist() == [[7.0, 1.0, 2.0], [3.0, 6.0, 5.0]]


def test_files_both_ways(tmp_path: Path):
    mine = {"a": tm.randn(3, 4, dtype=tm.bfloat16), "b": tm.ones(2)}
    tm.save(mine, tmp_path / "ours.safetensors")
    read = load_file(tmp_path / "ours.safetensors")
    assert read["a"].dtype == torch.bfloat16
    np.testing.assert_array_equal(bits(read["a"]), bits(mine["a"]))
    save_file(read, tmp_path / "theirs.safetensors")
    np.testing.assert_array_equal(bits(tm.load(tmp_path / "theirs.safetensors")["a"]), bits(mine["a"]))
    for again in (pickle.loads(pickle.dumps(mine["a"])), copy.deepcopy(mine["a"])):
        assert again.dtype == tm.bfloat16
        np.testing.assert_array_equal(bits(again), bits(mine["a"]))


def test_pytorchs_modules_and_state_dicts_come_in():
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).bfloat16()
    x = torch.randn(5, 3).bfloat16()
    converted = from_torch(other)
    loaded = tm.nn.Sequential(tm.nn.Linear(3, 4), tm.nn.BatchNorm1d(4)).bfloat16()
    loaded.load_state_dict(other.state_dict())
    wide = tm.nn.Sequential(tm.nn.Linear(3, 4), tm.nn.BatchNorm1d(4))
    wide.load_state_dict(other.state_dict())
    expected = other(x).float().detach().numpy()
    for model in (converted, loaded):
        assert {p.dtype for p in model.parameters()} == {tm.bfloat16}
        np.testing.assert_allclose(model(tm.tensor(x)).float().detach().numpy(), expected, atol=2**-6, rtol=2**-7)
    assert wide[0].weight.tolist() == other[0].weight.tolist()
    with tm.no_grad():
        converted[0].weight[0, 0] = 9.0
    assert other[0].weight[0, 0].item() == 9.0, "the memory is shared"
    assert tm.tensor(x).dtype == tm.as_tensor(x).dtype == tm.bfloat16


# --- bytes: those of float16, whatever the op, on meta as on the cpu


def step_in(case: OpCase, half: str) -> Callable[[], None]:
    """Forward and backward of a case, of inputs that it makes itself."""

    def run() -> None:
        tm.manual_seed(0)
        step(case, ours(arrays_of(case), half, grad=case.grad))

    run()  # what rows make once is no part of it
    return run


def share_of_ops(test: str) -> pytest.MarkDecorator:
    """All rows of ops; in a usual run half of the rows of each op, and at least one: others for each test."""
    return pytest.mark.parametrize(
        "case", share_of_each(CASES, 2, lambda case: f"{case.op}, {test}"), ids=lambda case: case.name
    )


@share_of_ops("bytes")
def test_bytes_are_those_of_float16(case: OpCase):
    if case.name == "cast":
        pytest.skip("its row casts to one of the two")
    if case.name.startswith(("ctc_loss", "solve_triangular")):
        pytest.skip("it refuses half precision, as in PyTorch")
    run, like = (step_in(case, half) for half in ("bfloat16", "float16"))
    assert facts(measured(run)) == facts(measured(like))
    with contextlib.suppress(DataDependenceError):  # its shape depends on values
        assert difference(run) == ""


def temporaries(case: OpCase, half: str) -> list[int]:
    """Bytes that NumPy allocates by itself, of more than scalars."""
    for _ in range(2):  # the first time, what is made once
        inputs = ours(arrays_of(case), half, "cpu", case.grad)
        with numpy_allocations() as sizes:
            results = [r for r in flat(case.run(*inputs)) if r.requires_grad]
            forward = list(sizes)
        seeds = [tm.ones_like(r) for r in results]
        with numpy_allocations() as sizes:
            if results:
                tm.autograd.backward(results, seeds)
            taken = [n for n in [*forward, *sizes] if n > SMALL]
    return taken


@share_of_ops("kernels")
def test_kernels_allocate_as_much_as_for_float16(case: OpCase):
    """Nothing, but for a ufunc's buffer where operands are of two dtypes."""
    if case.name.startswith(("ctc_loss", "solve_triangular")):
        pytest.skip("it refuses half precision, as in PyTorch")
    assert temporaries(case, "bfloat16") == temporaries(case, "float16")


# --- where it is not


def test_a_gpu_refuses_in_words(monkeypatch: pytest.MonkeyPatch):
    gpu = object.__new__(CUDA)
    with pytest.raises(NotOfferedError, match=r"bfloat16 is on cpu and meta only: on cuda use float16, with a GradScaler"):
        gpu.empty((2,), tm.bfloat16)


WITHOUT = """
import sys
sys.modules["ml_dtypes"] = None
import tinygrad_mem as tm
from tinygrad_mem import memory, nn

def step():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).bfloat16()
    optimizer = tm.optim.AdamW(model.parameters(), master_weights=True)
    x = tm.tensor([0.5], dtype=tm.bfloat16).expand(4, 3, 8, 8).contiguous() + 1
    loss = nn.functional.cross_entropy(model(x).float(), tm.tensor([1, 2, 3, 4]))
    loss.backward()
    optimizer.step()

try:
    import ml_dtypes
    raise SystemExit("ml_dtypes is there")
except ImportError:
    pass
print(memory.predict(step).peak)
assert "ml_dtypes" not in [name for name, module in sys.modules.items() if module is not None]
assert repr(tm.empty(2, dtype=tm.bfloat16, device="meta")) == "tensor(..., device='meta', size=(2,), dtype=bfloat16)"
for make in (lambda: tm.ones(2, dtype=tm.bfloat16), lambda: tm.ones(2).bfloat16(), lambda: nn.Linear(2, 2).bfloat16()):
    try:
        make()
    except tm.errors.NotOfferedError as error:
        assert str(error).startswith("bfloat16 on the cpu needs the package ml_dtypes: pip install ml-dtypes")
    else:
        raise SystemExit("not refused")
"""


def test_a_step_is_predicted_without_ml_dtypes_and_refused():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    names: dict[str, Any] = {}
    exec(WITHOUT.partition("try:")[0].replace('sys.modules["ml_dtypes"] = None', ""), names)
    assert int(done.stdout) == memory.predict(names["step"]).peak
