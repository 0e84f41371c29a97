"""Each collective against NumPy, on any number of ranks."""

import sys
from datetime import timedelta

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem.distributed import ReduceOp

assert not dist.is_initialized()
with pytest.raises(ValueError, match="Default process group has not been initialized"):
    dist.get_rank()
dist.init_process_group(timeout=timedelta(seconds=30))
assert dist.is_initialized()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
DTYPES = (tm.float64, tm.float32, tm.float16, tm.bfloat16, tm.int64, tm.int32, tm.int16, tm.int8, tm.uint8)


def given(rank, shape, dtype=tm.float64):
    """What a rank has: small whole numbers, so that every order of sums gives the same."""
    return np.random.default_rng(rank).integers(1, 4, shape).astype(dtype)


def mine(shape, dtype=tm.float64):
    return tm.from_numpy(given(RANK, shape, dtype))


def equal(tensor, wanted):
    np.testing.assert_array_equal(tensor.numpy().astype(np.float64), np.asarray(wanted).astype(np.float64))


def reductions():
    ways = {ReduceOp.SUM: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum}
    for dtype in DTYPES:
        for shape in ((3, 5), (), (0, 2), (1,)):
            everybody = [given(i, shape, dtype) for i in range(SIZE)]
            for op, way in ways.items():
                x = mine(shape, dtype)
                assert dist.all_reduce(x, op) is None
                equal(x, way.reduce([e.astype(np.float64) for e in everybody]))
    x = mine((4, 3))
    dist.reduce(x, SIZE - 1)
    equal(x, sum(given(i, (4, 3)) for i in range(SIZE)) if RANK == SIZE - 1 else given(RANK, (4, 3)))
    x = mine((4, 3))
    dist.all_reduce(x, ReduceOp.AVG)
    np.testing.assert_allclose(x.numpy(), np.mean([given(i, (4, 3)) for i in range(SIZE)], 0), rtol=1e-15)
    for dtype in (tm.float32, tm.bfloat16):
        whole = [given(i, (SIZE * 3, 2), dtype) for i in range(SIZE)]
        x, out = mine((SIZE * 3, 2), dtype), tm.zeros(3, 2, dtype=dtype)
        dist.reduce_scatter_tensor(out, x)
        equal(out, np.add.reduce([w.astype(np.float64) for w in whole])[3 * RANK : 3 * RANK + 3])
        equal(x, whole[RANK])
        dist.reduce_scatter_tensor(out, x, ReduceOp.AVG)
        assert out.numpy().shape == (3, 2)


def movements():
    for dtype in (*DTYPES, tm.bool):
        out = tm.zeros(SIZE * 2, 3, dtype=dtype)
        dist.all_gather_into_tensor(out, mine((2, 3), dtype))
        equal(out, np.concatenate([given(i, (2, 3), dtype) for i in range(SIZE)]))
        out = tm.zeros(SIZE, 2, 3, dtype=dtype)
        out[RANK] = mine((2, 3), dtype)
        dist.all_gather_into_tensor(out, out[RANK])  # in place
        equal(out, np.stack([given(i, (2, 3), dtype) for i in range(SIZE)]))
        x = mine((2, 3), dtype)
        before = x._version
        dist.broadcast(x, SIZE - 1)
        equal(x, given(SIZE - 1, (2, 3), dtype))
        assert x._version == before + 1
    parts = [tm.zeros(2) for _ in range(SIZE)]
    dist.all_gather(parts, mine((2,), tm.float32))
    for i, part in enumerate(parts):
        equal(part, given(i, (2,)))
    x, out = mine((SIZE * 2, 3)), tm.zeros(SIZE * 2, 3, dtype=tm.float64)
    dist.all_to_all_single(out, x)
    equal(out, np.concatenate([given(i, (SIZE * 2, 3))[2 * RANK : 2 * RANK + 2] for i in range(SIZE)]))
    sizes = [RANK + j for j in range(SIZE)]  # from this rank to j: symmetric
    x, out = mine((sum(sizes), 2)), tm.zeros(sum(sizes), 2, dtype=tm.float64)
    dist.all_to_all_single(out, x, sizes, sizes)
    starts = [sum(i + j for j in range(RANK)) for i in range(SIZE)]
    equal(
        out,
        np.concatenate([given(i, (sum(i + j for j in range(SIZE)), 2))[starts[i] : starts[i] + sizes[i]] for i in range(SIZE)]),
    )


