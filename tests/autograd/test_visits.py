"""Ops, backward and training steps that a signal handler or a finalizer runs inside an op or inside backward."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, nn, scope
from tinygrad_mem.autograd import core, gradients, node_hooks
from tinygrad_mem.ops import base, elementwise
from tinygrad_mem.scope import local

from ..memory.interrupt import visited

STATE = ("op", "phase", "new_role", "line", "module", "caller", "saving", "walk", "saved_hooks", "grad_enabled", "autocast")


class Visitor:
    """Trains something else, and finds the thread as it was afterwards; what it computes is right."""

    def __init__(self) -> None:
        self.net = nn.Linear(3, 2)
        self.rule = tm.optim.SGD(self.net.parameters(), lr=0.0, momentum=0.9)
        self.x = tm.tensor([1.0, 2.0, 3.0])

    def op(self) -> None:
        before = [getattr(local, name) for name in STATE]
        assert (self.x * 2 + 1).sum().item() == 15
        assert all(a is b for a, b in zip(before, [getattr(local, name) for name in STATE], strict=True))

    def step(self) -> None:
        before = [getattr(local, name) for name in STATE]
        with tm.enable_grad():
            self.net.zero_grad()
            self.net(self.x).sum().backward()
        assert self.net.weight.grad is not None
        assert self.net.weight.grad.tolist() == [[1.0, 2.0, 3.0]] * 2
        self.rule.step()
        assert all(a is b for a, b in zip(before, [getattr(local, name) for name in STATE], strict=True))

    def track(self) -> None:
        with memory.track() as track:
            self.op()
        assert track.peak > 0


def run() -> np.ndarray:
    x = tm.tensor([[0.5, -1.0], [2.0, 0.1]], requires_grad=True)
    y = (x * 3).exp() + x[0]
    (y * y).mean().backward()
    assert x.grad is not None
    return x.grad.numpy()


@pytest.mark.parametrize(("visit", "every"), [("op", 1), ("step", 5), ("track", 37)])
def test_a_visit_between_the_bytecodes_of_an_op_and_its_backward(visit, every, reliability):
    expected, visitor = run(), Visitor()
    with visited(getattr(visitor, visit), core, node_hooks, gradients, elementwise, base, every=every) as where:
        found = run()
    np.testing.assert_array_equal(found, expected)
    assert scope.listeners == ()
    reliability("ops, steps and tracks run between two bytecodes of an op or backward", len(where))


def test_an_error_of_an_op_inside_an_op_is_its_own():
    """What looks like a refused call, and comes from an op itself, is raised and not run again."""
    calls = []

    def forward() -> None:
        calls.append(1)
        raise RuntimeError("cannot enter context: it is already entered")

    with pytest.raises(RuntimeError, match="already entered"):
        scope.run(forward)
    assert calls == [1]
    assert scope.run(lambda: scope.run(lambda: scope.run(np.geterr)))["divide"] == "ignore"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals here")
def test_a_handler_that_trains_while_a_step_runs():
    program = """
import signal, faulthandler
import tinygrad_mem as tm
faulthandler.dump_traceback_later(100, exit=True)
net, other, seen = tm.nn.Linear(64, 64), tm.nn.Linear(4, 2), []
def handler(*_):
    with tm.enable_grad():
        other.zero_grad()
        other(tm.ones(3, 4)).sum().backward()
    assert other.weight.grad.tolist() == [[3.0] * 4] * 2
    seen.append(1)
    signal.setitimer(signal.ITIMER_REAL, 0.0007)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0007)
x = tm.ones(32, 64)
rule = tm.optim.Adam(net.parameters(), lr=0.0)
while len(seen) < 200:
    rule.zero_grad()
    tm.nn.functional.layer_norm(net(x), (64,)).square().mean().backward()
    rule.step()
signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("done\n", "")
