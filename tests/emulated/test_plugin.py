"""What becomes of the tests marked ``cuda`` where the emulated device cannot be attached, and where it cannot be built."""

from __future__ import annotations

from pathlib import Path

import pytest

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
