"""In a forked child: free the memory that other threads of the parent had just asked for."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable

from ..interrupts import uninterrupted
from .chunks import chain
from .pool import Block, Pool

_done: weakref.WeakSet[Pool] | None = None  # pools that were checked since the fork; ``None`` in a process that is not a child


def _in_child() -> None:
    global _done
    _done = weakref.WeakSet()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def reclaim(pool: Pool, blocks: Callable[[], Iterable[Block]]) -> None:
    """In a child, the first time: free each chunk of ``pool`` that has no block in ``blocks()``, which lists all blocks.

    A thread of the parent had taken such a chunk and was about to make its block; a fork does not copy threads. A thread of the
    child may be about to do the same, so nothing is freed while the child has other threads.
    """
    if _done is not None and pool not in _done and len(sys._current_frames()) == 1:
        uninterrupted(_reclaim, pool, blocks)


def _reclaim(pool: Pool, blocks: Callable[[], Iterable[Block]]) -> None:
    with pool._alone() as alone:  # no chunk is taken meanwhile; chunks that are freed are pending
        if not alone or _done is None:
            return  # inside a change: the next track tries again
        _done.add(pool)
        taken = [chunk for first in pool._firsts.values() for chunk in chain(first) if not chunk.free]
        held = {id(block.chunk) for block in blocks()} | {id(chunk) for chunk in pool._pending}
        pool._pending.extend(chunk for chunk in taken if id(chunk) not in held)
