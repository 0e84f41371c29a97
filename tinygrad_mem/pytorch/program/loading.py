"""Data loaders in a prediction: samplers and real data have values; tensors that the program made have none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, dataloader

from ...interrupts import context
from .cuda import all_patched, handled
from .fake import without_modes
from .watch import Watch


@context
def loading(watch: Watch) -> Iterator[None]:
    """Loaders read in this process."""
    with all_patched(
        [handled(watch, DataLoader, _get_iterator=_single), handled(watch, dataloader._BaseDataLoaderIter, __next__=_read)]
    ):
        yield


def of_prediction(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """True for a call that has a tensor of a prediction, or asks for one on a GPU."""
    places = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, (FakeTensor, torch.device, str))]
    return func is torch.Tensor.cuda or any(isinstance(p, FakeTensor) or str(p).startswith("cuda") for p in places)


def _single(watch: Watch, own: Callable[..., Any], loader: Any) -> Any:
    """An iterator that reads in this process: a batch of another one has no bytes on the GPU either."""
    loader = copy.copy(loader)
    options = {"num_workers": 0, "prefetch_factor": None, "timeout": 0, "persistent_workers": False, "pin_memory": False}
    vars(loader).update(options)
    with without_modes():
        return own(loader)


def _read(watch: Watch, own: Callable[..., Any], iterator: Any) -> Any:
    """The next batch, with its values: samplers and transforms decide by them."""
    with watch.places.within("data"):
        with _disable_current_modes(), _Ops(watch), _Functions(watch), torch.no_grad():
            batch = own(iterator)
        watch.found(batch)
    return batch


class _Ops(TorchDispatchMode):
    """Ops on real tensors run; those on tensors of the prediction are predicted."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not of_prediction(func, args, kwargs):
            return func(*args, **kwargs)
        with self._watch.fake, self._watch:
            return func(*args, **kwargs)


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
