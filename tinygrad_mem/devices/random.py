"""Counter-based random numbers: a generator is a seed and a count of the calls made with it.

Every call that draws takes one ticket ``(seed, call)``. A kernel turns a ticket into numbers with Philox, so the numbers of a
ticket can be made again at any time. A dropout mask is kept as its ticket: 16 bytes, whatever its size.

Source: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
"""

from __future__ import annotations

import secrets
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ..callbacks import callback_depth
from ..errors import ArgumentError
from ..interrupts import lock, signal_safe
from ..scope import local

Ticket = tuple[int, int]
_MASK = (1 << 64) - 1


class Generator:
    """PyTorch's ``Generator``: ``manual_seed``, ``initial_seed``, ``seed``; state is ``(seed, calls)``.

    A thread may have its own copy of the state, see :class:`Draws`: a dry run changes no generator.

    Args:
        device: where the numbers are drawn; ``None`` is the cpu.
    """

    device: Any  # base.py defines it
    get_state: Callable[..., Any]  # these two make tensors; functional/random.py defines them
    set_state: Callable[..., Any]

    def __init__(self, device: Any = None) -> None:
        self._device = device
        self._state: Ticket = FIRST.state

    def ticket(self) -> Ticket:
        """Take the next ticket."""
        with lock:
            seed, calls = self.state
            self.state = (seed, calls + 1)
        return seed, calls

    @property
    def state(self) -> Ticket:
        """The next ticket: the seed, and the number of calls so far."""
        return self._state if local.draws is None else local.draws.get(self)

    @state.setter
    def state(self, state: Ticket) -> None:
        with lock:
            if local.draws is None:
                self._state = state
            else:
                local.draws.set(self, state)

    def manual_seed(self, seed: int) -> Generator:
        """Restart from ``seed``, an integer; negative ones count modulo 2**64, as in PyTorch."""
        if not -(1 << 63) <= seed <= _MASK:
            raise ArgumentError(f"manual_seed: overflow, expected -2**63 <= seed < 2**64, found {seed}")
        self.state = (seed & _MASK, 0)
        return self

    def clone_state(self) -> Generator:
        """A new generator with the same state."""
        twin = Generator(self._device)
        twin.state = self.state
        return twin

    def initial_seed(self) -> int:
        """The seed in use."""
        return self.state[0]

    def seed(self) -> int:
        """Restart from a random seed of the operating system, and return it."""
        self.state = (secrets.randbits(64), 0)
        return self.state[0]


class _First(Generator):
    """Holds the state with which new generators begin. Nothing is drawn from it."""

    def __init__(self) -> None:
        self._device, self._state = None, (0, 0)


FIRST = _First()


class Draws:
    """The place where a thread reads and writes the states of generators, inside a ``with`` block. Blocks may be nested.

    Threads that are started inside use it too: see :mod:`~tinygrad_mem.devices.dry`.
    """

    def __init__(self) -> None:
        self.below: Draws | None = local.draws

    def get(self, generator: Generator) -> Ticket:
        """The state of ``generator``."""
        return generator._state if self.below is None else self.below.get(generator)

    def set(self, generator: Generator, state: Ticket) -> None:
        """Set the state of ``generator``."""
        if self.below is None:
            generator._state = state
        else:
            self.below.set(generator, state)

    def again(self) -> Draws:
        """The draws for a second call of the same function."""
        return Draws()

    def __enter__(self) -> Draws:
        self.before, local.draws = local.draws, self
        return self

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            local.draws = self.before


class Apart(Draws):
    """Generators start from their current states and are not changed: states that are set stay in here."""

    def __init__(self) -> None:
        super().__init__()
        self._states: weakref.WeakKeyDictionary[Generator, Ticket] = weakref.WeakKeyDictionary()

    def get(self, generator: Generator) -> Ticket:
        state = self._states.get(generator)
        return super().get(generator) if state is None else state

    def set(self, generator: Generator, state: Ticket) -> None:
        self._states[generator] = state


class Noted(Draws):
    """Records each state that is read, so that a second call of the same function (:meth:`again`) reads the same ones.

    The states at the beginning would not be enough: other threads may draw from the same generators in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[Generator, list[Ticket]] = {}
        self.ended = False  # what a thread draws afterwards is not recorded
        self.depth = callback_depth()

    def get(self, generator: Generator) -> Ticket:
        state = super().get(generator)
        if not self.ended and callback_depth() == self.depth:
            self.read.setdefault(generator, []).append(state)
        return state

    def set(self, generator: Generator, state: Ticket) -> None:
        if not self.ended and callback_depth() == self.depth:
            self.read.setdefault(generator, [])
        super().set(generator, state)

    def again(self) -> Draws:
        return _Again(self.read)

    @signal_safe
    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__(*exc)
        finally:
            local.draws, self.ended = self.before, True


class _Again(Apart):
    """Replays the recorded states in order, without changing the generators that they belong to."""

    def __init__(self, read: dict[Generator, list[Ticket]]) -> None:
        super().__init__()
        self._left = {generator: deque(states) for generator, states in read.items()}
        self.depth = callback_depth()

    def get(self, generator: Generator) -> Ticket:
        if callback_depth() != self.depth:
            return Draws.get(self, generator)
        left = self._left.get(generator)
        return left.popleft() if left else super().get(generator)

    def set(self, generator: Generator, state: Ticket) -> None:
        if generator in self._left and callback_depth() == self.depth:
            super().set(generator, state)
        else:
            Draws.set(self, generator, state)
