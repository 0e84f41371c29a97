"""``fully_shard``: the public function, and the methods that a sharded module has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, wraps
from typing import Any

from ...dtypes import is_floating
from ...errors import ArgumentError, ArgumentTypeError, NotOfferedError
from ...nn.containers import ModuleDict, ModuleList
from ...nn.module import Module
from ..cut import refuse_sync_batchnorm
from ..device_mesh import DeviceMesh
from ..group import ProcessGroup
from ..groups import own_group
from .policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from .shard import ShardedParameter, check
from .unit import Unit

__all__ = ("FSDPModule", "fully_shard", "register_fsdp_forward_method")


def fully_shard(
    module: Any,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Any = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008 (it is frozen)
    offload_policy: OffloadPolicy = OffloadPolicy(),  # noqa: B008
    ignored_params: set | None = None,
    dp_mesh_dims: Any = None,
) -> Any:
    """Divide the parameters of ``module`` among the ranks: ZeRO 3, by units; ZeRO 2 with ``reshard_after_forward=False``.

    Call it from the inside out: first on blocks, then on the network. Each call makes a unit of the parameters that no inner
    unit has. Each rank keeps some rows of each parameter, and optimizers see just these. A unit's parameters are whole in its
    forward and in its backward only: they are gathered before the forward, dropped after it, gathered again when backward
    comes to the module's outputs, with those of the unit before it. When backward leaves the module, they are dropped and the
    gradients are averaged: each rank gets its rows.

    All ranks must have the same values before: seed alike, or load a state dict.

    Memory:
        1 / N of parameters, gradients and optimizer state on N ranks, with rows divided as ``chunk`` does. A parameter with
        fewer rows than ranks is on some of them. While it is used, a unit is gathered, and in backward the next one too; its
        gradients are whole until they are sent, while the next unit's are computed. Units that are kept
        (``reshard_after_forward=False``, and the root) stay gathered from their forward to their backward. Activations are
        not divided. With ``CPUOffloadPolicy`` this rank's 1 / N is on the host: between steps nothing is left on the device.
    Price:
        Two all-gathers and a reduce-scatter of all parameters per step: half as much again as data parallel.
        MPI advances transfers only while a rank calls it, so little of that is hidden on the cpu.
        With ``CPUOffloadPolicy`` also two copies of this rank's rows to the device and one of its gradients back, for each of
        which the host waits, and a step at the cpu's speed.
    Do not use when:
        The optimizer's state alone is too large: ``distributed.optim.ZeroRedundancyOptimizer`` sends less. Or the activations
        take the memory.

    Args:
        mesh: of one dimension; by default all ranks.
        reshard_after_forward: drop the gathered parameters after the forward. ``None``: yes, except the outermost unit, whose
            backward comes next.
        mp_policy: dtypes of forward, backward and reduction.
        ignored_params: parameters to leave as they are.
        offload_policy: ``CPUOffloadPolicy()``: this rank's rows, their gradients and the optimizer's state are on the host.
        shard_placement_fn, dp_mesh_dims: not offered, except their defaults.

    Returns:
        ``module``, whose class has :class:`FSDPModule` before its own.

    Raises:
        ArgumentError: a parameter has no rows to divide, or is sharded already; the module has no forward.
        GraphError: a parameter has a gradient, or an optimizer its state. In forward: it was written in place. In backward: it
            was written since.
        NotOfferedError: an argument asks for something that is not offered; a ``param_dtype`` with quantized layers; a
            SyncBatchNorm on several ranks.
        DeviceError (in forward): with ``CPUOffloadPolicy``, a parameter was moved away from the host.
        RankError (in forward and backward): the ranks do not use the same parameters in the same order.

    Source: Rajbhandari et al., *ZeRO: Memory optimizations toward training trillion parameter models*, 2020; Zhao et al.,
    *PyTorch FSDP: Experiences on scaling fully sharded data parallel*, 2023.

    >>> for block in model.blocks:
    ...     fully_shard(block)
    >>> fully_shard(model)
    >>> optimizer = optim.Adam(model.parameters())
    """
    _check_options(module, mesh, reshard_after_forward, shard_placement_fn, offload_policy, dp_mesh_dims)
    group = own_group("fully_shard", None if mesh is None else mesh.get_group())
    refuse_sync_batchnorm("fully_shard", module, group)
    shards = _shards(module, {id(p) for p in ignored_params or ()}, group, offload_policy)
    _check_casts(shards, mp_policy)
    unit = Unit(shards, group, None if reshard_after_forward is None else not reshard_after_forward, mp_policy)
    unit.listen()
    kind = type(module)
    module._known_as = module._known_as or kind.__name__
    module.__class__ = _CLASSES.setdefault(kind, type(f"FSDP{kind.__name__}", (FSDPModule, kind), {}))
    module._unit = unit
    for path, below in _units(module):
        below.join(unit, f"{path}." if path else "")
    return module


_CLASSES: dict[type, type] = {}


class FSDPModule:
    """The methods that :func:`fully_shard` adds to a module."""

    _unit: Unit

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, with all of its parameters."""
        return self._unit.forward(super().forward, args, kwargs)  # type: ignore[misc]

    def unshard(self) -> None:
        """Gather the parameters of this unit, not those of inner units; they stay until :meth:`reshard`, or their next use."""
        self._unit.gather()

    def reshard(self) -> None:
        """Drop the gathered parameters of this unit."""
        self._unit.drop()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Choose whether backward averages gradients. Without it each rank adds up its own, of all parameters, as whole arrays.

        The first backward after it is set again averages the sum: accumulation with one reduce-scatter.
        """
        self._set_on_units("syncs", requires_gradient_sync, recurse)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Choose whether the parameters are dropped after the forward: see :func:`fully_shard`."""
        self._set_on_units("keeps", not reshard_after_forward, recurse)

    def _set_on_units(self, name: str, value: bool, recurse: bool) -> None:
        if not isinstance(value, bool):
            raise ArgumentTypeError(f"{type(self).__name__}: expected True or False, found {value!r}")
        for path, unit in _units(self):
            if recurse or not path:
                setattr(unit, name, value)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`Module.state_dict`: of each parameter this rank's rows."""
        self._unit.drop()
        return super().state_dict(*args, **kwargs)  # type: ignore[misc]

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        for _, unit in _units(self):
            unit.drop()
        return super()._apply(*args, **kwargs)  # type: ignore[misc]

    def __deepcopy__(self, memo: Any) -> Any:
        raise NotOfferedError("FSDP does not support deepcopy: copy the module before fully_shard, or save its state dict")


