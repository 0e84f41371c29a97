"""The report: its numbers are the runs', it needs nothing but itself, and nothing in it is cut off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinygrad_mem as tm
from tests.browser import Tab, serious
from tests.browser import chromium as chromium
from tests.profiles import pairs
from tinygrad_mem.devices import Pool
from tinygrad_mem.memory.render import sheet
from tinygrad_mem.models.names import Named
from tinygrad_mem.tips import TIPS, Failed, Measured, measure, report
from tinygrad_mem.tips.report import Row


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    found = [(tip, measure(tip)) for tip in (TIPS[name].on(None, 4) for name in ("del", "sgd", "zero_grad", "attention"))]
    none = TIPS["checkpoint"].on(Named(lambda: tm.nn.Linear(3, 4), (3,), 4), 2)
    yield [*found, (none, measure(none))]
    cpu.pool = before


@pytest.fixture(scope="module")
def page(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tips") / "report.html"
    report.write(rows, path)
    return path


def test_the_page_has_every_number_of_every_case(rows: list[Row], page: Path):
    text = page.read_text(encoding="utf-8")
    for tip, results in rows:
        assert f'id="{tip.name}"' in text
        for result in results:
            if isinstance(result, Failed):
                assert result.kind in text
                continue
            for effect in (result.comparison.peak, result.comparison.saved, result.comparison.temporary):
                assert f'data-n="{effect.change}"><span>{effect.change:+,}' in text
            for run in (result.before, result.after):
                assert f"<b>{run.track.peak:,}</b>" in text
    assert text.count("<svg") == 2 * sum(isinstance(result, Measured) for _, results in rows for result in results)
    assert "meta +" not in text
    assert text.count("<script") == 1
    assert not re.search(r"(src|href)=[\"'](?!#|data:)", text)
    assert len(text) < 1 << 20


def test_the_drawing_is_as_high_as_the_bytes(rows: list[Row]):
    """The two peaks have one scale, the higher one reaches 95% of the height."""
    (result,) = next(results for tip, results in rows if tip.name == "sgd")
    assert isinstance(result, Measured)
    top = max(result.before.track.peak, result.after.track.peak)
    for run in (result.before, result.after):
        drawn = sheet.timeline("run", run.track, top)
        heights = [float(y) for y in re.findall(r"V([\d.]+)", drawn)]
        assert min(heights) == pytest.approx(sheet.HEIGHT - 0.95 * sheet.HEIGHT * run.track.peak / top, abs=0.11)
        assert max(heights) <= sheet.HEIGHT


def test_names_are_text_and_nothing_else(rows: list[Row], tmp_path: Path):
    from dataclasses import replace

    evil = "</style><img src=x onerror=alert(1)>"
    tip, results = rows[0]
    report.write([(replace(tip, says=evil), [replace(result, when=evil) for result in results])], tmp_path / "page.html")
    assert "<img" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("width", "scheme"), pairs([400, 1280, 1920], ["light", "dark"]))
def test_nothing_is_cut_off_or_asked_for(chromium: Tab, page: Path, width: int, scheme: str):
    view, wrong = chromium.opened(page.as_uri(), width=width, scheme=scheme)
    assert view.evaluate("document.documentElement.scrollHeight") < (2400 if width == 400 else 1200)
    view.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    view.add_style_tag(content="section { display: block !important }")
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    wide = """[...document.querySelectorAll('td, th, p, h1, h2, h3, pre, svg, figcaption, .phases span')]
        .filter(each => each.getClientRects().length)
        .filter(each => each.getBoundingClientRect().right > innerWidth + 0.5
            || (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display != 'contents'
                && each.tagName != 'svg' && each.clientWidth))
        .map(each => each.outerHTML.slice(0, 120))"""
    assert view.evaluate(wide) == []
    ground = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    small = view.evaluate("[...document.querySelectorAll('td, p, small')].map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(small) >= 11
    if width != 1920:  # what is found depends on the colours, which no width changes
        assert serious(view) == []
    assert wrong == []


def test_the_table_sorts_and_filters_and_a_click_shows_a_tip(chromium: Tab, page: Path, rows: list[Row]):
    view, _ = chromium.opened(page.as_uri())
    cases = sum(len(results) for _, results in rows)
    shown = "[...document.querySelectorAll('.all tbody tr')].filter(row => !row.hidden).map(row => row.cells[1].dataset.n)"
    assert len(view.evaluate(shown)) == cases
    assert view.locator("section:visible").count() == 0
    view.get_by_role("button", name="peak").click()
    numbers = [float(each) for each in view.evaluate(shown) if each is not None]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) > 2
    view.get_by_role("button", name="peak").click()
    assert [float(each) for each in view.evaluate(shown) if each is not None] == numbers[::-1]
    view.get_by_role("searchbox").fill("attention")
    assert len(view.evaluate(shown)) == 1
    assert view.locator(".shown").inner_text() == "1 row"
    view.get_by_role("link", name="attention").click()
    assert view.locator("section:visible").get_attribute("id") == "attention"
    assert view.locator("section:visible svg").count() == 2
