"""State dicts: out of a module, and into one."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..autograd.capsule import on_host
from ..autograd.grad_mode import no_grad
from ..autograd.tensor import Tensor
from ..errors import ArgumentTypeError, StateDictError
from ..functional import convert, creation
from ..interrupts import all_or_nothing, context, surely, undivided
from .parameter import Parameter

if TYPE_CHECKING:
    from .module import Module


class IncompatibleKeys(NamedTuple):
    """The keys that :func:`load_state_dict` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"

    __str__ = __repr__


class StateDict(OrderedDict):
    """The result of ``state_dict()``: a dict that also tells the version of each module."""

    _metadata: OrderedDict


def state_dict(module: Module, destination: Any, prefix: str, keep_vars: bool) -> Any:
    """See ``Module.state_dict``."""
    if destination is None:
        destination = StateDict()
        destination._metadata = OrderedDict()
    metadata = {"version": module._version}
    if hasattr(destination, "_metadata"):
        destination._metadata[prefix[:-1]] = metadata
    for hook in _hooks(module, "_state_dict_pre_hooks"):
        hook(module, prefix, keep_vars)
    for name, tensor in _own(module):
        destination[prefix + name] = tensor if keep_vars else tensor.detach()
    if _gives(module, "get_extra_state"):
        destination[prefix + EXTRA] = module.get_extra_state()
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook, may_replace in _hooks(module, "_state_dict_hooks"):
        answer = hook(module, destination, prefix, metadata)
        if answer is not None and not may_replace:
            raise RuntimeError("state_dict post-hook must return None")
        destination = destination if answer is None else answer
    return destination


EXTRA = "_extra_state"  # PyTorch's key, as this:
_ASSIGN = "assign_to_params_buffers"
OVERRIDE = "_load_from_state_dict"


def _hooks(module: Module, table: str) -> list:
    """The hooks of a module's state; the table is there once a hook was registered, for few modules have any."""
    return list(module.__dict__.get(table, {}).values())


def _gives(module: Module, method: str) -> bool:
    """Whether the module's class gives the method itself: that of the base class refuses."""
    return getattr(type(module), method).__module__ != f"{__package__}.module"


def _own(module: Module) -> list[tuple[str, Tensor]]:
    """A module's own state by name."""
    buffers = [(n, b) for n, b in module._buffers.items() if n not in module._non_persistent_buffers_set]
    return [(name, tensor) for name, tensor in (*module._parameters.items(), *buffers) if tensor is not None]


def load_state_dict(module: Module, source: Any, strict: bool, assign: bool) -> IncompatibleKeys:
    """See ``Module.load_state_dict``: first everything is checked, then everything is copied.

    Only where hooks may still forgive missing keys is the copying before that check. What raises after it is code of the
    user's: where there is any, all is put back.
    """
    if not hasattr(source, "items"):
        raise ArgumentTypeError(f"Expected state_dict to be dict-like, got {type(source)}.")
    owners = list(module.named_modules(remove_duplicate=False))
    hooks = [_hooks(owner, f"_load_state_dict_{when}_hooks") for _, owner in owners for when in ("pre", "post")]
    given = [_gives(owner, method) for _, owner in owners for method in ("set_extra_state", OVERRIDE)]
    if not any(hooks) and not any(given):
        return _load_all(module, owners, source, strict, assign, _undivided)
    with all_or_nothing(*module.modules()), _values_as_before(module):
        return _load_all(module, owners, source, strict, assign, _call)


