"""Autocast as on CUDA: which op runs in which dtype.

PyTorch decides it in C++ for tensors that C++ sees on CUDA, which those of a prediction are not. The lists are read from the
header of the user's own PyTorch; the rules are those of ``aten/src/ATen/autocast_mode.h``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from ...errors import NotOfferedError
from ...interrupts import context
from .dispatcher import kernels, operator
from .replacing import patched

_LIST = re.compile(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)*.*)")
_OP = re.compile(r"_\((\w+)(?:,\s*(\w+))?\)")
_SMALL = 1 << 20  # bytes of the largest small request of PyTorch's allocator, and of the most that it does not split
_ORDER = (
    "autocast ends its casts of weights in the order of a table of addresses, which differs from run to run: which of their "
    "blocks are used again, and what is left of each and counts with it, is not known"
)
_NORM = re.compile(r'_\(ADD_NS\((\w+)\),\s*\\\n\s*"([\w.]+)"')


@cache
def lists() -> dict[str, list[str]]:
    """The ops of each list, by the list's name in PyTorch's header."""
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text() if header.exists() else ""
    found = {}
    for name, body in _LIST.findall(text):
        pairs = _OP.findall(body)
        found[name] = [f"{op}.{overload}" if overload else op for op, overload in pairs]
        if name == "DIFFERENT_REDISPATCH_SIGNATURE":
            found[name] = [overload for _, overload in _NORM.findall(body)]
    if not {"LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"} <= found.keys():
        raise NotOfferedError(
            f"predict: autocast's lists were expected in {header}, and are not there. Install PyTorch from a wheel"
        )
    return found


class CudaAutocast:
    """The kernels of autocast, and the casts of weights that it keeps until the outermost region ends.

    Args:
        role: a context manager that says what the next blocks are for.
        bound: called with the bytes by which memory in use may differ, and the reason.
        version: of PyTorch. Since 2.11 no cast is kept that is made in inference mode, and those that are kept have a graph
            even if they are made under ``no_grad``.
    """

    def __init__(self, role: Callable[[str], Any], bound: Callable[[int, str], None], version: tuple[int, int]) -> None:
        self._role, self._bound, self._newer = role, bound, version >= (2, 11)
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._stack: ExitStack | None = None

    @context
    def running(self) -> Iterator[None]:
        """Let autocast work for the tensors of a prediction, once :meth:`begin` has been called."""
        clear = partial(self._clear, torch.clear_autocast_cache)
        try:
            with patched((torch, {"clear_autocast_cache": clear})), ExitStack() as self._stack:
                yield
        finally:
            self._cache.clear()

    def begin(self) -> None:
        """Replace PyTorch's kernels until :meth:`running` ends. It takes time, and most programs do not use autocast."""
        if self._stack is not None:
            stack, self._stack = self._stack, None
            stack.enter_context(kernels("AutocastCUDA", self._table()))

    def _table(self) -> dict[str, Callable[..., Any]]:
        """The kernels, by the name of the op."""
        rules = {
            "LOWER_PRECISION_FP": lambda op, *args, **kwargs: self._call(op, _lower(), args, kwargs),
            "FP32": lambda op, *args, **kwargs: self._call(op, torch.float32, args, kwargs),
            "FP32_SET_OPT_DTYPE": self._float32_result,
            "DIFFERENT_REDISPATCH_SIGNATURE": self._float32_norm,
            "PROMOTE": self._widest,
        }
        table: dict[str, Callable[..., Any]] = {
            name: partial(rules[kind], operator(name))
            for kind, names in lists().items()
            if kind in rules
            for name in names
            if _exists(name)
        }
        return table | {"binary_cross_entropy": _refuse_bce}

    def _clear(self, own: Callable[[], None]) -> None:
        large = sum(cast.nbytes > _SMALL for _, cast in self._cache.values())
        if large > 1:  # a later request keeps what is left of a block of one of them, up to so much
            self._bound(large * _SMALL, _ORDER)
        self._cache.clear()
        own()

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            return [self._cast(v, dtype) for v in value]
        return self._cast_one(value, dtype)

    def _cast_one(self, value: Any, dtype: torch.dtype) -> Any:
        if not _eligible(value) or value.dtype == dtype:
            return value
        leaf = value.requires_grad and value.is_leaf and not value._is_view()
        kept = torch.is_autocast_cache_enabled() and not (self._newer and torch.is_inference_mode_enabled())
        if not (kept and leaf and value.dtype == torch.float32 and dtype == _lower()):
            return value.to(dtype)
        found = self._cache.get(id(value))
        if found is None:
            with self._role("WEIGHT_CAST"), torch.set_grad_enabled(self._newer or torch.is_grad_enabled()):
                found = self._cache[id(value)] = value, value.to(dtype)
        return found[1]

    def _call(self, op: Any, dtype: torch.dtype, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call an op with casts of its arguments, which are made from the last one on, and freed from the first one on.

        PyTorch has this order too: its wheels are built with GCC, which evaluates the arguments of a call from the last one on.
        """
        with torch._C._DisableAutocast():
            named = {key: self._cast(value, dtype) for key, value in reversed(kwargs.items())}
            cast = [self._cast(value, dtype) for value in reversed(args)][::-1]
            try:
                return op(*cast, **named)
            finally:
                _end(cast)

    # --- the rules --------------------------------------------------------------------------------------------------------

    def _float32_result(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        place = next((i for i, arg in enumerate(op._schema.arguments) if arg.name == "dtype"), None)
        with torch._C._DisableAutocast():
            given = kwargs.get("dtype") if place is None or len(args) <= place else args[place]
            if _eligible(args[0]) and given is None:
                args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)

    def _float32_norm(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        name = op._overloadname  # before PyTorch 2.13 also names_ScalarOpt_dim
        appended = operator("norm.ScalarOpt_dtype" if name == "Scalar" else f"norm.{name}_dtype")
        with torch._C._DisableAutocast():
            if not _eligible(args[0]):
                return op(*args, **kwargs)
            rest = {each.name: each.default_value for each in op._schema.arguments[len(args) :]}
            return appended(*args, **(rest | kwargs), dtype=torch.float32)

    def _widest(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [v for arg in (*args, *kwargs.values()) for v in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        wide = any(_eligible(t) and t.dtype == torch.float32 for t in tensors)
        return self._call(op, torch.float32 if wide else _lower(), args, kwargs)


def _end(values: list) -> None:
    """Drop the references to values, from the first to the last."""
    for place, value in enumerate(values):
        values[place] = None
        if isinstance(value, list):
            _end(value)


def _lower() -> torch.dtype:
    return torch.get_autocast_dtype("cuda")


def _eligible(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == torch.float64:
        return False
    return value.device.type == "cuda"


@cache
def _exists(name: str) -> bool:
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return found is not None and (overload or "default") in found.overloads()


def _refuse_bce(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. "
        "Use torch.nn.functional.binary_cross_entropy_with_logits"
    )
