"""PyTorch programs that divide networks over processes: the bytes of each process, on the CPU as those of gloo take them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", reason="this PyTorch has no fully_shard")

from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import device_mesh  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, _random  # noqa: E402

from tests import profiles  # noqa: E402
from tests.pytorch.sharded_peaks import PROGRAMS, Block, begin, sharded, steps  # noqa: E402
from tinygrad_mem.memory import Category  # noqa: E402
from tinygrad_mem.pytorch import predict, replay  # noqa: E402
from tinygrad_mem.pytorch.predict import Prediction  # noqa: E402

MEASURED = {
    "units": [2458956] * 2,
    "gathered until backward": [2583876] * 2,
    "half": [2199700] * 2,
    "clipped": [2458956] * 2,
    "lists": [2458956] * 2,
    "columns": [2548940] * 2,
    "accumulated": [2980172] * 2,
    "copies of parts": [2458964] * 4,
    "uneven": [214312, 211600],
    "tensor parallel": [1722960] * 2,
    "tensor parallel in parts": [1258324] * 4,
    "ZeRO 1": [3563560, 3563564],
    "sequence parallel": [2272068] * 2,
    "all features": [919552] * 2,
    "all features with gradients": [919552] * 2,
}
"""What ``python -m tests.pytorch.sharded_peaks`` printed with PyTorch 2.13; a thorough run measures again."""
THOROUGH = profiles.name() == "thorough"
MORE = torch.__version__.startswith("2.12.")  # its fully_shard takes more memory than those of 2.11 and 2.13
ON_A_GPU = json.loads((Path(__file__).parent / "recordings" / "h200-sharded.json").read_text(encoding="utf-8"))
"""``max_memory_allocated`` and ``max_memory_reserved`` of ranks on an H200 (PyTorch 2.11, in a group that sends nothing)."""


@pytest.mark.filterwarnings("ignore:torch.distributed.nn:FutureWarning")
@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS if THOROUGH else list(PROGRAMS)[::2])
def test_on_the_cpu_it_is_what_a_process_of_gloo_takes(name: str):
    real, (size, run) = MEASURED[name], PROGRAMS[name]
    if THOROUGH or MORE:
        command = [sys.executable, "-m", "tests.pytorch.sharded_peaks", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        real = json.loads(done.stdout.splitlines()[-1])[name]
    for rank in range(size) if len(set(real)) > 1 else [size - 1]:
        assert predict(run, "cpu", device="cpu", world_size=size, rank=rank).peak == real[rank]


@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support:UserWarning")
@pytest.mark.skipif(MORE, reason="recorded with PyTorch 2.11")
@pytest.mark.parametrize("name", ON_A_GPU if THOROUGH else list(ON_A_GPU)[1::2])
def test_on_a_gpu_it_is_what_the_ranks_took(name: str):
    places = list(ON_A_GPU[name].items())
    for place, recorded in places if THOROUGH else places[-1:]:
        rank, size = map(int, place.split(" of "))
        found = predict(PROGRAMS[name][1], "cuda", gpu="H200", version="2.11", world_size=size, rank=rank)
        assert [found.peak, found.peak_reserved] == recorded, place
        assert replay(found).peak_reserved == found.peak_reserved


def test_all_ranks_are_those_that_are_predicted_one_by_one():
    size, run = PROGRAMS["uneven"]
    found = predict(run, "cpu", device="cpu", world_size=size, ranks="all")
    assert [(each.ranks, each.peak) for each in found] == (
        [((0,), 224536), ((1,), 221824)] if MORE else [((0,), 214312), ((1,), 211600)]
    )


def test_ranks_that_ask_for_the_same_bytes_are_one_group():
    def run() -> None:
        dist.init_process_group("nccl")
        mesh = device_mesh.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        torch.zeros(1024 * (1 + mesh.get_local_rank("dp")), dtype=torch.uint8, device="cuda")

    found = predict(run, world_size=4, ranks="all")
    assert [(each.ranks, found.label(each), each.peak) for each in found] == [
        ((0, 1), "ranks 0-1 (dp 0)", 1024),
        ((2, 3), "ranks 2-3 (dp 1)", 2048),
    ]


def test_all_ranks_need_their_number():
    with pytest.raises(ValueError, match="give ranks='all' with a world_size"):
        predict(lambda: None, ranks="all")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="ranks='each', world_size=2: give ranks='all'"):
        predict(lambda: None, world_size=2, ranks="each")  # type: ignore[call-overload]


# --- on a GPU -------------------------------------------------------------------------------------------------------------

ROWS = 512  # bytes by which PyTorch's allocator rounds


def rounded(numbers: int) -> int:
    return -(-numbers * 4 // ROWS) * ROWS


@pytest.mark.parametrize("size", [2, 8, 64])
def test_parameters_gradients_and_state_are_divided(size: int):
    """A layer of 1,000 rows of 256 numbers: each rank has ceil(1000 / n) of them, padded alike; whole ones are a unit."""

    def train():
        mesh = begin("cuda", {})
        layers = [nn.Linear(256, 1000, bias=False), nn.Linear(1000, 256, bias=False)]
        model = nn.Sequential(*layers).cuda()
        for unit in (*model, model):
            fully_shard(unit, mesh=mesh)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(4, 256, device="cuda")).sum().backward()
        optimizer.step()
        seen.extend(tuple(each.to_local().shape) for each in model.parameters() if isinstance(each, DTensor))
        return model, optimizer

    seen: list[tuple[int, ...]] = []
    last = predict(train, world_size=size, rank=size - 1)
    whole = -(-1000 // size)
    rest = max(0, 1000 - whole * (size - 1))
    assert seen == [(rest, 256), (256 // size, 1000)]
    parts = [rounded(whole * 256), rounded(256 // size * 1000)]
    assert sizes(last, Category.PARAMETER) == sorted(parts)
    assert sizes(last, Category.GRADIENT) == sorted(parts)
    assert sizes(last, Category.OPTIMIZER_STATE) == sorted(2 * [size for size in (rounded(rest * 256), parts[1]) if size])


def sizes(found: Prediction, category: Category) -> list[int]:
    return sorted(block.rounded for block in found.blocks() if block.category == category)


def divided(device: str = "cuda", made_on: str = "cuda", trains: bool = True, **options):
    """Three blocks by ``fully_shard``."""
    mesh = begin(device, {})
    with torch.device(made_on):
        model = nn.Sequential(*[Block() for _ in range(3)])
    for unit in (*model, model):
        fully_shard(unit, mesh=mesh, **options)
    if made_on == "meta":
        model.to_empty(device=device)
    if trains:
        steps(model, torch.optim.Adam(model.parameters()), device)


@pytest.fixture(scope="module")
def plain() -> Prediction:
    """Two steps, as one of 64 processes."""
    return predict(divided, world_size=64)


PARTS = 3 * (2 * rounded(2) + 2 * rounded(512) + rounded(4))  # of 64: a block's norm, its two matrices, a bias
WHOLE = 3 * 4 * (128 + 128 + 256 * 128 + 256 + 128 * 256)


def test_a_network_that_is_made_on_meta_is_never_there_as_a_whole(plain: Prediction):
    assert predict(divided, made_on="meta", trains=False, world_size=64).peak == PARTS
    assert predict(divided, trains=False, world_size=64).peak == WHOLE + PARTS // 3  # the first unit is divided, then freed
    late = predict(divided, made_on="meta", world_size=64)
    assert (late.peak, late.by_category()) == (plain.peak, plain.by_category())

    def forgotten():
        mesh = begin("cuda", {})
        with torch.device("meta"):
            model = nn.Linear(8, 8)
        fully_shard(model, mesh=mesh)
        model(torch.zeros(1, 8, device="cuda"))

    with pytest.raises(RuntimeError, match=r"\['weight', 'bias'\] are still on meta: call to_empty"):
        predict(forgotten, world_size=2)


def test_offloaded_parameters_gradients_and_state_are_on_the_host(plain: Prediction):
    offloaded = predict(divided, offload_policy=CPUOffloadPolicy(), world_size=64)
    there = {Category.PARAMETER, Category.OPTIMIZER_STATE, Category.GRADIENT}
    assert there & set(plain.by_category()) == there
    assert not there & {block.category for block in offloaded.blocks()}
    assert plain.by_category()[Category.PARAMETER] == PARTS
    assert plain.by_category()[Category.OPTIMIZER_STATE] == 2 * PARTS


def test_a_unit_is_gathered_and_its_gradients_are_sent_as_communication(plain: Prediction):
    """At the peak: a unit's parameters, the next one gathered ahead, the gradients of the one before; all are whole."""
    assert plain.by_category()[Category.COMMUNICATION] == 3 * WHOLE // 3
    assert plain.by_category()[Category.GRADIENT] == rounded(2 + 2 + 512 + 4 + 512)  # of the unit before, side by side
    assert plain.streams is not None
    assert len(set(plain.streams)) > 1, "what is gathered is in other streams"


