"""Module: a tree of parameters, buffers and children that can be called.

A child does not know its parent, so deleting a module frees its memory at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from .. import dtypes, scope
from ..autograd.grad_mode import no_grad
from ..autograd.gradients import clear_gradient
from ..autograd.hooks import RemovableHandle
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..errors import NotOfferedError, clear_frames
from ..functional import creation
from ..interrupts import LiveObjects
from ..scope import local
from . import state
from .hooks import call_with_hooks, hooked
from .parameter import Parameter
from .tree import Tree

__all__ = ("Module",)


def _no_forward(self: Module, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')


class Module(Tree):
    """Base class of all layers and networks: subclasses give ``__init__`` and ``forward``.

    Attributes:
        training: True after :meth:`train`, False after :meth:`eval`.
    """

    training: bool
    forward: Callable[..., Any] = _no_forward
    _version = 1
    _shown: tuple[str, ...] = ()  # attributes that the repr shows
    _no_cast = ""  # why its dtype cannot change, if it cannot
    _known_as = ""  # the class name from before a wrapper changed the class: paths start with it
    _living = LiveObjects()  # all modules that exist

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        Module._living.add(self)
        return self

    # --- being called -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if scope.listeners:
                return self._listened(args, kwargs)
            if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
                return call_with_hooks(self, args, kwargs)
            return self.forward(*args, **kwargs)
        except BaseException as error:
            clear_frames(error)
            del args, kwargs  # the traceback refers to this frame: it must not keep the input
            raise

    def _listened(self, args: tuple, kwargs: dict) -> Any:
        """The call while there is a listener: it sets ``scope.local.module``, the place in the network."""
        outer = local.caller, local.module, local.phase
        if outer[0] is None:
            for listener in scope.listeners:
                listener.called(self)
        local.caller, local.module = self, self._path_in(*outer[:2])
        local.phase = "forward" if outer[2] == "user" else outer[2]
        try:
            return call_with_hooks(self, args, kwargs) if hooked(self) else self.forward(*args, **kwargs)
        finally:
            local.caller, local.module, local.phase = outer

    def _path_in(self, parent: Module | None, path: str) -> str:
        """This module's dotted path: the outermost module's class name, then attribute names."""
        if parent is None:
            return self._root_name()
        if parent is self:
            return path
        level = [(path, parent)]
        while level:  # level by level, because it is mostly a child, or in a list that is one
            level = [
                (f"{place}.{name}", module)
                for place, outer in level
                for name, module in outer._modules.copy().items()  # another thread may add to it
                if module is not None
            ]
            for place, module in level:
                if module is self:
                    return place
        return f"{path}.{type(self).__name__}"  # made during the call, and not registered

    def _root_name(self) -> str:
        """The name that paths start with: the class name, or the one from before a wrapper changed the class."""
        return self._known_as or type(self).__name__

    # --- modes ------------------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set ``training`` of this module and all below: dropout drops, and batch norm uses the batch's statistics.

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
            clear_gradient(parameter, set_to_none)

    # --- dtype and device -------------------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the memory of each parameter, gradient and buffer by ``fn`` of it. Parameters stay the same objects."""
        seen: set[int] = set()
        with no_grad():
            for module in self.modules() if recurse else (self,):
                for parameter in module._parameters.values():
                    if parameter is not None and id(parameter) not in seen:
                        seen.add(id(parameter))
                        _replace(parameter, fn)
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = changed = fn(buffer)
                        if changed is not buffer:
                            scope.report_role(None, "BUFFER", buffer)
                            scope.report_role(changed.array, "BUFFER", changed)
        return self

    def to(
        self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> Self:
        """Move parameters and buffers to a device, or cast the floating ones to a floating dtype, or both; in place.

        Args:
            args: a device, a dtype, both, or a tensor whose device and dtype to take.
            memory_format: changes nothing; ``channels_last`` warns once that it does not.

        Raises:
            TypeError: the dtype is not floating.
        """
        creation.formatted(memory_format)
        for arg in args:
            if isinstance(arg, Tensor):
                dtype, device = arg.dtype, arg.device
            elif isinstance(arg, Device) or (isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda", "meta")):
                device = arg
            elif arg is not None and not isinstance(arg, bool):
                dtype = arg
        if dtype is not None and not dtypes.is_floating(dtype := dtypes.as_dtype(dtype)):
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={dtype}")
        if dtype is not None:
            self._refuse_cast()
        return self._apply(lambda t: t.to(device=device, dtype=dtype if t.is_floating_point() else None))

    def _refuse_cast(self) -> None:
        """Raise NotOfferedError if the dtype of a module inside cannot change."""
        for module in self.modules():
            if module._no_cast:
                raise NotOfferedError(f"{type(module).__name__}: {module._no_cast}")

    def _cast(self, dtype: np.dtype) -> Self:
        self._refuse_cast()
        return self._apply(lambda t: t.to(dtype=dtype) if t.is_floating_point() else t)

    def half(self) -> Self:
        """Cast floating parameters and buffers to float16."""
        return self._cast(dtypes.float16)

    def float(self) -> Self:
        """Cast floating parameters and buffers to float32."""
        return self._cast(dtypes.float32)

    def double(self) -> Self:
        """Cast floating parameters and buffers to float64."""
        return self._cast(dtypes.float64)

    def bfloat16(self) -> Self:
        """Cast floating parameters and buffers to bfloat16."""
        return self._cast(dtypes.bfloat16)

    def type(self, dst_type: Any) -> Self:
        """Cast all parameters and buffers, also integer ones, to ``dst_type``."""
        self._refuse_cast()
        return self._apply(lambda t: t.to(dtype=dst_type))

    def cpu(self) -> Self:
        """Move to the host."""
        return self._apply(lambda t: t.cpu())

    def cuda(self, device: Any = None) -> Self:
        """Move to a GPU, by default the first."""
        return self._apply(lambda t: t.cuda(device))

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Uninitialised parameters and buffers on ``device``: for a network made on ``meta``, before its state is loaded."""
        where = Device(device)
        return self._apply(lambda t: creation.empty_like(t, device=where), recurse)

    def share_memory(self) -> Self:
        """Not offered: processes do not share tensors here."""
        raise NotOfferedError("share_memory is not offered: save() and load() the state dict instead")

    # --- hooks ------------------------------------------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before forward. If it returns something, that replaces the arguments.

        Args:
            prepend: call it before the other hooks.
            with_kwargs: call ``hook(module, args, kwargs)``, which may return both.
        """
        return _add_hook(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after forward. If it returns something, that replaces the output.

        Args:
            with_kwargs: call ``hook(module, args, kwargs, output)``.
            always_call: call it also if forward raised, with output ``None``.
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
        """Parameters and persistent buffers by dotted path. They share the module's memory.

        Args:
            keep_vars: return the parameters themselves, not detached tensors.
        """
        if args:  # PyTorch's old positional form
            given: Any = (*args, *(destination, prefix, keep_vars)[len(args) :])
            destination, prefix, keep_vars = given
        return state.state_dict(self, destination, prefix, keep_vars)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> state.IncompatibleKeys:
        """Copy the values of a state dict into parameters and buffers. If something does not fit, nothing is changed.

        Nothing is changed either if a hook or a ``set_extra_state`` raises. If there are any, loading keeps a copy of the
        tensors, of each module's attributes, and of the dicts, lists and sets among these; deeper objects are not restored.

        Args:
            strict: missing and unexpected keys are errors.
            assign: use the tensors of the dict, with their dtype and device, instead of copying.

        Returns:
            ``missing_keys`` and ``unexpected_keys``.

        Raises:
            StateDictError: something does not fit; one message lists all of it.
        """
        return state.load_state_dict(self, state_dict, strict, assign)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load this module's own values. A subclass may override this, and call it."""
        state.load_own(self, state_dict, prefix, local_metadata, missing_keys, unexpected_keys, error_msgs)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put this module's own values into ``destination``. A subclass may override this, and call it."""
        state.save_own(self, destination, prefix, keep_vars)

    def get_extra_state(self) -> Any:
        """State for the state dict that is not a tensor; ``set_extra_state`` receives it. Subclasses override both."""
        raise NotOfferedError(f"{type(self).__name__} has no extra state: give it get_extra_state and set_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Restore the result of :meth:`get_extra_state`."""
        raise NotOfferedError(f"{type(self).__name__} has no extra state: give it get_extra_state and set_extra_state")

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before this module's part of a state dict is made."""
        return _add_hook(self.__dict__.setdefault("_state_dict_pre_hooks", {}), hook, False)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata)`` afterwards: it may change the dict in place."""
        return _add_hook(self.__dict__.setdefault("_state_dict_hooks", {}), (hook, False), False)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """The older form of :meth:`register_state_dict_post_hook`: its result, if any, replaces the dict."""
        return _add_hook(self.__dict__.setdefault("_state_dict_hooks", {}), (hook, True), False)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call a hook before this module's keys are looked up: it may rename keys of the dict in place.

        Args:
            hook: called as ``hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
                error_msgs)``.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(self, hook: Callable[..., Any], with_module: bool = False) -> RemovableHandle:
        """The older form: without the module."""
        table = self.__dict__.setdefault("_load_state_dict_pre_hooks", {})
        return _add_hook(table, (hook, with_module), False)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` after loading: it may change both lists in place."""
        return _add_hook(self.__dict__.setdefault("_load_state_dict_post_hooks", {}), hook, False)

    # --- text -------------------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """The text between the brackets of this layer's repr: ``name=value`` of the attributes in ``_shown``.

        Of ``*name`` the value alone is shown, and of a bias whether there is one.
        """
        values = {name: getattr(self, name.lstrip("*")) for name in self._shown}
        if "bias" in values:
            values["bias"] = values["bias"] is not None
        return ", ".join(f"{value}" if name[0] == "*" else f"{name}={value}" for name, value in values.items())

    def _shown_unless(self, **defaults: Any) -> str:
        """``, name=value`` for the attributes that differ from these defaults: a part of the text of :meth:`extra_repr`."""
        found = {name: getattr(self, name) for name in defaults}
        return "".join(f", {name}={value}" for name, value in found.items() if value != defaults[name])

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
    later = dict(hooks) if prepend else {}
    for key in later:
        del hooks[key]
    handle = RemovableHandle(hooks, entry)
    hooks.update(later)
    return handle


def _replace(parameter: Parameter, fn: Callable[[Tensor], Tensor]) -> None:
    """Give a parameter and its gradient new memory."""
    new = fn(parameter.data)
    if new.array is parameter.array:
        return
    grad = parameter.grad
    parameter.grad = None
    parameter.data = new
    scope.report_role(parameter.array, "PARAMETER", parameter)
    if grad is not None:
        grad.data = fn(grad.data)
        if parameter.grad_dtype not in (None, grad.dtype):  # set by the user: it does not change with the parameter's dtype
            grad.data = grad.data.to(parameter.grad_dtype)
        parameter.grad = grad
