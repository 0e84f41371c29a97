"""Converts a PyTorch network: its layers become ours, and its own classes keep their source, with other imports."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import nn
from ..autograd.capsule import on_host
from ..autograd.known import remember
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..devices import dry_run
from ..dtypes import ALL
from ..errors import NotOfferedError, missing
from ..functional.creation import empty
from ..functional.creation import tensor as tensor_of
from ..nn.multihead import NonDynamicallyQuantizableLinear
from ..scope import local
from .torch_code import Code
from .torch_names import Names, NotOffered, is_torchs

_DTYPES = {dtype.name: dtype for dtype in ALL}
"""By PyTorch's names, which are NumPy's."""
_SKIPPED = ("device", "dtype")  # of a constructor: the tensors themselves say it


def from_torch(module: Any, *, device: Any = None) -> nn.Module:
    """Convert ``module`` (a ``torch.nn.Module``) to our layers, in the same mode, with the same names and values.

    A layer of ``torch.nn`` becomes our layer with the same arguments. A user's class becomes a class with the same methods, in
    which ``torch`` and everything that comes from it is replaced by ours, however it was imported. A name of PyTorch's that has
    no counterpart raises when the network uses it. Parameters and buffers on the cpu share memory with PyTorch's: writing one
    writes the other (those that are not contiguous are copied). They are counted as those of a network of ours. Those on
    PyTorch's ``meta`` are on our ``meta``. Gradients stay behind.

    For a prediction convert inside of it, where every tensor counts; ``module`` may be made before, or on PyTorch's ``meta``,
    where it takes no memory::

        def run():
            model = tinygrad_mem.from_torch(module)
            ...  # optimizer and steps, with names of tinygrad_mem

        tinygrad_mem.memory.predict(run).peak

    Args:
        device: "meta" for shapes alone, without memory; by default the devices of PyTorch's tensors.

    Raises:
        NotOfferedError: some part cannot be converted; the message lists all of them. Also later, when the network uses a name
            that has no counterpart.
        TypeError: ``module`` is no ``torch.nn.Module``.
        ModuleNotFoundError: PyTorch is missing: ``pip install torch``.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise missing("torch", "from_torch") from None
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch: expected a torch.nn.Module, found {type(module).__name__}")
    conversion = _Conversion(Names(torch), None if device is None else Device(device))
    if problems := conversion.problems(module):
        raise NotOfferedError("from_torch: what cannot be converted:\n" + "\n".join(f"  {line}" for line in problems))
    return conversion.module(module)


def _of_block(block: Any) -> dict[str, Any]:
    """The arguments of a transformer layer, read from its parts."""
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


_ARGUMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "MultiheadAttention": lambda m: {"bias": m.in_proj_bias is not None, "add_bias_kv": m.bias_k is not None},
    "TransformerEncoderLayer": _of_block,
    "TransformerDecoderLayer": _of_block,
}
"""Arguments of layers that are not attributes of the layer."""

_OF_PARTS = ("Transformer", "TransformerEncoder", "TransformerDecoder", "ParameterList", "ParameterDict")
"""Layers that consist of attributes and parts. Their constructors are not called: they would fill the weights again."""


