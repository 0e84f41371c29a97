"""Samples of PyTorch's table of ops, predicted: what is asked for and freed, in which order and as what, is what a run does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import flat
from tests.predicted import difference
from tests.profiles import examples
from tinygrad_mem.errors import DataDependenceError, TinygradMemError

from .said import NotOursError, Said
from .trial import DTYPES, Trial, offered, trials

CAP = examples(2)
"""How many samples of an op are tried in each dtype."""


def few(name: str) -> Iterator[Trial]:
    """Some samples of an op, as a function and in place."""
    for op in offered()[name]:
        groups: dict[Any, list[Trial]] = {}
        for same in trials(op, DTYPES[1:3]):
            for trial in same:
                if trial.form in ("function", "in-place") and trial.name == op.name:
                    groups.setdefault((trial.dtype, trial.form), []).append(trial)
        for found in groups.values():
            for i in range(min(CAP, len(found))):
                yield found[i * len(found) // min(CAP, len(found))]


def program(trial: Trial) -> Callable[[], None]:
    """The sample's call and its backward, from arrays that are there before."""

    def run() -> None:
        said, sample = Said(), trial.sample
        input, args, kwargs = said(sample.input), said(tuple(sample.args)), said(sample.kwargs)
        if trial.writes and hasattr(input, "clone"):
            input = input.clone()
        results = [r for r in flat(trial.ours(input, *args, **kwargs)) if r.requires_grad]
        if results:
            rng = np.random.default_rng(7)
            tm.autograd.backward(results, [tm.tensor(rng.standard_normal(tuple(r.shape)).astype(r.dtype)) for r in results])

    return run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", offered())
def test_a_prediction_of_a_sample_is_the_run_event_by_event(name: str, reliability: Callable[[str, int], None]):
    wrong, count, refused = {}, 0, 0
    for trial in few(name):
        run = program(trial)
        try:
            run()
        except (TinygradMemError, NotOursError, TypeError):
            continue  # what is refused in a prediction too, or has no name here
        try:
            found = difference(run)
        except DataDependenceError:
            refused += 1  # values decide about shapes
            continue
        count += 1
        if found:
            wrong.setdefault(found, str(trial))
    assert not wrong, "\n" + "\n".join(f"{said}: {why}" for why, said in wrong.items())
    assert count or refused
    if count:
        reliability("samples of PyTorch's table of ops predicted event by event", count)
