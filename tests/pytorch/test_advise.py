"""``pytorch.advise``: each change predicts what the program predicts when its line of code is written into it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tinygrad_mem import pytorch
from tinygrad_mem.memory.sizes import bytes_text
from tinygrad_mem.pytorch.cards import card_of
from tinygrad_mem.pytorch.program.changing import BitsAndBytesAdam, optimizer_classes
from tinygrad_mem.pytorch.program.seen import blocks_of

advise_module: Any = sys.modules["tinygrad_mem.pytorch.advise"]
MIB = 1 << 20
WIDE = 256
BLOCKS = 2
CHUNKS = hasattr(F, "linear_cross_entropy")  # since PyTorch 2.13
NO_CHUNKS = "no result of a linear layer goes to F.cross_entropy" if CHUNKS else "this PyTorch has no F.linear_cross_entropy"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class InBfloat16(Loop):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.bfloat16())


def chain() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def nothing(model: nn.Module) -> None:
    return None


def train(
    batch_size: int = 512,
    make: Callable[[], nn.Module] = Loop,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    zero: bool = True,
    change: Callable[[Any], None] = nothing,
    around: Callable[[], Any] = torch.enable_grad,
    clip: bool = False,
    parts: int = 1,
) -> None:
    """Two steps; ``change`` and ``around`` are for a change that is written into it."""
    model = make().cuda()
    change(model)
    rule = optimizer(model.parameters(), lr=0.1)
    for _ in range(2):
        rule.zero_grad(set_to_none=zero)
        for _ in range(parts):
            with around():
                loss = model(torch.randn(batch_size, WIDE, device="cuda")).square().mean()
            loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rule.step()


def checkpointed(model: Any, every: int = 1) -> None:
    blocks = model.blocks if isinstance(model, Loop) else model
    for block in blocks[::every]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def in_segments(model: Any) -> None:
    model.forward = partial(checkpoint_sequential, model, 2, use_reentrant=False)


class InBackward(torch.optim.AdamW):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        for parameter in self.param_groups[0]["params"]:
            alone = torch.optim.AdamW([parameter], lr=lr)

            def step(_: Any, alone: Any = alone) -> None:
                alone.step()
                alone.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        return None


WRITTEN: dict[str, dict[str, Any]] = {
    "checkpoint all of blocks": {"change": checkpointed},
    "checkpoint every second of blocks": {"change": partial(checkpointed, every=2)},
    "foreach=False": {"optimizer": partial(torch.optim.AdamW, foreach=False)},
    "fused=True": {"optimizer": partial(torch.optim.AdamW, fused=True)},
    "autocast bfloat16": {"around": partial(torch.autocast, "cuda", dtype=torch.bfloat16)},
    "saved tensors on the CPU": {"around": partial(torch.autograd.graph.save_on_cpu, pin_memory=True)},
    "optimizer in backward": {"optimizer": InBackward},
    "8-bit states for Adam": {"optimizer": BitsAndBytesAdam},
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """No prediction leaves autocast on."""
    yield
    assert not torch.is_autocast_enabled("cuda")


def of_pytorch() -> dict[str, Any]:
    """What changes of a program replace or leave behind in PyTorch."""
    autograd: Any = torch.autograd
    return {
        "optimizers": [vars(kind)["__init__"] for kind in optimizer_classes()],
        "functions": (torch.optim.Optimizer.zero_grad, autograd._engine_run_backward, nn.Module.zero_grad),
        "autocast": torch.is_autocast_enabled("cuda"),
        "max of Adafactor": hasattr(sys.modules["torch.optim._adafactor"], "max"),
        "hooks": (*nn.modules.module._global_forward_pre_hooks, *nn.modules.module._global_forward_hooks),
    }


@pytest.fixture(scope="module")
def advised() -> tuple[pytorch.Advice, dict[str, Any], dict[str, Any]]:
    """Advice, and what was in PyTorch before and after it."""
    before = of_pytorch()
    return pytorch.advise(train), before, of_pytorch()


@pytest.fixture(scope="module")
def advice(advised: tuple[pytorch.Advice, dict[str, Any], dict[str, Any]]) -> pytorch.Advice:
    return advised[0]


def changes_of(run: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """What predicts a program with changes, and the changes by their names: for tests that ask for one of the rows."""
    trials = advise_module.Trials(run, args, kwargs, "cuda", "", card_of(""), None)
    return trials, {change.name: change for change in trials.begin()}


def row_of(name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The row of the advice for one change."""
    trials, changes = changes_of(run, *args, **kwargs)
    return trials.row([changes[name]])


