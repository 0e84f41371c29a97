"""Meta: shapes, lifetimes and bytes of a run, without its memory and without its arithmetic.

The same pool as the cpu's, over address space that nobody touches, and kernels that do nothing. An op runs the same code
here as on a real device, so it allocates the same bytes in the same order: that is what makes a dry run a prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import DataDependenceError, DeviceError
from .base import device
from .cpu import CPU
from .pool import Pool


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


class NullKernels:
    """Every kernel of ``like`` does nothing; what kernels *say* (``*_workspace``: bytes that they want) is still asked."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._like, name)  # a kernel that does not exist is an error here too
        answer = kernel if name.endswith("_workspace") else _nothing
        setattr(self, name, answer)
        return answer


class Meta(CPU, kind="meta"):
    """``device("meta")``: nothing is computed, everything is counted."""

    lacking = None

    def _open(self) -> None:
        self.xp = np
        self.kernels = self.kernels_like("cpu")
        self.pool = Pool("meta", reserve=False)

    def kernels_like(self, kind: str) -> NullKernels:
        """What stands for the kernels of another kind of device: they want the workspaces that those want, and do nothing.

        Raises:
            DeviceError: ``kind`` is neither ``"cpu"`` nor ``"cuda"``, or CuPy, which says what CUDA kernels want, is missing.
        """
        if kind == "cpu":
            return NullKernels(device("cpu").kernels)
        if kind != "cuda":
            raise DeviceError(f"meta can be like 'cpu' or 'cuda', found {kind!r}")
        try:
            from ..kernels import cupy as kernels
        except ImportError as error:
            raise DeviceError(
                f"what a GPU would need is asked of CuPy's kernels ({error}); CuPy installs and imports without a GPU too: "
                "pip install 'tinygrad_mem[cuda]'"
            ) from None
        return NullKernels(kernels)

    def upload(self, source: np.ndarray, out: np.ndarray) -> None:
        pass

    def download(self, source: np.ndarray, out: np.ndarray) -> None:
        raise DataDependenceError(
            f"a tensor on device meta has a shape ({tuple(source.shape)}) and no values; "
            "move the module to a real device with to_empty() and load its parameters, or do not ask for values here"
        )
