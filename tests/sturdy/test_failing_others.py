"""Steps with each other technique and each optimizer, which fail at any of their allocations or in any hook of the user's:
parameters and state are as before, no byte is left, and the step made again has the numbers of an undisturbed one.
"""

from __future__ import annotations

import gc
import signal
import sys
import traceback
import zlib
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.memory.test_predicted import RULES
from tests.profiles import every, pairs
from tests.sturdy.test_failing_steps import Run, failing_at, same
from tests.sturdy.test_failing_techniques import held, stepped
from tests.tracing import signal_points
from tinygrad_mem import nn, optim, techniques
from tinygrad_mem.amp import GradScaler, autocast
from tinygrad_mem.devices import cuda, cuda_pool
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.utils import clip_grad_norm_
from tinygrad_mem.techniques import offload, paged

RULE: dict[str, Callable[[list], Any]] = {}
for _name, _options in RULES:
    _given = {k: getattr(tm, v) if k == "state_dtype" else v for k, v in _options.items()}
    RULE.setdefault(_name, lambda p, name=_name, given=_given: getattr(optim, name)(p, **given))


class Small(Run):
    """A network of matrices and vectors; what a technique changes is a method."""

    dtype = tm.float32

    def __init__(self, rule: str = "Adam") -> None:
        tm.manual_seed(3)
        self.where = tm.get_default_device()
        self.model: Any = self.network()
        self.optimizer = self.make(RULE[rule])
        self.x, self.y = tm.randn(6, 8).to(self.dtype), tm.tensor([0, 1, 2, 0, 1, 2])

    def network(self) -> Any:
        layers = [nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)]
        return nn.Sequential(*layers).to(self.dtype)

    def make(self, rule: Callable[[list], Any]) -> Any:
        return rule([p for p in self.model.parameters() if p.requires_grad])

    def loss(self) -> Any:
        return F.cross_entropy(self.model(self.x), self.y)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def parameters(self) -> list[np.ndarray]:
        return [p.detach().cpu().float().numpy().copy() for p in self.model.parameters() if p.dtype.kind == "f"]

    def state(self) -> list:
        kept = [v for p in self.model.parameters() for _, v in sorted(self.optimizer.state.get(p, {}).items())]
        return [v.detach().cpu().float().numpy().copy() if isinstance(v, tm.Tensor) else v for v in kept]


class Tiled(Small):
    """The losses have no local variables, which the traceback of an error would keep."""

    def loss(self) -> Any:
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=2, class_chunk_size=2)
        return F.linear_cross_entropy(
            techniques.tiled(self.model[:5], self.x[None], 2)[0], self.model[5].weight, self.y, options=options
        )


class Chunked(Small):
    def loss(self) -> Any:
        return F.cross_entropy(techniques.chunked(self.model, self.x, 3), self.y)


class Selected(Small):
    def loss(self) -> Any:
        return F.cross_entropy(self.model[5](self.rows(0)), self.rows(1))

    def rows(self, which: int) -> Any:
        return techniques.select_labelled(self.model[:5](self.x), tm.tensor([0, -100, 2, -100, 1, 2]))[which]


class Attentive(Small):
    def loss(self) -> Any:
        heads = (self.model[:3](self.x).reshape(1, 2, 6, 4),) * 3
        try:
            return F.cross_entropy(self.model[3:](F.scaled_dot_product_attention(*heads, is_causal=True).reshape(6, 8)), self.y)
        finally:
            del heads


class Reversible(Small):
    def network(self) -> Any:
        def block() -> Any:
            return techniques.ReversibleBlock(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)))

        return nn.Sequential(techniques.ReversibleSequential(block(), block()), nn.Linear(8, 3))


class Cast(Small):
    def loss(self) -> Any:
        with autocast(self.where.type, dtype=tm.float16):
            return super().loss()


