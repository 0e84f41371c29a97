"""Every tip runs on a GPU, with the bytes that ``meta`` says after every event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tinygrad_mem.models import vgg
from tinygrad_mem.tips import TIPS, Failed, Measured, measure

from .small import STAGES, small

# where no kernel runs, numbers are junk
pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("only_memory"), pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.fixture(autouse=True)
def small_networks(monkeypatch: pytest.MonkeyPatch, gpu_pool: object) -> None:
    monkeypatch.setitem(vgg.CONVOLUTIONS, 16, STAGES)


@pytest.mark.parametrize("name", TIPS)
def test_a_tip_has_the_bytes_that_meta_says(name: str):
    tip = small(TIPS[name])
    found = measure(replace(tip, cases=tuple(replace(case, learners=None) for case in tip.cases)), "cuda")
    for result in found:
        assert not isinstance(result, Failed), result.message
        assert isinstance(result, Measured)
        said, ran = result.predicted, result.comparison
        assert (ran.peak, ran.saved, ran.temporary) == (said.peak, said.saved, said.temporary), result.when
        assert result.exact, result.when
