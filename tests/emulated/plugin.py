"""The tests marked ``cuda``: on the GPU, or where there is none on the emulated device.

Only they find a device: for all other tests this stays a machine without a GPU.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .attach import asked as sources_asked
from .attach import attach, compiled
from .build import CannotAttachError, check_wheels, driver, impossible, kernels
from .device import Device, Mode
from .kernels import new, raw_kernels
from .nvidia import examined

_GPUS = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0)
"""
_OF_NUMBERS = ["amp", "devices", "distributions", "emulated", "half", "nn", "ops", "optim", "recompute", "techniques"]


def _gpu_here() -> bool:
    """Asked of another process: in this one NVIDIA's driver must not be in the way of ours."""
    found = subprocess.run([sys.executable, "-c", _GPUS], capture_output=True, text=True)
    return found.returncode == 0 and int(found.stdout) > 0


class CudaHalf:
    """The pytest plugin. ``device`` is the emulated one of this process, if there is one."""

    def __init__(self, config: pytest.Config) -> None:
        self.device: Device | None = None
        self.counts: Counter[str] = Counter()
        self.failure = ""
        self.launched: set[str] = set()  # the kernels, by name
        self.refused: list[str] = []  # by a compiler of NVIDIA's, and what it says
        self.wrong: list[str] = []  # what fails the whole run
        self.skipped = 0  # of the tests marked cuda
        given = getattr(config, "workerinput", {}).get("cuda_half")
        if given is None:
            given = ("gpu" if _gpu_here() else "", impossible() or "")
        self.where, self.reason = given
        self._starts_workers = bool(config.getoption("numprocesses", None))
        self._shown = False

    def pytest_sessionstart(self) -> None:
        """Before tests are collected: CuPy can be attached only before it is imported, and some files ask for a GPU.

        The process that starts workers only builds the driver, once for all of them.
        """
        if self.where or self.reason:
            return
        try:
            if self._starts_workers:
                check_wheels(), driver(), kernels()
            else:
                self.device = attach()
                self.device.driver.emu_set_visible(0)
        except (CannotAttachError, OSError) as error:
            self.failure = str(error)

    @pytest.hookimpl(optionalhook=True)  # pytest-xdist's
    def pytest_configure_node(self, node: Any) -> None:
        """Each worker does what this process found out."""
        node.workerinput["cuda_half"] = (self.where, self.reason)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Without a device the tests are skipped, and counted. A failure to attach is one of each test."""
        if self.reason:
            for item in items:
                if item.get_closest_marker("cuda"):
                    item.add_marker(pytest.mark.skip(reason=self.reason))

    @property
    def answers(self) -> bool:
        """Whether this plugin decides what becomes of the tests marked ``cuda``."""
        return self.where == ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._show(item.get_closest_marker("cuda") is not None)
        return (yield)

    def _show(self, wanted: bool) -> None:
        """Let the test find a device, or none."""
        if self.device is None or wanted == self._shown:
            return
        from tinygrad_mem.devices import base

        self._shown = wanted
        self.device.show() if wanted else self.device.hide()
        seen = [key for key in base._instances if key[0] == "cuda"]
        if wanted:
            for key in seen:
                del base._instances[key]
            base._instances.update(self._opened)
        else:
            self._opened = {key: base._instances.pop(key) for key in seen}

    _opened: dict[Any, Any] = {}  # noqa: RUF012  (the project's objects of the device, while it is hidden)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        if self.failure and item.get_closest_marker("cuda"):
            pytest.fail(self.failure, pytrace=False)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """A test runs as on the device that is hardest to please: work is late, the last thread comes first.

        Where order could matter to a kernel, or where streams work side by side, a test of numbers runs once more the other way
        round. A test that asked for a mode has it, and is not repeated.

        One mode is enough for tests of memory and of failures. Bytes and events are the host's: it takes and gives back memory
        when it gives work, and no order of that work changes them. The kernels are those of the tests of numbers. And late is
        the mode that finds memory which is given back, or read by the host, too early: eager work would be done by then.
        """
        if self.device is None or not item.get_closest_marker("cuda"):
            return (yield)
        asked = self.device.current
        hardest = Mode("backward", "late") if asked == Mode() else asked
        with self.device.mode(hardest.order, hardest.late):
            chosen = self.device.chosen
            with self._watched(str(hardest)):
                result = yield
            seen, itself = self.device.seen(), self.device.chosen > chosen
        self.counts.update(tests=1, launches=seen.launches)
        compares = item.path.parent.name in _OF_NUMBERS and not itself
        if compares and asked == Mode() and (seen.order_matters or seen.side_streams):
            counted = len(item.user_properties)
            with self._watched(str(asked)):
                item.runtest()
            del item.user_properties[counted:]  # what the test counts was tried once, in however many orders
            self.counts.update(again=1, launches=self.device.seen().launches)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        """A test that leaves a mode fails: it would be that of all later tests, and none of them would run in two orders."""
        result = yield
        if self.device is not None and (left := self.device.current) != Mode():
            self.device.set_mode(Mode())
            pytest.fail(f"the mode {str(left)!r} of the emulated device was left behind", pytrace=False)
        return result

    @contextmanager
    def _watched(self, mode: str) -> Iterator[None]:
        """Raise what the device found, which is more often the cause of a failure than its effect."""
        assert self.device is not None
        self.device.seen(), self.device.problems()
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            error.add_note(f"on the emulated device, in the mode {mode!r}")
            failure = error
        problems = self.device.problems()
        self.counts["problems"] += len(problems)
        if problems:
            raise AssertionError(f"found by the emulated device, in the mode {mode!r}:\n" + "\n".join(problems)) from failure
        if failure is not None:
            raise failure

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and "cuda" in report.keywords:
            self.skipped += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Each process asks NVIDIA's compilers about sources that are new to them; the one that prints the result judges."""
        if self.device is not None:
            self.counts.update(compiled)
            self.launched.update(self.device.launched())
            for source, said in examined(new(source for source in sources_asked if "probe" not in source.text), (80,))[
                0
            ].items():
                self.refused.append(f"{source.text[source.text.index('__global__') :].partition('(')[0]}: {said}")
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cuda_half"] = (dict(self.counts), sorted(self.launched), self.refused)
            return
        self.wrong = [f"NVIDIA's compiler refuses {said}" for said in sorted(set(self.refused))]
        if session.testsfailed == 0 and self.counts["tests"] and self._whole(session.config):
            self.wrong += [f"no test launched the kernel {name}" for name in sorted(raw_kernels() - self.launched)]
        if self.wrong and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @staticmethod
    def _whole(config: pytest.Config) -> bool:
        """Whether every test marked ``cuda`` was asked for."""
        options = config.option
        narrowed = options.keyword or options.deselect or getattr(options, "lf", False) or options.markexpr not in ("", "cuda")
        return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not narrowed

    @pytest.hookimpl(optionalhook=True)  # pytest-xdist's
    def pytest_testnodedown(self, node: Any) -> None:
        counts, launched, refused = getattr(node, "workeroutput", {}).get("cuda_half", ({}, [], []))
        self.counts.update(counts)
        self.launched.update(launched)
        self.refused += refused

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(self._closing_line())
        for line in self.wrong:
            terminalreporter.write_line(line, red=True)

    def _closing_line(self) -> str:
        if self.where == "gpu":
            return "tests marked cuda: on the GPU"
        if self.reason or self.failure:
            return f"tests marked cuda: did not run: {self.reason or self.failure}"
        c = self.counts
        return (
            f"tests marked cuda: on the emulated device, {c['tests']:,} tests, {c['again']:,} of them in two orders, "
            f"{self.skipped:,} skipped; sources that g++ compiled {c['sources']:,}; "
            f"kernels launched {c['launches']:,}; problems found {c['problems']:,}"
        )
