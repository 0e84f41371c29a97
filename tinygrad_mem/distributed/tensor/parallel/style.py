"""``parallelize_module`` and the ways to divide a layer, with PyTorch's names and arguments.

PyTorch's layers take DTensors. Here a rank's part is an ordinary tensor, and a layout says what the caller gives and wants: the
whole tensor on each rank (``Replicate()``), or this rank's part along a dimension (``Shard(dim)``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from functools import partial
from typing import Any

from ....autograd.grad_mode import no_grad
from ....autograd.tensor import Tensor
from ....errors import ArgumentError, ArgumentTypeError, NotOfferedError
from ....nn import Embedding, Linear, Module, Parameter
from ...collectives import all_reduce, broadcast
from ...cut import Part
from ...device_mesh import DeviceMesh
from ...group import ProcessGroup
from ...regions import divided, gather_from, own_part, scatter_to
from ..placement import Placement, Replicate, Shard
from .layers import ColumnLinear, RowLinear, VocabularyEmbedding

__all__ = (
    "ColwiseParallel", "ParallelStyle", "PrepareModuleInput", "RowwiseParallel", "SequenceParallel", "parallelize_module",
)  # fmt: skip


class ParallelStyle:
    """The base of all ways to divide a module."""

    def _axes(self, module: Module) -> dict[str, int]:
        """The parameters that it divides, each with its dimension. Changes nothing.

        Raises:
            NotOfferedError: the style does not fit the module.
        """
        return {}

    def _apply(self, module: Module, group: ProcessGroup) -> Module:
        raise NotImplementedError


class ColwiseParallel(ParallelStyle):
    """Divides a ``Linear`` by its outputs, or an ``Embedding`` by its columns.

    Args:
        input_layouts: ``Replicate()``, the default; ``Shard(dim)``: the rows of all ranks are gathered along ``dim``, which is
            not the last one. Only this rank's part is kept for backward, which gathers them again.
        output_layouts: ``Shard(-1)``, the default; or ``Replicate()``: the outputs of all ranks are gathered.
        use_local_output: accepted for compatibility: each tensor is local.

    Memory: weight, gradient and optimizer state of 1 / ranks; with ``Shard`` the saved input, too.
    Price: an all-reduce of the input's gradient; with ``Shard``, two all-gathers and a reduce-scatter.
    """

    def __init__(
        self, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None, use_local_output: bool = True
    ) -> None:
        self.layouts = input_layouts or Replicate(), output_layouts or Shard(-1)
        if self.layouts[1] not in (Shard(-1), Replicate()):
            raise NotOfferedError(f"ColwiseParallel: output_layouts is Shard(-1) or Replicate(), found {output_layouts}")

    def _axes(self, module: Module) -> dict[str, int]:
        if type(module) is Embedding:
            if self.layouts[0] != Replicate() or module.max_norm is not None:
                raise NotOfferedError("ColwiseParallel of an Embedding: input_layouts is Replicate(), and max_norm is None")
            return {"weight": 1}
        _want(module, Linear, "ColwiseParallel: expected an nn.Linear or nn.Embedding")
        return {"weight": 0} if module.bias is None else {"weight": 0, "bias": 0}

    def _apply(self, module: Module, group: ProcessGroup) -> Module:
        _divide(module, self._axes(module), group)
        if type(module) is not Embedding:
            return _become(module, ColumnLinear, group, self.layouts)
        if self.layouts[1] == Replicate():
            module.register_forward_hook(lambda module, args, output: gather_from(output, group, -1))
        return module


class RowwiseParallel(ParallelStyle):
    """Divides a ``Linear`` by its inputs, or an ``Embedding`` by its rows (a vocabulary-parallel embedding).

    Args:
        input_layouts: of a Linear ``Shard(-1)``, the default; ``Replicate()``: each rank takes its part.
            Of an Embedding ``Replicate()``, the default.
        output_layouts: ``Replicate()``, the default: the results are summed. ``Shard(dim)``: summed, and each rank gets its
            part along ``dim``, as sequence parallel wants it.
        use_local_output: accepted for compatibility: each tensor is local.

    Memory: weight, gradient and optimizer state of 1 / ranks. The sum is made in the result's own memory.
    Price: an all-reduce of the output; with ``Shard``, a reduce-scatter, and in backward an all-gather.
    """

    def __init__(
        self, *, input_layouts: Placement | None = None, output_layouts: Placement | None = None, use_local_output: bool = True
    ) -> None:
        self.given, self.wanted = input_layouts, output_layouts or Replicate()

    def _axes(self, module: Module) -> dict[str, int]:
        if type(module) is Embedding:
            if self.given not in (None, Replicate()) or module.max_norm is not None or module.sparse:
                raise NotOfferedError(
                    "RowwiseParallel of an Embedding: input_layouts is Replicate(), max_norm is None, and sparse is False"
                )
            return {"weight": 0}
        _want(module, Linear, "RowwiseParallel: expected an nn.Linear or nn.Embedding")
        if self.given not in (None, Shard(-1), Replicate()):
            raise NotOfferedError(f"RowwiseParallel: input_layouts is Shard(-1) or Replicate(), found {self.given}")
        return {"weight": 1}

    def _apply(self, module: Module, group: ProcessGroup) -> Module:
        _divide(module, self._axes(module), group)
        if type(module) is Embedding:
            return _become(module, VocabularyEmbedding, group, (Replicate(), self.wanted))
        if module.bias is not None and isinstance(self.wanted, Shard):
            _sum_gradients(module.bias, group)
        if self.given == Replicate():
            module.register_forward_pre_hook(lambda module, args: (scatter_to(args[0], group, -1), *args[1:]))
        return _become(module, RowLinear, group, (Shard(-1), self.wanted))


class SequenceParallel(ParallelStyle):
    """A norm or a dropout of this rank's part of the tokens. Its parameters stay whole; their gradients are summed.

    Args:
        sequence_dim: accepted for compatibility: a part of the tokens comes in and goes out.
        use_local_output: accepted for compatibility: each tensor is local.

    Memory: what the layer saves is 1 / ranks.
    Price: an all-reduce of the gradients of its parameters, for each backward.
    Do not use when: the layer mixes tokens, as attention and batch norm do, or the tokens cannot be divided by the ranks.
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_dim = sequence_dim

    def _apply(self, module: Module, group: ProcessGroup) -> Module:
        for parameter in module.parameters(recurse=False):
            _sum_gradients(parameter, group)
        return module


