"""Stand-ins for ``torch.compiler`` and ``torch.compile``: nothing is compiled, operations run as they are written."""

from __future__ import annotations

from typing import Any, TypeVar

from ..absent import say_once

F = TypeVar("F")


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: Any = None,
    disable: bool = False,
) -> Any:
    """Return the module or function itself, also as ``@compile`` and ``@compile(...)``. The first call warns.

    The arguments are taken for compatibility. Bytes are those of eager PyTorch: no op is fused.
    """
    if not disable:
        say_once("compile", "compile: nothing is compiled here: the model runs, and uses memory, as it is written")
    return model if model is not None else lambda function: function


def is_compiling() -> bool:
    """Return False: no compiler traces this."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def disable(fn: Any = None, recursive: bool = True, **kwargs: Any) -> Any:
    """Return the function itself, as ``@disable`` and as ``@disable(...)``."""
    return fn if fn is not None else lambda function: function


def allow_in_graph(fn: F) -> F:
    """Return the function itself."""
    return fn


assume_constant_result = allow_in_graph


def reset() -> None:
    """Do nothing: no compiled code or graph of kernels is kept."""


cudagraph_mark_step_begin = reset
