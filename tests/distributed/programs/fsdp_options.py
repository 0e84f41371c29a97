"""``fully_shard`` with everything that may stand beside it, and what it refuses."""

import sys

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import exact
from tests.distributed.programs.fsdp import Block, check_shards, network, rows, sharded, trained
from tests.distributed.programs.shared import BATCH, RANK, SIZE, batch, mine
from tinygrad_mem import nn
from tinygrad_mem.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from tinygrad_mem.nn import functional as F
from tinygrad_mem.utils.checkpoint import checkpoint

NEAR = {"rtol": 1e-10, "atol": 1e-12}


def backward(model, step=0, part=None):
    x, y = batch(step, mine() if part is None else part)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss


def check_gradients(alone, model, **tolerance):
    for (name, p), q in zip(alone.named_parameters(), model.parameters(), strict=True):
        if p.grad is None:
            assert q.grad is None, name
        else:
            assert q.grad is not None, name
            np.testing.assert_allclose(q.grad.numpy(), rows(p.grad.numpy()), err_msg=name, **(tolerance or NEAR))


def clipped():
    """The norm is that of all rows, on every rank."""
    for clip in ((0.01,), (0.02, 1.0), (0.005, float("inf")), (100.0,)):
        alone, model = network(), sharded(network())
        wanted, found = trained(alone, slice(None), clip=clip), trained(model, mine(), clip=clip)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
        check_shards(alone, model, **NEAR)
    assert nn.utils.get_total_norm([p.grad for p in model.parameters()]).item() > 0


def accumulated():
    """Without sync gradients are whole and this rank's; the first backward with it averages the sum."""
    alone, model = network(), sharded(network())
    model.set_requires_gradient_sync(False)
    backward(model, 0)
    assert all(p.grad is None for p in model.parameters())
    model.set_requires_gradient_sync(True)
    backward(model, 1)
    for step in (0, 1):
        backward(alone, step, slice(None))
    check_gradients(alone, model)
    backward(model, 2)  # adds to what is there
    backward(alone, 2, slice(None))
    check_gradients(alone, model)
    with pytest.raises(TypeError, match="expected True or False, found 1"):
        model.set_requires_gradient_sync(1)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x, *names):
        for name in names:
            x = getattr(self, name)(x)
        return {"result": (x,)}["result"][0]


def branches():
    tm.manual_seed(0)
    return Branches().double()


def used_twice_or_never():
    for whole in (False, True):
        alone, model = branches(), branches()
        for part in () if whole else (model.a, model.b, model.c):
            fully_shard(part)
        fully_shard(model)
        for each in (alone, model):
            x = tm.ones(2, 5, dtype=tm.float64, requires_grad=True)
            each(x, "a", "b", "a").pow(2).sum().backward()
        check_gradients(alone, model)
        assert model.c.weight.grad is None


def used_without_sync_alone():
    """The backward that averages does so for units that only earlier ones of the window used."""
    for options in ({}, {"reshard_after_forward": False}):
        alone, model = branches(), branches()
        for part in (model.a, model.b, model.c):
            fully_shard(part, **options)
        fully_shard(model, **options)
        for each in (alone, model):
            for names in ("ab", "a"):
                if each is model:
                    model.set_requires_gradient_sync(names == "a")
                each(tm.ones(2, 5, dtype=tm.float64), *names).pow(2).sum().backward()
        check_gradients(alone, model)
        assert model.c.weight.grad is None
        model(tm.ones(2, 5, dtype=tm.float64), "a").sum().backward()  # b has nothing more to send
        np.testing.assert_array_equal(model.b.weight.grad.numpy(), rows(alone.b.weight.grad.numpy()))


