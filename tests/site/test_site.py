"""The site: lessons with what they print, pages that load nothing from elsewhere, cut nothing off, and can be read by all."""

from __future__ import annotations

import functools
import http.server
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Tab, serious
from tests.browser import chromium as chromium
from tests.profiles import pairs, some

ROOT = Path(__file__).parents[2]
LESSON = """# %% [markdown]
# # 1. A <b>lesson</b> & more
#
# A table of `code` in text, and a [link](PAGE):
#
# | name | bytes |
# |---|---|
# | an unusually_long_name_without_a_single_space_in_it_anywhere | `4 * N` |

# %%
import sys

from lesson import Result, figure, picture

RESULT = Result()
print("<i>text</i> & " + "words " * 60)
print("name".ljust(90), "bytes".rjust(90))

# %%
drawn, axes = figure()
axes.plot([1, 2, 3])
axes.set(xlabel="batch", ylabel="MiB")
axes.set_title("A line", loc="left")
print("before")
picture(drawn, "01_line")
print("after")

# %% [markdown]
# ## Solution

# %%
print("from line", sys._getframe().f_lineno, "of", sys.argv[0][-7:], __name__)
RESULT.ends("It ends with 7 <bytes>.")
"""


@pytest.fixture(scope="module")
def build() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        import build

        yield build
    finally:
        sys.path.remove(str(ROOT / "docs" / "site"))


