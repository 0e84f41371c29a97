"""``torch.nn.utils.parametrize``: parameters that modules compute from others at each use."""

from __future__ import annotations

from typing import Any, TypeVar

from ... import absent as _absent
from ...autograd.grad_mode import no_grad
from ...autograd.tensor import Tensor
from ...errors import ArgumentError, NotOfferedError
from ...scope import local, setting
from ..containers import ModuleDict, ModuleList
from ..module import Module
from ..parameter import Parameter

M = TypeVar("M", bound=Module)


class ParametrizationList(ModuleList):
    """Modules that compute a value from the tensor ``original``, one after another. A call returns the value.

    ``original`` is the same object as before, with new values: optimizers and other modules that hold it need no change.
    """

    def __init__(self, modules: Any, original: Tensor) -> None:
        super().__init__(modules)
        with no_grad():
            inner = original
            for module in reversed(list(modules)):
                inner = _inverse(module, inner) if hasattr(module, "right_inverse") else inner
        if inner is not original:
            original.data = inner.detach()
        _put(self, "original", original)

    def right_inverse(self, value: Tensor) -> None:
        """Set ``original``, so that a call returns ``value``.

        Raises:
            RuntimeError: a module has no ``right_inverse``, or the dtype would change.
        """
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise ArgumentError(
                        f"parametrization {type(module).__name__} does not implement right_inverse: assign to its original"
                    )
                value = _inverse(module, value)
        if value.dtype != self.original.dtype:
            raise ArgumentError(f"an original of {self.original.dtype} would become {value.dtype}: assign a value of its dtype")
        self.original.data = value.detach()

    def forward(self) -> Tensor:
        """The value."""
        value = self.original
        for module in self:
            value = module(value)
        return value


def _inverse(module: Any, value: Tensor) -> Tensor:
    found = module.right_inverse(value)
    if not isinstance(found, Tensor):
        raise NotOfferedError(
            f"parametrization {type(module).__name__}: right_inverse must return one tensor, found {type(found).__name__}; "
            "several originals are not offered"
        )
    return found


def _put(module: Module, name: str, tensor: Tensor) -> None:
    """Register ``tensor`` as a parameter or as a buffer, whichever it is."""
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def compute_by(module: M, name: str, computed: Any) -> M:
    """Make ``module.name`` the result of the module ``computed``, which is put into ``module.parametrizations``."""
    if getattr(module, "parametrizations", None) is None:
        module.parametrizations = ModuleDict()
    lists: Any = module.parametrizations
    lists[name] = computed
    kind = type(module)

    def value(self: Any) -> Any:
        computed, known = self.parametrizations[name], local.parametrized
        if known is None:
            return computed()
        if computed not in known:
            known[computed] = computed()
        return known[computed]

    def assign(self: Any, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    title = kind.__name__ if kind.__name__.startswith("Parametrized") else f"Parametrized{kind.__name__}"
    of_class: Any = module
    of_class.__class__ = type(title, (kind,), {name: property(value, assign)})
    return module


def register_parametrization(module: M, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> M:
    """Compute ``module.tensor_name`` at each use: ``parametrization`` of the parameter ``parametrizations.NAME.original``.

    A second one is applied to the result of the first. A method ``right_inverse``, if any, computes the first original, and the
    one of a value that is assigned to ``module.tensor_name``.

    Args:
        unsafe: the parametrization may change the shape or the dtype.

    Raises:
        ValueError: there is no such parameter or buffer, or the shape or the dtype changes; nothing was changed.
        NotOfferedError: it is computed by ``parametrizations.weight_norm``.
    """
    if is_parametrized(module, tensor_name):
        lists: Any = module.parametrizations
        if not isinstance(lists[tensor_name], ParametrizationList):
            raise NotOfferedError(f"a parametrization after weight_norm is not offered: register it for {tensor_name} first")
        with no_grad():
            value = lists[tensor_name]()
            _check(tensor_name, parametrization(value), value, unsafe)
        lists[tensor_name].append(parametrization.train(module.training))
        return module
    original = module._parameters.get(tensor_name, module._buffers.get(tensor_name))
    if original is None:
        raise ArgumentError(f"Module '{module}' does not have a parameter, a buffer, or a parametrized element '{tensor_name}'")
    before = original.data
    try:
        computed = ParametrizationList([parametrization], original).train(module.training)
        with no_grad():
            _check(tensor_name, computed(), before, unsafe)
    except BaseException:
        original.data = before
        raise
    (module._parameters if tensor_name in module._parameters else module._buffers).pop(tensor_name)
    return compute_by(module, tensor_name, computed)


def _check(name: str, found: Any, before: Tensor, unsafe: bool) -> None:
    """Raises: ArgumentError: a parametrization returned no tensor; or, unless ``unsafe``, one of another shape or dtype."""
    if not isinstance(found, Tensor):
        raise ArgumentError(f"A parametrization must return a tensor. Got {type(found).__name__} for {name}")
    if not unsafe and (found.shape, found.dtype) != (before.shape, before.dtype):
        raise ArgumentError(
            f"Registering a parametrization may not change the shape or the dtype of the tensor, unless `unsafe` flag is "
            f"enabled: {name}, {list(before.shape)} of {before.dtype}, became {list(found.shape)} of {found.dtype}"
        )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """True if ``module.tensor_name``, or by default any tensor of the module, is computed from other parameters."""
    lists: Any = getattr(module, "parametrizations", None)
    if not isinstance(lists, ModuleDict):
        return False
    return bool(len(lists)) if tensor_name is None else tensor_name in lists


def remove_parametrizations(module: M, tensor_name: str, leave_parametrized: bool = True) -> M:
    """Make ``module.tensor_name`` the original tensor again, with the present computed value or with its own.

    Raises:
        ValueError: it is not parametrized; or it has several originals, of which none is to be left.
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(f"Module {module} does not have a parametrization on {tensor_name}")
    lists: Any = module.parametrizations
    computed = lists[tensor_name]
    original: Any = getattr(computed, "original", None)
    if original is None and not leave_parametrized:
        raise ArgumentError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of several tensors"
        )
    with no_grad():
        value: Any = computed() if leave_parametrized else original
    if original is None:
        original = Parameter(value, any(p.requires_grad for p in computed.parameters()))
    elif value is not original:
        original.data = value.detach()
    del lists[tensor_name]
    of_class: Any = module
    kinds = type(module).__mro__
    before = next(kind for kind in kinds if not kind.__name__.startswith("Parametrized"))
    rest = {n: p for n, p in vars(kinds[0]).items() if isinstance(p, property) and n != tensor_name}
    of_class.__class__ = type(kinds[0].__name__, kinds[1:2], rest) if len(lists) else before
    if not len(lists):
        del module._modules["parametrizations"]
    _put(module, tensor_name, original)
    return module


def cached() -> setting:
    """A block in which each value is computed once, at its first use: ``with cached(): ...``. It is kept until the end."""
    return setting(parametrized={} if local.parametrized is None else local.parametrized)


__getattr__ = _absent.refuses("nn.utils.parametrize")
