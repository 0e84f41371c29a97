"""A forked child: memory that other threads of the parent were just asking for is nobody's there."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable

from ..interrupts import whole
from .chunks import Chunk
from .pool import Block, Pool

_done: weakref.WeakSet[Pool] | None = None  # pools that were looked at since the fork; ``None`` in a process that is no child


def _in_child() -> None:
    global _done
    _done = weakref.WeakSet()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def reclaim(pool: Pool, blocks: Callable[[], Iterable[Block]]) -> None:
    """In a child, the first time: free each chunk of ``pool`` that none of ``blocks()``, which are all, has.

    A thread of the parent had asked for it and was about to make its block. Threads are not copied by a fork. A thread of the
    child may be about to do the same: while there are any, nothing is freed.
    """
    if _done is not None and pool not in _done and len(sys._current_frames()) == 1:
        whole(_reclaim, pool, blocks)


def _reclaim(pool: Pool, blocks: Callable[[], Iterable[Block]]) -> None:
    with pool._alone() as alone:  # nobody gets a chunk meanwhile; what is freed waits among those that are pending
        if not alone or _done is None:
            return  # from inside a change: the next track looks
        _done.add(pool)
        taken = [chunk for first in pool._firsts.values() for chunk in _from(first) if not chunk.free]
        held = {id(block.chunk) for block in blocks()} | {id(chunk) for chunk in pool._pending}
        pool._pending.extend(chunk for chunk in taken if id(chunk) not in held)


def _from(chunk: Chunk | None) -> Iterable[Chunk]:
    while chunk is not None:
        yield chunk
        chunk = chunk.next
