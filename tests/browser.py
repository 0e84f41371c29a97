"""Chromium, for the tests of pages. A module's tests share one tab: a new one takes five times as long as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.pictures import CHROMIUM, FLAGS

_FORGET = "() => { try { localStorage.clear(); sessionStorage.clear() } catch {} }"  # an empty page may have no storage


class Tab:
    """The tab of a module. Nothing of what a test did in it is left for the next one."""

    def __init__(self, view: Any) -> None:
        self.view = view
        self._within: tuple[str, ...] = ()
        self._wrong: list[str] = []
        view.on("pageerror", lambda error: self._wrong.append(str(error)))
        view.on("console", lambda message: self._wrong.append(message.text))
        view.on("request", lambda asked: None if asked.url.startswith(self._within) else self._wrong.append(asked.url))

    def opened(self, address: str, within: str = "file:", width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
        """The page at this address, and the list of what goes wrong in it or is asked for outside of ``within``."""
        self.view.evaluate(_FORGET)
        self.view.goto("about:blank")  # so that an address that differs behind its # alone is loaded again
        self.view.unroute_all()
        self.view.mouse.move(0, 0)
        self.view.set_viewport_size({"width": width, "height": 900})
        self.view.emulate_media(color_scheme=scheme)
        self._within, self._wrong = (within, "data:", "blob:"), []
        self.view.goto(address)
        return self.view, self._wrong


@pytest.fixture(scope="module")
def chromium() -> Iterator[Tab]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield Tab(browser.new_page())
        browser.close()


def serious(view: Any) -> list[tuple[str, str]]:
    """What axe finds wrong in a page for those who cannot see it well, or at all: the rule, and the first place."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(view).response["violations"]
    return [(each["id"], each["nodes"][0]["html"][:150]) for each in found if each["impact"] in ("serious", "critical")]
