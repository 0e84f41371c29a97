"""What each test finds, and must leave as it found it: else a later test fails, in some orders only, and nobody knows why."""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import numpy as np

import tinygrad_mem as tm
from tinygrad_mem import absent, interrupts, scope
from tinygrad_mem.devices import base, device
from tinygrad_mem.dtypes import float32, get_default_dtype

from . import pools

# Variables that pytest, scikit-learn and PyTorch set when they are used.
_OF_LIBRARIES = tuple(map(os.environ.encodekey, ("PYTEST_", "KMP_", "TORCHINDUCTOR_")))
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1") if hasattr(signal, name)]
_SWITCHES = {name: value for name, value in vars(type(scope.local)).items() if name in type(scope.local).__annotations__}
_CUDNN = ("_get_cudnn_enabled", "_get_cudnn_benchmark", "_get_cudnn_deterministic", "_get_cudnn_allow_tf32")
_OPTIONS = ("get_num_threads", "get_default_dtype", "is_grad_enabled", "are_deterministic_algorithms_enabled")


def begin() -> None:
    """Seed the generators, and forget what earlier tests have used and were told."""
    pools.begin()
    for place in pools.PLACES:
        device(place).generator.manual_seed(0)
    _unhook()
    random.seed(0)
    absent._said.clear()
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


def _unhook() -> None:
    """A thread that ran an op while somebody tracked keeps our hook (``PoolEvents.stay``): the next test begins without it."""
    for (kind, _), place in list(base._instances.items()):
        events = vars(place).get("_events") if kind == "cuda" else None
        while events is not None and getattr(events._here, "depth", 0):
            events.__exit__()


def environment() -> dict[Any, Any]:
    """The variables of the process, as the system has them: to decode them takes longer than all else that a test is asked."""
    return {name: value for name, value in vars(os.environ)["_data"].items() if not name.startswith(_OF_LIBRARIES)}


def state() -> dict[str, Any]:
    """What belongs to the process, by what it is called in a message. Every test reads it twice, so nothing here is slow."""
    torch: Any = sys.modules.get("torch")
    hooks: Any = sys.modules.get("cupy.cuda.memory_hook")
    return {
        "working directory": os.getcwd(),
        "environment": environment(),
        "sys.path": list(sys.path),
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
        "trace function": sys.gettrace(),
        "recursion limit": sys.getrecursionlimit(),
        "settings of NumPy": (np.geterr(), np.getbufsize()),
        "options of PyTorch": {name: getattr(torch, name)() for name in _OPTIONS} if torch else None,
        "checks of PyTorch's distributions": torch and torch.distributions.Distribution._validate_args,
        "switches of PyTorch's cuDNN": {name: getattr(torch._C, name)() for name in _CUDNN} if torch else None,
        "precision of products": tm.get_float32_matmul_precision(),
        "hooks of CuPy's memory": hooks and [name for name in hooks.get_memory_hooks() if not name.startswith("tinygrad_mem")],
    }


def left(before: dict[str, Any]) -> list[str]:
    """A line for each thing that is not as the test found it."""
    mine = vars(scope.local)
    found = {
        f"scope.local.{name}": (value, mine[name])
        for name, value in _SWITCHES.items()
        if mine.get(name, value) is not value and mine[name] != value
    }
    for name, value in state().items():
        if value != before[name] and before[name] is not None:
            found[name] = before[name], value
    for place in pools.PLACES:
        if limit := device(place).pool.get_limit():
            found[f"limit on the pool of {place}"] = 0, limit
    if scope.listeners:
        found["listeners"] = (), scope.listeners
    if not interrupts.may_wait():
        found["lock"] = "free", "taken"
    if get_default_dtype() != float32:
        found["default dtype"] = float32, get_default_dtype()
    return [f"the test left its {name} changed: {was!r} before, {now!r} now" for name, (was, now) in found.items()]
