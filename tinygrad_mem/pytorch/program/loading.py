"""Data loaders in a prediction: samplers and real data have values; tensors that the program made have none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, WeightedRandomSampler, dataloader
from torch.utils.data._utils.pin_memory import pin_memory

from .alone import measured
from .described import tensors_in
from .fake import Uncompiled, without_modes
from .replacing import Change, handled
from .watch import Watch

_EVENLY = "WeightedRandomSampler: samples were drawn as if their weights were equal"
_SHARED = "DataLoader: batches that its workers make are in shared memory, and are not counted"
_LIFT = torch.ops.aten.lift_fresh.default  # of a tensor that PyTorch has just made of numbers


def loading(watch: Watch) -> list[Change]:
    """Let data loaders read in this process."""
    return [
        handled(watch, DataLoader, _get_iterator=_single),
        handled(watch, dataloader._BaseDataLoaderIter, __next__=_read),
        handled(watch, WeightedRandomSampler, __iter__=_evenly),
    ]


def of_prediction(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """True for a call that has a tensor of a prediction, or asks for one on a GPU."""
    places = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, (FakeTensor, torch.device, str))]
    return func is torch.Tensor.cuda or any(isinstance(p, FakeTensor) or str(p).startswith("cuda") for p in places)


def _single(watch: Watch, own: Callable[..., Any], loader: Any) -> Any:
    """An iterator that reads in this process: batches of other processes take no bytes of the GPU either."""
    loader, workers, pinned = copy.copy(loader), loader.num_workers, loader.pin_memory and watch.device.type == "cuda"
    options = {"num_workers": 0, "prefetch_factor": None, "timeout": 0, "persistent_workers": False, "pin_memory": False}
    vars(loader).update(options)
    with without_modes():
        iterator = own(loader)
    iterator.counted, iterator.pinned = not workers, pinned
    if workers and watch.device.type == "cpu":
        watch.note(_SHARED)
    return iterator


def _evenly(watch: Watch, own: Callable[..., Any], sampler: Any) -> Iterator[int]:
    """Places of samples: their weights may be numbers that are not known."""
    given = {} if sampler.generator is None else {"generator": sampler.generator}
    unread = torch.multinomial(sampler.weights, sampler.num_samples, sampler.replacement, **given)
    watch.note(_EVENLY)
    with without_modes():
        most = len(sampler.weights)
        drawn = torch.randint(most, (sampler.num_samples,)) if sampler.replacement else torch.randperm(most)
        places = drawn[: sampler.num_samples].tolist()
    yield from places
    del unread  # PyTorch's own way holds them until then


def _read(watch: Watch, own: Callable[..., Any], iterator: Any) -> Any:
    """The next batch, with its values: samplers and transforms decide by them."""
    with watch.places.within("data"):
        with _disable_current_modes(), _Ops(watch, iterator.counted), _Functions(watch), torch.no_grad():
            batch = own(iterator)
        watch.found(batch)
    return pin_memory(batch) if iterator.pinned else batch


class _Ops(Uncompiled, TorchDispatchMode):
    """Ops on real tensors run; those on tensors of the prediction are predicted.

    Args:
        counted: real results are memory of this process. Those of workers are in shared memory, which is not counted.
    """

    def __init__(self, watch: Watch, counted: bool) -> None:
        super().__init__()
        self._watch, self._counted = watch, counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if of_prediction(func, args, kwargs):
            with self._watch.fake, self._watch:
                return func(*args, **kwargs)
        if not self._counted:
            return func(*args, **kwargs)
        made, within = measured(partial(func, *args, **kwargs))
        with self._watch.workspace(within):
            given = {id(each.untyped_storage()) for each in tensors_in((args, kwargs))} if func is not _LIFT else ()
            for each in tensors_in(made):
                if id(each.untyped_storage()) not in given:
                    self._watch.own(each)
        return made


class _Functions(TorchFunctionMode):
    """Calls with tensors of the prediction are those of a program."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not of_prediction(func, args, kwargs):
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        with self._watch.fake, self._watch:  # and then the mode of the program's calls, which is below this one
            return func(*args, **kwargs)
