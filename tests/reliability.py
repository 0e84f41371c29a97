"""The counts of ``docs/reliability.md``: tests report them, a run prints the sums, a whole run checks the page.

A test asks for the fixture ``reliability`` and calls ``reliability("interrupts of a training step", 543)``. Counts of equal
names are added up. What ran where, in the README, is counted and checked with them (``support.py``). A whole run with
``pytest --write-reliability`` writes both tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import support

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
_KEY = "reliability"
_ROW = re.compile(r"^\| (?!what)(.+?) +\| *([\d,]+) \|$", re.MULTILINE)


@pytest.fixture
def reliability(request: pytest.FixtureRequest) -> Callable[[str, int], None]:
    """``reliability(what, count)`` adds ``count`` to the row ``what`` of the table, if the test passes."""

    def add(what: str, count: int) -> None:
        assert count > 0, f"{what}: nothing was tried"
        request.node.user_properties.append((_KEY, [what, count]))

    return add


def documented(text: str) -> dict[str, int]:
    """The rows of the page's table."""
    return {what: int(count.replace(",", "")) for what, count in _ROW.findall(text)}


def table(counts: dict[str, int]) -> str:
    """The table as Markdown, a row a name, in alphabetical order."""
    width = max(map(len, counts))
    rows = [f"| {what:<{width}} | {count:>11,} |" for what, count in sorted(counts.items())]
    return "\n".join([f"| {'what was tried':<{width}} | how often |", f"|{'-' * (width + 2)}|------------:|", *rows])


def differences(counts: dict[str, int], said: dict[str, int]) -> list[str]:
    """A line for each row of which the page says more than the run did, or nothing.

    A tenth less passes: what happens between two bytecodes is counted by bytecodes, of which each version of Python has a few
    more or fewer. Where the count depends on what ran before, the page has the least. A run that tried more is none the worse.
    """
    return [
        f"{name}: the run counted {counts.get(name, 0):,}, the page says {said.get(name, 0):,}"
        for name in sorted(counts.keys() | said.keys())
        if name not in said or counts.get(name, 0) < 0.9 * said[name]
    ]


class Counts:
    """The plugin: collects the counts of all workers in the process that prints the result."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self.passed: Counter[tuple[str, str]] = Counter()  # tests by part and place
        self.unsure = False  # a test failed or was skipped, so that counts may be missing
        options: Any = config.option
        narrowed = options.keyword or options.markexpr or options.deselect or getattr(options, "lf", False)
        self.whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not narrowed
        self.write = config.getoption("write_reliability")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for what, count in (value for key, value in report.user_properties if key == _KEY):
                self.counts[what] += count
            if part := support.part_of(report.nodeid):
                self.passed[part, self._place(report)] += 1
        self.unsure |= report.failed

    def _place(self, report: pytest.TestReport) -> str:
        if "cuda" not in report.keywords:
            return "cpu"
        half: Any = self.config.pluginmanager.getplugin("cuda_half")
        return "emulated" if half.answers else "gpu"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.counts:
            return
        terminalreporter.section("what was tried")
        for what, count in sorted(self.counts.items()):
            terminalreporter.line(f"{count:>12,}  {what}")
        for line in self._wrong():
            terminalreporter.line(line, red=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.counts or not self.whole or self.unsure:
            return
        if self.write:
            text = PAGE.read_text(encoding="utf-8")
            begin, end = text.index("| what was tried"), text.rindex("|\n") + 1
            PAGE.write_text(text[:begin] + table(self.counts) + text[end:], encoding="utf-8")
            readme = support.PAGE.read_text(encoding="utf-8")
            support.PAGE.write_text(support.written(readme, self.passed), encoding="utf-8")
        elif self._wrong() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _wrong(self) -> list[str]:
        if not self.whole or self.unsure or self.write:
            return []
        said = documented(PAGE.read_text(encoding="utf-8"))
        half: Any = self.config.pluginmanager.getplugin("cuda_half")
        if half is not None and half.reason:  # without a device the rows of tests of CUDA are missing
            said = {name: count for name, count in said.items() if name in self.counts}
        lines = differences(self.counts, said)
        cells = support.wrong(self.passed, support.documented(support.PAGE.read_text(encoding="utf-8")))
        return [f"docs/reliability.md: {line}" for line in lines] + [f"README.md: {line}" for line in cells]
