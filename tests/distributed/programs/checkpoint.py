"""Checkpoints of sharded training. Arguments: what to do, with commas between, and the folder."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.programs.fsdp import network, sharded
from tests.distributed.programs.shared import RANK, SIZE
from tinygrad_mem import nn
from tinygrad_mem.distributed import checkpoint
from tinygrad_mem.distributed.checkpoint import folder as machinery
from tinygrad_mem.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from tinygrad_mem.distributed.fsdp import fully_shard
from tinygrad_mem.nn import functional as F

ROWS = 16  # of a batch, for any number of ranks


def train(model, optimizer, steps):
    for step in steps:
        rng = np.random.default_rng(step)
        x, y = (tm.tensor(rng.standard_normal((ROWS, n))[RANK * ROWS // SIZE : (RANK + 1) * ROWS // SIZE]) for n in (6, 3))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def made():
    model = sharded(network())
    return model, tm.optim.AdamW(model.parameters(), lr=0.01)


def state(model, optimizer, **more):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, **more}


def begin(path):
    model, optimizer = made()
    train(model, optimizer, range(3))
    checkpoint.save(state(model, optimizer, step=3), checkpoint_id=path / "a")


def go_on(path):
    model, optimizer = made()
    for p in model.parameters():
        p.detach().fill_(7.0)
    found = state(model, optimizer, step=0)
    checkpoint.load(found, checkpoint_id=path / "a")
    assert found["step"] == 3
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    assert all(optimizer.state[p]["step"] == 3 for p in model.parameters())
    train(model, optimizer, range(3, 5))
    checkpoint.save(state(model, optimizer, step=5), checkpoint_id=path / f"b{SIZE}")


def contents(path):
    return sorted(each.name for each in path.iterdir())


def fails(path):
    """A rank that cannot write: nothing is changed, and every rank says why."""
    model, optimizer = made()
    before, plain = contents(path / "a"), machinery._write

    def breaks(where, places):
        plain(where, places)
        raise OSError("no space left on this rank's disk")

    if RANK == SIZE - 1:
        machinery._write = breaks
    error, said = (
        (OSError, "no space left") if RANK == SIZE - 1 else (RuntimeError, f"rank {SIZE - 1} could not write its file")
    )
    with pytest.raises(error, match=said):
        checkpoint.save(state(model, optimizer, step=9), checkpoint_id=path / "a")
    machinery._write = plain
    dist.barrier()
    assert contents(path / "a") == before
    other = {"model": model.state_dict(), "new": 3}
    with pytest.raises(RuntimeError, match=r"new is not in the checkpoint"):
        checkpoint.load(other, checkpoint_id=path / "a")
    with pytest.raises(RuntimeError, match=r"optimizer\.state\.first\.weight\.exp_avg is in the checkpoint, not in the state"):
        checkpoint.load({"optimizer": {"state": {}}}, checkpoint_id=path / "a")
    with pytest.raises(RuntimeError, match=r"these differ between ranks: x\."):
        checkpoint.save({"x": tm.tensor([float(RANK)])}, checkpoint_id=path / "a")
    with pytest.raises(RuntimeError, match=r"these differ between ranks: x\."):
        checkpoint.save({"x": RANK}, checkpoint_id=path / "a")
    with pytest.raises(NotImplementedError, match="storage_writer, storage_reader and planner are not offered"):
        checkpoint.save({}, checkpoint_id=path / "a", planner=3)
    with pytest.raises(FileNotFoundError):
        checkpoint.load({"model": {}}, checkpoint_id=path / "nothing")
    mesh = dist.init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("a", "b"))
    part = fully_shard(nn.Linear(4, 4), mesh=mesh["b"])
    if SIZE > 2:
        with pytest.raises(RuntimeError, match=r"of these ranks do not make up weight \[4, 4\], bias \[4\]: give the process"):
            checkpoint.save(part.state_dict(), checkpoint_id=path / "a", process_group=mesh["a"].get_group())
    assert contents(path / "a") == before


def killed(path):
    """A rank that is killed before the index: the others say so, and the older checkpoint is whole."""
    model, optimizer = made()
    if RANK == SIZE - 1:
        plain = machinery._write

        def dies(where, places):
            plain(where, places)
            os.kill(os.getpid(), signal.SIGKILL)

        machinery._write = dies
    checkpoint.save(state(model, optimizer, step=9), checkpoint_id=path / "a")


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        globals()[name](Path(sys.argv[2]))
    print(f"rank {RANK}: done", flush=True)
