"""The recorder of a track: the seams of the engine on one side, the log on the other."""

from __future__ import annotations

import threading
import weakref
from time import perf_counter_ns
from typing import Any

from .. import scope
from ..autograd.saved import TrackedSaved
from ..autograd.sparse import parts
from ..devices.forked import reclaim
from ..devices.pool import Block
from ..interrupts import whole
from ..nn.module import Module
from ..scope import local, lock
from .alive import alive
from .census import Census
from .log import Kind, Log
from .source import source_line
from .uncounted import Ears

_MALLOC, _FREE, _ENTER, _LEAVE = int(Kind.MALLOC), int(Kind.FREE), int(Kind.ENTER), int(Kind.LEAVE)
_thread = threading.get_ident
_APART = 512
_KEPT = ("PARAMETER", "MASTER_WEIGHT", "BUFFER", "OPTIMIZER_STATE")  # what a tensor is; a gradient is what it has
OUTSIDE = "of the GPU, taken by others than the pool"


class _Origin(threading.local):
    """The role of results: what the op that runs in this thread makes of its inputs."""

    role = "TEMPORARY"


class Recorder(scope.Listener):
    """Writes what happens to the pool of ``device`` into ``log``.

    Other threads make and drop blocks while it begins, and so does a handler or a finalizer inside any line here. So what it
    knows of a block, and the fact that says so, change together under ``scope.lock``; a block that is found counts while its
    ``pool`` is there, because whoever drops it takes that away first and tells afterwards; and the fact that a block is
    there is written before it counts as known, because facts about it may follow at once.

    A block is born an ``INPUT`` when no op makes it (or one that has no tensor to start from) while the user's own code or a
    loader runs, or when an op there makes it of inputs alone (``images.to(device)``, ``x / 255``): what depends on nothing
    that is trained. Everything else is born a ``TEMPORARY``.

    Args:
        uncounted: on ``cpu``, also write down what NumPy takes of its own inside ops.

    Attributes:
        on: False stops the writing: weak references may call after the track has ended.
    """

    def __init__(self, device: Any, log: Log, uncounted: bool) -> None:
        self.device, self.log = device, log
        self.on = True
        self._began = perf_counter_ns()
        self._events = 0
        self._live: dict[int, str] = {}  # address -> role at birth, of blocks that the log knows
        self._all = device.type != "cuda"  # whether these are all that there are: CuPy does not let older ones be found
        self._held: dict[tuple[int, str], tuple[int, Any]] = {}  # (holder, role) -> address, weak reference to the holder
        self._named: dict[int, str] = {}
        self._origin = _Origin()
        self._numpy = uncounted and device.type == "cpu"
        self._small = 0  # bytes that NumPy took in pieces that are not worth an event each

    def end(self) -> None:
        """Stop writing; the last facts are the names of what was made and never ran."""
        try:
            self._last_facts()
        finally:
            if self._numpy:
                Ears.close(self._heard)
            self.on = False
            self._held.clear()
            Ears.say()

    def _last_facts(self) -> None:
        held = self._held.copy()  # at once: what the collector finds meanwhile lets go of roles
        if any(role in ("PARAMETER", "BUFFER") and at not in self._named for (_, role), (at, _) in held.items()):
            with scope.looking():
                self._name_all(Census(self.device))
        if self._small:
            self.fact(Kind.UNCOUNTED, rounded=self._small, note=f"in pieces of less than {_APART} bytes")
        self.sample()

    def sample(self) -> None:
        """On a GPU, write down what others than the pool have of it now: nothing tells when that changes."""
        outside = self.device.outside()
        if outside:
            self.fact(Kind.UNCOUNTED, rounded=outside, note=OUTSIDE)

    def _heard(self, size: int) -> None:
        if size < _APART:
            with lock:
                self._small += size
        else:
            self.fact(Kind.UNCOUNTED, rounded=size)

    # --- the pool ---------------------------------------------------------------------------------------------------------

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        now, op, phase = perf_counter_ns() - self._began, local.op, local.phase
        if local.birth:
            role = local.birth
        elif phase == "user":
            role = self._origin.role if op else "INPUT"
        else:
            role = "INPUT" if phase == "data" else "TEMPORARY"
        where = phase, local.module, op, local.line or source_line()
        event = (_MALLOC, now, address, requested, rounded, *where, role, "", _thread())
        with lock:
            if address not in self._live:  # else it was made just as the track began, and the census has found it
                self._live[address] = role
                self.log.write(event)  # no signal is heard between these two
        self._events += 1
        if not self._events & 255:
            self.log.settle()

    def free(self, device: str, address: int, rounded: int) -> None:
        now, where = perf_counter_ns() - self._began, (local.phase, local.module, local.op, local.line)
        event = (_FREE, now, address, 0, rounded, *where, "", "", _thread())
        with lock:
            if self._live.pop(address, None) is None and self._all:
                return  # an interrupt hid its birth, or it died while the track began: it was never counted
            self.log.write(event)
            self._named.pop(address, None)

    def segment(self, device: str, address: int, size: int) -> None:
        self.fact(Kind.RESERVE if size > 0 else Kind.RELEASE, address, rounded=abs(size))

    # --- ops --------------------------------------------------------------------------------------------------------------

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        Ears.say()
        node.line = local.line = source_line()
        if local.phase == "user":
            self._origin.role = "INPUT" if all(self._is_input(a) for a in arrays) else "TEMPORARY"

    def _is_input(self, array: Any) -> bool:
        address = self._address(array)
        return address is None or self._live.get(address, "UNTRACKED") in ("INPUT", "UNTRACKED")

    def saved(self, node: Any, name: str, array: Any) -> None:
        self._role_changes(_ENTER, array, "ACTIVATION", node.module, node.op.__name__, node.line, name)

    def released(self, kept: Any, name: str, array: Any) -> None:
        self._role_changes(_LEAVE, array, "ACTIVATION", kept.module, kept.op, kept.line, name)

    # --- roles ------------------------------------------------------------------------------------------------------------

    def role(self, array: Any, role: str, holder: Any, of: Any = None) -> None:
        address = None if array is None else self._address(array)
        if holder is None:
            if address is not None:
                self._note_older(array, address)
                self.fact(Kind.ENTER, address, role=role)
            return
        key = id(holder), role
        with lock:
            if self._held.get(key, (None,))[0] == address:
                return
            self._let_go(key)
            if address is None:
                return
            self._note_older(array, address)
            note = "" if of is None else self._named.get(self._address(of.array) or 0, "")
            held = address, weakref.ref(holder, lambda _, key=key: self._let_go(key))
            if self._held.setdefault(key, held) is held:
                self._live[address] = role
                self.fact(Kind.ENTER, address, role=role, note=note)

    def moved(self, tensor: Any) -> None:
        for role in _KEPT:
            if (id(tensor), role) in self._held:
                self.role(tensor.array, role, tensor)

    def _let_go(self, key: tuple[int, str]) -> None:
        address, _ = self._held.pop(key, (None, None))
        if address is not None and self.on:
            self.fact(Kind.LEAVE, address, role=key[1])

    def called(self, module: Any) -> None:
        self.name(module)

    @classmethod
    def ended(cls) -> Recorder:
        """The recorder of a track that runs no longer, in this process or in any."""
        self = object.__new__(cls)
        self.on = False
        return self

    def begin(self) -> None:
        """Begin to listen, and write down what is there: bytes in use, each block, what it is and whose."""
        self.only = self.device.pool
        if self._numpy:
            whole(Ears.open, self._heard)
        self.sample()
        with lock:  # no pool of ours takes or gives back a segment between the count and the first that is heard of
            reserved = self.only.total_bytes()
            if reserved:
                self.fact(Kind.RESERVE, rounded=reserved)
            if not self._all:
                self.fact(Kind.OLDER, rounded=self.device.pool.used_bytes())
            scope.listen(self)  # before the census: what is made from now on is heard, and what was made before is found
        if self.device.pool.used_bytes():  # nothing is anybody's in an empty pool, and a census looks at each object of Python
            with scope.looking():
                if self._all:
                    reclaim(self.only, lambda: [b for b in alive({Block}) if getattr(b, "pool", None) is self.only])
                self._take_stock(Census(self.device))  # which is gone before others need not wait any more

    def _take_stock(self, found: Census) -> None:
        """Write down the blocks that are there, what each is, and whose."""
        for block in found.blocks:
            with lock:
                if block.pool is not None:  # else it died meanwhile
                    self._note_older(block, block.chunk.address)
        for role, tensors in (("PARAMETER", found.parameters), ("BUFFER", found.buffers), ("OPTIMIZER_STATE", found.states)):
            for tensor in tensors:
                self.role(tensor.array, role, tensor)
        for tensor in (*found.parameters, *found.tensors):
            if tensor._grad is not None:
                for part in parts(tensor._grad):
                    self.role(part.array, "GRADIENT", tensor if part is tensor._grad else part, tensor)
        for node in found.nodes:
            TrackedSaved.of(node)
            for name, array in node.kept():
                self.saved(node, name, array)
        self._name_all(found)

    def _name_all(self, found: Census) -> None:
        for root in found.roots:
            self.name(root)

    def name(self, root: Module) -> None:
        """Write down the paths of the parameters and buffers of ``root``, where they say more than what is known."""
        for tensors in (root.named_parameters, root.named_buffers):
            for path, tensor in tensors():
                address = self._address(tensor.array)
                note = f"{root._root_name()}.{path}"
                if address is not None and len(note) > len(self._named.get(address, "")):
                    self._note_older(tensor.array, address)
                    self._named[address] = note
                    self.fact(Kind.NAME, address, note=note)

    # --- writing ----------------------------------------------------------------------------------------------------------

    def fact(self, kind: Kind, address: int = 0, requested: int = 0, rounded: int = 0, role: str = "", note: str = "") -> None:
        """Write an event that says where the thread is."""
        now, where = perf_counter_ns() - self._began, (local.phase, local.module, local.op, local.line)
        self.log.write((int(kind), now, address, requested, rounded, *where, role, note, _thread()))

    def _role_changes(self, kind: int, array: Any, role: str, module: str, op: str, line: str, note: str) -> None:
        address = self._address(array)
        if address is not None:
            self._note_older(array, address)
            now = perf_counter_ns() - self._began
            self.log.write((kind, now, address, 0, 0, local.phase, module, op, line, role, note, _thread()))

    def _address(self, array: Any) -> int | None:
        return self.device.address(array) if self.device.owns(array) else None

    def _note_older(self, array: Any, address: int) -> None:
        """A block that is older than the log, and that nobody found when it began, is written down when it is met."""
        with lock:
            if address not in self._live:
                self.fact(Kind.OLDER, address, *self.device.sizes(array))
                self._live.setdefault(address, "UNTRACKED")
