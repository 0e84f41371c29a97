"""The explorer: what it answers is what ``estimate`` and ``memory.predict`` say, and the page follows each change."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tinygrad_mem as tm
from tests.browser import Tab, serious
from tests.browser import chromium as chromium
from tinygrad_mem import memory
from tinygrad_mem.cli import explore
from tinygrad_mem.cli.app import app
from tinygrad_mem.errors import ArgumentError
from tinygrad_mem.explore.answer import FULL, POINTS, answer
from tinygrad_mem.explore.server import application
from tinygrad_mem.explore.setting import StepSetting
from tinygrad_mem.memory.sizes import bytes_text, parse_bytes
from tinygrad_mem.nn import functional as F

flask = pytest.importorskip("flask")
SETTINGS = [
    {"batch_size": 64},
    {"batch_size": 64, "optimizer": "adamw8bit", "precision": "half", "accumulate": 4},
    {"network": "resnet20", "batch_size": 8, "recompute": "sqrt", "device": "cuda"},
    {"network": "resnet20", "sample": "3x16x16", "precision": "autocast"},
    {"network": "bert-tiny", "batch_size": 2, "tokens": "64", "precision": "bfloat16", "recompute": "every-block"},
    {"optimizer": "lomo"},
]


@pytest.fixture(scope="module")
def made() -> Any:
    networks = ["lenet", "resnet20", "bert-tiny"]
    return application(explore.find, networks, list(explore.OPTIMIZERS), StepSetting(network="lenet"))


def asked(made: Any, **setting: object) -> dict[str, Any]:
    return made.test_client().get("/predict", query_string={"network": "lenet", **setting}).get_json()


def peak_text(answer: dict[str, Any]) -> str:
    return f"{answer['peak']:,} bytes, {bytes_text(answer['peak'])}"


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_answers_what_estimate_says(made: Any, setting: dict[str, object]):
    """By the command that the page itself shows."""
    found = asked(made, **setting)
    command = shlex.split(found["command"])
    assert command[:3] == ["python", "-m", "tinygrad_mem"]
    ran = CliRunner().invoke(app, [*command[3:], "--json"])
    said = json.loads(ran.stdout)
    assert (found["peak"], found["reserved"], found["phase"]) == (said["peak_used"], said["peak_reserved"], said["phase"])
    assert {name: size for name, size in found["by_category"].items() if size} == said["by_category"]


@pytest.mark.parametrize("setting", [*SETTINGS, {"network": "resnet20", "precision": "autocast", "offload": "true"}])
def test_the_lines_of_code_take_the_peak_that_is_shown(made: Any, setting: dict[str, Any]):
    """The lines around a plain training step, run on ``meta``."""
    found, size, parts = asked(made, **setting), setting.get("batch_size", 32), setting.get("accumulate", 1)
    network, _, _ = explore.find(StepSetting(**{"network": "lenet", **setting}))
    lines = found["code"].splitlines()
    regions = {line.rpartition(": ")[2]: line[5:].rpartition(": ")[0] for line in lines if line.startswith("with ")}
    before = [line for line in lines if not line.startswith(("with ", "loss = ", "scaler.s"))]
    backward = [line for line in lines if line.startswith(("loss = ", "scaler.scale"))]
    after = [line for line in lines if line.startswith("scaler.step")]

    def region(name: str) -> Any:
        return eval(regions[name], {"tm": tm}) if name in regions else nullcontext()

    def steps() -> None:
        names: dict[str, Any] = {"tm": tm, "model": network.make()}
        exec("\n".join(before), names)
        model = names["model"]
        dtype = next(model.parameters()).dtype
        for _ in range(2):
            names["optimizer"].zero_grad()
            for _ in range(parts):
                with region("loss = ..."):
                    inputs = network.batch(size // parts, dtype)
                    with region("output = model(inputs)"):
                        output = model(inputs)
                    names["loss"] = network.loss(output.float() if "output.float()" in found["code"] else output)
                    del inputs, output
                exec("\n".join(backward), names)
                if not any("backward" in line for line in backward):
                    names["loss"].backward()
                del names["loss"]
            exec("\n".join(after or ["" if "in_backward" in found["code"] else "optimizer.step()"]), names)

    assert memory.predict(steps, like=str(setting.get("device", "cpu"))).peak == found["peak"]


@pytest.mark.parametrize("setting", [{"batch_size": 16}, {"network": "resnet20", "batch_size": 4, "optimizer": "adam"}])
def test_the_timeline_is_the_tracks(made: Any, setting: dict[str, Any]):
    """Two training steps written out: bytes equal, and heights as near as they are drawn."""
    network, rule, _ = explore.find(StepSetting(**{"network": "lenet", **setting}))

    def steps() -> None:
        model = network.make()
        optimizer = rule(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(network.batch(setting["batch_size"])), tm.randint(0, 10, (setting["batch_size"],))).backward()
            optimizer.step()

    track, found = memory.predict(steps), asked(made, **setting)
    assert found["peak"] == track.peak
    assert found["by_category"] == {each.value: track.by_category().get(each, 0) for each in track.timeline().categories}
    stacks = [sum(column) for column in zip(*found["heights"], strict=True)]
    assert len(found["at"]) == len(stacks) <= POINTS + 1
    assert abs(max(stacks) - FULL) <= len(found["by_category"]) / 2
    assert min(stacks) == 0
    assert found["at"] == sorted(found["at"])
    assert abs(sum(share for _, share in found["phases"]) - 1) < 0.001


def test_offload_takes_what_forward_saves_away(made: Any):
    plain, moved = (asked(made, network="resnet20", batch_size=64, offload=value) for value in ("false", "true"))
    assert moved["peak"] < 0.5 * plain["peak"]
    assert "save_on_cpu" in moved["code"]
    assert moved["command"].endswith("# without offload")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"network": "lenot"}, "lenot is not offered here: python -m tinygrad_mem explore lenot"),
        ({"network": "vgg16"}, "vgg16 is not offered here"),
        ({"optimizer": "magic"}, "there is no optimizer 'magic': there are sgd"),
        ({"precision": "float8"}, "precision is one of float32"),
        ({"batch_size": 0}, "batch_size must be 1 to 4096, and accumulate 1 to batch_size; found 0"),
        ({"batch_size": "many"}, "batch_size is a whole number, found 'many'"),
        ({"batch_size": 6, "accumulate": 4}, "4 parts do not divide a batch of 6"),
        ({"optimizer": "lomo", "accumulate": 4}, "--optimizer lomo updates each parameter in backward"),
        ({"depth": 3}, "there is no setting depth: there are network"),
        ({"recompute": "sqrt"}, "LeNet has no chain of blocks"),
        ({"sample": "1x2x2"}, "kernel"),
        ({"network": "bert-tiny", "sample": "64"}, "--tokens sets the length of a sample"),
    ],
)
def test_what_cannot_be_is_said(made: Any, setting: dict[str, object], words: str):
    assert words in asked(made, **setting)["error"]


def test_an_unknown_network_is_found_before_the_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(explore, "serve", lambda *args: pytest.fail("it is served"))
    with pytest.raises(ArgumentError, match="lenot"):
        explore.run(network="lenot", sample=None, tokens=None, port=0, browser=False)


OWN = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layer = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)
    def forward(self, x):
        return self.layer(self.embed(x))
"""


