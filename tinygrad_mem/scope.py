"""The state of the running thread, and the events that a tracker receives.

Every room may import this file. The switches that users call (``no_grad``, ``autocast``, ``memory.track``) are in the rooms
that implement them.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from .interrupts import cleanup, context, lock, may_wait, signal_safe

BUFFER = 256  # elements: NumPy copies shorter lines of a broadcast operand into a buffer of this length


def settle_numpy() -> None:
    """Set NumPy up for kernels in the running context: no warnings, and a smaller buffer.

    NumPy copies lines of a broadcast operand into a buffer if they are shorter than the buffer (8,192 elements by default). On
    lines of 1,024 numbers that makes a pass 2.5 times slower.
    """
    np.seterr(all="ignore")
    np.setbufsize(BUFFER)


class quiet_numpy:
    """Inside, NumPy is set up for kernels. Its settings are restored afterwards, even if a signal comes."""

    __slots__ = ("_state",)

    def __enter__(self) -> None:
        self._state: Any = np.errstate()
        try:
            self._state.__enter__()
            settle_numpy()
        except BaseException:  # an interrupt: the block does not begin
            self.__exit__()
            raise

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            try:
                self._state.__exit__(None, None, None)
            except BaseException as error:
                with contextlib.suppress(Exception):  # it had ended before the interrupt
                    self._state.__exit__(None, None, None)
                if not isinstance(error, Exception):
                    raise


class _Local(threading.local):
    """One copy per thread. A new thread starts with gradients on and without hooks, as in PyTorch.

    Attributes:
        run: ``run(f, *args)`` calls ``f`` with NumPy's warnings off: inf and nan are values here, as in PyTorch. It uses a
            context of this thread, which is 20 times cheaper to enter than ``np.errstate``. The user's settings stay.
        run_uncounted: the same for work outside of ops. The tests do not count what NumPy allocates there.
    """

    run: Callable[..., Any]
    run_uncounted: Callable[..., Any]

    def __init__(self) -> None:
        quiet = contextvars.copy_context()
        quiet.run(settle_numpy)
        self.run, self.run_uncounted = quiet.run, quiet.copy().run
        self.recorded: Counter[int] = Counter()  # ops recorded under saved-tensor hooks, by :func:`callback_depth`
        self.entered_devices: list = []  # the default devices to restore at the end of ``with device:`` blocks

    grad_enabled: bool = True
    inference: str = ""  # in inference mode: what is_grad_enabled() says there, "grad" or "no grad"
    saved_hooks: tuple = ()  # stack of (pack, unpack, callback_depth()), the innermost last
    saving: Any = None  # while a pack hook runs: (node, name, number of the input or None) of the hook's argument
    walk: Any = None  # the running backward; hooks store there what they need until its end
    autocast: Any = None  # inside amp.autocast: the object that knows in which dtype each public function runs
    parametrized: dict | None = None  # inside nn.utils.parametrize.cached: the values that were computed there
    default_device: Any = None  # None: the cpu
    narrow_products: Any = None  # inside backends.accumulate_in: the dtype whose products are added up in that same dtype
    early_stop: bool | None = None  # set: it replaces the argument of this name of checkpoints
    debug: bool | None = None  # the same
    dry: Any = None  # in a dry run: the device that replaces every device
    draws: Any = None  # the states of generators, if a dry run keeps its own: devices/random.py
    explains: bool = True  # False: an OutOfMemoryError does not list who has the memory, which takes time
    once: bool = False  # ops run that a recomputation leaves out: they are none of a checkpoint's
    phase: str = "user"  # forward, backward, recompute, optimizer, data; user: none of these
    new_role: str = ""  # the role of new blocks, if the caller knows it
    op: str = ""
    module: str = ""
    caller: Any = None  # the module whose forward runs; set only while there is a listener
    line: str = ""  # the user's source line that runs the op; set only while there is a listener


local = _Local()


def is_inside(error: BaseException) -> bool:
    """True if ``local.run`` raised ``error`` because the thread is already in its context.

    This happens in a signal handler or a finalizer that runs inside an op. Call it in the frame that called ``local.run``: an
    error that comes from inside the call has a longer traceback.
    """
    there = error.__traceback__
    refused = type(error) is RuntimeError and there is not None and there.tb_next is None
    return refused and "is already entered" in str(error)


def run_inside(f: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """As ``local.run``, in a new context. For calls that :func:`is_inside` recognizes."""
    quiet = contextvars.copy_context()
    quiet.run(settle_numpy)
    return quiet.run(f, *args, **params)


def run(f: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """As ``local.run``. Signal handlers and finalizers may also call it inside an op."""
    return run_by(local.run, f, *args, **params)


def run_by(way: Callable[..., Any], f: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """As :func:`run`, with ``way`` instead of ``local.run``."""
    try:
        return way(f, *args, **params)
    except RuntimeError as error:
        if not is_inside(error):
            raise
    return run_inside(f, *args, **params)


class Listener:
    """The events that a tracker receives. A subclass overrides those that it needs.

    Attributes:
        only: the pool whose events it receives; ``None``: all pools. Each dry run has a pool, and two may have one device name.
    """

    only: Any = None

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        """The pool of ``device`` handed out a block."""

    def free(self, device: str, address: int, rounded: int) -> None:
        """A block is about to be freed; the pool still counts it as used."""

    def segment(self, device: str, address: int, size: int) -> None:
        """The pool reserved ``size`` bytes of the machine, or returned ``-size`` bytes to it."""

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        """The op of ``node`` is about to run on ``arrays`` with ``params``; ``node.line`` may be set."""

    def saved(self, node: Any, name: str, array: Any) -> None:
        """``node`` keeps ``array`` for backward."""

    def released(self, kept: Any, name: str, array: Any) -> None:
        """A node no longer keeps ``array``; ``kept`` has the node's op, module and line."""

    def role(self, array: Any, role: str, holder: Any, of: Any = None) -> None:
        """``array`` has a role until ``holder`` is freed. If ``array`` is ``None``, the holder has no array of that role now.

        Args:
            of: the tensor that the array is the gradient or the state of.
        """

    def moved(self, tensor: Any) -> None:
        """The memory of ``tensor`` was replaced."""

    def called(self, module: Any) -> None:
        """A module that no other module called is about to run."""

    def skipped(self, node: Any) -> None:
        """The op of ``node`` is skipped: its forward result is still there."""


