"""What becomes of the tests marked ``cuda`` where the emulated device cannot be attached, and where it cannot be built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import plugin
from .device import Mode, Seen

pytest_plugins = ["pytester"]

CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.emulated import build, plugin

def pytest_configure(config):
    {change}
    config.pluginmanager.register(plugin.CudaHalf(config), "cuda_half")
"""
SUITE = """
import pytest

@pytest.mark.cuda
def test_of_a_gpu(): ...

def test_of_no_gpu(): ...
"""


def run(pytester: pytest.Pytester, change: str, workers: str = "0") -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.format(root=str(Path(__file__).parents[2]), change=change))
    pytester.makepyfile(SUITE)
    pytester.makeini("[pytest]\nmarkers = cuda: needs a GPU\n")
    return pytester.runpytest_subprocess("-n", workers)


class Orders:
    """A device on which each test launches a kernel whose order matters."""

    def __init__(self) -> None:
        self.current, self.chosen, self.ran = Mode(), 0, list[str]()

    def set_mode(self, mode: Mode) -> None:
        self.current = mode

    @contextmanager
    def mode(self, order: str, late: str) -> Iterator[None]:
        self.current, before = Mode(order, late), self.current
        yield
        self.current = before

    def seen(self) -> Seen:
        return Seen(launches=1, order_matters=1)

    def problems(self) -> list[str]:
        return []


class Counting(pytest.Item):
    """A test that says to the device that it ran, and counts three things that it tried."""

    def runtest(self) -> None:
        orders.ran.append(str(orders.current))
        self.user_properties.append(("reliability", ["things", 3]))


orders = Orders()


def test_a_test_in_two_orders_counts_what_it_tried_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = plugin.CudaHalf(request.config)
    monkeypatch.setattr(half, "device", orders)
    item = Counting.from_parent(request.node.parent, name="a_test_of_numbers")
    item.add_marker("cuda")
    run = half.pytest_runtest_call(item)
    next(run)
    item.runtest()
    with pytest.raises(StopIteration):
        run.send(None)
    assert (orders.ran, half.counts["again"]) == (["backward late", "forward eager"], 1)
    assert item.user_properties == [("reliability", ["things", 3])]


def test_a_mode_that_a_test_leaves_is_its_failure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    half = plugin.CudaHalf(request.config)
    monkeypatch.setattr(half, "device", orders)
    orders.current = Mode("backward", "late")
    end = half.pytest_runtest_teardown()
    next(end)
    with pytest.raises(pytest.fail.Exception, match="the mode 'backward late' of the emulated device was left behind"):
        end.send(None)
    assert orders.current == Mode()


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_device_that_cannot_be_attached_fails_its_tests(pytester: pytest.Pytester, workers: str) -> None:
    done = run(pytester, "plugin._gpu_here = lambda: False; build.WHEELS['cupy-cuda12x'] = '0.0'", workers)
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*the emulated CUDA device needs cupy-cuda12x 0.0, found *"])


def test_a_machine_that_cannot_emulate_says_so(pytester: pytest.Pytester) -> None:
    done = run(pytester, "plugin._gpu_here = lambda: False; plugin.impossible = lambda: 'there is no g++'")
    done.assert_outcomes(passed=1, skipped=1)
    done.stdout.fnmatch_lines(["tests marked cuda: did not run: there is no g++"])


def test_on_a_gpu_nothing_is_attached(pytester: pytest.Pytester) -> None:
    done = run(pytester, "plugin._gpu_here = lambda: True; build.WHEELS['cupy-cuda12x'] = '0.0'")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["tests marked cuda: on the GPU"])
