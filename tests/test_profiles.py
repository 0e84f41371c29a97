"""What ``-m quick`` and ``--thorough`` choose, and that the list of slow tests names tests."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest

from . import profiles

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
SUITE = """
import time
import pytest
from hypothesis import given, settings, strategies as st
from tests.profiles import every, examples, some

@pytest.mark.parametrize("row", range(20))
def test_table(row):
    pass

def test_slow():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass

@pytest.fixture
def chromium():
    pass

def test_of_a_page(chromium):
    assert chromium is None

@pytest.mark.cuda
def test_of_a_gpu():
    pass

@pytest.mark.parametrize("size", some("abc", "b"))
def test_sizes(size):
    pass

tried = []

@settings(max_examples=examples(5))
@given(st.integers())
def test_examples(number):
    tried.append(number)

def test_how_many():
    assert len(tried) == examples(5) == 50 // every(10)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A suite of these tests, with a list of slow ones of its own, which is empty."""
    pytester.makeconftest(
        f"""
        import pathlib, sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests import profiles
        profiles.SLOW = pathlib.Path({str(pytester.path / "slow.txt")!r})
        profiles.LIMIT = 0.4  # on a busy machine the first random example takes more than the usual limit

        def pytest_addoption(parser):
            parser.addoption("--write-reliability", action="store_true")
            parser.addoption("--thorough", action="store_true")

        def pytest_configure(config):
            config.addinivalue_line("markers", "cuda: x")
            config.addinivalue_line("markers", "quick: x")
            profiles.load(config.getoption("thorough"))
            config.pluginmanager.register(profiles.Quick(config))
        """
    )
    (pytester.path / "slow.txt").write_text("")
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def test_the_profiles(suite: pytest.Pytester):
    """Quick is a case of each function that is not slow; thorough is all cases, and more random examples."""
    usual = suite.runpytest_subprocess("-p", "no:xdist", "--write-reliability")
    usual.assert_outcomes(passed=26)
    usual.stdout.fnmatch_lines(["profile of the tests: usual*"])
    assert (suite.path / "slow.txt").read_text() == "test_suite.py::test_slow\n"

    quick = suite.runpytest_subprocess("-p", "no:xdist", "-m", "quick", "-v", "-k", "not how_many")
    quick.assert_outcomes(passed=3, deselected=23)
    assert "test_slow" not in quick.stdout.str()
    assert "test_of_a_page" not in quick.stdout.str()
    assert len(re.findall(r"test_table\[\d+\] PASSED", quick.stdout.str())) == 1

    thorough = suite.runpytest_subprocess("-p", "no:xdist", "--thorough")
    thorough.assert_outcomes(passed=28)
    thorough.stdout.fnmatch_lines(["profile of the tests: thorough"])


@pytest.mark.parametrize("options", [("ab", "cd", "ef"), ("abcd", "ef", "gh", "ij"), ("abc", "def", "gh")])
def test_any_two_values_meet(options: tuple):
    found = profiles.pairs(*options)
    assert len(found) in (len(options[0]) * len(options[1]), math.prod(map(len, options)))
    for i, j in itertools.combinations(range(len(options)), 2):
        assert {(row[i], row[j]) for row in found} == set(itertools.product(options[i], options[j]))


def test_half_of_the_combinations_of_two_have_all_values():
    found = profiles.pairs("ab", "cd")
    assert len(found) in (2, 4)
    assert {value for row in found for value in row} == set("abcd")


def test_a_share_of_the_rows():
    """Never none; of several ops together, every row."""
    shares = [profiles.share(range(10), 4, op) for op in range(20)]
    assert all(len(share) in (2, 3, 10) for share in shares)
    assert set().union(*shares) == set(range(10))
    assert profiles.share("a", 4, "op") == ["a"]
    assert profiles.share("", 4, "op") == []
    some = profiles.share_of_each(range(20), 4, lambda row: row % 2)
    assert len([row for row in some if row % 2]) in (2, 3, 10)
    assert profiles.share_of_each(range(3), 4, lambda row: row) == [0, 1, 2]


def test_the_list_of_slow_tests_names_tests():
    """But for a few that have been renamed since it was written: ``--write-reliability`` takes those out."""
    lines = profiles.SLOW.read_text(encoding="utf-8").splitlines()
    gone = [line for line in lines if not profiles.there(line)]
    assert len(gone) <= len(lines) // 20, f"these are no tests: {gone}"
