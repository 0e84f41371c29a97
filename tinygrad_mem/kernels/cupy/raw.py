"""Kernels in CUDA C: compiled once for each combination of types, and launched."""

from __future__ import annotations

from functools import cache

import cupy
import numpy as np

NULL = np.uint64(0)  # a null pointer


@cache
def compiled(source, name, **types):
    """The kernel ``name`` of a source, with these types in place of its letters."""
    return cupy.RawModule(code=source.format(**types)).get_function(name)  # pyright: ignore


def launch(source, name, types, total, *arguments, threads=128, most=(1 << 31) - 1):
    """Run a kernel with a thread for each of ``total``, in at most so many blocks; none if there is nothing to do.

    ``None`` is passed as a null pointer.
    """
    if total:
        blocks = min(-(-int(total) // threads), most)
        compiled(source, name, **types)((blocks,), (threads,), tuple([NULL if a is None else a for a in arguments]))
