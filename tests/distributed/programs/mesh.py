"""A transformer on meshes: the numbers of one process, and the bytes of the prediction."""

import sys
from dataclasses import replace
from functools import cache

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import STEPS, THOROUGH, equal, exact, part, same
from tinygrad_mem.distributed.cut import Cut
from tinygrad_mem.models.parallel import Layers, Mesh, MeshTraining, TransformerSize, layers_of

dist.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GPT = TransformerSize(4, 16, 4, 4, 24, 32, 16)
LLAMA = replace(GPT, key_heads=2, layers=3, llama=True, heads=4)  # stages of which one has more
SAMPLES = 8
CUT = {"query": 0, "key_value": 0, "up": 0, "gate": 0, "out": 1, "down": 1, "table": 0, "head": 0}
MESHES = {
    2: [
        Mesh(tensor=2),
        Mesh(tensor=2, sequence=False),
        Mesh(pipeline=2, count=4),
        Mesh(pipeline=2, count=4, gpipe=True),
        Mesh(pipeline=2, count=4, chunks=2),
        Mesh(context=2),
        Mesh(data=2),
        Mesh(data=2, count=2, zero=1),
        Mesh(data=2, count=2, zero=3),
    ],
    4: [  # each two ways together, each stage of ZeRO, each order
        Mesh(tensor=2, pipeline=2, count=4 if THOROUGH else 2, chunks=2),
        Mesh(tensor=2, context=2),
        Mesh(pipeline=2, data=2, count=2, gpipe=True),
        Mesh(pipeline=2, context=2, count=2),
        Mesh(pipeline=4, count=4),
        Mesh(pipeline=2, data=2, count=2, zero=3),
        Mesh(tensor=2, data=2, count=2, zero=2),
        Mesh(context=2, data=2, count=2, zero=3),
        Mesh(tensor=2, data=2, count=2, zero=1),
    ],
}[SIZE]
if THOROUGH and SIZE == 4:
    MESHES += [
        Mesh(tensor=2, data=2, count=2),
        Mesh(tensor=2, pipeline=2, count=4),
        Mesh(context=2, data=2),
        Mesh(pipeline=2, data=2, count=4, chunks=2, zero=2),
    ]
ALONE = dist.init_device_mesh("cpu", (SIZE, 1)).get_group(1)


RULE = {"lr": 0.1, "momentum": 0.9}  # of SGD: Adam divides by gradients, of which those of key biases are 0 but for rounding


def batch(size, step):
    rng = np.random.default_rng(step)
    return rng.integers(0, size.vocabulary, (2, SAMPLES, size.tokens))


def deep(size, mesh):
    """With as many blocks as the mesh has stages; of LLAMA one more, so that stages differ. At least two."""
    return replace(size, layers=max(2, mesh.pipeline * mesh.chunks + size.llama))


@cache
def alone(size):
    """The parameters before and after, and the losses."""
    names = ("pipeline", "data", "context", "tensor")
    grid = dist.DeviceMesh("cpu", [[[[RANK]]]], mesh_dim_names=names, _groups=[ALONE] * 4)
    tm.manual_seed(0)
    model = Layers(size, Mesh(), grid, 0, tm.float64)
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    optimizer, losses = tm.optim.SGD(model.parameters(), **RULE), []
    for step in range(STEPS):
        tokens, targets = map(tm.tensor, batch(size, step))
        loss = model.loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return before, {name: p.detach().numpy().copy() for name, p in model.named_parameters()}, np.array(losses)


def mine(training, whole):
    """This rank's parts of the parameters of one process, in the order of its own."""
    size, mesh = training.size, training.mesh
    total, first = mesh.pipeline * mesh.chunks, training.grid.get_local_rank("pipeline")
    tensor, found = training.grid.get_group("tensor"), []
    for chunk, layers in enumerate(training.stages):
        stage = chunk * mesh.pipeline + first
        begin = sum(layers_of(size.layers, i, total) for i in range(stage))
        for name, _ in layers.named_parameters():
            words = name.split(".")
            if words[0] == "blocks":
                words[1] = str(begin + int(words[1]))
            array, axis = whole[".".join(words)], CUT.get(words[-2])
            whole_here = axis is None or array.ndim <= axis
            found.append(array if whole_here else part(array, tensor, axis))
    return [rows(p, array) for p, array in zip(parameters(training), found, strict=True)]


def rows(p, array):
    """Those that a rank keeps of a parameter that ``fully_shard`` has cut."""
    return array[p._shard.start : p._shard.start + p.shape[0]] if isinstance(p._shard, Cut) else array


def parameters(training):
    return [p for layers in training.stages for p in layers.parameters()]


def trained(size, mesh, before):
    """The losses on ranks of the last stage, and this rank's parameters."""
    training = MeshTraining(size, mesh, dtype=tm.float64, rule=tm.optim.SGD, **RULE)
    with tm.no_grad():
        for p, array in zip(parameters(training), mine(training, before), strict=True):
            p.copy_(tm.tensor(array))
    data, context = training.grid.get_group("data"), training.grid.get_group("context")
    values = []
    for step in range(STEPS):
        tokens, targets = (part(part(x, data, 0), context, 1) for x in batch(size, step))
        losses: list = []
        training.step(tm.tensor(tokens), tm.tensor(targets), losses)
        if losses:
            value = sum(losses) / len(losses)
            for group in (data, context):
                dist.all_reduce(value, dist.ReduceOp.AVG, group)
            values.append(value.item())
    return training, np.array(values), [p.detach().numpy().copy() for p in parameters(training)]


def same_as_one_process():
    for number, size in enumerate((GPT, LLAMA)):
        for place, mesh in enumerate(MESHES[number::2]):
            size = deep(size, mesh)
            before, after, losses = alone(size)
            mesh = replace(mesh, micro=SAMPLES // mesh.data // mesh.count)
            training, values, found = trained(size, mesh, before)
            if training.stages[-1].last:
                equal([values], [losses], str(mesh))
            equal(found, mine(training, after), str(mesh))
            if place % (3 if THOROUGH else 9) == 0:
                _, again, others = trained(size, mesh, before)
                same([values, *found], [again, *others])  # bit for bit


def recomputed():
    """Recompute and attention with kept scores change no number."""
    size, mesh = GPT, MESHES[0]
    before, after, _ = alone(size)
    mesh = replace(mesh, micro=SAMPLES // mesh.data // mesh.count)
    for changes in ({"recompute": "full"}, {"scores": True, "recompute": "selective"}):
        training, _, found = trained(replace(size, **changes), mesh, before)
        equal(found, mine(training, after), str(changes))


def all_exact():
    for number, (size, dtype) in enumerate(((GPT, tm.float32), (LLAMA, tm.bfloat16))):
        for mesh in MESHES[number::2]:

            def run(size=size, mesh=mesh, dtype=dtype):
                mesh = replace(mesh, micro=2)
                training = MeshTraining(replace(deep(size, mesh), dropout=0.1), mesh, dtype=dtype)
                for _ in range(2):
                    training.step()

            exact(run)


if __name__ == "__main__":
    for check in (same_as_one_process, recomputed, all_exact):
        check()
    print(f"rank {RANK} of {SIZE}: done\n", end="", flush=True)
    sys.exit(0)
