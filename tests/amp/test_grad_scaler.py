"""``GradScaler`` is PyTorch's state machine, step by step; it loses nothing, and takes one number a device."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.amp.test_cache import rounded
from tests.case import values
from tests.memory.test_predict import assert_predicted
from tests.profiles import examples
from tests.witness import numpy_allocations
from tinygrad_mem import amp, memory, nn, optim
from tinygrad_mem.amp import grad_scaler
from tinygrad_mem.devices import device
from tinygrad_mem.errors import GraphError
from tinygrad_mem.techniques import optimizer_in_backward

INF, NAN = float("inf"), float("nan")


def scaler_of(framework: Any, **options: Any) -> Any:
    return framework.amp.GradScaler("cpu", **options)


def leaf(framework: Any, *numbers: float) -> Any:
    return framework.tensor(list(numbers)).requires_grad_()


# --- the state machine ----------------------------------------------------------------------------------------------------


class Machine:
    """A scaler and two optimizers of one framework, driven by commands; each says what came of it."""

    def __init__(self, framework: Any, options: dict) -> None:
        self.framework = framework
        self.scaler = scaler_of(framework, **options)
        self.leaves = [leaf(framework, 1.0, 2.0), leaf(framework, 3.0)]
        self.optimizers = [framework.optim.SGD([p], lr=0.5) for p in self.leaves]

    def do(self, what: str, which: int, number: float) -> Any:
        try:
            getattr(self, what)(which, number)
        except (RuntimeError, AssertionError) as error:
            text = str(error)
            if "No inf checks were recorded for this optimizer" in text:
                return "no gradients"
            kind = AssertionError if isinstance(error, AssertionError) else RuntimeError
            return kind.__name__, text.split(".")[0]
        return None

    def look(self) -> tuple:
        return (
            self.scaler.get_scale(),
            self.scaler._get_growth_tracker(),
            self.scaler.state_dict(),
            [p.detach().numpy().tolist() for p in self.leaves],
            [None if p.grad is None else p.grad.numpy().tolist() for p in self.leaves],
        )

    def backward(self, which: int, number: float) -> None:
        """The gradient of each element is ``number``; through the scaled loss, so that it may overflow on the way."""
        self.scaler.scale((self.leaves[which] * number).sum()).backward()

    def spoil(self, which: int, number: float) -> None:
        if self.leaves[which].grad is not None:
            self.leaves[which].grad[0] = (INF, -INF, NAN)[int(number) % 3]

    def unscale(self, which: int, number: float) -> None:
        self.scaler.unscale_(self.optimizers[which])

    def step(self, which: int, number: float) -> None:
        if self.leaves[which].grad is None:
            return  # PyTorch fails there, we do not: tests of its own below
        self.scaler.step(self.optimizers[which])

    def zero(self, which: int, number: float) -> None:
        self.optimizers[which].zero_grad()

    def update(self, which: int, number: float) -> None:
        self.scaler.update()

    def set_scale(self, which: int, number: float) -> None:
        self.scaler.update(float(2 ** (int(number) % 7)))

    def set_numbers(self, which: int, number: float) -> None:
        self.scaler.set_growth_interval(1 + int(number) % 3)
        self.scaler.set_growth_factor(1.1 + int(number) % 2)
        self.scaler.set_backoff_factor(0.3)

    def reload(self, which: int, number: float) -> None:
        state = self.scaler.state_dict()
        fresh = scaler_of(self.framework, init_scale=3.0)
        fresh.load_state_dict(state)
        fresh.scale(self.framework.ones(1))
        self.scaler = fresh


COMMANDS = ["backward", "backward", "backward", "step", "step", "update", "update", "unscale", "spoil", "zero", "set_scale"]
COMMANDS += ["set_numbers", "reload"]
commands = st.tuples(st.sampled_from(COMMANDS), st.integers(0, 1), st.sampled_from([0.0, 1.0, 2.0, 3.5, 1e30, 3e38]))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "init_scale": st.sampled_from([1.0, 8.0, 2.0**16, 3e37, 0.1]),
        "growth_factor": st.sampled_from([1.001, 2.0, 3.0]),
        "backoff_factor": st.sampled_from([0.25, 0.5, 0.9]),
        "growth_interval": st.integers(1, 3),
    },
)


@settings(max_examples=examples(150))
@given(OPTIONS, st.lists(commands, max_size=30))
def test_every_step_is_pytorchs(options: dict, program: list):
    ours, theirs = Machine(tm, options), Machine(torch, options)
    checked = False
    for what, which, number in program:
        if what == "unscale" and all(m.leaves[which].grad is None for m in (ours, theirs)):
            continue  # nothing is checked then: PyTorch fails later, we do not
        found, expected = ours.do(what, which, number), theirs.do(what, which, number)
        checked = checked or what in ("unscale", "step")
        assert found == expected, (what, which, number)
        np.testing.assert_equal(ours.look(), theirs.look())


def test_the_comparison_reaches_skips_growth_and_errors():
    program = [("backward", 0, 1.0), ("spoil", 0, 0.0), ("step", 0, 0.0), ("step", 0, 0.0), ("update", 0, 0.0)]
    program += [("zero", 0, 0.0), ("backward", 0, 1.0), ("unscale", 0, 0.0), ("unscale", 0, 0.0), ("step", 0, 0.0)]
    program += [("update", 0, 0.0), ("update", 0, 0.0)]
    machine = Machine(tm, {"growth_interval": 1, "init_scale": 8.0})
    said = [machine.do(*command) for command in program]
    assert [s for s in said if s] == [
        ("RuntimeError", "step() has already been called since the last update()"),
        ("RuntimeError", "unscale_() has already been called on this optimizer since the last update()"),
        ("AssertionError", "No inf checks were recorded prior to update"),
    ]
    assert machine.scaler.get_scale() == 8.0  # halved, doubled
    assert values(machine.leaves[0]).tolist() == [0.5, 1.5]  # one step, not two


@pytest.mark.parametrize(
    "options", [{"growth_interval": 2}, {"init_scale": 2.0**125, "growth_interval": 1, "growth_factor": 4.0}]
)
def test_the_scale_grows_every_interval_and_never_to_infinity(options: dict):
    ours, theirs = Machine(tm, options), Machine(torch, options)
    scales = []
    for _ in range(6):
        for machine in (ours, theirs):
            for what in ("zero", "backward", "step", "update"):
                machine.do(what, 0, 0.0)
        assert ours.look()[:3] == theirs.look()[:3]
        scales.append(ours.scaler.get_scale())
    assert len(set(scales)) == (4 if options["growth_interval"] == 2 else 1)


def test_signature_and_docstring():
    mine, other = (inspect.signature(lib.amp.GradScaler).parameters for lib in (tm, torch))
    assert [(p.name, p.default) for p in mine.values()] == [(p.name, p.default) for p in other.values()]
    public = {name for name in dir(torch.amp.GradScaler) if not name.startswith("_")}
    assert public <= set(dir(tm.amp.GradScaler))
    assert set(dir(tm.amp.GradScaler)) - set(dir(torch.amp.GradScaler)) <= {
        "stepped", "_begun", "_fresh_window", "_given", "_grow", "_note", "_scaled", "_window", "__firstlineno__",
        "__static_attributes__",
    }  # fmt: skip


# --- losses ---------------------------------------------------------------------------------------------------------------


def test_what_is_scaled():
    scaler, other = scaler_of(tm), scaler_of(torch)
    half = np.float16(0.25)
    for framework, s in ((tm, scaler), (torch, other)):
        made = [framework.tensor(0.5), (framework.tensor([0.5, 1.0]), framework.tensor(half)), [framework.ones(1).half() / 8]]
        found = s.scale(made)
        assert isinstance(found, list)
        assert isinstance(found[1], tuple)
        flat = [found[0], *found[1], *found[2]]
        assert [t.tolist() for t in flat] == [32768.0, [32768.0, 65536.0], 16384.0, [8192.0]]
        assert [str(t.dtype).removeprefix("torch.") for t in flat] == ["float32", "float32", "float32", "float16"]
        lazy = s.scale(framework.tensor(float(i)) for i in range(3))
        assert [t.item() for t in lazy] == [0.0, 65536.0, 131072.0]
        with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
            s.scale(3)


def test_several_losses_and_optimizers_each_have_their_state():
    """Reproduced in NeuroGrad: the second optimizer is never unscaled."""
    scaler = scaler_of(tm, init_scale=4.0)
    a, b = leaf(tm, 1.0), leaf(tm, 1.0)
    first, second = tm.optim.SGD([a], lr=1.0), tm.optim.SGD([b], lr=1.0)
    for loss in scaler.scale([a.sum() * 2, (a + b).sum()]):
        loss.backward()
    assert scaler.step(first) is None
    scaler.step(second)
    assert (a.item(), b.item()) == (1 - 3, 1 - 1)
    scaler.update()
    b.grad[0] = INF
    scaler.step(first)
    scaler.step(second)
    assert (scaler.stepped(first), scaler.stepped(second)) == (True, False)
    scaler.update()
    assert scaler.get_scale() == 2.0, "one overflow is enough"


# --- every line of the field's list ---------------------------------------------------------------------------------------


def test_clipping_comes_after_unscaling_and_once_a_window():
    """Swin-Transformer#311, pytorch/examples#1196; reproduced in Chainer: clipped 1024 times too small."""
    scaler, p = scaler_of(tm, init_scale=1024.0), leaf(tm, 3.0, 4.0)
    optimizer = tm.optim.SGD([p], lr=1.0)
    scaler.scale((p * tm.tensor([3.0, 4.0])).sum()).backward()
    scaler.unscale_(optimizer)
    assert nn.utils.clip_grad_norm_([p], 1.0).item() == pytest.approx(5.0)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called on this optimizer since the last update"):
        scaler.unscale_(optimizer)
    np.testing.assert_allclose(values(p.grad), [0.6, 0.8], rtol=1e-6)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step\(\)"):
        scaler.unscale_(optimizer)
    np.testing.assert_allclose(values(p), [3 - 0.6, 4 - 0.8], rtol=1e-6)
    scaler.update()
    scaler.unscale_(optimizer)  # a new window


