"""The model against PyTorch's own allocator: ``c10`` of 2.6.0, compiled without a GPU, answered these programs."""

from __future__ import annotations

import gzip
import json

import pytest

from .source.programs import COUNTERS, RECORDING, Program, differs

PROGRAMS = [Program.from_json(said) for said in json.loads(gzip.decompress(RECORDING.read_bytes()))]


@pytest.mark.parametrize("settings", sorted({program.settings for program in PROGRAMS}))
def test_every_address_and_every_counter_is_that_of_pytorchs_own_allocator(settings: str, reliability):
    """Memory pools, blocks that wait for a stream, retries, and requests that are refused among them."""
    programs = [program for program in PROGRAMS if program.settings == settings]
    assert [differs(program) for program in programs] == [""] * len(programs)
    reliability("programs compared with PyTorch's own allocator", len(programs))


def test_the_programs_meet_every_rule():
    """Each kind of call, each refusal, and counters that are not 0."""
    assert {call[0] for program in PROGRAMS for call in program.calls} == set("mpfrse")
    assert any("oom" in program.results for program in PROGRAMS)
    seen = [any(program.counters[number] for program in PROGRAMS) for number in range(len(COUNTERS))]
    assert all(seen), [name for name, met in zip(COUNTERS, seen, strict=True) if not met]
