"""The pictures in ``docs``: how each is drawn, and whether two pictures show the same.

``python -m tests.pictures`` draws all of them anew. Tests draw each again and compare, so that none shows yesterday's bytes.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread
from typer.testing import CliRunner

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.cli.app import app
from tinygrad_mem.devices import Pool
from tinygrad_mem.models.resnet import resnet20
from tinygrad_mem.nn import functional as F

from .pytorch.faults import TooLarge

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
LESSONS = {
    "half_scaling.png": ("05_half_precision_loss_scaling.py", "05_loss_scaling.png"),
    "half_masters.png": ("06_half_precision_master_weights.py", "06_master_weights.png"),
}
"""Of pictures that a lesson draws: the lesson, and the name that it gives."""


def _command(*arguments: str) -> Callable[[Path], None]:
    def draw(path: Path) -> None:
        done = CliRunner().invoke(app, [*arguments, "--picture", str(path)])
        assert done.exit_code == 0, done.output

    return draw


def page_track() -> memory.Track:
    """Two training steps of ResNet-20, predicted: the same on every machine."""

    def steps() -> None:
        model = resnet20()
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(tm.randn(32, 3, 32, 32)), tm.randint(0, 10, (32,))).backward()
            optimizer.step()

    return memory.predict(steps)


def _page(path: Path) -> None:
    """The upper part of a track's page."""
    with tempfile.TemporaryDirectory() as folder:
        page_track().to_html(Path(folder) / "page.html", titles=["ResNet-20, batch 32"])
        _photograph(Path(folder) / "page.html", path, 1480)


def _snapshot(path: Path) -> None:
    """The upper part of a snapshot's page: a program that keeps its outputs until the card is full."""
    with tempfile.TemporaryDirectory() as folder:
        page, file = Path(folder) / "page.html", Path(folder) / "snapshot.pickle"
        TooLarge(capacity=170 << 20).run(100).write(file)
        done = CliRunner().invoke(app, ["snapshot", str(file), "--top", "3", "--html", str(page)])
        assert done.exit_code == 0, done.output
        _photograph(page, path, 1400)


def _photograph(page: Path, path: Path, height: int) -> None:
    """The upper part of a page, in Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        view = browser.new_page(viewport={"width": 1000, "height": height})
        view.goto(page.as_uri())
        view.wait_for_selector("#run0 .tile")
        view.screenshot(path=path)
        browser.close()


DRAWN: dict[str, Callable[[Path], None]] = {
    "step.png": _command("train", "--epochs", "1"),
    "tips.png": _command("tips", "--tip", "checkpoint"),
    "page.png": _page,
    "snapshot.png": _snapshot,
}
PHOTOGRAPHED = {"page.png", "snapshot.png"}
"""Those that need a browser."""


def differing(one: Path, other: Path, block: int = 10) -> float:
    """The share of squares of ``block`` dots that two pictures colour differently; 1 where their sizes differ.

    Squares, because another version of a library may draw a letter's edge half a dot further right: that is no other picture.
    """
    first, second = (imread(path)[..., :3].astype(np.float32) for path in (one, other))
    if first.shape != second.shape:
        return 1.0
    height, width = (size // block * block for size in first.shape[:2])
    shape = height // block, block, width // block, block, 3
    means = [picture[:height, :width].reshape(shape).mean((1, 3)) for picture in (first, second)]
    return float((np.abs(means[0] - means[1]).max(-1) > 0.1).mean())


def main() -> None:
    for name, draw in DRAWN.items():
        cpu: Any = tm.device("cpu")
        cpu.pool = Pool("cpu")
        draw(DOCS / name)
        print(name)
    sys.path.insert(0, str(ROOT / "tutorials"))
    for name, (lesson, picture) in LESSONS.items():
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TINYGRAD_MEM_PICTURES"] = folder
            runpy.run_path(str(ROOT / "tutorials" / lesson), run_name="__main__")
            shutil.copyfile(Path(folder) / picture, DOCS / name)
        print(name)


if __name__ == "__main__":
    main()
