"""Parameters that are computed of others: ``torch.nn.utils.parametrizations``."""

from __future__ import annotations

from typing import Any, TypeVar

from ..containers import ModuleDict
from ..module import Module
from .weight_norm import WeightParts

M = TypeVar("M", bound=Module)


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """``module.name`` becomes ``g * v / |v|``, computed at each use.

    g and v are the parameters ``parametrizations.NAME.original0`` and ``original1``.

    Saves: what a norm, a division and a product save: three times the weight.

    Args:
        dim: a length for each entry of it; ``None``: one length.

    Raises:
        RuntimeError: it was done already.
    """
    lists = getattr(module, "parametrizations", None)
    if lists is not None and name in lists:
        raise RuntimeError(f"{name} of {type(module).__name__} is parametrized already")
    weight = getattr(module, name)
    del module._parameters[name]
    if lists is None:
        lists = ModuleDict()
        module.parametrizations = lists
    lists[name] = WeightParts(weight, dim)
    kind = type(module)

    def computed(self: Any) -> Any:
        return self.parametrizations[name]()

    title = kind.__name__ if kind.__name__.startswith("Parametrized") else f"Parametrized{kind.__name__}"
    of_class: Any = module
    of_class.__class__ = type(title, (kind,), {name: property(computed)})
    return module


def __getattr__(name: str) -> object:
    from ...absent import lacking

    raise lacking(name, f"nn.utils.parametrizations.{name} is not offered: compute the weight in forward, or use weight_norm")
