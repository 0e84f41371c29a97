"""How tests are dealt out to several workers, and what these report."""

from __future__ import annotations

import pytest

from .dealing import Dealing, dealt

pytest_plugins = ["pytester"]


def file_of(test: str) -> str:
    return test[0]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_begins_with_its_share_of_the_slow_files_and_ends_with_quick_ones(workers: int):
    tests = [f"{file}{number}" for file in "abcdefghijkl" for number in range(3)]
    found = dealt(tests, workers, file_of, set("bdf"))
    assert sorted(found) == tests
    size = len(tests) // workers
    for worker in range(workers):
        part = [file_of(test) for test in found[worker * size : (worker + 1) * size]]
        slow = list("bdf"[worker::workers])
        assert sorted(set(part[: 3 * len(slow)])) == slow
        assert not set(part[3 * len(slow) :]) & set("bdf")


def test_a_file_stays_together_and_in_order():
    tests = [f"{file}{number}" for number in range(3) for file in "ab"]
    assert dealt(tests, 2, file_of, set()) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert dealt(tests, 2, file_of, {"b"}) == ["b0", "b1", "b2", "a0", "a1", "a2"]


def test_slow_files_may_be_more_than_a_share():
    tests = [f"a{number}" for number in range(5)] + ["b0"]
    assert dealt(tests, 2, file_of, {"a"}) == [*tests]
    assert dealt([], 2, file_of, {"a"}) == []


SUITE = """
import pytest

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_passes(): ...
def test_fails(): assert False
@pytest.mark.skip
def test_skipped(): ...
def test_ends_badly(broken): ...
"""


def test_a_worker_reports_each_test_and_what_goes_wrong_around_it(pytester: pytest.Pytester):
    found = []

    class Worker:
        def pytest_configure(self, config: pytest.Config) -> None:
            vars(config)["workerinput"] = {"workercount": 1}

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            found.append((report.head_line, report.when, report.outcome))

    pytester.makepyfile(SUITE)
    ran = pytester.inline_run("-p", "no:xdist", plugins=[Dealing(), Worker()])
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    assert found == [
        ("test_passes", "call", "passed"),
        ("test_fails", "call", "failed"),
        ("test_skipped", "setup", "skipped"),
        ("test_ends_badly", "call", "passed"),
        ("test_ends_badly", "teardown", "failed"),
    ]
