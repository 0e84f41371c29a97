"""The choices that ``doctor`` prints: each with its reason, the same in each run, and another one where it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tinygrad_mem.cli import checks, choices, doctor
from tinygrad_mem.cli.app import app

VARIABLES = (
    "TINYGRAD_MEM_THREADS",
    "NPY_DISABLE_CPU_FEATURES",
    "OPENBLAS_CORETYPE",
    "TINYGRAD_MEM_CONV",
)
PROGRAM = """
import json
from dataclasses import asdict
from tinygrad_mem.cli import choices
print(json.dumps([asdict(each) for each in choices.choices()]))
"""


def made(**variables: str) -> dict[str, dict[str, str]]:
    """The choices of a new process with these variables of the environment, by what is chosen."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return {each["what"]: each for each in json.loads(done.stdout)}


def test_another_choice_is_made_where_it_is_asked_for():
    """With all that doctor prints, each choice is another one, and says that it was asked for."""
    usual = made()
    assert usual == made(), "they depend on the machine alone"
    asked = dict(each["another"].split("=", 1) for each in usual.values() if each["another"])
    assert set(asked) <= set(VARIABLES)
    asked = {name: value.strip("'").partition(",")[0] for name, value in asked.items()}
    found = made(**asked)
    for what, choice in usual.items():
        if choice["another"]:
            assert choice["why"] != choices.ASKED
            assert found[what]["why"] == choices.ASKED
            assert found[what]["chosen"] != choice["chosen"] or asked.get(choice["another"].partition("=")[0]) in (
                choice["chosen"],
                choice["chosen"].upper(),
            ), "an equal choice was asked for"


def test_doctor_prints_each_choice_its_reason_and_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "blas_rates", dict)
    monkeypatch.setattr(checks, "run", lambda device: iter(()))
    shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "80"}).stdout.splitlines()
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["choices"]
    assert len(found) == 5
    for each in found:
        assert any(all(each[part] in line for part in ("what", "chosen", "why")) for line in shown), each
        assert not each["another"] or f"to change {each['what']}: {each['another']}" in shown


def test_a_processor_has_a_name_and_vectors(tmp_path: Path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Fast One @ 3 GHz\nmodel name\t: another\n")
    assert choices.processor(tmp_path / "cpuinfo") == "A Fast One @ 3 GHz"
    assert choices.processor(tmp_path / "missing")
    assert choices.vector_bits() in (128, 256, 512)


def test_vectors_follow_from_instructions(monkeypatch: pytest.MonkeyPatch):
    for has, bits in (({"AVX512_SKX": True, "AVX2": True}, 512), ({"AVX512_SKX": False, "AVX2": True}, 256), ({}, 128)):
        monkeypatch.setattr(choices, "features", lambda has=has: has)
        assert choices.vector_bits() == bits


def test_an_unknown_blas_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choices.blas, "_library", None)
    found = {each.what: each for each in choices.choices()}
    assert found["BLAS's kernels"].why == "NumPy's BLAS is not OpenBLAS"
