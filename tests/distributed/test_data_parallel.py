"""``DistributedDataParallel`` on real ranks: numbers of one process, bytes of the prediction."""

from __future__ import annotations

import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem import memory, nn
from tinygrad_mem.errors import NotOfferedError


def test_the_buckets_are_closed_by_the_parameter_that_fills_them():
    from tinygrad_mem.distributed.data_parallel import in_buckets

    parameters = [nn.Parameter(tm.zeros(n, device="meta")) for n in (10, 300_000, 20, 200_000, 100_000, 5)]
    assert in_buckets(parameters, 1) == [[5, 4, 3], [2, 1], [0]]
    parameters[4] = nn.Parameter(tm.zeros(100_000, device="meta", dtype=tm.float64))
    assert in_buckets(parameters, 1) == [[5, 3, 2, 1], [4], [0]]


def run(world: int):
    dist.init_process_group()
    model = nn.parallel.DistributedDataParallel(nn.Linear(100, 100, bias=False))
    model(tm.zeros(5, 100)).sum().backward()


def test_all_ranks_of_a_thousand_are_alike():
    (found,) = memory.predict(run, 1024, world_size=1024, ranks="all")
    assert found.ranks == tuple(range(1024))
    assert found.track.peak == memory.predict(run, 1024, world_size=1024, rank=77).peak
    assert found.track.by_category()[memory.Category.COMMUNICATION] == 40448


def test_ranks_that_are_reported_other_things_differ():
    def stages():
        dist.init_process_group()
        mesh = dist.init_device_mesh("cpu", (4, 2), mesh_dim_names=("pp", "dp"))
        return tm.zeros(1000 * (1 + mesh.get_local_rank("pp"))).sum()

    found = memory.predict(stages, world_size=8, ranks="all")
    assert [each.ranks for each in found] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [each.track.peak for each in found] == [4096 + 512, 8192 + 512, 12288 + 512, 16384 + 512]

    def asks():
        dist.init_process_group()
        return tm.zeros(1 + dist.get_rank())

    assert [each.ranks for each in memory.predict(asks, world_size=3, ranks="all")] == [(0,), (1,), (2,)]

    def members():
        dist.init_process_group()
        if dist.new_group([1, 3]) is not dist.GroupMember.NON_GROUP_MEMBER:
            tm.zeros(1000)

    assert [each.ranks for each in memory.predict(members, world_size=4, ranks="all")] == [(0, 2), (1, 3)]


def test_a_prediction_of_ranks_asks_for_what_belongs_together():
    for wrong in ({"rank": 1}, {"world_size": 2, "rank": 2}, {"ranks": "all"}, {"world_size": 2, "ranks": "some"}):
        with pytest.raises(ValueError, match=r"predict: (found rank|ranks)="):
            memory.predict(run, 2, **wrong)
    with pytest.raises(ValueError, match=r"rank=3, world_size=4 were given, but rank 0 of 2 is predicted"):
        memory.predict(lambda: dist.init_process_group(rank=3, world_size=4), world_size=2)


def test_statistics_over_several_ranks_are_refused():
    def training(wrap):
        dist.init_process_group()
        wrap(nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)))(tm.zeros(5, 4))

    for wrap in (nn.parallel.DistributedDataParallel, dist.fsdp.fully_shard):
        memory.predict(training, wrap, world_size=1)
        with pytest.raises(NotOfferedError, match=f"{wrap.__name__}: 1 is a SyncBatchNorm"):
            memory.predict(training, wrap, world_size=2)
