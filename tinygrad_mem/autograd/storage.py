"""The identity of memory that tensors share."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import NotOfferedError
from ..interrupts import lock


class Storage:
    """Memory that tensors share, with a count of in-place writes (the version) and the last op that wrote.

    A tensor and its views have one storage, so a write through a view counts too.
    """

    version = 0
    writer = ""
    constant: Any = None  # in a dry run, known values: their version, address, bytes

    def written(self, by: str) -> None:
        """Count an in-place write by the op ``by``."""
        with lock:  # a signal handler may write too
            self.version += 1
            self.writer = by

    def __call__(self) -> NoReturn:
        raise NotOfferedError(
            "Tensor.storage() is not offered: use `tensor.nbytes` and `tensor.data_ptr()`, as a tensor's memory is its array"
        )

    @staticmethod
    def of(tensor: Any) -> Storage:
        """The tensor's storage, made at the first use; two threads get the same one."""
        if tensor._storage is None:
            with lock:
                if tensor._storage is None:
                    tensor._storage = Storage()
        return tensor._storage
