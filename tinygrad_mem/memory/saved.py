"""``print_saved(fn, *args)``: the arrays that each op of a function saves for backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from .. import scope
from ..autograd.shape import root_of
from ..autograd.tensor import Tensor
from ..nn.module import Module
from ..source import source_line
from .sizes import bytes_text


@dataclass(frozen=True)
class Saved:
    """One array that one op keeps.

    Attributes:
        op, name: the op, and the array's name as in the op's docstring.
        shape, dtype: of the array.
        bytes: the bytes that it keeps alive; for a view, those of the whole block.
        shared: the other owners of the same memory: other rows, arguments, parameters, the result.
        module, line: where the op ran.
        first: False if an earlier row has counted the same memory.
    """

    op: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    shared: tuple[str, ...]
    module: str
    line: str
    first: bool


class SavedList(list[Saved]):
    """The rows; ``total`` counts each piece of memory once."""

    @property
    def total(self) -> int:
        """The bytes saved for backward."""
        return sum(row.bytes for row in self if row.first)

    def __str__(self) -> str:
        cells = [("op", "saves", "shape", "dtype", "bytes", "shared with", "module", "line")]
        cells += [
            (r.op, r.name, str(list(r.shape)), r.dtype, f"{r.bytes:,}", ", ".join(r.shared), r.module, r.line) for r in self
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        sides = [str.rjust if title == "bytes" else str.ljust for title in cells[0]]
        rows = [[side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)] for row in cells]
        total = f"{self.total:,} bytes ({bytes_text(self.total)}) are saved for backward; shared memory is counted once"
        return "\n".join([*("  ".join(row).rstrip() for row in rows), total])


class _SavedRows(scope.Listener):
    """Records the arrays that this program saved and has not released, without keeping them alive."""

    def __init__(self) -> None:
        self.rows: list[tuple] = []
        self._program = scope.program()

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        node.line = source_line()

    def saved(self, node: Any, name: str, array: Any) -> None:
        if scope.program() == self._program:
            size = node.device.sizes(array)[0] or root_of(array).nbytes
            what = (node.op.__name__, name, node.module, node.line)
            self.rows.append((*what, _memory(node.device, array), tuple(array.shape), str(array.dtype), size, node.device))

    def released(self, kept: Any, name: str, array: Any) -> None:
        what = (kept.op, name, kept.module, kept.line)
        for number, row in enumerate(self.rows):
            if row[:4] == what and row[5] == tuple(array.shape) and row[4] == _memory(row[8], array):
                del self.rows[number]
                return


def saved(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> SavedList:
    """Run ``fn(*args, **kwargs)``, drop its result, and list the arrays that the result kept for backward.

    Args:
        fn: a module or a function of tensors.
    """
    found = _SavedRows()
    scope.listen(found)
    try:
        result = fn(*args, **kwargs)
    finally:
        scope.unlisten(found)
    owners = _owners(fn, args, kwargs, result)
    del result
    keepers: dict[Any, list[int]] = {}
    for number, row in enumerate(found.rows):
        keepers.setdefault(row[4], []).append(number)
    rows = SavedList()
    for number, (op, name, module, line, memory, shape, dtype, size, _) in enumerate(found.rows):
        others = [f"{found.rows[i][0]}.{found.rows[i][1]}" for i in keepers[memory] if i != number]
        shared = tuple(dict.fromkeys([*owners.get(memory, []), *others]))
        rows.append(Saved(op, name, shape, dtype, size, shared, module, line, keepers[memory][0] == number))
    return rows


def print_saved(fn: Callable[..., Any], *args: Any, file: TextIO | None = None, **kwargs: Any) -> SavedList:
    """Print the arrays that each op of ``fn(*args, **kwargs)`` saves: op, name, shape, dtype, bytes, other owners, place.

    Args:
        fn: a module or a function of tensors.
        file: the file to print to; by default standard output.

    Returns:
        The rows, and their sum as ``.total``.
    """
    rows = saved(fn, *args, **kwargs)
    print(rows, file=file)
    return rows


def _owners(fn: Any, args: tuple, kwargs: dict, result: Any) -> dict[Any, list[str]]:
    """The names of memory that arguments, parameters, buffers or results own."""
    named: list[tuple[str, Any]] = [(f"argument {i}", t) for i, t in enumerate(args)]
    named += [(f"argument {name}", t) for name, t in kwargs.items()]
    if isinstance(fn, Module):
        named += [(f"parameter {name}", p) for name, p in fn.named_parameters()]
        named += [(f"buffer {name}", b) for name, b in fn.named_buffers()]
    named += [("result", t) for t in (result if isinstance(result, Sequence) else [result])]
    found: dict[Any, list[str]] = {}
    for name, tensor in named:
        if isinstance(tensor, Tensor):
            found.setdefault(_memory(tensor.device, tensor.array), []).append(name)
    return found


def _memory(device: Any, array: Any) -> Any:
    """The identity of a piece of memory."""
    address = device.address(array) if device.owns(array) else None
    return (id(device.pool), address) if address is not None else id(root_of(array))
