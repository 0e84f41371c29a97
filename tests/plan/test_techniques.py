"""Each technique of a plan, and those that go together: bytes as predicted, numbers as promised, refusals that say why."""

from __future__ import annotations

from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.plan.test_plan import LLAMA, NETWORKS, TIMES, images, mlp, planned, sgd, shared, trained
from tests.profiles import every, share_of_each
from tinygrad_mem import nn
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import ArgumentError, BudgetError
from tinygrad_mem.models.gpt import GPT
from tinygrad_mem.models.llama import llama
from tinygrad_mem.models.names import WithLoss
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import (
    LEVELS,
    NAMES,
    Accumulation,
    Applied,
    Autocast,
    Choice,
    Compression,
    InBackward,
    InPlace,
    Offload,
    Recompute,
    Tiles,
    Times,
    TrainingStep,
    largest,
    plan,
)
from tinygrad_mem.plan.activations import Writable
from tinygrad_mem.plan.runs import Runs
from tinygrad_mem.plan.techniques import KINDS, names, reason_against

ALONE = (InBackward(), Offload(), Accumulation(2), Autocast("cpu"), Compression(8), Compression(2))
CHOICES = [(), *((each,) for each in ALONE), *(pair for pair in combinations(ALONE, 2) if not reason_against(*pair))]
CHOICES = [each for each in CHOICES if len({type(technique) for technique in each}) == len(each)]
BLOCKS = Recompute("model.model.layers", ((0,), (1,), (2,), 3), (1, 1, 1, 1))
MLPS = Tiles(("model", *(f"model.model.layers.{i}.mlp" for i in range(4))), 16)
LONG = ((Offload(True),), (MLPS,), (Offload(True), MLPS), (MLPS, InBackward()), (MLPS, Accumulation(2)))
RECOMPUTED = {
    "mlp": (Recompute("layers", (0, (1, 2), 3), (2, 2, 2, 3)),),
    "gpt": (Recompute("transformer.h", ((0,), (1,), 2, 3), (1, 1, 1, 1)),),
    "masked": (Recompute("encoder.layers", ((0,), 1, 2), (1, 1, 1)),),
    "lstm": (),
    "llama": (BLOCKS,),
}


TOGETHER = [
    (name, each)
    for name, each in product(RECOMPUTED, CHOICES)
    if name != "masked" or Choice(each).parts == 1  # else positions count through the whole batch
]


def text(choice: tuple[Applied, ...]) -> str:
    return "; ".join(map(str, choice)) or "recompute alone"


@cache
def runs(name: str) -> Runs:
    return shared(name).search


@cache
def plain(name: str) -> tuple[list[float], list[np.ndarray]]:
    """Losses, parameters and buffers of the step without techniques."""
    return trained(name, Choice())[1:]


@pytest.mark.parametrize(
    ("name", "techniques"),
    [
        *share_of_each(TOGETHER, 4, lambda row: text(row[1])),  # each choice with one network, or two
        *(("llama", each) for each in LONG),
    ],
    ids=lambda each: each if isinstance(each, str) else text(each),
)
def test_what_was_predicted_is_what_runs(name: str, techniques: tuple[Applied, ...]):
    """With recompute: bytes in use, here and on the host; losses and parameters."""
    choice = Choice((*RECOMPUTED[name], *techniques))
    point = runs(name).point(choice)
    host = Pool("host")
    before, Pool.host = Pool.host, lambda self, *, pinned=False: host
    try:
        peak, losses, values = trained(name, choice)
    finally:
        Pool.host = before
    assert (peak, host.peak_used) == (point.peak, point.host)
    assert (host.peak_used > 0) == any(isinstance(each, Offload) for each in techniques)
    steps, expected = plain(name)
    tolerance = {"identical": 0, "close": 1e-5, "approximate": 0.05}[choice.numbers]
    np.testing.assert_allclose(losses, steps, rtol=tolerance)
    for a, b in zip(values, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=0.1 * tolerance)


