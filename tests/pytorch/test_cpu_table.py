"""The page of PyTorch's memory on the CPU is the script's, and its facts are what the script finds."""

from __future__ import annotations

import pytest

from tests.pytorch import cpu_table
from tests.pytorch.cpu_table import PAGE, REASONS


def test_the_page_is_what_the_script_last_wrote():
    assert PAGE.read_text(encoding="utf-8") == cpu_table.page()


def test_each_difference_has_a_reason_and_all_are_small():
    for rows in cpu_table.read().values():
        both = {key: (row["real"], row["predicted"]) for key, row in rows.items() if isinstance(row["real"], int)}
        off = {key for key, (real, predicted) in both.items() if real != predicted}
        assert off <= {f"{name}: {way}" for name, way in REASONS}
        assert sum(abs(real - predicted) for real, predicted in both.values()) < 0.001 * sum(real for real, _ in both.values())


@pytest.mark.filterwarnings("ignore")
def test_numbers_come_from_processes_of_their_own(tmp_path, monkeypatch):
    """MLP: what PyTorch takes, what is predicted, and what MemTracker says, which is less by Adam's numbers of steps."""
    monkeypatch.setattr(cpu_table, "FACTS", tmp_path / "facts.json")
    cpu_table.measure([("MLP", "Adam")])
    (rows,) = cpu_table.read().values()
    row = rows["MLP: Adam"]
    assert row["real"] == row["predicted"]
    assert row["MemTracker"] <= row["real"]
