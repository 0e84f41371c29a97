"""A prediction is what a run measures, to the byte: used, reserved, by category; and it harms nothing."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests import networks
from tests.profiles import examples, some
from tests.sums import check_sums, counted
from tinygrad_mem import memory, nn, techniques
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import DataDependenceError, DeviceError
from tinygrad_mem.kernels.numpy import random as random_kernels
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.nn import functional as F
from tinygrad_mem.utils.checkpoint import checkpoint_sequential


def measured(run: Callable[[], Any]) -> memory.Track:
    """The same on the cpu, in a pool of its own: what other tests have left alive is no part of it."""
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        with memory.track("cpu") as track, counted(cpu.pool) as used:
            run()
    finally:
        cpu.pool = before
    check_sums(track, used)
    return track


def predicted(run: Callable[[], Any]) -> memory.Track:
    """The prediction of a run, whose categories add up to what the pool of meta counts, at every event."""

    def watched() -> list[int]:
        with counted(tm.device("cpu").pool) as used:
            run()
        return used

    seen: list[list[int]] = []
    track = memory.predict(lambda: seen.append(watched()))
    check_sums(track, seen[0])
    return track


def assert_predicted(run: Callable[[], Any]) -> memory.Track:
    said, found = predicted(run), measured(run)
    assert said.peak == found.peak
    assert said.by_category("peak") == found.by_category("peak")
    assert said.by_module("peak") == found.by_module("peak")
    for when in ("peak", "end"):
        ours, theirs = said.pool(when), found.pool(when)
        assert (ours.requested, ours.rounded, ours.used) == (theirs.requested, theirs.rounded, theirs.used)
    assert said.pool("end").reserved == found.pool("end").reserved
    assert np.array_equal(said.timeline().used, found.timeline().used)
    return said


@pytest.mark.parametrize(
    "workload", some(networks.WORKLOADS[:4], networks.WORKLOADS[:2]), ids=lambda workload: workload.name.split()[0]
)
def test_the_networks(workload: networks.Workload):
    def run() -> None:
        step = workload.build(tm, "cpu")
        for _ in range(2):
            step()

    tm.manual_seed(0)
    assert_predicted(run)


SIZES = {
    "lenet": [(2, (1, 28, 28)), (33, (1, 28, 28))],
    "resnet20": [(2, (3, 32, 32)), (5, (3, 20, 28))],
    "resnet110": [(2, (3, 16, 16)), (1, (3, 32, 32))],
    "resnet1001": [(2, (3, 12, 8))],
    "resnet18": [(2, (3, 64, 64)), (1, (3, 100, 70))],
    "resnet34": [(2, (3, 32, 32)), (1, (3, 64, 96))],
    "resnet101": [(2, (3, 32, 32)), (1, (3, 64, 64))],
    "resnet50": [(2, (3, 64, 64)), (1, (3, 64, 32))],
    "resnet152": [(2, (3, 32, 32)), (1, (3, 64, 64))],
    "vgg11": [(2, (3, 32, 32)), (1, (3, 64, 96))],
    "vgg13": [(2, (3, 32, 64))],
    "vgg16": [(2, (3, 64, 32))],
    "vgg16_bn": [(3, (3, 64, 64))],
    "vgg19": [(1, (3, 64, 64))],
    "mobilenet_v2": [(2, (3, 64, 64)), (3, (3, 64, 32))],
    "densenet121": [(2, (3, 64, 64)), (1, (3, 64, 32))],
    "squeezenet": [(2, (3, 64, 64)), (1, (3, 100, 70))],
    "unet": [(1, (3, 64, 64)), (1, (3, 32, 16))],
    "gpt2": [(2, (40,))],
    "lstm": [(2, (16,)), (32, (64,))],
    "lstm-tied": [(1, (7,)), (3, (40,))],
    "bert-tiny": [(1, (16,)), (3, (40,))],
}
NAMED = [(name, *size) for name, sizes in SIZES.items() for size in sizes]
SAME_CODE = {
    "resnet34",
    "resnet110",
    "resnet101",
    "resnet152",
    "resnet1001",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg16_bn",
    "vgg19",
    "gpt2",
}
"""More of the layers that others have; VGG's and GPT's are those of networks that are planned and trained in ``tests/plan``."""
LONG = {"resnet18", "resnet50", "densenet121", "unet"}
"""On the CPU they compute for a second. A usual run predicts them on a GPU, where ``test_networks_on_gpu`` computes nothing."""


def two_steps(name: str, batch: int, sample: tuple[int, ...]) -> None:
    """The first step of an optimizer has no state yet."""
    named = NETWORKS[name]
    model = named.make()
    optimizer = tm.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        x = tm.randint(0, named.classes, (batch, *sample)) if named.tokens else tm.randn(batch, *sample)
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("name", "batch", "sample"),
    some(NAMED, [row for row in NAMED if row[0] not in SAME_CODE | LONG and row[1:] == SIZES[row[0]][-1]]),
)
def test_networks_by_name(name: str, batch: int, sample: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    """At two sizes, or at one where parameters take the time. Numbers decide nothing; to draw them would take most of it.

    A usual run takes one size of one network of each kind of code.
    """
    monkeypatch.setattr(random_kernels, "_fill", lambda out, *draw: out.fill(0.01))
    assert_predicted(lambda: two_steps(name, batch, sample))


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, width),
    "relu": lambda width: nn.ReLU(),
    "in place": lambda width: nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)),
    "dropout": lambda width: nn.Dropout(0.5),
    "norm": lambda width: nn.BatchNorm1d(width),
    "layer norm": lambda width: nn.LayerNorm(width),
    "gelu": lambda width: nn.GELU(),
}


@settings(max_examples=examples(25))
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=8),
    width=st.integers(1, 300),
    batch=st.integers(2, 40),
    steps=st.integers(1, 3),
    optimizer=st.sampled_from(["SGD", "Adam", "RMSprop"]),
    keep=st.booleans(),
    evaluate=st.booleans(),
)
def test_random_networks(layers: list, width: int, batch: int, steps: int, optimizer: str, keep: bool, evaluate: bool):
    def run() -> None:
        model = nn.Sequential(nn.Linear(7, width), *[LAYERS[name](width) for name in layers])
        update = getattr(tm.optim, optimizer)(model.parameters(), lr=1e-3)
        total = 0.0
        for _ in range(steps):
            update.zero_grad(set_to_none=not keep)
            loss = model(tm.randn(batch, 7)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            update.step()
            total += loss.item()
        if evaluate:
            with tm.no_grad():
                model.eval()(tm.randn(batch, 7))

    assert_predicted(run)


@settings(max_examples=examples(12))
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=2, max_size=8),
    width=st.integers(1, 200),
    batch=st.integers(4, 40),
    optimizer=st.sampled_from(["SGD", "Adam", "AdamW8bit", "Adafactor"]),
    precision=st.sampled_from(["float32", "autocast", "half", "masters"]),
    segments=st.integers(0, 3),
    saved=st.sampled_from([None, techniques.compressed, techniques.save_on_cpu]),
    update=st.sampled_from(["plain", "accumulate", "in backward", "scaler"]),
)
def test_random_combinations_of_techniques(
    layers: list, width: int, batch: int, optimizer: str, precision: str, segments: int, saved: Any, update: str
):
    dtype = tm.float16 if precision in ("half", "masters") else tm.float32

    def loss_of(model: nn.Module, x: Any) -> Any:
        with tm.autocast("cpu", dtype=tm.float16, enabled=precision == "autocast"), (saved or contextlib.nullcontext)():
            y = checkpoint_sequential(model, segments, x, use_reentrant=False) if segments else model(x)  # type: ignore[arg-type]
            return y.float().square().mean()

    def run() -> None:
        model = nn.Sequential(nn.Linear(7, width), *[LAYERS[name](width) for name in layers]).to(dtype)
        for p in model.parameters() if update == "scaler" else ():
            p.grad_dtype = tm.float32
        masters = {"master_weights": True} if precision == "masters" else {}
        rule = getattr(tm.optim, optimizer)(model.parameters(), lr=1e-3, **masters)
        window = techniques.accumulate(model, rule, 2) if update == "accumulate" else None
        scaler = tm.amp.GradScaler("cpu", init_scale=1.0) if update == "scaler" else None
        early = techniques.optimizer_in_backward(rule) if update == "in backward" else None
        for _ in range(4):
            loss = loss_of(model, tm.randn(batch, 7, dtype=dtype))
            if window is not None:
                window.backward(loss, batch)
            elif scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(rule)
                scaler.update()
            else:
                loss.backward()
            if update == "plain":
                rule.step()
            if early is None and window is None:
                rule.zero_grad()

    assert_predicted(run)


def script(device: str) -> Callable[[], None]:
    """A training script as people write it: devices by name, data from NumPy through a loader, losses logged."""
    images, labels = np.random.default_rng(0).random((40, 1, 8, 8), np.float32), np.arange(40) % 10

    def run() -> None:
        where = tm.device(device)
        data = tm.utils.data.TensorDataset(tm.from_numpy(images), tm.tensor(labels))
        loader = tm.utils.data.DataLoader(data, batch_size=16, shuffle=True)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)).to(where)
        optimizer = tm.optim.Adam(model.parameters())
        for epoch in range(2):
            running = 0.0
            for x, y in loader:
                x, y = x.to(where), y.to(where)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                running += loss.item() * len(x)
            print(f"epoch {epoch}: loss {running / len(data):.4f}")

    return run


def test_a_script_with_a_loader_and_a_log(capsys: pytest.CaptureFixture):
    assert_predicted(script("cpu"))
    assert "epoch 1: loss unknown" in capsys.readouterr().out


def test_devices_by_name_are_meta_inside_and_themselves_outside():
    track = memory.predict(script("cuda"))  # whether there is one or not
    assert track.device == "meta"
    assert track.peak == memory.predict(script("cpu")).peak
    assert tm.device("cpu").type == "cpu"
    assert tm.ones(2).device.type == "cpu"


@pytest.mark.parametrize("like", ["cpu", "cuda"])
def test_a_program_that_asks_for_its_device_does_what_it_does_there(like: str):
    asked: list = []

    def run() -> None:
        x = tm.zeros(10, 100, device=like)
        asked.extend([x.device.type, str(x.device), x.is_cuda, x.is_cpu, tm.cuda.is_available(), tm.cuda.device_count()])
        assert x.device == tm.device(like) == tm.device(x.device.type) == tm.device(str(x.device))
        if x.device.type != "meta":
            x = x * 2
        assert str(tm.zeros(0, device=tm.device(like).host()).device) == "cpu"
        del x
        if tm.cuda.is_available():
            tm.cuda.set_device(tm.cuda.current_device())
            assert f"{tm.ones(2)}" == "tensor(..., device='cuda:0', size=(2,))"

    track = memory.predict(run, like=like)
    gpu = like == "cuda"
    assert asked == [like, "cuda:0" if gpu else "cpu", gpu, not gpu, gpu, int(gpu)]
    assert (track.peak, track.device) == (8192, "meta")
    assert tm.zeros(2, device="meta").device.type == "meta"


def test_meta_that_a_program_writes_is_meta_and_its_own_device_is_the_predicted_one():
    """Weights are read into a model that was made on meta: one copy of them, in the run and in its prediction."""

    def load() -> None:
        with tm.device("meta"):
            model = nn.Linear(1000, 1000, bias=False)
        weights = tm.ones(1000, 1000)
        model.load_state_dict({"weight": weights}, assign=True)
        nothing = tm.empty(1000, 1000, device="meta")
        assert nothing.device is not weights.device
        for where in (weights.device, weights.device.type, str(weights.device)):
            assert tm.empty(2, device=where).device is weights.device

    with memory.track() as track:
        load()
    assert memory.predict(load).peak == track.peak == 4_000_256 + 512


def test_what_a_program_makes_on_meta_cannot_be_moved_from_there():
    def move() -> None:
        nothing, weights = tm.empty(1000, device="meta"), tm.ones(1000)
        for take in (nothing.cpu, lambda: weights.copy_(nothing), lambda: nothing.to(weights.device)):
            with pytest.raises(DataDependenceError, match="no values; move the module to a real device"):
                take()

    move()
    memory.predict(move)


def conv_step() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
    model(tm.randn(4, 3, 32, 32)).square().mean().backward()


def workspaces(track: memory.Track) -> list[int]:
    return [block.requested for block in track.blocks() if any(c.value == "workspace" for _, c in block.categories)]


def test_like_a_gpu_differs_in_workspaces_and_in_nothing_else():
    """What the CUDA kernels say that they want, and no other byte, tells the two predictions apart."""
    cupy = pytest.importorskip("cupy")
    from tinygrad_mem.kernels import cupy as kernels

    assert cupy is not None
    gpu, cpu = memory.predict(conv_step, like="cuda"), memory.predict(conv_step)
    x, w, y, ones = (4, 64, 32, 32), (64, 64, 3, 3), (4, 64, 32, 32), (1, 1)
    wanted = [kernels.conv_workspace(kind, x, w, y, ones, ones, ones, 1, np.dtype("f4")) for kind in ("forward", "weight")]
    assert set(wanted) <= set(workspaces(gpu))
    assert set(workspaces(gpu)) != set(workspaces(cpu))
    rest = [
        sorted(b.requested for b in track.blocks() if not any(c.value == "workspace" for _, c in b.categories))
        for track in (gpu, cpu)
    ]
    assert rest[0] == rest[1]
    found = gpu.replay()
    assert found.used == gpu.peak <= found.low <= found.high <= 2 * gpu.peak
    assert memory.predict(conv_step).peak == cpu.peak  # and afterwards meta is as it was


def test_like_a_gpu_without_cupy_and_like_nothing(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DeviceError, match="'cpu' or 'cuda', found 'tpu'"):
        memory.predict(conv_step, like="tpu")
    for name in [name for name in sys.modules if name.startswith("tinygrad_mem.kernels.cupy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("tinygrad_mem.kernels.cupy", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"without a GPU too: pip install cupy-cuda12x"):
        memory.predict(conv_step, like="cuda")
    assert memory.predict(conv_step).peak > 0


def test_workers_are_in_it_too():
    def run() -> None:
        data = tm.utils.data.TensorDataset(tm.ones(64, 4))
        for (x,) in tm.utils.data.DataLoader(data, batch_size=16, num_workers=2):
            assert x.is_meta

    assert memory.predict(run).peak > 64 * 4 * 4


def test_a_hundred_billion_parameters():
    def run() -> None:
        blocks = [nn.Linear(65536, 65536, bias=False) for _ in range(24)]
        F.mse_loss(nn.Sequential(*blocks)(tm.randn(1, 65536)), tm.zeros(1, 65536)).backward()

    track = memory.predict(run)
    assert 2 * 24 * 65536**2 * 4 <= track.peak <= 2.01 * 24 * 65536**2 * 4


def test_generators_are_left_alone_and_threads_of_the_program_are_predicted():
    tm.manual_seed(3)
    drawn: list = []
    before = [tm.rand(2).tolist()]

    def run() -> None:
        tm.manual_seed(7)
        tm.rand(5)
        thread = threading.Thread(target=lambda: drawn.append(tm.zeros(1).is_meta))
        thread.start()
        thread.join()

    memory.predict(run)
    after = tm.rand(2).tolist()
    tm.manual_seed(3)
    assert [tm.rand(2).tolist(), tm.rand(2).tolist()] == [*before, after]
    assert drawn == [True]


@pytest.mark.parametrize(
    ("decide", "what"),
    [
        (lambda loss: loss.item() > 3, "a comparison"),
        (lambda loss: bool(loss > 3), "the truth"),
        (lambda loss: range(int(loss.item())), "a whole number"),
        (lambda loss: [0][loss.long().item()], "an index"),
        (lambda loss: loss.numpy(), "no values"),
        (lambda loss: sorted([loss.item(), 0.5]), "a comparison"),
    ],
)
def test_decisions_by_values_are_refused_with_their_line(decide: Callable, what: str):
    def run() -> None:
        decide(tm.rand(3).sum())

    with pytest.raises(DataDependenceError, match=rf"predict: at tests/memory/test_predict.py:\d+ <lambda>: .*{what}"):
        memory.predict(run)
    assert tm.ones(1).item() == 1.0


def test_what_can_be_done_with_an_unknown_number():
    def run() -> None:
        loss = tm.rand(3).mean().item()
        total = sum([loss, 2 * loss, loss**2, -loss, 1 - loss, loss / 3, round(loss, 2), abs(loss)]) / 8
        assert f"{total:.3f} {total} {total!r} {[total]}" == "unknown unknown unknown [unknown]"
        assert isinstance(total, float)
        assert f"{np.log(total)}" == "unknown"
        assert f"{tm.rand(3).mean():.3f} {tm.rand(3).mean():>9}" == "unknown unknown"

    memory.predict(run)


def test_a_plain_float_cannot_be_unknown_and_says_so():
    """``float(loss)`` makes a plain number: a program that decides by it must hear that it was made up."""
    with pytest.warns(UserWarning, match=r"a plain number is needed, and 1 was taken.*item\(\)") as told:
        memory.predict(lambda: float(tm.rand(3).mean()))
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.predict(lambda: float(tm.tensor(3.0)))


def test_tensors_from_outside_are_refused_and_unharmed():
    model, x = nn.Linear(3, 3), tm.ones(2, 3)
    weights = model.weight.tolist()
    loss = model(x).sum()
    optimizer = tm.optim.Adam(model.parameters())
    model.weight.grad = tm.ones(3, 3)
    moved = [lambda: model.to("cuda"), lambda: x.to("cpu")]
    computed = [lambda: model(tm.ones(2, 3)), lambda: model(x), lambda: x.add_(1), lambda: x[0] + 1]
    for run in (*moved, *computed, loss.backward, optimizer.step):
        with pytest.raises(DeviceError, match=r"predict: at .*make what the step uses inside it"):
            memory.predict(run)
    assert model.weight.device.type == "cpu"
    assert model.weight.tolist() == weights
    assert x.tolist() == [[1.0] * 3] * 2
    assert model.bias.grad is None
    assert not optimizer.state


def test_errors_of_the_step_come_through_and_all_is_as_before():
    used = tm.device("meta").pool.used_bytes()
    for error in (ZeroDivisionError, KeyboardInterrupt):

        def run(error: type[BaseException] = error) -> None:
            tm.ones(1 << 20)
            raise error

        with pytest.raises(error):
            memory.predict(run)
        assert tm.ones(1).device.type == "cpu"
        assert tm.device("meta").pool.used_bytes() == used


# --- a prediction inside a track of meta, or inside another prediction


def _mlp_step() -> tm.Tensor:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    y = model(tm.randn(32, 64))
    y.sum().backward()
    return y


def test_a_prediction_inside_another_is_not_heard_there():
    """Nor is the end of what it returned, which comes later."""
    alone = memory.predict(_mlp_step)

    def with_one_inside() -> None:
        kept = []
        memory.predict(lambda: kept.append(_mlp_step()))
        y = _mlp_step()
        kept.clear()
        del y

    inside = memory.predict(with_one_inside)
    assert inside.peak == alone.peak
    assert inside.timeline().used.max() == alone.timeline().used.max()
    assert inside.timeline().used.min() >= 0
    assert inside.timeline()[-1].used == 0


def test_a_prediction_inside_a_track_of_meta_is_not_heard_there():
    gc.collect()
    older = tm.device("meta").pool.used_bytes()
    with memory.track("meta") as track:
        held = tm.empty(1000, device="meta")
        memory.predict(_mlp_step)
        more = tm.empty(2000, device="meta")
    assert track.peak == older + 4096 + 8192
    assert len(held) + len(more) == 3000


def test_what_dies_inside_a_prediction_is_heard_around_it():
    gc.collect()
    pool = tm.device("meta").pool
    with memory.track("meta") as track:
        held = [tm.empty(1000, device="meta")]
        memory.predict(held.clear)
        assert not held
    assert track.timeline()[-1].used == pool.used_bytes()


@pytest.mark.parametrize("tracked", [False, True])
def test_what_dies_inside_and_was_made_outside_is_no_part_of_it(tracked: bool):
    """Of an earlier prediction, of meta itself, and of a nested one: their addresses are those of the run's own blocks."""
    kept: list[Any] = []

    def keeping() -> None:
        kept.append([tm.ones(1000), nn.Linear(100, 100)(tm.ones(10, 100))])

    def run() -> None:
        x = tm.ones(1000) * 2
        kept.clear()
        gc.collect()
        y = x + tm.ones(300, 1000)
        memory.predict(lambda: tm.ones(7))
        del x, y

    plain = memory.predict(run)
    memory.predict(keeping)
    assert len(kept) == 1
    with memory.track("meta") if tracked else contextlib.nullcontext():
        kept.append(tm.ones(2000, device="meta"))
        again = memory.predict(run)
    assert again.peak == plain.peak
    assert again.by_category("peak") == plain.by_category("peak")
    assert again.timeline().used.tolist() == plain.timeline().used.tolist()


def test_it_is_like_the_default_device():
    """A program that runs on a GPU by default is predicted as it runs; what is asked for in words counts more."""
    gpu, cpu = memory.predict(conv_step, like="cuda").peak, memory.predict(conv_step).peak
    assert gpu != cpu
    with tm.device("cuda"):
        assert memory.predict(conv_step).peak == gpu
        assert memory.predict(conv_step, like="cpu").peak == cpu
    inside = []
    memory.predict(lambda: inside.append(memory.predict(conv_step).peak), like="cuda")
    assert inside == [gpu], "a prediction in a prediction is of the same device"
