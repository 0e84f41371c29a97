"""The parts of PyTorch around a program that run in another way in a prediction: moves, compiled code, threads."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo import eval_frame
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import transformer
from torch.nn.parallel import comm
from torch.optim.optimizer import _foreach_supported_types as steps_in_lists
from torch.overrides import TorchFunctionMode
from torch.utils._foreach_utils import _foreach_supported_types as works_in_lists

from ...autograd.questions import PASSED
from ...autograd.unknown import Unknown, followed, has_unknown
from ...errors import DataDependenceError, DeviceError, NotOfferedError
from ...interrupts import changed, context
from .arrays import from_numpy
from .asking import begin
from .calls import swap
from .fake import META, without_modes
from .hugging_face import hugging_face
from .lazy import lazy_modules
from .loading import loading, of_prediction
from .places import owner
from .recurrent import flatten_parameters
from .replacing import handled, patched, refused
from .saving import saving
from .unknown import SIZE
from .watch import Watch

_C: Any = torch._C
_PACKAGE = __name__.rpartition(".")[0]
_COMPILED = "torch.compile: the function was predicted as it is written. A compiled one may need less, or more"
_SCRIPTED = "torch.jit.script: the function was predicted op by op. Its compiler may join ops, which then need less"
_GRAPHED = "torch.cuda.make_graphed_callables: predicted without graphs. A graph keeps a pool of memory of its own"
_BETWEEN_GPUS = ("broadcast", "broadcast_coalesced", "gather", "reduce_add", "reduce_add_coalesced")
_NESTED = ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "narrow", "masked_select")
_CAUSAL = "nn.Transformer: whether a mask is causal is not known in a prediction: it was assumed to be causal. Pass is_causal"

_RECORDED = "{} records a run with real tensors, which a prediction does not have. Predict the module itself"
_ITERATES = "torch.optim.LBFGS: each step was assumed to make all its iterations. A step that converges makes fewer"
_NOT_KEPT = "torch.optim.LBFGS: a step along which the gradient does not grow is not kept, and the oldest one stays"
_SEARCHES = (
    "torch.optim.LBFGS(line_search_fn=...): how often it calls the closure depends on values, which are not known in a "
    "prediction. Predict it without a line search"
)


def _overridden(tensors: Any) -> bool:
    """True if a tensor is of a type with functions of its own, or under a mode for functions, such as that of a default device.
    PyTorch asks so before it takes one op for a whole layer: the modes of a prediction are no reason against it."""
    plain = torch._C._disabled_torch_function_impl, torch.Tensor.__torch_function__  # type: ignore[attr-defined]
    modes = torch.overrides._get_current_function_mode_stack()
    if any(not type(mode).__module__.startswith(_PACKAGE) for mode in modes):
        return True
    return any(getattr(type(tensor), "__torch_function__", plain[0]) not in plain for tensor in tensors)


@context
def around(watch: Watch) -> Iterator[None]:
    """Let loaders read real data in this process, and compiled code run uncompiled."""
    changes = [
        (torch, {"compile": partial(_compile, watch)}),
        *[handled(watch, each, get_rng_state=_state, set_rng_state=_set_state) for each in (torch, torch.random)],
        (nn.RNNBase, {"flatten_parameters": flatten_parameters}),
        (torch.cuda, {"make_graphed_callables": partial(_make_graphed, watch), "graph": _graph, "CUDAGraph": _graph}),
        (torch._C, {"_group_tensors_by_device_and_dtype": _group_tensors}),
        handled(watch, torch, from_numpy=from_numpy, range=_range, _check_with=_check),
        handled(watch, torch.utils, swap_tensors=swap),
        handled(watch, torch.UntypedStorage, data_ptr=begin),
        handled(watch, transformer, _detect_is_causal_mask=_causal),
        (comm, {"scatter": _scatter, **dict.fromkeys(_BETWEEN_GPUS, _several)}),
        (torch.nested, dict.fromkeys(_NESTED, _nested)),
        (torch.cuda.jiterator._JittedFunction, {"__call__": _jitted}),
        handled(watch, eval_frame, _callback_from_stance=_in_eager),
        *[handled(watch, each, __call__=_scripted) for each in (_C.ScriptFunction, _C.ScriptMethod)],
        (torch.jit, {"trace": refused(_RECORDED.format("torch.jit.trace"))}),
        (torch.export, {"export": refused(_RECORDED.format("torch.export.export"))}),
        (torch.overrides, {"has_torch_function": _overridden}),
        handled(watch, nn.Module, _apply=_move_module),
        handled(watch, FakeTensor, tolist=_tolist),
        handled(watch, torch.optim.LBFGS, __init__=_iterating),
        handled(watch, threading.Thread, start=_start_thread),
        (nn.parallel.DistributedDataParallel, {"__init__": _alone}),
        (getattr(torch.distributed, "DeviceMesh", None), {"__init__": _alone}),
        (getattr(torch.distributed, "distributed_c10d", None), {"rendezvous": _alone}),
        *loading(watch),
        *lazy_modules(watch),
        *saving(watch),
    ]
    with ExitStack() as stack:
        stack.enter_context(patched(*changes))
        stack.enter_context(followed())
        stack.enter_context(hugging_face(watch))
        stack.enter_context(_in_lists())
        stack.enter_context(changed(FakeTensor, device=property(partial(_device, watch, FakeTensor.device.fget))))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")  # which are ours
        yield


def _compile(watch: Watch, model: Any = None, *args: Any, **kwargs: Any) -> Any:
    watch.note(_COMPILED)
    return (lambda function: function) if model is None else model


def _in_eager(watch: Watch, own: Callable[[Any], Any], callback: Any) -> Any:
    """Note that a compiled function runs as it is written, also where it was compiled before the prediction."""
    if callback not in (None, False):
        watch.note(_COMPILED)
    return own(callback)


def _scripted(watch: Watch, own: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    watch.note(_SCRIPTED)
    return own(function, *args, **kwargs)


def _range(watch: Watch, own: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    """``torch.range``, whose C++ takes an unknown number for a plain one."""
    if has_unknown([*args, *kwargs.values()]):
        raise DataDependenceError(f"range: {SIZE}")
    return own(*args, **kwargs)


def _check(watch: Watch, own: Callable[..., None], kind: type, condition: Any, *args: Any) -> None:
    """``torch._check``, which libraries use: one of values passes."""
    if not isinstance(condition, Unknown):
        return own(kind, condition, *args)
    watch.note(f"{watch.places.line()}: {PASSED}")


def _make_graphed(watch: Watch, callables: Any, *args: Any, **kwargs: Any) -> Any:
    watch.note(_GRAPHED)
    return callables


def _group_tensors(lists: list[list[Any]], with_indices: bool = False) -> dict:
    """Tensors by device and dtype, as Python sees their devices: C++ sees those of the GPU on ``meta``."""
    groups: dict[Any, Any] = _GROUPED(lists, with_indices)
    return {(group[0][0][0].device, dtype): group for (_, dtype), group in groups.items()}


_GROUPED = torch._C._group_tensors_by_device_and_dtype


def _device(watch: Watch, own: Any, tensor: torch.Tensor) -> torch.device:
    """The device of a tensor: ``meta`` where the program made it there. To PyTorch itself that is the GPU: it sees the CPU."""
    asked_by_the_program = watch.has_without_memory() and owner(sys._getframe(1).f_code.co_filename)
    return META if asked_by_the_program and watch.without_memory(tensor) else own(tensor)


@context
def _in_lists() -> Iterator[None]:
    """Let optimizers and clipping accept lists of fake tensors: on a GPU they step with lists by default."""
    lists: tuple[list[type], ...] = steps_in_lists, works_in_lists
    for types in lists:
        types.append(FakeTensor)
    try:
        yield
    finally:
        for types in lists:
            types.remove(FakeTensor)


def _state(watch: Watch, own: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A state of random numbers: a real tensor of the program, which it may keep."""
    made = own()
    with torch._C.DisableTorchFunction():
        watch.own(made, made)
    return made


