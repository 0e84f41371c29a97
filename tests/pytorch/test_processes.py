"""A PyTorch program that is one of several processes: ``DistributedDataParallel``'s own bytes, on the CPU as measured."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import all_gather_object, broadcast_object_list, pipelining  # noqa: E402
from torch.distributed.checkpoint import save  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests import profiles  # noqa: E402
from tests.pytorch.gloo_peaks import OPTIONS, SEARCHING, STEPS, train, train_branches  # noqa: E402
from tinygrad_mem.memory import Category  # noqa: E402
from tinygrad_mem.memory.log import Kind  # noqa: E402
from tinygrad_mem.pytorch import predict  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.distributed.:FutureWarning"),
    pytest.mark.filterwarnings("ignore:barrier\\(\\). using the device:UserWarning"),  # PyTorch's, with NCCL
]
MIB = 1 << 20
WEIGHTS = 4 * 512 * 512 * 4 + 2 * 512 * 4


MEASURED = [
    *[24141872, 24141872, 19943472, 22138920, 24141872, 24141872, 19943472, 22138920, 24141872, 24141872],
    *[24141920, 24141920, 19943520, 22138968, 14706764, 16808020, 14706764, 14706764],
]
"""What ``python -m tests.pytorch.gloo_peaks`` printed with PyTorch 2.13. A real process of gloo sometimes hangs, and on a busy
machine its threads hold a tensor longer: a usual run compares with these, a thorough one measures again."""


WITH_NCCL = {0: (92304384, 370), 2: (92304384, 374), 3: (89249280, 370), 5: (92304896, 378), 6: (89249792, 378)}
"""By the number of the options: ``max_memory_allocated``, and how many requests and ends, of the one process of a group of NCCL
on an H200 (PyTorch 2.11). With the others, NCCL's thread held a bucket longer."""


