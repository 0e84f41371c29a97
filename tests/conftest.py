"""What every test starts from and must leave behind: seeded generators, an empty listener list, gradients on, cpu default."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import pytest

try:
    import torch
except ModuleNotFoundError:
    torch = None  # type: ignore[assignment]  # there is none for a free-threaded Python

from tinygrad_mem.devices import cuda_problem, device
from tinygrad_mem.interrupts import FREE_THREADED
from tinygrad_mem.memory import alive, census

from . import profiles, seal
from .dealing import Dealing
from .emulated.device import Device
from .emulated.plugin import CudaHalf
from .reliability import Counts
from .reliability import reliability as reliability


class _Skip:
    """The last of those who find modules: a test that needs one of these is skipped where it is not installed."""

    names = ("torch", "rich", "matplotlib", "safetensors", "ml_dtypes")

    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name.partition(".")[0] in cls.names:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


if torch is None:
    sys.meta_path.append(_Skip)  # type: ignore[arg-type]
else:
    torch.set_num_threads(1)
    torch.set_warn_always(True)  # else only the first test that does what it warns of would hear it
    torch.manual_seed = torch.default_generator.manual_seed  # its own writes a stack trace for each kind of GPU, each time

os.environ["TINYGRAD_MEM_CACHE"] = ""  # nothing that was measured before, or is measured now, outlives the tests
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-reliability", action="store_true", help="write the counts of a whole run into docs/reliability.md"
    )
    parser.addoption("--thorough", action="store_true", help="try everything, not only what a change can break")


def pytest_configure(config: pytest.Config) -> None:
    """Find a device for the tests marked ``cuda``. The process that prints the result also adds up what the tests tried."""
    profiles.load(config.getoption("thorough"))
    if FREE_THREADED:  # a prediction says so whenever the collector happens to run beside a kernel's thread
        config.addinivalue_line("filterwarnings", "ignore:predict. free-threaded Python")
    config.pluginmanager.register(profiles.Quick(config), "quick")
    config.pluginmanager.register(CudaHalf(config), "cuda_half")
    config.pluginmanager.register(Dealing(), "dealing")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Counts(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list) -> None:
    """Tests marked ``cuda`` are skipped, and counted, where there is no GPU, real or emulated.

    The type checker, the longest of all tests, comes first: at the end one worker would wait for it alone.
    """
    items.sort(key=lambda item: "test_type_checker" not in item.name)
    half: Any = config.pluginmanager.getplugin("cuda_half")
    problem = None if half.answers else cuda_problem()
    if problem:
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason=problem))


CROWD = 400
"""Objects that the collector may have to look at before they are left out. It looks at them before each test."""
_left_out: list[weakref.ref] = []


def leave_out() -> None:
    """Let the collector leave out what exists now: a million objects of pytest's, PyTorch's and of tests that are done, which
    each of the thousands of collections and of tracks in the tests would look at. It shows them to no census either: ours are
    remembered.
    """
    gc.collect()
    kinds = tuple(census.KINDS)
    ours = [weakref.ref(thing) for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    _left_out[:] = [*(ref for ref in _left_out if ref() is not None), *ours]
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: the collector would look at all of it again and again, a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Before the first test."""
    leave_out()

    alive.SOURCES.insert(0, lambda *types: [thing for each in _left_out if (thing := each()) is not None])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator[None, Any, Any]:
    """What a failed test held goes with it. Else collections would leave out its frames, and later tests count its tensors."""
    report = yield
    error = None if call.excinfo is None or item.config.getoption("usepdb") else call.excinfo.value
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            frame.f_locals  # noqa: B018  (before Python 3.13 a frame keeps a copy of its variables, which this renews)
        error = error.__cause__ or error.__context__
    return report


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> Iterator[None]:
    """Python's own handler, also where the runner ignores Ctrl-C, as a shell does for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=DEVICES)
def dev(request: pytest.FixtureRequest) -> str:
    """Each device that computes; the GPU's cases are skipped where there is none."""
    return request.param


@pytest.fixture
def gpu_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A pool of CuPy's of the test's own: what others have left alive is no part of what is measured."""
    import cupy

    from tinygrad_mem.devices.cuda_pool import CuPyPool

    cuda, pool = device("cuda"), type(cupy.get_default_memory_pool())()  # the emulated device watches a class of pools
    monkeypatch.setattr(cuda, "pool", CuPyPool(pool, cuda._device, str(cuda)))
    with cupy.cuda.using_allocator(pool.malloc):
        yield pool
        gc.collect()
        pool.free_all_blocks()


@pytest.fixture
def emulated(request: pytest.FixtureRequest) -> Device:
    """The emulated device of this process; on a GPU there is nothing of ours to test."""
    half: Any = request.config.pluginmanager.getplugin("cuda_half")
    if half.device is None:
        pytest.skip("the tests marked cuda run on a GPU here")
    return half.device


@pytest.fixture
def real_gpu(request: pytest.FixtureRequest) -> bool:
    """Whether the tests marked ``cuda`` run on a GPU, and not on the emulated device."""
    half: Any = request.config.pluginmanager.getplugin("cuda_half")
    return half.where == "gpu"


@pytest.fixture
def only_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """The emulated device gives memory and runs no kernel: for networks that would take it minutes. A GPU runs them."""
    half: Any = request.config.pluginmanager.getplugin("cuda_half")
    if half.device is None:
        yield
        return
    with half.device.mode(late="idle"):
        yield


@pytest.fixture(autouse=True, scope="module")
def begun() -> None:
    """What a module's own fixtures make and measure, they do as the first."""
    gc.collect()
    seal.begin()


@pytest.fixture(autouse=True)
def sealed() -> Iterator[None]:
    """No test leaves a switch turned, and none begins with what an earlier one left in cycles, or in the pools."""
    gc.collect()  # else it would go, and its bytes with it, in the middle of a test that counts
    if len(gc.get_objects()) > CROWD:
        leave_out()
    seal.begin()
    before = seal.state()
    gc.disable()
    yield
    gc.enable()
    assert not (left := seal.left(before)), "\n".join(left)
