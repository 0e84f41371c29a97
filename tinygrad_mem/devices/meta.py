"""Meta: shapes, lifetimes and bytes of a run, without its memory and without its arithmetic.

It has the same pool as the cpu, over addresses without memory, and kernels that do nothing. An op runs the same code
here as on a real device, so it allocates the same bytes in the same order. This makes a dry run a prediction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import scope
from ..dtypes import get_default_dtype
from ..errors import DataDependenceError, DeviceError
from .base import device
from .cpu import CPU
from .pool import Pool
from .random import Apart, Generator


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


class NullKernels:
    """The kernels of ``like``, doing nothing. Functions that return sizes (``*_workspace``) are called as usual."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._like, name)  # a kernel that does not exist is an error here too
        answer = kernel if name.endswith("_workspace") else _nothing
        setattr(self, name, answer)
        return answer


def _patient(method: Any) -> Any:
    @functools.wraps(method)
    def wait(self: Pool, *args: Any) -> Any:
        scope.scanning.wait()
        return method(self, *args)

    return wait


class _DryPool(Pool):
    """The memory of a dry run. It waits while other threads inspect its objects: they must not change the run."""

    malloc, counts, free_all_blocks = map(_patient, (Pool.malloc, Pool.counts, Pool.free_all_blocks))
    reset_peak, largest_free = map(_patient, (Pool.reset_peak, Pool.largest_free))
    holes, n_free_blocks = map(_patient, (Pool.holes, Pool.n_free_blocks))


class Meta(CPU, kind="meta"):
    """``device("meta")``: nothing is computed, everything is counted."""

    lacking = None
    # of a dry run
    draws: Apart  # its states of generators
    default_dtype: np.dtype
    place: tuple[int, int] | None = None  # the rank that it plays, and the number of ranks
    process_group: Any = None  # the default one
    answers: dict[bytes, np.ndarray]  # what each rank would have been told, where that depends on the rank
    mesh: tuple[tuple[str, ...], np.ndarray] | None = None  # the names and the ranks of the first one
    sent = 0  # bytes that the rank would have sent

    def _open(self) -> None:
        self.xp = np
        self.kernels = self.kernels_like("cpu")
        self.pool = Pool("meta", reserve=False)

    @classmethod
    def apart(cls, like: str) -> Meta:
        """A device for one dry run, with its own pool, kernels and random numbers. Raises: as :meth:`kernels_like`."""
        self: Any = object.__new__(cls)
        self.kernels, self.pool = cls.kernels_like(like), _DryPool("meta", reserve=False)
        self.type, self.index = like, 0 if like == "cuda" else None
        self.xp, self.whose, self.like = np, " of a prediction", like
        self.draws, self.default_dtype, self.answers = Apart(), get_default_dtype(), {}
        self.generator = Generator()  # without a device: a reference cycle would live until the garbage collector runs
        self.draws.set(self.generator, device("cpu").generator.state)
        return self

    @staticmethod
    def kernels_like(kind: str) -> NullKernels:
        """Kernels that do nothing, with the workspaces of a cpu or a cuda device.

        Raises:
            DeviceError: ``kind`` is neither ``"cpu"`` nor ``"cuda"``, or CuPy is missing, whose kernels know their workspaces.
        """
        if kind == "cpu":
            from ..kernels import numpy

            return NullKernels(numpy)
        if kind != "cuda":
            raise DeviceError(f"memory is predicted for 'cpu' or 'cuda', found {kind!r}")
        try:
            from ..kernels import cupy as kernels
        except ImportError as error:
            raise DeviceError(
                f"a prediction for a GPU needs CuPy ({error}), which installs and imports without a GPU too: "
                "pip install cupy-cuda12x"
            ) from None
        return NullKernels(kernels)

    def over_pool(self, pool: Pool, of: device) -> Any:
        host: Any = super().over_pool(pool, of)
        if host.like != "cpu":
            host.type, host.index, host.like, host.kernels = "cpu", None, "cpu", self.kernels_like("cpu")
        return host

    def over(self, memory: np.ndarray) -> np.ndarray:
        return self.empty(memory.shape, memory.dtype)

    def upload(self, source: np.ndarray, out: np.ndarray) -> None:
        self.workspace(self.kernels.staging_workspace(out))

    def download(self, source: np.ndarray, out: np.ndarray) -> None:
        shape = tuple(source.shape)
        if self.whose:
            raise DataDependenceError(
                f"a tensor has a shape ({shape}) and no values in a prediction: ask `tensor.is_meta` before you read them, and "
                "use there values that stand for those of the run"
            )
        raise DataDependenceError(
            f"a tensor on device meta has a shape ({shape}) and no values; "
            "move the module to a real device with to_empty() and load its parameters, or do not ask for values here"
        )
