"""Each case of the clinic: its bytes are its formula's, its cure cures, and it says where it was asked."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import tinygrad_mem as tm
from tests.profiles import some
from tinygrad_mem import clinic, memory
from tinygrad_mem.clinic import CASES, Case, Finding, Run
from tinygrad_mem.clinic.case import run
from tinygrad_mem.devices import Pool
from tinygrad_mem.pytorch import CachingAllocator

MIB = 1 << 20
SMALL = 1 << 29
"""Programs below so many bytes are run for real, too."""


@cache
def examined(name: str) -> tuple[Run, Run, Finding]:
    return clinic.examine(CASES[name])


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_there_are_as_many_as_files():
    folder = Path(clinic.__file__).parent / "cases"
    assert list(CASES) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    assert [each.name for each in CASES.values()] == list(CASES)
    assert len(CASES) >= 12
    assert len({each.question for each in CASES.values()}) == len(CASES)


def test_a_name_that_is_no_case_is_refused():
    with pytest.raises(KeyError):
        CASES["__init__"]


def test_the_bytes_are_the_formula_s(case: Case):
    *_, found = examined(case.name)
    assert found.by_formula == found.measured > 0


def test_the_cure_needs_less(case: Case):
    before, after, _ = examined(case.name)
    assert not after.died
    assert before.died or after.peak < before.peak


SLOW = {"kept_losses", "validation"}
"""Programs whose products take seconds."""


@pytest.mark.parametrize("name", some(list(CASES), [name for name in CASES if name not in SLOW]))
def test_programs_run_for_real_as_they_are_predicted(name: str, monkeypatch: pytest.MonkeyPatch):
    case = CASES[name]
    if max(each.track.peak for each in examined(case.name)[:2]) > SMALL:
        pytest.skip("too large to run in a test")
    monkeypatch.setattr(tm.device("cpu"), "pool", Pool("cpu"))
    for program, foreseen in zip((case.before, case.after), examined(case.name)[:2], strict=True):
        with memory.track() as track:
            program.run()
        assert track.peak == foreseen.track.peak


def test_it_can_be_guessed(case: Case):
    assert 3 <= len(case.choices) == len(set(case.choices))
    assert 0 <= case.right < len(case.choices)
    assert case.question.endswith("?")


def test_the_right_choices_are_not_always_the_same():
    places = [case.right for case in CASES.values()]
    assert all(places.count(place) >= 3 for place in range(3))


def test_texts_are_whole(case: Case):
    *_, found = examined(case.name)
    for text in (found.cause, found.fix, case.reports):
        assert text.endswith((".", ".)"))
        assert "  " not in text
    assert not found.what.endswith(".")


def test_programs_fit_into_a_terminal(case: Case):
    for program in (case.before, case.after):
        for line in program.source().splitlines():
            assert len(line) <= 74, line


def test_the_source_is_a_thread(case: Case):
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", case.link)


@pytest.mark.parametrize("text", ["cause", "fix"])
def test_numbers_of_an_answer_are_computed(case: Case, text: str):
    """A number of four digits or more is no literal of the answer: it stands in braces there."""
    source = Path(str(__import__(case.explain.__module__, fromlist=["x"]).__file__)).read_text(encoding="utf-8")
    body = source[source.index("def explain") : source.index("what=")]
    literal = re.sub(r"\{[^}]*\}", "", body[body.index(f"{text}=") :])
    assert re.findall(r"\d,\d{3}|\d{4}", literal) == []


# --- what single cases say


def test_two_settings_are_the_numbers_of_the_gpu():
    """Reserved and allocated MiB after each twentieth cycle, as the thread has them from a GPU."""
    said = {0: (66, 220), 20: (106, 2980), 40: (146, 5760), 60: (186, 8520), 80: (226, 11300), 100: (266, 14060)}
    allocator = CachingAllocator("max_split_size_mb:128,expandable_segments:True")
    allocator.malloc(64 * MIB)
    for cycle in range(101):
        a, b = allocator.malloc(91 * MIB), allocator.malloc(91 * MIB // 2)
        allocator.malloc(2 * MIB)
        allocator.free(a)
        allocator.free(b)
        if cycle in said:
            now = [allocator.stats.current(name) // MIB for name in ("allocated_bytes", "reserved_bytes")]
            assert tuple(now) == said[cycle]
    assert examined("two_settings")[0].peak == 14060 * MIB
    assert run(clinic.Program(CASES["two_settings"].before.run, "max_split_size_mb:128")).peak < 500 * MIB
    assert examined("two_settings")[1].peak < 500 * MIB


def test_checkpoints_around_each_layer_change_no_byte():
    assert "to the byte the same" in examined("checkpoint_each_layer")[2].cause


def test_a_stuck_segment_is_mostly_free():
    before, _, _ = examined("stuck_segment")
    assert before.died
    assert before.replay is not None
    row = before.replay.timeline[before.replay.timeline[:, 0] == before.replay.out_of_memory[0]][0]
    assert row[1] < row[2] / 2


def test_lora_trains_less_than_one_percent():
    assert "0.8% of the parameters learn" in examined("lora")[2].cause


def test_nothing_is_allocated_when_nvidia_smi_is_asked():
    assert "At the end 0 bytes are allocated" in examined("nvidia_smi")[2].cause
