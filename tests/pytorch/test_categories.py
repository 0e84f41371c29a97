"""Each rule that tells a block's category, on the smallest program that it applies to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tinygrad_mem import memory, pytorch
from tinygrad_mem.memory import Block, Category
from tinygrad_mem.pytorch.categories import RULES

from .built import ENGINE, HOME, MIB, TORCH, Program, Training

MAIN = f"{HOME}/train.py:50 <module>"
MM = "at::_ops::mm::call"
EMPTY = "at::detail::empty_cuda"
FORWARD = f"{TORCH}/nn/modules/linear.py:125 forward", f"{TORCH}/nn/modules/module.py:1786 _call_impl", MAIN
OPTIMIZER = f"{TORCH}/optim/sgd.py:90 step", f"{TORCH}/optim/optimizer.py:484 wrapper", MAIN
INIT_GROUP = f"{TORCH}/optim/adam.py:120 _init_group"
ZERO_GRAD = f"{TORCH}/optim/optimizer.py:980 zero_grad", MAIN
RECOMPUTE = f"{TORCH}/nn/modules/module.py:1786 _call_impl", f"{TORCH}/utils/checkpoint.py:1500 recompute_fn", *ENGINE
APPLY = f"{TORCH}/nn/modules/module.py:930 _apply", f"{TORCH}/nn/modules/module.py:1174 to", MAIN
ACCUMULATE = "torch::autograd::AccumulateGrad::apply", *ENGINE
SIZE = 3 * MIB  # of the block in question; no other has it


def one(program: Program, *made: str) -> int:
    """The block in question."""
    return program.alloc(SIZE, *made)


def free(program: Program, block: int, *frames: str) -> None:
    with program.inside(*frames):
        program.free(block)


def passing(program: Program, *frames: str) -> None:
    """Something else happens in this part of a step."""
    free(program, program.alloc(512, "at::_ops::relu::call", *frames), *frames)


def step(program: Program) -> None:
    """Forward, backward, optimizer, the program."""
    for frames in (FORWARD, ENGINE, OPTIMIZER, (MAIN,)):
        passing(program, *frames)


def workspace(p: Program) -> None:
    p.alloc(SIZE, "at::cuda::getNewWorkspace", "at::cuda::getCurrentCUDABlasHandle", MM, *FORWARD)


def moved(p: Program) -> None:
    one(p, "at::_ops::_to_copy::call", *APPLY)


def state(p: Program) -> None:
    one(p, "at::_ops::zeros_like::call", INIT_GROUP, *OPTIMIZER)
    step(p)


def accumulated(p: Program) -> None:
    one(p, "at::_ops::clone::call", *ACCUMULATE)
    passing(p, MAIN)


def temporary(p: Program) -> None:
    free(p, one(p, EMPTY, MM, *FORWARD), *FORWARD)


def temporary_in_backward(p: Program) -> None:
    block = one(p, MM, *ENGINE)
    passing(p, *RECOMPUTE)
    free(p, block, *ENGINE)


def temporary_over_a_pause(p: Program) -> None:
    block = one(p, MM, *FORWARD)
    passing(p, MAIN)
    free(p, block, *FORWARD)


def activation(p: Program) -> None:
    free(p, one(p, MM, *FORWARD), *ENGINE)


def activation_of_the_loss(p: Program) -> None:
    free(p, one(p, MM, MAIN), *ENGINE)


def activation_made_again(p: Program) -> None:
    passing(p, *ENGINE)
    block = one(p, MM, *RECOMPUTE)
    free(p, block, *ENGINE)


def older_activation(p: Program) -> None:
    block = one(p, MM, *FORWARD)
    p.record()
    free(p, block, *ENGINE)


def gradient(p: Program) -> None:
    free(p, one(p, MM, *ENGINE), *ZERO_GRAD)


def older_gradient(p: Program) -> None:
    block = one(p, MM, *ENGINE)
    p.record()
    free(p, block, *ZERO_GRAD)


def gradient_that_stays(p: Program) -> None:
    one(p, MM, *ENGINE)
    passing(p, *OPTIMIZER)


def state_by_hand(p: Program) -> None:
    """m = b1 * m + (1 - b1) * g: a new block each step, and the old one goes."""
    block = one(p, "at::_ops::add_Tensor::call", *OPTIMIZER)
    step(p)
    free(p, block, *OPTIMIZER)


def built(p: Program) -> None:
    one(p, "at::_ops::empty::call", f"{TORCH}/nn/modules/linear.py:106 __init__", MAIN)


def parameter_by_hand(p: Program) -> None:
    one(p, "at::_ops::randn::call", MAIN)
    step(p)


def older_parameter(p: Program) -> None:
    one(p, MM, MAIN)
    p.record()
    p.stacks = True
    passing(p, *FORWARD)


def older_state(p: Program) -> None:
    """The recording forgets its first events, not the stacks of what is there."""
    one(p, MM, *OPTIMIZER)
    p.record()
    step(p)


def older_gradient_that_stays(p: Program) -> None:
    one(p, MM, *ENGINE)
    p.record()
    step(p)


def batch(p: Program) -> None:
    block = one(p, "at::_ops::_to_copy::call", MAIN)
    step(p)
    free(p, block, MAIN)


def loaded(p: Program) -> None:
    block = one(p, "at::_ops::stack::call", f"{TORCH}/utils/data/_utils/collate.py:300 collate", MAIN)
    step(p)
    free(p, block, MAIN)


def older(p: Program) -> None:
    one(p, MM, MAIN)
    p.record()
    step(p)


def nothing_said(p: Program) -> None:
    p.stacks = False
    free(p, one(p), MAIN)


def held(p: Program) -> None:
    one(p, MM, *FORWARD)
    step(p)


def cut(p: Program) -> None:
    one(p, MM, *FORWARD)
    passing(p, *FORWARD)


def odd(p: Program) -> None:
    block = one(p, MM, MAIN)
    passing(p, *OPTIMIZER)
    free(p, block, MAIN)


def as_before(*frames: str, then: Callable[[Program, int], None]) -> Callable[[Program], None]:
    """A step whose block ends as ``then`` says, and the same again until it was made: there the recording ends."""

    def run(p: Program) -> None:
        for last in (False, True):
            step(p)
            for part in (FORWARD, ENGINE, OPTIMIZER):
                passing(p, *part)
                if part == frames:
                    block = p.alloc(SIZE if last else 2 * SIZE, MM, *frames)
                    if last:
                        return
            then(p, block)

    return run


SURE, LIKELY, UNKNOWN = "sure", "likely", "unknown"
CASES: dict[str, tuple[Callable[[Program], None], Category, str]] = {
    "workspace": (workspace, Category.WORKSPACE, SURE),
    "Module.to": (moved, Category.PARAMETER, SURE),
    "state": (state, Category.OPTIMIZER_STATE, SURE),
    "accumulated": (accumulated, Category.GRADIENT, SURE),
    "temporary": (temporary, Category.TEMPORARY, SURE),
    "temporary in backward": (temporary_in_backward, Category.TEMPORARY, SURE),
    "temporary over a pause": (temporary_over_a_pause, Category.TEMPORARY, LIKELY),
    "activation": (activation, Category.ACTIVATION, SURE),
    "activation of the loss": (activation_of_the_loss, Category.ACTIVATION, LIKELY),
    "activation made again": (activation_made_again, Category.ACTIVATION, LIKELY),
    "older activation": (older_activation, Category.ACTIVATION, LIKELY),
    "gradient": (gradient, Category.GRADIENT, SURE),
    "older gradient": (older_gradient, Category.GRADIENT, LIKELY),
    "gradient that stays": (gradient_that_stays, Category.GRADIENT, LIKELY),
    "state by hand": (state_by_hand, Category.OPTIMIZER_STATE, LIKELY),
    "built": (built, Category.PARAMETER, LIKELY),
    "parameter by hand": (parameter_by_hand, Category.PARAMETER, LIKELY),
    "older parameter": (older_parameter, Category.PARAMETER, LIKELY),
    "older state": (older_state, Category.OPTIMIZER_STATE, LIKELY),
    "older gradient that stays": (older_gradient_that_stays, Category.GRADIENT, LIKELY),
    "batch": (batch, Category.INPUT, LIKELY),
    "loaded": (loaded, Category.INPUT, LIKELY),
    "older": (older, Category.UNTRACKED, UNKNOWN),
    "nothing said": (nothing_said, Category.UNKNOWN, UNKNOWN),
    "held": (held, Category.UNKNOWN, UNKNOWN),
    "cut": (cut, Category.UNKNOWN, UNKNOWN),
    "odd": (odd, Category.UNKNOWN, UNKNOWN),
    "activation as before": (as_before(*FORWARD, then=lambda p, b: free(p, b, *ENGINE)), Category.ACTIVATION, LIKELY),
    "gradient as before": (as_before(*ENGINE, then=lambda p, b: free(p, b, *ZERO_GRAD)), Category.GRADIENT, LIKELY),
    "temporary as before": (as_before(*ENGINE, then=lambda p, b: free(p, b, *ENGINE)), Category.TEMPORARY, LIKELY),
    "state as before": (as_before(*OPTIMIZER, then=lambda p, b: None), Category.OPTIMIZER_STATE, LIKELY),
}


def found(tmp_path, case: Callable[[Program], None]) -> Block:
    program = Program()
    case(program)
    track = pytorch.load(program.write(tmp_path / "x.pickle"))
    (block,) = [block for block in track.blocks() if block.requested == SIZE]
    assert block.deduced[block.deduced.index(":") + 2 :] in track.explain(block)
    return block


@pytest.mark.parametrize("name", CASES)
def test_a_category_and_how_sure_it_is(tmp_path, name):
    case, category, certainty = CASES[name]
    block = found(tmp_path, case)
    assert (block.category, block.certainty) == (category, certainty), block.deduced


def test_each_rule_has_a_case(tmp_path):
    deduced = {(block.category, block.deduced) for block in (found(tmp_path, case) for case, _, _ in CASES.values())}
    assert deduced == {(rule.category, f"{rule.certainty}: {rule.why}") for rule in RULES}


def test_stacks_of_python_alone(tmp_path):
    """Autograd's thread has no frame of Python: what it asks for is most likely backward's, and no op is known."""
    track = pytorch.load(Training(native=False).run(3).write(tmp_path / "x.pickle"))
    whole = pytorch.load(Training().run(3).write(tmp_path / "y.pickle"))
    assert track.peak == whole.peak
    for category in (Category.PARAMETER, Category.OPTIMIZER_STATE, Category.GRADIENT, Category.TEMPORARY):
        assert track.by_category()[category] == whole.by_category()[category]
    assert {block.certainty for block in track.blocks() if block.category is Category.GRADIENT} == {"likely"}
    assert {block.certainty for block in track.blocks() if block.category is Category.OPTIMIZER_STATE} == {"sure"}


def test_without_stacks_nothing_is_guessed(tmp_path):
    track = pytorch.load(Training(stacks=False).run(3).write(tmp_path / "x.pickle"))
    assert track.by_category() == {Category.UNKNOWN: track.peak}
    assert (track.by_line(), track.by_op()) == ({"": track.peak}, {"": track.peak})


def test_tables_say_how_sure_categories_are(tmp_path):
    track = pytorch.load(Training().run(3).write(tmp_path / "x.pickle"))
    table = track.table()
    assert "gradients (sure)" in table
    assert "inputs (likely)" in table
    track.save(tmp_path / "x.json")
    assert list(memory.load(tmp_path / "x.json").blocks()) == list(track.blocks())
