"""``python -m tinygrad_mem snapshot``: one screen, statuses, errors, JSON, the page, other settings."""

from __future__ import annotations

import json
import pickle
import unicodedata
from pathlib import Path

import pytest

import tinygrad_mem as tm
from tinygrad_mem.memory import track
from tinygrad_mem.pytorch.what_if import TRIED

from ..pytorch.built import MIB, Training
from ..pytorch.faults import GrowingShapes, RetainedGraph, TooLarge
from .inside import run

PLANTED = [(Training, None), (RetainedGraph, None), (TooLarge, 170 * MIB), (GrowingShapes, 170 * MIB)]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return Training().run(4).write(tmp_path / "snapshot.pickle")


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """The card was full: shapes grew."""
    return GrowingShapes(capacity=170 * MIB).run(100).write(tmp_path / "full.pickle")


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(("program", "capacity"), PLANTED)
def test_it_is_one_screen(program, capacity, columns, tmp_path):
    path = program(capacity=capacity).run(60).write(tmp_path / "snapshot.pickle")
    lines = run("snapshot", str(path), columns=columns).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    if columns == 80:
        assert len(lines) <= 56
    words = ["The peak", "Reserved bytes, and", "iterations, found", "Out of memory"]
    found = [next(number for number, line in enumerate(lines) if word in line) for word in words]
    assert found == sorted(found)


def test_top_is_rows_of_each_list(snapshot):
    one, many = (run("snapshot", str(snapshot), "--top", top).stdout for top in ("1", "50"))
    assert "4 others" in one
    assert "others" not in many


def test_other_settings(full):
    done = run("snapshot", str(full), "--what-if", "--json")
    assert done.returncode == 0
    rows = json.loads(done.stdout)["what_if"]
    assert [row["settings"] for row in rows if row["what"] == "each"] == [*TRIED]
    assert [row["what"] for row in (rows[0], rows[1], rows[-1])] == ["as recorded", "the same, from the start", "best"]
    assert (rows[0]["fits"], rows[0]["fails"]) == (False, 962)
    assert (rows[-1]["settings"], rows[-1]["fits"]) == ("expandable_segments:True", True)
    assert rows[0]["peak_reserved"] == rows[1]["peak_reserved"] <= 170 * MIB
    shown = run("snapshot", str(full), "--what-if").stdout
    shown = " ".join(shown.split())
    assert "within 178,257,920 bytes (170.00 MiB)" in shown
    assert "best found:" in shown
    assert "event 962 of 963 is the first request that fails: 11,102,208 bytes for" in shown


def test_a_capacity_is_status_1_where_it_is_too_little(snapshot):
    enough, little = (run("snapshot", str(snapshot), "--capacity", size) for size in ("1 GiB", "64 MiB"))
    assert (enough.returncode, little.returncode) == (0, 1)
    assert "is the first request that fails" in little.stdout
    assert "is the first request that fails" not in enough.stdout
    assert "The same requests under other settings within 1,073,741,824 bytes (1.00 GiB)" in " ".join(enough.stdout.split())
    assert "The peak" in enough.stdout


def test_what_was_there_before_may_be_too_much(tmp_path):
    training = Training().run(2)
    training.record()
    training.one_step()
    path = training.write(tmp_path / "later.pickle")
    done = run("snapshot", str(path), "--capacity", "40 MiB")
    assert done.returncode == 1
    assert "As recorded, the blocks from before the recording alone need more than that." in done.stdout
    rows = json.loads(run("snapshot", str(path), "--capacity", "40 MiB", "--json").stdout)["what_if"]
    assert {row["fails"] for row in rows} == {-1}


def test_a_file_without_segments_says_nothing_of_what_was_reserved(tmp_path):
    whole = Training().run(2).snapshot()
    whole["segments"] = []
    whole["device_traces"][0][:] = [event for event in whole["device_traces"][0] if "segment" not in event["action"]]
    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps(whole))
    shown = run("snapshot", str(path)).stdout
    assert "Reserved: the file names no segments" in shown
    assert "The peak: " in shown
    assert json.loads(run("snapshot", str(path), "--json").stdout)["report"]["moments"] == {}


def test_a_track_of_ours_is_another_thing(tmp_path):
    with track("meta") as seen:
        kept = tm.zeros(1000, 1000, device="meta")
    seen.save(tmp_path / "ours.pickle")
    done = run("snapshot", str(tmp_path / "ours.pickle"))
    assert done.returncode == 2
    assert "read it with pytorch.load('ours.pickle')" in done.stderr
    shown = run("snapshot", str(tmp_path / "ours.pickle"), "--what-if")
    assert shown.returncode == 0
    assert "expandable_segments:True" in shown.stdout
    assert kept.shape == (1000, 1000)


def test_the_page_has_the_file_s_name(snapshot, tmp_path):
    done = run("snapshot", str(snapshot), "--html", str(tmp_path / "page.html"))
    assert done.returncode == 0
    page = (tmp_path / "page.html").read_text()
    assert "<title>snapshot.pickle</title>" in page
    assert "The peak: 85,458,944 bytes allocated" in page


def test_the_page_is_another_file(snapshot, tmp_path):
    before = snapshot.read_bytes()
    done = run("snapshot", str(snapshot), "--html", str(snapshot))
    assert (done.returncode, snapshot.read_bytes()) == (2, before)
    assert "is the snapshot itself" in done.stderr
    assert "there is no folder" in run("snapshot", str(snapshot), "--html", str(tmp_path / "no" / "x.html")).stderr


def test_a_device_of_several(tmp_path):
    two = Training().run(1).snapshot()
    two["device_traces"].append([dict(event) for event in two["device_traces"][0][:50]])
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(two))
    assert "choose a device" in run("snapshot", str(path)).stderr
    assert json.loads(run("snapshot", str(path), "--device", "1", "--json").stdout)["report"]["events"] == 50


@pytest.mark.parametrize(
    ("contents", "arguments", "message"),
    [
        (b"a text", [], "snapshot: x.pickle"),
        (pickle.dumps({"segments": [print]}), [], "would run code"),
        (None, [], "No such file"),
        (b"", ["--capacity", "much"], "--capacity: 'much' is not a size"),
        (b"", ["--top", "0"], "top"),
    ],
)
def test_bad_input_is_status_2_and_a_message(contents, arguments, message, tmp_path):
    if contents is not None:
        (tmp_path / "x.pickle").write_bytes(contents)
    done = run("snapshot", str(tmp_path / "x.pickle"), *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_names_move_no_cursor(tmp_path):
    program = Training()
    with program.inside("/home/me/a\x1b[31m\u202eb.py:7 f\ng"):
        program.alloc(5 * MIB)
    path = program.write(tmp_path / "x.pickle")
    for options in ([], ["--what-if"], ["--capacity", "1 MiB"]):
        shown = run("snapshot", str(path), *options).stdout
        assert not {c for c in shown if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def test_its_help_says_what_it_does():
    assert "who had the peak, what is stuck, what grows" in " ".join(run("snapshot", "--help").stdout.split())
