"""The arguments that commands share: the network and the optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import tinygrad_mem as tm

from .. import nn, scope
from ..errors import ArgumentError
from ..memory.sizes import parse_bytes
from ..models.configuration import configuration
from ..models.names import NETWORKS, Named, of_configuration
from ..models.parallel import SIZES, TransformerSize
from .users import HUGGING_FACE, is_torch, load

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
    "lion": tm.optim.Lion,
    "adam-mini": tm.optim.AdamMini,
    "muon": partial(tm.optim.Muon, adjust_lr_fn="match_rms_adamw", adamw=True),
    "galore": tm.optim.GaLore,
    "apollo": tm.optim.APOLLO,
    "apollo-mini": tm.optim.APOLLOMini,
    "adam4bit": tm.optim.Adam4bit,
    "adamw4bit": tm.optim.AdamW4bit,
    "lomo": tm.optim.Lomo,
    "adalomo": tm.optim.AdaLomo,
}
"""The optimizers by their names for ``--optimizer``; ``-half`` keeps moments in float16."""
USUAL_BATCH = 32
"""Samples in a step for which no number was given."""
IN_BACKWARD = ("lomo", "adalomo")
"""Those whose steps ``estimate`` makes in backward, as their papers do."""

_COMMAND = "python -m tinygrad_mem estimate"
_ESTIMATE = f"for its memory run {_COMMAND}"


def check_samples(sample: str | None, tokens: str | None) -> None:
    """Refuse samples of floats and of token numbers at once."""
    if sample is not None and tokens is not None:
        raise ArgumentError("--input is the shape of floats, --tokens of token numbers: give one of them")


def check_parts(batch: int, parts: int) -> None:
    """Refuse a batch that cannot be cut into equal micro-batches."""
    if batch % parts:
        raise ArgumentError(f"--accumulate {parts} does not divide --batch-size {batch}")


def network_of(network: str, sample: str | None, tokens: str | None = None) -> Named:
    """The network of a name: one of ours, a ``config.json``, or the user's ``module:Class`` (``file.py:Class``).

    Args:
        sample: the shape of one sample, such as ``3x32x32``.
        tokens: of the user's network of token numbers, how many tokens there are and how long a sample is, such as
            ``50257x1024``; of another, how long a sample is.
    """
    check_samples(sample, tokens)
    if network in NETWORKS:
        return _with_samples(NETWORKS[network], network, sample, tokens)
    if network.startswith(HUGGING_FACE):
        raise ArgumentError(f"{network} is a configuration of Hugging Face's: {_ESTIMATE} {network}")
    if network.endswith(".json"):
        return _with_samples(of_configuration(configuration(network)), network, sample, tokens)
    module, _, name = network.rpartition(":")
    if not module and Path(network).is_file():
        raise ArgumentError(f"{network} is a file: name the class or the function in it, as in {network}:Net")
    if not module:
        near = get_close_matches(network, NETWORKS, 3)
        meant = f"did you mean {' or '.join(near)}? There" if near else "there"
        raise ArgumentError(
            f"no network {network!r}: {meant} are {', '.join(NETWORKS)}, and your own as module:Class or file.py:Class"
        )
    if tokens is not None:
        vocabulary, *length = shape_of("--tokens", tokens)
        if len(length) != 1:
            raise ArgumentError(f"--tokens {tokens!r}: write how many tokens there are and the length of a sample: 50257x1024")
        return Named(_users(module, name), tuple(length), 0, tokens=vocabulary)
    if sample is None:
        raise ArgumentError(
            f"{network} needs --input, the shape of one sample such as 3x32x32, "
            "or --tokens, how many tokens there are and the length of a sample, such as 50257x1024"
        )
    return Named(_users(module, name), shape_of("--input", sample), 0)


def _with_samples(known: Named, network: str, sample: str | None, tokens: str | None) -> Named:
    """A known network, with the shape of its samples if one is given."""
    if sample is not None and known.tokens:
        raise ArgumentError(f"--input {sample}: {network} {_samples(known)}")
    if tokens is None:
        return known if sample is None else replace(known, sample=shape_of("--input", sample))
    length = shape_of("--tokens", tokens)
    if not known.tokens or len(length) != 1:
        raise ArgumentError(f"--tokens {tokens}: {network} {_samples(known)}")
    return replace(known, sample=length)


def over_mesh(network: str, tokens: str | None) -> TransformerSize:
    """A transformer of :data:`.SIZES`, with the length of its samples if one is given."""
    size, length = SIZES[network], () if tokens is None else shape_of("--tokens", tokens)
    if len(length) > 1:
        raise ArgumentError(f"--tokens {tokens}: {network} {_of_length(size.vocabulary)}")
    return replace(size, tokens=length[0]) if length else size


def _of_length(tokens: int) -> str:
    return f"has {tokens:,} tokens, and --tokens sets the length of a sample, such as 512"


def _samples(known: Named) -> str:
    if known.tokens:
        return _of_length(known.tokens)
    return "is fed images, whose shape --input sets"


def shape_of(option: str, text: str) -> tuple[int, ...]:
    """The sizes of ``"3x224x224"``."""
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise ArgumentError(f"{option} {text!r} is not a shape: write sizes such as 3x224x224, or 1024")
    return tuple(map(int, parts))


def _users(module: str, name: str) -> Callable[[], nn.Module]:
    """A function that makes the user's network; a PyTorch network is converted."""
    network, make = f"{module}:{name}", load(module, name)
    if is_torch(network):
        torch: Any = sys.modules["torch"]
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            torch.nn.init.normal_(torch.empty(1))  # the first time, PyTorch keeps the callers' frames, and so what they made
        if not isinstance(make, type):
            _check_makes(make, network)
    return partial(_make_network, make, network)


