"""Sizes as text: of any number of bytes, in a unit that a reader can compare, and read back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinygrad_mem.memory.sizes import UNITS, bytes_text, parse_bytes, unit_of


@given(
    st.one_of(
        st.integers(-(1 << 70), 1 << 70),
        st.integers(0, 70).map(lambda k: 1 << k),
        st.integers(1, 70).map(lambda k: (1 << k) - 1),
    )
)
def test_any_number_of_bytes(count: int):
    text = bytes_text(count)
    number, unit = text.replace(",", "").split()
    assert abs(float(number) * UNITS[unit] - count) <= 0.0051 * UNITS[unit]
    assert abs(float(number)) < 1024 or unit == "EiB"
    assert abs(float(number)) >= 1 or count == 0
    assert unit_of(count) == (unit, UNITS[unit])
    if count > 0 and "," not in text:
        assert abs(parse_bytes(text) - count) <= 0.0051 * UNITS[unit] + 1


def test_what_no_machine_has():
    assert bytes_text(1 << 40) == "1.00 TiB"
    assert bytes_text(3 << 49) == "1.50 PiB"
    assert bytes_text((1 << 20) - 1) == "1.00 MiB"
    assert bytes_text(1 << 62) == "4.00 EiB"
    assert bytes_text(1 << 80) == "1,048,576.00 EiB"
    assert bytes_text(1 << 2000).endswith(" EiB")
    assert parse_bytes("2 PB") == 2 * 10**15
    assert parse_bytes("0.5EiB") == 1 << 59
