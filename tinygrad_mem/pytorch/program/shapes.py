"""Results of ops: PyTorch's formulas, run once for each kind of call; :mod:`.formulas` has ours.

How to make a result again is kept for later predictions of this process: most programs are predicted more than once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ...interrupts import changed
from .alone import NO_LARGER
from .described import Made
from .fake import flat
from .formulas import FORMULAS
from .layouts import IN_LAYOUT

aten = torch.ops.aten
_C: Any = torch._C
_make, _set_throw = torch.Tensor._make_subclass, _C._set_throw_on_mutable_data_ptr
_MOST = 1 << 16  # calls
_recipes: dict[tuple, Any] = {}
_CPU = torch.device("cpu")
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_NUMBERS = (int, type(None))  # among an op's results, such as the lengths that attention returns
_OWN_WAY = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view}
"""Tags of ops whose results depend on more than shapes, or that turn an argument into a view."""


_ZERO = aten._efficientzerotensor.default  # the result is marked as zeros
_LIKE_A_VIEW = aten._unsafe_view.default  # the result is a view, although the schema does not say so


class _New(NamedTuple):
    """A result in memory of its own."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _View(NamedTuple):
    """A result that is a view of the first argument."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int


class Results:
    """The results of ops. They are remembered for calls that differ only in values, because PyTorch's way is far slower.

    Args:
        fake: the mode whose tensors they are.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._like_first: dict[torch.device, dict[str, Any]] = {}  # the attributes of a fake tensor, by its device
        if len(_recipes) > _MOST:
            _recipes.clear()

    def of(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of a call."""
        ours = FORMULAS.get(func)
        if ours is not None and (made := ours(*args, **kwargs)) is not NotImplemented:
            return made
        if args and isinstance(args[0], FakeTensor) and args[0].constant is not None and _shares(func):
            with changed(args[0], constant=None):  # a fake tensor's own way would copy its numbers for a view
                return self.of(func, args, kwargs)
        kind, written = _kind(func)
        if not kind or (kind == "view" and (torch.is_inference_mode_enabled() or args[0].is_inference())):
            return func(*args, **kwargs)
        target = kwargs[written] if written in kwargs else args[0] if args else None
        try:
            place = kind == "view"
            given = tuple([_like(value, place) for value in args])
            named = tuple([(name, _like(value, place)) for name, value in kwargs.items()]) if kwargs else ()
            key = id(func), _state(), given, named
            found = _recipes.get(key)
        except TypeError:
            return func(*args, **kwargs)
        if found is not None:
            return self._repeat(found[0], target)
        before = getattr(target, "shape", None)
        made = self._view(func, args, kwargs) if kind == "view" else NotImplemented
        if made is NotImplemented:
            made = IN_LAYOUT.get(func, func)(*args, **kwargs)
        recipe = _recipe(kind, target if kind == "written" else args, made)
        if recipe is not None and (kind != "written" or before == getattr(target, "shape", None)):  # else resized
            _recipes[key] = recipe, func  # func is held, so that no other object gets its id
        return made

    def real(self, func: Any, args: tuple, made: tuple[Made | None, ...]) -> Any:
        """The result of a call on the CPU, from what a real one has made; ``None``: that is not enough."""
        if _constant(args) or not made:
            return None
        kind, written = _kind(func)
        if len(made) != _tensors_returned(func):
            return None
        if kind == "written" and made == (None,):
            return args[0] if written is None else None  # ``out`` may get another size
        if any(each is not None and each.size != each.needed for each in made):
            return None  # a result keeps more than its elements
        if func not in NO_LARGER and (kind != "new" or None in made):
            return None
        tensors = [None if each is None else self._tensor(_New(each.sizes, each.strides, each.dtype, _CPU)) for each in made]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _view(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A view, or several, by PyTorch's own kernel on ``meta``; ``NotImplemented``: only fake tensors have the result."""
        first, others = args[0], (*args[1:], *kwargs.values())
        if first.constant is not None or any(isinstance(each, torch.Tensor) for each in others):
            return NotImplemented
        with torch._C._DisableTorchDispatch():
            meta = torch.empty(0, dtype=first.dtype, device="meta")
            meta.set_(first.untyped_storage(), first.storage_offset(), first.shape, first.stride())
            try:
                made = func(meta, *args[1:], **kwargs)
            except (RuntimeError, IndexError):
                return NotImplemented
            views = [self._like(each, first.fake_device) for each in flat(made)]
            return views if isinstance(made, (list, tuple)) else views[0]

    def _repeat(self, found: Any, first: Any) -> Any:
        if isinstance(found, _New):
            return self._tensor(found)
        if isinstance(found, _View):
            with torch._C._DisableTorchDispatch():
                meta = torch.empty(0, dtype=found.dtype, device="meta")
                meta.set_(first.untyped_storage(), found.offset, found.sizes, found.strides)
                return self._like(meta, first.fake_device)
        if isinstance(found, (list, tuple)):
            return type(found)([self._repeat(each, first) for each in found])
        return first if found == "first" else None if found == "none" else found

    def _tensor(self, recipe: _New) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            meta = torch.empty_strided(recipe.sizes, recipe.strides, dtype=recipe.dtype, device="meta")
            return self._like(meta, recipe.device)

    def like_real(self, real: torch.Tensor, device: torch.device) -> FakeTensor:
        """A tensor on ``device`` that lies in memory as a real one does."""
        return self._tensor(_New(tuple(real.shape), real.stride(), real.dtype, device))

    def made_of_list(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A tensor that C++ made from a list of numbers, on ``meta``, which it uses for the GPU."""
        with torch._C._DisableTorchDispatch():
            return self._like(meta, device)

    def _like(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor. The first on a device is made by PyTorch, which is slow; the others copy its attributes."""
        attributes = self._like_first.get(device)
        if attributes is None:
            made = FakeTensor(self._fake, meta, device)
            self._like_first[device] = dict(vars(made))
            return made
        made = _make(FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device)
        _set_throw(made)
        vars(made).update(attributes)
        return made


@cache
def _shares(func: Any) -> bool:
    """True if the results of an op are views of its first argument."""
    return not func._schema.is_mutable and any(each.alias_info is not None for each in func._schema.returns)


@cache
def _kind(func: Any) -> tuple[str, str | None]:
    """The memory that the results of an op use.

    ``"new"``: their own; ``"view"``: the only result, or each of the only list, uses the first argument's; ``"written"``: the
    op writes to one argument alone, the first, or the keyword that is returned with this; ``""``: anything else.
    """
    returns, arguments = func._schema.returns, func._schema.arguments
    if func.namespace != "aten" or _OWN_WAY & set(func.tags) or func is _ZERO:
        return "", None
    if func is _LIKE_A_VIEW:
        return "view", None
    if not func._schema.is_mutable:
        shared = [each.alias_info is not None for each in returns]
        if shared == [True] and arguments and arguments[0].alias_info is not None:
            return "view", None
        return "new" if returns and not any(shared) else "", None
    written = [each.alias_info is not None and each.alias_info.is_write for each in arguments]
    same = not returns or (len(returns) == 1 and returns[0].alias_info is not None)
    if sum(written) != 1 or not same:
        return "", None
    last = arguments[-1]
    return ("written", None) if written[0] else ("written", last.name) if written[-1] and last.kwarg_only else ("", None)


@cache
def _tensors_returned(func: Any) -> int:
    """The number of an op's results; 0 if they are not tensors alone."""
    returns = func._schema.returns
    return len(returns) if all(str(each.type) == "Tensor" for each in returns) else 0


def _constant(values: Any) -> bool:
    """True if a tensor among the arguments has known values: results may have them too."""
    if isinstance(values, (list, tuple)):
        return any(map(_constant, values))
    return isinstance(values, FakeTensor) and values.constant is not None


def _state() -> tuple:
    """The settings on which shapes, layouts and dtypes depend."""
    return (
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        _C._get_cudnn_enabled(),
        _C._get_mkldnn_enabled(),
    )


def _like(value: Any, place: bool) -> Any:
    """The part of a value that results depend on. ``place``: its storage offset too."""
    if isinstance(value, FakeTensor):
        if value.constant is not None or value.layout is not torch.strided or value.dtype.is_complex:
            raise TypeError("the result may depend on its values, or on more than its shape")
        offset = value.storage_offset() if place else 0
        return value.shape, value.stride(), value.dtype, value.fake_device, offset, value.requires_grad
    if isinstance(value, (list, tuple)):
        return tuple([_like(each, place) for each in value])
    if type(value) in _PLAIN:
        return type(value), value
    raise TypeError(f"the result may depend on more of a {type(value)} than is compared")


def _recipe(kind: str, args: Any, made: Any) -> Any:
    """The facts from which a result can be made again; ``args``: of an op that writes, its target."""
    if kind == "written":
        return "first" if made is args else "none" if made is None else None
    if kind == "view":
        return _view_recipe(args[0], made)
    results = [made] if isinstance(made, FakeTensor) else made if type(made) in (list, tuple) else [None]
    tensors = [each for each in results if not isinstance(each, _NUMBERS)]
    given = _storages(args)
    if not tensors or len(given | _storages(tensors)) < len(given) + len(tensors):
        return None  # a view, though the op's schema does not say so
    recipes = [each if isinstance(each, _NUMBERS) else _one(each) for each in results]
    if [each is None for each in recipes] != [each is None for each in results]:
        return None
    return recipes[0] if isinstance(made, FakeTensor) else type(made)(recipes)


def _storages(values: Any) -> set[int]:
    """The addresses in C++ of the tensors' storages."""
    if isinstance(values, FakeTensor):
        return {values.untyped_storage()._cdata} if values.layout is torch.strided else set()
    return set().union(*map(_storages, values)) if isinstance(values, (list, tuple)) else set()


def _view_recipe(first: Any, made: Any) -> Any:
    if isinstance(made, (list, tuple)):
        views = [_view_recipe(first, each) for each in made]
        return None if None in views else views
    plain = isinstance(made, FakeTensor) and made.layout is torch.strided and made.constant is None
    if not plain or made is first or _storages(made) != _storages(first) or made.fake_device != first.fake_device:
        return None
    return _View(tuple(made.shape), made.stride(), made.dtype, int(made.storage_offset()))


def _one(made: Any) -> _New | None:
    """A tensor that can be made again: it has a storage of its own, no larger than it needs."""
    if (
        not isinstance(made, FakeTensor)
        or made.layout is not torch.strided
        or made.constant is not None
        or made.storage_offset()
    ):
        return None
    if made.untyped_storage().nbytes() != Made.of(made).needed:
        return None
    return _New(tuple(made.shape), made.stride(), made.dtype, made.fake_device)