class Scaled(Cast):
    """With a norm that is clipped between."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = GradScaler(self.where.type, init_scale=8.0, growth_interval=1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self) -> list:
        return [*super().state(), *self.scaler.state_dict().values()]

    def restore(self, buffers: list[np.ndarray], ticket: Any) -> None:
        super().restore(buffers, ticket)
        self.scaler._windows = {}


class Masters(Small):
    dtype = tm.float16

    def make(self, rule: Callable[[list], Any]) -> Any:
        return optim.AdamW(self.model.parameters(), master_weights=True)


class Paged(Small):
    def make(self, rule: Callable[[list], Any]) -> Any:
        return techniques.paged_optimizer(super().make(rule))


class Adapted(Small):
    def network(self) -> Any:
        return techniques.lora(super().network(), r=2, lora_dropout=0.1)


class Quantized(Small):
    def network(self) -> Any:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
        return techniques.lora(techniques.quantize_frozen(model), r=2)

    def loss(self) -> Any:
        return F.cross_entropy(self.model(self.x.repeat(1, 8)), self.y)


class Stashed(Small):
    """The inputs of checkpoints, on the host."""

    def loss(self) -> Any:
        with techniques.checkpoints_on_cpu(pin_memory=True):
            return F.cross_entropy(tm.utils.checkpoint.checkpoint_sequential(self.model, 2, self.x), self.y)


KINDS = [Tiled, Chunked, Selected, Attentive, Reversible, Cast, Scaled, Masters, Adapted, Quantized, Stashed]
CASES: dict[str, Callable[[], Small]] = {kind.__name__: kind for kind in KINDS}
CASES |= {rule: lambda rule=rule: Small(rule) for rule in RULE if rule != "Lomo"}  # Lomo updates in backward
CASES |= {f"paged {rule}": lambda rule=rule: Paged(rule) for rule in ("Adam", "AdamW8bit", "Adam4bit", "Adafactor")}


def tried(case: str, before: int, monkeypatch: pytest.MonkeyPatch, step: int, first: int) -> int:
    """At how many of its allocations a step failed, on the default device: each ``step``-th, from the ``first`` on."""
    gc.collect()
    undisturbed = stepped(CASES[case](), before + 1)
    run = stepped(CASES[case](), before)
    run.optimizer.zero_grad()
    run.where.generator.manual_seed(before)
    at, count = first, 0
    photo, ticket, used, buffers = (run.parameters(), run.state()), run.where.generator.state, held(run), run.buffers()
    while True:
        error = tm.OutOfMemoryError(str(run.where), 4, 0, 0, 0) if count % 2 == 0 else KeyboardInterrupt()
        with failing_at(at, error, monkeypatch, str(run.where)) as reached:
            try:
                run.step()
            except (tm.OutOfMemoryError, KeyboardInterrupt) as caught:
                assert caught is error  # noqa: PT017 (it is held on purpose: its traceback must pin nothing)
                run.optimizer.zero_grad()
        if not reached:
            break
        run.restore(buffers, ticket)
        assert held(run) == used, f"allocation {at}: {np.subtract(held(run), used)} bytes are left"
        assert all(map(same, (run.parameters(), run.state()), photo)), f"allocation {at}: parameters or state have changed"
        count += 1
        at += step
    assert same(run.parameters(), undisturbed.parameters())
    assert same(run.state(), undisturbed.state())
    return count


@pytest.mark.parametrize(("case", "before"), pairs([*CASES], [0, 1]))
def test_a_step_that_fails_at_an_allocation_can_be_made_again(
    case: str, before: int, monkeypatch: pytest.MonkeyPatch, reliability: Callable[[str, int], None]
):
    count = tried(case, before, monkeypatch, every(3), 1 + before)
    assert count > 3
    reliability("steps that fail at an allocation, with other techniques and optimizers", count)


@pytest.mark.cuda
@pytest.mark.usefixtures("gpu_pool")
@pytest.mark.parametrize("case", [*CASES][:: every(2)])
def test_on_a_gpu_too(case: str, monkeypatch: pytest.MonkeyPatch, reliability: Callable[[str, int], None]):
    """At few allocations of each, since the same code decides what is kept. A usual run interrupts the others, below."""
    with tm.device("cuda"):
        number = zlib.crc32(case.encode())
        count = tried(case, number % 2, monkeypatch, every(16), 1 + number % every(16))
    assert count
    reliability("steps that fail at an allocation, with other techniques and optimizers", count)


def interrupted(run: Run, point: int) -> tuple[str, int]:
    """A step with Ctrl-C at a point of the code of the device; where that was, and how many points there were."""
    files, where, count = {module.__file__ for module in (cuda, cuda_pool, offload, paged)}, "", 0

    def at(frame: FrameType, position: int) -> None:
        nonlocal count, where
        count += 1
        if count == point:
            where = f"{frame.f_code.co_name}:{frame.f_lineno}"
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    try:
        with signal_points(lambda code: code.co_filename in files, at):
            run.step()
    except KeyboardInterrupt:
        assert where
    run.optimizer.zero_grad()
    gc.collect()  # the tracer and the frames that it saw hold each other
    return where, count


@pytest.mark.cuda
@pytest.mark.usefixtures("gpu_pool")
@pytest.mark.parametrize("case", [*CASES][every(2) - 1 :: every(2)])
def test_on_a_gpu_ctrl_c_leaves_no_bytes(case: str, reliability: Callable[[str, int], None]):
    """Neither there nor on the host, wherever it comes in the code that takes memory and copies."""
    with tm.device("cuda"):
        run = stepped(CASES[case](), 1)
        run.optimizer.zero_grad()
        used, buffers, ticket = held(run), run.buffers(), run.where.generator.state
        _, count = interrupted(run, 0)
        points = range(1 + zlib.crc32(case.encode()) % every(count // 2), count + 1, every(count // 2))
        for point in points:
            where, _ = interrupted(run, point)
            run.restore(buffers, ticket)
            assert where
            assert held(run) == used, f"{where}: {np.subtract(held(run), used)} bytes are left"
        stepped(run, 1)
    reliability("interrupts of steps in the code of a GPU", len(points))


# --- hooks ----------------------------------------------------------------------------------------------------------------


class Mine(Exception):
    pass


def _raises(*_: Any) -> None:
    raise Mine


def _hooked(run: Run, where: str) -> Any:
    """The handle of a hook that raises."""
    trained = [p for p in run.model.parameters() if p.requires_grad]
    return {
        "forward": lambda: list(run.model.modules())[-1].register_forward_hook(_raises),
        "before forward": lambda: run.model.register_forward_pre_hook(_raises),
        "gradient": lambda: trained[0].register_hook(_raises),
        "accumulated": lambda: trained[0].register_post_accumulate_grad_hook(_raises),
        "before step": lambda: run.optimizer.register_step_pre_hook(_raises),
    }[where]()


HOOKS = ["forward", "before forward", "gradient", "accumulated", "before step"]


@pytest.mark.parametrize(("case", "where"), pairs([*CASES], HOOKS))
def test_a_step_that_a_hook_ends_can_be_made_again(case: str, where: str):
    undisturbed, run = stepped(CASES[case](), 2), stepped(CASES[case](), 1)
    run.where.generator.manual_seed(1)
    photo, ticket, buffers = (run.parameters(), run.state()), run.where.generator.state, run.buffers()
    handle = _hooked(run, where)
    try:
        run.step()
    except Mine:
        pass
    else:
        assert where in ("forward", "before forward"), "the hook was not called"  # of a part that this loss calls by itself
        pytest.skip("no forward of this module is called")
    handle.remove()
    assert all(map(same, (run.parameters(), run.state()), photo))
    run.optimizer.zero_grad()
    run.restore(buffers, ticket)
    run.step()
    assert same(run.parameters(), undisturbed.parameters())
    assert same(run.state(), undisturbed.state())


# --- what an error keeps ------------------------------------------------------------------------------------------------------


class Twice(tm.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def layers() -> nn.ModuleDict:
    made = {"linear": nn.Linear(4, 4), "attention": nn.MultiheadAttention(4, 2), "lstm": nn.LSTM(4, 3)}
    return nn.ModuleDict(made | {"transformer": nn.TransformerEncoderLayer(4, 2, 8)})


def accumulated(x: Any, linear: nn.Module) -> Any:
    return techniques.accumulate(linear, optim.SGD(linear.parameters()), 2).backward(linear(x).sum(), weight=2)


GIVEN: dict[str, Callable[[Any, Any], Any]] = {
    "scale": lambda x, m: GradScaler("cpu").scale(x.sum()),
    "scale several": lambda x, m: GradScaler("cpu").scale([x.sum(), x.sum()]),
    "select_labelled": lambda x, m: techniques.select_labelled(x, tm.tensor([0, -100])),
    "labelled_positions": lambda x, m: techniques.labelled_positions(x.long()),
    "chunked": lambda x, m: techniques.chunked(nn.ReLU(), x, 2),
    "tiled": lambda x, m: techniques.tiled(nn.ReLU(), x[None], 1),
    "accumulate": lambda x, m: accumulated(x, m["linear"]),
    "checkpoint": lambda x, m: tm.utils.checkpoint.checkpoint(nn.Tanh(), x),
    "checkpoint_sequential": lambda x, m: tm.utils.checkpoint.checkpoint_sequential(nn.Sequential(nn.Tanh(), nn.Tanh()), 2, x),
    "backward": lambda x, m: tm.autograd.backward(x.sum()),
    "grad": lambda x, m: tm.autograd.grad(x.sum(), [x]),
    "function": lambda x, m: Twice.apply(x),
    "module": lambda x, m: m["linear"](x),
    "hook": lambda x, m: x.register_hook(lambda g: g * 2) and x.sum().backward(),
    "pack": lambda x, m: nn.utils.rnn.pack_padded_sequence(x[:, :, None], [4, 3], batch_first=True),
    "pad": lambda x, m: nn.utils.rnn.pad_sequence([x, x]),
    "clip": lambda x, m: clip_grad_norm_([x], 1.0),
    "vector": lambda x, m: nn.utils.parameters_to_vector([x, x]),
    "collate": lambda x, m: tm.utils.data.default_collate([x, x]),
    "jacobian": lambda x, m: tm.autograd.gradcheck(tm.exp, [x.double()]),
    "attention": lambda x, m: m["attention"](x, x, x),
    "lstm": lambda x, m: m["lstm"](x),
    "transformer": lambda x, m: m["transformer"](x),
}


@pytest.mark.parametrize("name", GIVEN)
def test_an_error_keeps_no_argument_alive(name: str, monkeypatch: pytest.MonkeyPatch):
    """The caller of what failed goes on with a smaller batch, while it handles the error."""
    gc.collect()
    pool, error, at = tm.device("cpu").pool, tm.OutOfMemoryError("cpu", 4, 0, 0, 0), 2
    function, model = GIVEN[name], layers()
    function(tm.ones(2, 4, requires_grad=True).exp(), model)  # what is made once is made
    model.zero_grad()
    gc.collect()
    reached, used = [True], pool.used_bytes()
    while reached:
        with failing_at(at, error, monkeypatch, "cpu") as reached:
            try:
                function(tm.ones(2, 4, requires_grad=True).exp(), model)
            except tm.OutOfMemoryError as caught:
                for frame, _ in traceback.walk_tb(caught.__traceback__):
                    if frame.f_code.co_filename == __file__ and frame is not sys._getframe():
                        frame.clear()  # the caller's own variables
                model.zero_grad()
                assert pool.used_bytes() == used, f"allocation {at}: {pool.used_bytes() - used} bytes are left"
        at, error.__traceback__ = at + 1, None
    assert at > 3
