"""The tensors and values of a state dict, and what several ranks have of them together.

A rank has a box of a tensor: all of it, or a part that ``fully_shard`` and tensor parallel have left to it. Several ranks may
have the same box, which one of them writes then; and ranks may have other keys, as the stages of a pipeline have.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ... import io as files
from ...autograd.tensor import Tensor
from ...errors import StateDictError
from ...functional import creation
from ..collectives import all_gather_into_tensor
from ..group import ProcessGroup

Ints = tuple[int, ...]


class Box(NamedTuple):
    """A tensor of this rank: the shape of the whole, and where in it the box that it has begins."""

    tensor: Tensor
    shape: Ints
    starts: Ints

    def extent(self) -> tuple[Ints, Ints]:
        """The place where the box begins, and its shape."""
        return self.starts, tuple(self.tensor.array.shape)


def boxes_of(state_dict: Any) -> dict[str, Box]:
    """The tensors in a state dict, by dotted path."""
    found: dict[str, Box] = {}
    for key, tensor in _leaves(state_dict):
        if key in found:
            raise StateDictError(f"checkpoint: two tensors have the path {key}: rename one of the keys")
        shape, starts, mark = tuple(tensor.array.shape), (0,) * tensor.ndim, tensor._shard
        while mark is not None:
            shape, starts = mark.within(shape, starts)
            mark = mark.outer
        found[key] = Box(tensor, shape, starts)
    return found


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield ".".join(path), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, (*path, str(i)))


def values_of(value: Any) -> Any:
    """The state dict with ``None`` in place of tensors."""
    if isinstance(value, dict):
        return {key: values_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([values_of(item) for item in value])
    return None if isinstance(value, Tensor) else value


Step = tuple[dict, Any, Any]
"""An entry to set: the dict, the key, the value."""


def filling(mine: Any, values: Any, steps: list[Step], path: tuple[str, ...] = ()) -> Any:
    """``mine``, whose tensors are loaded, with the other values. Entries of dicts are set by ``steps``, which it adds.

    Below the first level, dicts get new keys too.

    Raises:
        StateDictError: a list with tensors has another length.
    """
    if isinstance(mine, Tensor):
        return mine
    if isinstance(mine, dict) and isinstance(values, dict):
        for key, value in values.items():
            if key in mine:
                steps.append((mine, key, filling(mine[key], value, steps, (*path, str(key)))))
            elif path and value is not None:
                steps.append((mine, key, value))
        return mine
    if isinstance(mine, (list, tuple)) and any(True for _ in _leaves(mine)):
        if not isinstance(values, (list, tuple)) or len(values) != len(mine):
            found = len(values) if isinstance(values, (list, tuple)) else f"{values!r:.40}"
            raise StateDictError(f"checkpoint.load: {'.'.join(path)} has {len(mine)} items, in the checkpoint {found}")
        each = enumerate(zip(mine, values, strict=True))
        return type(mine)([filling(a, b, steps, (*path, str(i))) for i, (a, b) in each])
    return values


# --- several ranks


def exchanged(group: ProcessGroup | None, value: Any) -> list[Any]:
    """The ``value`` of each rank: numbers, strings, ``None``, and dicts and lists of them."""
    if group is None:
        return [value]
    text = io.BytesIO()
    files.save([value], text)
    size = creation.tensor([text.tell()], device=group.device_type)
    sizes = creation.zeros(group.size(), dtype=size.dtype, device=group.device_type)
    all_gather_into_tensor(sizes, size, group)
    longest = max(sizes.tolist())
    mine = creation.tensor(np.frombuffer(text.getvalue().ljust(longest, b"\0"), np.uint8), device=group.device_type)
    every = creation.zeros(group.size() * longest, dtype=mine.dtype, device=group.device_type)
    all_gather_into_tensor(every, mine, group)
    texts = every.cpu().numpy().reshape(-1, longest)
    return [files.load(io.BytesIO(t[:n].tobytes()), "cpu")[0] for t, n in zip(texts, sizes.tolist(), strict=True)]


class Together:
    """The tensors and values that the ranks of a group have together.

    Attributes:
        shapes: key -> the shape of the whole.
        values: the values of all ranks, merged.
        holders: (key, *extent) -> the ranks that have it. The first of them writes it.
    """

    def __init__(self, group: ProcessGroup | None, boxes: dict[str, Box], values: dict[str, Any]) -> None:
        self.shapes: dict[str, list[int]] = {}
        self.values: dict[str, Any] = {}
        self.holders: dict[tuple, list[int]] = {}
        kinds: dict[str, list] = {}
        differing: dict[str, None] = {}  # an ordered set
        table = {key: [list(box.shape), str(box.tensor.dtype), *map(list, box.extent())] for key, box in boxes.items()}
        for rank, (theirs, others) in enumerate(exchanged(group, (table, values))):
            _merge(self.values, others, differing)
            for key, (shape, dtype, starts, part) in theirs.items():
                self.shapes[key] = shape
                self.holders.setdefault((key, tuple(starts), tuple(part)), []).append(rank)
                if kinds.setdefault(key, [shape, dtype]) != [shape, dtype]:
                    differing[key] = None
        _refuse(differing)
        self._check_whole()
        shared = [key for key, box in boxes.items() if self.holders[key, *box.extent()][1:]]
        sums = []
        for key in shared:
            host = np.ascontiguousarray(boxes[key].tensor.detach()._host())
            sums.append([key, *map(list, boxes[key].extent()), zlib.crc32(host.tobytes())])
        known: dict[tuple, int] = {}
        for key, starts, part, number in (row for rows in exchanged(group, sums) for row in rows):
            if known.setdefault((key, tuple(starts), tuple(part)), number) != number:
                differing[key] = None
        _refuse(differing)

    def _check_whole(self) -> None:
        boxes: dict[str, list[tuple[Ints, Ints]]] = {key: [] for key in self.shapes}
        for key, starts, part in self.holders:
            if 0 not in part:
                boxes[key].append((starts, part))
        torn = [f"{key} {shape}" for key, shape in self.shapes.items() if not make_up(shape, boxes[key])]
        if torn:
            raise StateDictError(
                f"checkpoint.save: the parts of these ranks do not make up {', '.join(torn[:20])}: give the process_group of "
                "all ranks that have a part"
            )

    def written_by(self, rank: int, boxes: dict[str, Box]) -> dict[str, Box]:
        """The boxes of a rank that the rank itself writes."""
        mine = {key: box for key, box in boxes.items() if box.tensor.numel()}
        return {key: box for key, box in mine.items() if self.holders[key, *box.extent()][0] == rank}


def make_up(shape: Sequence[int], boxes: list[tuple[Ints, Ints]]) -> bool:
    """Return whether boxes, where they begin and their shapes, make up all of ``shape`` without overlap."""
    ends = [[(starts[d], starts[d] + part[d]) for starts, part in boxes] for d in range(len(shape))]
    edges = [np.unique([0, n, *chain.from_iterable(e)]) for n, e in zip(shape, ends, strict=True)]
    count = np.zeros([len(e) - 1 for e in edges], np.int64)
    for i in range(len(boxes)):
        count[tuple([slice(*np.searchsorted(e, pairs[i])) for e, pairs in zip(edges, ends, strict=True)])] += 1
    return bool((count == 1).all())


def _merge(mine: dict, theirs: dict, differing: dict[str, None], path: tuple[str, ...] = ()) -> None:
    """Add the values of another rank. Paths at which they differ go into ``differing``."""
    for key, value in theirs.items():
        here = (*path, str(key))
        known = mine.setdefault(key, value)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value, differing, here)
        elif repr(known) != repr(value):
            differing[".".join(here)] = None


def _refuse(differing: Iterable[str]) -> None:
    """Raises: StateDictError: there are differences."""
    if names := list(differing):
        raise StateDictError(
            f"checkpoint.save: these differ between ranks: {', '.join(names[:20])}. Tensors that are not divided, and other "
            "values, must be the same on all ranks that have them. Stages of a pipeline need their optimizers' options by "
            "parameter: StateDictOptions(flatten_optimizer_state_dict=True)"
        )
