"""The page: its numbers are the track's, it needs nothing but itself, and a reader can hover, sort and search in Chromium."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.browser import Tab, serious
from tests.browser import chromium as chromium
from tests.pictures import page_track
from tests.profiles import pairs
from tinygrad_mem import memory, nn
from tinygrad_mem.memory.render import page as renderer
from tinygrad_mem.memory.render.figures import _places
from tinygrad_mem.memory.render.palette import COLOURS, name_of
from tinygrad_mem.memory.sizes import bytes_text
from tinygrad_mem.nn import functional as F


def step(batch: int) -> memory.Track:
    with memory.track() as track:
        tm.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        F.cross_entropy(model(tm.randn(batch, 3, 16, 16)), tm.randint(0, 10, (batch,))).backward()
        optimizer.step()
    return track


def figures(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/octet-stream" id="figures">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def test_the_figures_hold_the_tracks_numbers(tmp_path: Path):
    track = step(16)
    track.to_html(tmp_path / "page.html")
    found, line = figures(tmp_path / "page.html"), track.timeline()
    (run,) = found["runs"]
    drawn = run["timeline"]
    assert max(drawn["used"]) == track.peak == drawn["used"][drawn["at"].index(drawn["peak"])]
    assert drawn["bytes"] == {each.value: line.bytes(each)[drawn["at"]].tolist() for each in line.categories}
    assert [sum(column) for column in zip(*drawn["bytes"].values(), strict=True)] == drawn["used"]
    bars, blocks = run["lives"], list(track.blocks())
    assert sum(b.rounded for b in blocks if len(b.categories) == 1) <= sum(bars["bytes"])
    assert set(bars["bytes"]) <= {block.rounded for block in blocks}
    at_peak = {each.value: size for each, size in track.by_category("peak").items()}
    for category, size in at_peak.items():
        assert sum(bytes_ for *_, kind, bytes_ in run["peak"] if kind == category) == size
    assert set(found["colours"]) >= {category for *_, category, _ in run["peak"]} == set(at_peak)


def test_bars_do_not_overlap(tmp_path: Path):
    """Two blocks that live at one time have places of their own."""
    step(16).to_html(tmp_path / "page.html")
    bars = figures(tmp_path / "page.html")["runs"][0]["lives"]
    columns = (bars[name] for name in ("start", "stop", "low", "bytes"))
    boxes = [(start, stop, low, low + size) for start, stop, low, size in zip(*columns, strict=True)]
    for i, (a, b, low, high) in enumerate(boxes):
        for c, d, other_low, other_high in boxes[:i]:
            assert b <= c or d <= a or high <= other_low or other_high <= low


def test_bars_are_as_low_as_they_can_be():
    """First fit: the place begins at 0 or where another bar ends, and nothing lower is free all the block's life."""
    rng = np.random.default_rng(0)
    born = np.sort(rng.choice(1000, 60, replace=False))
    lives = [
        (int(b), None if n % 7 == 0 else int(b + rng.integers(1, 300)), int(rng.integers(1, 9))) for n, b in enumerate(born)
    ]
    found = [SimpleNamespace(born=b, died=d, rounded=size) for b, d, size in lives]
    placed: list[tuple[int, int, float]] = []
    for (b, d, size), place in zip(lives, _places(found), strict=True):  # type: ignore[arg-type]
        taken = {byte for low, high, end in placed if end > b for byte in range(low, high)}
        assert place == next(low for low in range(1000) if taken.isdisjoint(range(low, low + size)))
        placed.append((place, place + size, np.inf if d is None else d))


def test_a_page_is_named_after_its_run(tmp_path: Path):
    step(16).to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>Sequential: forward, backward, optimizer on cpu</title>" in text
    with memory.track() as track:
        kept = tm.zeros(3)
    del kept
    assert name_of(track) == "A run on cpu"
    with memory.track() as track, tm.no_grad():
        for each in (type(name, (nn.ReLU,), {}) for name in "ABCDE"):
            each()(tm.ones(3))
    assert name_of(track) == "A, B, C and 2 more: forward on cpu"


def test_a_page_of_resnet_20_is_small(tmp_path: Path):
    page_track().to_html(tmp_path / "page.html")
    assert 100_000 < (tmp_path / "page.html").stat().st_size < 200_000


def test_names_are_text_and_nothing_else(tmp_path: Path):
    evil = "</script><img src=x onerror=alert(1)>"
    with memory.track() as track:
        model = nn.Sequential()
        model.add_module(evil.replace(".", ""), nn.Linear(3, 3))
        model(tm.ones(2, 3))
    track.to_html(tmp_path / "page.html", titles=[evil])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in text
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
    with pytest.raises(ValueError, match="nothing was allocated while the track 'A run on cpu' was running"):
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
def runs() -> tuple[memory.Track, memory.Track]:
    return step(16), step(8)


