"""The pictures in ``docs`` are those that the commands draw today."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread, imsave

import tinygrad_mem as tm
from tinygrad_mem.devices import Pool

from . import pictures

SAME = 0.01  # of all squares: edges of letters
OTHER = 0.03


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_a_picture_shows_what_is_drawn_today(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in pictures.PHOTOGRAPHED:
        pytest.importorskip("playwright.sync_api")
        if pictures.CHROMIUM is None:
            pytest.skip("no Chromium on this machine")
    monkeypatch.setattr(tm.device("cpu"), "pool", Pool("cpu"))  # what other tests keep is in no picture
    pictures.DRAWN[name](tmp_path / name)
    share = pictures.differing(pictures.DOCS / name, tmp_path / name)
    assert share < SAME, f"docs/{name} is an old one ({share:.1%} differ): python -m tests.pictures draws it anew"


def test_every_picture_is_drawn_by_something_and_shown_somewhere() -> None:
    """The lessons' are compared where the lessons are run."""
    there = {path.name for path in pictures.DOCS.glob("*.png")}
    assert there == {*pictures.DRAWN, *pictures.LESSONS}
    shown = {name for page in pictures.ROOT.glob("**/*.md") for name in re.findall(r"docs/(\w+\.png)", page.read_text())}
    assert shown == there


def test_another_picture_is_another(tmp_path: Path) -> None:
    """A curve that is a tenth lower, or a row that is missing, is seen; a letter that is half a dot further is not."""
    picture = imread(pictures.DOCS / "step.png")
    lower = np.roll(picture, 66, axis=0)
    imsave(tmp_path / "lower.png", lower)
    assert pictures.differing(pictures.DOCS / "step.png", tmp_path / "lower.png") > OTHER
    shifted = (picture + np.roll(picture, 1, axis=1)) / 2
    imsave(tmp_path / "shifted.png", shifted)
    assert pictures.differing(pictures.DOCS / "step.png", tmp_path / "shifted.png") < SAME
    imsave(tmp_path / "smaller.png", picture[:-10])
    assert pictures.differing(pictures.DOCS / "step.png", tmp_path / "smaller.png") == 1
