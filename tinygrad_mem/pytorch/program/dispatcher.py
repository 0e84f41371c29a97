"""Our kernels in place of PyTorch's, for the tensors of a running prediction."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor

from ...interrupts import context
from .fake import flat, unwrapped

Kernel = Callable[..., Any]
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@context
def kernels(key: str, table: dict[str, Kernel]) -> Iterator[None]:
    """Let ops run other kernels under the dispatch key ``key``.

    Args:
        table: name of an op, with its overload (``"pow.Tensor_Scalar"``) -> its kernel. Tensors that are not of a prediction go
            to PyTorch's own kernel: other threads may train. So do those for which a kernel says ``NotImplemented``.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that its kernels are replaced
            for name, kernel in table.items():
                library.impl(name, _ours(name, key, kernel), key, with_keyset=True, allow_override=True)
        yield
    finally:
        library._destroy()


def _ours(name: str, key: str, kernel: Kernel) -> Kernel:
    op, place = operator(name), getattr(torch._C.DispatchKey, key)  # which PyTorch finds slowly by its name
    own = None
    made_of_others = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", _COMPOSITE)
    if not made_of_others or torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", place):
        own = torch.library.get_kernel(f"aten::{name}", place)

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(unwrapped(leaf), FakeTensor) for leaf in flat([*args, *kwargs.values()])):
            made = kernel(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if own is not None:
            return own.call_boxed(keys, *args, **kwargs)
        return decomposed(op, args, kwargs)

    return run


@cache
def operator(name: str) -> Any:
    """The op of a name with its overload, such as ``"pow.Tensor_Scalar"``."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def operators(names: str) -> list[Any]:
    """The ops of these names, with spaces between them."""
    return [operator(name) for name in names.split()]


def decomposed(op: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of an op that PyTorch makes of others; ``NotImplemented``: it does not.

    By its C++: what is written in Python for compilers, such as recurrent layers, takes other memory.
    """
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE):
        return op._op_dk(_COMPOSITE, *args, **kwargs)
    return op.decompose(*args, **kwargs)


def written_in_python(op: Any) -> Kernel:
    """The Python function of an op that ``torch.library.custom_op`` made."""
    return OPDEFS[op._schema.name]._init_fn
