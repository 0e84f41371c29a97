"""A module as a tree: its parameters, buffers and children by name, and walks through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from .. import scope
from ..autograd.tensor import Tensor
from . import einops
from .parameter import Buffer, Parameter

Module = Any  # defined in module.py, which builds on this file
_TABLES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Tree:
    """The contents of a module: three tables of names. ``Module`` adds calling, modes, devices, hooks and state."""

    training: bool
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
        self.__dict__.update(training=True, _non_persistent_buffers_set=set(), **{name: {} for name in (*_TABLES, *_HOOKS)})

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__  # without a loop: every forward runs this
        if (table := found.get("_parameters")) is not None and name in table:
            return table[name]
        if (table := found.get("_modules")) is not None and name in table:
            return table[name]
        if (table := found.get("_buffers")) is not None and name in table:
            return table[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    # --- registration -----------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        found = self.__dict__
        if isinstance(value, Parameter):
            self._ready("parameters")
            self._forget(name, keep="_parameters")
            self.register_parameter(name, value)
        elif name in found.get("_parameters", ()):
            self._only_none(value, name, "parameter", "Parameter")
            found["_parameters"][name] = None
        elif isinstance(value, Tree):
            self._ready("module")
            self._forget(name, keep="_modules")
            found["_modules"][name] = value
        elif name in found.get("_modules", ()):
            self._only_none(value, name, "child module", "Module")
            found["_modules"][name] = None
        elif isinstance(value, Buffer):
            self._ready("buffer")
            _no_buffer(found["_buffers"].get(name))
            self._forget(name, keep="_buffers")
            self.register_buffer(name, value, value.persistent)
        elif name in found.get("_buffers", ()):
            if value is not None and not isinstance(value, Tensor):
                self._only_none(value, name, "buffer", "Tensor")
            _no_buffer(found["_buffers"][name])
            found["_buffers"][name] = value
            if value is not None:
                scope.report_role(value.array, "BUFFER", value)
        else:
            object.__setattr__(self, name, value)

    def _ready(self, what: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")

    def _only_none(self, value: Any, name: str, kind: str, expected: str) -> None:
        if value is not None:
            raise TypeError(f"cannot assign '{type(value).__name__}' as {kind} '{name}' (nn.{expected} or None expected)")

    def _forget(self, name: str, keep: str) -> None:
        """Remove ``name`` from every table but the one in which it stays."""
        found = self.__dict__
        found.pop(name, None)
        for table in _TABLES:
            if table != keep:
                found[table].pop(name, None)
        found["_non_persistent_buffers_set"].discard(name)

    def __delattr__(self, name: str) -> None:
        for table in _TABLES:
            if name in self.__dict__[table]:
                gone = self.__dict__[table].pop(name)
                if table == "_buffers":
                    _no_buffer(gone)
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = [*object.__dir__(self), *self._parameters, *self._modules, *self._buffers]
        return sorted({name for name in names if not name[:1].isdigit()})

    def _check_name(self, kind: str, name: Any, table: str) -> None:
        self._ready(kind)
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got: {name}')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[table]:
            raise KeyError(f"attribute '{name}' already exists")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Make ``param`` a parameter of this module; ``None`` registers the name without a parameter.

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the state of a copy or a pickle, and report its parameters and buffers to listeners."""
        self.__dict__.update(state)
        for role, table in (("PARAMETER", self._parameters), ("BUFFER", self._buffers)):
            for tensor in table.values():
                if tensor is not None:
                    scope.report_role(tensor.array, role, tensor)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Make ``tensor`` a buffer: part of this module's state, and not a parameter.

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
            scope.report_role(tensor.array, "BUFFER", tensor)

    def add_module(self, name: str, module: Module | None) -> None:
        """Make ``module`` a child of this one. Raises: KeyError, TypeError: as :meth:`register_parameter`."""
        if module is not None and not isinstance(module, Tree):
            module = einops.taken_in(module)
            if not isinstance(module, Tree):
                raise TypeError(f"{type(module).__name__} is not a Module subclass")
        self._check_name("module", name, "_modules")
        self._modules[name] = module

    register_module = add_module

    def get_submodule(self, target: str) -> Module:
        """The descendant of a dotted path; the empty path is this module. Raises: AttributeError: there is none."""
        module: Module = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Tree):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put ``module`` at a dotted path.

        Args:
            strict: raise if there is no module at that path.

        Raises:
            ValueError: the path is empty.
            AttributeError: there is no such place.
        """
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{type(parent).__name__} has no attribute `{name}`")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Tree):
            raise AttributeError(f"`{name}` is not an nn.Module")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a dotted path. Raises: AttributeError: there is none."""
        return self._get(target, "_parameters", "an nn.Parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of a dotted path. Raises: AttributeError: there is none."""
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
        for name, module in self._modules.copy().items():  # another thread's track may walk a module under construction
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all below it, each once, unless ``remove_duplicate`` is False."""
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct children with their names, each once."""
        seen = set()
        for name, module in self._modules.copy().items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct children, each once."""
        return (module for _, module in self.named_children())

    def _named_tensors(self, table: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        seen = set()
        for path, module in modules:
            for name, tensor in module.__dict__[table].copy().items():
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
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers with their dotted paths."""
        return self._named_tensors("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Call ``fn`` on every module below, children before parents, then on this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self


def _no_buffer(tensor: Tensor | None) -> None:
    """Report that the tensor is no longer a buffer. It may still be alive."""
    if tensor is not None:
        scope.report_role(None, "BUFFER", tensor)