autopsy: Callable[[Any, int], str] | None = None  # the tracker sets it: it says in an OutOfMemoryError who has the memory
dry_run_hooks: list[Callable[..., None]] = []  # called after each op of a dry run; they compute results of known inputs
stepping_in_backward: weakref.WeakSet[Any] = weakref.WeakSet()  # objects that update parameters as their gradients arrive


class Listeners(tuple):
    """The listeners, shared by all threads. Free-threaded Python is the reason for the subclass.

    A thread that frees a plain tuple reuses its memory for its next tuple. If another thread made the first tuple, the garbage
    collector takes that thread for the owner of the second one too, and frees its items only when that thread runs.
    """

    __slots__ = ()


listeners: tuple[Listener, ...] = Listeners()  # empty: nothing is tracked, and tracking costs nothing
_listening: dict[Listener, None] = {}  # the same as a dict: one call adds or removes an item, also between threads


class scanning:
    """Inside, the thread scans all live objects and so keeps them alive. Dry runs wait until it has finished.

    Several threads may scan at once. None waits for another: a scan may begin under a lock that others wait for.
    """

    __slots__ = ("_over", "_thread")
    _open: ClassVar[dict[scanning, None]] = {}

    def __enter__(self) -> None:
        self._thread, self._over = threading.get_ident(), threading.Lock()
        self._over.acquire(blocking=False)
        self._open[self] = None

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            self._open.pop(self, None)
            if self._over.locked():
                self._over.release()

    @classmethod
    def wait(cls) -> None:
        """Wait until no other thread scans. Return at once if this thread may not wait, or scans itself."""
        me = threading.get_ident()
        while cls._open and may_wait():
            scans = list(cls._open.copy())
            if any(scan._thread == me for scan in scans):
                return
            for scan in scans:
                with scan._over:
                    pass

    @classmethod
    def end_others(cls) -> None:
        """End the scans of other threads: for a forked child, where these threads do not exist."""
        for scan in cls._open.copy():
            if scan._thread != threading.get_ident():
                scan.__exit__()


