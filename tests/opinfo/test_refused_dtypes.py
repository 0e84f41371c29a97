"""What PyTorch's table of ops has not for a dtype: samples in that dtype are refused where PyTorch refuses them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .differences import DIFFERENCES, Difference, about, excuse
from .said import our
from .trial import Outcome, Trial, failure, offered

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64)
"""Halves are not among them: what PyTorch has no kernel for on the CPU it may have on a GPU."""


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The same sample with its floating tensors in ``dtype``."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast(each, dtype) for each in value)
    if isinstance(value, dict):
        return {key: cast(each, dtype) for key, each in value.items()}
    return value


def refused(op: Any, name: str) -> list[tuple[Trial, Exception]]:
    """The first samples of a row in each dtype that it does not have there, and PyTorch's errors."""
    kind = next((dtype for dtype in (torch.float64, torch.int64) if op.supports_dtype(dtype, "cpu")), None)
    found = []
    for dtype in DTYPES if kind is not None else ():
        if op.supports_dtype(dtype, "cpu"):
            continue
        torch.manual_seed(0)
        for sample in itertools.islice(op.sample_inputs_func(op, "cpu", kind, False), 3):
            given = type(sample)(cast(sample.input, dtype), args=cast(sample.args, dtype), kwargs=cast(sample.kwargs, dtype))
            try:
                op.op(given.input, *given.args, **given.kwargs)
            except Exception as error:
                found.append((Trial(op, name, "function", dtype, given, op.op, our(op.op)), error))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", offered())
def test_dtypes_that_pytorch_refuses_are_refused(name: str, reliability: Callable[[str, int], None]):
    count, used, wrong = 0, set[Difference](), {}
    for op in offered()[name]:
        for trial, error in refused(op, name):
            count += 1
            found = failure(trial, Outcome(error=error))
            excused = excuse("dtype", name, trial, found) if found else None
            if excused:
                used.add(excused)
            elif found:
                wrong.setdefault(str(trial.dtype), f"{trial}: {found}")
    assert not wrong, "\n" + "\n".join(wrong.values())
    assert not about("dtype", name) - used
    if count:
        reliability("samples in dtypes that PyTorch refuses", count)


def test_the_list_names_what_is_in_the_table():
    assert {name for each in DIFFERENCES if each.kind == "dtype" for name in each.names.split()} <= offered().keys()
