"""What the library offers on a GPU, in every dtype: kernels that every GPU takes, with known needs, and no hidden memory."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests import profiles

from . import kernels, nvidia
from .device import Device
from .nvidia import RefusedError, Source
from .plugin import CudaHalf

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("emulated")]


def test_every_raw_kernel_is_launched():
    launched = kernels.found()["launched"]
    assert sorted(kernels.raw_kernels() - launched.keys()) == [], "give them a run in tests/emulated/offered.py"


def test_no_op_takes_memory_in_any_dtype(reliability: Callable[[str, int], None]):
    found = kernels.found()
    assert found["hidden"] == {}
    reliability("runs of kernels on a GPU that allocate nothing", found["runs"])


def test_a_gpu_offers_what_the_cpu_offers():
    """What PyTorch offers on neither is left, and what depends on values, which all are 0 here."""
    known = ("T.bfloat16", "multinomial", "embedding_bag max")
    refused = kernels.found()["refused"]
    assert {name: said for name, said in refused.items() if not name.startswith(known) and "adaptive" not in name} == {}
    assert all(name.endswith(" bool") for name in refused if "adaptive" in name)
    assert not any("float" in name for name in refused if name.startswith("embedding_bag"))


def test_every_gpu_takes_every_kernel(reliability: Callable[[str, int], None]):
    """What NVRTC refuses, the CPU refuses too: activations of integers, as in PyTorch."""
    from .offered import ran, runs

    assert set(nvidia.ARCHITECTURES) <= set(nvidia.supported()), f"this NVRTC knows {nvidia.supported()}"
    refused, _ = kernels.results()
    assert refused, "activations of integers"
    wanted = {name: run for name, run in runs() if name in refused}
    assert {name: said for name, said in refused.items() if not ran(wanted[name], "cpu")} == {}
    reliability("sources of kernels compiled for four kinds of GPU", len(kernels.sources()))


def test_what_kernels_need_is_bounded():
    table, memory = kernels.written()
    assert table.keys() == {f"`{name}`" for name in kernels.raw_kernels()} | {*kernels.OF_CUPY}, WRITE
    assert memory.keys() == {f"`{name}`" for name in kernels.IN_MEMORY}, WRITE
    count = len(nvidia.ARCHITECTURES)
    for name, (threads, *numbers) in table.items():
        registers, shared, spilled = numbers[:count], numbers[count], numbers[count + 1 :]
        assert spilled == [0] * count, name
        whole = -(-max(registers) // 8) * 8  # they are given out by eights
        assert whole * threads <= kernels.REGISTERS, name
        assert shared <= kernels.SHARED, name


WRITE = "write the page: python -m tests.emulated.kernels"


def test_the_page_says_what_kernels_need():
    """Of the sources that were compiled in this run: those that are new, and some others."""
    table, memory = kernels.written()
    _, most = kernels.results()
    assert all(most.values()), "nothing was compiled"
    for name, needs in kernels.rows(most).items():
        assert all(n <= said for n, said in zip(needs, table[name], strict=True)), f"{name}: {needs}; {WRITE}"
    for name, sizes in kernels.arrays(most).items():
        assert all(n <= said for n, said in zip(sizes, memory[name], strict=True)), f"{name}: {sizes}; {WRITE}"
    for name in kernels.raw_kernels():
        assert table[f"`{name}`"][0] == kernels.threads(name), f"{name}; {WRITE}"
    if profiles.every(2) == 1:
        date = re.search(r"Compiled on (\S+)", kernels.PAGE.read_text(encoding="utf-8"))
        assert date
        assert kernels.PAGE.read_text(encoding="utf-8") == kernels.page(most, date[1]), WRITE


def test_the_list_of_what_was_compiled_is_kept_short():
    """A source that nobody offers any more goes when the page is written; few may be new: they are compiled in each run."""
    names = {*map(kernels.name, kernels.sources())}
    assert len(names - kernels.compiled().keys()) <= 100, WRITE
    assert len(kernels.compiled().keys() - names) <= 200, WRITE


def _source(body: str, head: str = "") -> Source:
    return Source(f'{head}\nextern "C" __global__ void probe(float* x) {{\n{body}\n}}\n', ())


def test_a_source_is_known_by_its_text_and_not_by_its_dimensions():
    one, other = _source("CArray<float, 1, 1, 1> x;"), _source("CArray<float, 3, 0, 1> x;")
    assert nvidia.distinct([one, other, one]) == [other]
    assert nvidia.name_of(one) == nvidia.name_of(other) != nvidia.name_of(_source("CArray<double, 1, 1, 1> x;"))
    assert kernels.new([one, *kernels.sources()[:1]])[0] == one


def test_one_bad_source_among_good_ones_is_named():
    good, bad, late = _source("x[0] = 1;"), _source("x[0] = nothing;"), _source("x[0] = SIZE;", "#define SIZE 3")
    found = nvidia.reports([good, bad, late, good], 80, report=True)
    assert found[1] == 'identifier "nothing" is undefined'
    assert [list(each) for each in found if isinstance(each, dict)] == [["probe"]] * 3
    assert nvidia.reports([late, bad], 80, report=False, syntax=True)[1] == found[1]


def test_a_source_that_only_a_host_compiler_accepts_is_refused():
    """It runs on the emulated device, and ends the run in an error."""
    host = Source('#include <vector>\nextern "C" __global__ void probe(float* x) { std::vector<int> own; }\n', ())
    with pytest.raises(RefusedError, match="vector"):
        nvidia.examined([host])


def test_the_report_sees_shared_memory_and_arrays_of_a_thread():
    shared = _source("__shared__ float part[100]; part[threadIdx.x] = x[0]; __syncthreads(); x[1] = part[99 - threadIdx.x];")
    array = _source(
        "float own[50]; for (int i = 0; i < 50; ++i) own[(int)x[i]] = i; for (int i = 0; i < 50; ++i) x[i] = own[i];"
    )
    many = _source("x[0] = 1;")
    found = [each["probe"] for each in nvidia.reports([shared, array, many], 80, report=True) if isinstance(each, dict)]
    assert [each.shared for each in found] == [400, 0, 0]
    assert found[1].stack >= 200
    assert found[2].stack == found[2].spilled == 0
    assert all(each.registers > 0 for each in found)


def test_what_the_assembler_refuses_is_raised():
    with pytest.raises(RefusedError, match="shared data"):
        nvidia.reports(
            [_source("__shared__ float part[20000]; part[threadIdx.x] = x[0]; x[1] = part[(int)x[2]];")], 70, report=True
        )


def test_a_dry_run_is_this_drivers(emulated: Device):
    """A module that does nothing: kernels are found in it, launched and counted."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver = emulated.driver
    assert driver.cuModuleLoadData(ctypes.byref(module), b"DRY:") == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"of_nobody") == 0
    before = emulated.launched().get("of_nobody", (0, 0))
    assert driver.cuLaunchKernel(function, 2, 1, 1, 64, 2, 1, 0, None, None, None) == 0
    assert emulated.launched()["of_nobody"] == (before[0] + 1, 128)


