"""Ctrl-C at any moment of a training step: each thing that a step moves has moved wholly, or not at all."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import inspect
import linecache
import operator
import re
import signal
import sys
import zlib
from _thread import interrupt_main
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy._core import _ufunc_config

import tinygrad_mem as tm
from tests.profiles import every, share
from tests.tracing import signal_points
from tinygrad_mem import interrupts, memory, nn, scope
from tinygrad_mem.amp import GradScaler, autocast
from tinygrad_mem.autograd.graph import saved_tensors_hooks
from tinygrad_mem.backends.accumulation import accumulate_in
from tinygrad_mem.devices import device, noted
from tinygrad_mem.kernels.numpy.fast import blas
from tinygrad_mem.memory import alive
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.utils import clip_grad_norm_
from tinygrad_mem.recompute.checkpoint import checkpoint, set_checkpoint_debug_enabled, set_checkpoint_early_stop
from tinygrad_mem.techniques.accumulation import accumulate
from tinygrad_mem.techniques.in_backward import optimizer_in_backward
from tinygrad_mem.techniques.inplace import inplace_abn

PACKAGE = str(Path(tm.__file__).parent)
BESIDE = (contextlib.__file__, _ufunc_config.__file__)  # what ``with`` enters for us is not ours, and hears signals too
CLOSE = ("optim/", "amp/", "nn/norm", "scope", "interrupts", "grad_mode", "in_backward", "accumulation", "recompute/checkpoint")
COVERED = ("__exit__", "_end", "cleanup")  # a tracer's exception as they begin misses the handler that a signal's finds: below
SHARE = 40  # of the places elsewhere one in so many

predict: Any = sys.modules["tinygrad_mem.memory.predict"]  # the package shows the function of this name
Place = tuple[str, str, int]
Units = dict[str, list[bytes]]


@contextmanager
def heard(places: list[Place], wanted: Place | None = None, number: int = 0) -> Iterator[list[Place]]:
    """Note the places of the package at which Python hears signals; at the ``number``-th visit of ``wanted``, send one."""
    sent: list[Place] = []
    visits = 0

    def ours(code: CodeType) -> bool:
        return code.co_filename.startswith((PACKAGE, *BESIDE)) and (wanted is None or code.co_qualname == wanted[1])

    def at(frame: FrameType, position: int) -> None:
        nonlocal visits
        code = frame.f_code
        beside = code.co_filename in BESIDE
        if position < 0 and not beside and (code.co_name in COVERED or code.co_flags & inspect.CO_GENERATOR):
            return
        place = (code.co_filename.removeprefix(PACKAGE), code.co_qualname, position)
        places.append(place)
        if place == wanted:
            visits += 1
            if visits == number:
                sent.append(place)
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)

    with signal_points(ours, at):
        yield sent


def chosen(places: list[Place]) -> list[tuple[Place, int]]:
    """Places and visits to try: the first or last visit of each place near what must be whole, and a share of the others."""
    count: dict[Place, int] = {}
    for place in places:
        count[place] = count.get(place, 0) + 1
    near = [p for p in count if p[0] in BESIDE or any(p[0].startswith(f"/{name}") or f"/{name}." in p[0] for name in CLOSE)]
    far = [p for p in count if p not in near and zlib.crc32(repr(p).encode()) % SHARE == 0]
    return [(p, visits) for p in (*near, *far) for visits in share(sorted({1, count[p]}), 2, p)]


class Training:
    """A network with batch norm and dropout, what trains it, and what of it moves together."""

    half = False

    def __init__(self) -> None:
        device("cpu").generator.manual_seed(0)
        dtype = tm.float16 if self.half else tm.float32
        self.net: Any = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3)).to(dtype)
        self.x, self.y = tm.randn(5, 4).to(dtype), tm.tensor([0, 1, 2, 0, 1])
        self.scaler: GradScaler | None = None
        self.optimizer = self.make(list(self.net.parameters()))
        self.scheduler = tm.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)

    def make(self, parameters: list) -> Any:
        return tm.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def loss(self) -> Any:
        return F.cross_entropy(self.net(self.x), self.y)

    def step(self) -> None:
        self.loss().backward()
        clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def units(self) -> Units:
        found: Units = {"optimizer": [b for p in self.net.parameters() for b in self.of(p)]}
        for name, module in self.net.named_modules():
            found[f"buffers of {name}"] = [b.numpy().tobytes() for b in module._buffers.values()]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        found["scheduler"] = [repr((self.scheduler.state_dict(), rates)).encode()]
        found["scaler"] = [repr(self.scaler and self.scaler.state_dict()).encode()]
        return found

    def of(self, p: Any) -> list[bytes]:
        state = self.optimizer.state.get(p, {})
        kept = [v.numpy().tobytes() if isinstance(v, tm.Tensor) else repr(v).encode() for _, v in sorted(state.items())]
        return [p.detach().float().numpy().tobytes(), *kept]


class Adam(Training):
    def make(self, parameters: list) -> Any:
        return tm.optim.Adam(parameters, lr=0.1)


class EightBit(Training):
    def make(self, parameters: list) -> Any:
        return tm.optim.AdamW8bit(parameters, lr=0.1, min_8bit_size=0)


class Searching(Training):
    """One iteration of L-BFGS a step, which moves the parameters for each point that it tries."""

    def make(self, parameters: list) -> Any:
        return tm.optim.LBFGS(parameters, max_iter=1, line_search_fn="strong_wolfe")

    def step(self) -> None:
        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        self.optimizer.step(closure)
        self.scheduler.step()
        self.optimizer.zero_grad()


class Masters(Training):
    half = True

    def make(self, parameters: list) -> Any:
        return tm.optim.AdamW(parameters, lr=0.1, master_weights=True)


class Scaled(Training):
    def make(self, parameters: list) -> Any:
        self.scaler = GradScaler("cpu", init_scale=8.0, growth_interval=1)
        return tm.optim.SGD(parameters, lr=0.1)

    def step(self) -> None:
        assert self.scaler is not None
        with autocast("cpu", dtype=tm.float16):
            loss = self.loss()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.net.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class InBackward(Training):
    """Each parameter by itself, as its gradient arrives."""

    def make(self, parameters: list) -> Any:
        optimizer = tm.optim.Adam(parameters, lr=0.1)
        self.handle = optimizer_in_backward(optimizer)
        return optimizer

    def step(self) -> None:
        with tm.no_grad():
            self.net(self.x)
        checkpoint(self.loss).backward()

    def units(self) -> Units:
        return super().units() | {"optimizer": []} | {f"parameter {n}": self.of(p) for n, p in self.net.named_parameters()}


class Accumulated(Training):
    def step(self) -> None:
        window = accumulate(self.net, self.optimizer, 2, scheduler=self.scheduler)
        window.split(self.x[:4], self.y[:4], F.cross_entropy)


def thread_state() -> dict[str, Any]:
    kept = {name: getattr(scope.local, name) for name in dir(scope.local) if not name.startswith("__")}
    kept.pop("entered_devices", None)
    kept.pop("recorded")  # a count of what ran
    kept |= {
        "listeners": scope.listeners,
        "limits": memory.limit._open.copy(),
    }
    kept |= {"collects": gc.isenabled(), "callbacks": gc.callbacks.copy(), "numpy": (np.geterr(), np.getbufsize())}
    kept |= {"looks": scope.scanning._open.copy()}
    kept |= {"lock": scope.lock._is_owned(), "blas": blas._single_users, "limit": device("cpu").pool.get_limit()}
    return kept | {"handlers": [signal.getsignal(n) for n in interrupts._SIGNALS]}


KINDS = [Training, Adam, EightBit, Searching, Masters, Scaled, InBackward, Accumulated]


@functools.cache
def points(kind: type[Training]) -> list[tuple[Place, int]]:
    """The places and visits of a step."""
    kind().step()  # what is made once is made
    training, places = kind(), list[Place]()
    with heard(places):
        training.step()
    return chosen(places)


def own(kind: type[Training]) -> list[tuple[Place, int]]:
    """Those to try: each place in one of the kinds of training that come by; in a thorough run, in all of them."""
    places = {each: {place for place, _ in points(each)} for each in KINDS}
    found = []
    for place, number in points(kind):
        visitors = [each for each in KINDS if place in places[each]]
        if kind is visitors[zlib.crc32(repr(place).encode()) % len(visitors)] or every(2) == 1:
            found.append((place, number))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_whole_wherever_ctrl_c_comes(kind: type[Training], reliability: Callable[[str, int], None]):
    todo = own(kind)
    training, legal = kind(), []
    legal.append(training.units())
    training.step()
    legal.append(training.units())
    tried = 0
    for place, number in todo:
        training = kind()
        before, forwards = thread_state(), [training.units()]
        try:
            with heard([], place, number) as sent:
                training.step()
            assert not sent, f"lost at {place}"
            continue  # an earlier interrupt has left less to do here
        except KeyboardInterrupt:
            tried += 1
        assert thread_state() == before, place
        found = training.units()
        for name, unit in found.items():
            if name.startswith("buffers"):  # they move with each forward, also where several make a step
                counts = [int(np.frombuffer(b, np.int64)[0]) for b in unit[-1:]]
                assert unit in (forwards[0][name], *_moved(kind, name, counts)), (place, name)
            else:
                assert unit in (legal[0][name], legal[1][name]), (place, name)
        assert scope.listeners == ()
        training.optimizer.zero_grad()
        training.net.zero_grad()
        if training.scaler is not None:
            training.scaler._windows = {}
        training.step()
        assert all(np.isfinite(p.detach().float().numpy()).all() for p in training.net.parameters()), place
    assert tried > 20
    reliability("interrupts of a training step, where Python handles signals", tried)


@functools.cache
def _forwards(kind: type[Training]) -> list[Units]:
    """The buffers after each forward of a step."""
    training, found = kind(), []
    for module in training.net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.register_forward_hook(lambda *_: found.append(training.units()))
    training.step()
    return found


def _moved(kind: type[Training], name: str, counts: list[int]) -> list[list[bytes]]:
    return [units[name] for units in _forwards(kind)]


# --- switches ---------------------------------------------------------------------------------------------------------------

SWITCHES: dict[str, Callable[[], Any]] = {
    "no_grad": tm.no_grad,
    "enable_grad": tm.enable_grad,
    "inference_mode": tm.inference_mode,
    "autocast": lambda: autocast("cpu", dtype=tm.float16),
    "device": lambda: tm.device("meta"),
    "phase": lambda: scope.phase("backward"),
    "changed": lambda: interrupts.changed(scope.local, phase="backward"),
    "switched": lambda: scope.switched((False, *scope.switches()[1:])),
    "saved_tensors_hooks": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "accumulate_in": lambda: accumulate_in(tm.float16),
    "early_stop": lambda: set_checkpoint_early_stop(False),
    "debug": lambda: set_checkpoint_debug_enabled(True),
    "track": lambda: memory.track("cpu"),
    "limit": lambda: memory.limit("1 GiB"),
    "listening": lambda: scope.listening(scope.Listener()),
    "scanning": scope.scanning,
    "quiet_numpy": scope.quiet_numpy,
    "dry_run": predict.dry_run,
    "cycles": lambda: predict._Cycles(device("cpu").pool),
    "single": blas.single,
    "noted": noted,
    "alone": lambda: device("cpu").pool._alone(),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_turned_back_wherever_ctrl_c_comes(
    name: str, reliability: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(alive, "SOURCES", [lambda *types: []])  # a census of nothing is as any other, and quick
    places: list[Place] = []
    with heard(places), SWITCHES[name]():
        pass
    switch, before = SWITCHES[name](), thread_state()
    with heard(places := []), switch:
        pass
    for place in dict.fromkeys(places):
        switch = SWITCHES[name]()
        with pytest.raises(KeyboardInterrupt), heard([], place, 1), switch:
            pass
        assert thread_state() == before, place
    switch = SWITCHES[name]()
    switch.__enter__()
    with pytest.raises(KeyboardInterrupt):  # at the first instruction of __exit__
        deque(map(operator.call, [interrupt_main, functools.partial(switch.__exit__, None, None, None)]), 0)
    assert thread_state() == before
    reliability("interrupts of context managers that set a switch", len(set(places)) + 1)


# --- statistics that run along ----------------------------------------------------------------------------------------------


def _batch(x: Any, m: Any, v: Any) -> None:
    F.batch_norm(x, m, v, None, None, True)


def _instance(x: Any, m: Any, v: Any) -> None:
    F.instance_norm(x, m, v)


def _layer(x: Any, m: Any, v: Any) -> None:
    layer = nn.InstanceNorm1d(3, track_running_stats=True)
    layer.running_mean, layer.running_var = m, v
    layer(x)


def _in_place(x: Any, m: Any, v: Any) -> None:
    inplace_abn(x, m, v, training=True)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals here")
def test_no_lock_is_kept_when_a_signal_ends_a_block_just_as_it_begins():
    """On Python 3.14 more than half of these signals left a plain lock behind."""

    class Rang(Exception):
        pass

    def ring(number: int, frame: Any) -> None:
        raise Rang

    def take(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            with taken:
                pass

    before, taken = signal.signal(signal.SIGALRM, ring), interrupts.ReentrantLock()
    try:
        for microseconds in range(20, 320):
            with pytest.raises(Rang):
                take(microseconds / 1e6)
            assert not taken._is_owned()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_locks_that_signals_may_leave_behind_are_made_in_one_place():
    """``with`` takes no other reentrant lock: see ``interrupts.ReentrantLock``."""
    package = Path(tm.__file__).parent
    made = {str(p.relative_to(package)) for p in package.rglob("*.py") if re.search(r"\b(RLock|Condition)\(\)", p.read_text())}
    assert made == set()


@pytest.mark.parametrize("norm", [_batch, _instance, _layer, _in_place])
def test_running_statistics_move_both_or_not_at_all(norm: Callable, reliability: Callable[[str, int], None]):
    def run(*where: Any) -> tuple:
        device("cpu").generator.manual_seed(0)
        x, m, v = tm.randn(2, 3, 4), tm.zeros(3), tm.ones(3)
        before = [thread_state(), [(s.numpy().tobytes(), s._version) for s in (m, v)]]
        try:
            with heard(*where) as sent:
                norm(x, m, v)
            assert not where[1:] or not sent
        except KeyboardInterrupt:
            pass
        assert thread_state() == before[0], where[1:]
        return before[1], [(s.numpy().tobytes(), s._version) for s in (m, v)]

    run([])
    places: list[Place] = []
    legal = run(places)
    ends = {place: sorted({1, places.count(place)}) for place in places}
    points = [(place, number) for place, visits in ends.items() for number in share(visits, 2, place)]
    for point in points:
        assert run([], *point)[1] in legal, point
    assert len(points) > 100
    reliability("interrupts of norm layers with running statistics", len(points))


# --- the mechanism ----------------------------------------------------------------------------------------------------------


def test_what_is_whole_is_not_cut_and_the_signal_is_heard_after_it():
    done = []

    def change() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        interrupts.uninterrupted(change)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_handler_is_called_though_one_raises(monkeypatch: pytest.MonkeyPatch):
    heard_of: list[int] = []

    def raising(number: int, frame: Any) -> None:
        heard_of.append(number)
        raise RuntimeError(f"signal {number}")

    def change() -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1):
            signal.raise_signal(number)
        assert heard_of == []

    before = {number: signal.signal(number, raising) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            interrupts.uninterrupted(change)
        assert sorted(heard_of) == sorted((signal.SIGTERM, signal.SIGUSR1))
        assert signal.getsignal(signal.SIGTERM) is raising
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        assert interrupts.uninterrupted(lambda: signal.raise_signal(signal.SIGUSR1) or 3) == 3
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("length", [1, 100, 2000])
def test_an_exit_that_is_not_covered_is_what_the_cover_is_for(length: int):
    """A signal that waits as ``__exit__`` begins is raised before its first line."""
    names: dict[str, Any] = {}
    lines = ["    try:", *["        del self.on_before"] * length, "    finally:", "        self.on = False"]
    exec("\n".join(["def plain(self):", *lines, "def covered(self):", *lines]), names)
    interrupts.signal_safe(names["covered"])
    for name, left in (("plain", True), ("covered", False)):
        switch = SimpleNamespace(on=True, on_before=None)
        with pytest.raises(KeyboardInterrupt):
            deque(map(operator.call, [interrupt_main, functools.partial(names[name], switch)]), 0)
        assert switch.on is left


def test_each_cover_begins_at_the_first_instruction():
    modules = [module for name, module in sys.modules.items() if name.startswith("tinygrad_mem.")]
    homes = {id(home): home for m in modules for home in (m, *[each for each in vars(m).values() if inspect.isclass(each)])}
    functions = {f for home in homes.values() for f in vars(home).values() if inspect.isfunction(f)}
    code = [f.__code__ for f in functions if f.__module__.startswith("tinygrad_mem.")]
    covered = [c for c in code if linecache.getline(c.co_filename, c.co_firstlineno).strip() == "@signal_safe"]
    assert len(covered) > 10
    for each in covered:
        assert min(entry.start for entry in dis._parse_exception_table(each)) == 0, each.co_qualname


def test_what_ends_a_step_halfway_says_so():
    p = [nn.Parameter(tm.ones(2)) for _ in range(3)]
    optimizer = tm.optim.SGD(p, lr=0.1)
    for each in p:
        each.grad = tm.ones(2)
    update, calls = optimizer.update, []

    def ended(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise SystemExit  # as another thread could set it
        update(*arguments)

    optimizer.update = ended  # type: ignore[method-assign]
    with pytest.raises(SystemExit) as found:
        optimizer.step()
    assert "SGD.step was ended after 1 of 3 parameters" in found.value.__notes__[0]
