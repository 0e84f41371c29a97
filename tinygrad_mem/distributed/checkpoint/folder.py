"""A checkpoint is a folder: an index, and a safetensors file of each rank with its parts of tensors.

The index is written last, in one stroke, and names the files that belong to it. Until then the older checkpoint in the folder
is whole; afterwards its files are removed. So a folder holds one whole checkpoint at any time, or none.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import io as files
from ... import safetensors
from ...autograd.tensor import Tensor
from ...errors import DataDependenceError, FileFormatError, NotOfferedError, RankError, StateDictError
from ...files import remove_leftovers, replacing
from ...functional import creation
from ...interrupts import uninterruptible
from ..collectives import all_reduce, broadcast
from ..group import ProcessGroup, ReduceOp
from ..groups import is_initialized, own_group
from .boxes import Box, Step, Together, boxes_of, exchanged, filling, make_up, values_of

_INDEX, _STARTS = "index.safetensors", "starts"
_FILE = re.compile(r"[0-9a-f]{16}-[0-9]{5}\.safetensors")


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
) -> None:
    """Write a state dict into the folder ``checkpoint_id``: all of it, or nothing. All ranks call it.

    Each rank writes its parts of the parameters that ``fully_shard`` and tensor parallel have divided, and of their optimizer
    state. What several ranks have must be the same on all of them, and is written once. Ranks may have other keys, as stages of
    a pipeline have: name their parameters as in the whole network. If a rank fails, or is killed, the folder keeps the
    checkpoint that it had.

    Args:
        state_dict: tensors, numbers, strings, ``None``, and dicts and lists of them; see :func:`.state_dict.get_state_dict`.
        process_group: the ranks; by default all, or this process alone if there is no group. They have all parts together.
        no_dist: this process alone.
        storage_writer, planner: not offered.

    Raises:
        RankError: another rank failed.
        StateDictError: what several ranks have is not the same; or parts of a tensor are missing.
        OSError: this rank could not write.
        DataDependenceError: in a prediction; tensors on ``meta`` have no values.

    >>> checkpoint.save({"model": model.state_dict()}, checkpoint_id="step_100")
    """
    group = _group(process_group, no_dist, storage_writer, planner)
    boxes = boxes_of(state_dict)
    if any(box.tensor.is_meta for box in boxes.values()):
        raise DataDependenceError("checkpoint.save: tensors on meta have no values")
    values = values_of(state_dict)
    _together(group, lambda: files.save([values], io.BytesIO()), "write its values")
    every = Together(group, boxes, values)
    me, folder, token = 0 if group is None else group._rank, Path(checkpoint_id), _token(group)
    names = [f"{token}-{rank:05}.safetensors" for rank in range(1 if group is None else group.size())]

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / names[me], every.written_by(me, boxes))

    def commit() -> None:
        if me == 0:
            files.save({"files": names, "shapes": every.shapes, "values": every.values}, folder / _INDEX)
            for path in folder.iterdir():
                old = _FILE.match(path.name)
                if old is not None and old[0] not in names:
                    remove_leftovers(folder / old[0])  # a rank that was killed while it wrote had begun this file
                    (folder / old[0]).unlink(missing_ok=True)

    try:
        _together(group, write, "write its file")
        _together(group, commit, "write the index")
    except BaseException:
        with suppress(OSError, FileFormatError):
            if not (folder / _INDEX).exists() or names[me] not in _index(folder)["files"]:
                (folder / names[me]).unlink(missing_ok=True)
        raise


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
) -> None:
    """Read a checkpoint into the tensors of ``state_dict``, and its other values into the dict. All ranks call it.

    Each rank reads its parts. The ranks may be divided in another way than those that saved, and one process can read all. Each
    key of the dict must be there, with all that is below it, or is below it on another rank; other keys of the checkpoint are
    left out. If a rank cannot read, nothing is changed on any. Until then this rank's parts are twice in memory: once on the
    host, outside of the pool.

    Args, raises: as :func:`save`; and
        StateDictError: keys or shapes do not fit; the message lists them.
        FileNotFoundError: there is no whole checkpoint in the folder.
        FileFormatError: a file is damaged.

    >>> state = {"model": model.state_dict()}
    >>> checkpoint.load(state, checkpoint_id="step_100")
    """
    group = _group(process_group, no_dist, storage_reader, planner)
    found: list[tuple[Tensor, np.ndarray]] = []
    boxes = boxes_of(state_dict)
    known = {key for keys in exchanged(group, list(boxes)) for key in keys}

    def read() -> list[Step]:
        folder = Path(checkpoint_id)
        index = _index(folder)
        _check(state_dict, boxes, known, index)
        pieces = _pieces(folder, index["files"])
        found.extend((box.tensor, _read(folder, key, box, pieces.get(key, []))) for key, box in boxes.items())
        steps: list[Step] = []
        filling(state_dict, index["values"], steps)
        return steps

    _put(found, _together(group, read, "read the checkpoint"))


@uninterruptible
def _put(found: list[tuple[Tensor, np.ndarray]], steps: list[Step]) -> None:
    """Write all values that were read."""
    for tensor, host in found:
        tensor.device.upload(host, tensor.array)
        tensor.storage.written("checkpoint.load")
    for entries, key, value in steps:
        entries[key] = value


def _check(state_dict: dict, boxes: dict[str, Box], known: set[str], index: dict) -> None:
    """Check that the checkpoint has all of the state dict, and no more below its keys than the ``known`` of all ranks."""
    shapes = index["shapes"]
    problems = [f"{key} is not in the checkpoint" for key in boxes if key not in shapes]
    problems += [f"{key} is not in the checkpoint" for key in state_dict if key not in index["values"]]
    for key, shape in shapes.items():
        if key in boxes and tuple(shape) != boxes[key].shape:
            problems.append(f"{key} has shape {list(boxes[key].shape)}, in the checkpoint {shape}")
        if key not in known and any(key == top or key.startswith(f"{top}.") for top in map(str, state_dict)):
            problems.append(f"{key} is in the checkpoint, not in the state dict")
    if problems:
        said = "; ".join(problems[:20])
        raise StateDictError(f"checkpoint.load: {said}. Make the state of an optimizer with get_state_dict(model, optimizer)")


# --- files


def _write(path: Path, boxes: dict[str, Box]) -> None:
    starts = {_STARTS: json.dumps({key: list(box.starts) for key, box in boxes.items()})}
    with replacing(path) as file:
        shapes = {key: (box.tensor.dtype, tuple(box.tensor.shape)) for key, box in boxes.items()}
        for key in safetensors.write_header(file, shapes, starts):
            array = np.ascontiguousarray(boxes[key].tensor.detach()._host())
            file.write(array.reshape(-1).view(np.uint8).data)


def _index(folder: Path) -> dict[str, Any]:
    """The index of a checkpoint."""
    found = files.load(folder / _INDEX, map_location="cpu")
    names, shapes = found.get("files"), found.get("shapes")
    if not (
        isinstance(names, list) and all(isinstance(n, str) and _FILE.fullmatch(n) for n in names)
        and isinstance(shapes, dict) and isinstance(found.get("values"), dict)
    ):  # fmt: skip
        raise FileFormatError(f"{folder / _INDEX}: this is not the index of a checkpoint")
    return found


class _Piece(NamedTuple):
    """A box of a tensor in a file."""

    path: Path
    at: int  # the first byte of the file's data
    entry: safetensors.Entry
    starts: tuple[int, ...]

    def rows(self, first: int, last: int) -> np.ndarray:
        """Some rows of the tensor. A number counts as a row."""
        shape = self.entry.shape or (1,)
        row = (self.entry.end - self.entry.begin) // shape[0]
        with self.path.open("rb") as file:
            file.seek(self.at + self.entry.begin + first * row)
            host = np.frombuffer(file.read((last - first) * row), np.uint8)
        if host.size != (last - first) * row:
            raise FileFormatError(f"{self.path}: the file ended inside tensor {self.entry.name!r}")
        safetensors.check_bools(host, self.entry, str(self.path))
        return host.view(self.entry.dtype).reshape(last - first, *shape[1:])


def _pieces(folder: Path, names: list[str]) -> dict[str, list[_Piece]]:
    """The boxes of all tensors in the files of a checkpoint."""
    found: dict[str, list[_Piece]] = {}
    for name in names:
        path = folder / name
        with path.open("rb") as file:
            entries, metadata = safetensors.read_header(file, path.stat().st_size, str(path))
            at = file.tell()
        try:
            starts = json.loads(metadata[_STARTS])
            for entry in entries:
                begin = tuple(map(int, starts[entry.name]))
                if len(begin) != len(entry.shape):
                    raise ValueError(entry.name)
                found.setdefault(entry.name, []).append(_Piece(path, at, entry, begin))
        except (KeyError, TypeError, ValueError):
            raise FileFormatError(f"{path} does not say which parts of tensors it holds") from None
    return found


def _read(folder: Path, key: str, box: Box, pieces: list[_Piece]) -> np.ndarray:
    """The box that ``box`` has, in its dtype, from the pieces of its tensor."""
    out = np.empty(box.tensor.array.shape, box.tensor.dtype)
    if not out.size:
        return out
    for piece in pieces:
        if len(piece.starts) != len(box.shape):
            raise FileFormatError(f"{piece.path}: {key} has {list(piece.entry.shape)}, in the index {list(box.shape)}")
    if not make_up(box.shape, [(piece.starts, piece.entry.shape) for piece in pieces]):
        raise FileFormatError(f"{folder}: the parts of {key} in the files do not make up its shape {list(box.shape)}")
    target, begin = out.reshape(out.shape or (1,)), np.array(box.starts or (0,))
    for piece in pieces:
        starts, shape = np.array(piece.starts or (0,)), piece.entry.shape or (1,)
        low, high = np.maximum(starts, begin), np.minimum(starts + shape, begin + target.shape)
        if (low < high).all():
            rows, *rest = map(slice, low - starts, high - starts)
            given = piece.rows(rows.start, rows.stop)[(slice(None), *rest)]
            target[tuple(map(slice, low - begin, high - begin))] = given
    return out


# --- several ranks


def _group(group: Any, alone: bool, other: Any, planner: Any) -> ProcessGroup | None:
    if other is not None or planner is not None:
        raise NotOfferedError("checkpoint: storage_writer, storage_reader and planner are not offered: give a checkpoint_id")
    if alone or (group is None and not is_initialized()):
        return None
    return own_group("checkpoint", group)


def _token(group: ProcessGroup | None) -> str:
    """A new name, the same on all ranks."""
    made = secrets.randbits(63)
    if group is not None:
        number = creation.tensor([made], device=group.device_type)
        broadcast(number, group=group, group_src=0)
        made = int(number.item())
    return f"{made:016x}"


def _together(group: ProcessGroup | None, act: Callable[[], Any], what: str) -> Any:
    """``act()``, if all ranks succeed; else its error, or that another rank failed."""
    result, error = None, None
    try:
        result = act()
    except Exception as caught:
        error = caught
    if group is not None:
        first = creation.tensor([group.size() if error is None else group._rank], device=group.device_type)
        all_reduce(first, ReduceOp.MIN, group)
        if error is None and first.item() < group.size():
            failed = group.ranks[int(first.item())]
            raise RankError(f"checkpoint: rank {failed} could not {what}; nothing was changed", failed)
    if error is not None:
        raise error
    return result