def test_an_optimizer_without_gradients_this_step_is_not_a_crash():
    """pytorch#67590: "No inf checks were recorded for this optimizer"."""
    scaler, p, q = scaler_of(tm, growth_interval=1), leaf(tm, 1.0), leaf(tm, 1.0)
    idle, busy = tm.optim.Adam([p]), tm.optim.SGD([q], lr=1.0)
    scaler.scale(q.sum()).backward()
    scaler.step(idle)
    scaler.step(busy)
    assert scaler.stepped(idle)
    assert p.item() == 1.0
    scaler.update()
    assert scaler.get_scale() == 2.0**17
    scaler.step(idle)
    scaler.update()
    assert scaler.get_scale() == 2.0**17, "a window without a gradient says nothing of the scale"


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("when", range(3))
def test_an_overflow_in_one_micro_batch_skips_the_whole_window(bad: float, when: int):
    scaler, p = scaler_of(tm, init_scale=16.0), leaf(tm, 1.0, 2.0)
    optimizer = tm.optim.Adam([p], lr=0.1)
    for i in range(3):
        scaler.scale((p * tm.tensor([1.0, bad if i == when else 1.0])).sum() / 3).backward()
    assert scaler.step(optimizer) is None
    assert not scaler.stepped(optimizer)
    assert not optimizer.state, "no moment has seen it"
    assert p.tolist() == [1.0, 2.0]
    scaler.update()
    assert scaler.get_scale() == 8.0


