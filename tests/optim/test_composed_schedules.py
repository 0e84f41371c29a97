"""Every schedule alone, in a sequence, in a chain and in both, new and resumed, against PyTorch for 12 steps."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.optim.test_lr_scheduler import momentum, ours, pair, rows, theirs
from tests.profiles import share

# a nested schedule takes more than one step when it is made, before the optimizer's first
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
Form = Callable[[Any, Any, Callable], Any]
FORMS: dict[str, Form] = {
    "alone": lambda m, o, x: x(),
    "first": lambda m, o, x: m.SequentialLR(o, [x(), m.ExponentialLR(o, 0.9)], [4]),
    "second": lambda m, o, x: m.SequentialLR(o, [m.ConstantLR(o, 0.5, 3), x()], [3]),
    "second from the start": lambda m, o, x: m.SequentialLR(o, [m.ConstantLR(o, 0.5, 3), x()], [0]),
    "chained": lambda m, o, x: m.ChainedScheduler([m.LinearLR(o, 0.5, total_iters=3), x()]),
    "chain, then one": lambda m, o, x: m.SequentialLR(
        o, [m.ChainedScheduler([x(), m.ExponentialLR(o, 0.9)]), m.StepLR(o, 2)], [5]
    ),
    "one, then chain": lambda m, o, x: m.SequentialLR(
        o, [m.StepLR(o, 2), m.ChainedScheduler([x(), m.ExponentialLR(o, 0.9)])], [5]
    ),
    "chain of sequences": lambda m, o, x: m.ChainedScheduler(
        [m.SequentialLR(o, [m.ConstantLR(o, 0.5), x()], [5]), m.ExponentialLR(o, 0.9)]
    ),
    "sequence of sequences": lambda m, o, x: m.SequentialLR(
        o, [m.SequentialLR(o, [m.ConstantLR(o, 0.5), x()], [2]), m.ExponentialLR(o, 0.9)], [7]
    ),
    "sequence of a sequence of a chain": lambda m, o, x: m.SequentialLR(
        o, [m.SequentialLR(o, [m.ChainedScheduler([x()]), m.PolynomialLR(o, 9)], [3]), m.StepLR(o, 2)], [6]
    ),
}


def optimizer(module: Any, last_epoch: int) -> Any:
    made = pair()[0 if module is ours else 1]
    if last_epoch != -1:  # what the schedules wrote into the groups of the run that is resumed
        for group in made.param_groups:
            group.update(initial_lr=group["lr"], max_lr=0.5, min_lr=0.001, base_momentum=0.85, max_momentum=0.95)
            group["lr"] *= 0.7
    return made


def rates(module: Any, make: Callable, form: Form, resumed_at: int | None, last_epoch: int) -> list:
    """What each of 12 steps sets, and in the end the name of the error, if there is one."""
    found: list = []
    o = optimizer(module, last_epoch)
    try:
        schedule = form(module, o, partial(make, module, o))
        found.append([*schedule.get_last_lr(), *momentum(o)])
        for step in range(12):
            if step == resumed_at:
                states = copy.deepcopy((o.state_dict(), schedule.state_dict()))
                o = optimizer(module, last_epoch)
                schedule = form(module, o, partial(make, module, o))
                o.load_state_dict(states[0])
                schedule.load_state_dict(states[1])
            o.step()
            schedule.step()
            set_now = [group["lr"] for group in o.param_groups]
            found.append([*schedule.get_last_lr(), *set_now, *momentum(o), getattr(schedule, "last_epoch", -9)])
    except (NotImplementedError, KeyError, ValueError) as error:
        found.append(type(error).__name__)
    return found


@pytest.mark.parametrize("form", FORMS)
@rows
def test_equals_pytorch_alone_and_composed(name: str, options: dict, form: str):
    begun = [*itertools.product((-1, 3), (None, 0, 5))]
    for last_epoch, resumed_at in share(begun, 3, (name, options, form)):
        further = {} if last_epoch == -1 else {"last_epoch": last_epoch}

        def make(module: Any, o: Any, further: dict = further) -> Any:
            return getattr(module, name)(o, **options, **further)

        mine, other = (rates(m, make, FORMS[form], resumed_at, last_epoch) for m in (ours, theirs))
        assert [type(each) for each in mine] == [type(each) for each in other]
        for step, (found, expected) in enumerate(zip(mine, other, strict=True)):
            if isinstance(found, str):
                assert found == expected
            else:
                np.testing.assert_allclose(found, expected, 1e-12, 1e-15, err_msg=f"{last_epoch} {resumed_at} {step}")


@pytest.mark.parametrize("library", [ours, theirs], ids=["ours", "torch"])
def test_a_chain_that_opens_a_sequence_takes_its_first_step_twice(library: Any):
    """PyTorch undoes only the epochs of a chain, so an exponential rate is multiplied once more; ours does the same."""
    o = optimizer(library, -1)
    chain = library.ChainedScheduler([library.ExponentialLR(o, 0.5)])
    assert library.SequentialLR(o, [chain, library.StepLR(o, 2)], [5]).get_last_lr() == [0.05, 0.015]
