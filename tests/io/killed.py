"""``python -m tests.io.killed FOLDER``: saves that are killed before a line of ours, everywhere on the way; prints how many.

A process of its own: children of one that has imported little are made quickly.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tinygrad_mem as tm

PACKAGE = str(Path(tm.__file__).parent)
KILLS = 100  # the number of lines differs between versions of Python


class Killed:
    """A trace function that counts lines of ours, and kills the process before the ``number``-th."""

    def __init__(self, number: int = -1) -> None:
        self.lines, self.number = 0, number

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            if self.lines == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            self.lines += 1
        return self


def lines(save: Callable[[], Any]) -> int:
    """How many lines of ours a save comes to."""
    counted = Killed()
    sys.settrace(counted)
    save()
    sys.settrace(None)
    return counted.lines


def kill(save: Callable[[], Any], line: int) -> None:
    """Save in a child that does not get beyond a line."""
    child = os.fork()
    if not child:
        sys.settrace(Killed(line))
        save()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def main(folder: Path) -> None:
    path = folder / "model"
    old, new = {"w": tm.zeros(5000)}, {"w": tm.ones(5000)}
    tm.save(new, path)
    after = path.read_bytes()
    tm.save(old, path)
    before = path.read_bytes()
    left, wholes = 0, set()
    every = lines(lambda: tm.save(old, path))
    assert every >= KILLS
    for number in range(KILLS):
        kill(lambda: tm.save(new, path), (number + 1) * every // KILLS - 1)
        found = list(folder.iterdir())
        left += len(found) - 1
        assert len(found) <= 2, found
        wholes.add(path.read_bytes())
        tm.save(old, path)
        assert list(folder.iterdir()) == [path], "the next save left what the killed one left"
        assert path.read_bytes() == before
    assert wholes == {before, after}, "a killed save left neither the old file nor the new one"
    assert left > 10, "none was killed while it wrote"
    print(KILLS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