def frozen():
    """Frozen parameters, whole units of them, and inputs that require gradients."""
    alone, model = network(), network()
    for each in (alone, model):
        for p in (*each.blocks[1].parameters(), each.blocks[0].up.weight, *each.first.parameters()):
            p.requires_grad_(False)
    sharded(model)
    backward(alone, 0, slice(None))
    backward(model)
    check_gradients(alone, model)
    assert all(p.array.shape == rows(q.numpy()).shape for p, q in zip(model.parameters(), network().detached(), strict=True))


class Recomputing(Block):
    """A block of which a part, or all, is computed again in backward."""

    def forward(self, x):
        middle = checkpoint(lambda y: tm.tanh(self.up(self.norm(y))), x, use_reentrant=False)
        return x + self.scale * self.down(middle)


def recomputed():
    alone, inside, outside = network(), network(), network()
    for block in inside.blocks:
        block.__class__ = Recomputing
    sharded(inside)
    sharded(outside)
    for block in outside.blocks:
        plain = block.forward
        block.__dict__["forward"] = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)
    wanted = trained(alone, slice(None))
    for model in (inside, outside):
        np.testing.assert_allclose(trained(model, mine()), wanted, rtol=1e-10)
        check_shards(alone, model, **NEAR)


def offloaded():
    """Other saved-tensor hooks around it get what is not the unit's."""
    alone, model = network(), sharded(network())
    backward(alone, 0, slice(None))
    with tm.autograd.graph.save_on_cpu():
        x, y = batch(0, mine())
        loss = F.mse_loss(model(x), y)
    loss.backward()
    check_gradients(alone, model)


def in_backward():
    alone, model = network(), sharded(network())
    optimizer = tm.optim.Adam(model.parameters(), lr=0.01)
    with tm.techniques.optimizer_in_backward(optimizer):
        for step in range(3):
            backward(model, step)
            assert all(p.grad is None for p in model.parameters())
    trained(alone, slice(None), steps=3)
    check_shards(alone, model, **NEAR)


def mixed():
    """Float32 parameters, computed in float16 and reduced in float32: as float16 copies, by hand."""
    half = {"param_dtype": tm.float16, "reduce_dtype": tm.float32}
    model = network(tm.float32)
    seen = []
    model.blocks[0].up.register_forward_hook(lambda m, a, out: seen.append((out.dtype, m.weight.dtype, a[0].dtype)))
    for block in model.blocks:
        fully_shard(block, mp_policy=MixedPrecisionPolicy(**half))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(**half, output_dtype=tm.float32))
    x, y = batch(0, mine(), tm.float32)
    F.mse_loss(model(x), y).backward()
    assert seen == [(tm.float16,) * 3]
    by_hand = network(tm.float16)
    for p in by_hand.parameters():
        p.grad_dtype = tm.float32
    F.mse_loss(by_hand(x.half()).float(), y).backward()
    for (name, h), q in zip(by_hand.named_parameters(), model.parameters(), strict=True):
        total = h.grad / SIZE
        dist.all_reduce(total)
        assert q.dtype == q.grad.dtype == tm.float32
        np.testing.assert_allclose(q.grad.numpy(), rows(total.numpy()), rtol=1e-6, atol=1e-9, err_msg=name)
    with pytest.raises(TypeError, match="param_dtype must be a floating dtype, found int64"):
        MixedPrecisionPolicy(param_dtype=tm.int64)


def scaled():
    """An overflow on one rank skips the step on all."""
    model = sharded(network(tm.float32))
    optimizer, scaler = tm.optim.SGD(model.parameters(), lr=0.1), tm.amp.GradScaler("cpu", init_scale=4.0)
    before = [p.detach().numpy().copy() for p in model.parameters()]
    x, y = batch(0, mine(), tm.float32)
    scaler.scale(F.mse_loss(model(x), y)).backward()
    if RANK == SIZE - 1:
        model.first.bias.grad.fill_(float("inf"))
    scaler.step(optimizer)
    assert not scaler.stepped(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    for p, old in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), old)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens):
        return self.out(self.table(tokens))

    def loss(self, tokens):
        return F.cross_entropy(self(tokens), tokens) + self.out.weight.pow(2).sum()