def asynchronous():
    xs = [mine((n + 1, 1000)) for n in range(5)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
    for n, x in enumerate(xs):
        equal(x, np.add.reduce([given(i, (n + 1, 1000)) for i in range(SIZE)]))
    dist.barrier()


def points():
    for size in (1, 100_000):  # MPI sends the second only when it is received
        after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        x, out = mine((size,)), [tm.zeros(size, dtype=tm.float64) for _ in range(2)]
        sent = [dist.isend(x, after, tag=5), dist.isend(x, after, tag=4)]
        got = dist.irecv(out[0], before, tag=4)
        assert dist.recv(out[1], tag=5) == before
        assert all(work.wait() for work in (got, *sent))
        for each in out:
            equal(each, given(before, (size,)))
    order = [tm.zeros(1) for _ in range(4)]
    works = [dist.irecv(each, before) for each in order]
    works += [dist.isend(tm.tensor([float(i)]), after) for i in range(4)]
    assert all(work.wait() for work in works)
    assert [each.item() for each in order] == [0, 1, 2, 3]


def groups():
    with pytest.raises(ValueError, match="new_group: expected different ranks from 0 to"):
        dist.new_group([0, SIZE])
    made = [dist.new_group([i, (i + 1) % SIZE]) for i in range(SIZE)]
    for i, group in enumerate(made):
        members = sorted({i, (i + 1) % SIZE})
        assert dist.get_process_group_ranks(group) == (members if RANK in members else [])
        assert dist.get_rank(group) == (members.index(RANK) if RANK in members else -1)
        x = mine((3,))
        dist.all_reduce(x, group=group)
        equal(x, sum(given(m, (3,)) for m in members) if RANK in members else given(RANK, (3,)))
        dist.broadcast(x, members[-1], group=group)
    with pytest.raises(ValueError, match=r"broadcast: invalid rank 99: the group has \[0"):
        dist.broadcast(tm.zeros(1), 99)
    if SIZE == 4:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert mesh.get_coordinate() == [RANK // 2, RANK % 2]
        assert (mesh.get_local_rank("dp"), mesh.get_local_rank("tp"), mesh.size(), mesh.size(1)) == (RANK // 2, RANK % 2, 4, 2)
        for name, members in (("dp", (RANK % 2, RANK % 2 + 2)), ("tp", (RANK // 2 * 2, RANK // 2 * 2 + 1))):
            assert mesh[name].get_group().ranks == mesh.get_group(name).ranks == members
            x = mine((3,))
            dist.all_reduce(x, group=mesh.get_group(name))
            equal(x, sum(given(m, (3,)) for m in members))
        turned = mesh["tp", "dp"]
        assert (turned.mesh.tolist(), turned.mesh_dim_names) == ([[0, 2], [1, 3]], ("tp", "dp"))
        with pytest.raises(KeyError, match="Invalid mesh_dim_name 'x'"):
            mesh["x"]
        with pytest.raises(RuntimeError, match="needs to be specified"):
            mesh.get_group()


def refusals():
    x = tm.zeros(4, 3)
    for error, words, call in (
        (RuntimeError, "must be contiguous", lambda: dist.all_reduce(x.t())),
        (TypeError, "Expected parameter `tensor` of type Tensor", lambda: dist.all_reduce(3)),
        (TypeError, "op must be one of ReduceOp.SUM", lambda: dist.all_reduce(x, "sum")),
        (RuntimeError, "No backend type associated with device type meta", lambda: dist.all_reduce(tm.zeros(2, device="meta"))),
        (TypeError, "a mean of int64 would be cut", lambda: dist.all_reduce(tm.zeros(2, dtype=tm.int64), ReduceOp.AVG)),
        (TypeError, "a reduction over ranks of bool", lambda: dist.all_reduce(tm.zeros(2, dtype=tm.bool))),
        (RuntimeError, "output tensor size must be equal to world_size", lambda: dist.all_gather_into_tensor(tm.zeros(3), x)),
        (RuntimeError, "one dtype", lambda: dist.all_gather_into_tensor(tm.zeros(SIZE * 12, dtype=tm.float64), x)),
        (RuntimeError, "input tensor must be the same size", lambda: dist.reduce_scatter_tensor(tm.zeros(5), x)),
        (RuntimeError, "the output shares memory with the input", lambda: dist.reduce_scatter_tensor(x.view(SIZE, -1)[0], x)),
        (RuntimeError, "expected a list of", lambda: dist.all_gather([x], x)),
        (RuntimeError, "does not divide equally", lambda: dist.all_to_all_single(tm.zeros(SIZE + 1), tm.zeros(SIZE + 1))),
        (RuntimeError, "Number of tensor splits", lambda: dist.all_to_all_single(x, x, [4], [4])),
        (RuntimeError, "Split sizes doesn't match", lambda: dist.all_to_all_single(x, x, [1] * SIZE, [9] * SIZE)),
        (ValueError, "Invalid destination rank", lambda: dist.send(x, RANK)),
        (ValueError, "Invalid source rank", lambda: dist.recv(x, RANK)),
        (ValueError, "process group twice", lambda: dist.init_process_group()),
        (NotImplementedError, "all_gather: async_op", lambda: dist.all_gather([x] * SIZE, x, async_op=True)),
        (RuntimeError, "a mesh of", lambda: dist.init_device_mesh("cpu", (7,))),
        (
            RuntimeError,
            "Each mesh_dim_name must be unique",
            lambda: dist.init_device_mesh("cpu", (SIZE, 1), mesh_dim_names="aa"),
        ),
        (RuntimeError, "should have same length", lambda: dist.init_device_mesh("cpu", (SIZE,), mesh_dim_names="ab")),
        (TypeError, "expected a process group", lambda: dist.barrier("world")),
    ):
        with pytest.raises(error, match=words):
            call()


def differences():
    """Each rank raises, and names the ranks; nothing was written; the group goes on."""
    last = SIZE - 1
    others = "rank 0" if SIZE == 2 else "ranks " + ", ".join(map(str, range(last)))
    x = tm.full((2,), float(RANK))
    for call, words in (
        (
            lambda: dist.broadcast(x, 0) if last == RANK else dist.all_reduce(x),
            f"rank {last}: broadcast from rank 0 of float32",
        ),
        (lambda: dist.all_reduce(tm.zeros(3) if last == RANK else x), rf"{others}: all_reduce\(sum\) of float32 \[2\]"),
        (lambda: dist.all_reduce(tm.zeros(2, dtype=tm.int32) if last == RANK else x), rf"rank {last}: .* of int32 \[2\]"),
        (lambda: dist.all_reduce(x, ReduceOp.MAX if last == RANK else ReduceOp.SUM), rf"rank {last}: all_reduce\(max\)"),
    ):
        with pytest.raises(tm.errors.RankError, match=words) as found:
            call()
        assert found.value.rank == last
        equal(x, [RANK, RANK])
    if SIZE == 2:
        words = f"rank {1 - RANK} sends {(1, 4)[RANK]} elements to rank {RANK}, which expects 2"
        with pytest.raises(tm.errors.RankError, match=words):
            dist.all_to_all_single(tm.zeros(4), tm.zeros(4), [2, 2], ([0, 4], [1, 3])[RANK])
        if RANK == 0:
            dist.send(tm.zeros(3), 1)
        else:
            with pytest.raises(
                tm.errors.RankError, match=r"recv: rank 0 sent float32 \[3\], the tensor of rank 1 is float64 \[3\]"
            ):
                dist.recv(tm.zeros(3, dtype=tm.float64), 0)
    dist.barrier()


if __name__ == "__main__":
    for check in (reductions, movements, asynchronous, points, groups, refusals, differences):
        check()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("mpi", rank=RANK, world_size=SIZE)
    print(f"rank {RANK} of {SIZE}: done", flush=True)
    sys.exit(0)
