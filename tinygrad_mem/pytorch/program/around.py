"""The parts of PyTorch around a program that run in another way in a prediction: moves, data loaders, compiled functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, dataloader

from ...interrupts import context
from .calls import replace
from .cuda import patched
from .recurrent import flatten_parameters
from .watch import Watch

_COMPILED = "torch.compile: the function was predicted as it is written. A compiled one may need less, or more"


@context
def around(watch: Watch) -> Iterator[None]:
    """Loaders read real data, in this process; what is compiled runs as it is written."""

    def compiled(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        watch.note(_COMPILED)
        return (lambda function: function) if model is None else model

    loading = {"_get_iterator": _single(watch, DataLoader._get_iterator)}
    fetching = {"__next__": _read(watch, dataloader._BaseDataLoaderIter.__next__)}
    state = {"get_rng_state": _owned(watch, torch.get_rng_state)}
    with (
        patched(torch.nn.RNNBase, {"flatten_parameters": flatten_parameters}),
        patched(torch, {"compile": compiled, **state}),
        patched(torch.random, state),
        patched(torch.utils, {"swap_tensors": partial(replace, watch)}),
        patched(DataLoader, loading),
        patched(dataloader._BaseDataLoaderIter, fetching),
        torch.compiler.set_stance("force_eager"),
    ):
        yield


def _owned(watch: Watch, own: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A function whose result is a real tensor of the program, which it may keep."""

    def state() -> torch.Tensor:
        made = own()
        with torch._C.DisableTorchFunction():
            watch.own(made, made)
        return made

    return state


def _single(watch: Watch, own: Callable[..., Any]) -> Callable[..., Any]:
    """An iterator that reads in this process: a batch of another one has no bytes on the GPU either."""

    def iterator(loader: Any) -> Any:
        if loader.num_workers:
            loader = copy.copy(loader)
            loader.num_workers, loader.prefetch_factor, loader.timeout = 0, None, 0
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return own(loader)

    return iterator


def _read(watch: Watch, own: Callable[..., Any]) -> Callable[..., Any]:
    """The next batch, with its values: samplers and transforms decide by them."""

    def following(self: Any) -> Any:
        with watch.places.within("data"):
            with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
                batch = own(self)
            watch.found(batch)
        return batch

    return following