def _in_child() -> None:
    """A forked child has no listeners, and no other thread that scans."""
    global listeners
    scanning.end_others()
    _listening.clear()
    listeners = Listeners()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def listeners_of(pool: Any) -> list[Listener]:
    """The listeners that receive the events of ``pool``."""
    return [each for each in listeners if each.only is None or each.only is pool]


def program() -> Any:
    """The program of the running thread. All threads of a dry run are one program; any other thread is one by itself."""
    return local.dry or threading.get_ident()


def ask_autopsy(pool: Any, requested: int) -> str:
    """A text that says who has the memory of ``pool`` and what would help; ``""`` without a tracker."""
    if autopsy is None or not local.explains:
        return ""
    try:
        return autopsy(pool, requested)
    except Exception:  # the machine may have no memory for this text; the OutOfMemoryError matters more
        return ""


def report_role(array: Any, role: str, holder: Any, of: Any = None) -> None:
    """Report to the listeners that ``array`` has a role until ``holder`` is freed: see :meth:`Listener.role`."""
    for listener in listeners:
        listener.role(array, role, holder, of)


def listen(listener: Listener) -> None:
    """Add ``listener``. It receives the events of all threads."""
    with lock:
        _listening[listener] = None
        _publish()


def unlisten(listener: Listener) -> None:
    """Remove ``listener``. Raises: ValueError: it was not added."""
    with lock:
        if listener not in _listening:
            raise ValueError("this listener is not listening; listen() and unlisten() come in pairs")
        discard(listener)


def discard(listener: Listener) -> None:
    """Remove ``listener``, if an interrupt has not kept it from being added."""
    with lock:
        _listening.pop(listener, None)
        _publish()


def _publish() -> None:
    global listeners
    while listeners != (now := Listeners(_listening)):  # a signal handler or a finalizer may change them in between
        listeners = now


class ProgramListener(Listener):
    """Passes the events of one program to a listener: the program in which it was made."""

    def __init__(self, listener: Listener) -> None:
        self.program = program()
        for name, default in vars(Listener).items():
            receive = getattr(listener, name)
            if callable(default) and getattr(receive, "__func__", None) is not default:
                setattr(self, name, functools.partial(self._pass_on, receive))

    def _pass_on(self, receive: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if program() == self.program:
            receive(*args, **kwargs)


@context
def listening(listener: Listener) -> Iterator[None]:
    """Inside, ``listener`` receives only the events of the running program."""
    mine = ProgramListener(listener)
    try:
        listen(mine)
        yield
    finally:
        cleanup(discard, mine)


class setting(contextlib.ContextDecorator):
    """``with setting(phase="backward"):`` sets attributes of :data:`local`. They nest; the end restores the values before."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def _recreate_cm(self) -> setting:
        return copy.copy(self)  # a decorated function may call itself

    def __enter__(self) -> None:
        self.before = {name: getattr(local, name) for name in self.values}
        try:
            local.__dict__.update(self.values)
        except BaseException:  # an interrupt, raised after the call
            local.__dict__.update(self.before)
            raise

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            local.__dict__.update(self.before)  # one call of C: no interrupt can come before all are set


def phase(name: str) -> setting:
    """``with scope.phase("backward"):`` sets the thread's phase."""
    return setting(phase=name)


SWITCHES = ("grad_enabled", "inference", "autocast", "default_device", "dry", "draws", "module", "caller")
FRESH = tuple([getattr(_Local, name) for name in SWITCHES])  # the switches of a new thread


def switches() -> tuple:
    """The thread's present switches, for :func:`switched`."""
    return tuple([getattr(local, name) for name in SWITCHES])


def switched(to: tuple) -> setting:
    """Inside, the switches have the values ``to``, a result of :func:`switches`."""
    return setting(**dict(zip(SWITCHES, to, strict=True)))


def restore_local(before: dict[str, Any]) -> None:
    """Restore the thread's state to ``before``, an earlier copy of ``local.__dict__``."""
    now = local.__dict__
    for name in now.keys() - before.keys():
        del now[name]
    now.update(before)
