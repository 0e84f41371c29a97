"""Each sample of PyTorch's table of ops, for each name that is offered, in each form: values, dtypes, shapes, gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .differences import DIFFERENCES, about, excuse
from .trial import failure, offered, outcomes, trials


@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of deprecated arguments and of views that are written
@pytest.mark.parametrize("name", offered())
def test_samples_agree_with_pytorch(name: str, reliability: Callable[[str, int], None]):
    count, used, wrong = 0, set(), {}
    for op in offered()[name]:
        for same in trials(op):
            for trial, expected in outcomes(same):
                count += 1
                found = failure(trial, expected)
                excused = excuse("op", name, trial, found) if found else None
                if excused:
                    used.add(excused)
                elif found:
                    wrong.setdefault(found, str(trial))
    reliability("samples of PyTorch's table of ops, in each form", count)
    assert not wrong, "\n" + "\n".join(f"{said}: {why}" for why, said in wrong.items())
    unused = about("op", name) - used
    assert not unused, f"these differences are none: {[each.why for each in unused]}"


def test_the_list_names_what_is_in_the_table():
    named = {name for each in DIFFERENCES if each.kind == "op" for name in each.names.split()}
    assert named <= offered().keys()
    assert len(DIFFERENCES) < 60