STATE = (
    lambda: {name: id(member) for name, member in vars(device_mesh.DeviceMesh).items()},
    lambda: {name: id(member) for name, member in vars(DTensor).items()},
    lambda: id(torch.UntypedStorage.resize_),
    lambda: id(_random._rng_tracker),
    lambda: dist.is_initialized(),
    lambda: torch.get_rng_state().tolist(),
)


def test_everything_is_as_before_whatever_happens():
    def fails():
        sharded("cuda")
        raise KeyError("mine")

    before = [state() for state in STATE]
    predict(sharded, "cuda", world_size=4)
    with pytest.raises(KeyError, match="mine"):
        predict(fails, world_size=4)
    assert [state() for state in STATE] == before


def test_what_is_not_predicted_is_refused():
    def older():
        begin("cuda", {})
        FullyShardedDataParallel(nn.Linear(2, 2).cuda())

    def symmetric():
        mesh = begin("cuda", {})
        module = fully_shard(nn.Linear(2, 2).cuda(), mesh=mesh)
        if not hasattr(module, "set_symm_mem_for_comm"):
            pytest.skip("PyTorch 2.11 has no symmetric memory for fully_shard")
        module.set_symm_mem_for_comm()

    def of_a_tensor():
        dist.init_process_group()
        device_mesh.DeviceMesh("cuda", torch.arange(2))

    def pipes():
        dist.init_process_group()
        dist.recv(torch.zeros(2, device="cuda"))

    for run, words in (
        (older, "FullyShardedDataParallel is not predicted for PyTorch: use fully_shard"),
        (of_a_tensor, "DeviceMesh: a tensor of ranks has no values in a prediction. Give it a list"),
        (pipes, "recv_any_source of several processes is not predicted, because its allocations are not known"),
        (symmetric, "set_symm_mem is not predicted for PyTorch: leave it out"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            predict(run, world_size=2)


def test_another_dimension_is_divided_through_two_copies():
    """Source: ``shard_dim_alltoall``: what is sent is put in order, what comes is received beside it."""

    def run():
        part = DTensor.from_local(torch.randn(64, 128, device="cuda"), begin("cuda", {}), [Shard(0)])
        assert part.redistribute(placements=[Shard(1)]).to_local().shape == (64 * 8, 128 // 8)

    assert predict(run, world_size=8).peak == 3 * 64 * 128 * 4


def test_a_program_that_makes_no_group_is_reported_so():
    assert "did not call torch.distributed.init_process_group" in predict(lambda: torch.zeros(2).cuda(), world_size=2).notes[-1]