@pytest.mark.parametrize("name", WRITTEN)
def test_a_change_is_what_its_code_does(name: str, advice: pytorch.Advice):
    row, written = advice.row(name), pytorch.predict(train, **WRITTEN[name])
    assert (row.peak, row.peak_reserved) == (written.peak, written.peak_reserved)
    assert row.saved == advice.plain.peak - row.peak
    assert row.code
    assert row.cost
    assert row.source[0].startswith("https://")


def test_as_it_is(advice: pytorch.Advice):
    plain = pytorch.predict(train)
    assert (advice.plain.peak, advice.plain.peak_reserved, advice.plain.fits) == (plain.peak, plain.peak_reserved, None)


def test_expandable_segments_are_settings(advice: pytorch.Advice):
    settings = "expandable_segments:True"
    assert advice.row("expandable segments").peak_reserved == pytorch.predict(train, settings=settings).peak_reserved


def test_rows_are_in_order_and_a_combination_saves_more_than_each_of_its_parts(advice: pytorch.Advice):
    sizes = [row.peak_reserved for row in advice.rows]
    assert sizes == sorted(sizes)
    assert advice.together
    for row in advice.together:
        assert all(row.peak_reserved < advice.row(name).peak_reserved for name in row.names)
    with pytest.raises(KeyError, match="no such change"):
        advice.row("no such change")


def test_offloading_says_the_bytes_that_move(advice: pytorch.Advice):
    """Each block saves its input, the weights of two layers, and what GELU takes and gives; the first gives no gradient on."""
    kept = 4 * (BLOCKS * (512 * 5 * WIDE + 4 * WIDE * WIDE) - 2 * WIDE * WIDE + 512 * WIDE)  # and the result, for its square
    assert f"{kept / MIB:.2f} MiB to the host" in advice.row("saved tensors on the CPU").cost


@pytest.mark.parametrize("name", ["autocast bfloat16", "saved tensors on the CPU"])
def test_blocks_that_run_again_are_no_new_forward(name: str):
    """Autocast and offloading are opened by the forward of the model, not by that of a block in backward."""
    checkpoints = partial(train, change=checkpointed)
    assert row_of(name, checkpoints).peak == pytorch.predict(checkpoints, **WRITTEN[name]).peak


def test_segments_of_a_sequential():
    row = row_of("checkpoint Sequential in 2 segments", train, make=chain)
    assert row.peak == pytorch.predict(train, make=chain, change=in_segments).peak
    assert row.saved > 0
    assert f"one more forward of {BLOCKS // 2} blocks" in row.cost


@pytest.mark.parametrize(
    ("options", "name", "why"),
    [
        ({"clip": True}, "optimizer in backward", "gradients are clipped"),
        ({"parts": 2}, "optimizer in backward", "2 backwards for each step"),
        ({"optimizer": torch.optim.SGD}, "Adafactor for Adam", "no optimizer is Adam"),
        ({"optimizer": partial(torch.optim.AdamW, foreach=False)}, "foreach=False", "no optimizer steps with lists"),
        ({"optimizer": partial(torch.optim.AdamW, fused=True)}, "fused=True", "has no fused step or uses it already"),
        ({}, "gradients to None", "drops gradients already"),
        ({}, "checkpoint blocks in 2 segments", "in a loop of its own"),
        ({}, "loss in chunks", NO_CHUNKS),
        ({"around": partial(torch.autocast, "cuda", dtype=torch.bfloat16)}, "autocast bfloat16", "in autocast already"),
        ({"make": lambda: InBfloat16().bfloat16()}, "autocast bfloat16", "half precision"),
    ],
)
def test_what_does_not_apply_says_why(options: dict[str, Any], name: str, why: str, advice: pytorch.Advice):
    if not options:
        row = advice.row(name)
        assert why in row.refused
        assert row.peak == 0
        return
    trials, changes = changes_of(train, 4, **options)
    assert why in changes[name].why_not(trials.seen, "cuda")


