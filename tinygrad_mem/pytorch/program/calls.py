"""The function mode under which a program runs: calls that PyTorch refuses without a GPU, or that read values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from ...autograd.unknown import has_unknown, stated
from ...errors import DeviceError, NotOfferedError
from .alone import measured
from .arrays import UnknownArray
from .asking import pin
from .fake import META, on_gpu, without_modes
from .places import OURS, release
from .reading import HANDLERS, handles
from .replacing import refused
from .roles import Roles
from .watch import Watch

Tensor = torch.Tensor
_C: Any = torch._C
_parse_to: Any = torch._C._nn._parse_to  # type: ignore[attr-defined]


class Calls(TorchFunctionMode):
    """Sees each call of PyTorch's Python functions, before autocast and autograd.

    Args:
        autocast: is called before each call that autocast may change.
    """

    def __init__(self, watch: Watch, roles: Roles, autocast: Callable[[], None]) -> None:
        super().__init__()
        self.watch, self.roles, self._autocast = watch, roles, autocast

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_autocast_enabled("cuda"):
            self._autocast()
        placed = self._placed(func, kwargs) if kwargs else {}
        handler = HANDLERS.get(func)
        inference = torch.is_inference_mode_enabled()
        self.watch.keys = (_C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()) if inference else None
        try:
            made = func(*args, **placed) if handler is None else handler(self.watch, *args, **placed)
        except BaseException as error:
            args = kwargs = placed = None
            release(error, OURS)
            raise
        if kwargs and isinstance(kwargs.get("generator"), torch.Generator) and isinstance(made, Tensor):
            wanted, found = self.watch.local(made).device.type, kwargs["generator"].device.type
            if wanted != found:  # PyTorch's own check: it has asked for the memory of the result by then
                raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
        if kwargs and _is_meta_device(kwargs.get("device")) and isinstance(made, Tensor):
            self.watch.without_memory(made, made=True)
        if kwargs and kwargs.get("pin_memory") and isinstance(made, Tensor):
            pin(made)
        if torch.is_grad_enabled():
            self.roles.saved(made)
        self.watch.saved_numbers.end(self.watch.places)
        return made

    def _placed(self, func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keywords of a call with the place where the prediction makes its result."""
        if "pin_memory" in kwargs:
            kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}  # the host's memory
        if isinstance(kwargs.get("device"), int):
            kwargs = {**kwargs, "device": torch.device("cuda", kwargs["device"])}
        if kwargs.get("device") is not None and _is_meta_device(kwargs["device"]) and func not in _MOVES:
            kwargs = {**kwargs, "device": _without_memory(self.watch)}
        return kwargs

    def within(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """Turn the mode on again inside a call that it handles, such as ``backward``: Python code within the call needs it."""

        def inner(*args: Any, **kwargs: Any) -> Any:
            with self:
                return own(*args, **kwargs)

        return inner


def _is_meta_device(device: Any) -> bool:
    return str(device).startswith("meta")


def _without_memory(watch: Watch) -> torch.device:
    """The device for the program's own tensors on ``meta``. C++ uses ``meta`` for the GPU, so they need another one."""
    if watch.device.type == "cpu":
        raise NotOfferedError('the program makes tensors on "meta": predict it with device="cuda", or make them on the CPU')
    return torch.device("cpu")


_MOVES = {Tensor.to, Tensor.new_tensor, torch.tensor, torch.as_tensor, torch.asarray}
_PLACES = {torch.int8, torch.int16, torch.int32, torch.int64}
_attributes: Any = vars(torch._C.TensorBase)  # by name, with the functions that read and set them


# --- devices --------------------------------------------------------------------------------------------------------------


@handles(torch.device)
def _device(watch: Watch, *args: Any, **kwargs: Any) -> torch.device:
    """The device for ``torch.device``'s arguments; a plain number means a GPU, which PyTorch refuses if it sees none."""
    return torch.device("cuda", args[0]) if args and isinstance(args[0], int) else torch.device(*args, **kwargs)


@handles(_parse_to)
def _parsed(watch: Watch, *args: Any, **kwargs: Any) -> Any:
    """The arguments of ``.to``."""
    if args and isinstance(args[0], int):
        args = torch.device("cuda", args[0]), *args[1:]
    return _parse_to(*args, **kwargs)


@handles(Tensor.to)
def _to(watch: Watch, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    copy = kwargs.pop("copy", False)
    if len(args) > 2 and type(args[-2]) is type(args[-1]) is bool:  # non_blocking and copy
        *args, copy = args  # type: ignore[assignment]
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, Tensor):
        device, dtype, wait, layout = _device_of(watch, other), other.dtype, False, kwargs.get("memory_format")
    else:
        device, dtype, wait, layout = _parsed(watch, *args, **kwargs)
    if not isinstance(watch.local(tensor), FakeTensor):
        if tensor.requires_grad or isinstance(tensor, torch.nn.Parameter):
            watch.adopt(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            raise DeviceError("a parameter was made outside of the prediction: make the model inside the predicted function")
    if device is not None and watch.without_memory(tensor) != (device.type == "meta"):
        return _across_meta(watch, tensor, dtype)
    if device is not None and device.type == "meta":
        device = _without_memory(watch)
    elif device is not None and device.type == "cuda" and device.index is None:
        device = torch.device("cuda", watch.device.index or 0)
    same = (device is None or device == watch.local(tensor).device) and (dtype is None or dtype == tensor.dtype)
    if same and not copy and layout in (None, torch.preserve_format, suggest_memory_format(tensor)):
        return tensor
    options = {"dtype": dtype, "device": device, "non_blocking": wait, "memory_format": layout}
    return torch.ops.aten._to_copy.default(tensor, **options)


def _across_meta(watch: Watch, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The tensor on ``meta``, if it is elsewhere."""
    if watch.without_memory(tensor):
        raise NotImplementedError(
            "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() "
            "when moving module from meta to a different device."
        )
    made = torch.ops.aten.empty_like.default(tensor, dtype=dtype, device=_without_memory(watch))
    watch.without_memory(made, made=True)
    return made


@handles(Tensor.type)
def _type(watch: Watch, tensor: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The name of a tensor's type, or the tensor as another: names such as ``torch.cuda.HalfTensor`` have a device, too."""
    if dtype is None:
        with torch._C.DisableTorchFunction():
            return Tensor.type(tensor).replace("torch.meta.", "torch.cuda.")
    name = dtype if isinstance(dtype, str) else f"{getattr(dtype, '__module__', '')}.{getattr(dtype, '__name__', '')}"
    if not name.startswith("torch.cuda."):
        return tensor.type(dtype, non_blocking)
    with without_modes():
        kind = torch.empty(0).type(name.replace(".cuda", "")).dtype
    return _to(watch, tensor, torch.device("cuda"), kind, non_blocking)


@handles(torch.tensor, torch.as_tensor, torch.asarray, given=True)
def _tensor(function: Any, watch: Watch, data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
    """Make a tensor on the CPU, then move it, as PyTorch does. A tensor, or an array of NumPy's, is copied only if asked for.

    Source: ``torch/csrc/utils/tensor_new.cpp``, ``internal_new_from_data``.
    """
    trained, copy = kwargs.pop("requires_grad", False), kwargs.pop("copy", function is torch.tensor)
    if isinstance(data, np.ndarray) and not copy:
        data, device = torch.from_numpy(data), default_device() if device is None else device
    if isinstance(data, Tensor):
        place = torch.device(device) if device is not None else None
        made = _to(
            watch, data.detach() if function is torch.tensor else data, device=place, dtype=kwargs.get("dtype"), copy=copy
        )
    else:
        made = torch.tensor(stated(data), device="cpu", **kwargs)
        if has_unknown(data) or isinstance(data, UnknownArray):
            watch.numbers.written(made)
        made = _to(watch, made, default_device() if device is None else torch.device(device))
    return made.requires_grad_() if trained else made


@handles(Tensor.new_tensor)
def _new_tensor(watch: Watch, tensor: Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
    place = device or _device_of(watch, tensor)
    return _tensor(torch.tensor, watch, data, dtype=dtype or tensor.dtype, device=place, **kwargs)


def default_device() -> torch.device:
    """The device of ``torch.set_default_device``, or of ``with torch.device("cuda"):`` around the prediction."""
    found = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)  # PyTorch's own way makes a tensor there
    outer = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return found.device if found is not None else outer[-1].device if outer else torch.device("cpu")


@handles(Tensor.cuda)
def _cuda(watch: Watch, tensor: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
    index = device if isinstance(device, int) else torch.device("cuda" if device is None else device).index
    target = torch.device("cuda", watch.device.index or 0 if index is None else index)
    return _to(watch, tensor, target, non_blocking=non_blocking, memory_format=memory_format or torch.preserve_format)


@handles(Tensor.cpu)
def _cpu(watch: Watch, tensor: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
    return _to(watch, tensor, torch.device("cpu"), memory_format=memory_format)


@handles(_attributes["device"].__get__)
def _device_of(watch: Watch, tensor: Tensor) -> torch.device:
    """The device of a tensor; of a DTensor, that of this rank's part."""
    return META if watch.without_memory(tensor) else watch.local(tensor).device


def _is_on(kind: str, watch: Watch, tensor: Tensor) -> bool:
    return _device_of(watch, tensor).type == kind


@handles(torch.imag, _attributes["imag"].__get__, given=True)
def _imaginary(own: Callable[..., Tensor], watch: Watch, tensor: Tensor) -> Tensor:
    if tensor.is_conj():
        raise NotOfferedError(
            "the imaginary part of a conjugate: PyTorch negates it when an op reads it, in a copy that is not predicted. Write "
            "-x.imag in place of x.conj().imag"
        )
    return own(tensor)


HANDLERS |= {
    vars(torch)["_neg_view"]: refused("torch._neg_view: PyTorch negates it in a copy that is not predicted. Write -x"),
    **{_attributes[f"is_{kind}"].__get__: partial(_is_on, kind) for kind in ("cuda", "meta", "cpu")},
    Tensor.get_device: lambda watch, tensor: -1 if tensor.device.index is None else tensor.device.index,
}


@handles(_attributes["data"].__set__)
def _set_data(watch: Watch, tensor: Tensor, value: Tensor) -> None:
    _own(watch, tensor, ".data is set")
    replace(watch, tensor, value)


def _own(watch: Watch, tensor: Tensor, what: str) -> None:
    if not isinstance(watch.local(tensor), FakeTensor):
        raise DeviceError(f"{what} for a tensor that was made outside of the prediction. Make it inside the predicted function")


@handles(Tensor.requires_grad_)
def _requires_grad(watch: Watch, tensor: Tensor, requires_grad: bool = True) -> Tensor:
    _own(watch, tensor, "requires_grad is set")
    return tensor.requires_grad_(requires_grad)


def _set(name: str, watch: Watch, tensor: Tensor, value: Any) -> None:
    _own(watch, tensor, f"{name} is set")
    setattr(tensor, name, value)


HANDLERS |= {_attributes[name].__set__: partial(_set, name) for name in ("requires_grad", "grad")}


def swap(watch: Watch, own: Callable[..., None], tensor: Tensor, value: Tensor) -> None:
    """``torch.utils.swap_tensors``, which PyTorch refuses for fake tensors."""
    if isinstance(tensor, watch.wrappers):
        own(tensor, value)
    else:
        replace(watch, tensor, value)


def replace(watch: Watch, tensor: Tensor, value: Tensor) -> None:
    """Let ``tensor`` have the storage, dtype and device of ``value``, as ``tensor.data = value``."""
    held = watch.find(tensor) if isinstance(tensor, torch.nn.Parameter) else None
    if held is not None:
        watch.ledger.become(held, "PARAMETER")
    with torch._C.DisableTorchFunction():
        tensor.data = value
        if isinstance(tensor, FakeTensor) and isinstance(value, FakeTensor):
            tensor.fake_device = value.fake_device


@handles(Tensor.__deepcopy__)
def _deepcopy(watch: Watch, tensor: Tensor, memo: dict) -> Tensor:
    """Copy a fake tensor without its mode, which its own method would copy too.

    Source: ``torch/_tensor.py``; ``torch/nn/parameter.py``.
    """
    found = memo.get(id(tensor))
    if found is not None:
        return found
    if not tensor.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol")
    if isinstance(tensor, torch.nn.Parameter):  # without its gradient
        made: Tensor = torch.nn.Parameter(tensor.detach().clone(memory_format=torch.preserve_format), tensor.requires_grad)
    else:
        with torch.no_grad():
            made = _with_its_storage(tensor, memo) if isinstance(tensor, FakeTensor) else tensor.detach().clone()
        made.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            made.grad = _deepcopy(watch, tensor.grad, memo)
    memo[id(tensor)] = made
    return made


def _with_its_storage(tensor: Tensor, memo: dict) -> Tensor:
    """A copy of a tensor, in a copy of its whole storage. Tensors that are copied together share the copy of a storage."""
    storage = tensor.untyped_storage()
    copies = memo.setdefault("torch", {})
    held = copies.get(storage._cdata)
    if held is None:
        held = copies[storage._cdata] = tensor.new_empty(storage.nbytes(), dtype=torch.uint8)
    return tensor.new_empty(()).set_(held.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


@handles(Tensor.__getitem__)
def _get_item(watch: Watch, tensor: Tensor, index: Any) -> Tensor:
    return tensor[_place(watch, index)]


def _place(watch: Watch, index: Any) -> Any:
    """An index with 0 for each number that is a tensor, such as ``x.argmax()``: whichever it is, the part is as large.

    Source: ``aten/src/ATen/TensorIndexing.h``, ``handleDimInMultiDimIndexing``.
    """
    if type(index) is tuple:
        return tuple([_place(watch, each) for each in index])
    if type(index) is FakeTensor and index.dim() == 0 and index.dtype in _PLACES and watch.numbers.value(index) is None:
        return 0
    return index


@handles(Tensor.__setitem__)
def _set_item(watch: Watch, tensor: Tensor, index: Any, value: Any) -> None:
    """Assign a number to elements of a GPU's tensor: as a number on the host, as C++ does when it sees the GPU.

    Source: ``torch/csrc/autograd/python_variable_indexing.cpp``, ``THPVariable_setitem``.
    """
    given: Any = value
    if isinstance(value, (bool, int, float, complex)) and on_gpu(watch.local(tensor)):
        given = torch.full((), value, dtype=tensor.dtype, device="cpu")
    tensor[_place(watch, index)] = given


# --- layers ---------------------------------------------------------------------------------------------------------------


@handles(_C._VariableFunctions._transformer_encoder_layer_fwd, _C._VariableFunctions._native_multi_head_attention, given=True)
def _whole(function: Callable[..., Any], watch: Watch, *args: Any, **kwargs: Any) -> Any:
    """Run a transformer layer in evaluation: one op, which under autocast runs others that dispatch does not show."""
    if watch.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        raise NotOfferedError(
            "nn.TransformerEncoderLayer or nn.MultiheadAttention in evaluation under autocast on the CPU: its memory "
            "is not predicted. Call torch.backends.mha.set_fastpath_enabled(False) before it"
        )
    return function(*args, **kwargs)


@handles(torch.nn.functional.affine_grid, torch.affine_grid_generator, given=True)
def _affine_grid(function: Callable[..., Tensor], watch: Watch, theta: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A grid by a product of matrices, which autocast runs in half precision within the op."""
    kind = _device_of(watch, theta).type
    if torch.is_autocast_enabled(kind):
        raise NotOfferedError(
            "affine_grid under autocast: its product in half precision is not predicted. Call it within "
            f'torch.autocast("{kind}", enabled=False)'
        )
    return function(theta, *args, **kwargs)


# --- values ---------------------------------------------------------------------------------------------------------------


@handles(torch.randperm)
def _randperm(watch: Watch, n: int, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    """Draw a permutation on the CPU with values: programs split and shuffle their data with it."""
    place = default_device() if device is None else torch.device(device)
    if place.type != "cpu":
        return torch.randperm(n, *args, device=place, **kwargs)
    with without_modes():
        real, within = measured(partial(torch.randperm, n, *args, **kwargs))
    with watch.workspace(within):
        made = torch.empty_like(real)
    if isinstance(made, FakeTensor):
        made.constant = real
        watch.numbers.set(made, real)
    return made