def test_whether_the_step_was_skipped_can_be_asked():
    """pytorch#44511: schedules must not run ahead of the optimizer."""
    scaler, p = scaler_of(tm), leaf(tm, 1.0)
    optimizer = tm.optim.SGD([p], lr=1.0)
    with pytest.raises(ValueError, match=r"stepped: step\(\) has not been called with this optimizer"):
        scaler.stepped(optimizer)
    for number in (1.0, INF, 1.0):
        optimizer.zero_grad()
        scaler.scale(p * number).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.stepped(optimizer) == (number == 1.0)
    with pytest.raises(ValueError, match="stepped"):
        scaler.stepped(tm.optim.SGD([p], lr=1.0))


def test_the_value_of_the_optimizers_step_is_passed_on():
    class Rule(tm.optim.SGD):
        def step(self, factor: int = 1) -> str:  # type: ignore[override]
            super().step()
            return "stepped" * factor

    scaler, p = scaler_of(tm), leaf(tm, 1.0)
    optimizer = Rule([p], lr=1.0)
    for number, expected in ((1.0, "steppedstepped"), (INF, None)):
        optimizer.zero_grad()
        scaler.scale(p * number).backward()
        assert scaler.step(optimizer, factor=2) == expected
        scaler.update()


def test_closures_are_refused():
    scaler, p = scaler_of(tm), leaf(tm, 1.0)
    optimizer = tm.optim.SGD([p], lr=1.0)
    scaler.scale(p).backward()
    for call in (lambda: scaler.step(optimizer, closure=lambda: 1), lambda: scaler.step(optimizer, lambda: 1)):
        with pytest.raises(RuntimeError, match="Closure use is not currently supported if GradScaler is enabled"):
            call()