class PrepareModuleInput(ParallelStyle):
    """Changes how the first arguments of a module are divided over ranks, before its forward.

    Args:
        input_layouts: how they are given: a layout, or one for each; ``None``: leave it.
        desired_input_layouts: how the module wants them.

    Layers inside that are divided sum the gradients of what they are given whole; so all ranks have the same gradient of a
    gathered argument, and each takes its part.
    """

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict | None = None,
        desired_input_kwarg_layouts: dict | None = None,
        use_local_output: bool = False,
    ) -> None:
        if input_kwarg_layouts or desired_input_kwarg_layouts:
            raise NotOfferedError("PrepareModuleInput: layouts of keyword arguments are not offered: pass them by position")
        self.given, self.wanted = (
            tuple(x) if isinstance(x, (tuple, list)) else (x,) for x in (input_layouts, desired_input_layouts)
        )
        if len(self.given) != len(self.wanted):
            raise ArgumentError("PrepareModuleInput: input_layouts and desired_input_layouts should have same length!")

    def _apply(self, module: Module, group: ProcessGroup) -> Module:
        layouts = tuple(zip(self.given, self.wanted, strict=True))

        def relaid(module: Module, args: tuple) -> tuple:
            changed = [_relay(x, given, wanted, group) for x, (given, wanted) in zip(args, layouts, strict=False)]
            return *changed, *args[len(changed) :]

        module.register_forward_pre_hook(relaid)
        return module


