"""``fully_shard`` with ``CPUOffloadPolicy``: the numbers without it, bit for bit; the bytes of the device and of the host."""

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import exact
from tests.distributed.programs.fsdp import network, rows, sharded, trained
from tests.distributed.programs.fsdp_options import Recomputing
from tests.distributed.programs.shared import BATCH, RANK, SIZE, batch, mine
from tests.predicted import facts
from tests.sums import check_sums, counted
from tinygrad_mem import memory, nn
from tinygrad_mem.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from tinygrad_mem.memory import Category
from tinygrad_mem.nn import functional as F

OFFLOADED = {"offload_policy": CPUOffloadPolicy()}
HALF = {"mp_policy": MixedPrecisionPolicy(param_dtype=tm.float16, reduce_dtype=tm.float32)}


def host():
    return tm.device("cpu").host()


def rounded(size):
    return -(-size // 512) * 512


def check_equal(model, plain):
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert p.device is host()
        assert p.grad is None or p.grad.device is p.device
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


def same_as_without():
    for rule in (tm.optim.Adam, tm.optim.SGD):
        for options in ({}, {"reshard_after_forward": False}):
            plain, model = sharded(network(), **options), sharded(network(), **options, **OFFLOADED)
            wanted, found = (trained(each, mine(), rule, clip=(0.01,)) for each in (plain, model))
            assert found == wanted
            check_equal(model, plain)


def same_beside_others():
    """Half precision, accumulation, recomputation, steps in backward, frozen parameters, skipped steps."""

    def train(variant, options):
        model = network(tm.float32)
        if variant == "recompute":
            for block in model.blocks:
                block.__class__ = Recomputing
        if variant == "frozen":
            for p in (*model.first.parameters(), model.blocks[1].up.weight):
                p.requires_grad_(False)
        sharded(model, **options, **(HALF if variant == "half" else {}))
        optimizer = tm.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
        scaler = tm.amp.GradScaler("cpu", init_scale=2.0**20 if variant == "half" else 1.0)
        with tm.techniques.optimizer_in_backward(optimizer) if variant == "in backward" else tm.enable_grad():
            for step in range(4 if variant in ("half", "accumulation") else 2):
                model.set_requires_gradient_sync(variant != "accumulation" or step % 2 == 1)
                x, y = batch(step, mine(), tm.float32)
                loss = F.mse_loss(model(x).float(), y)
                if variant == "in backward":
                    loss.backward()
                    continue
                scaler.scale(loss).backward()
                if variant != "accumulation" or step % 2:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        return model, scaler.get_scale()

    for variant in ("half", "accumulation", "recompute", "frozen", "in backward"):
        (plain, wanted), (model, found) = train(variant, {}), train(variant, OFFLOADED)
        assert found == wanted
        assert variant != "half" or found < 2.0**20, "a step was skipped, on all ranks"
        check_equal(model, plain)


def bytes_of_device_and_host():
    """The device has nothing of this rank's between steps; the host has it all. Both as predicted, at every event."""
    heard = []

    def run(options, clip):
        if not dist.is_initialized():
            dist.init_process_group()
        with memory.Track(host()) as track, counted(host().pool) as used:
            model = sharded(network(tm.float32, width=100, blocks=2), **options, **OFFLOADED)
            optimizer = tm.optim.Adam(model.parameters())
            memory.mark("sharded")
            for _ in range(2):
                F.mse_loss(model(tm.zeros(BATCH, 6)).float(), tm.zeros(BATCH, 3)).backward()
                memory.mark("backward ends")
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
                optimizer.step()
                optimizer.zero_grad()
                memory.mark("step ends")
        heard.append((track, used))

    own = sum(rounded(rows(p.detach().numpy()).nbytes) for p in network(tm.float32, width=100, blocks=2).parameters())
    for options, clip in (({}, True), ({"reshard_after_forward": False}, False), (HALF, False)):
        heard.clear()
        said = exact(lambda: run(options, clip))  # noqa: B023
        assert not any(said.by_category(mark) for mark in ("sharded", "backward ends", "step ends"))
        first = heard[0][0]
        for track, used in heard:  # the run and its prediction
            check_sums(track, used)
            assert facts(track) == facts(first)
            assert (track.peak, track.pool().reserved) == (first.peak, first.pool().reserved)
        between = {Category.PARAMETER: own, Category.OPTIMIZER_STATE: 2 * own}
        assert first.by_category("sharded") == {Category.PARAMETER: own}
        assert first.by_category("backward ends") == {**between, Category.GRADIENT: own}
        assert first.by_category("step ends") == between
        assert clip or first.peak == 4 * own


def peak_on_the_device():
    """What a step takes there: inputs and results, units that are gathered, gradients on their way."""
    width = 64
    whole = rounded(width * width * 4)

    def run(layers):
        if not dist.is_initialized():
            dist.init_process_group()
        model = nn.Sequential(*[fully_shard(nn.Linear(width, width, bias=False), **OFFLOADED) for _ in range(layers)])
        fully_shard(model, **OFFLOADED)
        optimizer = tm.optim.Adam(model.parameters())
        x = tm.zeros(2, width)
        for step in range(2):
            memory.mark(f"step {step}")
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        memory.mark("end")

    def most(track):
        at, line = {mark.text: mark.index for mark in track.marks}, track.timeline()
        first, last = np.searchsorted(line.event, [at["step 1"], at["end"]], "right")
        return int(line.used[first - 1 : last].max())

    for layers in (4, 6):  # two gathered units, two gradients, this rank's part of one, inputs, the loss, its gradient
        found = most(exact(lambda: run(layers)))  # noqa: B023
        assert found == 4 * whole + rounded(whole // SIZE) + (layers + 2) * 512


def loaded_without():
    """State dicts go to a model that is not offloaded, and back, with those of the optimizers."""
    model, plain = sharded(network(), **OFFLOADED), sharded(network())
    rules = [tm.optim.Adam(each.parameters(), lr=0.01) for each in (model, plain)]
    F.mse_loss(model(batch(0, mine())[0]), batch(0, mine())[1]).backward()
    rules[0].step()
    plain.load_state_dict(model.state_dict())
    rules[1].load_state_dict(rules[0].state_dict())
    for each in plain.parameters():
        assert rules[1].state[each]["exp_avg"].device is tm.device("cpu")
    back = sharded(network(), **OFFLOADED)
    back.load_state_dict(plain.state_dict())
    rule = tm.optim.Adam(back.parameters(), lr=0.01)
    rule.load_state_dict(rules[1].state_dict())
    check_equal(back, model)
    for p, q in zip(back.parameters(), model.parameters(), strict=True):
        assert rule.state[p]["exp_avg"].device is host()
        np.testing.assert_array_equal(rule.state[p]["exp_avg"].numpy(), rules[0].state[q]["exp_avg"].numpy())


def refused():
    model = sharded(network(), **OFFLOADED)
    model.to("cpu")
    with pytest.raises(tm.errors.DeviceError, match=r"first\.weight was moved to cpu after fully_shard, whose CPUOff"):
        model(batch(0, mine())[0])
    with pytest.raises(TypeError, match=r"expected offload_policy=CPUOffloadPolicy\(\) or OffloadPolicy\(\), not True"):
        fully_shard(nn.Linear(2, 2), offload_policy=True)
    p = next(sharded(network(), **OFFLOADED).parameters())
    with pytest.raises(tm.errors.DeviceError, match=r"on cpu \(the host of cpu\), .* on cpu\. Move them with"):
        p * tm.ones(*p.shape, dtype=p.dtype)


if __name__ == "__main__":
    for check in (same_as_without, same_beside_others, bytes_of_device_and_host, peak_on_the_device, loaded_without, refused):
        check()
    print(f"rank {RANK} of {SIZE}: done", flush=True)