def tied_and_other_methods():
    def made():
        tm.manual_seed(0)
        return Tied().double()

    alone, model = made(), fully_shard(made())
    register_fsdp_forward_method(model, "loss")
    register_fsdp_forward_method(nn.Linear(1, 1), "loss")
    assert model.out.weight is model.table.weight
    tokens = tm.arange(7)
    alone.loss(tokens).backward()
    model.loss(tokens).backward()
    check_gradients(alone, model)
    assert model.out.weight is model.table.weight
    with pytest.raises(AttributeError, match="does not have a method nothing"):
        register_fsdp_forward_method(model, "nothing")
    parts = made()
    fully_shard(parts.table)
    with pytest.raises(ValueError, match=r"out\.weight is sharded already.*must be in one unit"):
        fully_shard(parts)


def by_hand():
    """unshard, reshard, and forms that stay."""
    model, whole = sharded(network()), network()
    model.unshard()
    np.testing.assert_array_equal(model.first.weight.detach().numpy(), whole.first.weight.detach().numpy())
    assert model.blocks[0].up.weight.shape == rows(whole.blocks[0].up.weight).shape
    model.reshard()
    assert model.first.weight.shape == rows(whole.first.weight).shape
    model.blocks[0].unshard()
    assert {k: v.shape for k, v in model.state_dict().items()} == {
        k: rows(v.numpy()).shape for k, v in whole.state_dict().items()
    }
    assert type(model).__name__ == "FSDPNetwork"
    model.set_reshard_after_forward(False)
    with tm.no_grad():
        model(batch(0, mine())[0])
    assert model.blocks[0].up.weight.shape == whole.blocks[0].up.weight.shape
    for p in model.blocks[0].parameters():
        p.detach().mul_(2.0)  # the gathered rows: lost
    with pytest.raises(RuntimeError, match=r"written in place while they were gathered: blocks\.0\.scale, by Mul; "):
        model.blocks[0].reshard()
    model.double()
    for unit in (model, *model.blocks):
        for p in unit._unit.shards:
            p.parameter.detach().mul_(2.0)
            assert p.parameter.shape == rows(np.empty(p.shape)).shape
    found = model(batch(0, mine())[0])
    for p in whole.parameters():
        p.detach().mul_(2.0)
    np.testing.assert_allclose(found.detach().numpy(), whole(batch(0, mine())[0]).detach().numpy(), **NEAR)


def nn_of(dtype):
    return network(dtype, width=64, blocks=3)


def several_backwards():
    """retain_graph, gradients of inputs alone, and forwards whose backwards come later."""
    alone, model = network(), sharded(network())
    for each, part in ((alone, slice(None)), (model, mine())):
        x, y = batch(0, part)
        loss = F.mse_loss(each(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        losses = [F.mse_loss(each(batch(step, part)[0]), batch(step, part)[1]) for step in (1, 2)]
        for late in reversed(losses):
            late.backward()
    check_gradients(alone, model)
    x = batch(0, mine())[0].requires_grad_()
    (found,) = tm.autograd.grad(model(x).sum(), [x])
    (wanted,) = tm.autograd.grad(alone(x).sum(), [x])
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), **NEAR)
    check_gradients(alone, model)
    assert model.blocks[0].up.weight.shape == rows(alone.blocks[0].up.weight).shape
    with tm.inference_mode():
        np.testing.assert_allclose(model(x).numpy(), alone(x).numpy(), **NEAR)


def hooks_of_gradients():
    """Hooks of a parameter get its rows of the average; what else adds to its gradient counts in norms."""
    alone, model = network(), sharded(network())
    for each in (alone, model):
        for p in each.parameters():
            p.register_hook(lambda grad: grad * 3)
        backward(each, 0, slice(None) if each is alone else None)
        for p in each.parameters():
            p.pow(2).sum().backward()
    check_gradients(alone, model)
    model.zero_grad()
    alone.zero_grad()
    for each in (alone, model):
        each.last.weight.pow(2).sum().backward()
    norms = [nn.utils.clip_grad_norm_(each.parameters(), 100.0).item() for each in (alone, model)]
    np.testing.assert_allclose(*norms, rtol=1e-12)


