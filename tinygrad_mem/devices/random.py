"""Counter-based random numbers: a generator is a seed and a count of the calls made with it.

Every call that draws takes one ticket ``(seed, call)``; a kernel turns a ticket into numbers with Philox, so the numbers
of a ticket can be made again at any time. A dropout mask is kept as its ticket, 16 bytes, whatever its size.

Source: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..scope import local

if TYPE_CHECKING:
    from .base import device as Device

Ticket = tuple[int, int]
_MASK = (1 << 64) - 1


class Generator:
    """PyTorch's ``Generator``: ``manual_seed``, ``initial_seed``, ``seed``; state is ``(seed, calls)``.

    A dry run has a state of its own of every generator, which begins as the generator stands: it moves none.

    Args:
        device: where the numbers are drawn; ``None`` is the cpu.
    """

    get_state: Callable[..., Any]  # these two make tensors: functional/random.py puts them here
    set_state: Callable[..., Any]
    first_seed = 0  # of generators that are made from now on

    def __init__(self, device: Device | str | None = None) -> None:
        self._device = device
        self._lock = threading.RLock()  # a signal's handler may draw too
        self._state: Ticket = ((local.dry or Generator).first_seed & _MASK, 0)

    @property
    def device(self) -> Device:
        from .base import device

        return device("cpu" if self._device is None else self._device)

    def ticket(self) -> Ticket:
        """Take the next ticket."""
        with self._lock:
            seed, calls = self.state
            self.state = (seed, calls + 1)
        return seed, calls

    @property
    def state(self) -> Ticket:
        """The next ticket: seed, and calls so far. What is set is not lost, though another thread takes a ticket just then."""
        return self._state if local.draws is None else local.draws.get(self, self._state)

    @state.setter
    def state(self, state: Ticket) -> None:
        with self._lock:
            if local.draws is None:
                self._state = state
            else:
                local.draws[self] = state

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