@pytest.fixture(scope="module")
def measured() -> list[int]:
    """The peaks of real processes, in the order of the parameters. The limit ends what hangs."""
    if profiles.name() != "thorough":
        return MEASURED
    command = [sys.executable, "-m", "tests.pytorch.gloo_peaks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_on_the_cpu_it_is_what_a_process_of_gloo_takes(options: dict, steps: int, measured: list[int]):
    said = predict(train, "cpu", options, steps, device="cpu", world_size=4, rank=1)
    assert said.peak == measured[OPTIONS.index(options) * len(STEPS) + STEPS.index(steps)]


@pytest.mark.parametrize("number", WITH_NCCL)
def test_on_a_gpu_it_is_what_a_process_of_nccl_took(number: int):
    said = predict(train, "cuda", OPTIONS[number], 3, gpu="H200", version="2.11", world_size=1)
    assert (said.peak, sum(event.kind in (Kind.MALLOC, Kind.FREE) for event in said.log)) == WITH_NCCL[number]
    again = not OPTIONS[number].get("find_unused_parameters", False)  # then buckets stay as they are
    assert any("NCCL's thread may hold the old ones" in note for note in said.notes) == again


def test_only_nccl_gathers_into_one_tensor_and_holds_buckets():
    def run(backend: str) -> None:
        dist.init_process_group(backend)
        model = DistributedDataParallel(nn.Linear(4, 4).cuda())
        for _ in range(2):
            model(torch.ones(2, 4, device="cuda")).sum().backward()

    nccl, gloo = (predict(run, backend, world_size=4) for backend in ("nccl", "gloo"))
    assert [any("NCCL's thread" in note for note in found.notes) for found in (nccl, gloo)] == [True, False]
    requests = [sum(event.kind == Kind.MALLOC for event in found.log) for found in (nccl, gloo)]
    assert requests[0] == requests[1] + 1


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("options", SEARCHING, ids=str)
def test_parameters_that_are_not_used_are_found(options: dict, steps: int, measured: list[int]):
    said = predict(train_branches, "cpu", options, steps, device="cpu", world_size=4, rank=1)
    assert said.peak == measured[(len(OPTIONS) + SEARCHING.index(options)) * len(STEPS) + STEPS.index(steps)]
    assert any("unused by all" in note for note in said.notes)
    notes = [note for note in predict(train_branches, "cuda", options, steps, world_size=4).notes if "NCCL" not in note]
    assert notes == said.notes[1:]


def test_on_a_gpu_the_buckets_are_a_second_copy_of_the_gradients():
    views = {"gradient_as_bucket_view": True}
    copies, viewed = (predict(train, "cuda", options, 1, world_size=64, rank=5) for options in ({}, views))
    assert copies.peak - viewed.peak == WEIGHTS
    assert copies.by_category()[Category.COMMUNICATION] == copies.by_category()[Category.GRADIENT] == WEIGHTS
    assert viewed.by_category()[Category.GRADIENT] == WEIGHTS
    assert Category.COMMUNICATION not in viewed.by_category()
    assert copies.peak == predict(train, "cuda", {}, 1, world_size=2).peak
    assert copies.notes[0].startswith("torch.distributed: NCCL and CUDA allocate for each process outside of")


def test_the_reducer_makes_its_buckets_again_in_the_second_step():
    """It knows the order of the gradients then. Before, there is one; and parameters and buffers were sent as one array."""
    found = predict(train, "cuda", {"bucket_cap_mb": 1}, 3, world_size=2)
    made = [block.requested for block in found.blocks() if block.category == Category.COMMUNICATION and block.requested >= 2048]
    one = 512 * 512 * 4
    assert sorted(made)[-6:] == [one, one, one, one + 4096, WEIGHTS, WEIGHTS + 4096]


def test_collectives_that_ask_for_nothing_are_predicted_and_others_refused():
    for_barrier = 512 * torch.__version__.startswith("2.11.")  # which makes a tensor of the GPU
    alone = predict(train, "cuda", {}, 3, world_size=2).peak
    assert predict(train, "cuda", {}, 3, world_size=2, waits=True).peak == alone + for_barrier

    def receives():
        dist.init_process_group()
        dist.recv(torch.zeros(2, device="cuda"))  # from any process

    def shards():
        dist.init_process_group("nccl")
        whole, part = torch.zeros(8, 4, device="cuda"), torch.zeros(2, 4, device="cuda")
        dist.all_gather_into_tensor(whole, part)
        dist.reduce_scatter_tensor(part, whole)
        return dist.get_rank(), dist.get_world_size(), os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"]

    def told():
        assert shards() == (3, 4, "3", "4", "0")
        dist.new_group([0, 3])

    assert predict(told, world_size=4, rank=3).peak == 1024
    with pytest.raises(NotImplementedError, match=r"recv_any_source of several processes is not predicted.* Use all_reduce, "):
        predict(receives, world_size=2)
    assert not dist.is_initialized()
    assert "WORLD_SIZE" not in os.environ


@pytest.mark.parametrize("scatters", [False, True])
@pytest.mark.parametrize("sizes", [(256, 256), (256, 128)])
def test_a_list_of_tensors_is_gathered_beside_each_other_first(scatters: bool, sizes: tuple[int, ...]):
    """By NCCL, if they are alike; unlike ones are sent one by one."""

    def run():
        dist.init_process_group("nccl")
        parts = [torch.zeros(size, device="cuda") for size in sizes]
        if scatters:
            dist.reduce_scatter(torch.zeros(sizes[0], device="cuda"), parts)
        else:
            dist.all_gather(parts, torch.zeros(sizes[0], device="cuda"))

    assert predict(run, world_size=2).peak == 3 * 1024 - 512 * (sizes[1] == 128) + 2048 * (sizes[0] == sizes[1])


def test_a_group_has_the_backend_that_the_program_named():
    """Not that of a prediction, which sends nothing: programs decide by it."""
    said = []

    def run(named: str | None):
        dist.init_process_group(named)
        groups: list[Any] = [None, dist.new_group([0], backend="gloo"), dist.new_group()]
        said.append([dist.get_backend(group) for group in groups])
        return torch.zeros(1, device="cuda")

    for named in ("nccl", None):
        predict(run, named, world_size=2)
    assert said == [["nccl", "gloo", "nccl"], ["undefined", "gloo", "undefined"]]


def test_what_is_not_predicted_is_refused():
    def hooked():
        dist.init_process_group()
        DistributedDataParallel(nn.Linear(2, 2).cuda()).register_comm_hook(None, lambda state, bucket: None)

    for run, words in (
        (
            lambda: train("cuda", {"delay_all_reduce_named_params": [("a", None)]}, 1),
            r"DistributedDataParallel\(delay_all_reduce_named_params=.*\) is not predicted",
        ),
        (hooked, "register_comm_hook is not predicted for PyTorch: leave it out"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            predict(run, world_size=2)
        assert not dist.is_initialized()
    for wrong in ({"rank": 1}, {"world_size": 2, "rank": 2}):
        with pytest.raises(ValueError, match="predict: found rank="):
            predict(hooked, **wrong)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(NotImplementedError, match="there is a process group already: call destroy_process_group"):
            predict(hooked, world_size=2)
    finally:
        dist.destroy_process_group()


def synchronized(batch: int, layout: torch.memory_format) -> list[int]:
    """What ``SyncBatchNorm`` asks for, forward and backward, as rank 1 of 4, of 8 channels of 256 pixels."""

    def run():
        dist.init_process_group("nccl")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(8)).cuda()
        x, gradient = (torch.empty(batch, 8, 16, 16, device="cuda", memory_format=layout) for _ in range(2))
        x.requires_grad_()
        begin = torch.empty(3333, device="cuda")
        model(x).backward(gradient)
        return begin

    found = predict(run, world_size=4, rank=1)
    assert [why for why in found.unknown if "table" in why] == []
    sizes = [event.requested for event in found.log if event.kind is Kind.MALLOC]
    return sizes[sizes.index(3333 * 4) + 1 :]


def test_batch_norm_over_processes_asks_for_what_its_source_says():
    """It was refused: PyTorch has no shapes for its ops. Source: ``nn/modules/_functions.py``; ``cuda/Normalization.cuh``."""
    x, mean, counts = 64 * 8 * 256 * 4, 8 * 4, 4 * 4
    numbers = mean + mean + 4
    asked = synchronized(64, torch.contiguous_format)
    assert asked[:5] == [mean, mean, 4, numbers, 4 * numbers]  # mean, deviation and count, together, and of all processes
    of_all = [size for size in asked[5:] if size in (counts, 4 * mean)]
    assert of_all == [counts, 4 * mean, 4 * mean, counts]  # those of batches that are not empty, and counts as integers
    rest = asked[len(asked) - asked[::-1].index(4 * mean) :]
    backward = [mean, mean, mean, mean, 2 * mean, x]  # two sums, of weight and bias; both sums together; of the input
    assert [size for size in rest if size >= counts][-10:] == [mean, mean, counts, x, *backward]
    blocks, one = 16, 4  # blocks share a channel in channels last; semaphores of one block across the channels
    last = synchronized(64, torch.channels_last)
    assert last[:4] == [mean, mean, 4 * 8 * blocks * 4, one]
    assert last[-4:] == [2 * 8 * blocks * 4, one, 2 * mean, x]
    assert len(last) == len(asked) + 4


def test_reduce_and_gather_of_nccl_take_no_memory():
    def run(collective: str):
        dist.init_process_group("nccl")
        x = torch.zeros(100, device="cuda")
        if collective == "reduce":
            dist.reduce(x, 0)
        elif collective == "gather":
            dist.gather(x, [torch.empty_like(x) for _ in range(4)] if dist.get_rank() == 0 else None)
        return x

    peaks = {
        (name, rank): predict(run, name, world_size=4, rank=rank).peak for name in ("reduce", "gather", "") for rank in (0, 1)
    }
    assert peaks.pop(("gather", 0)) == 5 * 512
    assert set(peaks.values()) == {512}


SENT: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "send": lambda x, y: dist.send(x, 1),
    "recv": lambda x, y: dist.recv(y, 1),
    "batch_isend_irecv": lambda x, y: [
        each.wait() for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, y, 1)])
    ],
    "all_to_all": lambda x, y: dist.all_to_all(list(y.split(32)), list(x.split(32))),
    "all_to_all_single": lambda x, y: dist.all_to_all_single(y, x, [8, 120, 0, 0], [128, 0, 0, 0]),
    "all_reduce_coalesced": lambda x, y: dist.all_reduce_coalesced([x, y]),
}


