"""What the numbers of lessons 8 to 17 must be: by formulas that know nothing of the lessons' own."""

from __future__ import annotations

from math import comb, sqrt


def lesson_08(found: dict[str, float]) -> None:
    result, n = 256 * 256 * 4, 144
    for k in (2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 36, 48, 72, 144):
        assert found[f"peak in {k} segments"] == (k + n // k) * result + 1024
    assert found["peak in 1 segments"] == found["peak without"] == (n + 2) * result + 1024
    assert found["best number of segments"] == sqrt(n)
    assert found["peak with the best"] == 2 * sqrt(n) * result + 1024
    assert found["kept when forward ends"] == 22 * result
    assert found["layers that run again"] == n - 12
    kept = [found[f"a hundred linear layers in {k} segments keep"] for k in (1, 2, 10)]
    assert kept == [99 * 2560, 50 * 2560, 18 * 2560]


def lesson_09(found: dict[str, float]) -> None:
    assert [found[f"forwards within {units} units"] for units in (12, 13, 14, 16, 17, 21)] == [14, 10, 9, 8, 7, 5]
    largest = 16 * 24 * 32 * 32 * 4  # a result of the first stage
    assert 3 * largest < found["plain"] - found["planned"] < 6 * largest  # it has 6, that each are kept once
    assert found["planned"] <= found["7 equal segments"] < found["plain"]
    assert found["the plan runs again"] < found["equal segments run again"] / 3
    n, s, r = 1000, 10, 4
    assert comb(s + r - 1, r - 1) < n <= comb(s + r, r)
    assert found["forwards with 10 inputs"] == n + r * n - comb(s + r, r - 1)
    assert found["revolve's peak"] < found["equal segments' peak"] / 9
