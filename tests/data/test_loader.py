"""The loader, with and without workers: order, lifetimes, exceptions."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data

import tinygrad_mem as tm
from tinygrad_mem import data

from .test_data import Squares, Stream, plain, seeded

POOL = tm.device("cpu").pool


def workers() -> list:
    return [t for t in threading.enumerate() if t.name.startswith("tinygrad_mem-loader")]


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    assert not workers()


def lists(loader) -> list:
    return [b.tolist() if isinstance(b, tm.Tensor) else b for b in loader]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_come_in_order(num_workers, drop_last):
    loader = data.DataLoader(Squares(23), batch_size=4, num_workers=num_workers, drop_last=drop_last, in_order=drop_last)
    theirs = torch_data.DataLoader(Squares(23), batch_size=4, drop_last=drop_last)
    for _ in range(2):
        assert [plain(b) for b in loader] == [plain(b) for b in theirs]
    assert len(loader) == len(theirs)


def test_order_is_kept_when_workers_are_slow_in_turns():
    class Slow(Squares):
        def __getitem__(self, index):
            time.sleep(0.003 * (index % 3 == 0))
            return index

    assert list(itertools.chain(*lists(data.DataLoader(Slow(40), 2, num_workers=4)))) == list(range(40))


def test_a_seeded_shuffle_is_the_same_with_and_without_workers():
    def two_passes(num_workers):
        loader = data.DataLoader(Squares(30), 7, shuffle=True, generator=seeded(5), num_workers=num_workers)
        return lists(loader), lists(loader)

    first, second = two_passes(0)
    assert (first, second) == two_passes(0) == two_passes(1) == two_passes(3)
    assert first != second
    assert sorted(itertools.chain(*first)) == [i * i for i in range(30)]
    assert list(itertools.chain(*first)) != sorted(itertools.chain(*first))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_of_tensors_equal_collated_samples(num_workers):
    x, y = tm.tensor(np.random.default_rng(0).standard_normal((11, 2, 3))), tm.tensor(np.arange(11))
    dataset = data.TensorDataset(x, y)
    for source in (dataset, data.Subset(dataset, [3, 1, 10, 5, 5])):
        fast = list(data.DataLoader(source, 4, num_workers=num_workers))
        slow = list(data.DataLoader(source, 4, collate_fn=lambda s: data.default_collate(s)))
        assert [plain(b) for b in fast] == [plain(b) for b in slow]


def test_options_of_sampling():
    assert lists(data.DataLoader(Squares(4), batch_size=None)) == [0, 1, 4, 9]
    assert lists(data.DataLoader(Squares(9), 2, sampler=[3, 1, 2])) == [[9, 1], [4]]
    assert lists(data.DataLoader(Squares(9), batch_sampler=[[1], [2, 3]])) == [[1], [4, 9]]
    assert lists(data.DataLoader(Squares(4), 3, collate_fn=sum)) == [5, 9]
    converted = next(iter(data.DataLoader([np.ones(2)], batch_size=None)))
    assert isinstance(converted, tm.Tensor)

    class Many(Squares):
        def __getitems__(self, indices):
            return [-i for i in indices]

    assert lists(data.DataLoader(Many(3), 2)) == [[0, -1], [-2]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_streams(num_workers):
    stream = Stream(*range(7))
    make = lambda **options: lists(data.DataLoader(stream, num_workers=num_workers, **options))  # noqa: E731
    assert make(batch_size=3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert make(batch_size=3, drop_last=True) == [[0, 1, 2], [3, 4, 5]]
    assert make(batch_size=None) == list(range(7))
    assert len(data.DataLoader(stream, 3)) == 3
    assert len(data.DataLoader(stream, 3, drop_last=True)) == 2
    assert len(data.DataLoader(stream, None)) == 7


def test_a_stream_is_shared_out_with_get_worker_info():
    class Sharded(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            return iter(range(info.id, 20, info.num_workers))

    found = lists(data.DataLoader(Sharded(), 3, num_workers=3))
    assert sorted(itertools.chain(*found)) == list(range(20))
    assert found[:3] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert data.get_worker_info() is None


def test_worker_init_fn_may_change_its_workers_copy_of_the_dataset():
    def shard(worker):
        info = data.get_worker_info()
        info.dataset.items = info.dataset.items[worker :: info.num_workers]

    stream = Stream(*range(10))
    found = lists(data.DataLoader(stream, 2, num_workers=2, worker_init_fn=shard))
    assert sorted(itertools.chain(*found)) == list(range(10))
    assert len(stream) == 10


def test_seeds_of_workers_differ_and_repeat():
    class Seeds(Squares):
        def __getitem__(self, index):
            return data.get_worker_info().seed

    first = lists(data.DataLoader(Seeds(4), 1, num_workers=2, generator=seeded(3)))
    assert first == lists(data.DataLoader(Seeds(4), 1, num_workers=2, generator=seeded(3)))
    assert first[0] != first[1]
    assert first[0] == first[2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_comes_out_in_the_main_thread(num_workers):
    class Broken(Squares):
        def __getitem__(self, index):
            if index == 5:
                raise KeyError("sample five is broken")
            return index

    seen = []
    with pytest.raises(KeyError, match="sample five is broken") as caught:
        seen.extend(b.tolist() for b in data.DataLoader(Broken(9), 2, num_workers=num_workers))
    assert seen == [[0, 1], [2, 3]]
    if num_workers:
        text = str(caught.value)
        assert "Caught KeyError in DataLoader worker thread 0.\n" in text  # its lines are lines
        assert "in __getitem__" in text
    del caught  # its traceback holds the generator expression, which holds the pass


def test_an_exception_with_unusual_arguments_and_those_of_other_places():
    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__(a, b)

    def odd(index):
        raise Odd(1, 2)

    with pytest.raises(RuntimeError, match="Caught Odd in DataLoader worker thread"):
        list(data.DataLoader(Squares(3), num_workers=1, worker_init_fn=odd))

    class Unready(data.IterableDataset):
        def __iter__(self):
            raise ValueError("no file")

    for num_workers in (0, 1):
        with pytest.raises(ValueError, match="no file"):
            list(data.DataLoader(Unready(), num_workers=num_workers))


def test_timeout():
    gate = threading.Event()

    class Stuck(Squares):
        def __getitem__(self, index):
            gate.wait(60)
            return index

    batches = iter(data.DataLoader(Stuck(2), num_workers=1, timeout=0.05))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.05 seconds"):
        next(batches)
    gate.set()


def test_leaving_a_loop_early_stops_the_workers_and_drops_what_they_fetched():
    dataset = data.TensorDataset(tm.zeros(64, 1000))
    before = POOL.used_bytes()
    gc.disable()
    try:
        for batch in data.DataLoader(dataset, 4, num_workers=2):
            assert workers()
            assert len(batch) == 1
            break
        del batch
        assert not workers()
        assert POOL.used_bytes() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_keeps_no_batch_that_it_gave_away(num_workers):
    dataset = data.TensorDataset(tm.zeros(80, 1000))
    size = 4 * 1000 * 4 + 384  # rounded up to 512
    before = POOL.used_bytes()
    loader = data.DataLoader(dataset, 4, num_workers=num_workers)
    batches = iter(loader)
    for _ in range(3):
        (batch,) = next(batches)
        del batch
    ahead = 0 if not num_workers else 2 * num_workers
    deadline = time.monotonic() + 60
    while POOL.used_bytes() != before + ahead * size and time.monotonic() < deadline:
        time.sleep(0.005)  # workers are still fetching ahead
    assert POOL.used_bytes() == before + ahead * size
    del batches
    assert POOL.used_bytes() == before


def test_prefetch_factor_bounds_what_is_fetched_ahead():
    fetched = []

    class Counted(Squares):
        def __getitem__(self, index):
            fetched.append(index)
            return index

    batches = iter(data.DataLoader(Counted(100), 1, num_workers=2, prefetch_factor=3))
    deadline = time.monotonic() + 60
    while len(fetched) < 6 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.02)
    assert sorted(fetched) == list(range(6))
    del batches


def test_persistent_workers_stay_between_passes_and_go_with_the_loader():
    loader = data.DataLoader(Squares(8), 2, num_workers=2, persistent_workers=True)
    first = lists(loader)
    threads = workers()
    assert len(threads) == 2
    assert lists(loader) == first
    assert workers() == threads
    for _ in loader:
        break
    assert lists(loader) == first
    del loader
    assert not workers()


def test_workers_make_tensors_on_the_default_device_of_the_caller():
    class Made(Squares):
        def __getitem__(self, index):
            return tm.zeros(2)

    with tm.device("meta"):
        (batch,) = data.DataLoader(Made(2), 2, num_workers=1)
    assert batch.device == "meta"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"prefetch_factor": 2}, "prefetch_factor option could only be specified"),
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor option should be positive"),
        ({"multiprocessing_context": "spawn", "num_workers": 1}, "multiprocessing_context='spawn': workers are threads here"),
        ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
        ({"sampler": [1], "shuffle": True}, "sampler option is mutually exclusive with shuffle"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler option is mutually exclusive"),
        ({"batch_size": None, "drop_last": True}, "batch_size=None option disables auto-batching"),
        ({"batch_size": 0}, "batch_size should be a positive integer value"),
    ],
    ids=str,
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        data.DataLoader(Squares(3), **options)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}], ids=str)
def test_streams_have_no_order(options):
    with pytest.raises(ValueError, match="DataLoader with IterableDataset: expected unspecified"):
        data.DataLoader(Stream(1), **options)


def test_a_torch_dataset_works():
    dataset = torch_data.TensorDataset(torch.arange(4.0))
    (batch,) = data.DataLoader(dataset, 4, collate_fn=lambda s: tm.tensor([float(x) for (x,) in s]))
    assert batch.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"])
def test_what_a_loader_was_made_of_cannot_be_changed(name: str):
    for library in (torch_data, data):
        loader = library.DataLoader([1, 2, 3], 2)
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(loader, name, getattr(loader, name))
        loader.collate_fn = list
        assert [len(batch) for batch in loader] == [2, 1]


class Broken(data.Dataset):
    """The last sample cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tm.Tensor:
        if index == 3:
            raise ValueError("no such file")
        return tm.ones(1000)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_a_dataset_pins_no_batch(workers: int):
    def train() -> None:
        for batch in data.DataLoader(Broken(), 2, num_workers=workers):
            batch.mul_(2.0)

    gc.collect()
    gc.disable()
    try:
        before = POOL.used_bytes()
        with pytest.raises(ValueError, match="no such file"):
            train()
        assert POOL.used_bytes() == before
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_loaders_and_datasets_take_types():
    assert tm.utils.data.DataLoader[int].__origin__ is tm.utils.data.DataLoader
    assert tm.utils.data.Dataset[int].__origin__ is tm.utils.data.Dataset
