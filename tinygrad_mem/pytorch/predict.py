"""``predict``: the memory of a PyTorch program on a GPU, computed without one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, Literal, overload

from ..errors import ArgumentError, NotOfferedError
from ..interrupts import reentrant
from ..memory.ranks import Alike, AllRanks, Grid, check_asked
from ..memory.sizes import bytes_text, parse_bytes
from ..memory.track import Track
from .cards import USUAL, GraphicsCard, card_of

_OLDEST = "2.11"  # of the versions with which predictions are tested
_lock = reentrant()
"""Held while a program is predicted: a prediction changes parts of PyTorch that all threads share."""


class Prediction(Track):
    """The track of a predicted program.

    Attributes:
        settings: the settings of PyTorch's CUDA allocator in this prediction.
        peak_reserved: the most bytes that the allocator reserved.
        out_of_memory: the request that the card could not serve; ``""`` if the program fits.
        notes: the assumptions of the prediction, in sentences.
        looks: the program asked for the card's memory, or emptied the cache: what it does may depend on both.
        unknown: a reason why bytes cannot be known without a GPU -> by how many bytes, more or less, one call may differ.
        streams: of each request in order, the number of its stream; ``None``: all are in the default one, 0.
        grid: the first mesh of all processes with names for its dimensions; ``None``: the program made none.
    """

    settings: str
    peak_reserved: int
    out_of_memory: str
    notes: list[str]
    unknown: dict[str, int]
    looks: bool
    streams: list[int] | None
    grid: Grid | None

    @property
    def fits(self) -> bool:
        """True if the card had memory for every request."""
        return not self.out_of_memory


def in_words(unknown: dict[str, int]) -> list[str]:
    """A sentence for each reason of :attr:`Prediction.unknown`."""
    return [f"up to {bytes_text(size)} more or less: {why}" for why, size in unknown.items()]


@overload
def predict(
    run: Callable[..., Any],
    *args: Any,
    device: str = "cuda",
    gpu: str = "",
    settings: str = "",
    capacity: int | str | None = None,
    world_size: int,
    ranks: Literal["all"],
    version: str = "",
    **kwargs: Any,
) -> AllRanks: ...
@overload
def predict(
    run: Callable[..., Any],
    *args: Any,
    device: str = "cuda",
    gpu: str = "",
    settings: str = "",
    capacity: int | str | None = None,
    world_size: int | None = None,
    rank: int = 0,
    version: str = "",
    **kwargs: Any,
) -> Prediction: ...
def predict(
    run: Callable[..., Any],
    *args: Any,
    device: str = "cuda",
    gpu: str = "",
    settings: str = "",
    capacity: int | str | None = None,
    world_size: int | None = None,
    rank: int = 0,
    ranks: Literal["all"] | None = None,
    version: str = "",
    **kwargs: Any,
) -> Any:
    """Run ``run(*args, **kwargs)``, a PyTorch training function, without computing, and return the track of its memory.

    ``run`` makes its model, optimizer and data, and trains for a few steps, on any devices. No GPU is needed: nothing is
    computed, and tensors have no memory. PyTorch's own autograd decides the lifetimes.

    Args:
        device: the device that is predicted: ``"cuda"``, ``"cuda:1"`` or ``"cpu"``. On the CPU an op that is met for the first
            time is run alone, to learn what it takes inside; the user's cache folder remembers it (``TINYGRAD_MEM_CACHE`` names
            another; empty: none).
        gpu: the card, such as ``"RTX 4090"``, one of :data:`.cards.CARDS`. Kernels, their launches and what libraries take are
            chosen as there (environment variables such as ``CUBLAS_WORKSPACE_CONFIG`` as in this process), and its memory is
            the ``capacity`` if none is given. ``""``: an A100 that never refuses.
        settings: settings of PyTorch's CUDA allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``. ``""``: those of this variable, which
            the program may set before it asks for memory.
        capacity: the card's memory for PyTorch, in bytes or as text such as ``"24 GiB"``. If it is too small, the program gets
            PyTorch's ``torch.OutOfMemoryError``.
        world_size, rank: ``run`` calls ``torch.distributed.init_process_group``, with any backend, and is process ``rank`` of
            ``world_size``. The others do not run, and nothing is sent. PyTorch's own ``DistributedDataParallel``,
            ``fully_shard``, ``DTensor``, ``parallelize_module`` and ``ZeroRedundancyOptimizer`` run. ``LOCAL_RANK`` is 0, as
            for a process that sees one GPU. NCCL allocates outside of PyTorch's allocator; on the CPU, what gloo allocates is
            counted.
        ranks: ``"all"``: predict each rank, one after the other.
        version: of the PyTorch on the GPU's machine, such as ``"2.6"``, if it is not the one here. Workspaces, the choice of
            attention and what autocast keeps follow it; autograd and its formulas are those of the PyTorch here.

    Returns:
        A track: ``peak`` is what ``torch.cuda.max_memory_allocated()`` would say, ``peak_reserved`` what
        ``torch.cuda.max_memory_reserved()`` would. A result that is as long as values say (``x[mask]``, ``nonzero``,
        ``unique``) is counted at its longest: ``unknown`` says how much lower the peak may be. For ``ranks="all"`` a list of
        the ranks that ask for the same bytes in the same order, each with its ``.track``. ``print`` shows their peaks,
        ``.plot(file)`` draws them.

    Raises:
        DataDependenceError: the program branches on values; the message names the line.
        NotOfferedError: it uses something that is not predicted, such as sparse tensors, CUDA graphs, or threads of its own; or
            PyTorch is older than 2.11.
        DeviceError: it trains a model that was made before the prediction.
        ValueError: there is no such device, card or version, PyTorch would refuse the settings, or PyTorch is not installed.
    """
    card = card_of(gpu)
    if gpu and device == "cpu":
        raise ArgumentError(f"predict: found gpu={gpu!r} with device={device!r}, which has no GPU: leave one of them out")
    check_asked(run, rank, world_size, ranks)
    room = parse_bytes(capacity) if capacity is not None else card.room if gpu else None
    if version and not re.fullmatch(r"2\.\d+(\..*)?", version):
        raise ArgumentError(f'predict: expected a version such as "2.6", found {version!r}')

    def as_rank(place: tuple[int, int] | None) -> Prediction:
        return predicted(lambda: run(*args, **kwargs), device, settings, card, room, place, version)

    if ranks is None or world_size is None:
        return as_rank(None if world_size is None else (rank, world_size))
    return _in_groups(as_rank((each, world_size)) for each in range(world_size))


def _in_groups(every: Iterable[Prediction]) -> AllRanks:
    """The ranks in groups of those that ask for the same bytes, for the same purpose, in the same order.

    What a rank reads from PyTorch's meshes, tensors and networks is not observed, so each rank was predicted.
    """
    found: dict[bytes, Alike] = {}
    grid = None
    for rank, track in enumerate(every):
        grid = grid or track.grid
        columns = (track.log.column(name) for name in ("kind", "address", "requested", "role", "note"))
        key = repr(track.log.texts).encode() + b"".join(column.tobytes() for column in columns)
        digest = sha256(key).digest()
        alike = found.get(digest, Alike((), track))
        found[digest] = alike._replace(ranks=(*alike.ranks, rank))
    return AllRanks(found.values(), grid)


def predicted(
    run: Callable[[], Any],
    device: str,
    settings: str = "",
    card: GraphicsCard = USUAL,
    capacity: int | None = None,
    process: tuple[int, int] | None = None,
    version: str = "",
) -> Prediction:
    """As :func:`predict`, on a card that never refuses if ``capacity`` is ``None``; ``process``: its rank, and their number."""
    try:
        import torch
    except ImportError as error:
        raise ArgumentError("predict: PyTorch is not installed: pip install torch") from error
    if torch.__version__ < _OLDEST:  # PyTorch compares versions by their numbers
        raise NotOfferedError(f"predict: PyTorch {torch.__version__} is too old. Install 2.11 or newer: pip install -U torch")
    from .program.run import run_program

    place = torch.device(device)
    if place.type not in ("cuda", "cpu"):
        raise ArgumentError(f'predict: expected device="cuda" or "cpu", found {device!r}')
    if _lock._is_owned():  # type: ignore[attr-defined]
        raise NotOfferedError("predict: called inside a program that is being predicted. Run one prediction after the other")
    with _lock:
        log, attributes = run_program(run, place, settings, card, capacity, process, version)
        prediction = Prediction.of(log)
        vars(prediction).update(attributes)
        return prediction
