"""The language model of the recordings, predicted: its requests and their ends are those of a real GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from tests.pytorch.language_model import AdamW, Model, Size, cross_entropy  # noqa: E402
from tests.pytorch.recorded import recording, traces  # noqa: E402
from tinygrad_mem import pytorch  # noqa: E402
from tinygrad_mem.memory.log import Kind  # noqa: E402

CUBLAS = 8_519_680  # its workspace, asked for by warm-up in the recording
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


START = 77_777  # bytes of a block that marks where the recording begins


def train(steps: int) -> None:
    model = Model(Size(context=128), "cuda")
    optimizer = AdamW(model.parameters())
    ids, targets = (torch.zeros(4, 128, dtype=torch.int64, device="cuda") for _ in range(2))

    def step() -> None:
        logits = model(ids)  # lives until the step returns
        loss = cross_entropy(logits, targets)
        loss.backward()
        optimizer.step()

    for number in range(steps):
        optimizer.zero_grad()
        if number == steps - 1:
            torch.empty(START, dtype=torch.uint8, device="cuda")
        step()


def test_a_training_step_is_the_recorded_one_event_for_event() -> None:
    """Requests and ends of forward, backward and optimizer: their order, their sizes, and which request each end is of."""
    kinds = {Kind.MALLOC: "ask", Kind.FREE: "end"}
    events = [event for event in pytorch.predict(train, 2).log if event.kind in kinds]
    first = next(place for place, event in enumerate(events) if event.requested == START) + 2
    ours = numbered([(kinds[event.kind], event.address, event.requested) for event in events[first:]])
    theirs = recorded("lm-medium-128-train")
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize(("name", "run"), [("lm-medium-128-train", lambda: train(6)), ("lm-medium-256-infer", infer)])
def test_the_segments_are_the_recorded_ones(name: str, run: Callable[[], None]) -> None:
    """After five steps of warm-up and the recorded one; 16.25 MiB of them are workspaces of cuBLAS."""
    track = pytorch.predict(run)
    held: Counter[int] = Counter()
    for event in track.log:
        held[event.rounded] += (event.kind is Kind.RESERVE) - (event.kind is Kind.RELEASE)
    theirs = Counter(segment.size for segment in recording(name).segments)
    assert +held == theirs
    assert track.peak_reserved == sum(size * count for size, count in theirs.items())


def test_the_peak_of_a_training_step_is_the_recorded_one() -> None:
    """In bytes above what was there when it began, as requests ask for them."""
    live: dict[int, int] = {}
    began = most = 0
    for event in pytorch.predict(train, 2).log:
        if event.kind is Kind.MALLOC:
            live[event.address] = event.requested
            if event.requested == START:
                began = most = sum(live.values()) - START
        elif event.kind is Kind.FREE:
            live.pop(event.address)
        if began and event.kind is Kind.MALLOC and event.requested != START:
            most = max(most, sum(live.values()))
    assert most - began == 1_918_013_444
