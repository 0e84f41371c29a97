"""The recorder of a track: it receives the engine's events and writes them into the log."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from time import perf_counter_ns
from typing import Any

from .. import scope
from ..callbacks import finalizer
from ..devices.forked import reclaim
from ..devices.pool import Block
from ..nn.module import Module
from ..scope import local, lock
from ..source import source_line
from .alive import alive
from .census import Census
from .log import Kind, Log

_MALLOC, _FREE = int(Kind.MALLOC), int(Kind.FREE)
_LASTING = ("PARAMETER", "MASTER_WEIGHT", "BUFFER", "OPTIMIZER_STATE")  # roles of the tensor itself


class Recorder(scope.Listener):
    """Writes the events of the pool of ``device`` into ``log``.

    A new block is an ``INPUT`` if it depends on nothing that is trained: no op makes it (or one without tensor inputs) while
    the user's own code or a loader runs, or an op there makes it from inputs alone (``images.to(device)``, ``x / 255``). Every
    other new block is a ``TEMPORARY``.

    Other threads, handlers and finalizers may allocate and free blocks between any two lines. Two rules keep the log right.
    The state of a block (``_live``, ``_held``) and the event that reports it change together, under ``scope.lock``. And code
    that frees a block removes its ``pool`` first and reports it afterwards: if a block has a pool, its free is still to come.
    """

    def __init__(self, device: Any, log: Log) -> None:
        self.device, self.log, self.only = device, log, device.pool
        self.on = True  # False stops writing: callbacks of weak references may come after the track has ended
        self._listening = device.listening()
        self._began = perf_counter_ns()
        self._events = 0
        self._live: dict[int, str] = {}  # address -> latest role, for blocks that the log has
        self._knows_all = device.kind != "cuda"  # True: a block that is not in _live may never have been counted: see free()
        self._held: dict[tuple[int, str], tuple[int, Any]] = {}  # (holder, role) -> address, weak reference to the holder
        self._named: dict[int, str] = {}
        self._thread = threading.local()  # result_role: the category of the running op's results, by thread

    # --- beginning and end ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to listen, and record the present state: bytes in use, each block, its roles and owners."""
        self._listening.__enter__()
        self._look_outside()
        with lock:  # no pool of ours reserves or returns a segment between the count and the first event
            reserved = self.only.total_bytes()
            if reserved:
                self.fact(Kind.RESERVE, rounded=reserved)
            if not self._knows_all:  # CuPy does not list older blocks
                self.fact(Kind.OLDER, rounded=self.only.used_bytes())
            scope.listen(self)  # before the census, so that each block is either recorded or found
        if self.only.used_bytes():  # a census scans all Python objects: not needed for an empty pool
            with scope.scanning():
                if self._knows_all:
                    reclaim(self.only, lambda: [b for b in alive({Block}) if getattr(b, "pool", None) is self.only])
                self._take_stock(Census(self.device))  # dropped before the scan ends, for which others wait

    def _take_stock(self, found: Census) -> None:
        for block in found.blocks:
            with lock:
                if block.pool is not None:
                    self._find(block)
        found.report(self)

    def end(self) -> None:
        """Stop listening, also if the beginning failed. The last events name the parameters of modules that never ran."""
        try:
            scope.discard(self)
            held = self._held.copy()  # one copy: a garbage collection may end roles meanwhile
            if any(role in ("PARAMETER", "BUFFER") and at not in self._named for (_, role), (at, _) in held.items()):
                with scope.scanning():
                    list(map(self.called, Census(self.device).roots))
            self._look_outside()
        finally:
            self.on = False
            self._held.clear()
            self._listening.__exit__(None, None, None)

    def mark(self, text: str) -> None:
        """Name this moment."""
        self.fact(Kind.MARK, note=text)
        self._look_outside()

    def _look_outside(self) -> None:
        """On a GPU, record the bytes that the pool does not own now. No event reports changes of that number."""
        outside = self.device.outside()
        if outside:
            self.fact(Kind.OUTSIDE, rounded=outside)

    # --- events of the engine: the pool, ops, roles -----------------------------------------------------------------------

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        now, op, phase = perf_counter_ns() - self._began, local.op, local.phase
        if local.new_role:
            role = local.new_role
        elif phase == "user":
            role = getattr(self._thread, "result_role", "TEMPORARY") if op else "INPUT"
        else:
            role = "INPUT" if phase == "data" else "TEMPORARY"
        where = phase, local.module, op, local.line or source_line()
        event = (_MALLOC, now, address, requested, rounded, *where, role, "", threading.get_ident())
        with lock:
            if address not in self._live:  # else it was allocated while the track began, and the census found it
                self._live[address] = role
                self.log.write(event)  # no interrupt can come between these two
        self._events += 1
        if not self._events & 255:
            self.log.settle()

    def free(self, device: str, address: int, rounded: int) -> None:
        now, where = perf_counter_ns() - self._began, (local.phase, local.module, local.op, local.line)
        event = (_FREE, now, address, 0, rounded, *where, "", "", threading.get_ident())
        with lock:
            if self._live.pop(address, None) is None and self._knows_all:
                return  # it was never counted: an interrupt hid its malloc, or it was freed while the track began
            self.log.write(event)
            self._named.pop(address, None)

    def segment(self, device: str, address: int, size: int) -> None:
        where = local.module, local.op, local.line or source_line()
        self.fact(Kind.RESERVE if size > 0 else Kind.RELEASE, address, rounded=abs(size), at=where)

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        node.line = local.line = source_line()
        if local.phase == "user":
            roles = {self._live.get(self._address(array) or 0, "UNTRACKED") for array in arrays}
            self._thread.result_role = "INPUT" if roles <= {"INPUT", "UNTRACKED"} else "TEMPORARY"

    def saved(self, node: Any, name: str, array: Any) -> None:
        self._activation(Kind.ENTER, array, name, (node.module, node.op.__name__, node.line))

    def released(self, kept: Any, name: str, array: Any) -> None:
        self._activation(Kind.LEAVE, array, name, (kept.module, kept.op, kept.line))

    def _activation(self, kind: Kind, array: Any, name: str, at: tuple[str, str, str]) -> None:
        address = self._find(array)
        if address is not None:
            self.fact(kind, address, role="ACTIVATION", note=name, at=at)

    def role(self, array: Any, role: str, holder: Any, of: Any = None) -> None:
        address, key = self._address(array), (id(holder), role)
        with lock:
            if self._held.get(key, (None,))[0] == address:
                return
            self._end_role(key)
            if address is None:
                return
            self._find(array)
            note = "" if of is None else self._named.get(self._address(of.array) or 0, "")
            held = address, weakref.ref(holder, partial(self._holder_ended, key))
            if self._held.setdefault(key, held) is held:
                self._live[address] = role
                self.fact(Kind.ENTER, address, role=role, note=note)

    def _end_role(self, key: tuple[int, str]) -> None:
        address, _ = self._held.pop(key, (None, None))
        if address is not None and self.on:
            self.fact(Kind.LEAVE, address, role=key[1])

    @finalizer
    def _holder_ended(self, key: tuple[int, str], _: Any) -> None:
        self._end_role(key)

    def moved(self, tensor: Any) -> None:
        for role in _LASTING:
            if (id(tensor), role) in self._held:
                self.role(tensor.array, role, tensor)

    def called(self, module: Module) -> None:
        """Record the paths of the parameters and buffers of ``module``, if they are longer than those that are known."""
        for tensors in (module.named_parameters, module.named_buffers):
            for path, tensor in tensors():
                address, note = self._address(tensor.array), f"{module._root_name()}.{path}"
                if address is not None and len(note) > len(self._named.get(address, "")):
                    self._find(tensor.array)
                    self._named[address] = note
                    self.fact(Kind.NAME, address, note=note)

    def fact(
        self, kind: Kind, address: int = 0, requested: int = 0, rounded: int = 0, role: str = "", note: str = "", at: Any = ()
    ) -> None:
        """Write an event. ``at``: module, op and line; by default those that run in this thread."""
        now, at = perf_counter_ns() - self._began, at or (local.module, local.op, local.line)
        event = (int(kind), now, address, requested, rounded, local.phase, *at, role, note, threading.get_ident())
        self.log.write(event)

    def _address(self, array: Any) -> int | None:
        return self.device.address(array) if self.device.owns(array) else None

    def _find(self, array: Any) -> int | None:
        """The address of an array's block. A block that is older than the log and that the census missed is recorded."""
        address = self._address(array)
        if address is not None:
            with lock:
                if address not in self._live:
                    self.fact(Kind.OLDER, address, *self.device.sizes(array))
                    self._live.setdefault(address, "UNTRACKED")
        return address
