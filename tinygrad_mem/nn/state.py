"""Making state dicts from a module, and loading them."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ..autograd.capsule import on_host
from ..autograd.grad_mode import no_grad
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentTypeError, StateDictError, pins_nothing
from ..functional import convert, creation
from ..interrupts import all_or_nothing, cleanup, context, uninterruptible
from ..ops.convert import Upload
from .parameter import Parameter
from .tree import Module, Tree


class IncompatibleKeys(NamedTuple):
    """The keys without a match in :func:`load_state_dict`."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"

    __str__ = __repr__


class StateDict(OrderedDict):
    """The result of ``state_dict()``: a dict with the version of each module."""

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
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook, may_replace in _hooks(module, "_state_dict_hooks"):
        answer = hook(module, destination, prefix, metadata)
        if answer is not None and not may_replace:
            raise RuntimeError("state_dict post-hook must return None")
        destination = destination if answer is None else answer
    return destination


def save_own(module: Module, destination: Any, prefix: str, keep_vars: bool) -> None:
    """Put the state of one module into ``destination``, for its ``_save_to_state_dict``."""
    for name, tensor in _own(module):
        destination[prefix + name] = tensor if keep_vars else tensor.detach()
    if _overrides(module, "get_extra_state"):
        destination[prefix + EXTRA] = module.get_extra_state()


EXTRA = "_extra_state"  # PyTorch's keys
_ASSIGN = "assign_to_params_buffers"


def _hooks(module: Tree, table: str) -> list:
    """The hooks of a module's state. The table is made with the first hook, because few modules have one."""
    return list(module.__dict__.get(table, {}).values())


def _overrides(module: Module, method: str) -> bool:
    """True if the module's class overrides the method of ``Module``."""
    return getattr(type(module), method).__module__ != f"{__package__}.module"


def _own(module: Tree) -> list[tuple[str, Tensor]]:
    """A module's own state by name."""
    buffers = [(n, b) for n, b in module._buffers.items() if n not in module._non_persistent_buffers_set]
    return [(name, tensor) for name, tensor in (*module._parameters.items(), *buffers) if tensor is not None]


@pins_nothing
def load_state_dict(module: Module, source: Any, strict: bool, assign: bool) -> IncompatibleKeys:
    """See ``Module.load_state_dict``: first everything is checked, then everything is copied.

    Hooks may remove missing keys from the list. If there are such hooks, keys are checked after copying. User code that runs
    after copying may raise; then everything is restored.
    """
    if not hasattr(source, "items"):
        raise ArgumentTypeError(f"Expected state_dict to be dict-like, got {type(source)}.")
    owners = list(module.named_modules(remove_duplicate=False))
    hooks = [_hooks(owner, f"_load_state_dict_{when}_hooks") for _, owner in owners for when in ("pre", "post")]
    own = [_overrides(owner, method) for _, owner in owners for method in ("set_extra_state", "_load_from_state_dict")]
    if not any(hooks) and not any(own):
        return _load_all(module, owners, source, strict, assign, _load_uninterrupted)
    with all_or_nothing(*module.modules()), _values_as_before(module):
        return _load_all(module, owners, source, strict, assign, _call)