def under_autocast():
    """The same rows as one process computes in bfloat16, on the same samples."""
    alone, model = network(tm.float32), sharded(network(tm.float32))
    x, y = batch(0, slice(0, 4), tm.float32)
    for each in (alone, model):
        with tm.autocast("cpu", dtype=tm.bfloat16):
            loss = F.mse_loss(each(x).float(), y)
        loss.backward()
    check_gradients(alone, model, rtol=1e-5, atol=1e-7)


def after_an_error():
    """A backward that fails leaves nothing that the next one would add to."""
    alone, model = network(), sharded(network())
    fails = model.blocks[1].down.weight.register_hook(lambda grad: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        backward(model)
    fails.remove()
    model.zero_grad()
    backward(model, 1)
    backward(alone, 1, slice(None))
    check_gradients(alone, model)
    with pytest.raises(ValueError, match=r"cannot be multiplied"):
        model(tm.ones(2, 7, dtype=tm.float64))
    assert model.first.weight.shape == rows(alone.first.weight).shape


def written_too_early():
    model = sharded(network())
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    x, y = batch(0, mine())
    loss = F.mse_loss(model(x), y)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"was written by SGD.step after the forward that gathered it"):
        loss.backward()


def refused():
    module = nn.Linear(2, 2)
    module.scale = nn.Parameter(tm.tensor(1.0))
    with pytest.raises(ValueError, match=r"doesn't support scalar parameters. Change scale to a 1D tensor"):
        fully_shard(module)
    with pytest.raises(ValueError, match=r"containers that do not implement forward: ModuleList"):
        fully_shard(nn.ModuleList([nn.Linear(2, 2)]))
    with pytest.raises(TypeError, match="expected a module, found int"):
        fully_shard(3)
    module = nn.Linear(2, 2)
    module(tm.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match=r"weight has a gradient, which would be lost"):
        fully_shard(module)
    for options, said in (
        ({"reshard_after_forward": 2}, "reshard_after_forward=2 is not offered"),
        ({"shard_placement_fn": lambda p: None}, "shard_placement_fn and dp_mesh_dims are not offered"),
    ):
        with pytest.raises(NotImplementedError, match=said):
            fully_shard(nn.Linear(2, 2), **options)
    with pytest.raises(NotImplementedError, match="a list of modules is not offered"):
        fully_shard([nn.Linear(2, 2)])
    mesh = dist.init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("pp", "dp"))
    with pytest.raises(NotImplementedError, match="a mesh of 2 dimensions is not offered"):
        fully_shard(nn.Linear(2, 2), mesh=mesh)
    module = fully_shard(nn.Linear(2, 2), mesh=mesh["dp"])
    with pytest.raises(ValueError, match="applied to this module already"):
        fully_shard(module)
    with pytest.raises(NotImplementedError, match="does not support deepcopy"):
        module.__deepcopy__({})
    with pytest.raises(ValueError, match="DistributedDataParallel: each of these ranks has another part of the parameters"):
        nn.parallel.DistributedDataParallel(module)
    with pytest.raises(ValueError, match="are divided over these ranks already, and so is the optimizer's state: use"):
        dist.optim.ZeroRedundancyOptimizer(module.parameters(), tm.optim.Adam)
    used = nn.Linear(2, 2)
    optimizer = tm.optim.Adam(used.parameters())
    used(tm.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="an optimizer has state of the whole weight"):
        fully_shard(used)
    module(tm.ones(1, 2)).sum().backward()
    with pytest.raises(NotImplementedError, match=r"Adafactor: weight is divided over ranks, and the rule needs all"):
        tm.optim.Adafactor(module.parameters()).step()
    with pytest.raises(NotImplementedError, match=r"LBFGS: weight is divided over ranks"):
        tm.optim.LBFGS(module.parameters()).step(lambda: 0.0)
    with pytest.raises(NotImplementedError, match=r"LBFGS: weight is divided over ranks"):  # of which one has no row
        tm.optim.LBFGS(fully_shard(nn.Linear(2, 1, bias=False)).parameters()).step(lambda: 0.0)
    table = fully_shard(nn.Embedding(8, 2, sparse=True))
    with pytest.raises(NotImplementedError, match=r"weight has a sparse gradient: use Embedding\(sparse=False\)"):
        table(tm.tensor([1])).sum().backward()


