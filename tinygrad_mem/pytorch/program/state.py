"""Settings that a program may change in PyTorch, NumPy and Python for the whole process, restored after its prediction."""

from __future__ import annotations

import gc
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch._tensor_str import PRINT_OPTS

from ...interrupts import cleanup, context

Pair = tuple[Callable[[], Any], Callable[[Any], Any]]
_cudnn, _matmul = torch.backends.cudnn, torch.backends.cuda.matmul


def _default_device() -> Any:
    found = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if found is None else found.device


def _set_default_device(device: Any) -> None:
    if _default_device() != device:
        torch.set_default_device(device)


def _autocast(device: str) -> list[Pair]:
    return [
        (lambda: torch.is_autocast_enabled(device), lambda on: torch.set_autocast_enabled(device, on)),
        (lambda: torch.get_autocast_dtype(device), lambda dtype: torch.set_autocast_dtype(device, dtype)),
    ]


def _attribute(owner: Any, name: str) -> Pair:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _set_environment(kept: dict[str, str]) -> None:
    for name in os.environ.keys() - kept.keys():
        del os.environ[name]
    os.environ.update(kept)


STATES: dict[str, Pair] = {
    "environment": (lambda: dict(os.environ), _set_environment),
    "random (Python)": (random.getstate, random.setstate),
    "random (NumPy)": (np.random.get_state, np.random.set_state),
    "random (PyTorch)": (torch.get_rng_state, torch.set_rng_state),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (_default_device, _set_default_device),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "inference": (torch.is_inference_mode_enabled, lambda on: None),  # a guard of C++ ends with its block
    **{f"autocast {i}": pair for i, pair in enumerate(_autocast("cuda") + _autocast("cpu"))},
    "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    "anomaly": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda on: torch.autograd.set_detect_anomaly(*on),
    ),
    "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "fill": _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    "float32 matmul": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cudnn.benchmark": _attribute(_cudnn, "benchmark"),
    "cudnn.deterministic": _attribute(_cudnn, "deterministic"),
    "cudnn.enabled": _attribute(_cudnn, "enabled"),
    "half reductions": _attribute(_matmul, "allow_fp16_reduced_precision_reduction"),
    "sdp flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "sdp efficient": (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    "sdp math": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "sdp cudnn": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "printing": (lambda: dict(vars(PRINT_OPTS)), lambda kept: vars(PRINT_OPTS).update(kept)),
}
"""What is read before a prediction, and written again after it, by name."""


@context
def unchanged() -> Iterator[None]:
    """Restore :data:`STATES`, filters of warnings and Python's collector, whatever the program does."""
    states = {name: read() for name, (read, _) in STATES.items()}
    collects, logger = gc.isenabled(), logging.getLogger("torch._subclasses.fake_tensor")
    silent, filters = logger.disabled, warnings.filters[:]
    logger.disabled = True  # errors are raised: they need no log
    gc.disable()

    def restore() -> None:
        for name, (read, write) in STATES.items():
            if not _same(read(), states[name]):
                write(states[name])
        logger.disabled = silent
        if warnings.filters != filters:
            warnings.filters[:] = filters  # type: ignore[index] (a list)
            getattr(warnings, "_filters_mutated", getattr(warnings, "_filters_mutated_lock_held", gc.isenabled))()
        (gc.enable if collects else gc.disable)()

    try:
        yield
    finally:
        cleanup(restore)


def _same(now: Any, before: Any) -> bool:
    try:
        return bool(now == before)
    except (RuntimeError, ValueError):  # arrays and tensors have no single truth
        return False