@context
def _values_as_before(module: Module) -> Iterator[None]:
    """Give the tensors of ``module`` the values that they had, where the block raises."""
    before = [(tensor.detach(), tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
    try:
        yield
    except BaseException:
        surely(_call, [partial(convert.copy_, tensor, kept) for tensor, kept in before])
        raise


def _call(steps: Iterable[Callable[[], object]]) -> None:
    with no_grad():
        for step in steps:
            step()


_undivided = undivided(_call)


def planned(
    owner: Module, source: Any, prefix: str, metadata: Any, assign: bool, missing: list[str], errors: list[str]
) -> list[Callable[[], None]]:
    """The steps that load the values of one module."""
    plan: list[Callable[[], None]] = []
    for name, tensor in _own(owner):
        key = prefix + name
        if key in source:
            value, problem = _fitting(key, tensor, source[key])
            if problem:
                errors.append(problem)
            elif assign or not _copies_nothing(name, tensor, value):
                plan.append(partial(_load, owner, name, tensor, value, assign))
        elif not _counts_no_batches(owner, name, metadata.get("version")):
            missing.append(key)
    if _gives(owner, "set_extra_state"):
        if prefix + EXTRA in source:
            plan.append(partial(owner.set_extra_state, source[prefix + EXTRA]))
        else:
            missing.append(prefix + EXTRA)
    return plan


def load_own(owner: Module, source: Any, prefix: str, metadata: Any, missing: list[str], errors: list[str]) -> None:
    """Load the values of one module at once, for its own ``_load_from_state_dict``."""
    _call(planned(owner, source, prefix, metadata, metadata.get(_ASSIGN, False), missing, errors))


def _load_all(
    module: Module, owners: list[tuple[str, Module]], source: Any, strict: bool, assign: bool, run: Callable[..., None]
) -> IncompatibleKeys:
    versions = getattr(source, "_metadata", None) or {}
    source = OrderedDict(source)  # hooks may write into it
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    plan: list[Callable[[], None]] = []
    expected: set[str] = set()
    for path, owner in owners:
        prefix, metadata = f"{path}." if path else "", versions.get(path, {})
        for hook, with_module in _hooks(owner, "_load_state_dict_pre_hooks"):
            hook(*([owner] if with_module else []), source, prefix, metadata, True, missing, unexpected, errors)
        expected.update(prefix + name for name, _ in _own(owner))
        if _gives(owner, "set_extra_state"):
            expected.add(prefix + EXTRA)
        if not _gives(owner, OVERRIDE):
            plan += planned(owner, source, prefix, metadata, assign, missing, errors)
            continue
        told = {**metadata, _ASSIGN: True} if assign else dict(metadata)
        owner._load_from_state_dict(source, prefix, told, True, missing, unexpected, errors)
    unexpected += [key for key in source if key not in expected]
    found = IncompatibleKeys(missing, unexpected)
    hooked = [(owner, hook) for _, owner in reversed(owners) for hook in _hooks(owner, "_load_state_dict_post_hooks")]
    _refuse(module, errors, found, strict and not hooked)
    run(plan)
    for owner, hook in hooked:  # children first; what is missing may be theirs to forgive
        if hook(owner, found) is not None:
            raise AssertionError(
                "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new values, "
                "if incompatible_keys need to be modified, it should be done inplace."
            )
    _refuse(module, errors, found, strict)
    return found


def _refuse(module: Module, errors: list[str], found: IncompatibleKeys, strict: bool) -> None:
    """Raise all that does not fit, at once."""
    listing = [("Missing", found.missing_keys), ("Unexpected", found.unexpected_keys)] if strict else []
    lines = [f"{kind} key(s) in state_dict: {_quoted(keys)}. " for kind, keys in listing if keys] + errors
    if lines:
        raise StateDictError("Error(s) in loading state_dict for {}:\n\t{}".format(type(module).__name__, "\n\t".join(lines)))


def _counts_no_batches(owner: Module, name: str, version: int | None) -> bool:
    """State of old PyTorch files counts no batches: batch norms take them as they are."""
    return name == "num_batches_tracked" and (version is None or version < 2) and owner._version >= 2


def _quoted(keys: list[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys)


def _fitting(key: str, tensor: Tensor, value: Any) -> tuple[Any, str]:
    """The value in the tensor's shape, or what is wrong with it."""
    if not isinstance(value, Tensor) and hasattr(value, "__array__"):  # NumPy's array, PyTorch's tensor
        value = creation.as_tensor(on_host(value.detach().cpu() if hasattr(value, "detach") else value))
    if not isinstance(value, Tensor):
        return None, (
            f'While copying the parameter named "{key}", expected Tensor or Tensor-like object from checkpoint but received '
            f"{type(value)}"
        )
    if tensor.ndim == 0 and tuple(value.shape) == (1,):
        value = value.detach()[0]
    if value.shape != tensor.shape:
        return None, (
            f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
            f"the shape in current model is {tensor.shape}."
        )
    return value, ""


def _copies_nothing(name: str, tensor: Tensor, value: Tensor) -> bool:
    if tensor.is_meta and not value.is_meta:
        warnings.warn(
            f"for {name}: copying from a non-meta parameter in the checkpoint to a meta parameter in the current model, "
            "which is a no-op. (Did you mean to pass `assign=True` or to call to_empty() first?)",
            stacklevel=6,
        )
        return True
    return False


def _load(owner: Module, name: str, tensor: Tensor, value: Tensor, assign: bool) -> None:
    if not assign:
        convert.copy_(tensor, value.detach())
    elif name in owner._parameters:
        if not isinstance(value, Parameter):
            value = Parameter(value.detach(), requires_grad=tensor.requires_grad)
        owner._parameters[name] = value.requires_grad_(tensor.requires_grad)  # type: ignore[assignment]
    else:
        setattr(owner, name, value)