def test_a_technique_is_one_row():
    assert names("approximate") == NAMES
    assert len(set(NAMES)) == len(KINDS)
    assert [set(names(a)) < set(names(b)) for a, b in combinations(LEVELS, 2)] == [True] * 3
    for kind in KINDS:
        assert kind.numbers in LEVELS


def test_what_does_not_go_together_says_why():
    for a, b in combinations(KINDS, 2):
        assert reason_against(a, b) == reason_against(b, a)
    with pytest.raises(ArgumentError, match="in_backward cannot be used with accumulation: a gradient is complete only after"):
        Choice((InBackward(), Accumulation(2)))
    with pytest.raises(ArgumentError, match="autocast cannot be used with in_backward: gradients are scaled"):
        Choice((Autocast("cpu"), InBackward()))
    with pytest.raises(ArgumentError, match="offload cannot be used with compression: one of the two"):
        Choice((Offload(), Compression(8)))
    with pytest.raises(ArgumentError, match="compression is chosen twice, saved in 8 bits and saved in 4 bits"):
        Choice((Compression(8), Compression(4)))


# --- what is searched


def test_numbers_change_only_where_nothing_else_fits():
    network = (lambda: GPT(1, 2, 32, context=32, vocabulary=50), *NETWORKS["gpt"][1:])
    found = {level: plan(*network, sgd, allow=level, times=TIMES) for level in LEVELS}
    reached = []
    least, most = found["approximate"].search.smallest().reserved, found["identical"].plain.reserved
    for budget in np.linspace(least, most, 2 + 4 // every(4)).astype(int).tolist():
        try:
            reached.append(found["approximate"].within(budget).choice.numbers)
        except BudgetError:
            continue
        for level in LEVELS[: LEVELS.index(reached[-1])]:
            with pytest.raises(BudgetError):
                found[level].within(budget)
    assert reached[0] == "approximate"
    assert "close" in reached
    assert reached[-1] == "identical"
    assert [LEVELS.index(level) for level in reached] == sorted((LEVELS.index(level) for level in reached), reverse=True)


def test_below_what_lies_there_between_steps_nothing_is_tried():
    found = planned("mlp", "approximate")
    assert found.search.cheapest(found.plain.kept - 1) is None
    assert list(found.search.points) == [Choice()]
    with pytest.raises(BudgetError, match="Use a smaller batch"):
        planned("lstm", "approximate").within(10_000)


def test_a_front_of_everything_names_its_techniques():
    shallow = (lambda: GPT(2, 2, 32, context=32, vocabulary=50), *NETWORKS["gpt"][1:])
    found = plan(*shallow, sgd, allow="approximate", times=TIMES, device="cuda")
    seen = {name for point in found.front for name in point.choice.names}
    assert {"recompute", "offload"} <= seen
    assert "offload" in found.table()
    point = next(point for point in found.front if "offload" in point.choice.names)
    assert point.host > 0


def test_names_that_are_of_no_use_here():
    with pytest.raises(ArgumentError, match="offload is allowed, but on the cpu, the host's memory is the same memory"):
        planned("mlp", ["recompute", "offload"])
    with pytest.raises(ArgumentError, match="accumulation is allowed, but inputs that are not one tensor cannot be split"):
        planned("masked", "accumulation")
    assert "offload" not in planned("mlp", "approximate").search.allow
    assert "accumulation" not in planned("masked", "approximate").search.allow
    with pytest.raises(BudgetError, match="Allow autocast, compression; or use a smaller batch") as caught:
        shared("masked").within(shared("masked").plain.kept)
    assert "offload" not in str(caught.value)


def test_tiles_are_chosen_where_nothing_identical_fits():
    short = (lambda: WithLoss(llama(LLAMA | {"num_hidden_layers": 2}), None), *NETWORKS["llama"][1:])
    close, identical = (plan(*short, sgd, allow=allow, times=TIMES) for allow in (("recompute", "chunking"), "recompute"))
    budget = (close.search.smallest().peak + identical.search.smallest().peak) // 2
    found = close.within(budget).choice
    assert "chunking" in found.names, found
    with pytest.raises(BudgetError, match="in_backward, chunking, accumulation, autocast, compression; or use a smaller batch"):
        identical.within(budget)


def test_only_the_inputs_of_checkpoints_leave_where_that_is_enough():
    """Fewer bytes are copied than with all that is saved, so the step takes less time."""
    found = plan(*NETWORKS["llama"], sgd, allow=("recompute", "offload"), times=TIMES, device="cuda").search
    every_block = Recompute("model.model.layers", ((0,), (1,), (2,), (3,)), (1, 1, 1, 1))
    some, all_saved = (found.point(Choice((every_block, Offload(only)))) for only in (True, False))
    assert 0 < some.host < all_saved.host
    assert some.time < all_saved.time
    assert some.choice in [choice for series in found.series for base in series for choice in found.choices(base)]


def test_tiles_for_another_model():
    with pytest.raises(ArgumentError, match="a module with a tile 'first'; this one has a Linear without"):
        losses(Shortcut(), Choice((Tiles(("first",), 4),)))
    with pytest.raises(ArgumentError, match="chunking is allowed, but no module of this network has an attribute tile"):
        planned("gpt", "chunking")


def test_a_copy_to_the_host_takes_time():
    assert TIMES.there_and_back(25_000_000) == pytest.approx(2e-3, rel=0.01)
    assert 0 < Times("cpu").there_and_back(1000) < Times("cpu").there_and_back(100_000_000)
    offloaded, plain = (runs("gpt").point(Choice(each)) for each in ((Offload(),), ()))
    assert offloaded.time > plain.time + 2 * plain.peak * 0.3 / 25e9


def test_inputs_by_place_and_by_name():
    """A batch of several tensors, the loss made by the model: what a GPT's loss in chunks wants."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = NETWORKS["gpt"][0]()

        def forward(self, tokens: Any, targets: Any) -> Any:
            return self.gpt.loss(tokens, targets, 32)

    x, y = NETWORKS["gpt"][1]()
    base = plan(WithLoss(), ((x, y), y), lambda output, _: output, sgd, times=TIMES)
    found = base.within((base.plain.peak + base.front[-1].peak) // 2)
    assert "recompute" in found.choice.names
    losses = []
    for each in (found, base):
        tm.manual_seed(0)
        model = WithLoss()
        losses.append(each.apply(model, sgd(model.parameters()))((x, y), y).item())
    assert losses[0] == losses[1]
    named = plan(WithLoss(), ({"targets": y, "tokens": x}, y), lambda output, _: output, sgd, times=TIMES)
    assert named.peak == base.peak


def test_blocks_that_are_called_with_more_than_one_tensor():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 64)

        def forward(self, x: Any, mask: Any, *, scale: Any) -> Any:
            return (x + self.inner(x * mask).tanh() * scale).tanh(), mask

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(6))

        def forward(self, x: Any) -> Any:
            mask, scale = tm.ones(256, 64), tm.ones(64)
            for block in self.blocks:
                x, _ = block(x, mask, scale=scale)
            return x

    base = plan(Net, images(256, 64, classes=(64,)), lambda output, _: output.square().mean(), sgd, times=TIMES)
    found = base.within((base.plain.reserved + base.search.smallest().reserved) // 2)
    assert any(isinstance(each, Recompute) and each.path == "blocks" for each in found.choice.techniques)


def test_a_chain_that_passes_on_pairs_is_not_looked_at():
    class Pair(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if isinstance(x, tuple) else (x.tanh(), x)

    class First(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[0].exp()

    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), Pair(), First()), nn.Linear(8, 8))
    found = plan(model, tm.randn(4, 8), lambda output: output.square().mean(), sgd, times=TIMES)
    assert found.front[0].choice == Choice()


def test_the_deepest_network():
    """The largest batch, asked of depth; with techniques it is deeper."""

    def build(n: int, allow: Any = ()) -> Any:
        def make() -> nn.Module:
            return nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Tanh(), nn.Tanh()) for _ in range(n)])

        batch = images(128, 32)
        return plan(make, batch, lambda y, _: y.square().mean(), sgd, "160 KiB", allow=allow, times=TIMES)

    plain, _ = largest(build)
    deeper, found = largest(lambda n: build(n, "identical"))
    deepest, last = largest(lambda n: build(n, ["in_backward", "compression"]))
    assert plain < deeper
    assert plain < deepest
    assert found.choice.numbers == "identical" != last.choice.numbers


# --- activations in place


class Shortcut(nn.Module):
    """Activations that may write over their input, and some that may not, each for another reason."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.fine = nn.ReLU()
        self.dropped = nn.Dropout(0.3)
        self.of_the_batch = nn.ReLU()
        self.of_what_tanh_saved = nn.ReLU()
        self.that_keeps_its_input = nn.SiLU()
        self.read_afterwards = nn.LeakyReLU(0.1)
        self.of_a_view = nn.ReLU()
        self.twice = nn.ReLU()
        self.by_name = nn.ReLU()
        self.already = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        x = self.first(self.of_the_batch(x))
        x = self.dropped(self.first(self.fine(self.second(x))))
        x = self.second(self.that_keeps_its_input(self.of_what_tanh_saved(x.tanh())))
        x = x + self.read_afterwards(x)
        x = self.of_a_view(self.first(x).view(-1, 16))
        x = self.second(self.twice(self.first(x)))
        x = x + self.twice(x)
        return self.already(self.first(self.by_name(input=self.second(x))))


def writable(make: Any) -> tuple[str, ...]:
    return plan(make, lambda: (tm.randn(8, 16), tm.zeros(8, 16)), F.mse_loss, sgd, times=TIMES).search.free[0].paths


def test_which_activations_may_write_over_their_input():
    assert writable(Shortcut) == ("fine", "dropped")


def losses(model: nn.Module, choice: Choice) -> list[float]:
    tm.manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0, 0.3)
    x, y = tm.randn(8, 16), tm.randn(8, 16)
    step = TrainingStep(choice, model, sgd(model.parameters()), F.mse_loss)
    return [step(x, y).item() for _ in range(3)]


