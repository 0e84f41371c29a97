"""State of the running thread, and the seam through which a tracker listens.

Kept at the bottom so that every room may read it; the switches that users turn (``no_grad``, ``autocast``,
``memory.track``) live in the rooms that give them their meaning.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from .interrupts import context, covered, lock, may_wait, surely

BUFFER = 256  # elements: lines of a broadcast operand that are shorter are repeated into a buffer of this length


def settle_numpy() -> None:
    """Set the running context up for kernels: no warnings, and long lines read where they are.

    NumPy copies a broadcast operand into a buffer (8,192 elements, unless told) where its lines are shorter than that, and
    one pass over lines of 1,024 numbers then takes 2.5 times as long as without.
    """
    np.seterr(all="ignore")
    np.setbufsize(BUFFER)


class quiet_numpy:
    """Inside, the running context is set up for kernels; then it is as it was: a signal may leave ``np.errstate`` open."""

    __slots__ = ("_state",)

    def __enter__(self) -> None:
        self._state: Any = np.errstate()
        try:
            self._state.__enter__()
            settle_numpy()
        except BaseException:  # a signal: the block does not begin
            self.__exit__()
            raise

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            try:
                self._state.__exit__(None, None, None)
            except BaseException as error:
                with contextlib.suppress(Exception):  # it has ended
                    self._state.__exit__(None, None, None)
                if not isinstance(error, Exception):
                    raise


class _Local(threading.local):
    """One copy a thread: a worker starts with gradients on and no hooks, as in PyTorch.

    Attributes:
        run: ``run(f, *args)`` calls ``f`` where NumPy does not warn: inf and nan are values here, as in PyTorch. It is a
            context of the thread's own, 20 times cheaper to enter than ``np.errstate``; the user's settings are not touched.
        unheard: the same, where no track hears what NumPy allocates: for what is no op.
    """

    run: Callable[..., Any]
    unheard: Callable[..., Any]

    def __init__(self) -> None:
        quiet = contextvars.copy_context()
        quiet.run(settle_numpy)
        self.run, self.unheard = quiet.run, quiet.copy().run

    grad_enabled: bool = True
    inference: bool = False
    saved_hooks: tuple = ()  # stack of (pack, unpack), the innermost last
    recorded: int = 0  # ops that this thread has recorded under saved-tensor hooks
    saving: Any = None  # while a pack hook runs: (node, name, which input or None) of what it is given
    walk: Any = None  # the engine's walk that is under way: what hooks make for it alone is kept there
    autocast: Any = None  # in a region of amp.autocast, what says in which dtype each public function runs
    default_device: Any = None  # None: the cpu
    narrow_sums: Any = None  # a dtype whose sums stay in it, where ``backends.accumulate_in`` shows what that does
    dry: Any = None  # in a dry run, the device that every name of a device stands for
    draws: Any = None  # where the states of generators are found, if not in these: devices/random.py
    explains: bool = True  # whether an OutOfMemoryError says who has the memory: it takes time, and may be read by nobody
    phase: str = "user"  # forward, backward, recompute, optimizer, data; user: none of these
    birth: str = ""  # the role of what is allocated now, where the one who asks knows it
    op: str = ""
    module: str = ""
    caller: Any = None  # the module whose forward runs, known only while somebody listens
    line: str = ""  # the user's source line that runs the op, known only while somebody listens


local = _Local()


def is_inside(error: BaseException) -> bool:
    """Whether ``local.run`` has refused a call, which did not begin: the thread is in its context already.

    A signal handler or a finalizer runs there when it comes inside an op. Asked where ``local.run`` was called: an error from
    within the call has been through another frame.
    """
    there = error.__traceback__
    refused = type(error) is RuntimeError and there is not None and there.tb_next is None
    return refused and "is already entered" in str(error)


def run_inside(f: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """As ``local.run``, in a context made for this call: where :func:`is_inside`."""
    quiet = contextvars.copy_context()
    quiet.run(settle_numpy)
    return quiet.run(f, *args, **params)


def run(f: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """As ``local.run``, also inside an op: what handlers and finalizers may call."""
    try:
        return local.run(f, *args, **params)
    except RuntimeError as error:
        if not is_inside(error):
            raise
    return run_inside(f, *args, **params)


def run_by(way: Callable[..., Any], f: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """As :func:`run`, by what ``local.run`` was when the caller put something else in its place."""
    try:
        return way(f, *args, **params)
    except RuntimeError as error:
        if not is_inside(error):
            raise
    return run_inside(f, *args, **params)


class Listener:
    """The events that a tracker hears: subclasses override what they need. Rooms below the tracker know only this class.

    Attributes:
        only: the pool that it hears; ``None``: all pools. Several may have the same device's name, one for each dry run.
    """

    only: Any = None

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        """The pool of ``device`` handed out a block."""

    def free(self, device: str, address: int, rounded: int) -> None:
        """A block comes back; it is still counted as used."""

    def segment(self, device: str, address: int, size: int) -> None:
        """The pool took ``size`` bytes from the machine, or gave ``-size`` bytes back."""

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        """The op of ``node`` is about to run on ``arrays`` with ``params``; ``node.line`` may be set."""

    def saved(self, node: Any, name: str, array: Any) -> None:
        """``node`` keeps ``array`` for backward."""

    def released(self, kept: Any, name: str, array: Any) -> None:
        """The node (``kept`` has its op, module and line) keeps ``array`` no longer."""

    def role(self, array: Any, role: str, holder: Any, of: Any = None) -> None:
        """While ``holder`` lives, ``array`` is ``role``; ``None`` for the array: ``holder`` has none of that role any more.

        Args:
            of: the tensor that the array is the gradient or the state of.
        """

    def moved(self, tensor: Any) -> None:
        """The memory of ``tensor`` was replaced."""

    def called(self, module: Any) -> None:
        """A module that no other module runs in is about to run."""

    def spared(self, node: Any) -> None:
        """The op of ``node`` is skipped: its forward result is still there."""


autopsy: Callable[[Any, int], str] | None = None  # what the tracker's room adds to an OutOfMemoryError: who has the memory
stepping_in_backward: weakref.WeakSet[Any] = weakref.WeakSet()  # what updates parameters as their gradients arrive


class Hearers(tuple):
    """The listeners, as threads share them. It is no plain tuple, because of free-threaded Python.

    A thread that frees a plain tuple keeps its memory for its next tuple. If another thread made the first one, the garbage
    collector takes that thread for the owner of the second too, and frees what lies in it only when that thread looks.
    """

    __slots__ = ()


listeners: tuple[Listener, ...] = Hearers()  # empty means that nothing is tracked, and nothing is paid for it
_listening: dict[Listener, None] = {}  # the same; what is put in or taken out at once, whoever runs in between


class looking:
    """Inside, the thread looks at all that is alive, and so keeps it alive: dry runs wait until it has let go.

    Several may look at once, and none waits for another: who looks may come from inside a change, and others' looks change
    things.
    """

    __slots__ = ("_over", "_thread")
    _open: ClassVar[dict[looking, None]] = {}

    def __enter__(self) -> None:
        self._thread, self._over = threading.get_ident(), threading.Lock()
        self._over.acquire(blocking=False)
        self._open[self] = None

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            self._open.pop(self, None)
            if self._over.locked():
                self._over.release()

    @classmethod
    def wait(cls) -> None:
        """Return when no other thread looks; at once where this one may not wait, or looks itself: others may wait for it."""
        me = threading.get_ident()
        while cls._open and may_wait():
            looks = list(cls._open.copy())
            if any(look._thread == me for look in looks):
                return
            for look in looks:
                with look._over:
                    pass

    @classmethod
    def forget(cls) -> None:
        """Nobody else looks: in a forked child."""
        for look in cls._open.copy():
            if look._thread != threading.get_ident():
                look.__exit__()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=looking.forget)


def hearing(pool: Any) -> list[Listener]:
    """Those who hear what ``pool`` does."""
    return [each for each in listeners if each.only is None or each.only is pool]


def program() -> Any:
    """The program that the running thread's ops belong to: all threads of a dry run are one; outside, each is its own."""
    return local.dry or threading.get_ident()


