"""What the commands about networks share: which network is meant, its batch, its loss, its optimizer."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tinygrad_mem as tm

from .. import nn
from ..errors import ArgumentError
from ..memory.sizes import parse_bytes
from ..models.names import NETWORKS, Named
from ..nn import functional as F

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": partial(tm.optim.SGD, lr=0.1),
    "momentum": partial(tm.optim.SGD, lr=0.1, momentum=0.9),
    "momentum-half": partial(tm.optim.SGD, lr=0.1, momentum=0.9, state_dtype=tm.float16),
    "sgd8bit": tm.optim.SGD8bit,
    "adam": tm.optim.Adam,
    "adam-half": partial(tm.optim.Adam, state_dtype=tm.float16),
    "adam8bit": tm.optim.Adam8bit,
    "adamw": tm.optim.AdamW,
    "adamw-half": partial(tm.optim.AdamW, state_dtype=tm.float16),
    "adamw8bit": tm.optim.AdamW8bit,
    "amsgrad": partial(tm.optim.Adam, amsgrad=True),
    "adamax": tm.optim.Adamax,
    "nadam": tm.optim.NAdam,
    "radam": tm.optim.RAdam,
    "rmsprop": tm.optim.RMSprop,
    "adagrad": tm.optim.Adagrad,
    "adadelta": tm.optim.Adadelta,
    "adafactor": tm.optim.Adafactor,
}
"""What ``--optimizer`` names: every optimizer there is; ``-half`` keeps its moments in float16."""


def network_of(network: str, sample: str | None) -> Named:
    """The network that a name stands for: one of ours, or ``module:Class`` (``file.py:Class``) of the user's."""
    shape = None if sample is None else _shape(sample)
    if network in NETWORKS:
        known = NETWORKS[network]
        return known if shape is None else Named(known.make, shape, known.classes, known.tokens)
    module, _, name = network.rpartition(":")
    if not module:
        raise ArgumentError(
            f"no network {network!r}: there are {', '.join(NETWORKS)}, and your own as module:Class or file.py:Class"
        )
    if shape is None:
        raise ArgumentError(f"{network} needs --input, the shape of one sample such as 3x32x32")
    return Named(_users(module, name), shape, 0)


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ArgumentError(f"--input {text!r} is not a shape: write 3x224x224, or 1024 for tokens")
    return tuple(map(int, parts))


def _users(module: str, name: str) -> Callable[[], nn.Module]:
    """The class (or function) that makes the user's network."""
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise ArgumentError(f"there is no file {module}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    else:
        sys.path.insert(0, "")
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ArgumentError(f"{module}: {error}") from None
        finally:
            sys.path.remove("")
    if not hasattr(loaded, name):
        raise ArgumentError(f"{module} has no {name!r}")
    return getattr(loaded, name)


def batch_of(named: Named, size: int, dtype: Any) -> tm.Tensor:
    shape = (size, *named.sample)
    return tm.randint(0, named.classes, shape) if named.tokens else tm.randn(*shape, dtype=dtype)


def loss_of(named: Named, output: Any, accumulate: int) -> tm.Tensor:
    """Cross-entropy of one of our networks; of the user's, the mean of what comes out."""
    if not isinstance(output, tm.Tensor):
        raise ArgumentError(f"the network gives a {type(output).__name__}; an estimate needs one tensor")
    if not named.classes:
        return output.mean() / accumulate
    if named.tokens:
        output = output.flatten(0, 1)
    target = tm.randint(0, named.classes, (output.shape[0], *output.shape[2:]))
    return F.cross_entropy(output, target) / accumulate


def budget_of(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ArgumentError(f"--budget: {error}") from None