def parallelize_module(
    module: Module,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> Module:
    """Divide a module, or modules inside it, over the ranks of a mesh of one dimension; in place.

    Each rank has the whole module before. Afterwards it has its part of the parameters, in new memory. Make the optimizer
    after that. A division that is not even is refused. If anything is refused, no module was changed.

    Memory: weights, gradients and optimizer state of divided layers, and the results between a column and a row layer, are
    1 / ranks. Divide each layer as soon as it is made: then no rank ever has the whole network.
    Price: collectives of activations in each divided layer, in forward and backward, which wait for each other: see the styles.
    Do not use when: the links between ranks are slow, or layers are narrow: ``fully_shard`` sends parameters instead.

    Args:
        device_mesh: ``mesh["tp"]``.
        parallelize_plan: a style for ``module``; or styles by the paths of modules inside, with ``*`` for any name.
        src_data_rank: all ranks take the values of this rank of the mesh; ``None``: each takes its own.

    Raises:
        ArgumentError: the mesh has several dimensions, a path leads to no module, or a parameter would be divided twice or in
            one of two modules that share it.
        ShapeError: a parameter cannot be divided evenly.
        NotOfferedError: a style does not fit a module.

    >>> plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    >>> parallelize_module(mlp, mesh["tp"], plan)
    """
    if device_mesh is None or device_mesh.ndim != 1:
        raise ArgumentError(
            f"parallelize_module: give a mesh of one dimension, as in mesh['tp'], found {device_mesh}: a module is divided "
            "along one dimension"
        )
    group = device_mesh.get_group()
    plan = {"": parallelize_plan} if isinstance(parallelize_plan, ParallelStyle) else dict(parallelize_plan or {})
    entries = [entry for path, style in plan.items() for entry in _entries(module, path, style)]
    _check(module, entries, group)
    for _, each, style in entries:
        if src_data_rank is not None and group.size() > 1:
            for parameter in each.parameters(recurse=False):
                broadcast(parameter.detach(), group=group, group_src=src_data_rank)
        style._apply(each, group)
    return module


_Entry = tuple[str, Module, ParallelStyle]


def _entries(module: Module, path: str, style: Any) -> list[_Entry]:
    """The modules that ``path`` leads to, each with its name and the style."""
    if not isinstance(style, ParallelStyle):
        raise ArgumentTypeError(f"parallelize_module: expected a ParallelStyle for {path!r}, found {type(style).__name__}")
    found = [(name, each, style) for name, each in module.named_modules() if _matches(name, path)]
    if not found:
        raise ArgumentError(f"parallelize_module: the plan's {path!r} leads to no module of {type(module).__name__}")
    return found


def _check(module: Module, entries: list[_Entry], group: ProcessGroup) -> None:
    """Refuse a module that cannot be divided, before anything is divided."""
    axes: dict[int, int] = {}  # of each parameter that is divided
    cut: set[tuple[int, str]] = set()  # the module and the name of each
    for path, each, style in entries:
        for name, axis in style._axes(each).items():
            whole: Any = getattr(each, name)
            divided(f"{type(each).__name__}.{name}", whole, group, axis)
            if (id(each), name) in cut or whole._shard is not None:
                raise ArgumentError(f"parallelize_module: {path or type(each).__name__}.{name} would be divided twice")
            cut.add((id(each), name))
            before = axes.setdefault(id(whole), axis)
            if before != axis and group.size() > 1:
                raise ArgumentError(
                    f"parallelize_module: two modules share {name} {list(whole.shape)}, and divide it along dimensions "
                    f"{before} and {axis}: divide an output layer by columns and its embedding by rows, or give each a weight "
                    "of its own"
                )
    for path, each in module.named_modules() if group.size() > 1 else ():
        for name, parameter in each.named_parameters(recurse=False):
            if id(parameter) in axes and (id(each), name) not in cut:
                where = f"{path}.{name}" if path else name
                raise ArgumentError(
                    f"parallelize_module: {where} is shared with a module that was divided: divide both, or neither"
                )


def _matches(name: str, path: str) -> bool:
    names, parts = name.split("."), path.split(".")
    return len(names) == len(parts) and all(map(fnmatch, names, parts))


def _want(module: Module, kind: type, expected: str) -> None:
    if type(module) is not kind:
        raise NotOfferedError(f"{expected}, found {type(module).__name__}")


def _become(module: Any, cls: type[Module], group: ProcessGroup, layouts: tuple[Placement, Placement]) -> Module:
    """Let the module be a ``cls``: the same object, with its names, hooks and place."""
    module.__class__ = cls
    module.group, module.layouts = group, layouts
    return module


def _divide(module: Module, axes: dict[str, int], group: ProcessGroup) -> None:
    """Replace parameters by this rank's parts of them. Modules that share a parameter share its part."""
    for name, axis in axes.items() if group.size() > 1 else ():
        whole: Any = getattr(module, name)
        if not hasattr(whole, "_part"):
            part = whole.device.empty(own_part(whole.array, group, axis).shape, whole.dtype)
            whole.device.kernels.copy(own_part(whole.array, group, axis), out=part)
            whole._part = Parameter(Tensor._wrap(part, whole.device), whole.requires_grad)
            whole._part._shard = Part(f"{type(module).__name__}.{name}", group, axis)
        setattr(module, name, whole._part)


def _sum_gradients(parameter: Any, group: ProcessGroup) -> None:
    """Sum the gradients of a whole parameter that each rank uses for its part of the tokens; once if modules share it."""
    summed = any(getattr(hook, "func", None) is _sum_gradient for hook in (parameter._hooks or {}).values())
    if group.size() > 1 and parameter.requires_grad and not summed:
        parameter.register_hook(partial(_sum_gradient, group))


def _sum_gradient(group: ProcessGroup, grad: Tensor) -> Tensor:
    with no_grad():
        total = grad.clone()
        all_reduce(total, group=group)
    return total


def _relay(x: Any, given: Placement | None, wanted: Placement | None, group: ProcessGroup) -> Any:
    """``x`` in the layout that is wanted."""
    if given == wanted or given is None or wanted is None:
        return x
    ways: dict[tuple, Callable] = {(Shard, Replicate): gather_from, (Replicate, Shard): scatter_to}
    way = ways.get((type(given), type(wanted)))
    if way is None:
        raise NotOfferedError(f"PrepareModuleInput: from {given} to {wanted}: gather it first, with Replicate()")
    return way(x, group, given.dim if isinstance(given, Shard) else wanted.dim)  # type: ignore[attr-defined]
