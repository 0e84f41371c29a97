"""In which order several workers run the tests, and which worker runs which: none waits for the others at the end.

Each worker begins with an equal number of tests, in the order in which they were collected, so that it imports and prepares
most things alone; one that is done takes half of what another has left, from the end. So long tests come before short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeVar

import pytest
from _pytest.runner import runtestprotocol

from . import profiles

_T = TypeVar("_T")


class Dealing:
    """The plugin."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if hasattr(config, "workerinput"):
            slow = {name.partition("::")[0] for name in profiles.SLOW.read_text(encoding="utf-8").splitlines()}
            items[:] = dealt(items, config.workerinput["workercount"], lambda item: item.nodeid.partition("::")[0], slow)

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """A worker sends one report of a test that passes, not three: the others say that nothing went wrong around it."""
        if not hasattr(item.config, "workerinput") or item.config.option.durations is not None:
            return None  # pytest's own way; the durations are of all parts of a test
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)  # the line of dots moves on
        return True

    @pytest.hookimpl(optionalhook=True)  # pytest-xdist's
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        if config.getvalue("dist") != "load":  # which ``-n`` sets
            return None
        from xdist.scheduler.worksteal import WorkStealingScheduling

        return WorkStealingScheduling(config, log)


def dealt(tests: Iterable[_T], workers: int, file_of: Callable[[_T], str], slow: set[str]) -> list[_T]:
    """The tests in so many equal parts, each with its share of the files that have slow tests, and those first."""
    files: dict[str, list[_T]] = {}
    for test in tests:
        files.setdefault(file_of(test), []).append(test)
    long, short = ([path for path in files if (path in slow) == wanted] for wanted in (True, False))
    rest = list(chain.from_iterable(files[path] for path in short))
    size = sum(map(len, files.values())) // workers
    found: list[_T] = []
    for worker in range(workers):
        found += chain.from_iterable(files[path] for path in long[worker::workers])
        room = max(0, size * (worker + 1) - len(found))
        found += rest[:room]
        del rest[:room]
    return found + rest
