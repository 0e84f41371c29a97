"""A training step on ``meta``: what it will need, to the byte, before anything is allocated."""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from .. import scope
from ..devices import Generator, Pool, opened
from ..devices import device as Device
from ..devices.pool import ROUND
from ..errors import DataDependenceError, DeviceError
from .listener import Recorder
from .source import is_engine, source_name
from .track import Track

_apart = itertools.count(1)  # runs whose addresses are beyond those of a run around them


class _Ends(scope.Listener):
    """What a track hears of a run inside it: a free, which it takes for one of its own where it knows the address."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def free(self, device: str, address: int, rounded: int) -> None:
        self.recorder.free(device, address, rounded)


def predict(run: Callable[..., Any], *args: Any, like: str = "cpu", **kwargs: Any) -> Track:
    """Run ``run(*args, **kwargs)`` without memory and without arithmetic, and say what it would have needed.

    ``run`` makes all that it uses (model, optimizer, data) and takes its steps, as a training script does. Every device that it
    names, ``cpu`` and ``cuda`` alike, is ``meta`` here, whose pool and ops ask for the same bytes in the same order as those of
    ``like``. ``loss.item()`` is a number that is not known: it may be logged and summed.

    Args:
        like: ``"cpu"``, or ``"cuda"``, where kernels want other workspaces. CuPy must be installed for that; a GPU is not
            needed. On a GPU CuPy chooses among equal free blocks in a way that nobody can foretell, so reserved bytes are an
            interval, which :meth:`Track.replay` gives; what libraries take beside the pool is in ``kernels/uncounted.py``.

    Returns:
        The track of ``meta``, as ``memory.track()`` gives it for a real run: ``.peak``, ``.by_category()``, ``.pool()``, ...

    Raises:
        DataDependenceError: which way the program goes depends on values; the message says where.
        DeviceError: it uses a tensor that was made before, and elsewhere; ``like`` is no such device, or CuPy is missing.
    """
    with dry_run(like) as meta, Track(meta) as track:
        run(*args, **kwargs)
    return track


@contextlib.contextmanager
def dry_run(like: str = "cpu") -> Iterator[Device]:
    """Inside, every device that is named is ``meta``, with a pool of its own that begins empty; generators are not moved.

    A track of ``meta`` that runs already hears nothing of it but the end of blocks of its own: what is made inside has
    addresses that it does not know.

    Args, raises: as :func:`predict`.
    """
    meta: Any = Device("meta")
    deaf = [each for each in scope.listeners if isinstance(each, Recorder) and each.device is meta]
    first = ROUND + (next(_apart) % 2**18 << 44 if deaf else 0)
    kernels, meta.kernels = meta.kernels, meta.kernels_like(like)
    pool = meta.pool
    meta.pool = inside = Pool("meta", reserve=False, first=first)  # an empty one: what lives on meta is no part of the run
    pool.mute(not deaf)
    before, generators = scope.local.dry, {device.generator: device.generator.state for device in opened()}
    first_seed = Generator.first_seed
    ends = [_Ends(each) for each in deaf]
    for each, end in zip(deaf, ends, strict=True):
        scope.unlisten(each)
        scope.listen(end)
    try:
        with meta:
            scope.local.dry = meta
            yield meta
    except DataDependenceError as error:
        raise DataDependenceError(f"predict: at {_where(error)}: {error}") from error
    except DeviceError as error:
        raise DeviceError(
            f"predict: at {_where(error)}: {error} In a prediction every tensor is on meta: make what the step uses inside it."
        ) from error
    finally:
        for each, end in zip(deaf, ends, strict=True):
            scope.unlisten(end)
            scope.listen(each)
        scope.local.dry = before
        inside.mute(True)  # what of it outlives the run is no part of another one
        pool.mute(False)
        meta.pool, meta.kernels = pool, kernels
        Generator.first_seed = first_seed
        for generator, state in generators.items():
            generator.state = state


def _where(error: BaseException) -> str:
    """The user's line that the error came from."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
    found = next((i for i in reversed(range(len(frames))) if not is_engine(frames[i].f_code)), None)
    return "an unknown line" if found is None else source_name(frames[found].f_code, lines[found])
