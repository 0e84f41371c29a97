"""The explorer of the site: its files hold what ``memory.predict`` says, and it needs neither Python nor a server."""

from __future__ import annotations

import base64
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.browser import Tab, serious
from tests.browser import chromium as chromium
from tests.cli.test_explore import reads
from tests.profiles import some
from tinygrad_mem import memory
from tinygrad_mem.models.resnet import resnet20
from tinygrad_mem.nn import functional as F
from tinygrad_mem.recompute import checkpoint_blocks
from tinygrad_mem.techniques import save_on_cpu

ROOT = Path(__file__).parents[2]
SMALL = {
    "batch_size": (4, 8, 32),
    "optimizer": ("momentum", "adamw"),
    "precision": ("float32",),
    "recompute": ("none", "every-block"),
    "accumulate": (1,),
    "offload": (False, True),
    "device": ("cuda",),
}
NETWORKS = ("resnet20", "bert-tiny")


@pytest.fixture(scope="module")
def explorer() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        import explorer

        yield explorer
    finally:
        sys.path.remove(str(ROOT / "docs" / "site"))


@pytest.fixture(scope="module")
def made(explorer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    explorer.write(folder, NETWORKS, SMALL, workers=0)
    return folder


@pytest.fixture(scope="module")
def answers(explorer: Any, made: Path) -> dict[Any, dict[str, Any]]:
    """All answers of ResNet-20, by batch, optimizer, recompute and offload."""
    name, text = (made / "explorer" / "resnet20.js").read_text().split('"')[1::2]
    assert name == "resnet20"
    found = json.loads(zlib.decompress(base64.b64decode(text)))
    asked = list(explorer.settings("resnet20", SMALL))
    keys = [(each.batch_size, each.optimizer, each.recompute, each.offload) for each in asked]
    return dict(zip(keys, found, strict=True))


def by_hand(batch: int, optimizer: str, recompute: str, offload: bool) -> memory.Track:
    """Two training steps, written out."""

    def steps() -> None:
        model: Any = resnet20()
        if recompute != "none":
            checkpoint_blocks(model, recompute)
        parameters = model.parameters()
        update = tm.optim.AdamW(parameters) if optimizer == "adamw" else tm.optim.SGD(parameters, lr=0.1, momentum=0.9)
        for _ in range(2):
            update.zero_grad()
            x = tm.randn(batch, 3, 32, 32)
            if offload:
                with save_on_cpu(pin_memory=True):
                    output = model(x)
            else:
                output = model(x)
            loss = F.cross_entropy(output, tm.randint(0, 10, (batch,)))
            del x, output
            loss.backward()
            del loss
            update.step()

    return memory.predict(steps, like="cuda")


@pytest.mark.parametrize(
    "setting", [(4, "momentum", "none", False), (8, "adamw", "none", True), (32, "momentum", "every-block", False)]
)
def test_a_files_answer_is_a_prediction(answers: dict[Any, dict[str, Any]], setting: Any):
    track, found = by_hand(*setting), answers[setting]
    held = track.by_category()
    assert (found["peak"], found["reserved"]) == (track.peak, track.pool("end").reserved)
    assert found["by_category"] == {each.value: held.get(each, 0) for each in track.timeline().categories}
    assert found["phase"] == track.at_peak().phase


def test_each_setting_has_an_answer_of_its_own(answers: dict[Any, dict[str, Any]]):
    assert len(answers) == 24
    assert len({each["peak"] for each in answers.values()}) > 20
    commands = {each["command"] for each in answers.values()}
    assert len(commands) == 24
    assert all(" --device cuda" in each for each in commands)


def test_files_that_are_too_large_end_the_build(explorer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(explorer, "LIMIT", 20_000)
    with pytest.raises(
        ValueError, match=r"the explorer's files have \d\d,\d{3} bytes, more than 20,000: choose a smaller grid"
    ):
        explorer.write(tmp_path, ["bert-tiny"], {**SMALL, "batch_size": (1,), "optimizer": ("adamw",)}, workers=0)


@pytest.mark.parametrize("network", ["resnet20", "resnet50", "vgg16", "bert-base", "gpt2", "llama-3.2-1b"])
def test_the_sites_own_grid_has_answers(explorer: Any, network: str):
    """Of each network the first setting; in a thorough run, twelve. The build itself makes all, and measures their files."""
    assert network in explorer.NETWORKS
    assert len(explorer.NETWORKS) == 6
    every = list(explorer.settings(network, explorer.GRID))
    for setting in some(every[:: len(every) // 12], [every[0]]):
        assert explorer._predicted(setting)["command"].startswith(f"python -m tinygrad_mem estimate {network}")


def test_the_page_moves_without_a_server(chromium: Tab, made: Path, answers: dict[Any, dict[str, Any]]):
    address = (made / "explorer.html").as_uri()
    view, heard = chromium.opened(address, made.as_uri())
    reads(view, "#a", answers[8, "momentum", "none", False])
    view.locator("#a [name=batch_size]").focus()
    view.keyboard.press("ArrowRight")
    assert view.text_content("#a output") == "32"
    assert view.get_attribute("#a [name=batch_size]", "aria-valuetext") == "32"
    reads(view, "#a", moved := answers[32, "momentum", "none", False])
    assert moved["peak"] == by_hand(32, "momentum", "none", False).peak
    view.click("#second")
    view.select_option("#b [name=recompute]", "every-block")
    view.check("#b [name=offload]")
    reads(view, "#b", answers[32, "momentum", "every-block", True])
    assert serious(view) == []
    assert view.locator("head script").count() == 1, "the file of one network"
    again, wrong = chromium.opened(view.url, made.as_uri())
    reads(again, "#a", moved)
    reads(again, "#b", answers[32, "momentum", "every-block", True])
    assert heard == wrong == []


def test_what_has_no_answer_is_not_there(chromium: Tab, made: Path, answers: dict[Any, dict[str, Any]]):
    """A control of one value, and what an address of the other page asks for."""
    asked = "a=network=vgg16&batch_size=96&optimizer=adamw&sample=3x9x9&recompute=none&device=cpu"
    view, heard = chromium.opened(f"{(made / 'explorer.html').as_uri()}#{asked}", made.as_uri())
    reads(view, "#a", answers[8, "adamw", "none", False])
    assert view.text_content("#a .refused") == "Not offered here: network vgg16, batch_size 96, sample 3x9x9, device cpu."
    names = view.evaluate("[...document.querySelector('#a form').elements].map(each => each.name).filter(Boolean)")
    assert names == ["network", "batch_size", "optimizer", "recompute", "offload", "budget"]
    assert view.locator("#a [name=network] option").all_text_contents() == list(NETWORKS)
    (made / "explorer" / "bert-tiny.js").rename(made / "away")
    heard.clear()
    view.select_option("#a [name=network]", "bert-tiny")
    view.locator("#a .found .bad >> text=The file of predictions explorer/bert-tiny.js cannot be loaded").wait_for()
    (made / "away").rename(made / "explorer" / "bert-tiny.js")


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark"), (1920, "light")])
def test_nothing_is_cut_off(chromium: Tab, made: Path, width: int, scheme: str):
    view, heard = chromium.opened((made / "explorer.html").as_uri(), made.as_uri(), width, scheme)
    view.locator("#a .found b").wait_for()
    view.click("#second")
    view.select_option("#b [name=network]", "bert-tiny")
    view.locator("#b pre >> text=bert-tiny").wait_for()
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    if width != 1920:  # what is found depends on the colours, which no width changes
        assert serious(view) == []
    assert heard == []