class _Conversion(Code):
    """One conversion. It remembers what was made, so that shared objects stay shared."""

    def __init__(self, names: Names, device: Device | None) -> None:
        super().__init__(names)
        self.torch, self.device = names.torch, device
        self.internal = vars(self.torch.nn.Module()).keys()  # of the attributes of every module

    def problems(self, module: Any) -> list[str]:
        """The parts that cannot be converted, one line each, with their paths."""
        found = []
        for path, part in module.named_modules():
            where, kind = path or "the network itself", type(part)
            layer = next(base for base in kind.__mro__ if is_torchs(base))
            ours = self._ours(layer) and self.class_of(kind)
            if ours is None:
                found.append(f"{where}: there is no {layer.__name__} here")
            elif isinstance(ours, NotOffered):
                found.append(f"{where}: {ours.what}, which there is not here")
            if getattr(part, "proj_size", 0) and is_torchs(kind):
                found.append(f"{where}: its projections (proj_size): there are none here")
            if any(getattr(part, f"_{kind}_hooks") for kind in ("forward", "forward_pre", "backward", "backward_pre")):
                found.append(f"{where}: its hooks are functions of PyTorch's; add your own to the result")
        for path, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if problem := self._problem(tensor):
                found.append(f"{path}: {problem}")
            if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
                found.append(f"{path}: its hooks are functions of PyTorch's; add your own to the result's")
        return found

    def _problem(self, tensor: Any) -> str:
        if tensor.device.type not in ("cpu", "meta") and self.device is None:
            return f"it is on {tensor.device}; move the network to the cpu first"
        if tensor.layout != self.torch.strided or tensor.is_quantized:
            return f"a {tensor.layout} tensor; dense ones are converted"
        name = str(tensor.dtype).removeprefix("torch.")
        return "" if name in _DTYPES else f"there is no {name} here; convert the network to float32 first"

    def _ours(self, kind: type) -> type | None:
        """Our layer of the same name."""
        if kind.__name__ == NonDynamicallyQuantizableLinear.__name__:
            return NonDynamicallyQuantizableLinear
        found = getattr(nn, kind.__name__, None) if getattr(self.torch.nn, kind.__name__, None) is kind else None
        return found if isinstance(found, type) else None

    # --- values -----------------------------------------------------------------------------------------------------------

    def tensor(self, tensor: Any) -> Tensor:
        """Our tensor over PyTorch's memory, or with a copy of it; once for each tensor."""
        if id(tensor) in self.made:
            return self.made[id(tensor)]
        if problem := self._problem(tensor):
            raise NotOfferedError(f"from_torch: a tensor of shape {list(tensor.shape)}: {problem}")
        # in a prediction, also what has no memory in PyTorch counts
        device = self.device or Device("cpu" if local.dry is not None else tensor.device.type)
        if tensor.device.type == "meta":
            ours = empty(*tensor.shape, dtype=_DTYPES[str(tensor.dtype).removeprefix("torch.")], device=device)
        else:
            values = on_host(tensor.detach().cpu())
            if self.device is None and tensor.device.type == "cpu" and values.flags.c_contiguous:
                ours = Tensor._wrap(device.over(values), device)  # type: ignore[attr-defined]
                remember(values, ours)
            else:
                ours = tensor_of(values, device=device)
        if isinstance(tensor, self.torch.nn.Parameter):
            ours = nn.Parameter(ours, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad and tensor.is_leaf:
            ours.requires_grad_()
        return self.note(tensor, ours)

    # --- modules ----------------------------------------------------------------------------------------------------------

    def module(self, module: Any) -> nn.Module:
        """Convert a module with its parameters, buffers, modules and attributes."""
        if id(module) in self.made:
            return self.made[id(module)]
        kind = type(module)
        ours = self._bare(module)
        if isinstance(ours, NotOffered):
            return self.note(module, ours)
        self.note(module, ours)
        ours.training = module.training
        hides = is_torchs(kind) and kind.__name__ not in _OF_PARTS  # what PyTorch's layer keeps for itself
        for name, value in module.__dict__.items():
            if name not in self.internal and name not in ours.__dict__ and not (hides and name.startswith("_")):
                ours.__dict__[name] = self.value(value)
        for name, value in module._parameters.items():
            ours.register_parameter(name, None if value is None else self.tensor(value))  # type: ignore[arg-type]
        for name, value in module._buffers.items():
            persistent = name not in module._non_persistent_buffers_set
            ours.register_buffer(name, None if value is None else self.tensor(value), persistent=persistent)
        for name, value in module._modules.items():
            ours._modules[name] = None if value is None else self.module(value)  # type: ignore[assignment]
        return ours

    def _bare(self, module: Any) -> Any:
        """Our module without the user's attributes: a layer with PyTorch's arguments, or an object of the user's class."""
        kind = type(module)
        layer = next(base for base in kind.__mro__ if is_torchs(base))
        ours: Any = self._ours(kind) if kind is layer else self.class_of(kind)
        if ours is None:  # a value beside the network, for example of a closure
            ours = NotOffered(f"{kind.__name__} of PyTorch's")
        if isinstance(ours, NotOffered):
            return ours
        made = object.__new__(ours)
        if layer is self.torch.nn.Module or layer.__name__ in _OF_PARTS:
            nn.Module.__init__(made)
        else:  # what the user's class adds to a layer comes after what the layer is
            made.__dict__.update(self._layer(layer, module).__dict__)
        return made

    def _layer(self, kind: type, module: Any) -> nn.Module:
        """Our layer with the arguments of PyTorch's, as far as its attributes show them; made without memory."""
        mine = self._ours(kind)
        assert mine is not None
        arguments = {}
        explicit = _ARGUMENTS.get(kind.__name__, lambda module: {})(module)
        for name, parameter in inspect.signature(mine.__init__).parameters.items():
            if name in ("self", *_SKIPPED) or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            holder = module if hasattr(module, name) else getattr(module, "linear", None)  # a loss that has a layer inside
            if name in explicit:
                arguments[name] = self.value(explicit[name])
            elif hasattr(holder, name) and not inspect.ismethod(getattr(holder, name)):
                value = getattr(holder, name)
                is_flag = name == "bias" and not isinstance(value, bool)
                arguments[name] = value is not None if is_flag else self.value(value)
        with dry_run():  # apart from a prediction around it
            return mine(**arguments)
