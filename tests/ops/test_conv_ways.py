"""``TINYGRAD_MEM_CONV``: another algorithm for convolutions computes the same, in the same bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.benchmarks.conv import SHAPES
from tinygrad_mem import memory
from tinygrad_mem.kernels.numpy import conv as kernels
from tinygrad_mem.models.lenet import LeNet

KINDS = ("forward", "input", "weight")
CHOSEN = {  # images, channels in, out, size, kernel, stride, padding, groups: where the rule chooses each algorithm
    "taps": (16, 256, 256, 4, 3, 1, 1, 1),
    "winograd": (8, 128, 128, 16, 3, 1, 1, 1),
    "depthwise": (2, 8, 8, 9, 3, 1, 1, 8),
    "rows": SHAPES["LeNet 6-16"],
    "columns": (2, 8, 12, 10, 1, 1, 0, 1),
}


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator:
    def asked(name: str) -> None:
        monkeypatch.setattr(kernels, "asked_way", name)
        kernels._way.cache_clear()
        kernels.conv_workspace.cache_clear()

    yield asked
    monkeypatch.undo()
    asked("")


def sizes(shape: tuple[int, ...]) -> tuple:
    """What ``conv_workspace`` takes after the kind."""
    n, c, o, size, k, s, p, groups = shape
    after = (size + 2 * p - k) // s + 1
    x, w, y = (n, c, size, size), (o, c // groups, k, k), (n, o, after, after)
    return x, w, y, (s, s), (p, p), (1, 1), groups, np.dtype(np.float32)


def run(kind: str, arguments: tuple) -> np.ndarray:
    """The result, from a workspace that is full of nan."""
    rng = np.random.default_rng(1)
    x, w, gy = (rng.standard_normal(shape, np.float32) for shape in arguments[:3])
    work, settings = np.full(kernels.conv_workspace(kind, *arguments), 255, np.uint8), arguments[3:7]
    run, given, out = {
        "forward": (kernels.conv_forward, (x, w, None), np.empty_like(gy)),
        "input": (kernels.conv_backward_input, (gy, w, None), np.empty_like(x)),
        "weight": (kernels.conv_backward_weight, (gy, x), np.empty_like(w)),
    }[kind]
    run(*given, *settings, work, out=out)
    return out


@pytest.mark.parametrize("rule", CHOSEN)
def test_any_algorithm_computes_the_same_in_the_same_bytes(rule: str, ask):
    arguments = sizes(CHOSEN[rule])
    used = set()
    for kind in KINDS:
        ask("")
        expected, room = run(kind, arguments), kernels.conv_workspace(kind, *arguments)
        assert kernels._way(kind, *arguments)[0] is kernels.WAYS[rule]
        for name in kernels.WAYS:
            ask(name)
            assert kernels.conv_workspace(kind, *arguments) == room
            if kernels._way(kind, *arguments)[0] is kernels.WAYS[name]:
                used.add(name)
                np.testing.assert_allclose(run(kind, arguments), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert rule in used
    assert len(used) > 1 or rule == "depthwise", "which takes no workspace, as no other does"


def test_workspaces_of_the_networks_do_not_depend_on_the_choice(ask):
    found = {}
    for name in ("", *kernels.WAYS):
        ask(name)
        found[name] = [kernels.conv_workspace(kind, *sizes(shape)) for shape in SHAPES.values() for kind in KINDS]
    assert all(row == found[""] for row in found.values())
    used = {kernels._way(kind, *sizes(shape))[0] for shape in SHAPES.values() for kind in KINDS}
    assert len(used) > 1, "columns were asked for last, and others are left where they take more"


def test_a_steps_peak_and_loss_do_not_depend_on_the_choice(ask):
    def step() -> tuple[int, float]:
        tm.manual_seed(1)
        with memory.track("cpu") as track:
            loss = tm.nn.functional.cross_entropy(LeNet()(tm.randn(2, 1, 28, 28)), tm.tensor([1, 2]))
            loss.backward()
        return track.peak, loss.item()

    ask("")
    peak, loss = step()
    for name in kernels.WAYS:
        ask(name)
        assert step() == (peak, pytest.approx(loss, abs=1e-5))


def test_an_unknown_algorithm_is_refused(ask):
    ask("fastest")
    with pytest.raises(ValueError, match=r"TINYGRAD_MEM_CONV: expected one of taps, winograd, .*found 'fastest'"):
        run("forward", sizes(CHOSEN["rows"]))