def test_zeroed_gradients_are_dropped():
    row = row_of("gradients to None", train, zero=False)
    assert row.peak == pytorch.predict(train).peak
    assert row.saved > 0


def test_adafactor_in_place_of_adam(advice: pytorch.Advice):
    """Its state of a matrix is a row and a column; a bias has one number an element."""
    written = pytorch.predict(train, optimizer=torch.optim.SGD)  # no state: the least that a rule can have
    row = advice.row("Adafactor for Adam")
    assert written.peak < row.peak < advice.plain.peak
    assert "different" in row.numbers


def test_a_program_that_fails_with_a_change_says_so():
    def run() -> None:
        model = Loop().cuda()
        rule = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, WIDE, device="cuda")).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters()), "no gradients"
        rule.step()

    assert "the program fails with it: AssertionError: no gradients" in row_of("optimizer in backward", run).refused


def test_the_largest_batch_and_what_fits():
    run = partial(train, optimizer=torch.optim.SGD)  # to which fewer changes apply: each is a prediction
    least = pytorch.predict(run, 512).peak_reserved
    advice = pytorch.advise(run, capacity=least - MIB)
    assert advice.plain.fits is False
    fitting = advice.together[0]
    assert fitting.fits or any(row.fits for row in advice.rows)
    batch = advice.batch[0]
    assert 0 < batch.batch_size < 512
    assert pytorch.predict(run, batch.batch_size, capacity=least - MIB).fits
    assert not pytorch.predict(run, batch.batch_size + 1, capacity=least - MIB).fits
    assert batch.names == [f"batch_size={batch.batch_size}"]
    assert "gradients of 2 batches, accumulated for one of 512" in batch.cost
    assert advice.batch[-1].batch_size > batch.batch_size


def test_without_a_capacity_or_an_argument_the_batch_says_what_to_do(advice: pytorch.Advice):
    assert "give a capacity" in advice.row("largest batch").refused
    small = {"make": partial(nn.Linear, WIDE, WIDE), "optimizer": torch.optim.SGD}
    found = pytorch.advise(lambda: train(4, **small), capacity="4 GiB")
    assert "add an argument batch_size" in found.row("largest batch").refused
    none = pytorch.advise(train, 4, capacity=MIB, **small)
    assert "not even batch_size=1 fits" in none.batch[0].refused


def test_the_table(advice: pytorch.Advice):
    text = advice.table(140)
    for row in advice.rows:
        assert row.name.split()[0] in text
    assert "for b in model.blocks: b.forward = partial(checkpoint, b.forward, use_reentrant=False)" in text
    assert f"loss in chunks: {NO_CHUNKS}" in text
    assert "largest batch" in text


def test_a_narrow_table_has_the_costs_below_it(advice: pytorch.Advice):
    wide, narrow, narrowest = (advice.table(width) for width in (140, 80, 60))
    for text, width in ((narrow, 80), (narrowest, 60)):
        table = text.partition("To write:")[0]
        assert max(map(len, table.splitlines())) <= width
        assert all(bytes_text(row.peak) in table and bytes_text(row.peak_reserved) in table for row in advice.rows)
    helping = [row for row in advice.rows if row.saved > 0 or row.saved_reserved > 0]
    assert narrow.count("    costs: ") == len(helping)
    assert "    costs: " not in wide


def test_the_program_and_pytorch_are_as_before(advised: tuple[pytorch.Advice, dict[str, Any], dict[str, Any]]):
    _, before, after = advised
    assert after == before
    assert (after["autocast"], after["max of Adafactor"], after["hooks"]) == (False, False, ())