@pytest.mark.parametrize("kind", ["torch", "tinygrad_mem"])
def test_a_readers_own_network_is_explored(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One of tokens, whose command is ``estimate``'s, but where PyTorch's bytes are others."""
    file = tmp_path / "own file.py"
    file.write_text(OWN.replace("torch", kind))
    served: list[Any] = []
    monkeypatch.setattr(explore, "serve", lambda made, *args: served.append(made))
    network = f"{file}:Net"
    explore.run(network=network, sample=None, tokens="50x16", port=0, browser=False)
    found = asked(served[0], network=network, tokens="50x16", batch_size=4)
    assert found["peak"] == answer(*(s := StepSetting(network, 4, tokens="50x16"),), *explore.find(s))["peak"]
    assert found["by_category"]["parameters"] == sum(-(-4 * n // 512) * 512 for n in (50 * 8, 50 * 8, 50))
    assert found["command"].startswith(
        "# The network was converted" if kind == "torch" else "python -m tinygrad_mem estimate '"
    )
    page = served[0].test_client().get("/").text
    assert f"<option>{network}</option>" in page
    assert 'name="tokens"' in page


@pytest.fixture(scope="module")
def address(made: Any) -> Iterator[str]:
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, made, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()


def reads(view: Any, section: str, answer: dict[str, Any]) -> None:
    """Wait until the section shows the answer: its peak, its categories and its lines."""
    view.locator(f"{section} .found .peak b >> text={peak_text(answer)}").wait_for()
    for name, size in answer["by_category"].items():
        row = view.locator(f"{section} tbody tr", has=view.get_by_role("rowheader", name=name, exact=True))
        assert row.locator("td").first.text_content() == f"{size:,}"
    assert view.locator(f"{section} pre").all_text_contents() == [answer["command"], answer["code"]]


def test_the_peak_follows_the_slider_and_the_address_keeps_both_settings(chromium: Tab, address: str, made: Any):
    view, heard = chromium.opened(address, address)
    reads(view, "#a", asked(made))
    view.locator("#a [name=batch_size]").fill("96")
    reads(view, "#a", asked(made, batch_size=96))
    view.click("#second")
    view.select_option("#b [name=optimizer]", "adam")
    plain, adam = asked(made, batch_size=96), asked(made, batch_size=96, optimizer="adam")
    reads(view, "#b", adam)
    more = adam["peak"] - plain["peak"]
    assert (
        view.text_content("#b .compared")
        == f"{100 * adam['peak'] / plain['peak']:.1f}% of the other setting: {more:,} bytes more."
    )
    assert serious(view) == []
    again, wrong = chromium.opened(view.url, address)
    reads(again, "#a", plain)
    reads(again, "#b", adam)
    again.click("#second")
    assert again.locator("#b").count() == 0
    assert "b=" not in again.url
    assert heard == wrong == []


def test_a_slider_that_moves_on_is_not_asked_for_each_place(chromium: Tab, address: str, made: Any):
    view, heard = chromium.opened(address, address)
    reads(view, "#a", asked(made))
    questions: list[str] = []
    view.on("request", lambda request: questions.append(request.url))
    slider = 'document.querySelector("#a [name=batch_size]")'
    view.evaluate(f"""() => {{
        for (let place = 33; place <= 132; place++) {{
            {slider}.value = place;
            {slider}.dispatchEvent(new Event("input", {{ bubbles: true }}));
        }}
    }}""")
    reads(view, "#a", asked(made, batch_size=132))
    assert len(questions) == 2, "the first place and the last"
    assert heard == []


def test_a_server_that_has_ended_is_said(chromium: Tab, address: str, made: Any):
    view, _ = chromium.opened(address, address)
    reads(view, "#a", asked(made))
    view.route("**/predict*", lambda route: route.abort())
    view.select_option("#a [name=optimizer]", "adam")
    view.locator("#a .found .bad >> text=The program that this page asks has ended. Start it again.").wait_for()
    view.unroute("**/predict*")
    view.select_option("#a [name=optimizer]", "sgd")
    reads(view, "#a", asked(made, optimizer="sgd"))


def test_a_budget_has_a_verdict_and_an_error_is_read(chromium: Tab, address: str, made: Any):
    view, heard = chromium.opened(f"{address}#a=network=lenet&batch_size=2000&length=3", address)
    assert "batch_size 2000, length 3" in view.text_content("#a .refused")
    reads(view, "#a", found := asked(made))
    view.fill("#a [name=budget]", "1 MiB")
    assert view.text_content("#a .verdict") == f"Does not fit: {bytes_text(found['peak'] - (1 << 20))} more than 1.00 MiB."
    assert view.locator("#a pre").first.text_content() == f'{found["command"]} --budget "1 MiB"'
    view.fill("#a [name=budget]", "1 GB")
    assert view.text_content("#a .verdict") == f"Fits: {bytes_text(10**9 - found['peak'])} of {bytes_text(10**9)} are left."
    room = (found["peak"] + found["reserved"]) // 2
    view.fill("#a [name=budget]", str(room))
    assert view.text_content("#a .verdict").startswith(f"May not fit: {bytes_text(room - found['peak'])} are left at the peak")
    view.fill("#a [name=budget]", "much")
    assert "much is not a size" in view.text_content("#a .verdict")
    view.select_option("#a [name=recompute]", "sqrt")
    view.locator("#a .found .bad >> text=LeNet has no chain of blocks").wait_for()
    assert heard == []


def test_the_page_reads_and_writes_sizes_as_the_library_does(chromium: Tab, address: str):
    view, _ = chromium.opened(address, address)
    for count in (0, 1023, 1024, 1179648, 1048575, 1234567, 1 << 40, (1 << 40) - 1, 1073736000):
        assert view.evaluate("count => sized(count)", count) == bytes_text(count)
    for text in ("8 GiB", "512MiB", " 2 GB", "1.001 KB", "1.1gb", "4096", "0.3 TiB"):
        assert view.evaluate("text => bytesOf(text)", text) == parse_bytes(text)
    for text in ("much", "0", "1 Gb b", "-1 GiB", "1 toString", ".5 GiB"):
        with pytest.raises(ValueError, match="size"):
            parse_bytes(text)
        assert view.evaluate("text => Number.isNaN(bytesOf(text))", text)


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light"), (1920, "dark")])
def test_nothing_is_cut_off(chromium: Tab, address: str, width: int, scheme: str):
    view, heard = chromium.opened(address, address, width, scheme)
    view.locator("#a .found b").wait_for()
    view.click("#second")
    view.select_option("#b [name=precision]", "half")
    view.locator("#b pre >> text=grad_dtype").wait_for()
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    inside = "[...document.querySelectorAll('.found *, label *')].filter(each => !each.matches('.narrow, input, select'))"
    cut = f"{inside}.filter(each => each.clientWidth && each.scrollWidth > each.clientWidth + 1).map(each => each.outerHTML)"
    assert view.evaluate(cut) == []
    assert serious(view) == []
    assert heard == []
