"""Tasks that fail in float16, each without the one mechanism that is made for it: the failure, then the cure."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinygrad_mem as tm

SCRIPT = Path(__file__).parents[2] / "tutorials" / "half_precision.py"


@pytest.fixture(scope="module")
def lesson():
    spec = importlib.util.spec_from_file_location("half_precision", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_gradients_that_underflow_without_loss_scaling(lesson):
    plain, scaled, exact = lesson.faint_task(1.0), lesson.faint_task(lesson.SCALE), lesson.faint_task(1.0, tm.float32)
    assert plain[-1] == plain[0], "no gradient came through"
    assert exact[-1] < 0.9 * exact[0]
    np.testing.assert_allclose(scaled, exact, rtol=0.02)


def test_where_gradients_are(lesson):
    """A scale moves the histogram as a whole, by its own exponent."""
    exponents, scaled = lesson.gradient_exponents(), lesson.gradient_exponents(lesson.SCALE)
    assert abs(np.median(scaled) - np.median(exponents) - np.log2(lesson.SCALE)) < 0.01
    assert (exponents < lesson.SMALLEST - 1).mean() > 0.001
    assert (scaled < lesson.SMALLEST - 1).mean() < (exponents < lesson.SMALLEST - 1).mean() / 20
    assert scaled.max() < 16


def test_the_scale_finds_its_place(lesson):
    """It begins too high: steps are skipped until no gradient is inf; then it grows, and what it hits costs a step."""
    history = lesson.scale_history()
    scales, made = [h[0] for h in history], [h[1] for h in history]
    first = made.index(True)
    assert first > 0
    assert scales[: first + 1] == [2.0 ** (24 - i) for i in range(first + 1)]
    assert not all(made[first:]), "the scale tries a higher one now and then"
    assert sum(made) > 0.8 * len(made)
    assert all(b == a / 2 if not m else b in (a, 2 * a) for a, b, m in zip(scales, scales[1:], made, strict=False))
    assert history[-1][2] < 0.3 * history[0][2]


def test_updates_that_vanish_without_master_weights(lesson):
    assert lesson.slow_task(master_weights=False)[-1] == 1.0
    kept, exact = lesson.slow_task(master_weights=True), lesson.slow_task(False, tm.float32)
    assert exact[-1] < 0.93
    np.testing.assert_allclose(kept, exact, atol=2**-11)


def test_sums_that_stall_without_float32(lesson):
    assert lesson.running_sum()[-1] == 2048.0
    assert lesson.our_sums([2048, 2050, 5000, 60_000]) == [2048.0, 2050.0, 5000.0, 60_000.0]


def test_adams_eps_is_nan_in_float16_alone(lesson):
    assert float(tm.tensor(1e-8, dtype=tm.float16)) == 0.0
    naive = lesson.unused_weight(lesson.HalfAdam)
    assert np.isnan(naive[0, 3]), "0 / 0, in the first step"
    for masters in (False, True):
        ours = lesson.unused_weight(lambda w, masters=masters: tm.optim.Adam([w], lr=1e-2, master_weights=masters))
        assert (ours[:, 3] == 1.0).all()
        assert np.isfinite(ours).all()
        assert (ours[-1, :3] < 0.6).all()


def test_the_lesson_runs(tmp_path: Path):
    picture = tmp_path / "half.png"
    ran = subprocess.run([sys.executable, str(SCRIPT), str(picture)], capture_output=True, text=True, check=True, timeout=600)
    assert "5,000 ones: added up in float16 2,048, sum() 5,000" in ran.stdout
    assert picture.stat().st_size > 20_000
