"""``python -m tinygrad_mem claims``: the table, one claim in full, the filter, the page, the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.browser import Tab, serious
from tests.browser import chromium as chromium
from tests.profiles import pairs
from tinygrad_mem.claims import CLAIMS, examine, page
from tinygrad_mem.cli import claims as command
from tinygrad_mem.cli.app import app

FEW = ["resnet50-parameters", "trl-3678", "step-after-backward"]


def claims(*arguments: str, columns: int = 80):
    return CliRunner().invoke(app, ["claims", *arguments], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_table_has_the_most_wrong_first_and_fits(columns: int):
    ran = claims("--about", "trl", columns=columns)
    assert ran.exit_code == 0
    assert max(map(len, ran.stdout.splitlines())) <= columns
    assert ran.stdout.index("trl-3678") < ran.stdout.index("trl-6858")
    assert "2 figures: 0 reproduced, 0 explained, 2 refuted." in ran.stdout
    assert "2 of 2: trl-6858: refuted: 1.97 times too large" in " ".join(ran.stderr.split())


@pytest.mark.parametrize("columns", [60, 80])
def test_a_claim_in_full_fits(columns: int):
    ran = claims(*FEW, columns=columns)
    assert ran.exit_code == 0
    text = " ".join(ran.stdout.split())
    for name in FEW:
        claim = CLAIMS[name]
        assert f"{name}: " in text
        assert claim.says in text
        assert f"Figure: {claim.stated.text}." in text
        assert claim.why in text
    assert "155,304,960 B, 155.30 MB" in text
    assert "Also included. the square roots of moments that PyTorch's step holds: 1.22 GB." in text
    assert "█" in ran.stdout
    assert (
        text.index("trl-3678: refuted") < text.index("step-after-backward: explained") < text.index("resnet50-parameters: rep")
    )
    tables = [line for line in ran.stdout.splitlines() if not line.startswith(("┏", "┃", "┡", "│", "├", "└"))]
    assert max(map(len, tables)) <= columns


def test_json_has_every_number():
    rows = {row["claim"]: row for row in json.loads(claims(*FEW, "--json").stdout)}
    assert list(rows) == ["trl-3678", "step-after-backward", "resnet50-parameters"]
    assert rows["trl-3678"]["found"] == 155_304_960
    assert rows["trl-3678"]["verdict"] == "refuted"
    assert rows["trl-3678"]["off"] == pytest.approx(1.996, abs=1e-3)
    (part,) = rows["step-after-backward"]["beside"]
    assert part["least"] == part["most"] == 4 * 304_326_632
    assert rows["resnet50-parameters"]["text"] == "reproduced exactly"


def test_the_page_has_each_claim_and_asks_for_nothing(tmp_path: Path):
    ran = claims(*FEW, "--html", str(tmp_path / "page.html"))
    assert ran.exit_code == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for name in FEW:
        assert f'id="{name}"' in text
        assert f'href="{CLAIMS[name].source.link}"' in text
    assert text.count("<svg") == 2  # a count of parameters has no run
    assert text.count("<script") == 1
    assert 'src="' not in text
    assert "refuted: 2.00 times too large" in text


def test_a_page_that_cannot_be_written_is_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(rows: object, path: Path) -> None:
        raise OSError(f"no space left: {path}")

    monkeypatch.setattr(command.page, "write", full)
    ran = claims("trl-3678", "--html", str(tmp_path / "page.html"))
    assert ran.exit_code == 1
    assert "claims: no page: " in ran.stderr
    assert "trl-3678" in ran.stdout


def test_what_is_not_there_is_said():
    ran = claims("nonsense")
    assert ran.exit_code == 2
    assert "there is no claim 'nonsense': there are gpt2-small-parameters, " in ran.stderr
    ran = claims("--about", "nonsense")
    assert ran.exit_code == 2
    assert "no claim is about 'nonsense': leave --about out to run all of them" in ran.stderr


def test_a_claim_that_needs_more_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tinygrad_mem.claims.claim.find_spec", lambda name: None)
    ran = claims("--about", "bert-large")
    assert ran.exit_code == 0
    assert "not run: torch and transformers needed" in " ".join(ran.stderr.split())
    assert "10 figures: 0 reproduced, 0 explained, 0 refuted, 10 not run." in ran.stdout
    ran = claims("bert-large-weights")
    assert "Found. not run: torch and transformers needed" in " ".join(ran.stdout.split())


def test_ctrl_c_shows_what_is_done(monkeypatch: pytest.MonkeyPatch):
    examine = command.examine

    def interrupted(claim):
        if claim.name == "trl-6858":
            raise KeyboardInterrupt
        return examine(claim)

    monkeypatch.setattr(command, "examine", interrupted)
    ran = claims("--about", "trl")
    assert ran.exit_code == 130
    assert "trl-3678" in ran.stdout
    assert "claims: interrupted: 1 of 2 claims are done" in ran.stderr


def test_the_fast_ones_run_first():
    chosen = command._chosen([], None)
    assert [claim.seconds for claim in chosen] == sorted(claim.seconds for claim in CLAIMS.values())
    assert len(chosen) == len(CLAIMS)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("claims") / "page.html"
    page.write([examine(CLAIMS[name]) for name in FEW], path)
    return path


@pytest.mark.parametrize(("width", "scheme"), pairs([400, 1280, 1920], ["light", "dark"]))
def test_the_page_cuts_nothing_off_and_a_click_shows_a_claim(chromium: Tab, few: Path, width: int, scheme: str):
    view, wrong = chromium.opened(few.as_uri(), width=width, scheme=scheme)
    for name in FEW:
        view.click(f'a[href="#{name}"]')
        assert view.is_visible(f"section#{name}")
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        assert serious(view) == []
        view.click(f'section#{name} a[href="#top"]')
    assert wrong == []