def test_a_step_that_fails_can_be_made_again():
    scaler, p = scaler_of(tm, init_scale=4.0), leaf(tm, 1.0)
    optimizer = tm.optim.Adam([p], lr=0.5)
    scaler.scale(p.sum()).backward()
    handle = optimizer.register_step_pre_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scaler.step(optimizer)
    handle.remove()
    assert p.grad.item() == 1.0
    scaler.step(optimizer)
    assert p.item() == pytest.approx(0.5)


def test_half_gradients_are_refused_and_left_alone():
    scaler = scaler_of(tm, init_scale=4.0)
    single, half = leaf(tm, 1.0), tm.ones(1).half().requires_grad_()
    optimizer = tm.optim.SGD([single, half], lr=1.0)
    scaler.scale((single * half).sum()).backward()
    for call in (scaler.unscale_, scaler.step):
        with pytest.raises(ValueError, match=r"Attempting to unscale FP16 gradients: .* grad_dtype = float32"):
            call(optimizer)
    assert (single.grad.item(), half.grad.item()) == (4.0, 4.0)


def test_half_parameters_with_gradients_in_float32_are_scaled_and_keep_what_half_would_lose():
    scaler = scaler_of(tm, init_scale=2.0**14)
    p = tm.ones(4).half().requires_grad_()
    p.grad_dtype = tm.float32
    optimizer = tm.optim.SGD([p], lr=1.0, master_weights=True)
    small = 2.0**-26  # 0 in float16, and 2**-12 with the scale
    assert np.float16(small) == 0
    scaler.scale((p.float() * small).sum()).backward()
    scaler.unscale_(optimizer)
    assert p.grad.tolist() == [small] * 4
    scaler.step(optimizer)
    assert scaler.stepped(optimizer)


def test_a_parameter_that_is_listed_twice_is_unscaled_once():
    scaler, p = scaler_of(tm, init_scale=4.0), leaf(tm, 1.0)
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = tm.optim.SGD([p, p], lr=1.0)
    scaler.scale(p).backward()
    scaler.unscale_(optimizer)
    assert p.grad.item() == 1.0


# --- arguments, state -----------------------------------------------------------------------------------------------------


def test_arguments_that_are_refused():
    with pytest.raises(AssertionError, match=r"The growth factor must be > 1\.0"):
        scaler_of(tm, growth_factor=1.0)
    with pytest.raises(AssertionError, match=r"The backoff factor must be < 1\.0"):
        scaler_of(tm, backoff_factor=1.0)
    scaler, optimizer = scaler_of(tm), tm.optim.SGD([leaf(tm, 1.0)], lr=1.0)
    for call in (lambda: scaler.step(optimizer), lambda: scaler.unscale_(optimizer), lambda: scaler.update()):
        with pytest.raises(AssertionError, match=r"Attempted \w+ but _scale is None.  This may indicate your script"):
            call()
    scaler.scale(tm.ones(1))
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    for wrong in (tm.ones(2), leaf(tm, 1.0), "8"):
        with pytest.raises(AssertionError, match="new_scale should be a float or a 1-element tensor with requires_grad=False"):
            scaler.update(wrong)  # type: ignore[arg-type]
    scaler.update(tm.tensor(8.0))
    assert scaler.get_scale() == 8.0
    scaler.update(16)
    assert scaler.get_scale() == 16.0


def test_a_static_scale():
    scaler, p = scaler_of(tm, init_scale=8.0, growth_interval=1), leaf(tm, 1.0)
    optimizer = tm.optim.SGD([p], lr=1.0)
    for number in (1.0, INF, 1.0):
        optimizer.zero_grad()
        scaler.scale(p * number).backward()
        scaler.step(optimizer)
        scaler.update(8.0)
        assert scaler.get_scale() == 8.0
    assert p.item() == -1.0


