"""A reader of pickles that hold plain containers, such as memory snapshots; it runs no code and imports nothing.

A pickle is a program for a small stack machine, and some of its instructions call functions that the file names. This reader
refuses those. It knows ``None``, bools, numbers, text, lists, tuples, dicts, and references to earlier values.

A snapshot may have gigabytes, most of them stacks. So its events are passed on while they are read, and each stack is kept
once.

Source: the instructions are described in CPython's ``pickletools.py``.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable
from typing import IO, Any, NoReturn

from ..errors import FileFormatError

_CHUNK = 1 << 22
_ROOM = 1 << 16  # bytes in memory before an instruction is read, unless the file ends before
_LONGEST = 1 << 24  # bytes of one text
_WIDEST = 1 << 14  # values that wait for their container: pickle adds a thousand at a time
_DEEPEST = 64  # open containers
_REFERENCES = re.compile(rb"(?s)\((?:j.{4}|h.){1,2000}e")
# one value of an event: a reference, an integer, a pair of integers, or a new list of references
_VALUE = (
    rb"(h.|j.{4}|K.K.\x86\x94|K.|M.{2}|J.{4}|\x8a\x05.{5}|\x8a\x06.{6}|\x8a\x07.{7}|\x8a\x08.{8}|\]\x94\((?:j.{4}|h.){1,2000}e)"
)
_CALLS = {
    ord("c"): "GLOBAL", 0x93: "STACK_GLOBAL", ord("R"): "REDUCE", ord("b"): "BUILD", ord("i"): "INST", ord("o"): "OBJ",
    0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", ord("P"): "PERSID", ord("Q"): "BINPERSID",
}  # fmt: skip
_TEXTS = {0x8C: 1, ord("X"): 4, 0x8D: 8}  # instruction -> bytes of its length
_INTEGERS = {ord("K"): ("<B", 1), ord("M"): ("<H", 2), ord("J"): ("<i", 4), ord("G"): (">d", 8)}
_CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}


class Stacks:
    """The stacks of a snapshot, without repetitions.

    Attributes:
        frames: number -> (file, line, function), without repetitions.
        stacks: number -> numbers of its frames, innermost first; 0 is the empty stack.
    """

    def __init__(self, what: str = "the snapshot") -> None:
        self._what = what
        self.frames: list[tuple[str, int, str]] = []
        self.stacks: list[tuple[int, ...]] = [()]
        self._frame_numbers: dict[tuple[str, int, str], int] = {}
        self._numbers: dict[tuple[int, ...], int] = {(): 0}

    def number(self, frames: list[Any], outer: int = 0) -> int:
        """The number of the stack with these frames, which follow the frames of stack ``outer``."""
        key = self.stacks[outer] + tuple([self._frame(frame) for frame in frames])
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.stacks)
            self.stacks.append(key)
        return found

    def _frame(self, frame: Any) -> int:
        try:
            key = (frame["filename"], frame["line"], frame["name"])
            known = self._frame_numbers.get(key)
        except (TypeError, KeyError):
            raise FileFormatError(f"{self._what}: a frame is a dict of filename, line and name, found {frame!r:.60}") from None
        if known is None:
            if not isinstance(key[0], str) or not isinstance(key[1], int) or not isinstance(key[2], str):
                raise FileFormatError(f"{self._what}: a frame has a file, a line number and a function, found {key!r:.60}")
            known = self._frame_numbers[key] = len(self.frames)
            self.frames.append(key)
        return known


class StackList:
    """The list of a key ``"frames"``; it has the number of its stack."""

    __slots__ = ("stack",)

    def __init__(self, stack: int = 0) -> None:
        self.stack = stack


class _Traces(list):
    """The list of the key ``"device_traces"``: each of its items takes the events of one device."""


class _Trace:
    """The list of the events of one device; they are passed on and not kept."""

    def __init__(self, device: int) -> None:
        self.device = device


_EVENT = object()  # in place of an event in the memo


class Reader:
    """Reads one pickle.

    Args:
        file: an open file, at the beginning of the pickle.
        what: the file's name, for errors.
        take: called with a device's number and some of its events, in order. Each event is a dict, whose ``"frames"`` is the
            number of a stack in :attr:`stacks`.
        progress: called with the bytes that were read.
    """

    def __init__(
        self,
        file: IO[bytes],
        what: str,
        take: Callable[[int, list[Any]], None],
        progress: Callable[[int], object] = lambda count: None,
    ) -> None:
        self.stacks = Stacks(what)
        self._file, self._what, self._take, self._progress = file, what, take, progress
        self._data, self._at, self._ended = b"", 0, False
        self._memo = array("I")  # what the file remembers, as numbers of these objects
        self._objects: list[Any] = [_EVENT]
        self._lists: dict[int, int] = {}  # number of a stack -> that of the object for a list of it
        self._known: dict[bytes, Any] = {}  # the bytes of a reference to a text -> the text
        self._runs: dict[bytes, int] = {}  # the bytes of a list of references -> the stack's number
        self._keys: tuple[str, ...] = ()  # of the last event
        self._event: re.Pattern[bytes] | None = None  # the bytes of an event with these keys

    def refuse(self, why: str) -> NoReturn:
        """Raise the error that says why the file cannot be read."""
        raise FileFormatError(f"{self._what}: {why}")

    def read(self) -> Any:
        """The object that the pickle holds."""
        try:
            return self._run()
        except (IndexError, struct.error):
            self.refuse("it is damaged or incomplete: it ends in the middle" if self._ended else "it is damaged")
        except (UnicodeDecodeError, TypeError, AttributeError) as error:
            self.refuse(f"it is damaged: {error}")

    def _run(self) -> Any:
        stack: list[Any] = []
        marks: list[list[Any]] = []
        self._fill()
        if self._data[:1] not in (b"\x80", b""):  # PROTO, with which pickles begin
            self.refuse("it is not a file of torch.cuda.memory._dump_snapshot: that is a pickle of protocol 2 or later")
        while True:
            if len(self._data) - self._at < _ROOM and not self._ended:
                self._fill()
            data, at = self._data, self._at
            code = data[at]
            self._at = at + 1
            if code in _INTEGERS:
                format, size = _INTEGERS[code]
                stack.append(struct.unpack_from(format, data, at + 1)[0])
                self._at += size
            elif code == 0x94:  # MEMOIZE
                self._remember(stack[-1], marks)
            elif code == ord("h"):
                stack.append(self._recall(data[at + 1]))
                self._at += 1
            elif code == ord("j"):
                stack.append(self._recall(int.from_bytes(data[at + 1 : at + 5], "little")))
                self._at += 4
            elif code in _TEXTS:
                stack.append(self._text(_TEXTS[code]))
            elif code == 0x8A:  # LONG1
                size = data[at + 1]
                if size > 9:
                    self.refuse(f"it holds a number of {size} bytes; addresses and sizes have 8")
                stack.append(int.from_bytes(data[at + 2 : at + 2 + size], "little", signed=True))
                self._at += 1 + size
            elif code == ord("("):
                if stack and type(stack[-1]) is StackList and self._stack_of_references(stack[-1]):
                    continue
                marks.append(stack)
                stack = []
                if len(marks) > _DEEPEST:
                    self.refuse(f"containers are nested more than {_DEEPEST} deep")
            elif code == ord("]"):
                stack.append(self._list(stack, marks))
            elif code == ord("}"):
                stack.append(self._whole_event(marks) or {})
            elif code == ord("u") or code == ord("s"):
                items, stack = (stack, marks.pop()) if code == ord("u") else (stack[-2:], stack[:-2])
                if type(stack[-1]) is not dict or len(items) % 2:
                    self.refuse("it is damaged: keys and values belong to no dict")
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            elif code == ord("e"):
                items, stack = stack, marks.pop()
                self._extend(stack[-1], items)
            elif code == ord("a"):
                item = stack.pop()
                self._extend(stack[-1], [item])
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == ord("."):
                (result,) = stack if len(stack) == 1 and not marks else self.refuse("it is damaged: values are left over")
                return result
            else:
                stack = self._seldom(code, stack, marks)
            if len(stack) > _WIDEST:
                self.refuse(f"more than {_WIDEST} values wait for their container, which happens in no snapshot")

    def _seldom(self, code: int, stack: list[Any], marks: list[list[Any]]) -> list[Any]:
        """Run one of the rare instructions. Returns the stack."""
        if code == 0x80:  # PROTO
            self._at += 1
        elif code == 0x95:  # FRAME
            self._at += 8
        elif code == ord("q") or code == ord("r"):
            size = 1 if code == ord("q") else 4
            number = int.from_bytes(self._data[self._at : self._at + size], "little")
            self._at += size
            if number != len(self._memo):
                self.refuse("it is damaged: its memo is not numbered in order")
            self._remember(stack[-1], marks)
        elif code == ord(")"):
            stack.append(())
        elif code == ord("t"):
            items, stack = stack, marks.pop()
            stack.append(tuple(items))
        elif 0x85 <= code <= 0x87:
            count = code - 0x84
            if len(stack) < count:
                self.refuse("it is damaged: a tuple has too few values")
            stack[-count:] = [tuple(stack[-count:])]
        elif code in _CALLS:
            self.refuse(
                f"this pickle would run code when it is loaded (instruction {_CALLS[code]}): a memory snapshot holds "
                "plain containers only. Nothing was run"
            )
        else:
            self.refuse(f"it is not a pickle of a memory snapshot: no instruction {bytes([code])!r} is expected")
        return stack

    # --- values -----------------------------------------------------------------------------------------------------------

    def _list(self, stack: list[Any], marks: list[list[Any]]) -> Any:
        """A new list; one of frames or of events if it follows their keys."""
        last = stack[-1] if stack else None
        if last == "frames":
            return StackList()
        if last == "device_traces":
            return _Traces()
        if type(last) is _Traces:
            return _Trace(len(last))
        if marks and marks[-1] and type(marks[-1][-1]) is _Traces:
            return _Trace(len(marks[-1][-1]) + len(stack))
        return []

    def _remember(self, value: Any, marks: list[list[Any]]) -> None:
        """Put a value into the memo. An event is not kept, because nothing refers to events and there are millions."""
        if type(value) is dict and marks and marks[-1] and type(marks[-1][-1]) is _Trace:
            self._memo.append(0)
            return
        self._memo.append(len(self._objects))
        self._objects.append(value)

    def _recall(self, number: int) -> Any:
        value = self._objects[self._memo[number]]
        if value is _EVENT:
            self.refuse("an event refers to another, which happens in no snapshot")
        return value

    def _extend(self, target: Any, items: list[Any]) -> None:
        if type(target) is _Trace:
            self._learn(items[-1])
            self._take(target.device, items)
        elif type(target) is StackList:
            target.stack = self.stacks.number(items, target.stack)
        elif isinstance(target, list):
            target.extend(items)
        else:
            self.refuse("it is damaged: values belong to no list")

    def _stack_of_references(self, target: StackList) -> bool:
        """Read a whole list of references at once, if one begins here."""
        found = _REFERENCES.match(self._data, self._at - 1)
        if found is None or target.stack:
            return False
        target.stack = self._stack_of(found[0])
        self._at = found.end()
        return True

    # --- events -----------------------------------------------------------------------------------------------------------

    def _learn(self, event: Any) -> None:
        """Prepare the bytes that later events with the same keys will have, so that they are read faster."""
        if type(event) is not dict or tuple(event) == self._keys:
            return
        self._keys = tuple(event)
        texts = ((number, self._objects[code]) for number, code in enumerate(self._memo[:_ROOM]))
        numbers = {value: number for number, value in texts if type(value) is str}
        if all(key in numbers for key in self._keys):
            parts = [re.escape(_reference(numbers[key])) + _VALUE for key in self._keys]
            self._event = re.compile(rb"(?s)\x94\(" + b"".join(parts) + b"u")

    def _whole_event(self, marks: list[list[Any]]) -> dict[str, Any] | None:
        """Read an event at once, if its bytes are as expected."""
        if self._event is None or not marks or not marks[-1] or type(marks[-1][-1]) is not _Trace:
            return None
        found = self._event.match(self._data, self._at)
        if found is None:
            return None
        self._memo.append(0)
        self._at = found.end()
        known = self._known
        values = [known[piece] if piece in known else self._value(piece) for piece in found.groups()]
        return dict(zip(self._keys, values, strict=True))

    def _value(self, piece: bytes) -> Any:
        """The value of these bytes of an event."""
        code = piece[0]
        if code == 0x8A:  # LONG1
            return int.from_bytes(piece[2:], "little", signed=True)
        if code == ord("h") or code == ord("j"):
            value = self._recall(int.from_bytes(piece[1:], "little"))
            if type(value) is str:
                self._known[piece] = value
            return value
        if code == ord("]"):
            return self._list_of(self._stack_of(piece[2:]))
        if len(piece) == 6:  # TUPLE2
            pair = piece[1], piece[3]
            self._memo.append(len(self._objects))
            self._objects.append(pair)
            return pair
        return int.from_bytes(piece[1:], "little", signed=code == ord("J"))

    def _list_of(self, stack: int) -> StackList:
        """The list object of this stack in the memo: one for all its lists."""
        if stack not in self._lists:
            self._lists[stack] = len(self._objects)
            self._objects.append(StackList(stack))
        self._memo.append(self._lists[stack])
        return self._objects[self._memo[-1]]

    def _stack_of(self, run: bytes) -> int:
        """The number of the stack of a list of references; the bytes of an earlier list are recognized."""
        number = self._runs.get(run)
        if number is None:
            frames, at = [], 1
            while at < len(run) - 1:
                wide = run[at] == ord("j")
                frames.append(self._recall(int.from_bytes(run[at + 1 : at + 5], "little") if wide else run[at + 1]))
                at += 5 if wide else 2
            number = self._runs[run] = self.stacks.number(frames)
        return number

    # --- bytes ------------------------------------------------------------------------------------------------------------

    def _text(self, width: int) -> str:
        """Read a text that follows its length."""
        start = self._at + width
        length = int.from_bytes(self._data[self._at : start], "little")
        if length > _LONGEST:
            self.refuse(f"it holds a text of {length:,} bytes; snapshots have none above {_LONGEST:,}")
        while len(self._data) < start + length and not self._ended:
            start -= self._at
            self._fill()
            start += self._at
        if len(self._data) < start + length:
            raise IndexError
        self._at = start + length
        return self._data[start : self._at].decode("utf-8", "surrogatepass")

    def _fill(self) -> None:
        more = self._file.read(_CHUNK)
        self._ended = not more
        self._data, self._at = self._data[self._at :] + more, 0
        self._progress(len(more))


def _reference(number: int) -> bytes:
    """The bytes of a reference to entry ``number`` of the memo."""
    return bytes((ord("h"), number)) if number < 256 else b"j" + number.to_bytes(4, "little")
