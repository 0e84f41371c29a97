"""``torch.nn.utils.parametrize``: parameters that modules compute from others at each use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

from ... import absent as _absent
from ...autograd.grad_mode import no_grad
from ...autograd.tensor import Tensor
from ...errors import ArgumentError
from ..containers import ModuleDict, ModuleList
from ..module import Module
from ..parameter import Parameter

M = TypeVar("M", bound=Module)


class ParametrizationList(ModuleList):
    """Modules that compute a value from the tensor ``original``, one after another. A call returns the value."""

    def __init__(self, modules: Any, original: Tensor) -> None:
        super().__init__(modules)
        with no_grad():
            inner = original
            for module in reversed(list(modules)):
                inner = module.right_inverse(inner) if hasattr(module, "right_inverse") else inner
        if isinstance(original, Parameter):
            self.original = original if inner is original else Parameter(inner.detach(), original.requires_grad)
        else:
            self.register_buffer("original", inner)

    def forward(self) -> Tensor:
        """The value."""
        value = self.original
        for module in self:
            value = module(value)
        return value


def compute_by(module: M, name: str, computed: Any) -> M:
    """Make ``module.name`` the result of the module ``computed``, which is put into ``module.parametrizations``."""
    if getattr(module, "parametrizations", None) is None:
        module.parametrizations = ModuleDict()
    lists: Any = module.parametrizations
    lists[name] = computed
    kind = type(module)

    def value(self: Any) -> Any:
        return self.parametrizations[name]()

    title = kind.__name__ if kind.__name__.startswith("Parametrized") else f"Parametrized{kind.__name__}"
    of_class: Any = module
    of_class.__class__ = type(title, (kind,), {name: property(value)})
    return module


def register_parametrization(module: M, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> M:
    """Compute ``module.tensor_name`` at each use: ``parametrization`` of the parameter ``parametrizations.NAME.original``.

    A second one is applied to the result of the first. A method ``right_inverse``, if any, computes the first original.

    Args:
        unsafe: the parametrization may change the shape or the dtype.

    Raises:
        ValueError: there is no such parameter or buffer, or the shape or the dtype changes.
    """
    if is_parametrized(module, tensor_name):
        lists: Any = module.parametrizations
        lists[tensor_name].append(parametrization)
        return module
    original = module._parameters.get(tensor_name, module._buffers.get(tensor_name))
    if original is None:
        raise ArgumentError(f"Module '{module}' does not have a parameter, a buffer, or a parametrized element '{tensor_name}'")
    computed = ParametrizationList([parametrization], original)
    with no_grad():
        found = computed()
    if not unsafe and (found.shape, found.dtype) != (original.shape, original.dtype):
        raise ArgumentError(
            f"Registering a parametrization may not change the shape or the dtype of the tensor, unless `unsafe` flag is "
            f"enabled: {tensor_name}, {list(original.shape)} of {original.dtype}, became {list(found.shape)} of {found.dtype}"
        )
    (module._parameters if tensor_name in module._parameters else module._buffers).pop(tensor_name)
    return compute_by(module, tensor_name, computed)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """True if ``module.tensor_name``, or by default any tensor of the module, is computed from other parameters."""
    lists: Any = getattr(module, "parametrizations", None)
    if not isinstance(lists, ModuleDict):
        return False
    return bool(len(lists)) if tensor_name is None else tensor_name in lists


def remove_parametrizations(module: M, tensor_name: str, leave_parametrized: bool = True) -> M:
    """Make ``module.tensor_name`` a parameter again, with the present computed value or with the original.

    Raises:
        ValueError: it is not parametrized.
    """
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(f"Module {module} does not have a parametrization on {tensor_name}")
    lists: Any = module.parametrizations
    computed = lists[tensor_name]
    with no_grad():
        value = computed() if leave_parametrized else computed.original
    del lists[tensor_name]
    of_class: Any = module
    kinds = type(module).__mro__
    before = next(kind for kind in kinds if not kind.__name__.startswith("Parametrized"))
    rest = {n: p for n, p in vars(kinds[0]).items() if isinstance(p, property) and n != tensor_name}
    of_class.__class__ = type(kinds[0].__name__, kinds[1:2], rest) if len(lists) else before
    if not len(lists):
        del module._modules["parametrizations"]
    module.register_parameter(tensor_name, Parameter(value.detach()))
    return module


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """A block in which PyTorch computes each value once. Here it is computed at each use, with the same result."""
    yield


__getattr__ = _absent.refuses("nn.utils.parametrize")