@pytest.mark.parametrize("name", SENT)
def test_what_nccl_sends_from_one_tensor_to_another_takes_no_memory(name: str):
    """Source: ``ProcessGroupNCCL.cpp``: it passes their addresses on. What is received has no known values."""

    def run():
        dist.init_process_group("nccl")
        x, y = torch.zeros(128, device="cuda"), torch.zeros((), device="cuda")
        received = y.expand(128).clone()
        SENT[name](x, received)
        if name != "send":
            found.append(str(received.sum().item()))

    found: list[str] = []
    assert predict(run, world_size=4).peak == 3 * 512 + 512 * (name != "send")
    assert found == ["unknown"] * (name != "send")


@pytest.mark.parametrize(("kind", "fewer"), [("1F1B", 1), ("GPipe", 0)])
def test_a_stage_of_a_pipeline_keeps_batches_until_their_backward(kind: str, fewer: int):
    """With 1F1B a stage has as many under way as stages follow it. Each keeps what ``sigmoid`` has made."""

    def run(given: bool = True):
        dist.init_process_group("nccl")
        rank, size, device = dist.get_rank(), dist.get_world_size(), torch.device("cuda", 0)
        like = torch.zeros(2, 1024, device="meta", requires_grad=True)
        shapes: dict[str, Any] = {"input_args": (like,), "output_args": (like,)} if given else {}
        layers = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Sigmoid(), nn.Dropout(0.0)).to(device)
        stage = pipelining.PipelineStage(layers, rank, size, device, **shapes)
        schedule = pipelining.schedules.get_schedule_class(kind)(stage, 4, loss_fn=lambda made, wanted: (made - wanted).sum())
        x = torch.zeros(8, 1024, device=device)
        schedule.step(*[x] * (rank == 0), target=x if rank == size - 1 else None)

    peaks = {rank: predict(run, world_size=4, rank=rank).peak for rank in (1, 2)}
    assert peaks[1] - peaks[2] == fewer * 2 * 1024 * 4
    with pytest.raises(
        NotImplementedError, match=r"recv_object_list receives .* give each PipelineStage|pickle writes the values"
    ):
        predict(run, False, world_size=4)


