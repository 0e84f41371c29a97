"""A PyTorch network as one of ours: its layers are ours, its own classes are the same source with other imports."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import nn
from ..autograd.capsule import on_host
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..devices import dry_run
from ..dtypes import bfloat16
from ..errors import NotOfferedError, missing
from ..functional.creation import empty, from_numpy
from ..nn.multihead import NonDynamicallyQuantizableLinear

_SKIPPED = ("device", "dtype")  # of a constructor: the tensors themselves say it


def from_torch(module: Any, *, device: Any = None) -> nn.Module:
    """``module`` (a ``torch.nn.Module``) made of our layers, in the same mode, with the same names and values.

    A layer of ``torch.nn`` becomes ours with the same arguments. A class of the user's becomes one with the same methods, in
    which ``torch`` and what was imported from it are ours. Parameters and buffers on the cpu share their memory with PyTorch's:
    writing one writes the other. Those on PyTorch's ``meta`` are on ours.

    Args:
        device: "meta" for shapes alone, whatever the size; unless given, where PyTorch's are.

    Raises:
        NotOfferedError: some part cannot be converted; the message lists all of them.
        TypeError: ``module`` is no ``torch.nn.Module``.
        ModuleNotFoundError: PyTorch is missing: ``pip install torch``.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise missing("torch", "from_torch") from None
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch: expected a torch.nn.Module, found {type(module).__name__}")
    conversion = _Conversion(torch, None if device is None else Device(device))
    problems = conversion.problems(module)
    if problems:
        raise NotOfferedError("from_torch: what cannot be converted:\n" + "\n".join(f"  {line}" for line in problems))
    return conversion.module(module)


def _of_block(block: Any) -> dict[str, Any]:
    """The arguments of a transformer's layer, as its parts remember them."""
    inner = block.self_attn
    return {
        "d_model": inner.embed_dim,
        "nhead": inner.num_heads,
        "dim_feedforward": block.linear1.out_features,
        "dropout": block.dropout.p,
        "layer_norm_eps": block.norm1.eps,
        "batch_first": inner.batch_first,
        "bias": block.linear1.bias is not None,
    }


_TOLD: dict[str, Callable[[Any], dict[str, Any]]] = {
    "MultiheadAttention": lambda m: {"bias": m.in_proj_bias is not None, "add_bias_kv": m.bias_k is not None},
    "TransformerEncoderLayer": _of_block,
    "TransformerDecoderLayer": _of_block,
    "TransformerEncoder": lambda m: {"encoder_layer": m.layers[0]},
    "TransformerDecoder": lambda m: {"decoder_layer": m.layers[0]},
    "Transformer": lambda m: {"custom_encoder": m.encoder, "custom_decoder": m.decoder},
}
"""Arguments of layers that are no attributes of theirs."""


