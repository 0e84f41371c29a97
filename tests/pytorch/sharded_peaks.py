"""Programs that divide networks over processes, and the bytes that they take in real processes of gloo; prints these."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch._C._profiler import _EventType
from torch.distributed import nn as dist_nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch compiles with what it has deprecated
    from torch.distributed.optim import ZeroRedundancyOptimizer

WIDTH, HIDDEN, LAYERS, BATCH = 128, 256, 3, 16
SENDING = [  # two have other names before PyTorch 2.13
    *("all_gather_single", "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor"),
    *("all_reduce", "broadcast", "all_gather", "scatter"),
]
LIMIT, TRIES = 60, 3  # seconds in which a program ends; how often it is begun
PAUSE = 0.01  # seconds after a collective: a thread of gloo may hold its tensors a moment longer


class Block(nn.Module):
    """x + a small network of x. ``width`` need not be a multiple of the number of processes."""

    def __init__(self, width: int = WIDTH, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


def begin(device: str, group: dict, shape: tuple[int, ...] = (), names: tuple[str, ...] | None = None) -> Any:
    """The mesh of all processes. ``group``: arguments of a real process group; without them it is predicted."""
    dist.init_process_group("gloo" if group else "nccl", **group)
    torch.manual_seed(0)
    return init_device_mesh(device, shape or (dist.get_world_size(),), mesh_dim_names=names)


def network(device: str, *sizes: int) -> nn.Sequential:
    """Three blocks."""
    return nn.Sequential(*[Block(*sizes) for _ in range(LAYERS)]).to(device)


def steps(model: Any, optimizer: Any, device: str, width: int = WIDTH, clip: bool = False, accumulate: int = 1) -> None:
    """Two training steps."""
    for _ in range(2):
        for part in range(accumulate):
            if accumulate > 1:
                model.set_requires_gradient_sync(part == accumulate - 1)
            model(torch.randn(BATCH, width, device=device)).sum().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def sharded(
    device: str, shape: tuple[int, ...] = (), sizes: tuple[int, ...] = (), adam: dict | None = None, how: dict | None = None,
    options: dict | None = None, **group: Any,
) -> None:  # fmt: skip
    """``fully_shard`` of each block and of the whole. ``how``: of the steps; ``options``: of ``fully_shard``."""
    mesh = begin(device, group, shape, ("copies", "parts") if shape else None)
    model = network(device, *sizes)
    for unit in (*model, model):
        fully_shard(unit, mesh=mesh, **(options or {}))
    optimizer = torch.optim.Adam(model.parameters(), **(adam or {}))
    steps(model, optimizer, device, sizes[0] if sizes else WIDTH, **(how or {}))


def tensor_parallel(device: str, shards: bool = False, **group: Any) -> None:
    """The columns of one layer and the rows of the next. ``shards``: in a mesh of 2 x 2, each part by ``fully_shard``."""
    mesh = begin(device, group, (2, 2) if shards else (), ("data", "tensor") if shards else None)
    model = network(device)
    for block in model:
        parallelize_module(block, mesh["tensor"] if shards else mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if shards:
            fully_shard(block, mesh=mesh["data"])
    if shards:
        fully_shard(model, mesh=mesh["data"])
    steps(model, torch.optim.Adam(model.parameters(), foreach=shards), device)


def sequence_parallel(device: str, **group: Any) -> None:
    """A token model: its norms, dropout and residuals are divided over tokens, its vocabulary and loss over columns."""
    mesh = begin(device, group)
    model = nn.Sequential(nn.Embedding(100, WIDTH), *network(device), nn.Dropout(0.1), nn.Linear(WIDTH, 100)).to(device)
    tokens, whole, last = Shard(1), Replicate(), str(len(model) - 1)
    plan = {
        "0": RowwiseParallel(input_layouts=whole, output_layouts=tokens),
        str(len(model) - 2): SequenceParallel(use_local_output=True),
        last: ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False),
    }
    for place in range(1, LAYERS + 1):
        plan[f"{place}.norm"] = SequenceParallel()
        plan[f"{place}.up"] = ColwiseParallel(input_layouts=tokens)
        plan[f"{place}.down"] = RowwiseParallel(output_layouts=tokens)
    optimizer = torch.optim.AdamW(parallelize_module(model, mesh, plan).parameters(), foreach=True)
    ids = torch.randint(0, 100, (2, BATCH), device=device)
    for _ in range(2):
        with loss_parallel():
            nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def zero(device: str, **group: Any) -> None:
    """Optimizer state in parts, gradients in buckets."""
    begin(device, group)
    model = DistributedDataParallel(network(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    steps(model, optimizer, device)


def contrastive(device: str, with_gradient: bool = False, **group: Any) -> None:
    """Features of all processes are compared with each other. ``with_gradient``: those of the others have one, too."""
    dist.init_process_group("gloo" if device == "cpu" else "nccl", **group)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(WIDTH, 2 * WIDTH).to(device))
    for _ in range(2):
        left, right = nn.functional.normalize(model(torch.randn(2 * BATCH, WIDTH, device=device)), dim=-1).chunk(2)
        if with_gradient:
            every = torch.cat(dist_nn.all_gather(right))
        else:
            parts = [torch.zeros_like(right) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, right)
            parts[dist.get_rank()] = right
            every = torch.cat(parts)
            del parts
        nn.functional.cross_entropy(left @ every.t(), torch.arange(BATCH, device=device)).backward()
        del every, left, right
        model.zero_grad()
    with torch.no_grad():
        made = model.module(torch.randn(8 * BATCH, WIDTH, device=device))
    dist.all_gather([torch.empty_like(made) for _ in range(dist.get_world_size())], made)
    dist.destroy_process_group()


HALF = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
COLUMNS = {"shard_placement_fn": lambda parameter: Shard(parameter.dim() - 1)}
PROGRAMS: dict[str, tuple[int, Callable[..., None]]] = {
    "units": (2, sharded),
    "gathered until backward": (2, partial(sharded, options={"reshard_after_forward": False})),
    "half": (2, partial(sharded, options=HALF)),
    "clipped": (2, partial(sharded, how={"clip": True})),
    "lists": (2, partial(sharded, adam={"foreach": True}, how={"clip": True})),
    "columns": (2, partial(sharded, options=COLUMNS)),
    "accumulated": (2, partial(sharded, how={"accumulate": 3})),
    "copies of parts": (4, partial(sharded, shape=(2, 2))),
    "uneven": (2, partial(sharded, sizes=(33, 77))),
    "tensor parallel": (2, tensor_parallel),
    "tensor parallel in parts": (4, partial(tensor_parallel, shards=True)),
    "ZeRO 1": (2, zero),
    "sequence parallel": (2, sequence_parallel),
    "all features": (2, contrastive),
    "all features with gradients": (2, partial(contrastive, with_gradient=True)),
}
"""A number of processes, and a program."""


# --- real processes -------------------------------------------------------------------------------------------------------


def _paused(own: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        found = own(*args, **kwargs)
        time.sleep(PAUSE)
        return found

    return call


def peak_of_all_threads(run: Callable[[], None]) -> int:
    """The most bytes that PyTorch's CPU allocator had handed out at once above those before.

    The profiler hears of this thread's events. Each tells the bytes of the whole process, if the allocator counts always, and
    not only under a profiler: gloo's threads free some.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    counts = ctypes.c_bool.in_dll(library, "FLAGS_caffe2_report_cpu_memory_usage")
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        counts.value = True
        run()
        counts.value = False
    results: Any = recorded.profiler
    totals, nodes = [], list(results.kineto_results.experimental_event_tree())
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children)
        if node.tag == _EventType.Allocation:
            told: Any = node.extra_fields
            totals.append((node.start_time_ns, told.total_allocated, told.total_allocated - told.alloc_size))
    before = min(totals)[2]
    return max(total for _, total, _ in totals) - before


def _process(rank: int, name: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    size, program = PROGRAMS[name]
    for sending in filter(partial(hasattr, dist), SENDING):
        setattr(dist, sending, _paused(getattr(dist, sending)))
    store = FileStore(f"{folder}/store", size)
    found = peak_of_all_threads(partial(program, "cpu", store=store, rank=rank, world_size=size))
    Path(folder, str(rank)).write_text(str(found))
    os._exit(0)  # gloo's threads need not end


def real_peaks(name: str) -> list[int]:
    """The peak of each process of a program. Gloo sometimes hangs under the profiler: then they are started again.

    Raises:
        TimeoutError: they hung each time.
    """
    size, _ = PROGRAMS[name]
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as folder:
            processes: Any = start_processes(_process, (name, folder), size, join=False, start_method="spawn")
            end = time.monotonic() + LIMIT
            while time.monotonic() < end:
                if processes.join(1):
                    return [int(Path(folder, str(rank)).read_text()) for rank in range(size)]
            for process in processes.processes:
                process.kill()
    raise TimeoutError(f"{name}: the processes hung {TRIES} times")


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # nobody is asked for the name of this machine
    print(json.dumps({name: real_peaks(name) for name in sys.argv[1:] or PROGRAMS}))
