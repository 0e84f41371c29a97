"""``predict``: the memory of a PyTorch program on a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError, NotOfferedError
from ..interrupts import reentrant
from ..memory.log import Log
from ..memory.track import Track

_lock = reentrant()
"""Held while a program is predicted: what a prediction changes in PyTorch is shared by all threads."""


class Prediction(Track):
    """The track of a program that was predicted.

    Attributes:
        settings: of PyTorch's CUDA allocator, under which it was predicted.
        peak_reserved: the most bytes that the allocator had of the driver.
        out_of_memory: what the program asked for when the card was full; ``""``: it fits.
        notes: what the prediction assumed, in sentences.
        unknown: what cannot be known without a GPU -> the most bytes that one call may take for it beside what is counted.
    """

    settings: str
    peak_reserved: int
    out_of_memory: str
    notes: list[str]
    unknown: dict[str, int]

    @classmethod
    def of_run(
        cls, log: Log, settings: str, peak_reserved: int, out_of_memory: str, notes: list[str], unknown: dict[str, int]
    ) -> Prediction:
        """The prediction with this log."""
        self = object.__new__(cls)
        self.log, self.device, self.settings, self.peak_reserved = log, log.device, settings, peak_reserved
        self.out_of_memory, self.notes, self.unknown = out_of_memory, notes, unknown
        return self

    @property
    def fits(self) -> bool:
        """True if the card had memory for every request."""
        return not self.out_of_memory


def predict(
    run: Callable[..., Any],
    *args: Any,
    device: str = "cuda",
    settings: str = "",
    capacity: int | None = None,
    **kwargs: Any,
) -> Prediction:
    """Run ``run(*args, **kwargs)``, a PyTorch training function, without computing, and return the track of its memory.

    ``run`` makes its model, optimizer and data, and takes a few steps, on whatever devices it names. No GPU is needed: nothing
    is computed, and tensors have no memory. Lifetimes are those of PyTorch's own autograd. Kernels are chosen as on an A100.

    Args:
        device: whose memory is counted: ``"cuda"``, ``"cuda:1"`` or ``"cpu"``.
        settings: of PyTorch's CUDA allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``.
        capacity: bytes of the card. Where they do not suffice the program gets PyTorch's ``torch.OutOfMemoryError``.

    Returns:
        A track: ``peak`` is what ``torch.cuda.max_memory_allocated()`` would say, ``peak_reserved`` what
        ``torch.cuda.max_memory_reserved()`` would.

    Raises:
        DataDependenceError: the program decides by values; the message says where.
        NotOfferedError: it does what is not predicted, such as sparse tensors, graphs, or tensors in threads of its own.
        DeviceError: it trains a model that was made before.
        ValueError: there is no such device, PyTorch would refuse the settings, or PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ArgumentError("predict: PyTorch is needed, and is not installed: pip install torch") from error
    from .program.run import run_program

    place = torch.device(device)
    if place.type not in ("cuda", "cpu"):
        raise ArgumentError(f'predict: expected device="cuda" or "cpu", found {device!r}')
    if _lock._is_owned():  # type: ignore[attr-defined]
        raise NotOfferedError("predict: found inside of a program that is predicted. Call one after the other")
    with _lock:
        return Prediction.of_run(*run_program(lambda: run(*args, **kwargs), place, settings, capacity))
