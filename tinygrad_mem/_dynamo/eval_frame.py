"""A stand-in for ``torch._dynamo.eval_frame``: ``isinstance(model, OptimizedModule)`` is never true."""

from __future__ import annotations

from typing import Any

from ..errors import NotOfferedError
from ..nn.module import Module


class OptimizedModule(Module):
    """A module that was compiled: there is none, since ``compile`` gives the module itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError("_dynamo.OptimizedModule: nothing is compiled here: call the module itself")