def other_parameters():
    """Ranks that use different parameters of equal shapes are told so."""
    model = branches()
    for part in (model.a, model.b, model.c):
        fully_shard(part)
    fully_shard(model)
    with pytest.raises(tm.errors.RankError, match=r"all_gather of float64 \[\d, 5\] of [ab]\.weight"):
        model(tm.ones(2, 5, dtype=tm.float64), "a" if RANK == 0 else "b")


def exact_beside_others():
    """The bytes of the prediction, with what may stand beside it."""
    half = MixedPrecisionPolicy(param_dtype=tm.float16, reduce_dtype=tm.float32)

    def training(variant):
        if not dist.is_initialized():
            dist.init_process_group()
        model = nn_of(tm.float16 if variant == "masters" else tm.float32)
        if variant == "recompute":
            for block in model.blocks:
                block.__class__ = Recomputing
        if variant == "frozen":
            for p in (*model.first.parameters(), *model.blocks[1].parameters(), model.blocks[2].up.weight):
                p.requires_grad_(False)
        sharded(model, **({"mp_policy": half} if variant == "mixed" else {}))
        trained_ones = [p for p in model.parameters() if p.requires_grad]
        optimizer = tm.optim.Adam(trained_ones, master_weights=variant == "masters")
        scaler = tm.amp.GradScaler("cpu", enabled=variant == "mixed")
        x, y = tm.zeros(BATCH, 6), tm.zeros(BATCH, 3)
        if variant == "masters":
            x, y = x.half(), y.half()
        with tm.techniques.optimizer_in_backward(optimizer) if variant == "in backward" else tm.enable_grad():
            for _ in range(2):
                if variant == "accumulation":
                    model.set_requires_gradient_sync(False)
                    F.mse_loss(model(x), y).backward()
                    model.set_requires_gradient_sync(True)
                with tm.autocast("cpu", dtype=tm.bfloat16, enabled=variant == "autocast"):
                    loss = F.mse_loss(model(x).to(y.dtype), y)
                scaler.scale(loss).backward()
                del loss
                if variant == "clipped":
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if variant != "in backward":
                    scaler.step(optimizer)
                    optimizer.zero_grad()
                if variant == "mixed":
                    scaler.update()

    for variant in ("mixed", "masters", "accumulation", "recompute", "frozen", "in backward", "clipped", "autocast"):
        try:
            exact(lambda: training(variant))  # noqa: B023
        except AssertionError as error:
            raise AssertionError(f"{variant}: {error}") from error


if __name__ == "__main__":
    nn.Module.detached = lambda self: [p.detach() for p in self.parameters()]
    checks = [
        clipped, accumulated, used_without_sync_alone, used_twice_or_never, frozen, recomputed, offloaded, in_backward,
        mixed, scaled,
        several_backwards, hooks_of_gradients, under_autocast,
        tied_and_other_methods, by_hand, after_an_error, written_too_early, refused,
        exact_beside_others, other_parameters,
    ]  # fmt: skip
    for check in checks:
        try:
            check()
        except BaseException:
            print(f"rank {RANK}: {check.__name__}", file=sys.stderr, flush=True)
            raise
    print(f"rank {RANK} of {SIZE}: done", flush=True)
