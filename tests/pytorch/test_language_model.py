"""The language model of the recordings, predicted: its requests and their ends are those of a real GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.profiles import pairs  # noqa: E402
from tests.pytorch.language_model import AdamW, Model, Size, cross_entropy  # noqa: E402
from tests.pytorch.recorded import frees_as_before_3_14, recording, traces  # noqa: E402
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


def alike(events: list[tuple]) -> list[tuple]:
    return frees_as_before_3_14(events, lambda event: event[0] == "end")


@pytest.fixture(scope="module")
def inferred() -> pytorch.Prediction:
    return pytorch.predict(infer)


def test_inference_is_the_recorded_one_event_for_event(inferred: pytorch.Prediction) -> None:
    kinds = {Kind.MALLOC: "ask", Kind.FREE: "end"}
    events = [(kinds[event.kind], event.address, event.requested) for event in inferred.log if event.kind in kinds]
    theirs = recorded("lm-medium-256-infer")
    first = next(place for place, event in enumerate(events) if event[2] == 4 * 256 * 8) + 1  # the ids are the last before
    ours = numbered([event for event in events[first:] if event[2] != CUBLAS])
    assert alike(ours[: len(theirs)]) == alike(theirs)


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


@pytest.fixture(scope="module")
def trained() -> pytorch.Prediction:
    """With a step of warm-up less than the recording: from the second step on all are alike."""
    return pytorch.predict(train, 2)


def test_a_training_step_is_the_recorded_one_event_for_event(trained: pytorch.Prediction) -> None:
    """Requests and ends of forward, backward and optimizer: their order, their sizes, and which request each end is of."""
    kinds = {Kind.MALLOC: "ask", Kind.FREE: "end"}
    events = [event for event in trained.log if event.kind in kinds]
    first = next(place for place, event in enumerate(events) if event.requested == START) + 2
    ours = numbered([(kinds[event.kind], event.address, event.requested) for event in events[first:]])
    theirs = recorded("lm-medium-128-train")
    assert alike(ours[: len(theirs)]) == alike(theirs)


@pytest.mark.parametrize(("name", "run"), [("lm-medium-128-train", "trained"), ("lm-medium-256-infer", "inferred")])
def test_the_segments_are_the_recorded_ones(name: str, run: str, request: pytest.FixtureRequest) -> None:
    """16.25 MiB of them are workspaces of cuBLAS."""
    track: pytorch.Prediction = request.getfixturevalue(run)
    held: Counter[int] = Counter()
    for event in track.log:
        held[event.rounded] += (event.kind is Kind.RESERVE) - (event.kind is Kind.RELEASE)
    theirs = Counter(segment.size for segment in recording(name).segments)
    assert +held == theirs
    assert track.peak_reserved == sum(size * count for size, count in theirs.items())


def test_the_peak_of_a_training_step_is_the_recorded_one(trained: pytorch.Prediction) -> None:
    """In bytes above what was there when it began, as requests ask for them."""
    live: dict[int, int] = {}
    began = most = 0
    for event in trained.log:
        if event.kind is Kind.MALLOC:
            live[event.address] = event.requested
            if event.requested == START:
                began = most = sum(live.values()) - START
        elif event.kind is Kind.FREE:
            live.pop(event.address)
        if began and event.kind is Kind.MALLOC and event.requested != START:
            most = max(most, sum(live.values()))
    assert most - began == 1_918_013_444


# --- other sizes, beside PyTorch's own engine on the CPU ------------------------------------------------------------------


def step_of(size: Size, batch: int, device: str) -> None:
    """A step after one that makes the optimizer's state; a block of ``START`` bytes marks where it begins."""
    model = Model(size, device)
    optimizer = AdamW(model.parameters())
    ids = torch.zeros(batch, size.context, dtype=torch.int64, device=device)

    def step() -> None:
        logits = model(ids)
        cross_entropy(logits, ids).backward()
        optimizer.step()

    for number in range(2):
        optimizer.zero_grad()
        if number:
            torch.empty(START, dtype=torch.uint8, device=device)
        step()


def measured(run: Callable[[], None]) -> list[tuple[str, int, int, str]]:
    """Requests and ends of PyTorch's CPU allocator in a real run, from its profiler."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    found: list[Any] = []
    rest: list[Any] = list(profile.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    while rest:
        event = rest.pop()
        rest.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append(event)
    found.sort(key=lambda event: event.start_time_ns)
    return [
        ("ask" if e.extra_fields.alloc_size > 0 else "end", e.extra_fields.ptr, e.extra_fields.alloc_size, "") for e in found
    ]


def from_the_mark_on(events: list[tuple[str, int, int, str]]) -> list[Event]:
    """Without the numbers that the CPU's kernels make into tensors, and without what sorts the gradient of the embedding."""
    kept: list[tuple[str, int, int]] = []
    left_out: set[int] = set()
    for kind, address, size, op in events:
        if kind == "ask" and (size <= 8 or op == "_index_put_impl_" or size == CUBLAS):
            left_out.add(address)
        elif kind == "end" and address in left_out:
            left_out.remove(address)
        else:
            kept.append((kind, address, size))
    begin = next(place for place, event in enumerate(kept) if event[2] == START)
    return numbered(kept[begin:])


@pytest.mark.parametrize(("ids", "layers"), pairs([(1, 5), (1, 64), (4, 16)], [(16, 2), (24, 3)]), ids=str)
def test_other_sizes_ask_and_end_as_pytorchs_engine_does(ids: tuple[int, int], layers: tuple[int, int]) -> None:
    (batch, tokens), (width, heads) = ids, layers
    size = Size(53, width, 2, heads, 4 * width, tokens)
    kinds = {Kind.MALLOC: "ask", Kind.FREE: "end"}
    log = pytorch.predict(step_of, size, batch, "cuda").log
    ours = from_the_mark_on([(kinds[e.kind], e.address, e.requested, e.op) for e in log if e.kind in kinds])
    theirs = from_the_mark_on(measured(lambda: step_of(size, batch, "cpu")))
    assert len(ours) > 1000
    assert ours == theirs
