"""Counter-based random numbers: a generator is a seed and a count of the calls made with it.

Every call that draws takes one ticket ``(seed, call)``; a kernel turns a ticket into numbers with Philox, so the numbers
of a ticket can be made again at any time. A dropout mask is kept as its ticket, 16 bytes, whatever its size.

Source: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
"""

from __future__ import annotations

import secrets
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..interrupts import covered, lock
from ..scope import local

if TYPE_CHECKING:
    from .base import device as Device

Ticket = tuple[int, int]
_MASK = (1 << 64) - 1


class Generator:
    """PyTorch's ``Generator``: ``manual_seed``, ``initial_seed``, ``seed``; state is ``(seed, calls)``.

    Where a thread finds the state and leaves it, :class:`Draws` may say: a dry run moves no generator.

    Args:
        device: where the numbers are drawn; ``None`` is the cpu.
    """

    get_state: Callable[..., Any]  # these two make tensors: functional/random.py puts them here
    set_state: Callable[..., Any]

    def __init__(self, device: Device | str | None = None) -> None:
        self._device = device
        self._state: Ticket = FIRST.state

    @property
    def device(self) -> Device:
        from .base import device

        return device("cpu" if self._device is None else self._device)

    def ticket(self) -> Ticket:
        """Take the next ticket."""
        with lock:
            seed, calls = self.state
            self.state = (seed, calls + 1)
        return seed, calls

    @property
    def state(self) -> Ticket:
        """The next ticket: seed, and calls so far. What is set is not lost, though another thread takes a ticket just then."""
        return self._state if local.draws is None else local.draws.get(self)

    @state.setter
    def state(self, state: Ticket) -> None:
        with lock:
            if local.draws is None:
                self._state = state
            else:
                local.draws.set(self, state)

    def manual_seed(self, seed: int) -> Generator:
        """Start again from ``seed``, an integer (negative ones are taken modulo 2**64, as in PyTorch)."""
        if not -(1 << 63) <= seed <= _MASK:
            raise ArgumentError(f"manual_seed: overflow, expected -2**63 <= seed < 2**64, found {seed}")
        self.state = (seed & _MASK, 0)
        return self

    def clone_state(self) -> Generator:
        """A generator that will draw what this one will."""
        twin = Generator(self._device)
        twin.state = self.state
        return twin

    def initial_seed(self) -> int:
        """The seed in use."""
        return self.state[0]

    def seed(self) -> int:
        """Start again from a seed drawn from the operating system, and return it."""
        self.state = (secrets.randbits(64), 0)
        return self.state[0]


class _First(Generator):
    """Nobody draws from it: its state is what new generators begin with."""

    def __init__(self) -> None:
        self._device, self._state = None, (0, 0)


FIRST = _First()


class Draws:
    """Inside, the thread finds the states of generators here, and leaves them here: on top of where it did before.

    Threads that it starts meanwhile do too: see :mod:`~tinygrad_mem.devices.dry`.
    """

    def __init__(self) -> None:
        self.below: Draws | None = local.draws

    def get(self, generator: Generator) -> Ticket:
        """The state of ``generator``."""
        return generator._state if self.below is None else self.below.get(generator)

    def set(self, generator: Generator, state: Ticket) -> None:
        """Let it be ``state``."""
        if self.below is None:
            generator._state = state
        else:
            self.below.set(generator, state)

    def again(self) -> Draws:
        """For a second call of what was called inside: what it shall find."""
        return Draws()

    def __enter__(self) -> Draws:
        self.before, local.draws = local.draws, self
        return self

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            local.draws = self.before


class Apart(Draws):
    """Generators begin as they stand and are not moved: each that is set has a state of its own here."""

    def __init__(self) -> None:
        super().__init__()
        self._states: weakref.WeakKeyDictionary[Generator, Ticket] = weakref.WeakKeyDictionary()

    def get(self, generator: Generator) -> Ticket:
        state = self._states.get(generator)
        return super().get(generator) if state is None else state

    def set(self, generator: Generator, state: Ticket) -> None:
        self._states[generator] = state


class Noted(Draws):
    """Notes what is drawn, so that the same function finds the same when it is called :meth:`again`.

    Where the generators stood before would not do: other threads may draw from them in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[Generator, list[Ticket]] = {}
        self.ended = False  # a thread that goes on afterwards is not part of it

    def get(self, generator: Generator) -> Ticket:
        state = super().get(generator)
        if not self.ended:
            self.read.setdefault(generator, []).append(state)
        return state

    def set(self, generator: Generator, state: Ticket) -> None:
        if not self.ended:
            self.read.setdefault(generator, [])
        super().set(generator, state)

    def again(self) -> Draws:
        return _Again(self.read)

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__(*exc)
        finally:
            local.draws, self.ended = self.before, True


class _Again(Apart):
    """Reads once more what was noted, in its order; the generators that it was noted of are not moved."""

    def __init__(self, read: dict[Generator, list[Ticket]]) -> None:
        super().__init__()
        self._left = {generator: deque(states) for generator, states in read.items()}

    def get(self, generator: Generator) -> Ticket:
        left = self._left.get(generator)
        return left.popleft() if left else super().get(generator)

    def set(self, generator: Generator, state: Ticket) -> None:
        if generator in self._left:
            super().set(generator, state)
        else:
            Draws.set(self, generator, state)
