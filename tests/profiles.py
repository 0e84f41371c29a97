"""How much a run of the tests tries. ``pytest`` tries what a change can break; ``pytest --thorough`` tries everything.

``pytest -m quick`` is for the inner loop: it runs one case of each test function that needs less than ``LIMIT`` seconds a case.
Those that need more are in ``slow.txt``; ``--write-reliability`` adds to it what a run finds slow. A new test is quick.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

SLOW = Path(__file__).parent / "slow.txt"
LIMIT = 0.1
"""Processor seconds of a case, on average, from which a test function is slow."""
MORE = 10
"""How many times as many random examples a thorough run tries."""
_UNMEASURED = {"chromium", "made"}
"""Fixtures whose tests are slow: a browser's seconds are not measured, and those of a site that is made count for one test."""
_KEY = "processor seconds"
_thorough = False
_T = TypeVar("_T")

settings.register_profile("usual", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=MORE * 30, print_blob=True)  # new examples each time


def load(thorough: bool) -> None:
    """Say how much to try, before the first file of tests is imported."""
    global _thorough
    _thorough = thorough
    settings.load_profile("thorough" if thorough else "usual")


def name() -> str:
    """The profile of this run, in words."""
    return "thorough" if _thorough else "usual (pytest --thorough tries more)"


def examples(usual: int) -> int:
    """How many random examples to try: ``usual``, or :data:`MORE` times as many."""
    return MORE * usual if _thorough else usual


def some(rows: Sequence[_T], usual: Iterable[_T]) -> list[_T]:
    """All ``rows`` in a thorough run, else those that are in ``usual``, which stand for the others."""
    usual = list(usual)
    assert all(row in rows for row in usual), "rows that stand for others are among them"
    return list(rows) if _thorough else [row for row in rows if row in usual]


def pairs(*options: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All combinations of the options. A usual run takes so few that each value is among them; of three options or more, any
    two values, where the first has as many as there are combinations of the third and later ones.
    """
    first, second, *rest = options
    found = []
    for (i, a), (j, b) in itertools.product(enumerate(first), enumerate(second)):
        row, turn = [a, b], i
        for values in rest:
            row.append(values[(turn + j) % len(values)])
            turn //= len(values)
        if rest or (i + j) % 2 == 0:
            found.append(tuple(row))
    return some(list(itertools.product(*options)), found)


def on_devices(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The parameters of a test that has a device in each row: those of a GPU are marked."""
    return [pytest.param(*row, marks=pytest.mark.cuda if "cuda" in row else ()) for row in rows]


def share(rows: Sequence[_T], number: int, of: object) -> list[_T]:
    """All ``rows`` in a thorough run, else one in ``number``, and never none. Which, depends on what they belong to: if each op
    has the same hundred rows, each row is tried with some ops.
    """
    step = every(number)
    return list(rows[zlib.crc32(repr(of).encode()) % min(step, len(rows)) :: step]) if len(rows) else []


def share_of_each(rows: Iterable[_T], number: int, kind: Callable[[_T], object]) -> list[_T]:
    """The :func:`share` of each kind of row, such as of the rows of each op."""
    kinds: dict[object, list[_T]] = {}
    for row in rows:
        kinds.setdefault(kind(row), []).append(row)
    return [row for of, same in kinds.items() for row in share(same, number, of)]


def every(number: int) -> int:
    """The step through cases that are much alike: 1 in a thorough run, else ``number``."""
    return 1 if _thorough else number


def function_of(test: str) -> str:
    """The test function of a case, by the case's name: ``tests/ops/test_sort.py::test_order[3]``."""
    return test.partition("[")[0]


def there(function: str) -> bool:
    """Whether a test function of this name exists: ``tests/ops/test_sort.py::test_order``."""
    path, _, name = function.partition("::")
    file = SLOW.parents[1] / path
    return file.exists() and f"def {name}(" in file.read_text(encoding="utf-8")


def _clock() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


class Quick:
    """The plugin that marks the quick tests, and measures which are slow."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.cases: Counter[str] = Counter()
        self.begun = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Of each function another case: together, the functions of a table of ops try many ops."""
        slow = set(SLOW.read_text(encoding="utf-8").splitlines())
        found: dict[str, list[pytest.Item]] = {}
        for item in items:
            if not item.get_closest_marker("cuda") and _UNMEASURED.isdisjoint(getattr(item, "fixturenames", ())):
                found.setdefault(function_of(item.nodeid), []).append(item)
        for function, cases in found.items():
            if function not in slow:
                cases[zlib.crc32(function.encode()) % len(cases)].add_marker(pytest.mark.quick)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self.begun = _clock()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            item.user_properties.append((_KEY, _clock() - self.begun))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and "cuda" not in report.keywords and not _thorough:
            self.cases[function_of(report.nodeid)] += 1
            spent = [value for key, value in report.user_properties if key == _KEY and isinstance(value, float)]
            self.spent[function_of(report.nodeid)] += sum(spent)

    def pytest_sessionfinish(self) -> None:
        """Add what was slow. Alone, a test may take longer than in a whole run, where others have made what it needs."""
        if self.config.getoption("write_reliability") and self.cases:
            slow = {name for name, count in self.cases.items() if self.spent[name] > LIMIT * count}
            slow.update(filter(there, SLOW.read_text(encoding="utf-8").splitlines()))
            SLOW.write_text("".join(f"{name}\n" for name in sorted(slow)), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"profile of the tests: {name()}")
