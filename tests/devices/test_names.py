"""What scripts ask of ``torch.cuda`` and ``torch.backends`` before they begin."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.devices import cuda_problem


@pytest.fixture(params=[torch, tm], ids=["torch", "ours"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def test_a_script_finds_its_device(library):
    found = library.device("cuda:0" if library.cuda.is_available() else "cpu")
    assert library.ones(2, device=found).device == found
    if not library.cuda.is_available():
        assert library.cuda.device_count() == 0
    library.cuda.manual_seed(0)
    library.cuda.manual_seed_all(0)
    library.cuda.empty_cache()


def test_ours_answers_for_cupy():
    assert tm.cuda.is_available() == (cuda_problem() is None)


@pytest.mark.cuda
def test_seeds_and_cache_of_a_gpu(gpu_pool: object):
    tm.cuda.manual_seed_all(5)
    first = tm.rand(3, device="cuda").tolist()
    tm.cuda.manual_seed(5)
    assert tm.rand(3, device="cuda").tolist() == first
    tm.cuda.synchronize()
    tm.cuda.empty_cache()
    assert tm.device("cuda").pool.free_bytes() == 0


def test_without_a_gpu_synchronize_says_what_is_missing(library):
    if library.cuda.is_available():
        library.cuda.synchronize()
    else:
        with pytest.raises((RuntimeError, AssertionError), match=r"CUDA|CuPy|NVIDIA"):
            library.cuda.synchronize()


def test_switches_of_backends_can_be_set(library):
    cudnn = importlib.import_module(f"{library.__name__}.backends.cudnn")
    before = cudnn.benchmark, cudnn.deterministic
    library.backends.cudnn.benchmark, library.backends.cudnn.deterministic = True, True
    cudnn.benchmark, cudnn.deterministic = before
    assert library.backends.mps.is_available() is False
    library.backends.cuda.matmul.allow_tf32 = library.backends.cuda.matmul.allow_tf32


def test_what_is_not_there_says_so():
    with pytest.raises(AttributeError, match=r"cuda.current_stream is not offered: .*cuda\.is_available"):
        tm.cuda.current_stream()
    for name in ("Stream", "ExternalStream", "StreamContext", "Event", "CUDAGraph", "graph"):
        with pytest.raises(NotImplementedError, match=rf"cuda\.{name}: (leave it out|time with)"):
            getattr(tm.cuda, name)()
        assert not isinstance(tm.zeros(1), getattr(tm.cuda, name))


def test_a_generator_draws_on_its_own_device(dev: str):
    other = "meta" if dev == "cpu" else "cpu"
    for draw in (tm.rand, tm.randperm, lambda n, **more: tm.bernoulli(tm.zeros(n, device=dev), generator=more["generator"])):
        with pytest.raises(RuntimeError, match=f"Expected a '{dev}' device type for generator but found '{other}'"):
            draw(3, device=dev, generator=tm.Generator(other))
        draw(3, device=dev, generator=tm.Generator(dev))
    assert tm.rand(3, device="meta", generator=tm.Generator("cpu")).shape == (3,)  # as in PyTorch


def test_a_generators_state(library):
    generator = library.Generator().manual_seed(7)
    library.rand(3, generator=generator)
    state = generator.get_state()
    first = library.rand(4, generator=generator).tolist()
    again = library.Generator()
    again.set_state(state)
    assert library.rand(4, generator=again).tolist() == first
    assert state.dtype == library.uint8
    with pytest.raises((TypeError, RuntimeError)):
        again.set_state(library.ones(3))
