"""After a step parameters, buffers, gradients and optimizer state live, without the collector's help; then nothing does."""

from __future__ import annotations

import gc
from importlib import import_module

import pytest

import tinygrad_mem as tm
from tests.models.test_against_torch import SIZES, TRAINED
from tinygrad_mem.devices import device, round_up
from tinygrad_mem.nn import functional as F


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("module", "name", "arguments", "shape"), TRAINED, ids=[f"{n}{a or ''}".replace(" ", "") for _, n, a, _ in TRAINED]
)
def test_nothing_is_left(module: str, name: str, arguments: dict, shape: tuple, where: str):
    pool = device(where).pool
    function, sizes = SIZES.get(name, (name, {}))
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        with tm.device(where):
            net = getattr(import_module(f"tinygrad_mem.models.{module}"), function)(**sizes, **arguments)
            x, y = tm.ones(*shape), tm.zeros(shape[0], dtype=tm.int64)
        rule = tm.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        rule.step()
        kept = 3 * sum(round_up(p.nbytes) for p in net.parameters()) + sum(round_up(b.nbytes) for b in net.buffers())
        assert pool.used_bytes() - before == kept + sum(round_up(t.nbytes) for t in (x, y, loss))
        del loss
        rule.zero_grad()
        loss = F.cross_entropy(net(x), y)
        del loss, rule
        assert pool.used_bytes() - before < kept
        del net, x, y
        assert pool.used_bytes() == before
    finally:
        gc.enable()