def test_lists_of_equal_blocks():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))  # lone layers
            self.mixed = nn.Sequential(Block(), nn.ReLU())
            self.stages = nn.Sequential(chain(), chain())  # the outermost alone
            self.one = nn.ModuleList([Block()])

    assert [(each.path, each.block, each.count) for each in blocks_of(Two())] == [("stages", "Sequential", 2)]


def test_several_lists_are_tried_together():
    class Stages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = chain(), chain()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    trials, changes = changes_of(train, make=Stages, optimizer=torch.optim.SGD)
    first, both = (trials.row([changes[f"checkpoint all of {lists}"]]) for lists in ("first", "first, second"))
    assert both.peak < first.peak
    assert f"{2 * BLOCKS} blocks" in both.cost


def test_lists_at_one_path_of_two_models_have_names_of_their_own():
    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = chain()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    class Student(Teacher):
        pass

    def both() -> None:
        train(make=Teacher, optimizer=torch.optim.SGD)
        train(make=Student, optimizer=torch.optim.SGD)

    _, changes = changes_of(both)
    assert {"checkpoint all of Teacher.blocks", "checkpoint all of Student.blocks"} < changes.keys()


def test_the_largest_batch_is_found_in_few_predictions(monkeypatch: pytest.MonkeyPatch):
    def run(batch_size: int) -> None:
        torch.empty(batch_size * 5 * MIB, dtype=torch.uint8, device="cuda")

    def counted(*args: Any, **kwargs: Any) -> pytorch.Prediction:
        counts.append(1)
        return own(*args, **kwargs)

    counts: list[int] = []
    own = advise_module.predicted
    monkeypatch.setattr(advise_module, "predicted", counted)
    found = pytorch.advise(run, 1, capacity=60_000 * MIB).batch[0]
    assert found.batch_size == 12_000
    assert len(counts) <= 8


def test_a_program_that_looks_at_the_card_is_predicted_again_there():
    """It takes two blocks where the card has 50 MiB, and else one."""

    def greedy() -> None:
        small = torch.cuda.mem_get_info()[1] <= 50 * MIB
        kept = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(1 + small)]
        del kept

    assert pytorch.advise(greedy, capacity=60 * MIB).plain.fits
    assert not pytorch.advise(greedy, capacity=50 * MIB).plain.fits


def test_a_program_that_goes_on_without_memory_is_predicted_again_there():
    def run(batch_size: int = 64) -> None:
        try:
            torch.empty(batch_size * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            torch.empty(MIB, dtype=torch.uint8, device="cuda")

    assert pytorch.advise(run, capacity=32 * MIB).plain.fits


def test_on_the_cpu_a_program_fits_where_its_peak_does():
    def run() -> torch.Tensor:
        return torch.empty(3 * MIB, dtype=torch.uint8)

    assert pytorch.advise(run, device="cpu", capacity=3 * MIB).plain.fits
    assert not pytorch.advise(run, device="cpu", capacity=3 * MIB - 1).plain.fits


def test_what_is_not_known_decides_if_a_program_fits():
    """20 MiB for the block of 8 that another stream uses, and 64; up to 20 more or less."""

    def run(batch_size: int = 64) -> Any:
        used = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        used.record_stream(torch.cuda.Stream())
        return used, torch.empty(batch_size * MIB, dtype=torch.uint8, device="cuda")

    for capacity, fits in ((104, True), (103, None), (84, None), (64, None), (63, False)):
        advice = pytorch.advise(run, capacity=capacity * MIB)
        assert (advice.plain.fits, advice.plain.unknown, advice.plain.peak_reserved) == (fits, 20 * MIB, 84 * MIB)
        assert advice.batch[0].batch_size == (capacity - 40) // 2 * 2
    assert "perhaps" in pytorch.advise(run, capacity=84 * MIB).table(140)
    assert "up to 20.00 MiB more or less: which blocks another stream keeps" in advice.table(140)