@pytest.mark.parametrize("markexpr", ["cuda", "cuda and not slow"])
def test_a_whole_run_fails_for_a_kernel_that_no_test_launched(markexpr: str):
    """Workers tell what they launched and what a compiler refused; a part of the suite proves nothing."""
    half: Any = CudaHalf.__new__(CudaHalf)
    half.device, half.counts, half.launched, half.refused, half.wrong = None, Counter(), set(), [], []
    options = SimpleNamespace(keyword="", deselect=None, markexpr=markexpr)
    config = SimpleNamespace(option=options, args_source=pytest.Config.ArgsSource.TESTPATHS)
    session = SimpleNamespace(config=config, testsfailed=0, exitstatus=pytest.ExitCode.OK)
    told = {"tests": 5}, sorted(kernels.raw_kernels() - {"unpool"}), []
    half.pytest_testnodedown(SimpleNamespace(workeroutput={"cuda_half": told}))
    half.pytest_sessionfinish(session)
    assert half.wrong == (["no test launched the kernel unpool"] if markexpr == "cuda" else [])
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if markexpr == "cuda" else pytest.ExitCode.OK)
    half.pytest_testnodedown(SimpleNamespace(workeroutput={"cuda_half": ({}, ["unpool"], ["void move: sm_70: error"])}))
    half.pytest_sessionfinish(session)
    assert half.wrong == ["NVIDIA's compiler refuses void move: sm_70: error"]
