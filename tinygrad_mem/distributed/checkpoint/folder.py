"""A checkpoint is a folder: an index, and a safetensors file of each rank with the rows that it holds.

The index is written last, in one stroke, and names the files that belong to it. Until then the older checkpoint in the folder
is whole; afterwards its files are removed. So a folder holds one whole checkpoint at any time, or none.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import io as files
from ... import safetensors
from ...autograd.tensor import Tensor
from ...errors import ArgumentError, DataDependenceError, FileFormatError, NotOfferedError, RankError, StateDictError
from ...files import replacing
from ...functional import creation
from ..collectives import all_reduce, broadcast
from ..cut import Cut
from ..group import ProcessGroup, ReduceOp
from ..groups import is_initialized, member

_INDEX, _STARTS = "index.safetensors", "starts"
_FILE = re.compile(r"[0-9a-f]{16}-[0-9]{5}\.safetensors")


class _Place(NamedTuple):
    """A tensor of the state dict: the shape of the whole, and the first of the rows that this rank has."""

    tensor: Tensor
    shape: tuple[int, ...]
    start: int
    cut: bool


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

    Each rank writes its rows of the parameters that ``fully_shard`` has cut, and of their optimizer state. What is not cut must
    be the same on all ranks, and is written once. If a rank fails, or is killed, the folder keeps the checkpoint that it had.

    Args:
        state_dict: tensors, numbers, strings, ``None``, and dicts and lists of them; see :func:`.state_dict.get_state_dict`.
        process_group: the ranks; by default all, or this process alone if there is no group.
        no_dist: this process alone.
        storage_writer, planner: not offered.

    Raises:
        RankError: another rank failed.
        StateDictError: the ranks do not have the same keys, shapes or values.
        OSError: this rank could not write.
        DataDependenceError: in a prediction; tensors on ``meta`` have no values.

    >>> checkpoint.save({"model": model.state_dict()}, checkpoint_id="step_100")
    """
    group = _group(process_group, no_dist, storage_writer, planner)
    places = dict(_places(state_dict, group))
    if any(place.tensor.is_meta for place in places.values()):
        raise DataDependenceError("checkpoint.save: tensors on meta have no values")
    _agree(group, state_dict, places)
    me, folder, token = _rank(group), Path(checkpoint_id), _token(group)
    names = [f"{token}-{rank:05}.safetensors" for rank in range(1 if group is None else group.size())]

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mine = {key: place for key, place in places.items() if place.tensor.numel() and (place.cut or me == 0)}
        _write(folder / names[me], mine)

    def commit() -> None:
        if me == 0:
            shapes = {key: list(place.shape) for key, place in places.items()}
            files.save({"files": names, "shapes": shapes, "values": _values(state_dict)}, folder / _INDEX)
            for path in folder.iterdir():
                if _FILE.fullmatch(path.name) and path.name not in names:
                    path.unlink(missing_ok=True)

    try:
        _together(group, write, "write its file")
        _together(group, commit, "write the index")
    except BaseException:
        with suppress(OSError, FileFormatError):
            if not _named(folder, names[me]):
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

    Each rank reads its rows. The number of ranks may differ from that which saved, and one process can read all. Each key of
    the dict must be there, with all that is below it; other keys of the checkpoint are left out. If a rank cannot read, nothing
    is changed on any. Until then this rank's rows are twice in memory: once on the host, outside of the pool.

    Args, raises: as :func:`save`; and
        StateDictError: keys or shapes do not fit; the message lists them.
        FileNotFoundError: there is no whole checkpoint in the folder.
        FileFormatError: a file is damaged.

    >>> state = {"model": model.state_dict()}
    >>> checkpoint.load(state, checkpoint_id="step_100")
    """
    group = _group(process_group, no_dist, storage_reader, planner)
    found: list[tuple[Tensor, np.ndarray]] = []

    def read() -> Any:
        folder = Path(checkpoint_id)
        index = _index(folder)
        places = dict(_places(state_dict, group))
        _check(state_dict, places, index)
        rows = _Rows(folder, index["files"])
        found.extend((place.tensor, rows.read(key, place)) for key, place in places.items())
        return index["values"]

    values = _together(group, read, "read the checkpoint")
    for tensor, host in found:
        tensor.device.upload(host, tensor.array)
        tensor.storage.written("checkpoint.load")
    _fill(state_dict, values)


# --- what is in a state dict


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Tensor]]:
    """The tensors in it, by dotted path."""
    if isinstance(value, Tensor):
        yield ".".join(path), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, (*path, str(i)))


def _places(state_dict: Any, group: ProcessGroup | None) -> Iterator[tuple[str, _Place]]:
    for key, tensor in _leaves(state_dict):
        cut = tensor._shard
        if cut is None:
            yield key, _Place(tensor, tensor.array.shape, 0, False)
            continue
        if not isinstance(cut, Cut) or cut.outer is not None:
            raise NotOfferedError(
                f"checkpoint: {key} is divided by tensor parallel, which is not offered: save() each rank's part"
            )
        if group is None or tuple(cut.group.ranks) != tuple(group.ranks):
            raise ArgumentError(
                f"checkpoint: {key} is cut over the ranks {list(cut.group.ranks)}: give that process_group, found "
                f"{None if group is None else list(group.ranks)}"
            )
        yield key, _Place(tensor, cut.shape, cut.start, True)


def _values(value: Any) -> Any:
    """The state dict with ``None`` in place of tensors."""
    if isinstance(value, dict):
        return {key: _values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_values(item) for item in value])
    return None if isinstance(value, Tensor) else value


def _fill(mine: Any, values: Any, below: bool = False) -> Any:
    """``mine``, whose tensors are loaded, with the other values, in place. ``below`` the first level it gets new keys too."""
    if isinstance(mine, Tensor):
        return mine
    if isinstance(mine, dict) and isinstance(values, dict):
        for key, value in values.items():
            if key in mine:
                mine[key] = _fill(mine[key], value, True)
            elif below and value is not None:
                mine[key] = value
        return mine
    if isinstance(mine, (list, tuple)) and any(True for _ in _leaves(mine)):
        return type(mine)([_fill(a, b, True) for a, b in zip(mine, values, strict=True)])
    return values


def _check(state_dict: dict, places: dict[str, _Place], index: dict) -> None:
    """Raises: StateDictError: the checkpoint lacks something of the state dict, or has more below its keys."""
    shapes = index["shapes"]
    problems = [f"{key} is not in the checkpoint" for key in places if key not in shapes]
    problems += [f"{key} is not in the checkpoint" for key in state_dict if key not in index["values"]]
    for key, shape in shapes.items():
        if key in places and tuple(shape) != places[key].shape:
            problems.append(f"{key} has shape {list(places[key].shape)}, in the checkpoint {shape}")
        if key not in places and any(key == top or key.startswith(f"{top}.") for top in map(str, state_dict)):
            problems.append(f"{key} is in the checkpoint, not in the state dict")
    if problems:
        raise StateDictError(
            "checkpoint.load: "
            + "; ".join(problems[:20])
            + ". Make the state of an optimizer with get_state_dict(model, optimizer)"
        )


# --- files


def _write(path: Path, places: dict[str, _Place]) -> None:
    starts = {_STARTS: json.dumps({key: place.start for key, place in places.items()})}
    with replacing(path) as file:
        shapes = {key: (place.tensor.dtype, tuple(place.tensor.shape)) for key, place in places.items()}
        for key in safetensors.write_header(file, shapes, starts):
            array = np.ascontiguousarray(places[key].tensor.detach()._host())
            file.write(array.reshape(-1).view(np.uint8).data)


def _index(folder: Path) -> dict[str, Any]:
    """The index of a checkpoint.

    Raises:
        FileFormatError: it is none.
    """
    found = files.load(folder / _INDEX, map_location="cpu")
    names, shapes = found.get("files"), found.get("shapes")
    if not (
        isinstance(names, list) and all(isinstance(n, str) and _FILE.fullmatch(n) for n in names)
        and isinstance(shapes, dict) and isinstance(found.get("values"), dict)
    ):  # fmt: skip
        raise FileFormatError(f"{folder / _INDEX}: this is not the index of a checkpoint")
    return found


def _named(folder: Path, name: str) -> bool:
    """True if the checkpoint in the folder has the file."""
    return (folder / _INDEX).exists() and name in _index(folder)["files"]


class _Rows:
    """The rows of all tensors in the files of a checkpoint."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._pieces: dict[str, list[tuple[Path, int, safetensors.Entry, int]]] = {}
        for name in names:
            path = folder / name
            with path.open("rb") as file:
                entries, metadata = safetensors.read_header(file, path.stat().st_size, str(path))
                at = file.tell()
            try:
                starts = json.loads(metadata[_STARTS])
                for entry in entries:
                    self._pieces.setdefault(entry.name, []).append((path, at, entry, int(starts[entry.name])))
            except (KeyError, TypeError, ValueError):
                raise FileFormatError(f"{path}: it does not say which rows it has") from None

    def read(self, key: str, place: _Place) -> np.ndarray:
        """The rows that ``place`` has, in its dtype.

        Raises:
            FileFormatError: some of them are in no file.
        """
        out = np.empty(place.tensor.array.shape, place.tensor.dtype)
        whole = out.reshape(1, -1) if not place.shape else out.reshape(out.shape[0], -1) if out.size else out
        left = len(whole) if out.size else 0
        for path, at, entry, start in self._pieces.get(key, ()) if left else ():
            rows = entry.shape[0] if entry.shape else 1
            first, last = max(start, place.start), min(start + rows, place.start + len(whole))
            if first < last:
                row = (entry.end - entry.begin) // rows
                with path.open("rb") as file:
                    file.seek(at + entry.begin + (first - start) * row)
                    host = np.frombuffer(file.read((last - first) * row), np.uint8)
                if host.size != (last - first) * row:
                    raise FileFormatError(f"{path}: the file ended inside tensor {key!r}")
                whole[first - place.start : last - place.start] = host.view(entry.dtype).reshape(last - first, -1)
                left -= last - first
        if left:
            raise FileFormatError(f"{key}: {left} of {len(whole)} rows are in no file of the checkpoint")
        return out


