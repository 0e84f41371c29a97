"""Module: a tree of parameters, buffers and children that can be called.

A child does not know its parent, so deleting a module frees its memory at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from .. import dtypes, scope
from ..autograd.grad_mode import no_grad
from ..autograd.tensor import RemovableHandle, Tensor
from ..devices import device as Device
from ..errors import NotOfferedError
from ..functional import creation
from ..scope import local
from . import state
from .hooks import call_with_hooks, hooked
from .parameter import Parameter, told


class _Running(threading.local):
    """The module whose forward runs in this thread, known only while somebody listens."""

    module: Module | None = None


_running = _Running()


class Module:
    """Base class of all layers and networks: subclasses give ``__init__`` and ``forward``.

    Attributes:
        training: True after :meth:`train`, False after :meth:`eval`.
    """

    training: bool
    forward: Callable[..., Any]
    _version = 1
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent_buffers_set: set[str]
    _forward_hooks: dict
    _forward_pre_hooks: dict
    _backward_hooks: dict
    _backward_pre_hooks: dict

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            raise TypeError(f"{type(self).__name__}.__init__() got unexpected arguments {args or sorted(kwargs)}")
        self.__dict__.update(
            training=True,
            _parameters={},
            _buffers={},
            _modules={},
            _non_persistent_buffers_set=set(),
            _forward_hooks={},
            _forward_pre_hooks={},
            _backward_hooks={},
            _backward_pre_hooks={},
        )

    # --- being called -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if scope.listeners:
            return self._listened(args, kwargs)
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return call_with_hooks(self, args, kwargs)
        return self.forward(*args, **kwargs)

    def _listened(self, args: tuple, kwargs: dict) -> Any:
        """The call while somebody listens: ``scope.local.module`` says where in the network we are."""
        outer = _running.module, local.module
        _running.module, local.module = self, self._path_in(*outer)
        try:
            return call_with_hooks(self, args, kwargs) if hooked(self) else self.forward(*args, **kwargs)
        finally:
            _running.module, local.module = outer

    def _path_in(self, parent: Module | None, path: str) -> str:
        """This module's dotted path: the outermost module's class name, then attribute names."""
        if parent is None:
            return type(self).__name__
        for name, module in parent.named_modules(remove_duplicate=False):
            if module is self:
                return f"{path}.{name}" if name else path
        return f"{path}.{type(self).__name__}"  # made on the way, registered nowhere

    def __getattr__(self, name: str) -> Any:
        if name == "forward":
            raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')
        found = self.__dict__
        for table in ("_parameters", "_buffers", "_modules"):
            if table in found and name in found[table]:
                return found[table][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    # --- registration -----------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        found = self.__dict__
        if isinstance(value, Parameter):
            self._ready("parameters")
            self._forget(name, keep="_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._ready("module")
            self._forget(name, keep="_modules")
            found["_modules"][name] = value
        elif name in found.get("_parameters", ()):
            self._only_none(value, name, "parameter", "Parameter")
            found["_parameters"][name] = None
        elif name in found.get("_modules", ()):
            self._only_none(value, name, "child module", "Module")
            found["_modules"][name] = None
        elif name in found.get("_buffers", ()):
            if value is not None and not isinstance(value, Tensor):
                self._only_none(value, name, "buffer", "Tensor")
            found["_buffers"][name] = value
            if value is not None:
                told(value, "BUFFER")
        else:
            object.__setattr__(self, name, value)

    def _ready(self, what: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")

    def _only_none(self, value: Any, name: str, kind: str, expected: str) -> None:
        if value is not None:
            raise TypeError(f"cannot assign '{type(value).__name__}' as {kind} '{name}' (nn.{expected} or None expected)")

    def _forget(self, name: str, keep: str) -> None:
        """Take ``name`` away wherever it is, except in the table where it keeps its place."""
        found = self.__dict__
        found.pop(name, None)
        for table in ("_parameters", "_buffers", "_modules"):
            if table != keep:
                found[table].pop(name, None)
        found["_non_persistent_buffers_set"].discard(name)

    def __delattr__(self, name: str) -> None:
        for table in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = [*object.__dir__(self), *self._parameters, *self._modules, *self._buffers]
        return sorted({name for name in names if not name[:1].isdigit()})

    def _check_name(self, kind: str, name: Any, table: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got: {name}')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[table]:
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Make ``param`` a parameter of this module; ``None`` keeps the name and holds nothing.

        Raises:
            KeyError: the name is empty, has a dot, or is taken by something else.
            TypeError: it is not a Parameter.
        """
        self._check_name("parameter", name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type(param).__name__}' object to parameter '{name}' (nn.Parameter or None required)"
            )
        if param is not None and param.grad_fn is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created explicitly; "
                "compute it in forward() instead."
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Make ``tensor`` part of this module's state without being a parameter.

        Args:
            persistent: whether it is part of the state dict.

        Raises:
            KeyError, TypeError: as :meth:`register_parameter`.
        """
        self._check_name("buffer", name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"cannot assign '{type(tensor).__name__}' object to buffer '{name}' (Tensor or None required)")
        self._buffers[name] = tensor
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)
        if tensor is not None:
            told(tensor, "BUFFER")

    def add_module(self, name: str, module: Module | None) -> None:
        """Make ``module`` a child of this one.

        Raises:
            KeyError, TypeError: as :meth:`register_parameter`.
        """
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name("module", name, "_modules")
        self._modules[name] = module

    register_module = add_module

    def get_submodule(self, target: str) -> Module:
        """The descendant of a dotted path; the empty path is this module.

        Raises:
            AttributeError: there is none.
        """
        module: Any = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a dotted path.

        Raises:
            AttributeError: there is none.
        """
        return self._get(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of a dotted path.

        Raises:
            AttributeError: there is none.
        """
        return self._get(target, "_buffers", "a buffer")

    def _get(self, target: str, table: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
        if name not in module.__dict__[table]:
            raise AttributeError(f"`{name}` is not {what}")
        return module.__dict__[table][name]

    # --- walking ----------------------------------------------------------------------------------------------------------

    def named_modules(
        self, memo: set | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it with their dotted paths, parents first."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct children with their names, each once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct children, each once."""
        for _, module in self.named_children():
            yield module

    def _named_tensors(self, table: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        seen = set()
        for path, module in modules:
            for name, tensor in module.__dict__[table].items():
                if tensor is None or id(tensor) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(tensor))
                yield (f"{path}.{name}" if path else name), tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters with their dotted paths; shared ones once, unless ``remove_duplicate`` is False."""
        return self._named_tensors("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers with their dotted paths."""
        return self._named_tensors("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call ``fn`` on every module below, children before parents, then on this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # --- modes ------------------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set ``training`` here and below: dropout drops and batch norm uses the batch's statistics.

        Raises:
            ValueError: ``mode`` is not a bool.
        """
        if not isinstance(mode, bool):
            raise ValueError(f"training mode is expected to be boolean, found {mode!r}")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Self:
        """``train(False)``."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set ``requires_grad`` of all parameters."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or fill them with 0."""
        for parameter in self.parameters():
            grad = parameter.grad
            if grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                grad.detach_()
                grad.device.kernels.fill(0, out=grad.array)
                grad.storage.written("zero_grad")

    # --- dtype and device -------------------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """Replace the memory of every parameter, gradient and buffer by ``fn`` of it; parameters stay the objects they are."""
        seen: set[int] = set()
        with no_grad():
            for module in self.modules():
                for parameter in module._parameters.values():
                    if parameter is not None and id(parameter) not in seen:
                        seen.add(id(parameter))
                        _replace(parameter, fn)
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = changed = fn(buffer)
                        if changed is not buffer:
                            told(changed, "BUFFER")
        return self

    def to(self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False) -> Self:
        """Move parameters and buffers to a device, or cast the floating ones to a floating dtype, or both; in place.

        Args:
            args: a device, a dtype, both, or a tensor whose device and dtype to take.

        Raises:
            TypeError: the dtype is not floating.
        """
        for arg in args:
            if isinstance(arg, Tensor):
                dtype, device = arg.dtype, arg.device
            elif isinstance(arg, Device) or (isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda", "meta")):
                device = arg
            elif arg is not None and not isinstance(arg, bool):
                dtype = arg
        if dtype is not None and not dtypes.is_floating(dtype := dtypes.as_dtype(dtype)):
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={dtype}")
        return self._apply(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None))

    def _cast(self, dtype: np.dtype) -> Self:
        return self._apply(lambda t: t.to(dtype=dtype) if t.is_floating_point() else t)

    def half(self) -> Self:
        """Floating parameters and buffers in float16."""
        return self._cast(dtypes.float16)

    def float(self) -> Self:
        """Floating parameters and buffers in float32."""
        return self._cast(dtypes.float32)

    def double(self) -> Self:
        """Floating parameters and buffers in float64."""
        return self._cast(dtypes.float64)

    def type(self, dst_type: Any) -> Self:
        """All parameters and buffers, integer ones too, in ``dst_type``."""
        return self._apply(lambda t: t.to(dtype=dst_type))

    def cpu(self) -> Self:
        """On the host."""
        return self._apply(lambda t: t.cpu())

    def cuda(self, device: Any = None) -> Self:
        """On a GPU, the first unless named."""
        return self._apply(lambda t: t.cuda(device))

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Uninitialised parameters and buffers on ``device``: for a network made on ``meta``, before its state is loaded."""
        where = Device(device)
        if recurse:
            return self._apply(lambda t: creation.empty_like(t, device=where))
        with no_grad():
            for parameter in self.parameters(recurse=False):
                _replace(parameter, lambda t: creation.empty_like(t, device=where))
            for name, buffer in list(self.named_buffers(recurse=False)):
                self._buffers[name] = creation.empty_like(buffer, device=where)
        return self

    def share_memory(self) -> Self:
        """Not offered: processes do not share tensors here."""
        raise NotOfferedError("share_memory is not offered: save() and load() the state dict instead")

    # --- hooks ------------------------------------------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before forward; what it returns, if anything, takes the place of the arguments.

        Args:
            prepend: before the hooks that are there.
            with_kwargs: call ``hook(module, args, kwargs)``, which may return both.
        """
        return _add_hook(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after forward; what it returns, if anything, takes the place of the output.

        Args:
            with_kwargs: call ``hook(module, args, kwargs, output)``.
            always_call: call it, with output ``None``, also when forward raised.
        """
        return _add_hook(self._forward_hooks, (hook, with_kwargs, always_call), prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs are known; it may replace them."""
        return _add_hook(self._backward_hooks, hook, prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` before this module's backward; it may replace the gradients of the outputs."""
        return _add_hook(self._backward_pre_hooks, hook, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Not offered: PyTorch deprecates it, because it sees the wrong gradients."""
        raise NotOfferedError("register_backward_hook is not offered: use register_full_backward_hook")

    # --- state ------------------------------------------------------------------------------------------------------------

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> OrderedDict[str, Any]:
        """Parameters and persistent buffers by dotted path, in the memory of this module.

        Args:
            keep_vars: the parameters themselves, not detached.
        """
        if args:  # PyTorch's old positional form
            given: Any = (*args, *(destination, prefix, keep_vars)[len(args) :])
            destination, prefix, keep_vars = given
        return state.state_dict(self, destination, prefix, keep_vars)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> state.IncompatibleKeys:
        """Copy the values of a state dict into parameters and buffers; nothing is copied if something does not fit.

        Args:
            strict: keys that are missing or that nobody expects are errors.
            assign: take the tensors themselves, with their dtype and device, instead of copying.

        Returns:
            ``missing_keys`` and ``unexpected_keys``.

        Raises:
            StateDictError: all that does not fit, in one message.
        """
        return state.load_state_dict(self, state_dict, strict, assign)

    # --- text -------------------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What stands between the brackets of this layer's text: subclasses say their sizes here."""
        return ""

    def _get_name(self) -> str:
        return self.__class__.__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {_indent(repr(module))}" for name, module in self._modules.items()]
        if len(lines) == 1 and not children:
            return f"{self._get_name()}({extra})"
        if not lines and not children:
            return f"{self._get_name()}()"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines + children) + "\n)"


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")


def _add_hook(hooks: dict, entry: Any, prepend: bool) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    if prepend:
        later = dict(hooks)
        hooks.clear()
        hooks[handle.key] = entry
        hooks.update(later)
    else:
        hooks[handle.key] = entry
    return handle


def _replace(parameter: Parameter, fn: Callable[[Tensor], Tensor]) -> None:
    """Give a parameter and its gradient new memory."""
    new = fn(parameter.data)
    if new.array is parameter.array:
        return
    grad = parameter.grad
    parameter.grad = None
    parameter.data = new
    told(parameter, "PARAMETER")
    if grad is not None:
        grad.data = fn(grad.data)
        told(grad, "GRADIENT")
        parameter.grad = grad
