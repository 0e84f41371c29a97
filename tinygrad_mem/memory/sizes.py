"""Sizes in bytes as text, and text as sizes."""

from __future__ import annotations

import re

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "EiB": 1 << 60}
"""The units in which sizes are shown, smallest first."""
READ = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15, "EB": 10**18}
READ |= {unit.upper(): size for unit, size in UNITS.items()}
"""The units in which sizes are read, in capitals; "" is bytes."""
_ENDLESS = 1 << 1000  # bytes: beyond that, no float holds the quotient
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def bytes_text(count: int) -> str:
    """A size as text, in 1024-based units: ``"1.00 MiB"``."""
    if abs(count) < 1024:
        return f"{count:,} B"
    unit, size = unit_of(count)
    return f"{count / size:,.2f} {unit}" if abs(count) < _ENDLESS else f"{count // size:,} {unit}"


def unit_of(count: int) -> tuple[str, int]:
    """The unit in which ``count`` bytes are at least 1 and, rounded to hundredths, below 1,024; and the unit's size."""
    fit = (each for each in UNITS.items() if abs(count) < 1024 * each[1] and round(abs(count) / each[1], 2) < 1024)
    return next(fit, ("EiB", UNITS["EiB"]))


def parse_bytes(size: int | str) -> int:
    """The bytes of ``"512 MiB"`` (1024-based), ``"2 GB"`` (1000-based), ``"1.5GiB"`` or ``4096``, rounded down.

    Raises:
        ValueError: it is not a size, or not a positive one.
        TypeError: it is neither text nor a whole number.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"a size is a whole number of bytes or text such as '512 MiB', found {size!r}")
    count = _parse(size) if isinstance(size, str) else size
    if count <= 0:
        raise ValueError(f"a size is at least one byte, found {count:,}")
    return count


def _parse(text: str) -> int:
    match = _SIZE.fullmatch(text)
    unit = READ.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(
            f"{text!r} is not a size: write a number and one of B, KB, MB, GB, TB (1000-based) or KiB, MiB, GiB, TiB "
            "(1024-based), such as '512 MiB'"
        )
    whole, _, part = match[1].partition(".")
    return int(whole + part) * unit // 10 ** len(part)
