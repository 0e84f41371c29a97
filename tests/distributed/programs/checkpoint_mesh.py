"""Checkpoints of tensor and pipeline parallel training. Arguments: "begin" or "go on", the folder, names of what is loaded.

Ranks that begin save on every mesh first.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.distributed.programs.mesh import GPT, LLAMA, RANK, SAMPLES, SIZE, batch, mine, parameters, part
from tinygrad_mem.distributed import checkpoint
from tinygrad_mem.distributed.checkpoint import folder as machinery
from tinygrad_mem.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from tinygrad_mem.models.parallel import Mesh, MeshTraining, layers_of

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
SAVED = {
    "tensor and pipeline": (replace(GPT, layers=2), Mesh(tensor=2, pipeline=2, count=2)),
    "tensor and data": (LLAMA, Mesh(tensor=2, data=2, zero=3)),
    "pipeline and data": (LLAMA, Mesh(pipeline=2, data=2, count=2, zero=2)),
}
LOADED = {
    2: [Mesh(tensor=2), Mesh(pipeline=2, count=2), Mesh(data=2, zero=3)],
    4: [Mesh(data=4, zero=3), Mesh(tensor=2, data=2), Mesh(tensor=2, pipeline=2, count=2)],
}[SIZE]


def made(size, mesh):
    tm.manual_seed(0)
    mesh = replace(mesh, micro=SAMPLES // mesh.data // mesh.count)
    return MeshTraining(size, mesh, dtype=tm.float64, lr=0.01)


def train(training):
    data = training.grid.get_group("data")
    for step in range(2):
        tokens, targets = (part(x, data, 0) for x in batch(training.size, step))
        training.step(tm.tensor(tokens), tm.tensor(targets))


def renamed(training, state, sign):
    """Blocks of a stage, counted from the first of the whole network (``sign`` 1), or back (-1)."""
    stage, stages = training.grid.get_local_rank("pipeline"), training.mesh.pipeline
    begin = sign * sum(layers_of(training.size.layers, i, stages) for i in range(stage))
    return {re.sub(r"\bblocks\.(\d+)", lambda m: f"blocks.{int(m[1]) + begin}", key): v for key, v in state.items()}


def state(training):
    model, optimizer = get_state_dict(training.stages[0], training.optimizer, options=FLAT)
    return {"model": renamed(training, model, 1), "optimizer": renamed(training, optimizer, 1), "step": 2}


def whole(folder):
    """All of it, as one process reads it: the parameters, and both states of Adam."""
    shapes = machinery._index(folder)["shapes"]
    found = {"model": {}, "optimizer": {}}
    for key, shape in shapes.items():
        kind, _, name = key.partition(".")
        found[kind][name] = tm.full(shape, float("nan"), dtype=tm.float64)
    checkpoint.load(found, checkpoint_id=folder, no_dist=True)
    states = [
        {
            key.split(".", 1)[1].rpartition(".")[0]: value.numpy()
            for key, value in found["optimizer"].items()
            if key.endswith(kind)
        }
        for kind in (".exp_avg", ".exp_avg_sq")
    ]
    return [{name: found["model"][name].numpy() for name in states[0]}, *states]


def check(training, folder):
    """This rank has its parts of it, bit for bit."""
    values, *states = whole(folder)
    for p, array in zip(parameters(training), mine(training, values), strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), array)
    for kind, each in zip(("exp_avg", "exp_avg_sq"), states, strict=True):
        for p, array in zip(parameters(training), mine(training, each), strict=True):
            np.testing.assert_array_equal(training.optimizer.state[p][kind].numpy(), array)
            assert array.any() or not p.numel() or not p.grad


def begin(path):
    for name in SAVED:
        size, mesh = SAVED[name]
        training = made(size, mesh)
        train(training)
        checkpoint.save(state(training), checkpoint_id=path / name)
        check(training, path / name)
    fails(path)


def go_on(path, *names):
    for name in names:
        for mesh in LOADED:
            training = made(SAVED[name][0], mesh)
            for p in parameters(training):
                p.detach().fill_(7.0)
            found = state(training) | {"step": 0}
            checkpoint.load(found, checkpoint_id=path / name)
            assert found["step"] == 2
            given = {key: renamed(training, found[key], -1) for key in ("model", "optimizer")}
            set_state_dict(
                training.stages[0], training.optimizer,
                model_state_dict=given["model"], optim_state_dict=given["optimizer"], options=FLAT,
            )  # fmt: skip
            check(training, path / name)
            assert all(training.optimizer.state[p]["step"] == 2 for p in parameters(training))
            train(training)


def fails(path):
    """What ranks do not have together is not saved; a rank that cannot write changes nothing."""
    size, mesh = SAVED["tensor and pipeline"]
    training = made(size, mesh)
    before = sorted(path.iterdir())
    rows = training.grid.get_group("pipeline")
    with pytest.raises(
        RuntimeError, match=r"do not make up model\.table\.weight \[32, 16\], model\.blocks\.0\.attention\.query"
    ):
        checkpoint.save(state(training), checkpoint_id=path / "new", process_group=rows)
    nested = dict(zip(("model", "optimizer"), get_state_dict(training.stages[0], training.optimizer), strict=True))
    with pytest.raises(RuntimeError, match=r"differ between ranks: optimizer\.param_groups.*flatten_optimizer_state_dict=True"):
        checkpoint.save({"optimizer": {"param_groups": nested["optimizer"]["param_groups"]}}, checkpoint_id=path / "new")
    with tm.no_grad():
        training.stages[0].blocks[0].mlp_norm.bias[0] = float(RANK)
    with pytest.raises(
        RuntimeError, match=r"these differ between ranks: model\.blocks\.0\.mlp_norm\.bias, model\.blocks\.1\.mlp_norm"
    ):
        checkpoint.save(state(training), checkpoint_id=path / "new")
    error, said = (TypeError, "is a set") if RANK else (RuntimeError, "rank 1 could not write its values")
    with pytest.raises(error, match=said):
        checkpoint.save({"x": {RANK} if RANK else 0}, checkpoint_id=path / "new")
    assert sorted(path.iterdir()) == before
    with pytest.raises(RuntimeError, match=r"model\.table\.weight is in the checkpoint, not in the state dict"):
        checkpoint.load({"model": {}}, checkpoint_id=path / "tensor and pipeline")


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        begin(Path(sys.argv[2]))
    go_on(Path(sys.argv[2]), *sys.argv[3:])
    print(f"rank {RANK}: done", flush=True)
