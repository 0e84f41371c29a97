"""Runs a program under the modes that count its memory, and restores what they change."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from ...errors import DataDependenceError, DeviceError, NotOfferedError
from ...interrupts import context
from ...memory.log import Log
from ..cards import GraphicsCard
from . import by_values
from .around import around
from .autocast import CudaAutocast
from .calls import Calls
from .composite import BELOW_AUTOGRAD, dropout
from .cuda import Card, gpu
from .dispatcher import kernels
from .fake import GpuTensorMode
from .kernels import Gpu
from .ledger import Ledger
from .order import in_one_stream, in_order
from .places import Places, library_line, users_line
from .replacing import patched
from .roles import Roles
from .state import unchanged
from .unknown import NUMBER, SIZE
from .watch import Watch


def run_program(
    run: Callable[[], Any],
    device: torch.device,
    settings: str,
    card: GraphicsCard,
    capacity: int | None,
    place: tuple[int, int] | None,
    version: str,
) -> tuple[Log, dict[str, Any]]:
    """The log of a program, and the other attributes of its :class:`~..predict.Prediction`."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    if place is not None:
        from .processes import Processes  # PyTorch takes half a second to import what it needs
    ledger, places = Ledger(str(device), settings, capacity), Places()
    fake = GpuTensorMode(device if device.type == "cuda" else torch.device("cuda", 0))
    watch = Watch(fake, ledger, places, device, Gpu.of(card, version))
    nodes = by_values.NODES if device.type == "cuda" else by_values.ON_THE_CPU
    roles = Roles(watch, nodes)
    refused = ""
    with unchanged(), _words(watch), ExitStack() as stack:
        for part in _parts(watch, roles, Card(ledger, card, capacity, watch.note)):
            stack.enter_context(part)
        if place is not None:
            watch.processes = Processes(watch, *place)
            stack.enter_context(watch.processes.running())
        watch.in_place.calibrate()
        ledger.restart()
        try:
            result = run()
        except torch.OutOfMemoryError as error:
            refused = str(error)
        if watch.elsewhere is not None:
            raise watch.elsewhere
        roles.finish()
        result = None  # noqa: F841 (what it returns ends here)
        watch.end()
        watch.raise_lost()
        if changed := ledger.changed_by_addresses():
            watch.bound(changed, _ADDRESSES)
        if watch.sure is not None and (more := ledger.above_first(watch.sure)):
            watch.bound(more, by_values.ALL_CHOSEN)
        log = ledger.log()
    attributes: dict[str, Any] = {"peak_reserved": ledger.peak_reserved, "out_of_memory": refused, "looks": ledger.looks}
    attributes["streams"] = ledger.streams if any(ledger.streams) else None
    attributes["grid"] = None if watch.processes is None else watch.processes.grid
    return log, attributes | {"notes": watch.notes, "unknown": watch.unknown, "settings": ledger.settings}


def _parts(watch: Watch, roles: Roles, card: Card) -> Iterator[Any]:
    """The contexts in which the program runs, in this order."""
    yield roles.places.listening(roles)
    autocast = CudaAutocast(watch.as_role, watch.bound, watch.gpu.version)
    if watch.device.type == "cuda":
        yield gpu(card, watch.waits)
        yield autocast.running()
        yield kernels("CUDA", BELOW_AUTOGRAD)
        yield kernels("FuncTorchDynamicLayerFrontMode", {"dropout": dropout})  # torch.func has a kernel of its own
    yield kernels(f"Autograd{watch.device.type.upper()}", watch.kernels)
    yield watch.fake
    yield watch
    calls = Calls(watch, roles, autocast.begin)
    yield calls
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    engine = in_order(in_one_stream(watch, engine)) if watch.device.type == "cuda" else engine
    unravel: Any = torch.functional
    yield patched(
        (torch.autograd, {"_engine_run_backward": calls.within(engine)}),  # for hooks and checkpoints
        (unravel, {"_unravel_index": calls.within(unravel._unravel_index)}),  # it makes tensors of numbers
    )
    yield around(watch)