def test_in_place_is_bit_for_bit_the_same_where_it_may_be_and_not_elsewhere():
    plain = losses(Shortcut(), Choice())
    assert losses(Shortcut(), Choice((InPlace(("fine", "dropped")),))) == plain
    assert losses(Shortcut(), Choice((InPlace(("read_afterwards",)),))) != plain
    assert losses(Shortcut(), Choice((InPlace(("twice",)),))) != plain


def test_in_place_saves_an_array():
    """Where input and result are both there at the peak, and neither is kept."""
    found = planned("masked").search
    (technique,) = [each for each in found.free if isinstance(each, InPlace)]
    assert str(Choice((technique,))) == f"{len(technique.paths)} activations in place"
    assert found.point(Choice((technique,))).peak < found.plain.peak
    assert found.point(Choice((technique,))).time == found.plain.time


def test_a_block_that_begins_by_writing_over_its_input_is_not_recomputed():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.inner = nn.ReLU(), nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            return self.inner(self.act(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.blocks = nn.Linear(16, 16), nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return x

    assert writable(Net) == tuple(f"blocks.{i}.act" for i in range(4))
    found = plan(Net, lambda: (tm.randn(512, 16), tm.zeros(512, 16)), F.mse_loss, sgd, times=TIMES)
    assert all("recompute" not in point.choice.names for point in found.front)


def test_a_step_for_another_model():
    with pytest.raises(ArgumentError, match=r"an activation 'fine'; this one has none there. Make the plan for this model"):
        losses(mlp(), Choice((InPlace(("fine",)),)))
    with pytest.raises(ArgumentError, match="an activation 'first'; this one has a Linear"):
        losses(Shortcut(), Choice((InPlace(("first",)),)))
    with pytest.raises(ArgumentError, match="4 modules in 'blocks'; this one has none there"):
        losses(Shortcut(), Choice((Recompute("blocks", (0, (1, 2, 3)), (1, 1, 1, 1)),)))


def test_a_listener_that_hears_nothing_finds_nothing():
    assert Writable().paths == ()
