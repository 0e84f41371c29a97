"""Every lesson runs as it stands, its numbers are what formulas say, and the contents page says what the run said."""

from __future__ import annotations

import gc
import importlib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.pictures import DOCS, differing
from tests.pictures import LESSONS as LESSON_PICTURES
from tests.profiles import some
from tinygrad_mem import memory, scope
from tinygrad_mem.devices import Pool, cuda_problem, device

from . import numbers_01_to_07, numbers_08_to_22

FOLDER = Path(__file__).parents[2] / "tutorials"
LESSONS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
NUMBERS = numbers_01_to_07, numbers_08_to_22
CHECKS = {name: check for module in NUMBERS for name, check in vars(module).items() if name.startswith("lesson_")}
BYTES_ALONE = ("01", "03", "13", "16", "18")
"""Lessons that assert no number that a kernel computes: the emulated GPU needs a minute for theirs."""
SECTIONS = ["Question", "By hand", "Predicted", "Measured", "Picture", "Mechanism", "Exercise", "Solution"]


def markdown(path: Path) -> str:
    """The text cells of a lesson."""
    cells = re.split(r"^# %%", path.read_text(), flags=re.M)
    return "\n".join(re.sub(r"^# ?", "", cell, flags=re.M) for cell in cells if cell.startswith(" [markdown]"))


def claims(text: str) -> list[str]:
    """Numbers in prose that somebody measured, or should have: those of four digits, of bytes, of percent."""
    text = re.sub(r"^Source: .*", "", text, flags=re.M)  # has years
    found = re.findall(r"(?<![\w.])(\d+(?:,\d+)*(?:\.\d+)?) ?(%|bytes|[KMG]i?B\b)?", text)
    return [number for number, unit in found if unit or "," in number or len(number) > 3]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Runs a lesson as a script with these arguments; its result."""

    def run(path: Path, *arguments: str) -> Any:
        monkeypatch.syspath_prepend(FOLDER)
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        monkeypatch.delitem(sys.modules, "lesson", raising=False)  # it reads the arguments
        gc.collect()  # functions hold the names of their script, and those the functions: the lesson before waits for this
        return runpy.run_path(str(path), run_name="__main__")["RESULT"]

    yield run
    tm.set_default_device(None)
    sys.modules.pop("lesson", None)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson(
    path: Path, ran: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    assert f"lesson_{path.stem[:2]}" in CHECKS, f"{path.name} has no row in tests/tutorials/numbers_*.py: what are its numbers?"
    monkeypatch.setenv("TINYGRAD_MEM_PICTURES", str(tmp_path))
    monkeypatch.setattr(device("cpu"), "pool", Pool("cpu"))  # what other tests keep is in no track of a lesson
    result = ran(path)
    printed = capsys.readouterr().out
    CHECKS[f"lesson_{path.stem[:2]}"](result, "cpu")

    assert printed.splitlines()[-1] == result.ending
    assert f"[{path.name}]({path.name}) |" in (FOLDER / "README.md").read_text()
    assert f"| {result.ending} |" in (FOLDER / "README.md").read_text()

    pictures = sorted(tmp_path.iterdir())
    assert pictures
    for picture in pictures:
        assert picture.name.startswith(path.stem[:2])
        assert f"(picture {picture.name})" in printed
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert picture.stat().st_size > 10_000
    for name, (lesson, picture) in LESSON_PICTURES.items():
        if lesson == path.name:  # its training rounds differently from processor to processor
            assert differing(DOCS / name, tmp_path / picture) < 0.03, f"docs/{name} is an old one: python -m tests.pictures"

    text = markdown(path)
    assert re.findall(r"^## (.*)", text, flags=re.M) == SECTIONS
    code = re.sub(r"^#.*", "", path.read_text(), flags=re.M).replace("_", "")
    for number in claims(text):
        assert number in printed or number.replace(",", "") in code or number == "512", f"{number} is claimed, and not computed"


@pytest.fixture
def quick_gpu(path: Path, request: pytest.FixtureRequest) -> None:
    """Only memory, for lessons that ask no more of a GPU."""
    if path.stem[:2] in BYTES_ALONE:
        request.getfixturevalue("only_memory")


@pytest.mark.cuda
@pytest.mark.usefixtures("quick_gpu")
@pytest.mark.parametrize("path", some(LESSONS[:18], [LESSONS[0], LESSONS[4], LESSONS[12]]), ids=lambda path: path.stem)
def test_a_lesson_on_a_gpu(path: Path, ran: Callable[..., Any], gpu_pool: object):
    """The lesson compares what ``meta`` says, like cuda, with what it measures; its formulas hold there too. The 19th is of
    PyTorch alone. A usual run takes three: of them one trains on the emulated GPU.
    """
    result = ran(path, "--device", "cuda")
    CHECKS[f"lesson_{path.stem[:2]}"](result, "cuda")
    assert device("cuda").pool.peak_used > 0
    assert result.ending


def test_the_claims_of_prose_are_found():
    text = "It is 1,234 bytes, 57% of 5000, 12.5 MiB of 224 by 224; 2048 and 4 times `P`, float16, 1e-8."
    assert claims(text + "\nSource: somebody, 2016") == ["1,234", "57", "5000", "12.5", "2048"]


def test_every_lesson_that_is_checked_is_there():
    assert sorted(CHECKS) == [f"lesson_{path.stem[:2]}" for path in LESSONS]


def test_a_lesson_is_a_script_that_needs_no_folder(tmp_path: Path):
    """Run from elsewhere, without a place for pictures, it prints its numbers and draws nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TINYGRAD_MEM_PICTURES"}
    environment["PYTHONPATH"] = str(FOLDER.parent)
    command = [sys.executable, str(LESSONS[1])]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment, timeout=300)
    assert "name a folder to have it drawn" in ran.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def lesson(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", ["lesson.py"])
    return importlib.import_module("lesson")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "gpu"], "invalid choice: 'gpu'"),
        (["--device", "cuda"], "error: device cuda:0: CuPy "),
        (["pictures", "cuda"], "unrecognized arguments: cuda"),
    ],
)
def test_a_device_that_cannot_be_measured_is_refused_in_a_sentence(
    arguments: list[str], message: str, ran: Callable[..., Any], capsys: pytest.CaptureFixture
):
    if arguments[-1] == "cuda" and "--device" in arguments and cuda_problem() is None:
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        ran(LESSONS[0], *arguments)
    assert message in capsys.readouterr().err
    assert scope.local.default_device is None


