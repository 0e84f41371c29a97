"""Process groups: each collective on real ranks, mistakes that are found before data moves, and the group of a prediction."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem.distributed.fake import sent
from tinygrad_mem.distributed.world import PendingWork, World
from tinygrad_mem.errors import RankError


def test_without_a_group_nothing_is_asked_of_mpi():
    assert dist.is_available()
    assert not dist.is_initialized()
    dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.barrier()
    with pytest.raises(NotImplementedError, match="the backend 'gloo' is not offered: leave it out for MPI"):
        dist.init_process_group("gloo")
    with pytest.raises(TypeError, match=r"timeout argument to be of type datetime\.timedelta, got 3"):
        dist.init_process_group(timeout=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give the fake group a rank and its world_size, found -1, -1"):
        dist.init_process_group("fake")
    assert not dist.is_initialized()


def test_one_process_plays_a_rank():
    dist.init_process_group("fake", rank=5, world_size=8)
    try:
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (5, 8, "fake")
        before = tm.device("meta").pool.used_bytes()
        x, out = tm.zeros(4, 2, device="meta"), tm.zeros(8, 4, 2, device="meta")
        used = tm.device("meta").pool.used_bytes()
        dist.all_reduce(x)
        dist.all_gather_into_tensor(out, x)
        dist.reduce_scatter_tensor(x, out)
        dist.all_to_all_single(out, out.clone())
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        assert work.wait()
        dist.send(x, 0)
        assert dist.recv(x, 3) == 3
        dist.barrier()
        assert tm.device("meta").pool.used_bytes() == used > before
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu: the group 'fake' serves meta"):
            dist.all_reduce(tm.zeros(2))
        mesh = dist.init_device_mesh("meta", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        assert mesh.get_coordinate() == [1, 0, 1]
        assert [group.ranks for group in mesh.get_all_groups()] == [(1, 5), (5, 7), (4, 5)]
        part = mesh["pp", "tp"]
        assert part.mesh.tolist() == [[0, 1], [4, 5]]
        group = dist.new_group([1, 5, 6])
        assert (dist.get_rank(group), dist.get_group_rank(group, 6), dist.get_global_rank(group, 0)) == (1, 2, 1)
        for wrong in (-1, 3):
            with pytest.raises(ValueError, match=rf"get_global_rank: invalid rank {wrong}: the group has \[1, 5, 6\]"):
                dist.get_global_rank(group, wrong)
        with pytest.raises(
            ValueError, match="broadcast: give a rank among all processes, or one in the group: found None and None"
        ):
            dist.broadcast(x)
        with pytest.raises(ValueError, match="reduce: give a rank among all processes, or one in the group: found 1 and 0"):
            dist.reduce(x, 1, group=group, group_dst=0)
        with pytest.raises(ValueError, match=r"Split sizes doesn't match total dim 0 size: \[-1, 9, 0, 0, 0, 0, 0, 0\], 8"):
            dist.all_to_all_single(out, out.clone(), [-1, 9, *[0] * 6])
        with pytest.raises(IndexError, match=r"expected to be in range of \[-3, 2\], but got 3"):
            mesh.get_group(3)
        assert dist.new_group([0, 1]) is dist.GroupMember.NON_GROUP_MEMBER
    finally:
        dist.destroy_process_group()


def test_in_a_prediction_the_group_is_the_fake_one():
    def run():
        assert not dist.is_initialized()
        dist.init_process_group("nccl", rank=2, world_size=4)
        assert (dist.get_rank(), dist.get_backend()) == (2, "fake")
        x = tm.zeros(1000)
        dist.all_reduce(x)

    assert tm.memory.predict(run).peak == 4096
    assert not dist.is_initialized()


@pytest.mark.parametrize(("sizes", "to_others"), [(None, 4 * 4), ([0, 6, 0], 4 * 6), ([6, 0, 0], 0), ([1, 2, 3], 4 * 5)])
def test_an_all_to_all_sends_what_is_for_other_ranks(sizes: list[int] | None, to_others: int):
    def run():
        dist.init_process_group()
        x = tm.zeros(6)
        dist.all_to_all_single(tm.zeros(6), x, sizes, sizes)
        counted.append(sent())

    counted: list[int] = []
    tm.memory.predict(run, world_size=3)
    assert counted == [to_others]


def test_what_a_rank_sends_is_asked_in_a_prediction():
    with pytest.raises(ValueError, match=r"sent: only a prediction counts what a rank sends: call it in what memory\.predict"):
        sent()


def test_work_that_fails_keeps_nothing_alive_of_who_advanced_it():
    """Any collective that waits advances all pending work: also a broadcast that another error has left behind."""

    class Kept:
        pass

    def steps():
        yield [1]
        raise RankError("ranks do not do the same")

    work: Any = PendingWork(cast(World, None), steps(), "broadcast", 1.0, ())

    def advanced() -> weakref.ref:
        mine = Kept()
        work.advance()
        work.advance()
        return weakref.ref(mine)

    found = advanced()
    assert work.done
    assert found() is None
    work._world = SimpleNamespace(wait=lambda *_: None)
    with pytest.raises(RankError, match="ranks do not do the same"):
        work.wait()