# --- several ranks


def _group(group: Any, alone: bool, other: Any, planner: Any) -> ProcessGroup | None:
    if other is not None or planner is not None:
        raise NotOfferedError("checkpoint: storage_writer, storage_reader and planner are not offered: give a checkpoint_id")
    if alone or (group is None and not is_initialized()):
        return None
    found = member(group)
    if found is None:
        raise ArgumentError("checkpoint: this rank is not a member of the process group")
    return found


def _rank(group: ProcessGroup | None) -> int:
    return 0 if group is None else group._rank


def _token(group: ProcessGroup | None) -> str:
    """A new name, the same on all ranks."""
    made = secrets.randbits(63)
    if group is not None:
        number = creation.tensor([made], device=group.device_type)
        broadcast(number, group=group, group_src=0)
        made = int(number.item())
    return f"{made:016x}"


def _agree(group: ProcessGroup | None, state_dict: dict, places: dict[str, _Place]) -> None:
    """Raises: StateDictError: the ranks do not save the same keys, shapes and values."""
    if group is None:
        return
    sums = {"the keys and other values": zlib.crc32(repr((list(places), _values(state_dict))).encode())}
    if _reduced(group, [len(places)], ReduceOp.MIN) == _reduced(group, [len(places)], ReduceOp.MAX):
        for key, place in places.items():
            text = repr((place.shape, str(place.tensor.dtype), place.cut)).encode()
            sums[key] = zlib.crc32(text if place.cut else text + np.ascontiguousarray(place.tensor.detach()._host()).tobytes())
    numbers = list(sums.values())
    low, high = _reduced(group, numbers, ReduceOp.MIN), _reduced(group, numbers, ReduceOp.MAX)
    differing = [name for name, a, b in zip(sums, low, high, strict=True) if a != b]
    if differing:
        raise StateDictError(
            f"checkpoint.save: the ranks do not have the same: {', '.join(differing[:20])}. Of what is not cut by fully_shard, "
            "all ranks must have the same values"
        )


def _reduced(group: ProcessGroup, numbers: list[int], op: ReduceOp) -> list[int]:
    found = creation.tensor(numbers, device=group.device_type)
    all_reduce(found, op, group)
    return found.tolist()


def _together(group: ProcessGroup | None, act: Callable[[], Any], what: str) -> Any:
    """``act()``, if all ranks succeed.

    Raises:
        RankError: another rank did not.
        Errors of ``act`` on this rank.
    """
    result, error = None, None
    try:
        result = act()
    except Exception as caught:
        error = caught
    if group is not None:
        (failed,) = _reduced(group, [group.size() if error is None else group._rank], ReduceOp.MIN)
        if error is None and failed < group.size():
            raise RankError(
                f"checkpoint: rank {group.ranks[failed]} could not {what}; nothing was changed", group.ranks[failed]
            )
    if error is not None:
        raise error
    return result
