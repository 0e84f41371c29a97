"""The gallery: each lesson's text, code, output and pictures as a page that asks for nothing and cuts nothing off."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.profiles import pairs

FOLDER = Path(__file__).parents[2] / "tutorials"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]

LESSON = """# %% [markdown]
# # 1. A <b>lesson</b> & more
#
# A table of `code` in text, and <script>document.title = "broken"</script>:
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
print("before")
picture(drawn, "01_line")
print("after")

# %% [markdown]
# ## Solution

# %%
a_long_line = ["0123456789", "0123456789", "0123456789", "0123456789", "0123456789", "0123456789", "0123456789"]
print("from line", sys._getframe().f_lineno, "of", sys.argv[0][-7:], __name__)
RESULT.ends("It ends with 7 <bytes>.")
"""
README = (
    "# All of them\n\n| lesson | ends with |\n|---|---|\n| [01_a.py](01_a.py) | 7 |\n| [02_b.py](02_b.py) | 8 |\n\n[p](p)\n"
)
SECOND = '# %% [markdown]\n# # 2. Another\n\n# %%\nfrom lesson import Result\n\nRESULT = Result()\nRESULT.ends("8")\n'


@pytest.fixture(scope="module")
def gallery() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        import gallery

        yield gallery
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def made(gallery: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of two small lessons."""
    scripts = tmp_path_factory.mktemp("scripts")
    for name, text in (("01_a.py", LESSON), ("02_b.py", SECOND), ("README.md", README)):
        (scripts / name).write_text(text)
    gallery.gallery(scripts / "pages", [scripts / "01_a.py", scripts / "02_b.py"])
    return scripts / "pages"


def test_a_page_for_each_lesson_its_pictures_and_the_contents(made: Path):
    assert sorted(path.name for path in made.iterdir()) == ["01_a.html", "01_line.png", "02_b.html", "index.html"]
    contents = (made / "index.html").read_text()
    assert '<a href="01_a.html">1. A &lt;b&gt;lesson&lt;/b&gt; &amp; more</a>' in contents
    assert '<a href="02_b.html">2. Another</a>' in contents
    assert 'href="p"' not in contents, "what has no page is no link"


def test_text_is_text_and_lines_are_the_scripts(made: Path):
    text = (made / "01_a.html").read_text()
    assert "<script" not in text
    assert "&lt;i&gt;text&lt;/i&gt; &amp; words words" in text
    number = LESSON.splitlines().index('RESULT.ends("It ends with 7 <bytes>.")')
    assert f"from line {number} of 01_a.py __main__" in text
    assert '<p class="ending">It ends with 7 &lt;bytes&gt;.</p>' in text
    assert text.index("before") < text.index('<img src="01_line.png"') < text.index("after</span>")


def test_a_lesson_that_fails_changes_nothing(gallery: Any, made: Path, tmp_path: Path):
    bad = tmp_path / "01_bad.py"
    bad.write_text("# %% [markdown]\n# # Bad\n\n# %%\nraise ValueError('no such number')\n")
    before = {path: path.read_bytes() for path in made.iterdir()}
    with pytest.raises(ValueError, match="no such number") as caught:
        gallery.gallery(made, [bad])
    assert f'File "{bad}", line 5' in str(caught.value.__cause__)
    assert {path: path.read_bytes() for path in made.iterdir()} == before


def test_cells_of_all_lessons_are_the_whole_script(gallery: Any):
    for path in FOLDER.glob("[0-9][0-9]_*.py"):
        script, found = path.read_text(), gallery.cells(path.read_text())
        assert script.startswith("# %% [markdown]")
        code = [line for line in script.splitlines() if line.strip() and not line.startswith("# %%")]
        assert sum(len([line for line in cell.source.splitlines() if line.strip()]) for cell in found) == len(
            [line for line in code if line != "#"]
        )
        assert gallery.title(path).startswith(f"{int(path.name[:2])}. ")
        for cell in found:
            if not cell.text:
                compile(cell.source, str(path), "exec")  # each cell stands alone, as a notebook needs it


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.mark.parametrize(("name", "width", "scheme"), pairs(["index", "01_a"], [400, 1280], ["light", "dark"]))
def test_nothing_is_cut_off_or_asked_for(chromium: Any, made: Path, name: str, width: int, scheme: str):
    view = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    asked: list[str] = []
    view.on("request", lambda request: asked.append(request.url))
    view.goto((made / f"{name}.html").as_uri())
    view.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert all(url.startswith((made.as_uri(), "data:")) for url in asked), asked
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    hidden = """[...document.querySelectorAll('main *')].filter(part =>
        part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).display != 'inline'
        && getComputedStyle(part).overflowX != 'auto').map(part => part.outerHTML.slice(0, 100))"""
    assert view.evaluate(hidden) == []
    assert view.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    ground = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert view.evaluate(CONTRAST, "main, main :not(img, .w)") >= 4.5, "what is read stands out from what it is on"
    assert view.evaluate("parseFloat(getComputedStyle(document.querySelector('main p')).fontSize)") >= 14
    view.context.close()


CONTRAST = """selector => {
    const light = color => {
        const [r, g, b] = color.match(/[0-9.]+/g).map(Number).map(c => c / 255)
            .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return Math.min(...[...document.querySelectorAll(selector)].map(part => {
        let ground = part;
        while (getComputedStyle(ground).backgroundColor == "rgba(0, 0, 0, 0)") ground = ground.parentElement;
        const both = [getComputedStyle(part).color, getComputedStyle(ground).backgroundColor].map(light);
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    }));
}"""


def test_the_reader_goes_from_page_to_page(chromium: Any, made: Path):
    view = chromium.new_page()
    view.goto((made / "index.html").as_uri())
    view.click("text=2. Another")
    assert view.title() == "2. Another"
    view.click("nav >> nth=0 >> text=1. A")
    assert not view.locator(".output >> text=from line").is_visible(), "the solution waits until it is asked for"
    view.click("summary")
    assert view.locator(".output >> text=from line").is_visible()
    view.click("nav >> nth=1 >> text=Contents")
    assert view.title() == "Lessons"