def register_fsdp_forward_method(module: Any, method_name: str) -> None:
    """Let ``module.METHOD_NAME(...)`` gather the parameters as its forward does. Without effect on other modules.

    Raises:
        AttributeError: the module has no such method.
    """
    if not isinstance(module, FSDPModule):
        return
    plain = getattr(type(module), method_name, None)
    if not callable(plain):
        raise AttributeError(f"{type(module)} does not have a method {method_name}")

    @wraps(plain)
    def gathered(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._unit.forward(partial(plain, self), args, kwargs)

    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {method_name: gathered})


def _check_casts(shards: list[ShardedParameter], policy: MixedPrecisionPolicy) -> None:
    """Refuse casts of parameters that are not floating."""
    codes = [shard.path for shard in shards if not is_floating(shard.parameter.dtype)]
    if codes and policy.param_dtype is not None:
        raise NotOfferedError(
            f"fully_shard: param_dtype casts all parameters, and {codes[0]} is no floating one: leave param_dtype out, a "
            "quantized layer computes in its input's dtype"
        )


def _shards(module: Any, ignored: set[int], group: ProcessGroup, offload: OffloadPolicy) -> list[ShardedParameter]:
    """Cut the parameters that no inner unit has, if all of them can be cut."""
    found: dict[int, tuple[str, Any, list]] = {}
    for path, each in _managed_modules(module):
        for name, p in each._parameters.items():
            if p is not None and id(p) not in ignored:
                found.setdefault(id(p), (f"{path}{name}", p, []))[2].append((each, name))
    for path, p, _ in found.values():
        check(path, p)
    return [ShardedParameter(path, p, places, group, offload) for path, p, places in found.values()]


def _managed_modules(module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The modules whose parameters belong to the unit of ``module``, with their paths: not those of inner units."""
    yield path, module
    for name, child in module._modules.items():
        if child is not None and not isinstance(child, FSDPModule):
            yield from _managed_modules(child, f"{path}{name}.")


def _units(module: Any) -> Iterator[tuple[str, Unit]]:
    """The units of a module and of those in it, with the paths of their modules."""
    for path, each in module.named_modules():
        if isinstance(each, FSDPModule):
            yield path, each._unit


def _check_options(module: Any, mesh: Any, reshard: Any, placement: Any, offload: Any, dims: Any) -> None:
    """Raises: NotOfferedError, ArgumentError, ArgumentTypeError: see :func:`fully_shard`."""
    if isinstance(module, (list, tuple)):
        raise NotOfferedError("fully_shard: a list of modules is not offered: put them into one module, or shard each")
    if not isinstance(module, Module):
        raise ArgumentTypeError(f"fully_shard: expected a module, found {type(module).__name__}")
    if isinstance(module, FSDPModule):
        raise ArgumentError("fully_shard: it has been applied to this module already")
    if isinstance(module, (ModuleList, ModuleDict)) or "forward" in vars(module):
        raise ArgumentError(
            f"fully_shard does not support containers that do not implement forward: {type(module).__name__}: shard its parts"
        )
    if mesh is not None and mesh.ndim != 1:
        raise NotOfferedError(f"fully_shard: a mesh of {mesh.ndim} dimensions is not offered: name one of them, mesh['dp']")
    if reshard is not None and not isinstance(reshard, bool):
        raise NotOfferedError(f"fully_shard: reshard_after_forward={reshard!r} is not offered: expected True, False or None")
    if placement is not None or dims is not None:
        raise NotOfferedError(
            "fully_shard: shard_placement_fn and dp_mesh_dims are not offered: parameters are cut along dimension 0"
        )
    if type(offload) not in (OffloadPolicy, CPUOffloadPolicy):
        raise ArgumentTypeError(f"fully_shard: expected offload_policy=CPUOffloadPolicy() or OffloadPolicy(), not {offload!r}")
