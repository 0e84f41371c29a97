"""A forked child: memory that other threads of the parent were just asking for is nobody's there."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable

from .chunks import Chunk
from .pool import Block, Pool

_done: weakref.WeakSet[Pool] | None = None  # pools that were looked at since the fork; ``None`` in a process that is no child


def _in_child() -> None:
    global _done
    _done = weakref.WeakSet()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def reclaim(pool: Pool, blocks: Iterable[Block]) -> None:
    """In a child, the first time: free each chunk of ``pool`` that none of ``blocks``, which are all, has.

    A thread of the parent had asked for it and was about to make its block. Threads are not copied by a fork.
    """
    if _done is None or pool in _done:
        return
    held = {id(block.chunk) for block in blocks}
    with pool._alone() as alone:
        if not alone:
            return  # from inside a change: the next track looks
        _done.add(pool)
        for first in pool._firsts.values():
            chunk: Chunk | None = first
            while chunk is not None:
                if not chunk.free and id(chunk) not in held:
                    pool._pending.append(chunk)
                chunk = chunk.next