@pytest.fixture(scope="module")
def pages(runs: tuple, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs[0].to_html(folder / "one.html", titles=["one step"])
    runs[0].to_html(folder / "two.html", runs[1])
    return folder / "one.html", folder / "two.html"


def opened(chromium: Tab, path: Path, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """The page, drawn, and the list that what goes wrong in it is written to."""
    view, wrong = chromium.opened(path.as_uri(), width=width, scheme=scheme)
    view.wait_for_selector("#run0 .tile")
    return view, wrong


def over(view: Any, moment: float) -> str:
    """What the timeline says of that moment when the mouse is over it."""
    box = view.locator("#run0 .timeline > svg").bounding_box()
    view.mouse.move(box["x"] + place(view, moment), box["y"] + box["height"] / 2)
    return view.locator("#run0 .timeline .tip").inner_text()


def place(view: Any, moment: float) -> float:
    """Pixels from the left edge of the timeline to a moment, by the numbers on its axis."""
    first, last = view.evaluate(
        """[...document.querySelectorAll('#run0 .timeline > svg > .grid + text.middle')]
            .map(each => [Number(each.textContent.replaceAll(',', '')), Number(each.getAttribute('x'))])
            .filter((_, i, all) => i === 0 || i === all.length - 1)"""
    )
    return first[1] + (moment - first[0]) / (last[0] - first[0]) * (last[1] - first[1])


def test_hovering_over_the_peak_reads_its_bytes(chromium: Tab, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    assert view.title() == view.locator("h1").inner_text() == "one step"
    lines = over(view, runs[0].timeline().peak()).splitlines()
    assert lines[0] == f"{runs[0].peak:,} B in use"
    sizes = runs[0].by_category("peak")
    assert set(lines[1:-1]) == {f"{category.value}: {size:,} B" for category, size in sizes.items()}
    assert view.locator("#run0 .timeline .label").text_content() == f"peak {bytes_text(runs[0].peak)}"
    view.mouse.move(0, 0)
    assert view.locator("#run0 .tip:visible").count() == 0
    assert wrong == []


def test_hovering_over_a_block_says_whose_it_is(chromium: Tab, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    block = runs[0].live("peak")[0]
    bar = figures(pages[0])["runs"][0]["lives"]["bytes"].index(block.rounded)
    view.locator(f"#run0 .lives [data-bar='{bar}']").hover()
    label = view.locator("#run0 .lives .tip").inner_text()
    assert f"{block.rounded:,} B, " in label
    assert block.owner in label
    assert block.line in label
    assert wrong == []


def test_a_stretch_is_enlarged_and_left_again(chromium: Tab, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    moments = len(runs[0].timeline())

    def seen() -> list[int]:
        """The first and the last number below each of the figures."""
        texts = view.locator("#run0 > :is(.timeline, .lives) > svg > .grid + text.middle").all_text_contents()
        half = len(texts) // 2
        assert texts[:half] == texts[half:]
        return [int(texts[0].replace(",", "")), int(texts[-1].replace(",", ""))]

    whole = seen()
    box = view.locator("#run0 .timeline > svg").bounding_box()
    middle = box["y"] + box["height"] / 2
    view.mouse.move(box["x"] + place(view, moments / 2), middle)
    view.mouse.down()
    view.mouse.move(box["x"] + place(view, moments - 2), middle)
    view.mouse.up()
    enlarged = seen()
    assert moments / 2 - 1 <= enlarged[0] < enlarged[1] <= moments - 1
    moment = enlarged[1]
    assert over(view, moment).startswith(f"{runs[0].timeline()[moment].used:,} B in use")
    for way, ends in (("Earlier", False), ("Zoom out", False), ("Zoom in", False), ("All", True)):
        view.get_by_role("button", name=way).click()
        assert (seen() == whole) is ends
    lives = view.locator("#run0 .lives > svg").bounding_box()
    view.mouse.move(lives["x"] + place(view, moments / 2), lives["y"] + 60)
    view.mouse.down()
    view.mouse.move(lives["x"] + place(view, moments - 2), lives["y"] + 200)
    view.mouse.up()
    assert seen() != whole
    view.mouse.dblclick(lives["x"] + 300, lives["y"] + 100)
    assert seen() == whole
    assert wrong == []


def test_the_legend_hides_a_category(chromium: Tab, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    colour = COLOURS[memory.Category.GRADIENT]
    drawn = view.locator(f"#run0 [fill='{colour}']")
    count = drawn.count()
    assert count > 1
    legend = view.get_by_role("button", name="gradients")
    legend.click()
    assert drawn.count() == 0
    assert legend.get_attribute("aria-pressed") == "false"
    legend.click()
    assert drawn.count() == count
    assert wrong == []


def test_a_click_enters_a_module_and_its_name_leads_back(chromium: Tab, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    sizes = runs[0].by_module("peak")
    inside = sum(size for name, size in sizes.items() if name.startswith("Sequential"))
    assert view.locator("#run0 .path").inner_text() == f"peak: {runs[0].peak:,} B"
    view.locator("#run0").get_by_role("button", name=f"Sequential: {inside:,} bytes").click(position={"x": 5, "y": 5})
    assert view.locator("#run0 .path button").all_text_contents()[1] == f"Sequential: {inside:,} B"
    view.get_by_role("button", name=f"Sequential.3: {sizes['Sequential.3']:,} bytes").press("Enter")
    assert view.locator("#run0 .path button").count() == 3
    view.locator("#run0 .path button").first.click()
    assert view.locator("#run0 .path button").count() == 1
    assert wrong == []


def test_tiles_fill_the_area_by_their_bytes(chromium: Tab, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[0])
    sizes, box = [90, 40, 40, 20, 5, 5], [10, 20, 400, 100]
    boxes = view.evaluate("([sizes, box]) => squarified(sizes, box)", [sizes, box])
    for size, (left, top, width, height) in zip(sizes, boxes, strict=True):
        assert width * height == pytest.approx(size / sum(sizes) * 400 * 100)
        assert 10 - 1e-9 <= left <= left + width <= 410 + 1e-9
        assert 20 - 1e-9 <= top <= top + height <= 120 + 1e-9
        assert max(width / height, height / width) < 3
    assert wrong == []


def test_sizes_are_those_of_the_tables(chromium: Tab, pages: tuple):
    view, _ = opened(chromium, pages[0])
    sizes = [0, 1, 1023, 1024, 1536, 1048570, 1 << 20, 54_443_520, 3 << 40]
    assert view.evaluate("sizes => sizes.map(sized)", sizes) == [bytes_text(size) for size in sizes]


def test_ticks_are_round_and_few(chromium: Tab, pages: tuple):
    view, _ = opened(chromium, pages[0])
    for low, high, unit in ((0, 7, 1), (0, 2662, 1), (3.5, 9.25, 1), (0, 60 << 20, 1 << 20), (5 << 20, 6 << 20, 1 << 20)):
        found = view.evaluate("([low, high, unit]) => ticks([low, high], 8, unit)", [low, high, unit])
        assert 2 <= len(found) <= 9
        assert low <= found[0] <= found[-1] <= high
        if unit == 1:
            assert all(each == int(each) for each in found)


def test_sorting_and_searching(chromium: Tab, runs: tuple, pages: tuple):
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


def test_searching_a_long_table_counts_what_is_not_shown_one_by_one(chromium: Tab, tmp_path: Path):
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


def test_a_peak_at_either_end_keeps_its_label(chromium: Tab, tmp_path: Path):
    for name, sizes in (("late", [1000, 1 << 20]), ("early", [1 << 20, 1000])):
        with memory.track() as track:
            for size in sizes:
                x = tm.zeros(size)
            del x
        track.to_html(tmp_path / f"{name}.html")
        view, wrong = opened(chromium, tmp_path / f"{name}.html", 400)
        label, figure = (view.locator(f"#run0 .timeline {part}").first.bounding_box() for part in (".label", "svg"))
        assert figure["x"] <= label["x"]
        assert label["x"] + label["width"] <= figure["x"] + figure["width"]
        assert wrong == []


def test_a_tile_says_its_modules_name_as_text(chromium: Tab, tmp_path: Path):
    with memory.track() as track:
        model = nn.Sequential()
        model.add_module("<b>bold</b>", nn.Linear(300, 300))
        model(tm.ones(1, 300))
    track.to_html(tmp_path / "page.html")
    view, wrong = opened(chromium, tmp_path / "page.html")
    view.hover("#run0 .tile:not(button):has-text('weight')")
    label = view.locator("#run0 .peak .tip").inner_text()
    assert "<b>bold</b>" in label
    assert wrong == []


@pytest.mark.parametrize(("number", "width", "scheme"), pairs([0, 1], [400, 1280, 1920], ["light", "dark"]))
def test_nothing_is_cut_off_or_asked_for(chromium: Tab, pages: tuple, number: int, width: int, scheme: str):
    view, wrong = opened(chromium, pages[number], width, scheme)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert view.evaluate("[...document.querySelectorAll('.run .scroll')].every(box => box.scrollWidth <= box.clientWidth + 1)")
    assert view.locator(".run").count() == number + 1
    ground = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert serious(view) == []
    assert wrong == []


def test_two_runs_share_a_scale_and_say_what_changed(chromium: Tab, runs: tuple, pages: tuple):
    view, wrong = opened(chromium, pages[1])
    scales = [view.locator(f"#run{i} .timeline > svg > text.end").all_text_contents() for i in range(2)]
    assert scales[0] == scales[1]
    assert len(scales[0]) > 2
    assert view.title() == "Sequential: forward, backward, optimizer on cpu, before and after"
    found = runs[0].compare(runs[1])
    first = view.locator(".comparison tbody tr").first.text_content()
    assert f"{found.peak.before:,}" in first
    assert f"{found.peak.after:,}" in first
    assert f"{found.peak.change:+,}" in first
    assert wrong == []
