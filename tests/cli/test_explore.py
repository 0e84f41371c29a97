"""The explorer: what it answers is what ``estimate`` and ``memory.predict`` say, and the page follows each change."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.memory.test_page import chromium as chromium
from tinygrad_mem.cli import explore
from tinygrad_mem.cli.app import app
from tinygrad_mem.errors import ArgumentError
from tinygrad_mem.explore.server import application
from tinygrad_mem.explore.setting import StepSetting

flask = pytest.importorskip("flask")


@pytest.fixture(scope="module")
def made() -> Any:
    return application(explore._find, ["lenet", "resnet20"], list(explore.OPTIMIZERS), StepSetting(network="lenet"))


def asked(made: Any, **setting: object) -> dict[str, Any]:
    return made.test_client().get("/predict", query_string={"network": "lenet", **setting}).get_json()


@pytest.mark.parametrize(
    "setting",
    [
        {"batch_size": 64},
        {"batch_size": 64, "optimizer": "adamw8bit", "precision": "half", "accumulate": 4},
        {"network": "resnet20", "batch_size": 8, "recompute": "sqrt", "device": "cuda", "budget": "1 GiB"},
        {"network": "resnet20", "sample": "3x16x16", "precision": "autocast"},
        {"optimizer": "lomo"},
    ],
)
def test_it_answers_what_estimate_says(made: Any, setting: dict[str, object]):
    """By the command that the page itself shows."""
    found = asked(made, **setting)
    command = found["command"].replace("'1 GiB'", "1GiB").split()
    assert command[:3] == ["python", "-m", "tinygrad_mem"]
    ran = CliRunner().invoke(app, [*command[3:], "--json"])
    said = json.loads(ran.stdout)
    assert (found["peak"], found["by_category"]) == (said["peak_used"], said["by_category"])
    assert found["reserved"] == said["peak_reserved"]
    assert f"<b>{found['peak']:,}</b>" in found["timeline"]
    assert found["verdict"].startswith("fits") == ("budget" in setting)


def test_offload_takes_what_forward_saves_away(made: Any):
    plain, moved = (asked(made, network="resnet20", batch_size=64, offload=value) for value in ("false", "true"))
    assert moved["peak"] < 0.5 * plain["peak"]
    assert "save_on_cpu" in moved["code"]
    assert moved["command"].endswith("# without offload")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"network": "lenot"}, "lenet"),
        ({"optimizer": "magic"}, "there is no optimizer 'magic': there are sgd"),
        ({"precision": "float8"}, "precision is one of float32"),
        ({"batch_size": 0}, "a batch has 1 to 4096 samples"),
        ({"batch_size": "many"}, "batch_size is a whole number, found 'many'"),
        ({"batch_size": 6, "accumulate": 4}, "4 parts do not divide a batch of 6"),
        ({"depth": 3}, "there is no setting depth: there are network"),
        ({"budget": "much"}, "much"),
    ],
)
def test_what_cannot_be_is_said(made: Any, setting: dict[str, object], words: str):
    assert words in asked(made, **setting)["error"]


def test_an_unknown_network_is_found_before_the_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(explore, "serve", lambda *args: pytest.fail("it is served"))
    with pytest.raises(ArgumentError, match="lenot"):
        explore.run(network="lenot", sample=None, port=0, browser=False)


@pytest.fixture(scope="module")
def address(made: Any) -> Iterator[str]:
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, made, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()


def test_the_peak_follows_the_slider_and_the_address_keeps_both_settings(chromium: Any, address: str, made: Any):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    view = chromium.new_page()
    heard: list[str] = []
    view.on("request", lambda request: None if request.url.startswith((address, "data:")) else heard.append(request.url))
    view.on("console", lambda message: heard.append(message.text))
    view.on("pageerror", lambda error: heard.append(str(error)))
    view.goto(address)
    view.locator(f"#a .found b >> text={asked(made)['peak text']}").wait_for()
    view.locator("#a [name=batch_size]").fill("96")
    view.locator(f"#a .found b >> text={asked(made, batch_size=96)['peak text']}").wait_for()
    view.click("#second")
    view.select_option("#b [name=optimizer]", "adam")
    adam = asked(made, batch_size=96, optimizer="adam")["peak text"]
    view.locator(f"#b .found b >> text={adam}").wait_for()
    serious = [each["id"] for each in axe.Axe().run(view).response["violations"] if each["impact"] in ("serious", "critical")]
    assert serious == []
    kept = view.url
    again = chromium.new_page()
    again.goto(kept)
    again.locator(f"#b .found b >> text={adam}").wait_for()
    assert heard == []
