"""``python -m tinygrad_mem plan``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tinygrad_mem.cli.app import app

NETWORK = ["plan", "resnet20", "--input", "3x16x16", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TINYGRAD_MEM_CACHE", "")
    monkeypatch.setattr("tinygrad_mem.plan.times.SECONDS", 0.0)


@cache  # several tests ask for the same plan
def plan(*arguments: str):
    return CliRunner().invoke(app, [*NETWORK, *arguments])


def test_the_table_marks_the_plan():
    ran = plan("--budget", "5.5MiB")
    assert ran.exit_code == 0
    assert sum("→" in line for line in ran.stdout.splitlines()) == 1
    assert "MiB of 5.50 MiB" in ran.stdout
    assert "measured on cpu" in ran.stdout


def test_json_and_a_picture(tmp_path: Path):
    ran = plan("--budget", "5.5MiB", "--json", "--picture", str(tmp_path / "front.png"))
    found = json.loads(ran.stdout)
    assert found["plan"]["peak_used"] <= 5.5 * (1 << 20) < found["plain"]["peak_used"]
    assert found["plan"]["techniques"]
    assert found["plan"]["peak_reserved"] > 5.5 * (1 << 20)
    assert "Reserved is without a limit." in plan("--budget", "5.5MiB").stdout
    assert "Reserved is without a limit." not in plan("--budget", "1 GiB", "--allow", "in_backward").stdout
    assert [row["peak_used"] for row in found["front"]] == sorted((row["peak_used"] for row in found["front"]), reverse=True)
    assert (tmp_path / "front.png").stat().st_size > 10_000


def test_the_largest_batch():
    ran = plan("--budget", "7MiB", "--largest-batch", "--allow", "in_backward", "--json")
    assert json.loads(ran.stdout)["batch_size"] >= 8
    assert plan("--largest-batch").exit_code == 2


def test_names_of_techniques(tmp_path: Path):
    ran = plan("--allow", "in_backward,compression", "--budget", "4MiB", "--picture", str(tmp_path / "front.svg"), "--json")
    found = json.loads(ran.stdout)
    assert found["plan"]["techniques"][-1] == "compression"
    assert found["plan"]["numbers"] == "approximate"
    assert found["plain"]["numbers"] == "identical"
    assert {name for row in found["front"] for name in row["techniques"]} == {"in_backward", "compression"}
    assert plan("--allow", "in_backward", "--budget", "4MiB").exit_code == 1


def test_offload_is_shown_with_the_bytes_of_the_host():
    pytest.importorskip("cupy")
    ran = plan("--allow", "in_backward,offload", "--device", "cuda", "--budget", "5.5MiB")
    assert "on the host" in ran.stdout
    assert "offload: peak" in ran.stdout or "offload" in ran.stdout.splitlines()[-1]
    assert "on the host" not in plan("--allow", "in_backward").stdout


def test_what_does_not_fit_is_said_and_is_status_1():
    ran = plan("--budget", "2MiB")
    assert ran.exit_code == 1
    assert "Most of it is" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "much"], "--budget: 'much' is not a size"),
        (["--input", "3by3"], "is not a shape"),
        (["--device", "tpu"], "tpu"),
        (["--allow", "all"], "allow is 'identical', 'close', 'approximate', or some of recompute, "),
        (["--allow", "recompute,offload"], "offload is allowed, but on the cpu, the host's memory is the same memory"),
    ],
)
def test_bad_input_is_status_2_and_a_message(arguments: list[str], message: str):
    ran = plan(*arguments)
    assert ran.exit_code == 2
    assert message in ran.output
    assert "plan: plan: " not in ran.output
    assert "Traceback" not in ran.output


def test_an_unknown_network():
    ran = CliRunner().invoke(app, ["plan", "resnet21"])
    assert ran.exit_code == 2
    assert "no network 'resnet21'" in ran.output