_ADDRESSES = (
    "which addresses the driver gives: of free blocks of one size PyTorch takes the one with the lowest address, and what is "
    "not split from a block is in use with it"
)
_FIXED = "Give it a fixed size, such as a mask that is multiplied instead of an index"
_GENERATOR = (
    "torch.Generator was imported by name before the prediction, and asks for a real GPU: write torch.Generator in full, or "
    "import it inside the function"
)
_SAFETENSORS = "safetensors reads and writes values, which a prediction does not have. "
_OWN_OP = "A prediction runs it in place of the op, whose memory beside its results is not counted"
_DLPACK = (
    "DLPack gives the memory of a tensor to another library, and in a prediction there is none. Leave it out of what is "
    "predicted"
)
_MAKING = "Make the model from its configuration"
_SAVING = (
    "Leave saving out of the prediction, since it takes no memory of the GPU; or write torch.save(model.state_dict(), file), "
    "and for accelerate safe_serialization=False"
)
_SPLIT = (
    "PyTorch reads the values of a tensor here, such as places of a split, which are not known in a prediction. Give it plain "
    "numbers"
)
_DECISION = "If the program branches on it, use a fixed answer"
_INSTEAD = {
    "aten::_pack_padded_sequence": "Give lengths that are known; or predict the padded batch, without packing",
    "aten::allclose": _DECISION,
    "aten::equal": _DECISION,
    "aten::repeat_interleave": "Give output_size, the sum of the repeats, which may be any number",
}


@context
def _words(watch: Watch) -> Iterator[None]:
    """Add the user's line to errors of a prediction."""
    try:
        yield
    except Exception as error:
        place, said = f"predict: at {users_line(error)}", _explained(error, watch)
        if said is None:
            error.add_note(place)
            if watch.assumed and isinstance(error, (RuntimeError, ValueError, IndexError)):
                error.add_note(f"predict: {watch.assumed}. If sizes do not fit because of that: {_FIXED}")
            raise
        inside = library_line(error) if said[0] is DataDependenceError else ""
        raise said[0](f"{place}{inside}: {said[1]}") from error


def _where(error: Exception) -> tuple[Any, int]:
    """The instruction that raised an error."""
    innermost: Any = error.__traceback__
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost.tb_frame.f_code, innermost.tb_lasti


def _explained(error: Exception, watch: Watch) -> tuple[type[Exception], str] | None:
    """Type and text of the error that a prediction raises instead of ``error``; ``None``: the program itself raised it."""
    called = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any("safetensors" in code.co_filename for code in called) and not isinstance(error, OSError):
        return NotOfferedError, _SAFETENSORS + (_SAVING if any(code.co_name.startswith("save") for code in called) else _MAKING)
    if isinstance(error, (DataDependenceError, DeviceError, NotOfferedError)):
        return type(error), str(error)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return DataDependenceError, (
            f"{error.func} has a result whose shape, or number, depends on values, which are not known in a prediction. "
            f"{_INSTEAD.get(error.func._schema.name, _FIXED)}"
        )
    if "not linked with support" in str(error):  # what only PyTorch's C++ makes, such as a sparse tensor of the GPU
        return NotOfferedError, f"PyTorch's C++ asks for a real GPU here: {error}. Leave it out of what is predicted"
    if "no fake impl registered" in str(error):
        return NotOfferedError, f"{error} {_OWN_OP}"
    if "Cannot pack tensors on meta" in str(error):
        return NotOfferedError, _DLPACK
    if "CUDA generator" in str(error):  # of PyTorch's own class, which cannot be replaced
        return NotOfferedError, _GENERATOR
    if isinstance(error, UnsupportedFakeTensorException):
        return NotOfferedError, f"PyTorch cannot run this without values: {error}"
    if isinstance(error, TypeError) and watch.sized == _where(error):
        return DataDependenceError, SIZE
    if isinstance(error, (TypeError, RuntimeError)) and ("Unknown" in str(error) or "numpy.object_" in str(error)):
        return DataDependenceError, NUMBER
    if isinstance(error, UnsupportedOperatorException):
        nested = "Pad instead of nesting: nn.TransformerEncoder(..., enable_nested_tensor=False)"
        return NotOfferedError, (
            f"PyTorch has no shapes for {error.func} without computing it. "
            + (nested if "nested" in str(error.func) else "Leave it out of what is predicted")
        )
    return (DataDependenceError, _SPLIT) if "its data is not allocated yet" in str(error) else None
