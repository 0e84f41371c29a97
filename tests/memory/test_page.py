"""The page: its numbers are the track's, it needs nothing but itself, and a reader can hover, sort and search in Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.profiles import pairs
from tinygrad_mem import memory, nn
from tinygrad_mem.memory.render import page as renderer
from tinygrad_mem.nn import functional as F

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def step(batch: int) -> memory.Track:
    with memory.track() as track:
        tm.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        F.cross_entropy(model(tm.randn(batch, 3, 16, 16)), tm.randint(0, 10, (batch,))).backward()
        optimizer.step()
    return track


def figures(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)
    assert found is not None
    return json.loads(found[1])


def test_the_figures_hold_the_tracks_numbers(tmp_path: Path):
    track = step(16)
    track.to_html(tmp_path / "page.html")
    drawn, line = figures(tmp_path / "page.html"), track.timeline()
    traces = {trace["name"]: trace for trace in drawn["run0-timeline"]["data"]}
    assert max(traces["in use"]["y"]) == track.peak
    for category in line.categories:
        assert traces[category.value]["y"] == line.bytes(category)[traces[category.value]["x"]].tolist()
    (bars,) = drawn["run0-lives"]["data"]
    blocks = list(track.blocks())
    assert sum(b.rounded for b in blocks if len(b.categories) == 1) <= sum(bars["width"])
    assert set(bars["width"]) <= {block.rounded for block in blocks}
    (tiles,) = drawn["run0-peak"]["data"]
    values = dict(zip(tiles["ids"], tiles["values"], strict=True))
    assert values[""] == track.peak
    for node in values:  # a tile is what lies in it
        inside = [values[i] for i, parent in zip(tiles["ids"], tiles["parents"], strict=True) if parent == node and i != node]
        assert not inside or sum(inside) == values[node]


def test_bars_do_not_overlap(tmp_path: Path):
    """Two blocks that live at one time have places of their own."""
    step(16).to_html(tmp_path / "page.html")
    (bars,) = figures(tmp_path / "page.html")["run0-lives"]["data"]
    boxes = [
        (x, x + w, y - h / 2, y + h / 2) for x, w, y, h in zip(bars["base"], bars["x"], bars["y"], bars["width"], strict=True)
    ]
    for i, (a, b, low, high) in enumerate(boxes):
        for c, d, other_low, other_high in boxes[:i]:
            assert b <= c or d <= a or high <= other_low or other_high <= low


def test_names_are_text_and_nothing_else(tmp_path: Path):
    evil = "</script><img src=x onerror=alert(1)>"
    with memory.track() as track:
        model = nn.Sequential()
        model.add_module(evil.replace(".", ""), nn.Linear(3, 3))
        model(tm.ones(2, 3))
    track.to_html(tmp_path / "page.html", titles=[evil])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in text.replace(renderer.asset("page.js"), "").split("<script>")[0]
    assert html.escape(evil) in text


def test_a_long_run_stays_a_small_page(tmp_path: Path):
    with memory.track() as track:
        kept = [tm.zeros(100 + i % 7) for i in range(2000)]
        for i in range(3000):
            tm.zeros(200 + (i == 1234) * 100_000)
    track.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"The 1,000 largest of {len(list(track.blocks())):,} blocks" in text
    assert len(track.live("peak")) > len(kept)
    rest = track.live("peak")[renderer.ROWS :]
    for category in {block.category for block in rest}:
        assert f"{sum(block.category is category for block in rest):,} smaller blocks" in text
    assert f'<b class="sum">{track.peak:,}</b>' in text
    assert len(json.dumps(figures(tmp_path / "page.html"))) < 1 << 20


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="nothing was allocated while the track 'cpu' was running"):
        memory.Track.of(memory.Log("cpu")).to_html(tmp_path / "none.html")
    with memory.track() as track:
        tm.zeros(3)
    with pytest.raises(ValueError, match="2 runs have 2 titles"):
        track.to_html(tmp_path / "none.html", track, titles=["one"])
    with pytest.raises(FileNotFoundError, match=r"no/page\.html'"):
        track.to_html(tmp_path / "no" / "page.html")
    (tmp_path / "page.html").write_text("what was there")
    monkeypatch.setattr(renderer, "asset", lambda name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        track.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "what was there"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs() -> tuple[memory.Track, memory.Track]:
    return step(16), step(8)


@pytest.fixture(scope="module")
def pages(runs: tuple, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs[0].to_html(folder / "one.html", titles=["one step"])
    runs[0].to_html(folder / "two.html", runs[1])
    return folder / "one.html", folder / "two.html"


def opened(chromium: Any, path: Path, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """The page, drawn, and the list that what goes wrong in it is written to."""
    view = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    wrong: list[str] = []
    view.on("pageerror", lambda error: wrong.append(str(error)))
    view.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else wrong.append(request.url)
    )
    view.goto(path.as_uri())
    view.wait_for_selector("#run0-peak .treemaplayer text", state="attached")
    return view, wrong


def test_hovering_over_the_peak_reads_its_bytes(chromium: Any, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    x, y = view.evaluate(
        """at => {
            const place = document.getElementById("run0-timeline");
            place.scrollIntoView();
            const box = place.querySelector(".nsewdrag").getBoundingClientRect();
            return [box.left + place._fullLayout.xaxis.l2p(at), box.top + box.height / 2];
        }""",
        runs[0].timeline().peak(),
    )
    view.mouse.move(x, y)
    view.mouse.move(x + 0.2, y)
    label = view.wait_for_selector("#run0-timeline .hoverlayer .legend").text_content()
    assert f"{runs[0].peak:,} B" in label
    for category, size in runs[0].by_category("peak").items():
        assert f"{category.value} : {size:,} B" in label
    assert wrong == []


def test_hovering_over_a_block_says_whose_it_is(chromium: Any, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    block = runs[0].live("peak")[0]
    x, y = view.evaluate(
        """bytes => {
            const place = document.getElementById("run0-lives");
            place.scrollIntoView();
            const [box, bars] = [place.querySelector(".nsewdrag").getBoundingClientRect(), place.data[0]];
            const i = bars.width.indexOf(bytes);
            const { xaxis, yaxis } = place._fullLayout;
            return [box.left + xaxis.l2p(bars.base[i] + bars.x[i] / 2), box.top + yaxis.l2p(bars.y[i])];
        }""",
        block.rounded,
    )
    view.mouse.move(x, y)
    view.mouse.move(x + 0.2, y)
    label = view.wait_for_selector("#run0-lives .hoverlayer text").text_content()
    assert f"{block.rounded:,} B" in label
    assert block.owner in label
    assert wrong == []


def test_sorting_and_searching(chromium: Any, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    blocks = runs[0].live("peak")

    def column(number: int) -> list[str]:
        return view.locator(f".run tbody tr:visible td:nth-child({number})").all_text_contents()

    assert column(1)[0] == f"{blocks[0].rounded:,}"
    view.click("thead button >> text=bytes")
    view.click("thead button >> text=bytes")
    assert column(1)[0] == f"{min(b.rounded for b in blocks):,}"
    view.click("thead button >> text=owner")
    assert column(4) == sorted(column(4), key=str.lower)
    view.fill(".filter input", "gradients")
    mine = [b for b in blocks if "gradients" in b.category.value]
    assert len(column(1)) == len(mine)
    assert view.text_content(".sum") == f"{sum(b.rounded for b in mine):,}"
    assert wrong == []


def test_searching_a_long_table_counts_what_is_not_shown_one_by_one(chromium: Any, tmp_path: Path):
    with memory.track() as track:
        layer = nn.Linear(400, 400)
        kept = [tm.zeros(10 + i % 200) for i in range(renderer.ROWS + 100)]
        halves = [layer.weight[i].clone() for i in range(100)]
    assert len(kept) + len(halves) > renderer.ROWS
    track.to_html(tmp_path / "page.html")
    view, wrong = opened(chromium, tmp_path / "page.html")
    for category, size in track.by_category("peak").items():
        view.fill(".filter input", category.value)
        assert view.text_content(".sum") == f"{size:,}"
    view.fill(".filter input", "clone")
    assert "found by what they are, not by name" in view.text_content(".shown")
    assert wrong == []


def test_a_peak_at_either_end_keeps_its_label(chromium: Any, tmp_path: Path):
    for name, sizes in (("late", [1000, 1 << 20]), ("early", [1 << 20, 1000])):
        with memory.track() as track:
            for size in sizes:
                x = tm.zeros(size)
            del x
        track.to_html(tmp_path / f"{name}.html")
        view, wrong = opened(chromium, tmp_path / f"{name}.html", 400)
        label, figure = (
            view.locator(f"#run0-timeline {part}").first.bounding_box() for part in (".annotation-text-g", ".main-svg")
        )
        assert figure["x"] <= label["x"]
        assert label["x"] + label["width"] <= figure["x"] + figure["width"]
        assert wrong == []


def test_a_tile_says_its_modules_name_as_text(chromium: Any, tmp_path: Path):
    with memory.track() as track:
        model = nn.Sequential()
        model.add_module("<b>bold</b>", nn.Linear(300, 300))
        model(tm.ones(1, 300))
    track.to_html(tmp_path / "page.html")
    view, wrong = opened(chromium, tmp_path / "page.html")
    view.hover("#run0-peak .treemaplayer .slice:has-text('weight') path")
    label = view.wait_for_selector("#run0-peak .hoverlayer text").text_content()
    assert "<b>bold</b>" in label
    assert wrong == []


@pytest.mark.parametrize(("number", "width", "scheme"), pairs([0, 1], [400, 1280], ["light", "dark"]))
def test_nothing_is_cut_off_or_asked_for(chromium: Any, pages: tuple, number: int, width: int, scheme: str):
    view, wrong = opened(chromium, pages[number], width, scheme)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert view.evaluate("[...document.querySelectorAll('.run .scroll')].every(box => box.scrollWidth <= box.clientWidth + 1)")
    assert view.locator(".run").count() == number + 1
    ground = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    ink = view.evaluate("getComputedStyle(document.querySelector('#run0-timeline .xtitle')).fill")
    assert ink == view.evaluate("getComputedStyle(document.body).color")
    assert wrong == []


def test_two_runs_share_a_scale_and_say_what_changed(chromium: Any, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[1])
    ranges = [view.evaluate(f"document.getElementById('run{i}-timeline')._fullLayout.yaxis.range") for i in range(2)]
    assert ranges[0] == ranges[1]
    found = runs[0].compare(runs[1])
    first = view.locator(".comparison tbody tr").first.text_content()
    assert f"{found.peak.before:,}" in first
    assert f"{found.peak.after:,}" in first
    assert f"{found.peak.change:+,}" in first
    assert wrong == []