def test_objects_are_sent_from_the_gpu_by_nccl_alone():
    """A pickle, its length and a list of lengths. Source: ``broadcast_object_list``."""

    def run(backend: str | None, scatters: bool = False):
        dist.init_process_group(backend)
        if scatters:
            dist.scatter_object_list([None], ["x" * 5000] * 4)
        dist.broadcast_object_list(["x" * 5000])
        dist.send_object_list(["x" * 5000], 1)

    assert predict(run, "nccl", world_size=4).peak == 5120 + 512 + 512
    assert predict(run, None, world_size=4).peak == 0
    with pytest.raises(NotImplementedError, match="scatter_object_list receives what another process sends"):
        predict(run, "nccl", True, world_size=4)


def test_the_mesh_of_fully_shard_is_one_of_gpus_by_default():
    """PyTorch's C++ knew no GPU, so the parts were on the host."""
    from torch.distributed.fsdp import fully_shard

    def run(**mesh: Any):
        dist.init_process_group("nccl")
        model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 8)).to("cuda")
        meshes = {key: dist.init_device_mesh("cuda", shape) for key, shape in mesh.items()}
        for unit in (model[0], model):
            fully_shard(unit, **meshes)
        model(torch.randn(2, 64, device="cuda")).sum().backward()

    by_default, named = (predict(run, world_size=4, **mesh) for mesh in ({}, {"mesh": (4,)}))
    assert [block.rounded for block in by_default.live("peak")] == [block.rounded for block in named.live("peak")]


def test_a_checkpoint_of_all_processes_is_not_written():
    """It asked for the parts of the other processes, and branched on what they did not say."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    def run(saves: bool):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        model = nn.Linear(64, 64, device="cuda")
        fully_shard(model, mesh=dist.init_device_mesh("cuda", (4,)))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(2, 64, device="cuda")).sum().backward()
        optimizer.step()
        if saves:
            weights, state = get_state_dict(model, optimizer)
            checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id="nowhere")
            save({"model": weights}, checkpoint_id="nowhere")  # imported by name
            checkpoint.async_save({"model": weights}, checkpoint_id="nowhere").result()
            checkpoint.load({"model": weights}, checkpoint_id="nowhere")
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
            get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        return model, optimizer

    plain, saved = (predict(run, saves, world_size=4, rank=1) for saves in (False, True))
    assert any("checkpoint: nothing is written or read" in note for note in saved.notes)
    assert saved.live("end")
    assert sum(b.rounded for b in saved.live("end")) == sum(b.rounded for b in plain.live("end"))


@pytest.mark.parametrize("rank", [0, 1])
def test_objects_of_other_processes_are_assumed_to_be_this_ones(rank: int):
    """Their sizes were unknown numbers: "the program asks for the truth of a tensor"."""
    mine = {"loss": 0.5, "names": ["a"] * 700}
    size = len(pickle.dumps(mine))

    def run(collective: str):
        dist.init_process_group("nccl")
        made: list[Any] = [None] * 4
        if collective == "all":
            dist.all_gather_object(made, mine)
            assert made == [mine] * 4
        elif collective == "by its name":
            all_gather_object(made, mine)
        elif collective == "one":
            dist.gather_object(mine, made if dist.get_rank() == 0 else None)
            assert made == [mine if rank == 0 else None] * 4
        return torch.zeros(1, device="cuda")

    def rounded(count: int) -> int:
        return -(-count // 512) * 512

    found = {name: predict(run, name, world_size=4, rank=rank) for name in ("all", "one", "by its name")}
    one, every = rounded(size) + 2 * 512, rounded(4 * size)  # this one's and lengths; those of all
    assert found["all"].peak == one + 2 * every  # and again for NCCL's list
    assert found["by its name"].peak == found["all"].peak
    assert found["one"].peak == one + (every if rank == 0 else 512)
    assert any("objects that other processes send" in note for note in found["all"].notes)


def test_objects_of_a_broadcast_are_known_to_the_sender_alone():
    def run(full: bool = True):
        dist.init_process_group("nccl")
        made = ["a", 3]
        (dist.broadcast_object_list if full else broadcast_object_list)(made, src=1)
        assert made == ["a", 3]
        return torch.zeros(1, device="cuda")

    assert predict(run, world_size=4, rank=1).peak > 0
    with pytest.raises(NotImplementedError, match=r"receives what process 1 sends.* process 0\. Predict that one with rank=1"):
        predict(run, world_size=4)
    with pytest.raises(NotImplementedError, match=r"receives what process 1 sends"):
        predict(run, False, world_size=4)