def test_numbers_that_disagree_stop_a_lesson(lesson: ModuleType):
    result = lesson.Result()
    result.agree("same", by_hand=512, measured=512)
    result.agree("near", by_hand=500, measured=512, within=12)
    assert result == {"same": 512, "near": 512}
    with pytest.raises(AssertionError, match=r"peak: .* are more than 11 bytes apart"):
        result.agree("peak", by_hand=500, measured=512, within=11)
    with pytest.raises(AssertionError, match="peak: a number agrees with another one"):
        result.agree("peak", measured=512)


def test_most_is_of_what_lies_between_the_marks(lesson: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device("cpu"), "pool", Pool("cpu"))  # what other tests keep is older than the track, and counted too
    with memory.track() as track:
        tm.zeros(4096)  # before
        kept = tm.zeros(128)
        memory.mark("begin")
        tm.zeros(256)
        memory.mark("end")
        assert lesson.most(track, "begin", "end") == kept.nbytes + 1024
        memory.mark("begin")
        memory.mark("end")
    assert lesson.most(track, "begin", "end") == kept.nbytes


def test_a_notebook_shows_the_picture_below_the_cell(lesson: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """Jupyter is not needed to test this: modules by its names are."""
    shown: list[bytes] = []
    kernel, python, display = ModuleType("ipykernel"), ModuleType("IPython"), ModuleType("IPython.display")
    vars(display).update(Image=lambda data: data, display=shown.append)
    vars(python).update(version_info=(9, 0), get_ipython=lambda: None)  # matplotlib asks for them
    for module in (kernel, python, display):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.delenv("TINYGRAD_MEM_PICTURES", raising=False)
    lesson.picture(lesson.stacked({"one": {memory.Category.PARAMETER: 512}}, "One bar"), "x")
    with memory.track() as track:
        tm.zeros(3)
    lesson.picture(track, "y", "Three zeros")
    assert [data[:4] for data in shown] == [b"\x89PNG"] * 2
    assert lesson.SHOWN["x"] == "One bar: MiB"
    assert lesson.SHOWN["y"] == "Three zeros: bytes in use over time, stacked by category"
    for nameless in (track, lesson.figure()[0]):
        with pytest.raises(ValueError, match="picture z: give it a title, which says what it shows"):
            lesson.picture(nameless, "z")
