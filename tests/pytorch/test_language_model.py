"""The language model of the recordings, predicted: its requests and their ends are those of a real GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.pytorch.language_model import Model, Size  # noqa: E402
from tests.pytorch.recorded import traces  # noqa: E402
from tinygrad_mem import pytorch  # noqa: E402
from tinygrad_mem.memory.log import Kind  # noqa: E402

CUBLAS = 32 << 20  # its workspace, asked for by warm-up in the recording
Event = tuple[str, int]


def numbered(events: list[tuple[str, int, int]]) -> list[Event]:
    """Requests by size, and ends by the number of the request that they end; -1: it was there before."""
    numbers: dict[int, int] = {}
    found: list[Event] = []
    count = 0
    for kind, address, size in events:
        if kind == "ask":
            numbers[address] = count
            found.append(("ask", size))
            count += 1
        else:
            found.append(("end", numbers.pop(address, -1)))
    return found


def recorded(name: str) -> list[Event]:
    kinds = {"alloc": "ask", "free_requested": "end"}
    return numbered([(kinds[kind], address, size) for kind, address, size, _, _ in traces(name) if kind in kinds])


def infer() -> None:
    model = Model(Size(context=256), "cuda")
    ids = torch.zeros(4, 256, dtype=torch.int64, device="cuda")
    with torch.inference_mode():
        logits = model(ids)
        del logits


def test_inference_is_the_recorded_one_event_for_event() -> None:
    kinds = {Kind.MALLOC: "ask", Kind.FREE: "end"}
    log = pytorch.predict(infer).log
    events = [(kinds[event.kind], event.address, event.requested) for event in log if event.kind in kinds]
    theirs = recorded("lm-medium-256-infer")
    first = next(place for place, event in enumerate(events) if event[2] == 4 * 256 * 8) + 1  # the ids are the last before
    ours = numbered([event for event in events[first:] if event[2] != CUBLAS])
    assert ours[: len(theirs)] == theirs
