"""What ``doctor`` tries on a device: nothing is wrong with it as it is, and each fault that is planted is named."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem.cli import checks
from tinygrad_mem.cli.calls import CALLS

CALL = {call.name: call for call in CALLS}
LINEAR = checks.JOBS[0]


@pytest.fixture
def here(dev: str, request: pytest.FixtureRequest) -> Any:
    """The device, with an empty pool: limits are tried on it."""
    if dev == "cuda":
        request.getfixturevalue("gpu_pool")
    return tm.device(dev)


def test_nothing_is_wrong_with_this_device(here: Any):
    found = list(checks.run(here))
    assert [problem for check in found for problem in check.problems] == []
    assert [check.tried for check in found] == [len(CALLS) * len(checks.ALLOWED), len(checks.JOBS), 1, 1]
    assert here.pool.host(pinned=True).used_bytes() == 0


def test_each_call_has_a_name_of_its_own_and_a_gradient():
    assert len(CALL) == len(CALLS)
    for call in CALLS:
        rng = np.random.default_rng(0)
        found = checks._results(call, [make(rng) for make in call.inputs], "float64", tm.device("cpu"))
        assert len(found) > 1, f"{call.name} is differentiated by nothing"
        assert all(np.abs(array).max() > 0 for array in found.values()), f"{call.name} is 0 everywhere: any kernel would do"


def wrong_kernel(monkeypatch: pytest.MonkeyPatch, here: Any, name: str, factor: float) -> None:
    """A kernel whose results are ``factor`` times what they should be; not in float64, which is what they are compared with."""
    true = getattr(here.kernels, name)

    def wrong(*arrays: Any, out: Any = None, **options: Any) -> None:
        true(*arrays, **options, **({} if out is None else {"out": out}))
        last = arrays[-1] if out is None else out
        if last.dtype != np.float64:
            last *= last.dtype.type(factor)

    monkeypatch.setattr(here.kernels, name, wrong)


@pytest.mark.parametrize("dtype", list(checks.ALLOWED))
@pytest.mark.parametrize(
    ("kernel", "words"), [("silu", "the result"), ("silu_backward", "the gradient of input 0")], ids=["forward", "backward"]
)
def test_a_kernel_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch, here: Any, kernel: str, words: str, dtype: str):
    assert checks.of_a_call(CALL["silu"], dtype, here) == []
    wrong_kernel(monkeypatch, here, kernel, 1.05)
    (problem,) = checks.of_a_call(CALL["silu"], dtype, here)
    assert problem.startswith(f"silu, {dtype}: {words} is off by ")
    assert 0.01 < float(problem.split("off by ")[1].split()[0]) < 0.06


def test_a_kernel_that_gives_no_numbers_is_named(monkeypatch: pytest.MonkeyPatch, here: Any):
    wrong_kernel(monkeypatch, here, "silu", float("nan"))
    assert "the result is off by inf" in checks.of_a_call(CALL["silu"], "float32", here)[0]


def test_a_kernel_that_raises_is_named_and_the_others_are_tried(monkeypatch: pytest.MonkeyPatch, here: Any):
    def raises(*arrays: Any, **options: Any) -> None:
        raise KeyError("X\x1b")

    monkeypatch.setattr(here.kernels, "silu", raises)
    monkeypatch.setattr(checks, "CALLS", (CALL["silu"], CALL["relu"]))
    monkeypatch.setattr(checks, "JOBS", (LINEAR,))
    found = {check.name: check.problems for check in checks.run(here)}
    first, second = found.pop("results, against float64 on the cpu")
    assert first.startswith("silu, float32: KeyError: ")
    assert second.startswith("silu, float16: KeyError: ")
    assert first.isprintable()
    assert not any(found.values())


def test_a_training_that_goes_wrong_is_named(monkeypatch: pytest.MonkeyPatch, here: Any):
    """Its losses, where the CPU that it is compared with is another device."""
    true = checks.ran_on

    def wrong(build: Any, scene: Any, device: str) -> Any:
        found = true(build, scene, device)
        found.numbers.losses[-1] *= 1.01 if wrong.first else 1
        wrong.first = False
        return found

    wrong.first = True
    monkeypatch.setattr(checks, "ran_on", wrong)
    (problem,) = checks.of_training(LINEAR, here)
    assert problem.startswith("linear layers, Adam: loss ")
    assert " in step 1, on the CPU it is " in problem


def test_bytes_that_were_not_predicted_are_named(monkeypatch: pytest.MonkeyPatch, here: Any):
    """A kernel that takes memory by itself does so in the run, and not in its prediction."""
    true = here.kernels.cross_entropy

    def takes(*arrays: Any, **options: Any) -> Any:
        here.empty((1000,), np.dtype(np.float32))
        return true(*arrays, **options)

    monkeypatch.setattr(here.kernels, "cross_entropy", takes)
    (problem,) = checks.of_training(LINEAR, here)
    assert problem.startswith("linear layers, Adam: at change ")
    assert "the run has +4,096 bytes by CrossEntropy in forward, its prediction " in problem


def test_an_offload_that_moves_nothing_is_named(monkeypatch: pytest.MonkeyPatch, here: Any):
    monkeypatch.setattr(checks, "save_on_cpu", lambda pin_memory: nullcontext())
    first, *_ = checks.of_offload(here)  # the first time on a device it also says that the host had none
    assert first.startswith("offload: the peak is ")


def test_a_limit_is_not_checked_where_the_step_fits_between_blocks_in_use(here: Any):
    gc.collect()
    here.pool.free_all_blocks()
    large = here.empty((1 << 26,), np.dtype(np.uint8))
    del large
    kept = here.empty((1 << 20,), np.dtype(np.uint8))
    (problem,) = checks.of_a_limit(here)
    del kept
    here.pool.free_all_blocks()
    assert problem.startswith("a limit: not checked: ")
    assert problem.endswith(" bytes are free between blocks that are in use")
    assert checks.of_a_limit(here) == []


def test_a_limit_that_does_not_hold_is_named(monkeypatch: pytest.MonkeyPatch, here: Any):
    monkeypatch.setattr(checks.memory, "limit", lambda size, device: nullcontext())
    assert checks.of_a_limit(here) == ["a limit: half of the peak was enough"]


@pytest.fixture
def kept() -> Iterator[list]:
    found: list = []
    yield found
    found.clear()


def test_memory_that_a_failed_step_keeps_is_named(monkeypatch: pytest.MonkeyPatch, here: Any, kept: list):
    true = checks.clear_frames

    def keeps(error: BaseException) -> None:
        kept.append(here.empty((1000,), np.dtype(np.float32)))
        true(error)

    monkeypatch.setattr(checks, "clear_frames", keeps)
    assert checks.of_a_limit(here) == ["a limit: 4,096 bytes more are in use after the step that failed"]