@pytest.fixture(scope="module")
def made(build: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of one small lesson, one tip, one room of the library, and an explorer of a few settings."""
    script = tmp_path_factory.mktemp("scripts") / "01_a.py"
    script.write_text(LESSON.replace("PAGE", os.path.relpath(ROOT / "docs" / "architecture.md", script.parent)))
    folder = tmp_path_factory.mktemp("site")
    grid = {name: values[:2] if name == "batch_size" else values[:1] for name, values in build.explorer.GRID.items()}
    explore = functools.partial(build.explorer.write, networks=["resnet20"], grid=grid, workers=1)
    build.build(folder, [script], ["no_grad"], clinic=False, rooms=["techniques"], explore=explore)
    return folder


@pytest.fixture(scope="module")
def address(made: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(made))
    handler.log_message = lambda *args: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_lesson_is_its_text_its_code_and_what_it_prints_and_draws(made: Path):
    text = (made / "lessons" / "01_a.html").read_text()
    assert "&lt;i&gt;text&lt;/i&gt; &amp; words words" in text
    number = LESSON.splitlines().index('RESULT.ends("It ends with 7 <bytes>.")')
    assert f"from line {number} of 01_a.py __main__" in text
    assert '<p class="ending">It ends with 7 &lt;bytes&gt;.</p>' in text
    assert text.index("before") < text.index('alt="A line: MiB by batch"') < text.index("after</span>")
    assert (made / "lessons" / "01_line.png").read_bytes()[:4] == b"\x89PNG"
    assert 'href="../architecture.html">link</a>' in text
    contents = (made / "lessons" / "index.html").read_text()
    assert "1. A &lt;b&gt;lesson&lt;/b&gt; &amp; more<small>basic, 1 min</small>" in contents
    assert '<img src="01_line.png"' in contents


def test_links_lead_to_pages_and_what_has_no_page_is_text(made: Path):
    start = (made / "index.html").read_text()
    assert 'href="architecture.html"' in start
    assert 'href="tinygrad_mem/' not in start
    for page in made.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', page.read_text()):
            to = (made / target.lstrip("/") if target.startswith("/") else page.parent / target).resolve()
            assert to.exists(), f"{page.relative_to(made)} links to {target}"


def test_a_public_name_has_its_docstring_and_source(made: Path):
    text = (made / "reference" / "techniques" / "reversible.html").read_text()
    assert "ReversibleSequential" in text
    assert "Source code in" in text
    assert ":class:`" not in text


def test_a_lesson_that_fails_changes_nothing(build: Any, made: Path, tmp_path: Path):
    bad = tmp_path / "01_bad.py"
    bad.write_text("# %% [markdown]\n# # Bad\n\n# %%\nraise ValueError('no such number')\n")
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="no such number") as caught:
        build.build(made, [bad], ["no_grad"], clinic=False, rooms=[])
    assert f'File "{bad}", line 5' in str(caught.value.__cause__)
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


def test_a_link_that_leads_nowhere_ends_the_build(build: Any, made: Path, tmp_path: Path):
    bad = tmp_path / "01_bad.py"
    bad.write_text(LESSON.replace("PAGE", "no.md"))
    with pytest.raises(FileNotFoundError, match=r"01_bad.py links to no.md, which does not exist"):
        build.build(tmp_path / "site", [bad], ["no_grad"], clinic=False, rooms=[])
    assert not (tmp_path / "site").exists()


def test_the_command_asks_for_a_folder(build: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    asked: list[Path] = []
    monkeypatch.setattr(build, "build", asked.append)
    for words, status in ((["--help"], 0), (["--folder"], 2), (["a", "b"], 2)):
        with pytest.raises(SystemExit) as ended:
            build.main(words)
        assert ended.value.code == status
    assert "where to write it" in capsys.readouterr().out
    assert asked == []
    build.main([])
    build.main(["pages"])
    assert asked == [Path("site").resolve(), Path("pages").resolve()]


def test_cells_of_all_lessons_are_the_whole_script(build: Any):
    assert len(build.ALL) > 20
    for path in build.ALL:
        script, found = path.read_text(), build.lessons.cells(path.read_text())
        assert script.startswith("# %% [markdown]")
        code = [line for line in script.splitlines() if line.strip() and not line.startswith("# %%") and line != "#"]
        assert sum(len([line for line in cell.source.splitlines() if line.strip()]) for cell in found) == len(code)
        assert build.lessons.title(path).startswith(f"{int(path.name[:2])}. ")
        assert build.lessons.level(path) in ("basic", "intermediate", "advanced")
        for cell in found:
            if not cell.text:
                compile(cell.source, str(path), "exec")  # each cell stands alone, as a notebook needs it


PAGES = [
    "index.html",
    "explorer.html",
    "lessons/index.html",
    "lessons/01_a.html",
    "reference/techniques/reversible.html",
    "architecture.html",
]


VIEWS = pairs(PAGES, [400, 1280], ["light", "dark"])


@pytest.mark.parametrize(("name", "width", "scheme"), some(VIEWS, [v for v in VIEWS if v[1] == 400 or v[0] in PAGES[:2]]))
def test_nothing_is_cut_off_or_asked_for_and_all_can_read_it(chromium: Tab, address: str, name: str, width: int, scheme: str):
    view, wrong = chromium.opened(f"{address}/{name}", address, width, scheme)
    view.wait_for_load_state("networkidle")
    assert wrong == []
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert view.evaluate("[...document.images].every(image => image.loading == 'lazy' || image.naturalWidth > 0)")
    view.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    if name == "lessons/01_a.html":  # code, and what it prints
        size = "each => getComputedStyle(each).fontSize"
        assert (
            len(set(view.locator(".highlight pre > code, .output, .output .columns").evaluate_all(f"all => all.map({size})")))
            == 1
        )
    assert serious(view) == []


def test_the_reader_searches_and_goes_from_page_to_page(chromium: Tab, address: str):
    view, _ = chromium.opened(f"{address}/index.html", address)
    view.wait_for_load_state("networkidle")
    view.get_by_role("link", name="Change a training step by hand").click()
    view.locator(".found .peak b >> text=bytes").wait_for()
    view.get_by_role("link", name="tinygrad_mem").click()
    view.get_by_role("navigation", name="Tabs").get_by_role("link", name="Lessons").click()
    view.get_by_role("link", name="1. A").last.click()
    assert not view.locator(".output >> text=from line").is_visible(), "the solution waits until it is asked for"
    view.get_by_text("Solution").last.click()
    assert view.locator(".output >> text=from line").is_visible()
    view.get_by_role("textbox", name="Search").press_sequentially("ReversibleSequential")
    view.locator(".md-search-result__link", has_text="reversible").first.click()
    view.wait_for_url("**/reference/techniques/reversible.html*")