def ask_autopsy(pool: Any, requested: int) -> str:
    """Say who has the memory of ``pool`` and what would help; ``""`` where nobody can say."""
    if autopsy is None or not local.explains:
        return ""
    try:
        return autopsy(pool, requested)
    except Exception:  # the machine may be out of memory for this too: the error itself matters more
        return ""


def listen(listener: Listener) -> None:
    """Add ``listener`` to those who hear of every allocation, on every thread."""
    with lock:
        _listening[listener] = None
        _publish()


def unlisten(listener: Listener) -> None:
    """Remove ``listener``; a listener that is not there is an error of the caller."""
    with lock:
        if listener not in _listening:
            raise ValueError("this listener is not listening; listen() and unlisten() come in pairs")
        forget(listener)


def forget(listener: Listener) -> None:
    """As :func:`unlisten`, also where it does not listen: what an interrupt has left."""
    with lock:
        _listening.pop(listener, None)
        _publish()


def _publish() -> None:
    global listeners
    while listeners != (now := Hearers(_listening)):  # again, where a handler or a finalizer has changed them in between
        listeners = now


class Ours(Listener):
    """Hands on to a listener what the program does that this is made in, and nothing of what others do beside it."""

    def __init__(self, listener: Listener) -> None:
        self.program = program()
        for name, silence in vars(Listener).items():
            hear = getattr(listener, name)
            if callable(silence) and getattr(hear, "__func__", None) is not silence:
                setattr(self, name, functools.partial(self._hand_on, hear))

    def _hand_on(self, hear: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if program() == self.program:
            hear(*args, **kwargs)


@context
def listening(listener: Listener) -> Iterator[None]:
    """Inside, ``listener`` hears what the running program does, and no other."""
    ours = Ours(listener)
    try:
        listen(ours)
        yield
    finally:
        surely(forget, ours)


class phase:
    """``with scope.phase("backward"):`` marks what the thread is doing; phases nest and restore what stood before."""

    __slots__ = ("before", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.before, local.phase = local.phase, self.name

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            local.phase = self.before


SWITCHES = ("grad_enabled", "inference", "autocast", "default_device", "dry", "draws", "module", "caller")


FRESH = tuple([getattr(_Local, name) for name in SWITCHES])  # in a thread that has just begun


def switches() -> tuple:
    """The thread's switches as they are now, for :func:`switched`."""
    return tuple([getattr(local, name) for name in SWITCHES])


class switched:
    """Inside, the switches say what they said when ``to`` was taken: for code that must find what it found then."""

    def __init__(self, to: tuple) -> None:
        self.to = to

    def __enter__(self) -> None:
        self.before: dict[str, Any] = dict(zip(SWITCHES, switches(), strict=True))
        try:
            local.__dict__.update(zip(SWITCHES, self.to, strict=True))
        except BaseException:  # a signal, which is heard after the call
            local.__dict__.update(self.before)
            raise

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            local.__dict__.update(self.before)  # one call of C: no signal is heard before all are set


def put_back(before: dict[str, Any]) -> None:
    """Make the thread's state what it was when ``before``, a copy of ``local.__dict__``, was taken."""
    now = local.__dict__
    for name in now.keys() - before.keys():
        del now[name]
    now.update(before)
