"""Each sample of PyTorch's table of ops, for each name that is offered, in each form: values, dtypes, shapes, gradients."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import torch

from tests.profiles import some

from .differences import DIFFERENCES, Difference, about, excuse
from .trial import DTYPES, failure, offered, outcomes, trials

NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)


def agree(name: str, dtypes: tuple[torch.dtype, ...], kind: str) -> tuple[int, set[Difference]]:
    """Compare the samples of a name; how many there are, and what of the list excuses some of them."""
    count, used, wrong = 0, set(), {}
    for op in offered()[name]:
        for same in trials(op, dtypes):
            for trial, expected in outcomes(same):
                count += 1
                found = failure(trial, expected)
                excused = excuse(kind, name, trial, found) if found else None
                if excused:
                    used.add(excused)
                elif found:
                    wrong.setdefault(found, str(trial))
    assert not wrong, "\n" + "\n".join(f"{said}: {why}" for why, said in wrong.items())
    return count, used


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of deprecated arguments and of views that are written
@pytest.mark.parametrize("name", offered())
def test_samples_agree_with_pytorch(name: str, reliability: Callable[[str, int], None]):
    count, used = agree(name, DTYPES, "op")
    reliability("samples of PyTorch's table of ops, in each form", count)
    unused = about("op", name) - used
    assert not unused, f"these differences are none: {[each.why for each in unused]}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name for name, rows in offered().items() if any(row.supports_dtype(torch.int32, "cpu") for row in rows)]
)
def test_narrow_integers_agree_with_pytorch(name: str, reliability: Callable[[str, int], None]):
    there = [dtype for dtype in NARROW if any(row.supports_dtype(dtype, "cpu") for row in offered()[name])]
    count, _ = agree(name, tuple(some(there, [there[zlib.crc32(name.encode()) % len(there)]])), "narrow")
    reliability("samples of PyTorch's table of ops in narrow integers", count)


def test_the_list_names_what_is_in_the_table():
    named = {name for each in DIFFERENCES if each.kind == "op" for name in each.names.split()}
    assert named <= offered().keys()
    assert len(DIFFERENCES) < 60
