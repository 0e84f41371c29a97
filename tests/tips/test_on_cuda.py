"""Every tip runs on a GPU, with the bytes that ``meta`` says after every event."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

import tinygrad_mem as tm
from tinygrad_mem.models import vgg
from tinygrad_mem.tips import TIPS, Failed, Measured, measure

from .small import STAGES, small

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def empty_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pool of the test's own: what others have left alive is no part of what is measured."""
    import cupy

    from tinygrad_mem.devices.cuda import _Pool

    cuda, pool = tm.device("cuda"), cupy.cuda.MemoryPool()
    monkeypatch.setitem(vgg.CONVOLUTIONS, 16, STAGES)
    monkeypatch.setattr(cuda, "pool", _Pool(pool, cuda._device, str(cuda)))
    with cupy.cuda.using_allocator(pool.malloc):
        yield
        gc.collect()


@pytest.mark.parametrize("name", TIPS)
def test_a_tip_has_the_bytes_that_meta_says(name: str):
    tip = small(TIPS[name])
    found = measure(replace(tip, cases=tuple(replace(case, learners=None) for case in tip.cases)), "cuda")
    for result in found:
        assert not isinstance(result, Failed), result.message
        assert isinstance(result, Measured)
        said, ran = result.foretold, result.comparison
        assert (ran.peak, ran.saved, ran.transient) == (said.peak, said.saved, said.transient), result.when
        assert result.exact, result.when