def test_disabled():
    scaler, p = scaler_of(tm, enabled=False), leaf(tm, 1.0)
    optimizer = tm.optim.SGD([p], lr=1.0)
    loss = p.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    assert p.grad.item() == 1.0
    assert scaler.step(optimizer, lambda: 7) == 7
    assert scaler.stepped(optimizer)
    scaler.update()
    assert (scaler.is_enabled(), scaler.get_scale(), scaler.state_dict()) == (False, 1.0, {})
    scaler.load_state_dict({})
    with pytest.raises(RuntimeError, match="The source state dict is empty, possibly because it was saved from a disabled"):
        scaler_of(tm).load_state_dict({})


@pytest.mark.skipif(tm.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_warns_and_does_nothing():
    with pytest.warns(UserWarning, match="GradScaler is enabled, but CUDA is not available. Disabling"):
        assert not tm.amp.GradScaler().is_enabled()
    with (
        pytest.warns(FutureWarning, match="cuda.amp.GradScaler.* is deprecated"),
        pytest.warns(UserWarning, match="CUDA is"),
    ):
        assert not tm.cuda.amp.GradScaler().is_enabled()
    with pytest.warns(FutureWarning, match="cuda.amp.autocast.* is deprecated"), pytest.warns(UserWarning, match="CUDA is"):
        tm.cuda.amp.autocast()
    with pytest.warns(FutureWarning, match="custom_bwd.* is deprecated.*device_type='cuda'"):
        tm.cuda.amp.custom_bwd(lambda ctx, g: g)
    with pytest.warns(FutureWarning, match="custom_fwd.* is deprecated.*device_type='cuda'"):
        tm.cuda.amp.custom_fwd(cast_inputs=tm.float32)


def test_state_dicts_are_pytorchs_and_copies_go_on_where_it_stood():
    scaler, other = scaler_of(tm, init_scale=8.0, growth_interval=5), scaler_of(torch, init_scale=8.0, growth_interval=5)
    for framework, s in ((tm, scaler), (torch, other)):
        p = leaf(framework, 1.0)
        optimizer = framework.optim.SGD([p], lr=1.0)
        for _ in range(3):
            s.scale(p.sum()).backward()
            s.step(optimizer)
            s.update()
    assert scaler.state_dict() == other.state_dict()
    assert pickle.loads(pickle.dumps(scaler)).state_dict() == scaler.state_dict()
    assert copy.deepcopy(scaler).state_dict() == scaler.state_dict()
    for s in (scaler, other):
        with pytest.raises(AssertionError, match=r"Attempted unscale_ but _scale is None"):
            pickle.loads(pickle.dumps(s)).unscale_(optimizer)  # a copy has no window before its first scale()
    fresh = scaler_of(tm)
    fresh.load_state_dict({key: np.asarray(value) for key, value in other.state_dict().items()})
    assert {type(value) for value in fresh.state_dict().values()} == {int, float}
    fresh.load_state_dict(other.state_dict())
    assert fresh.state_dict() == scaler.state_dict()
    with pytest.raises(KeyError):
        fresh.load_state_dict({"scale": 1.0})
    assert fresh.state_dict() == scaler.state_dict(), "nothing was taken of a dict that lacks something"
    p.grad = None
    scaler.unscale_(optimizer)
    with pytest.raises(AssertionError, match="may only be pickled at the beginning of an iteration"):
        pickle.dumps(scaler)


# --- the kernel, bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 70_000), (1 << 20,)])
def test_the_kernel(dev: str, dtype: str, shape: tuple):
    where = device(dev)
    rng = np.random.default_rng(1)
    data = rng.standard_normal(shape).astype(dtype)
    for bad in [None, INF, NAN, -INF][: 4 if data.size else 1]:
        spoilt = data.copy()
        if bad is not None:
            spoilt[(-1,) * data.ndim if data.ndim else ()] = bad
        grad, found = tm.tensor(spoilt, device=dev), tm.zeros(1, device=dev)
        where.kernels.unscale(grad.array, 0.125, found.array)
        np.testing.assert_array_equal(values(grad), (spoilt.astype("float64") * 0.125).astype(dtype))
        assert found.item() == (bad is not None)
        seen = tm.zeros(1, device=dev)
        where.kernels.unscale(grad.array, 1.0, seen.array)
        assert seen.item() == found.item()
    turned = tm.tensor(np.ones((300, 200), dtype), device=dev).t()
    where.kernels.unscale(turned.array, 0.5, found.array)
    assert (values(turned) == 0.5).all()


def test_the_kernel_allocates_nothing():
    kernels = device("cpu").kernels
    for dtype in ("float32", "float16"):
        grad, found = np.ones(1 << 20, dtype), np.zeros(1, np.float32)
        kernels.unscale(grad, 0.5, found)  # scratch is made once
        with numpy_allocations() as sizes:
            kernels.unscale(grad, 0.5, found)
        assert all(size <= 64 for size in sizes)


def test_a_flag_a_device_is_all_that_it_takes_and_nothing_is_held_afterwards():
    while gc.collect():  # what other tests left, and what that leaves in turn
        pass
    gc.disable()
    pool = device("cpu").pool
    p, q = (tm.ones(1000, 100).requires_grad_() for _ in range(2))
    optimizer = tm.optim.SGD([p, q], lr=1.0)
    scaler = scaler_of(tm)
    scaler.scale((p * q).sum()).backward()
    before = pool.used_bytes()
    with memory.track("cpu") as track:
        scaler.unscale_(optimizer)
    assert pool.used_bytes() == before + rounded(4)
    (block,) = [b for b in track.blocks() if b.requested == 4 and b.category is not memory.Category.UNTRACKED]
    assert (block.op, block.phase) == ("GradScaler.unscale_", "optimizer")
    scaler.step(optimizer)
    scaler.update()
    assert pool.used_bytes() == before
    del optimizer, p, q
    assert pool.used_bytes() == before - 4 * rounded(400_000), "the scaler holds no optimizer"
    assert gc.collect() == 0
    gc.enable()


def test_a_prediction_is_what_a_run_measures():
    def run() -> None:
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        optimizer = tm.optim.Adam(net.parameters())
        scaler = tm.amp.GradScaler("cpu")
        for _ in range(3):
            optimizer.zero_grad()
            with tm.autocast("cpu", dtype=tm.float16):
                loss = nn.functional.cross_entropy(net(tm.randn(16, 64)), tm.zeros(16, dtype=tm.int64))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            assert scaler.stepped(optimizer)

    assert_predicted(run)


def test_in_a_prediction_there_is_a_gpu_and_every_step_is_made():
    def run() -> None:
        p = tm.ones(4, device="cuda").requires_grad_()
        optimizer, scaler = tm.optim.SGD([p], lr=1.0), tm.amp.GradScaler(growth_interval=1)
        scaler.scale((p * INF).sum()).backward()
        scaler.step(optimizer)
        assert scaler.stepped(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0**17
        scaler.update(tm.tensor(4.0, device="cuda"))
        assert scaler.get_scale() == 2.0**17

    memory.predict(run)


def test_gradients_that_would_be_0_in_half_precision_arrive():
    """The reason for all of this: without the scale, they underflow."""
    small = 2.0**-27
    for scale, expected in ((1.0, 0.0), (2.0**16, small)):
        w = tm.ones(2, 2).requires_grad_()
        optimizer, scaler = tm.optim.SGD([w], lr=1.0), scaler_of(tm, init_scale=scale)
        with tm.autocast("cpu", dtype=tm.float16):
            loss = (tm.ones(1, 2) @ w).float().sum() * small
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert (values(w.grad) == expected).all()


def test_names():
    assert amp.GradScaler is tm.amp.GradScaler
    assert issubclass(tm.cuda.amp.GradScaler, tm.amp.GradScaler)
    assert issubclass(tm.cuda.amp.autocast, tm.amp.autocast)


def test_the_graph_is_walked_only_where_somebody_steps_in_backward(monkeypatch: pytest.MonkeyPatch):
    walks = []
    walk = grad_scaler.leaves
    monkeypatch.setattr(grad_scaler, "leaves", lambda loss: walks.append(loss) or walk(loss))
    gc.collect()  # of other tests
    p, q = tm.ones(2, requires_grad=True), tm.ones(2, requires_grad=True)
    scaler = tm.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale((p * 2).sum())
    assert len(walks) == 0
    with optimizer_in_backward(optim.SGD([q], lr=0.1)):
        scaler.scale((p * 2).sum())
        assert len(walks) == 1
        with pytest.raises(GraphError, match="is updated in backward"):
            scaler.scale((q * 2).sum())
    scaler.scale((q * 2).sum())
    assert len(walks) == 2