class _Conversion:
    """One conversion: what was made so far, so that what is shared stays shared."""

    def __init__(self, torch: types.ModuleType, device: Device | None) -> None:
        self.torch, self.device = torch, device
        self.made: dict[int, Any] = {}
        self.classes: dict[type, type] = {}
        self.names: dict[int, dict[str, Any]] = {}  # globals of the user's modules, as far as they were asked for

    def problems(self, module: Any) -> list[str]:
        """The obstacles, a line each, with their paths."""
        found = []
        for path, part in module.named_modules():
            where, kind = path or "the network itself", type(part)
            if self._is_torchs(kind) and self._ours(kind) is None:
                found.append(f"{where}: there is no {kind.__name__} here")
            if getattr(part, "proj_size", 0) and self._is_torchs(kind):
                found.append(f"{where}: its projections (proj_size): there are none here")
            if any(getattr(part, f"_{hooks}") for hooks in ("forward_hooks", "forward_pre_hooks", "backward_hooks")):
                found.append(f"{where}: its hooks are functions of PyTorch's; add your own to the result")
        for path, tensor in [*module.named_parameters(), *module.named_buffers()]:
            problem = self._problem(tensor)
            if problem:
                found.append(f"{path}: {problem}")
        return found

    def _problem(self, tensor: Any) -> str:
        if tensor.device.type not in ("cpu", "meta") and self.device is None:
            return f"it is on {tensor.device}; move the network to the cpu first"
        if tensor.layout != self.torch.strided or tensor.is_quantized:
            return f"a {tensor.layout} tensor; dense ones are converted"
        try:
            self._dtype(tensor)
        except KeyError:
            return f"there is no {str(tensor.dtype).removeprefix('torch.')} here; convert the network to float32 first"
        return ""

    def _is_torchs(self, kind: type) -> bool:
        return kind.__module__ == "torch" or kind.__module__.startswith("torch.")

    def _ours(self, kind: type) -> type | None:
        """Our layer of the same name."""
        if kind.__name__ == NonDynamicallyQuantizableLinear.__name__:
            return NonDynamicallyQuantizableLinear
        found = getattr(nn, kind.__name__, None) if getattr(self.torch.nn, kind.__name__, None) is kind else None
        return found if isinstance(found, type) else None

    def _dtype(self, tensor: Any) -> np.dtype:
        return {
            self.torch.float16: np.dtype(np.float16),
            self.torch.bfloat16: bfloat16,
            self.torch.float32: np.dtype(np.float32),
            self.torch.float64: np.dtype(np.float64),
            self.torch.int64: np.dtype(np.int64),
            self.torch.int32: np.dtype(np.int32),
            self.torch.uint8: np.dtype(np.uint8),
            self.torch.bool: np.dtype(np.bool_),
        }[tensor.dtype]

    # --- values -----------------------------------------------------------------------------------------------------------

    def value(self, value: Any) -> Any:
        """An attribute of a module: tensors, modules and containers of them become ours, all else stays."""
        if id(value) in self.made:
            return self.made[id(value)]
        if isinstance(value, self.torch.nn.Module):
            return self.module(value)
        if isinstance(value, self.torch.Tensor):
            return self.tensor(value)
        if isinstance(value, self.torch.dtype):
            return getattr(sys.modules["tinygrad_mem"], str(value).removeprefix("torch."), value)
        if isinstance(value, self.torch.Size):
            return tuple(value)
        if type(value) in (list, tuple):
            return type(value)(map(self.value, value))
        if type(value) is dict:
            return {key: self.value(each) for key, each in value.items()}
        if (callable(value) and self._is_torchs(type(value))) or getattr(value, "__module__", "").startswith("torch"):
            return self._named(value)
        return value

    def _named(self, value: Any) -> Any:
        """A function or class of PyTorch's as ours of the same place and name; where there is none, what refuses when used."""
        name, module = getattr(value, "__name__", ""), getattr(value, "__module__", None) or "torch"
        if not name:
            return value  # such as torch.strided: no function, and nothing that computes
        for place in (_module(module), sys.modules["tinygrad_mem"], nn.functional, nn):
            if hasattr(place, name):
                return getattr(place, name)
        return _NotOffered(f"{module}.{name}")

    def tensor(self, tensor: Any) -> Tensor:
        if id(tensor) in self.made:
            return self.made[id(tensor)]
        if tensor.device.type == "cpu" and self.device is None:
            ours = from_numpy(on_host(tensor.detach()))
        else:
            ours = empty(*tensor.shape, dtype=self._dtype(tensor), device=self.device or tensor.device.type)
            if tensor.device.type != "meta":
                ours.copy_(from_numpy(on_host(tensor.detach().cpu())))
        if isinstance(tensor, self.torch.nn.Parameter):
            ours = nn.Parameter(ours, requires_grad=tensor.requires_grad)
        self.made[id(tensor)] = ours
        return ours

    # --- modules and their classes ----------------------------------------------------------------------------------------

    def module(self, module: Any) -> nn.Module:
        """Parameters, buffers, modules and plain attributes of ``module`` in an object of our class."""
        if id(module) in self.made:
            return self.made[id(module)]
        kind = type(module)
        ours = self._layer(kind, module) if self._is_torchs(kind) else object.__new__(self.class_of(kind))
        if not self._is_torchs(kind):
            nn.Module.__init__(ours)
        self.made[id(module)] = ours
        ours.training = module.training
        for name, value in module.__dict__.items():
            if not name.startswith("_") and name != "training" and not self._is_torchs(kind):
                ours.__dict__[name] = self.value(value)
        for name, value in module._parameters.items():
            ours.register_parameter(name, None if value is None else self.tensor(value))  # type: ignore[arg-type]
        for name, value in module._buffers.items():
            persistent = name not in module._non_persistent_buffers_set
            ours.register_buffer(name, None if value is None else self.tensor(value), persistent=persistent)
        for name, value in module._modules.items():
            ours._modules[name] = None if value is None else self.module(value)  # type: ignore[assignment]
        return ours

    def _layer(self, kind: type, module: Any) -> nn.Module:
        """Our layer with the arguments that PyTorch's was made with, as far as it remembers them; made without memory."""
        mine = self._ours(kind)
        assert mine is not None
        arguments = {}
        told = _TOLD.get(kind.__name__, lambda module: {})(module)
        for name, parameter in inspect.signature(mine.__init__).parameters.items():
            if name in ("self", *_SKIPPED) or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            holder = module if hasattr(module, name) else getattr(module, "linear", None)  # a loss that has a layer inside
            if name in told:
                arguments[name] = self.value(told[name])
            elif hasattr(holder, name) and not inspect.ismethod(getattr(holder, name)):
                value = getattr(holder, name)
                is_flag = name == "bias" and not isinstance(value, bool)
                arguments[name] = value is not None if is_flag else self.value(value)
        with dry_run():  # apart from a prediction around it
            return mine(**arguments)

    def class_of(self, kind: type) -> type:
        """The user's class with other imports."""
        if kind in self.classes:
            return self.classes[kind]
        if self._is_torchs(kind):
            return self._ours(kind) or nn.Module
        bases = tuple(self.class_of(base) if issubclass(base, self.torch.nn.Module) else base for base in kind.__bases__)
        body = {k: v for k, v in vars(kind).items() if k not in ("__dict__", "__weakref__", "__annotations__")}
        ours = self.classes[kind] = type(kind.__name__, bases, {})
        for name, value in body.items():
            if name not in ("__module__", "__qualname__", "__doc__"):
                setattr(ours, name, self._method(value, kind, ours))
        ours.__module__, ours.__qualname__, ours.__doc__ = kind.__module__, kind.__qualname__, kind.__doc__
        return ours

    def _method(self, value: Any, kind: type, ours: type) -> Any:
        if isinstance(value, types.FunctionType):
            return self.function(value, kind, ours)
        if isinstance(value, (staticmethod, classmethod)):
            return type(value)(self._method(value.__func__, kind, ours))
        if isinstance(value, property):
            return property(*(self._method(f, kind, ours) for f in (value.fget, value.fset, value.fdel)))
        return self.value(value) if value is not None else None

    def function(self, function: Any, kind: type | None = None, ours: type | None = None) -> Any:
        """The same code over other globals: those of its names that come from PyTorch are ours."""
        if id(function) in self.made:
            return self.made[id(function)]
        theirs = function.__globals__
        names = self.names.setdefault(
            id(theirs), {"__builtins__": theirs["__builtins__"], "__name__": theirs.get("__name__", "")}
        )
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        made = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells or None)
        made.__kwdefaults__ = function.__kwdefaults__
        self.made[id(function)] = made  # before its names are looked at: one of them may be itself
        for mine, cell in zip(cells, function.__closure__ or (), strict=True):
            content = cell.cell_contents
            mine.cell_contents = ours if content is kind and kind is not None else self._global(content)
        for name in _names(function.__code__):
            if name in theirs and name not in names:
                names[name] = self._global(theirs[name])
        return made

    def _global(self, value: Any) -> Any:
        """The value of a name in the user's module."""
        torch = self.torch
        if isinstance(value, types.ModuleType):
            theirs = value.__name__ == "torch" or value.__name__.startswith("torch.")
            return (_module(value.__name__) or _NotOffered(value.__name__)) if theirs else value
        if isinstance(value, type):
            if issubclass(value, torch.nn.Module):
                return self.class_of(value)
            if self._is_torchs(value):
                return self._named(value)
            of_torch = next((base for base in value.__mro__ if self._is_torchs(base)), None)
            return value if of_torch is None else _NotOffered(f"{value.__qualname__}, a {of_torch.__name__} of PyTorch's")
        if isinstance(value, types.FunctionType) and not value.__module__.startswith("torch"):
            return self.function(value)
        return self.value(value)


class _NotOffered:
    """Stands for a name of PyTorch's that has no counterpart: the network may have it, and may not use it."""

    def __init__(self, what: str) -> None:
        self.__dict__["what"] = what

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotOfferedError(
            f"from_torch: the network uses {self.what}, which has no counterpart here; replace it before the conversion"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NotOffered(f"{self.what}.{name}")


def _module(name: str) -> types.ModuleType | None:
    """Our module of the same place as PyTorch's, ``None`` where there is none."""
    try:
        return importlib.import_module("tinygrad_mem" + name.removeprefix("torch"))
    except ImportError:
        return None


def _names(code: types.CodeType) -> set[str]:
    """The names that code, and what is defined in it, may ask its module for."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
