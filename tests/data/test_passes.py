"""Passes over a loader: any loader gives PyTorch's batches and errors, and goes on after what the program catches."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem import data

from ..profiles import examples
from .test_data import Squares, plain

KINDS = ("map", "many", "list", "stream", "own iterator")
ERRORS = (ValueError, KeyError, IndexError, RuntimeError, StopIteration)
SAMPLES: dict[str, Any] = {
    "number": lambda library, i: i / 2,
    "tensor": lambda library, i: library.tensor([i, i + 1]),
    "array": lambda library, i: np.array([i, 1.5]),
    "dict": lambda library, i: {"x": library.tensor(i), "y": str(i)},
    "tuple": lambda library, i: (i, [float(i), "s"]),
    "sizes": lambda library, i: library.ones(i % 3 + 1),
}


def dataset(library: Any, kind: str, count: int, bad: set[int], error: type, sample: Any) -> Any:
    """A dataset of ``count`` samples, of which the ``bad`` ones raise ``error``."""

    class Map(library.utils.data.Dataset):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            if index in bad:
                raise error(f"sample {index}")
            return sample(library, index)

    class Many(Map):
        def __getitems__(self, indices: list) -> list:
            return [self[i] for i in indices]

    class Stream(library.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return map(Map().__getitem__, range(count))

    class OwnIterator(library.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            self.left = iter(range(count))
            return self

        def __next__(self) -> Any:
            return Map()[next(self.left)]

    if kind == "list":
        return [sample(library, i) for i in range(count)]
    return {"map": Map, "many": Many, "stream": Stream, "own iterator": OwnIterator}[kind]()


def outcome(take: Any) -> Any:
    """The batch, or the base class of the error that PyTorch raises too."""
    try:
        return plain(take())
    except StopIteration:
        return "the end"
    except Exception as error:
        return next(kind for kind in (KeyError, IndexError, RuntimeError, ValueError, TypeError) if isinstance(error, kind))


def passes(library: Any, random: Random, workers: int) -> list:
    """What two passes over a random loader give, each with some calls after its end."""
    kind, error, sample = random.choice(KINDS[:3] if workers else KINDS), random.choice(ERRORS), random.choice([*SAMPLES])
    count = random.choice([0, 1, 3, 7, 10])
    bad = set(random.sample(range(count), min(count, random.choice([0, 1, 2]))))
    options: dict[str, Any] = {"batch_size": random.choice([1, 2, 3, 5, None])}
    if random.random() < 0.3 and options["batch_size"]:
        options["drop_last"] = True
    if random.random() < 0.2 and kind in KINDS[:3]:
        options["sampler"] = random.choice([[0], range(4), [0, 0, 99]])
    if workers and library is tm:
        options.update(num_workers=workers, persistent_workers=random.random() < 0.3)
    loader = library.utils.data.DataLoader(dataset(library, kind, count, bad, error, SAMPLES[sample]), **options)
    found = []
    for _ in range(2):
        batches = iter(loader)
        found += [outcome(lambda: len(batches))] if kind in KINDS[:3] else []  # noqa: B023 (called at once)
        found += [outcome(lambda: next(batches)) for _ in range(count + 3)]  # noqa: B023
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_is_pytorchs_and_goes_on_after_errors(workers: int):
    for seed in range(examples(60 if workers else 200)):
        assert passes(tm, Random(seed), workers) == passes(torch, Random(seed), workers), seed


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_of_a_seeded_loader_repeat(workers: int):
    """Workers draw by themselves: what they draw depends neither on their turns nor on the program's own draws."""

    class Noisy(Squares):
        def __getitem__(self, index: int) -> tm.Tensor:
            return tm.rand(3)

    def run() -> list:
        tm.manual_seed(5)
        drawn = [batch.tolist() for batch in data.DataLoader(Noisy(64), 1, shuffle=True, num_workers=workers)]
        return drawn if not workers else [*drawn, tm.rand(2).tolist()]

    first = run()
    assert len({tuple(row[0]) for row in first[:64]}) == 64
    assert all(run() == first for _ in range(10))


def test_the_order_of_draws_does_not_depend_on_the_workers():
    """A loader draws when a pass begins, its sampler first."""

    class Eager(data.Sampler):
        def __iter__(self) -> Any:
            return iter(tm.randperm(8).tolist())

    found = []
    for workers in (0, 2):
        tm.manual_seed(1)
        batches = iter(data.DataLoader(Squares(8), None, num_workers=workers, sampler=Eager()))
        found.append((tm.rand(1).item(), list(batches)))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_worker_raises_comes_out(kind: type):
    class Ends(Squares):
        def __getitem__(self, index: int) -> int:
            raise kind("enough")

    with pytest.raises(RuntimeError, match=rf"Caught {kind.__name__} in DataLoader worker thread 0(.|\n)*enough"):
        next(iter(data.DataLoader(Ends(2), num_workers=1, timeout=60)))


def test_a_dataset_that_cannot_be_copied_is_refused_at_once():
    with pytest.raises(TypeError, match="memoryview"):
        iter(data.DataLoader(memoryview(b"abc"), num_workers=2, timeout=60))


def test_workers_have_the_dataset_of_the_moment_when_the_pass_begins():
    class Offset(Squares):
        offset = 0

        def __getitem__(self, index: int) -> int:
            return index + self.offset

        def __copy__(self) -> Offset:
            time.sleep(0.01)  # in the time in which the program goes on, if a worker copies
            twin = Offset(self.count)
            twin.offset = self.offset
            return twin

    moved = Offset(3)
    batches = iter(data.DataLoader(moved, None, num_workers=2, prefetch_factor=1))
    moved.offset = 100
    assert list(batches) == [0, 1, 2]


def test_an_interrupt_while_a_batch_is_due_loses_none():
    gate = threading.Event()

    class Slow(Squares):
        def __getitem__(self, index: int) -> int:
            gate.wait(60)
            return index

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    batches = iter(data.DataLoader(Slow(5), None, num_workers=2, timeout=60))
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    finally:
        signal.signal(signal.SIGALRM, before)
    gate.set()
    assert list(batches) == [0, 1, 2, 3, 4]


FORKED = """
import os, signal
from tinygrad_mem import data
loader = data.DataLoader([1, 2, 3], None, num_workers=2, persistent_workers=True, timeout=60)
assert list(loader) == [1, 2, 3]
if not (child := os.fork()):
    os._exit(0 if list(loader) == [1, 2, 3] else 1)
assert os.waitpid(child, 0)[1] == 0
assert list(loader) == [1, 2, 3]
"""


def test_a_child_process_has_workers_of_its_own():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=120)


def test_shares_have_an_order_for_any_seed_that_pytorch_takes():
    for seed in (-5, 2**63, 2**64 - 1):
        shares = [
            tm.utils.data.distributed.DistributedSampler(Squares(7), 2, rank, seed=seed, drop_last=True) for rank in (0, 1)
        ]
        found = [index for share in shares for index in share]
        assert len(found) == len(set(found)) == 6
