"""A tip that is run: bytes equal on both devices and every time, numbers compared, verdicts that follow from them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import Pool
from tinygrad_mem.memory import Category, Change, Comparison, Effect
from tinygrad_mem.models.names import Named
from tinygrad_mem.tips import TIPS, Failed, Measured, Scene, measure, verdict
from tinygrad_mem.tips.measure import Numbers, Outcome, distance
from tinygrad_mem.tips.table import table
from tinygrad_mem.tips.verdict import kind_of, reason, result_words, summary


@pytest.fixture(autouse=True)
def own_pool() -> Iterator[None]:
    """What other tests have left alive is no part of what is measured."""
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    yield
    cpu.pool = before


@cache
def measured(name: str, batch_size: int | None = None) -> list[Measured]:
    """A tip, measured once for all tests of its results."""
    found = measure(TIPS[name].on(None, batch_size))
    assert all(isinstance(result, Measured) for result in found)
    return found  # type: ignore[return-value]


QUICK = ["del", "dropout", "reversible", "half", "float32_sums", "eight_bit", "in_backward"]
QUICK += ["dynamic_padding", "packed_sequences", "selection", "chunking", "attention"]


@pytest.mark.parametrize("name", QUICK)
def test_the_cpu_has_the_bytes_of_meta(name: str):
    """A CPU computes slowly in half precision: one image has to do."""
    for result in measured(name, 1 if name == "half" else 4):
        assert result.exact
        for effect in ("peak", "saved", "temporary"):
            assert getattr(result.comparison, effect) == getattr(result.predicted, effect)


def test_a_line_does_not_contradict_itself():
    """Bytes are called exact only where every prediction was; a number is called another one only where it is."""
    (found, *_) = measured("del", 4)
    tip = TIPS["del"]
    assert "Bytes are exact: all 2 runs are as predicted, to the byte." in summary([(tip, [found])])
    assert summary([(tip, [found])]).startswith("1 tip: 1 saves")
    assert summary([(tip, [found])] * 2).startswith("2 tips: 2 save")
    wrong = replace(found, exact=False)
    assert "exact" not in summary([(tip, [found, wrong])])
    assert "1 of 2 pairs differ from their prediction, which is a defect: please report it." in summary([(tip, [found, wrong])])
    other = replace(wrong, predicted=replace(found.predicted, peak=Effect(0, 1)))
    for result, words in ((wrong, "predicted otherwise at some event"), (other, "predicted +1"), (found, "")):
        for width in (60, 200):
            console = Console(file=io.StringIO(), width=width)
            console.print(table([(tip, [result])], width))
            text = " ".join(re.sub("[^a-z:+0-9]", " ", console.file.getvalue()).split())
            assert words in text if words else "predicted" not in text


def test_what_is_about_several_ranks_is_predicted_and_says_so():
    tip = TIPS["zero_3"]
    (found,) = measured("zero_3")
    assert (found.time, found.ranks, result_words(found)) == (None, 4, "predicted, rank 0 of 4")
    assert verdict([found]).text == "saves"
    (other,) = measured("del", 4)[:1]
    said = "Tips about several ranks were predicted, not run."
    assert summary([(tip, [found])]) == f"1 tip: 1 saves. {said}"
    assert "all 2 runs are as predicted, to the byte. " + said in summary([(tip, [found]), (TIPS["del"], [other])])
    for width in (60, 200):
        console = Console(file=io.StringIO(), width=width)
        console.print(table([(tip, [found])], width))
        assert "not measured" in console.file.getvalue()


def test_a_second_run_has_the_same_bytes_and_numbers():
    first, second = (measure(TIPS["zero_grad"].on(None, 8)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert isinstance(a, Measured)
        assert isinstance(b, Measured)
        assert a.comparison == b.comparison
        assert a.after.numbers.losses == b.after.numbers.losses
        assert distance(a.after.numbers, b.after.numbers) == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("in_backward", "bit-identical"),
        ("zero_grad", "bit-identical"),
        ("checkpoint_sequential", "bit-identical"),
        ("attention", "within"),
        ("chunking", "within"),
        ("sgd", "differs"),
        ("fewer_channels", "another model"),
    ],
)
def test_results_are_compared(name: str, words: str):
    assert all(result_words(result).startswith(words) for result in measured(name, 4))


@pytest.mark.parametrize("name", ["half_states", "eight_bit"])
def test_digits_are_learned_as_well(name: str):
    """Adam with smaller moments learns as well as Adam; the words say how well each does."""
    (result,) = measured(name, 4)
    assert result.accuracies is not None
    before, after = result.accuracies
    assert before >= 0.95
    assert abs(after - before) <= 0.01
    assert result_words(result).endswith(f"; digits {before:.1%} to {after:.1%}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sgd", "saves"),
        ("empty_cache", "myth"),
        ("del", "saves only when: no op saved it"),
        ("master_weights", "improves accuracy"),
        ("float32_sums", "improves accuracy"),
        ("static_loss_scale", "improves accuracy"),
    ],
)
def test_verdicts(name: str, text: str):
    assert verdict(measured(name)).text == text


# --- the verdict is a function of the numbers


def made(peak: int = 0, saved: int = 0, temporary: int = 0, errors: Any = None, when: str = "") -> Measured:
    """A result whose three numbers were 1,000,000 before, and changed by these."""
    found = Comparison(
        *(Effect(1_000_000, 1_000_000 + each) for each in (peak, saved, temporary)), ("forward", "backward"), [], [], []
    )
    numbers = Numbers([1.0], [np.zeros(1)], [np.ones(1)])
    outcome = Outcome(memory.Track("cpu"), 0, 1.0, numbers)
    return Measured(when, outcome, outcome, found, found, True, 0.0, errors)


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (made(peak=-500_000), "saves"),
        (made(peak=-20_000), "saves"),
        (made(peak=-19_999), "myth"),
        (made(peak=-19_999, temporary=-500_000), "saves, but not at the peak"),
        (made(saved=-500_000), "saves, but not at the peak"),
        (made(peak=500_000, saved=-500_000), "saves, but not at the peak"),
        (made(peak=500_000), "costs"),
        (made(), "myth"),
        (made(errors=(1.0, 0.4)), "improves accuracy"),
        (made(errors=(1.0, 0.6)), "myth"),
    ],
)
def test_kinds(result: Measured, kind: str):
    assert verdict([result]).kind == kind
    if result.errors is None:
        assert kind_of(result) == kind


def test_cases_of_different_kinds():
    some = verdict([made(peak=-500_000, when="here"), made(when="there")])
    assert some.text == "saves only when: here"
    assert verdict([made(when="here"), made(temporary=-50_000, when="there"), made(when="elsewhere")]).kind == "myth"
    assert verdict([Failed("", "out of memory on cpu", "out of memory")]).kind == "out of memory"
    assert verdict([Failed("here", "out of memory on cpu", "out of memory"), made(peak=-500_000, when="there")]).kind == "saves"


def test_the_reason_names_what_changed():
    change = Change("net.conv Conv", {Category.ACTIVATION: 3 << 20}, {})
    found = Comparison(
        Effect(9 << 20, 6 << 20), Effect(5 << 20, 2 << 20), Effect(1, 1), ("backward", "forward"), [], [change], []
    )
    outcome = made().before
    said = reason(Measured("", outcome, outcome, found, found, True, 0.0, None))
    assert "activations -3.00 MiB" in said
    assert "net.conv Conv" in said
    assert "the peak was in backward and is in forward" in said
    assert "myth" not in reason(made())


# --- numbers


def numbers(end: list, losses: list | None = None) -> Numbers:
    return Numbers(losses or [1.0], [np.zeros(np.shape(e)) for e in end], [np.asarray(e, np.float64) for e in end])


def test_distance():
    a = numbers([[3.0, 4.0]])
    assert distance(a, a) == 0
    assert distance(a, numbers([[3.0, 4.0]], [1.0 + 1e-9])) == pytest.approx(1e-9, rel=1e-3)
    assert distance(a, numbers([[3.0, 3.0]])) == pytest.approx(1 / 5)
    assert distance(a, numbers([[1.0]])) is None
    assert distance(a, numbers([[3.0, np.nan]])) == np.inf
    assert distance(numbers([[0.0]]), numbers([[-0.0]])) == 0


def test_out_of_memory_is_a_result_and_leaves_nothing():
    with memory.limit("3 MiB"):
        (found,) = measure(TIPS["sgd"])
        assert isinstance(found, Failed)
        assert found.message.startswith("out of memory on cpu: asked for ")
        assert tm.device("cpu").pool.used_bytes() == 0


def test_a_network_that_the_tip_cannot_be_used_on():
    (found,) = measure(TIPS["checkpoint"].on(Named(lambda: nn.Linear(3, 4), (3,), 4), 2))
    assert isinstance(found, Failed)
    assert "no chain of blocks" in found.message
    assert verdict([found]).text == "does not apply"


def test_a_network_of_the_users_takes_the_place_where_the_tip_is_about_any():
    mine = Named(lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), (3, 2, 2), 5)
    assert TIPS["sgd"].on(mine, 7).scene == Scene(mine, 7)
    assert TIPS["del"].on(mine, 7).scene.network is TIPS["del"].scene.network
    (found,) = measure(TIPS["sgd"].on(mine, 7))
    assert isinstance(found, Measured)
    assert found.comparison.peak.change == -2 * 1024  # weight and bias: a block of 512 each, twice


def test_every_tip_says_something_and_shows_its_code():
    for tip in TIPS.values():
        assert tip.says.endswith(".")
        for case in tip.cases:
            for build, source in zip((case.before, case.after), case.source(), strict=True):
                given, _, code = source.rpartition("\ndef ") if isinstance(build, partial) else ("", "", source[4:])
                assert source.endswith(f"def {code}")
                assert all(f"{name}=" in given for name in getattr(build, "keywords", ()))
            assert case.source()[0] != case.source()[1]
        assert len({case.when for case in tip.cases}) == len(tip.cases)