def _set_state(watch: Watch, own: Callable[[torch.Tensor], None], new_state: torch.Tensor) -> None:
    """Ignore a state without values: random numbers are not drawn."""
    if not isinstance(new_state, FakeTensor):
        own(new_state)


def _tolist(watch: Watch, own: Callable[[Any], list], tensor: torch.Tensor) -> list:
    """Known numbers are read where they are: a fake tensor makes others of them."""
    with torch._C.DisableTorchFunction():
        known = watch.numbers.value(tensor)
    if known is None:
        return own(tensor)
    with without_modes():
        return known.tolist()


_graph = refused(
    "torch.cuda.graph: a graph keeps a pool of memory of its own, which is not predicted. Predict the program without it"
)
_several = refused(
    "the program uses several GPUs, and a prediction has one. Predict it with one, such as nn.DataParallel(model, [0]), "
    "and with the share of the batch that one GPU gets"
)
_nested = refused("nested tensors: their memory is not predicted. Use padded tensors with a mask")
_jitted = refused("torch.cuda.jiterator: its kernels are not predicted. Write the function with PyTorch's ops")
_alone = refused(
    "torch.distributed: say which process is predicted: predict(run, world_size=8, rank=0), or estimate --ranks 8 --rank 0"
)


def _scatter(tensor: torch.Tensor, devices: Any = None, *args: Any, out: Any = None, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """``comm.scatter`` to one GPU: move the tensors that are not on it."""
    if out is not None or len(devices) != 1:
        _several()
    return (tensor.to(torch.device("cuda", devices[0]) if isinstance(devices[0], int) else devices[0], non_blocking=True),)


def _causal(watch: Watch, own: Callable[..., bool], mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Treat a mask as causal without reading it, and count the memory of the comparison."""
    if is_causal is not None or mask is None:
        return own(mask, is_causal, size)
    length = mask.size(-2) if size is None else size
    causal = transformer._generate_square_subsequent_mask(length, device=mask.device, dtype=mask.dtype)
    if mask.size() != causal.size():
        return False
    (mask == causal).all()
    watch.note(_CAUSAL)
    return True


def _move_module(watch: Watch, own: Callable[..., Any], module: nn.Module, function: Any, recurse: bool = True) -> Any:
    """``.to``, ``.cuda`` and ``.half`` of a module. Refuse a module made before the prediction: it would stay changed."""
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None and not isinstance(watch.local(tensor), FakeTensor):
            raise DeviceError(
                f"a {type(module).__name__} that was made outside of the prediction is moved. Make the model inside the "
                "function that is predicted"
            )
    return own(module, function, recurse)


def _iterating(watch: Watch, own: Callable[..., None], optimizer: Any, *args: Any, **kwargs: Any) -> None:
    """``LBFGS`` decides by values; see :mod:`.reading`."""
    own(optimizer, *args, **kwargs)
    (group,) = optimizer.param_groups
    if group["line_search_fn"] is not None:
        raise NotOfferedError(_SEARCHES)
    watch.note(_ITERATES)
    size = sum(each.numel() * each.element_size() for each in group["params"] if watch.find(each) is not None)
    watch.bound(2 * watch.in_blocks(size), _NOT_KEPT)


def _start_thread(watch: Watch, own: Callable[..., Any], thread: threading.Thread) -> None:
    """Run a thread of the program, which may not use tensors of the prediction: it would not be counted."""
    body = thread.run

    def run() -> None:
        with _Elsewhere(watch):
            body()

    thread.run = run  # type: ignore[method-assign]
    own(thread)


class _Elsewhere(TorchFunctionMode):
    """Refuses tensors of a prediction in another thread than its own."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if of_prediction(func, args, kwargs):
            self._watch.elsewhere = NotOfferedError(
                "the program uses tensors in a thread that it starts, and only one thread is predicted. Call the thread's "
                "function directly"
            )
            raise self._watch.elsewhere
        return func(*args, **kwargs)
