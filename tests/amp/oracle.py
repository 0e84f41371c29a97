"""Calls made under autocast, by us and by PyTorch: the dtypes of what comes out, or the error.

PyTorch's lists for the CPU are asked of its CPU tensors; those for CUDA of its fake tensors, which go through the same lists
without a GPU. Ours for CUDA are asked in a dry run.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tinygrad_mem as tm
from tests.sturdy.calls import Call, Of
from tests.sturdy.misuse import function
from tinygrad_mem import memory

MIXES = (("float32",), ("half",), ("half", "float32"), ("float64",))
"""dtypes of the floating tensors of a call, in turn; ``half`` is the dtype of the region."""


def made(value: Any, framework: Any, device: str, dtypes: Iterator[str], rng: np.random.Generator) -> Any:
    """The argument, with the framework's tensors in it."""
    if isinstance(value, Of):
        array = value.array(rng)
        dtype = next(dtypes) if value.kind == "f" else array.dtype.name
        if framework is torch and device == "cuda":
            return torch.empty(array.shape, dtype=getattr(torch, dtype), device="cuda")
        return framework.tensor(array, dtype=getattr(framework, dtype), device=device)
    if isinstance(value, (tuple, list)):
        return type(value)([made(v, framework, device, dtypes, rng) for v in value])
    return getattr(framework, value) if isinstance(value, str) and value in ("float64", "int64") else value


def dtypes_of(result: Any) -> list[str]:
    """The dtypes of the tensors of a result, in order."""
    if isinstance(result, (tuple, list)):
        return [name for part in result for name in dtypes_of(part)]
    return [str(result.dtype).removeprefix("torch.")] if isinstance(result, (tm.Tensor, torch.Tensor)) else []


def outcome(call: Call, mix: tuple[str, ...], framework: Any, device: str, half: str = "float16") -> list[str] | Exception:
    """What comes of one call."""
    rng, dtypes = np.random.default_rng(0), itertools.cycle([half if name == "half" else name for name in mix])
    args = [made(v, framework, device, dtypes, rng) for v in call.args]
    kwargs = {key: made(v, framework, device, dtypes, rng) for key, v in call.kwargs.items()}
    try:
        return dtypes_of(function(framework, call.name)(*args, **kwargs))
    except Exception as error:
        error.__context__ = error.__cause__ = None
        return error.with_traceback(None)  # its frames hold the tensors of the call


@contextmanager
def pytorchs(device: str, half: str = "float16") -> Iterator[None]:
    """PyTorch's autocast to ``half``, on the CPU or on a GPU that is only told of."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    if device == "cpu":
        with torch.autocast("cpu", dtype=getattr(torch, half)):
            yield
        return
    with FakeTensorMode():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", getattr(torch, half))
        try:
            yield
        finally:
            torch.set_autocast_dtype("cuda", torch.float16)
            torch.set_autocast_enabled("cuda", False)


def theirs(calls: Iterable[Call], device: str, half: str = "float16") -> dict:
    """(number of the call, mix) -> PyTorch's outcome."""
    with warnings.catch_warnings(), pytorchs(device, half):
        warnings.simplefilter("ignore")
        return {(i, mix): outcome(call, mix, torch, device, half) for i, call in enumerate(calls) for mix in MIXES}


def ours(calls: Iterable[Call], device: str, half: str = "float16") -> dict:
    """(number of the call, mix) -> our outcome."""
    found = {}

    def run() -> None:
        with warnings.catch_warnings(), tm.autocast(device, dtype=getattr(tm, half)):
            warnings.simplefilter("ignore")
            found.update({(i, mix): outcome(call, mix, tm, device, half) for i, call in enumerate(calls) for mix in MIXES})

    if device == "cpu":
        run()
    else:
        memory.predict(run)
    return found
