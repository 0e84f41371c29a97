"""The counts of ``docs/reliability.md`` and of the README are those of the run: the plugin that adds them up and compares."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from . import reliability as page
from . import support

pytest_plugins = ["pytester"]

SUITE = """
def test_one(reliability):
    reliability("mutated files", 1200)

def test_two(reliability):
    reliability("mutated files", 34)
    reliability("interrupts", 5)
"""


def test_a_written_table_is_read_back() -> None:
    counts = {"mutated files": 1234, "interrupts": 5}
    assert page.documented(page.table(counts)) == counts


def test_each_row_that_differs_is_reported() -> None:
    assert page.differences({"a": 1, "b": 20}, {"b": 20}) == ["a: the run counted 1, the page says 0"]
    assert page.differences({"b": 17}, {"b": 20}) == ["b: the run counted 17, the page says 20"]
    assert page.differences({}, {"b": 20}) == ["b: the run counted 0, the page says 20"]
    assert page.differences({"b": 20}, {"b": 20}) == page.differences({"b": 40}, {"b": 20}) == []


def test_a_whole_run_fails_where_the_page_is_wrong(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of all workers are added up; the page is compared, written on demand, and left alone by a part of the suite."""
    where, readme = pytester.path / "reliability.md", pytester.path / "README.md"
    readme.write_text(support.table(Counter()) + "\n\nafter\n")
    monkeypatch.setattr(page, "PAGE", where)
    pytester.makeconftest(
        f"""
        import pathlib, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        from tests import reliability as page
        from tests.reliability import reliability
        page.PAGE = pathlib.Path({str(where)!r})
        page.support.PAGE = pathlib.Path({str(readme)!r})

        def pytest_addoption(parser):
            parser.addoption("--write-reliability", action="store_true")

        def pytest_configure(config):
            if not hasattr(config, "workerinput"):
                config.pluginmanager.register(page.Counts(config))
        """
    )
    (pytester.mkdir("suite") / "test_suite.py").write_text(SUITE)
    pytester.makeini("[pytest]\ntestpaths = suite\n")
    where.write_text("before\n\n" + page.table({"mutated files": 1234, "interrupts": 6}) + "\n\nafter\n")

    wrong = pytester.runpytest_subprocess("-n", "2")
    assert wrong.ret == 1
    wrong.stdout.fnmatch_lines(["*1,234  mutated files", "docs/reliability.md: interrupts: the run counted 5, the page says 6"])
    assert pytester.runpytest_subprocess("-n", "0", "-k", "one").ret == 0

    assert pytester.runpytest_subprocess("-n", "2", "--write-reliability").ret == 0
    text = where.read_text()
    assert page.documented(text) == {"mutated files": 1234, "interrupts": 5}
    assert text.startswith("before\n\n|")
    assert text.endswith("|\n\nafter\n")
    assert pytester.runpytest_subprocess("-n", "0").ret == 0


PART, OTHER = list(support.PARTS)[:2]


def test_the_table_of_what_ran_where_is_read_back() -> None:
    counts = Counter({(PART, "cpu"): 1234, (PART, "emulated"): 5, (OTHER, "cpu"): 7})
    assert +support.documented("before\n\n" + support.table(counts) + "\n\nafter") == counts
    assert support.NONE in support.table(counts)


def test_a_place_where_nothing_ran_keeps_what_it_said() -> None:
    """A run without a GPU neither confirms nor removes what a GPU has shown."""
    said = Counter({(PART, "cpu"): 100, (PART, "gpu"): 50, (OTHER, "cpu"): 9})
    text = "before\n\n" + support.table(said) + "\n\nafter"
    counts = Counter({(PART, "cpu"): 200})
    assert +support.documented(support.written(text, counts)) == Counter({(PART, "cpu"): 200, (PART, "gpu"): 50})
    assert support.wrong(counts, said) == [f"{OTHER}, on a CPU: 0 tests passed, the page says 9"]
    assert support.wrong(Counter({(PART, "gpu"): 50, (OTHER, "gpu"): 1}), said) == [
        f"{OTHER}, {support.PLACES['gpu']}: 1 tests passed, the page says not run"
    ]


def test_each_folder_of_tests_is_in_one_row() -> None:
    folders = [folder for part in support.PARTS.values() for folder in part]
    here = {path.parent.name for path in Path(__file__).parent.glob("*/test_*.py")}
    assert sorted(folders) == sorted(here - {"emulated"})
    assert support.part_of("tests/ops/test_sort.py::test_order") == PART
    assert support.part_of("tests/test_style.py::test_linter[ruff/format]") is None


def test_the_readme_has_the_table() -> None:
    assert set(support.documented(support.PAGE.read_text())) == {
        (part, place) for part in support.PARTS for place in support.PLACES
    }
