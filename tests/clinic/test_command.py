"""``python -m tinygrad_mem clinic``: the list, the question, the guess, the answer, and what is refused."""

from __future__ import annotations

import json
import os
import pty
import sys

import pytest
from typer.testing import CliRunner

from tests.profiles import share
from tinygrad_mem.cli import clinic as command
from tinygrad_mem.cli.app import app
from tinygrad_mem.clinic import CASES
from tinygrad_mem.clinic.case import Finding
from tinygrad_mem.clinic.show import _agrees


def clinic(*arguments: str, columns: int = 80):
    return CliRunner().invoke(app, ["clinic", *arguments], env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_list_has_every_case(columns: int):
    ran = clinic(columns=columns)
    assert ran.exit_code == 0
    assert max(map(len, ran.stdout.splitlines())) <= columns
    for name in CASES:
        assert name in ran.stdout


@pytest.mark.parametrize("name", list(CASES))
def test_a_case_and_its_answer_fit(name: str):
    for columns in share((60, 80), 2, name):
        ran = clinic(name, "--answer", columns=columns)
        assert ran.exit_code == 0
        assert max(map(len, ran.stdout.splitlines())) <= columns
    text = " ".join(ran.stdout.split())
    case = CASES[name]
    for part in (case.question, *case.choices, case.link, f"It is {case.right + 1}: "):
        assert part in text
    for word in ("Cause.", "Fix.", "Bytes.", "Peak ", "Source.", "before: ", "after: "):
        assert word in text
    assert "defect" not in text
    assert "█" in ran.stdout
    assert "- " in ran.stdout
    assert "+ " in ran.stdout


def test_without_a_terminal_nothing_is_asked_and_nothing_given_away():
    ran = clinic("logits")
    assert ran.exit_code == 0
    assert "--answer" in ran.stdout
    assert "Cause." not in ran.stdout
    assert "Your guess" not in ran.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of another kind")
@pytest.mark.parametrize(("typed", "said"), [("1\n", "Right. It is 1"), ("9\nx\n2\n", "No. It is 1"), ("\n", "It is 1")])
def test_a_guess(typed: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """On a terminal, where a reader types this."""
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    with open(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert command.run(case="checkpoint_each_layer", answer=False, as_json=False) == 0
    os.close(ours)
    shown = capsys.readouterr().out
    assert said in shown
    assert shown.count("Your guess, 1 to 3") == typed.count("\n")
    assert shown.index("Your guess") < shown.index("Cause.")


def test_ctrl_c_at_the_question_is_130(monkeypatch: pytest.MonkeyPatch):
    def interrupted(choices: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_guess", interrupted)
    monkeypatch.setattr(command.sys, "stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)})())
    assert command.run(case="logits", answer=False, as_json=False) == 130


def test_the_end_of_the_input_is_no_guess(monkeypatch: pytest.MonkeyPatch):
    def ended(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    assert command._guess(3) is None


def test_json():
    rows = json.loads(clinic("--json").stdout)
    assert [row["case"] for row in rows] == list(CASES)
    assert all("cause" not in row for row in rows)
    row = json.loads(clinic("stuck_segment", "--json").stdout)
    assert row["before"]["out_of_memory"]
    assert not row["after"]["out_of_memory"]
    assert row["bytes"]["by_formula"] == row["bytes"]["measured"]
    assert row["after"]["settings"] == "expandable_segments:True"
    assert row["right"] == 3
    row = json.loads(clinic("logits", "--json").stdout)
    assert row["before"] == {"peak_in_use": row["bytes"]["measured"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "clinic: there is no case 'nothing': there are checkpoint_each_layer, "),
        (("--answer",), "clinic: --answer shows the answer of one case: name one of checkpoint_each_layer, "),
    ],
)
def test_refused(arguments: tuple[str, ...], message: str):
    ran = clinic(*arguments)
    assert ran.exit_code == 2
    assert message in ran.output


def test_a_formula_that_is_wrong_says_so():
    found = Finding("", "", "", "", by_formula=1, measured=2)
    assert "which is a defect" in _agrees(found)