@context
def _values_as_before(module: Module) -> Iterator[None]:
    """If the block raises, restore the values of the tensors of ``module``."""
    before = [(tensor.detach(), tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
    try:
        yield
    except BaseException:
        cleanup(_call, [partial(convert.copy_, tensor, kept) for tensor, kept in before])
        raise


def _call(steps: Iterable[Callable[[], object]]) -> None:
    with no_grad():
        for step in steps:
            step()


_load_uninterrupted = uninterruptible(_call)


def loading_steps(
    owner: Module, source: Any, prefix: str, metadata: Any, assign: bool, missing: list[str], errors: list[str]
) -> list[Callable[[], object]]:
    """The steps that load the values of one module."""
    steps: list[Callable[[], object]] = []
    for name, tensor in _own(owner):
        key = prefix + name
        if key in source:
            value, problem = _fitting(key, tensor, source[key])
            if problem:
                errors.append(problem)
            elif assign:
                steps.append(partial(_assign, owner, name, tensor, value))
            elif not _copies_nothing(name, tensor, value):
                steps.append(_copying(tensor, value.detach()))
        elif not _missing_in_old_files(owner, name, metadata.get("version")):
            missing.append(key)
    if _overrides(owner, "set_extra_state"):
        if prefix + EXTRA in source:
            steps.append(partial(owner.set_extra_state, source[prefix + EXTRA]))
        else:
            missing.append(prefix + EXTRA)
    return steps


def load_own(
    owner: Module, source: Any, prefix: str, metadata: Any, missing: list[str], unexpected: list[str], errors: list[str]
) -> None:
    """Load the values of one module, for its ``_load_from_state_dict``."""
    expected = _expected(owner, prefix)
    unexpected += [key for key in _keys_of(owner, source, prefix) if key not in expected]
    _call(loading_steps(owner, source, prefix, metadata, metadata.get(_ASSIGN, False), missing, errors))


def _load_all(
    module: Module, owners: list[tuple[str, Module]], source: Any, strict: bool, assign: bool, run: Callable[..., None]
) -> IncompatibleKeys:
    versions = getattr(source, "_metadata", None) or {}
    source = OrderedDict(source)  # a copy: hooks may write into it
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    steps: list[Callable[[], object]] = []
    expected: set[str] = set()
    absent: list[str] = []
    for path, owner in owners:
        prefix, metadata = f"{path}." if path else "", versions.get(path, {})
        for hook, with_module in _hooks(owner, "_load_state_dict_pre_hooks"):
            hook(*([owner] if with_module else []), source, prefix, metadata, True, missing, unexpected, errors)
        expected |= _expected(owner, prefix)
        absent += [f"{prefix}{name}." for name, module in owner._modules.items() if module is None]
        if not _overrides(owner, "_load_from_state_dict"):
            steps += loading_steps(owner, source, prefix, metadata, assign, missing, errors)
            continue
        expected.update(_keys_of(owner, source, prefix))  # it says itself which of them it does not expect
        given = {**metadata, _ASSIGN: True} if assign else dict(metadata)
        owner._load_from_state_dict(source, prefix, given, True, missing, unexpected, errors)
    # as in PyTorch, values are not missed by a module that was set to None
    unexpected += [key for key in source if key not in expected and not key.startswith(tuple(absent))]
    found = IncompatibleKeys(missing, unexpected)
    hooked = _in_order_of_loading(owners, "_load_state_dict_post_hooks")
    _refuse(module, errors, found, strict and not hooked)
    run(steps)
    places = {path: place for place, (path, _) in enumerate(owners)}
    for last, owner, hook in hooked:  # it may accept missing keys, but not those of what is loaded later
        later = [key for key in missing if places.get(key.rpartition(".")[0], 0) > last]
        missing[:] = [key for key in missing if key not in later]
        answer = hook(owner, found)
        missing += later
        if answer is not None:
            raise AssertionError(
                "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new values, "
                "if incompatible_keys need to be modified, it should be done inplace."
            )
    _refuse(module, errors, found, strict)
    return found


def _in_order_of_loading(owners: list[tuple[str, Module]], table: str) -> list[tuple[int, Module, Any]]:
    """The hooks of modules, each with the place of the last module inside its own: a module is loaded after its children."""
    found = []
    for place, (path, owner) in enumerate(owners):
        if hooks := _hooks(owner, table):
            last = place + sum(not path or other.startswith(f"{path}.") for other, _ in owners[place + 1 :])
            found.append((last, -place, owner, hooks))
    ordered = sorted(found, key=lambda each: each[:2])
    return [(last, owner, hook) for last, _, owner, hooks in ordered for hook in hooks]


def _expected(owner: Module, prefix: str) -> set[str]:
    """The keys of a module's own state."""
    return {prefix + name for name, _ in _own(owner)} | ({prefix + EXTRA} if _overrides(owner, "set_extra_state") else set())


def _keys_of(owner: Module, source: Any, prefix: str) -> list[str]:
    """The keys of ``source`` that begin with ``prefix``, and are of none of the module's children."""
    return [key for key in source if key.startswith(prefix) and key[len(prefix) :].partition(".")[0] not in owner._modules]


def _refuse(module: Module, errors: list[str], found: IncompatibleKeys, strict: bool) -> None:
    """Raise one error with everything that does not fit."""
    listing = [("Missing", found.missing_keys), ("Unexpected", found.unexpected_keys)] if strict else []
    lines = [f"{kind} key(s) in state_dict: {_quoted(keys)}. " for kind, keys in listing if keys] + errors
    if lines:
        raise StateDictError("Error(s) in loading state_dict for {}:\n\t{}".format(type(module).__name__, "\n\t".join(lines)))


def _missing_in_old_files(owner: Module, name: str, version: int | None) -> bool:
    """True for a count of batches, which files of old PyTorch versions do not have."""
    return name == "num_batches_tracked" and (version is None or version < 2) and owner._version >= 2


def _quoted(keys: list[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys)


def _fitting(key: str, tensor: Tensor, value: Any) -> tuple[Any, str]:
    """The value in the tensor's shape, or a text that says why it does not fit."""
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
            stacklevel=7,
        )
        return True
    return False


def _copying(tensor: Tensor, value: Tensor) -> Callable[[], object]:
    """A step that copies ``value``. Its memory is allocated now, so that the step cannot run out of memory halfway."""
    if value.device.kind == "cpu" and tensor.device.kind == "cuda" and tensor.is_contiguous():
        return partial(apply_, Upload, tensor, values=value.numpy())
    return partial(convert.copy_, tensor, convert.to(value, device=tensor.device))


def _assign(owner: Module, name: str, tensor: Tensor, value: Tensor) -> None:
    if name in owner._parameters:
        if not isinstance(value, Parameter):
            value = Parameter(value.detach(), requires_grad=tensor.requires_grad)
        owner._parameters[name] = value.requires_grad_(tensor.requires_grad)  # type: ignore[assignment]
    else:
        setattr(owner, name, value)
