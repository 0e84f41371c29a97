"""The verdict follows from the figure, the number that is found, and the parts that are named; nothing is written by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tinygrad_mem.claims import Counted, Extra, Figure, by_error, judge
from tinygrad_mem.claims.claim import Claim, Judged, Publication
from tinygrad_mem.errors import ArgumentError

GB = 10**9


@pytest.mark.parametrize(
    ("figure", "found", "kind"),
    [
        ("31.4 GB", 31_350_000_000, "reproduced"),  # rounded
        ("31.4 GB", 31_499_999_999, "reproduced"),  # cut off
        ("31.4 GB", 31_500_000_000, "refuted"),
        ("31.4 GB", 31_349_999_999, "refuted"),
        ("120 GB", 120_999_999_999, "reproduced"),
        ("120 GB", 121 * GB, "refuted"),
        ("about 120 GB", 129_999_999_999, "reproduced"),  # the last digit that is not 0
        ("about 120 GB", 130 * GB, "refuted"),
        ("about 120 GB", 115 * GB, "reproduced"),
        ("about 6 GB", 4_872_467_456, "refuted"),
        ("1,024 B", 1024, "reproduced"),
        ("1,024 B", 1025, "refuted"),
        ("1,024 B", 1023, "refuted"),
        ("about 1,024 B", 1025, "refuted"),
        ("25,557,032 parameters", 25_557_033, "refuted"),
        ("4,044.004 MiB", 4_240_445_440, "reproduced"),
        ("1 KiB", 1024, "reproduced"),
        ("at most 48 GB", 1, "reproduced"),
        ("at most 48 GB", 49 * GB, "refuted"),
        ("at least 2 GB", 10**15, "reproduced"),
        ("at least 2 GB", GB, "refuted"),
        ("75 %", Fraction(749, 1000), "reproduced"),
        ("0.37 bits a parameter", Fraction(373, 8000), "reproduced"),
        ("10 times", 0, "refuted"),
    ],
)
def test_the_last_digit_decides(figure: str, found: int | Fraction, kind: str):
    assert judge(Figure(figure), Counted(found)).kind == kind


def test_how_exactly_is_said():
    assert judge(Figure("1,024 B"), Counted(1024)).text == "reproduced to the byte"
    assert judge(Figure("21 rows"), Counted(21)).text == "reproduced exactly"
    assert judge(Figure("1.0 KiB"), Counted(1024)).text == "reproduced to its last digit"
    assert judge(Figure("at most 2 KiB"), Counted(1024)).text == "reproduced within its bound"
    assert judge(Figure("310 MB"), Counted(155_304_960)).text == "refuted: 2.00 times too large"
    assert judge(Figure("130.03 MB"), Counted(4_240_445_440)).text == "refuted: 33 times too small"
    assert judge(Figure("418.18 MiB"), Counted(433_241_088)).text == "refuted: 1.012 times too large"


@pytest.mark.parametrize(
    ("least", "most", "kind"),
    [
        (2 * GB, 2 * GB, "explained"),
        (0, 2 * GB, "explained"),
        (2 * GB, 9 * GB, "explained"),
        (0, GB, "refuted"),  # not enough
        (3 * GB, 9 * GB, "refuted"),  # too much
        (-GB, 0, "refuted"),
    ],
)
def test_parts_explain_only_what_they_reach(least: int, most: int, kind: str):
    found = judge(Figure("6 GB"), Counted(4 * GB, (Extra("the rest", least, most),)))
    assert found.kind == kind
    assert found.off == 1.5


def test_parts_add_up_and_can_be_what_a_figure_leaves_out():
    parts = (Extra("a", GB, GB), Extra("b", GB, GB))
    assert judge(Figure("6 GB"), Counted(4 * GB, parts)).kind == "explained"
    assert judge(Figure("6 GB"), Counted(4 * GB, parts[:1])).kind == "refuted"
    assert judge(Figure("6 GB"), Counted(8 * GB, (Extra("left out", -2 * GB, -2 * GB),))).kind == "explained"


def test_parts_are_not_asked_where_the_figure_is_reproduced():
    assert judge(Figure("6 GB"), Counted(6 * GB, (Extra("more", GB, GB),))).kind == "reproduced"


@pytest.mark.parametrize("text", ["31.4", "31.4 gb", "GB", "roughly 3 GB", "-3 GB", "3GB", ""])
def test_what_is_no_figure_is_refused(text: str):
    with pytest.raises(ArgumentError, match="is not a figure: write it as 'about 6 GB', with one of the units B, KiB"):
        judge(Figure(text), Counted(1))


@pytest.mark.parametrize(
    ("figure", "value", "text"),
    [
        ("31.4 GB", 31_403_802_624, "31.404 GB"),
        ("about 4 bytes a parameter", Fraction(227, 100_000), "0.0023 bytes a parameter"),
        ("1,024 B", 4096, "4,096 B"),
        ("75 %", Fraction(7486, 10_000), "74.86 %"),
        ("10 times", 0, "0.00 times"),
    ],
)
def test_numbers_are_shown_in_the_figure_s_unit(figure: str, value: int | Fraction, text: str):
    assert Figure(figure).shown(Fraction(value)) == text


def test_the_most_wrong_come_first():
    def judged(name: str, figure: str, *parts: Extra) -> Judged:
        claim = Claim(name, Publication("", ""), "", Figure(figure), "", lambda: GB)
        return Judged(claim, Counted(GB, parts), judge(claim.stated, Counted(GB, parts)))

    rows = [
        judged("right", "1 GB"),
        judged("twice", "2 GB"),
        judged("a third", "0.33 GB"),
        judged("named", "9 GB", Extra("", 8 * GB, 8 * GB)),
    ]
    left = Judged(rows[0].claim, None, None)
    assert [each.claim.name for each in by_error([left, *rows])] == ["a third", "twice", "named", "right", "right"]
