"""What was compiled is kept while it is used, and goes when nobody has used it for a month."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from . import build

DAY = 86_400


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "_versions", lambda: ["of this test"])
    return tmp_path


def aged(path: Path, days: float) -> Path:
    """A folder or file that was used so long ago, and its lock."""
    if path.suffix == ".json":
        path.write_text("{}")
    else:
        path.mkdir()
        (path / "what is in it").touch()
    path.with_suffix(".lock").touch()
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def made(folder: Path) -> bool:
    """Whether it was filled now."""
    with build._made_once(folder) as new:
        if new:
            (new / "what is in it").touch()
    assert (folder / "what is in it").exists()
    return new is not None


def test_what_nobody_has_used_for_a_month_is_removed_when_another_is_made(root: Path):
    old, young, other = aged(root / "driver-a", 31), aged(root / "driver-b", 29), aged(root / "kernels-c", 31)
    half = aged(root / "driver-d.new", 31)  # of a process that was ended
    assert made(root / "driver-d")
    assert not old.exists()
    assert not old.with_suffix(".lock").exists()
    assert not half.exists()
    assert (root / "driver-d.lock").exists(), "it is held"
    assert all(path.exists() and path.with_suffix(".lock").exists() for path in (young, other))
    assert sorted(path.name for path in root.iterdir() if path.suffix != ".lock") == ["driver-b", "driver-d", "kernels-c"]


def test_what_is_used_stays(root: Path):
    used = aged(root / "driver-a", 31)
    assert not made(used)
    assert made(root / "driver-b")
    assert used.exists()
    assert not made(root / "driver-b")


def test_a_folder_that_could_not_be_filled_is_not_there(root: Path):
    with pytest.raises(ZeroDivisionError), build._made_once(root / "driver-a"):
        raise ZeroDivisionError
    assert [path.name for path in root.iterdir()] == ["driver-a.lock"]
    assert made(root / "driver-a")


def test_answers_are_kept_and_those_of_other_versions_grow_old(root: Path, monkeypatch: pytest.MonkeyPatch):
    with build.kept("reports") as answers:
        answers["a"] = 1
    (mine,) = root.glob("reports-*.json")
    os.utime(mine, (time.time() - 31 * DAY,) * 2)
    with build.kept("reports") as answers:
        assert answers == {"a": 1}
    monkeypatch.setattr(build, "_versions", lambda: ["newer"])
    os.utime(aged(root / "reports-of-others.json", 31))
    old = aged(root / "reports-old.json", 31)
    with build.kept("reports") as answers:
        assert answers == {}
        answers["b"] = 2
    assert not old.exists()
    assert not old.with_suffix(".lock").exists()
    assert len([*root.glob("reports-*.json")]) == 3, "what was used today is left"
