"""The README's table of tips: its bytes and verdicts are those of a run."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from tests.tips.test_run import made
from tinygrad_mem.tips import TIPS, Measured
from tinygrad_mem.tips.measure import prediction_of
from tinygrad_mem.tips.verdict import verdict

README = (Path(__file__).parents[2] / "README.md").read_text()
ROWS = re.findall(r"^\| `(\w+)`(?:, ([^|]+))? \| ([\d,]+) \| ([\d,]+) \| (\S+) \| [^|]+ \| ([^|]*) \|$", README, flags=re.M)
ROWS = [row for row in ROWS if row[0] in TIPS]
BY_TIP = {name: list(rows) for name, rows in groupby(ROWS, key=lambda row: row[0])}


def test_the_table_is_there():
    assert len(BY_TIP) >= 12


@pytest.mark.parametrize("name", BY_TIP)
def test_a_tip_of_the_readme(name: str):
    tip, rows = TIPS[name], BY_TIP[name]
    assert [row[1] for row in rows] == [case.when for case in tip.cases]
    found: list[Measured] = []
    for row, case in zip(rows, tip.cases, strict=True):
        before, after = (prediction_of(build, tip.scene, ranks=case.ranks) for build in (case.before, case.after))
        comparison = before.compare(after)
        peak = comparison.peak
        assert row[2:5] == (f"{peak.before:,}", f"{peak.after:,}", f"{peak.change / peak.before:+.1%}")
        outcome = made().before
        found.append(Measured(case.when, outcome, outcome, comparison, comparison, True, 0.0, None))
    assert rows[0][5].strip() == verdict(found).text


def test_how_many_there_are():
    assert f"Run {len(TIPS)} popular memory-saving tips" in README
