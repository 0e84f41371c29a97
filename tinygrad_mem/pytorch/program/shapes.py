"""Results of ops: PyTorch's formulas, asked once for each kind of call, and ours where fake tensors get them wrong.

What was told is kept for later predictions of this process: most programs are predicted more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ...errors import DataDependenceError
from .alone import NO_LARGER
from .described import Made
from .layouts import IN_LAYOUT

aten = torch.ops.aten
_C: Any = torch._C
_make, _set_throw = torch.Tensor._make_subclass, _C._set_throw_on_mutable_data_ptr
_MOST = 1 << 16  # calls
_known: dict[tuple, Any] = {}
_CPU = torch.device("cpu")
_BIAS_TRAINED = 15  # place of an argument of efficient attention's backward
_LINE = 16  # bytes: rows of a grouped product begin at multiples of it on CUDA
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_OWN_WAY = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view}
"""Of ops whose results follow from more than shapes, or that turn an argument into a view."""


class _Told(NamedTuple):
    """A result."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _View(NamedTuple):
    """A result that lies in the memory of the first argument."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int


class Results:
    """The results of ops. What calls return that are alike but for contents is remembered: PyTorch's own way takes far longer.

    Args:
        fake: the mode whose tensors they are.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        self._fake = fake
        self._like_first: dict[torch.device, dict[str, Any]] = {}  # the attributes of a fake tensor, by its device
        if len(_known) > _MOST:
            _known.clear()

    def of(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of a call."""
        ours = _SHAPES.get(func)
        if ours is not None and (made := ours(*args, **kwargs)) is not NotImplemented:
            return made
        kind, written = _kind(func)
        if not kind or (kind == "view" and (torch.is_inference_mode_enabled() or args[0].is_inference())):
            return func(*args, **kwargs)
        target = kwargs[written] if written in kwargs else args[0] if args else None
        try:
            place = kind == "view"
            given = tuple([_like(value, place) for value in args])
            named = tuple([(name, _like(value, place)) for name, value in kwargs.items()]) if kwargs else ()
            key = id(func), _state(), given, named
            found = _known.get(key)
        except TypeError:
            return func(*args, **kwargs)
        if found is not None:
            return self._again(found[0], target)
        before = getattr(target, "shape", None)
        made = self._view(func, args, kwargs) if kind == "view" else NotImplemented
        if made is NotImplemented:
            made = IN_LAYOUT.get(func, func)(*args, **kwargs)
        told = _told(kind, target if kind == "written" else args, made)
        if told is not None and (kind != "written" or before == getattr(target, "shape", None)):  # else resized
            _known[key] = told, func  # which is kept, so that its id stays its own
        return made

    def real(self, func: Any, args: tuple, kwargs: dict[str, Any], made: tuple[Made | None, ...]) -> Any:
        """The result of a call on the CPU, by what a real one has made; ``None``: that does not tell."""
        if _constant(args) or not made:
            return None
        kind, written = _kind(func)
        if len(made) != _tensors_returned(func):
            return None
        if kind == "written" and made == (None,):
            return args[0] if written is None else kwargs[written]
        if any(each is not None and each.size != _needed(each) for each in made):
            return None  # a result keeps more than its elements
        if func not in NO_LARGER and (kind != "new" or None in made):
            return None
        tensors = [None if each is None else self._tensor(_Told(each.sizes, each.strides, each.dtype, _CPU)) for each in made]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _view(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A view, by PyTorch's own kernel on ``meta``; ``NotImplemented``: only fake tensors can tell."""
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
            return self._like(made, first.fake_device) if isinstance(made, torch.Tensor) else NotImplemented

    def _again(self, found: Any, first: Any) -> Any:
        if found in ("first", "none"):
            return first if found == "first" else None
        if isinstance(found, _Told):
            return self._tensor(found)
        if isinstance(found, _View):
            with torch._C._DisableTorchDispatch():
                meta = torch.empty(0, dtype=found.dtype, device="meta")
                meta.set_(first.untyped_storage(), found.offset, found.sizes, found.strides)
                return self._like(meta, first.fake_device)
        return type(found)(None if each is None else self._tensor(each) for each in found)

    def _tensor(self, told: _Told) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            meta = torch.empty_strided(told.sizes, told.strides, dtype=told.dtype, device="meta")
            return self._like(meta, told.device)

    def made_of_list(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A tensor that C++ made of a list of numbers, on ``meta``, where it believes the GPU is."""
        with torch._C._DisableTorchDispatch():
            return self._like(meta, device)

    def _like(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A fake tensor. The first on a device is made in PyTorch's way, which takes long, and the others like it."""
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
def _kind(func: Any) -> tuple[str, str | None]:
    """The memory in which the results of an op lie.

    ``"new"``: in their own; ``"view"``: it has one, in its first argument's; ``"written"``: it writes to one argument alone,
    the first, or the keyword that stands beside this; ``""``: anything else.
    """
    returns, arguments = func._schema.returns, func._schema.arguments
    if func.namespace != "aten" or _OWN_WAY & set(func.tags):
        return "", None
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
    """True if the contents of a tensor among the values are known: those of results may be, too."""
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
    """A value as far as results depend on it. ``place``: also on where it lies in its memory."""
    if isinstance(value, FakeTensor):
        if value.constant is not None or value.layout is not torch.strided or value.dtype.is_complex:
            raise TypeError("its contents, or more than its shape, may count")
        offset = value.storage_offset() if place else 0
        return value.shape, value.stride(), value.dtype, value.fake_device, offset, value.requires_grad
    if isinstance(value, (list, tuple)):
        return tuple([_like(each, place) for each in value])
    if type(value) in _PLAIN:
        return type(value), value
    raise TypeError(f"{type(value)} may be more than it shows")


def _told(kind: str, args: Any, made: Any) -> Any:
    """The facts from which a result can be made again; ``args``: of an op that writes, its target."""
    if kind == "written":
        return "first" if made is args else "none" if made is None else None
    if kind == "view":
        return _shared(args[0], made)
    results = [made] if isinstance(made, FakeTensor) else made if type(made) in (list, tuple) else [None]
    tensors = [each for each in results if each is not None]
    given = _storages(args)
    if not tensors or len(given | _storages(tensors)) < len(given) + len(tensors):
        return None  # a view, such as that of ``_unsafe_view``, whose schema does not say so
    told = [None if each is None else _one(each) for each in results]
    if [each is None for each in told] != [each is None for each in results]:
        return None
    return told[0] if isinstance(made, FakeTensor) else type(made)(told)


def _storages(values: Any) -> set[int]:
    """The addresses in C++ of what tensors lie in."""
    if isinstance(values, FakeTensor):
        return {values.untyped_storage()._cdata} if values.layout is torch.strided else set()
    return set().union(*map(_storages, values)) if isinstance(values, (list, tuple)) else set()


def _shared(first: Any, made: Any) -> _View | None:
    plain = isinstance(made, FakeTensor) and made.layout is torch.strided and made.constant is None
    if not plain or made is first or _storages(made) != _storages(first) or made.fake_device != first.fake_device:
        return None
    return _View(tuple(made.shape), made.stride(), made.dtype, int(made.storage_offset()))


def _needed(made: Made) -> int:
    """Bytes from the first element of a result to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(made.sizes, made.strides, strict=True))
    return (last + 1) * made.dtype.itemsize if 0 not in made.sizes else 0


def _one(made: Any) -> _Told | None:
    """A tensor that can be made again: it has a storage of its own, no larger than it needs."""
    if (
        not isinstance(made, FakeTensor)
        or made.layout is not torch.strided
        or made.constant is not None
        or made.storage_offset()
    ):
        return None
    if made.untyped_storage().nbytes() != _needed(Made.of(made)):
        return None
    return _Told(tuple(made.shape), made.stride(), made.dtype, made.fake_device)


# --- formulas of our own --------------------------------------------------------------------------------------------------


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A product for each group of rows, or of columns; PyTorch's formula takes bfloat16 alone.

    Source: ``aten/src/ATen/native/GroupedMMUtils.h``, ``create_grouped_gemm_output_tensor``.
    """
    groups = [] if a.dim() != b.dim() else [offs.shape[0] if offs is not None else a.shape[0]]
    rows, columns, dtype = a.shape[-2], b.shape[-1], out_dtype or a.dtype
    on_gpu = isinstance(a, FakeTensor) and a.fake_device.type == "cuda"
    line = _LINE // dtype.itemsize if on_gpu else 1
    padded = -(-columns // line) * line
    strides = [rows * padded] * len(groups) + [padded, 1]
    return a.new_empty_strided([*groups, rows, columns], strides, dtype=dtype)


def _random_on_cpu(func: Any) -> Callable[..., tuple[Any, ...]]:
    """Efficient attention's seed and offset of random numbers are there. Source: ``transformers/cuda/attention.cu``."""

    def call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        made, sums, _seed, _offset, *rest = func(*args, **kwargs)
        return made, sums, *(made.new_empty((), dtype=torch.int64, device="cpu") for _ in range(2)), *rest

    return call


def _efficient_attention_backward(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """No gradient of a bias that wants none. Source: ``transformers/cuda/attention_backward.cu``."""
    made = aten._efficient_attention_backward.default(*args, **kwargs)
    return made if args[_BIAS_TRAINED] else (*made[:3], None)


def _cudnn_attention(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """No sums where no gradient is wanted. Source: ``transformers/cuda/attention.cu``; ``cudnn/MHA.cpp``."""
    made = aten._scaled_dot_product_cudnn_attention.default(*args, **kwargs)
    wanted = args[4] if len(args) > 4 else kwargs["compute_log_sumexp"]
    return made if wanted else (made[0], None, *made[2:])


def _encoder_layer(source: torch.Tensor, *_: Any) -> torch.Tensor:
    return source.new_empty(source.shape)


def _attention_layer(
    query: torch.Tensor, key: Any, value: Any, width: int, heads: int, *given: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Source: ``aten/src/ATen/native/transformers/attention.cpp``, ``native_multi_head_attention_cpu``."""
    need_weights, average = (*given[5:7], *(True, True)[len(given[5:7]) :])
    places = query.shape[1], query.shape[1]
    weights = query.new_empty((query.shape[0], *(() if average else (heads,)), *places)) if need_weights else None
    return query.new_empty(query.shape), weights


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, inputs: Any, lengths: Any, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss of each sequence, and a table of all its steps, as wide as the longest target; see :mod:`.reading`.

    Source: ``aten/src/ATen/native/LossCTC.cpp``.
    """
    if targets.dim() != 2:
        raise DataDependenceError(
            "ctc_loss: the lengths of targets that lie one behind the other are not known in a prediction. Give targets of "
            "shape (batch, longest)"
        )
    steps, batch = log_probs.shape[:2]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * targets.shape[1] + 1)


def _keeps_all(func: Any) -> Callable[..., torch.Tensor]:
    """The formula of a loss that PyTorch makes as large as all its elements, and then calls one number: its memory stays so.

    Source: ``aten/src/ATen/native/Loss.cpp``, the meta functions of ``mse_loss`` and ``smooth_l1_loss``, and
    ``soft_margin_loss_out``; ``cuda/Loss.cu``, ``binary_cross_entropy_out_cuda``.
    """

    def loss(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = func(input, target, *args, **kwargs)
        size = torch.broadcast_shapes(input.shape, target.shape).numel() * made.element_size()
        made.untyped_storage().resize_(max(size, made.untyped_storage().nbytes()))
        return made

    return loss


def _to_copy(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
    """Gaps between elements stay in PyTorch's formula for another device, but not in its kernel.

    Source: ``aten/src/ATen/native/TensorConversions.cpp``, ``_to_copy``.
    """
    device, dtype = options.get("device"), options.get("dtype") or tensor.dtype
    if device in (None, tensor.device) or options.get("memory_format") not in (None, torch.preserve_format):
        return NotImplemented
    if _needed(Made.of(tensor)) == tensor.numel() * tensor.element_size():
        return NotImplemented
    layout = suggest_memory_format(tensor)
    return torch.empty(tensor.shape, dtype=dtype, device=device, memory_format=layout)


def _efficient_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor | None, ...]:
    """PyTorch's formula lacks one of the arguments.

    Source: ``aten/src/ATen/native/transformers/cuda/attention_backward.cu``, ``_efficient_attention_backward``.
    """
    grads = [each.new_empty(each.shape) for each in (query, key, value)]
    if bias is None:
        return *grads, None
    *outer, last = bias.shape
    return *grads, bias.new_empty(*outer, -(-last // _LINE) * _LINE)[..., :last]


def _like_argument(place: int) -> Callable[..., torch.Tensor]:
    """The formula of an op whose result is like one of its arguments, in rows that lie beside each other."""
    return lambda *args, **_: args[place].new_empty(args[place].shape)


def _uncached(func: Any) -> Callable[..., Any]:
    """The mode of fake tensors remembers calls with their storages, and so would hold those for ever."""

    def call(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        mode: Any = tensor.fake_mode
        before, mode.cache_enabled = mode.cache_enabled, False
        try:
            return func(tensor, *args, **kwargs)
        finally:
            mode.cache_enabled = before

    return call


_LARGE_LOSSES = ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "soft_margin_loss")
SETS = {aten.set_.source_Storage, aten.set_.source_Storage_storage_offset}
_SHAPES: dict[Any, Callable[..., Any]] = {
    aten._grouped_mm.default: _grouped_mm,
    **{
        op.default: _random_on_cpu(op.default)
        for op in (aten._scaled_dot_product_efficient_attention, aten._efficient_attention_forward)
    },
    aten._efficient_attention_backward.default: _efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten._native_multi_head_attention.default: _attention_layer,
    aten._to_copy.default: _to_copy,
    aten._efficient_attention_backward.default: _efficient_backward,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._ctc_loss_backward.Tensor: _like_argument(1),
    aten._sample_dirichlet.default: _like_argument(0),
    aten.multi_margin_loss_backward.default: _like_argument(1),
    aten.multilabel_margin_loss_backward.default: _like_argument(1),
    aten.fractional_max_pool3d_backward.default: _like_argument(1),
    **{op: _uncached(op) for op in SETS},
    **{getattr(aten, name).default: _keeps_all(getattr(aten, name).default) for name in _LARGE_LOSSES},
}
