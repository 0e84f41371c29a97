"""What programs ask of PyTorch beside computing: addresses, pinned memory, the card, copies and pickles of tensors."""

from __future__ import annotations

import copy
import ctypes
import inspect
import operator
import os
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.cuda import get_device_properties, is_available, mem_get_info, memory_stats, reset_peak_memory_stats, set_device
from torch.utils.data import DataLoader

from tinygrad_mem.errors import NotOfferedError
from tinygrad_mem.pytorch import predict
from tinygrad_mem.pytorch.cards import card_of
from tinygrad_mem.pytorch.program.cuda import Card
from tinygrad_mem.pytorch.program.ledger import Ledger

_Generator = torch.Generator

# --- addresses ------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(50, 64), nn.Linear(64, 64), nn.Linear(64, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.words(x)))


def once(model: nn.Module) -> list[nn.Parameter]:
    """Parameters without those that share memory, as programs find them."""
    found = {p.data_ptr(): p for _, p in model.named_parameters(remove_duplicate=False)}
    return list({p.untyped_storage().data_ptr(): p for p in found.values()}.values())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_tensors_of_different_memory_have_different_addresses(device: str):
    """Each was 0: a program that trains each parameter once trained a single one, and its peak was too low."""

    def train(parameters: Callable[[nn.Module], Any]) -> None:
        model = Tied().to(device)
        optimizer = torch.optim.Adam(parameters(model))
        for _ in range(2):
            model(torch.zeros(2, 8, dtype=torch.long, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert predict(train, once, device=device).peak == predict(train, lambda model: model.parameters(), device=device).peak


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_addresses_are_those_of_views_too(device: str, place: str):
    def run() -> None:
        x = torch.randn(8, 16, device=place)
        made = [x, x[1:], x.view(-1), x.half(), torch.randn(3, device=place), torch.empty(0, device=place)]
        first, second, same, half, other, empty = (each.data_ptr() for each in made)
        assert (second - first, same - first, empty) == (64, 0, 0)
        assert len({first, half, other}) == 3
        assert [each.untyped_storage().data_ptr() for each in made] == [first, first, first, half, other, 0]
        assert made[1].detach().requires_grad_().data_ptr() == second
        assert first % 64 == 0
        assert sorted([second, first]) == [first, second]
        assert f"{first:#x}".startswith("0x")

    predict(run, device=device)
    run() if place == "cpu" else None


def test_an_address_is_not_followed():
    """A program that reads there, as safetensors does, would end the process."""

    def run() -> None:
        first = torch.randn(3).data_ptr()
        for follow in (int, hex, ctypes.string_at, lambda each: ctypes.c_ubyte.from_address(each)):
            with pytest.raises((NotOfferedError, TypeError, ctypes.ArgumentError)):
                follow(first)
        with pytest.raises(NotOfferedError, match=r"data_ptr\(\) .* only tells which tensors share memory"):
            operator.index(first)

    predict(run)


# --- pinned memory --------------------------------------------------------------------------------------------------------


class Batch:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = torch.stack(rows)

    def pin_memory(self) -> Batch:
        self.rows = self.rows.pin_memory()
        return self


def test_pinned_memory_is_said_to_be():
    def run() -> None:
        x = torch.randn(4)
        assert not x.is_pinned()
        pinned = x.pin_memory()
        assert pinned.is_pinned()
        assert pinned.pin_memory() is pinned
        assert pinned[2:].is_pinned()
        assert torch.empty(3, pin_memory=True).is_pinned()
        assert not torch.zeros_like(pinned).is_pinned()
        assert not pinned.cuda().is_pinned()

    predict(run)


@pytest.mark.parametrize("collate", [None, Batch])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader_are_pinned_and_keep_their_values(collate: Any, workers: int):
    data: Any = list(torch.arange(8))

    def run() -> None:
        for pin in (True, False):
            for place, batch in enumerate(DataLoader(data, 4, collate_fn=collate, num_workers=workers, pin_memory=pin)):
                rows = batch if collate is None else batch.rows
                assert rows.is_pinned() is pin
                assert rows.tolist() == list(range(4 * place, 4 * place + 4))

    predict(run)


# --- copies and pickles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_shallow_copy_shares_memory_and_a_pickle_is_refused_in_words(device: str):
    def run() -> None:
        for x in (torch.randn(9, device=device), nn.Parameter(torch.randn(9, device=device))):
            made = copy.copy(x)
            assert isinstance(made, nn.Parameter) == isinstance(x, nn.Parameter)
            assert (made.data_ptr(), made.requires_grad) == (x.data_ptr(), x.requires_grad)
            assert made is not x
        for each in (x, x.detach(), nn.Linear(2, 2, device=device), {"a": [x]}):
            with pytest.raises(NotOfferedError, match=r"pickle writes the values .* Use torch\.save and torch\.load"):
                pickle.dumps(each)

    predict(run, device=device)


# --- the card -------------------------------------------------------------------------------------------------------------

_OWN = {name: function for name, function in vars(torch.cuda).items() if inspect.isfunction(function)}
_ANSWERS = Card(Ledger("cuda:0"), card_of(""), None, print).answers()
_OF_A_LIBRARY = {  # NVIDIA's, which may not be there, and its process list
    "utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "device_memory_used", "list_gpu_processes",
}  # fmt: skip
_OF_STATES = {"get_rng_state", "get_rng_state_all", "initial_seed", "current_stream", "default_stream", "is_initialized"}
_ASKED = sorted(
    name
    for name, function in _OWN.items()
    if name in _ANSWERS
    and not name.startswith("_")
    and name not in {*_OF_A_LIBRARY, *_OF_STATES, "cudart", "check_error", "is_current_stream_capturing"}
    and _ANSWERS[name].__name__ != "refuse"
    and all(each.default is not each.empty for each in inspect.signature(function).parameters.values())
)


@pytest.mark.parametrize("name", _ASKED)
def test_a_function_that_was_imported_by_name_gives_the_same_answer(name: str):
    """Its own body ran: it failed, or asked the driver of a GPU that is there."""

    def run() -> list[Any]:
        x = torch.randn(1000, device="cuda")
        del x
        found = [getattr(torch.cuda, name)(), _OWN[name]()]
        return [vars(each) if isinstance(each, SimpleNamespace) else each for each in found]

    answers: list[Any] = []
    predict(lambda: answers.extend(run()))
    assert answers[0] == answers[1]


def test_the_net_of_imported_functions_is_wide():
    assert len(_ASKED) > 25
    assert {"memory_allocated", "get_device_properties", "mem_get_info", "device_count", "memory_summary"} <= {*_ASKED, *_OWN}


def test_a_program_may_import_what_it_asks_of_the_card():
    def run() -> None:
        set_device(0)
        free, total = mem_get_info()
        assert is_available()
        x = torch.randn(1 << 20, device="cuda")
        assert mem_get_info()[0] == free - (20 << 20)  # a segment
        assert memory_stats()["allocated_bytes.all.peak"] == x.nbytes
        del x
        reset_peak_memory_stats()
        assert memory_stats()["allocated_bytes.all.peak"] == 0
        properties = get_device_properties("cuda")
        assert (properties.total_memory, properties.warp_size) == (total, 32)
        assert not hasattr(properties, "uuid")
        assert "Allocated memory" in torch.cuda.memory_summary()

    predict(run, gpu="RTX 4090")


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="a build for CUDA makes such a generator")
def test_an_imported_generator_is_refused_in_words():
    with pytest.raises(NotOfferedError, match=r"torch\.Generator was imported by name"):
        predict(lambda: _Generator("cuda"))


# --- several processes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_collectives_of_the_host_and_of_nothing_take_no_memory(size: int, place: str):
    """A list on the host, as of a checkpoint's whole weights, ended the prediction: "expected a positive number of bytes"."""

    def run() -> None:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        x = torch.zeros(size, device=place)
        parts = [torch.zeros_like(x) for _ in range(4)]
        dist.all_gather(parts, x)
        dist.all_reduce(x)

    blocks = 5 * 512 if size and place == "cuda" else 0
    sent = 512 if blocks else 0
    assert predict(run, world_size=4).peak == blocks + sent


# --- a share of the card --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [torch.cuda.set_per_process_memory_fraction, lambda share: _by_name(share)])
def test_a_process_gets_no_more_than_its_share_of_the_card(limit: Callable[[float], None]):
    """It had no effect: a program that runs out of memory on a real card was said to fit."""

    def run() -> None:
        limit(0.5)
        assert torch.cuda.get_per_process_memory_fraction() == 0.5
        torch.zeros(24 << 20, dtype=torch.uint8, device="cuda")

    assert predict(run, capacity=50 << 20).fits
    assert not predict(run, capacity=46 << 20).fits
    free = predict(run)
    assert free.fits
    assert any("no limit holds" in note for note in free.notes)
    with pytest.raises(ValueError, match="Invalid fraction value: 2"):
        predict(lambda: torch.cuda.set_per_process_memory_fraction(2.0))


def _by_name(share: float) -> None:
    torch.cuda.set_per_process_memory_fraction(share)


@pytest.mark.parametrize(("settings", "count"), [("", 0), ("max_split_size_mb:32", 2)])
def test_blocks_that_are_never_split_are_counted(settings: str, count: int):
    """``memory_summary`` of PyTorch prints them."""

    def run() -> None:
        kept = [torch.zeros(size << 20, dtype=torch.uint8, device="cuda") for size in (40, 33, 20)]
        stats = torch.cuda.memory_stats()
        assert [stats[f"oversize_{what}.current"] for what in ("allocations", "segments")] == [count, count]
        del kept[0]
        stats = torch.cuda.memory_stats()
        assert [stats[f"oversize_{what}.current"] for what in ("allocations", "segments")] == [max(count - 1, 0), count]

    predict(run, settings=settings)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_settings_that_the_program_or_the_process_has_in_the_environment_hold(name: str, monkeypatch: pytest.MonkeyPatch):
    """PyTorch reads them when its allocator is asked for the first time. What is passed goes before them."""

    def run(settings: str = "") -> None:
        if settings:
            os.environ[name] = settings
        torch.empty(3 << 20, device="cuda")

    growing = "expandable_segments:True"
    plain, there = predict(run), predict(run, growing)
    assert (plain.settings, there.settings, name in os.environ) == ("", growing, False)
    assert there.peak_reserved == predict(run, settings=growing).peak_reserved != plain.peak_reserved
    monkeypatch.setenv(name, growing)
    assert predict(run).settings == growing
    assert predict(run, settings="max_split_size_mb:64").peak_reserved == plain.peak_reserved
    monkeypatch.setenv(name, "backend:cudaMallocAsync")
    with pytest.raises(
        ValueError, match=rf"{name}='backend:cudaMallocAsync': settings: .*Change the variable, or pass settings="
    ):
        predict(run)
    with pytest.raises(NotOfferedError, match=r"_set_allocator_settings changes a real allocator\. Pass settings="):
        predict(lambda: torch.cuda.memory._set_allocator_settings(growing))