def _check_makes(make: Callable[[], Any], network: str) -> None:
    """Refuse a function of PyTorch's that trains: its network is made once, without memory."""
    torch: Any = sys.modules["torch"]
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), redirect_stdout(sys.stderr):
            made = make()
    except Exception as error:
        found = f"fails: {type(error).__name__}: {error}"
    else:
        if isinstance(made, torch.nn.Module):
            return
        found = f"makes {type(made).__name__!r}"
    raise ArgumentError(f"{network} must make a network, and {found}\nIf it trains one of PyTorch's: {_ESTIMATE} {network}")


def _make_network(make: Callable[[], Any], network: str) -> nn.Module:
    """The result of ``make()``, as a network of this library.

    A PyTorch network is converted. In a prediction PyTorch makes it without memory (on its own ``meta``), else with values from
    our seed.
    """
    torch = sys.modules.get("torch")  # a PyTorch network needs it imported
    if torch is None:
        model = make()
    else:
        with torch.random.fork_rng(devices=[]), torch.device("meta") if scope.local.dry else nullcontext():
            torch.manual_seed(tm.initial_seed())
            model = make()
        if isinstance(model, torch.nn.Module):
            return tm.from_torch(model, device="cpu")
    if not isinstance(model, nn.Module):
        what = "an instance" if isinstance(model, type) else f"{type(model).__name__!r}"
        raise ArgumentError(f"{network} makes {what}: it must make a Module of tinygrad_mem.nn or of torch.nn")
    return model


def told_elsewhere(network: str | None) -> str:
    """A sentence for a network of PyTorch's that was converted; ``""`` for others."""
    if network is None or network in NETWORKS or not is_torch(network):
        return ""
    return f"The network was converted, and these are bytes of this library. PyTorch's own: {_COMMAND} {network}"


def size_of(option: str, text: str | None) -> int | None:
    """The bytes of ``"8 GiB"``; ``None`` if the option was not given."""
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise ArgumentError(f"{option}: {error}") from None


def steps_in_backward(optimizer: str, accumulate: int, precision: str, ranks: int | None = None) -> bool:
    """True if the optimizer updates each parameter in backward. A setting that needs gradients after it is refused."""
    if optimizer in IN_BACKWARD and (ranks is not None or accumulate > 1 or precision in ("autocast", "half")):
        raise ArgumentError(
            f"--optimizer {optimizer} updates each parameter in backward, so gradients are not added up, scaled or averaged: "
            "leave --ranks, --accumulate and --precision half or autocast out"
        )
    return optimizer in IN_BACKWARD


def unwrapped(rule: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    """The optimizer's class, and the options that one of :data:`OPTIMIZERS` gives it."""
    return (rule.func, dict(rule.keywords)) if isinstance(rule, partial) else (rule, {})
