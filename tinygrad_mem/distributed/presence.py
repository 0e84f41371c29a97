"""The processes of this machine that are still running.

Each process locks a file of its own. The system releases the lock when the process ends, however it ends, even before its
parent has waited for it. So the others try to take the lock. (A signal 0 would also reach a process that has ended and whose
parent has not waited for it.) A process that it forks is not taken for it: such locks are not inherited.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class Presence:
    """The file of this process, locked, and those of others. They stay open as long as the process lives.

    Args:
        name: of the file, known to the others.
    """

    def __init__(self, name: str) -> None:
        self._path = Path(gettempdir()) / name
        self._others: dict[int, int] = {}  # rank -> descriptor of its file
        if fcntl is not None:
            try:
                fcntl.lockf(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), fcntl.LOCK_EX)
            except OSError:  # no file can be made or locked here: other ranks cannot see this process
                self.hide()

    def watch(self, rank: int, name: str) -> None:
        """Open the file of the process ``rank``, if it is on this machine."""
        with suppress(OSError):
            self._others[rank] = os.open(self._path.with_name(name), os.O_RDWR)

    def hide(self) -> None:
        """Remove the file's name, when all have opened the file. Nothing is left on the disk, however this process ends."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def sees(self, rank: int) -> bool | None:
        """True if the process is running, False if it has ended, ``None`` if this cannot be found out from here."""
        file = self._others.get(rank)
        if file is None or fcntl is None:
            return None
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several may ask at once
        except BlockingIOError:
            return True
        return False
