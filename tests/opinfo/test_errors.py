"""What PyTorch's table of ops says that PyTorch refuses is refused here too, in words of our own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .differences import about, excuse
from .said import NotOursError, Said, our
from .trial import Outcome, Trial, failure, offered


def refusal(trial: Trial) -> Exception | None:
    """PyTorch's error; ``None`` where it takes what its table says it refuses, or where it has no name here."""
    sample = trial.sample
    try:
        Said()([sample.input, list(sample.args), sample.kwargs])
        trial.theirs(sample.input, *sample.args, **sample.kwargs)
    except NotOursError:
        return None
    except Exception as error:
        return error
    return None


NAMES = [name for name, rows in offered().items() if any(op.error_inputs_func for op in rows)]


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("name", NAMES)
def test_what_pytorch_refuses_is_refused(name: str, reliability: Callable[[str, int], None]):
    count, used, wrong = 0, set(), {}
    for op in (row for row in offered()[name] if row.error_inputs_func):
        torch.manual_seed(0)
        for error in op.error_inputs_func(op, "cpu"):
            sample = error.sample_input
            trial = Trial(op, name, "function", torch.float32, sample, op.op, our(op.op))
            says = refusal(trial)
            if says is None:
                continue  # of some rows the refusal is another form's
            count += 1
            found = failure(trial, Outcome(error=says))
            excused = excuse("error", name, trial, found) if found else None
            if excused:
                used.add(excused)
            elif found:
                wrong.setdefault(found, str(trial))
    if count:
        reliability("calls that PyTorch refuses", count)
    assert not wrong, "\n" + "\n".join(f"{said}: {why}" for why, said in wrong.items())
    unused = about("error", name) - used
    assert not unused, f"these differences are none: {[each.why for each in unused]}"
