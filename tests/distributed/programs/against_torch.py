"""``DistributedDataParallel`` beside PyTorch's under gloo, in the same processes: losses, parameters, buffers, buckets."""

from contextlib import nullcontext

import numpy as np
import torch

import tinygrad_mem as tm
from tests.distributed.checks import THOROUGH
from tests.distributed.programs.gloo import RANK
from tinygrad_mem.distributed.data_parallel import in_buckets

STEPS, BATCH = 10 if THOROUGH else 4, 6  # some cases accumulate two


def network(lib, which):
    """The same program in each library. Without biases before a BatchNorm: their gradients are noise, which Adam enlarges."""
    nn = lib.nn

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(5, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x, step=0):
            return self.head((self.a if (step + RANK) % 2 else self.b)(x).tanh())

    if which == "branches":
        return Branches()
    if which == "images":
        return nn.Sequential(
            nn.Conv2d(5, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3)
        )  # fmt: skip
    return nn.Sequential(
        nn.Linear(5, 300, bias=False), nn.BatchNorm1d(300), nn.Tanh(), nn.Linear(300, 900), nn.ReLU(), nn.Linear(900, 3)
    )


def batch(which, step):
    rng = np.random.default_rng((step, RANK))
    shape = (BATCH, 5, 4, 4) if which == "images" else (BATCH, 5)
    return rng.standard_normal(shape), rng.standard_normal((BATCH, 3))


def trained(lib, which, options, accumulate, rule):
    """The losses of this rank, the buffers after each forward, and the state of its network in the end."""
    torch.manual_seed(0)
    start = network(torch, which).double()
    model = start if lib is torch else tm.from_torch(start) if which != "branches" else network(tm, which).double()
    if lib is not torch and which == "branches":
        model.load_state_dict({name: tm.from_numpy(t.numpy().copy()) for name, t in start.state_dict().items()})
    if RANK:  # it is given the values of rank 0
        with lib.no_grad():
            for p in model.parameters():
                p.mul_(0.5)
            for b in model.buffers():
                b.add_(RANK)
    wrapped = lib.nn.parallel.DistributedDataParallel(model, **options)
    optimizer = rule(lib.optim)(model.parameters())
    losses, seen = [], []
    for step in range(STEPS):
        x, y = (lib.from_numpy(each) for each in batch(which, step))
        given = (x, step) if which == "branches" else (x,)
        with wrapped.no_sync() if (step + 1) % accumulate else nullcontext():
            loss = lib.nn.functional.mse_loss(wrapped(*given), y) / accumulate
            loss.backward()
        losses.append(loss.item())
        seen += [b.numpy().copy() for b in model.buffers()]
        if step == STEPS // 2:
            with lib.no_grad():  # in training mode: the statistics of a BatchNorm move
                wrapped(*given)
                wrapped(*given)
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        seen += [b.numpy().copy() for b in model.buffers()]
    return np.array(losses), seen, {name: t.numpy().copy() for name, t in model.state_dict().items()}


CASES = {
    "images": ({}, 1),
    "mlp": ({}, 1),
    "mlp, no_sync": ({}, 2),
    "mlp, views": ({"gradient_as_bucket_view": True}, 1),
    "mlp, views, no_sync, small buckets": ({"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}, 2),
    "mlp, own buffers": ({"broadcast_buffers": False}, 1),
    "mlp, buffers sent once": ({"forward_sync_buffers": False}, 1),
    "branches, unused": ({"find_unused_parameters": True}, 1),
    "branches, unused, views": ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, 1),
    "branches, unused, no_sync": ({"find_unused_parameters": True}, 2),
}


def same_numbers():
    rules = [
        lambda optim: lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
        lambda optim: lambda p: optim.AdamW(p, lr=0.01),
    ]
    for number, (case, (options, accumulate)) in enumerate(CASES.items()):
        which = case.partition(",")[0]
        for rule in rules if THOROUGH else [rules[number % 2]]:
            ours, theirs = (trained(lib, which, options, accumulate, rule) for lib in (tm, torch))
            np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-10, atol=0, err_msg=case)
            for mine, other in zip(ours[1], theirs[1], strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-10, err_msg=case)
            assert list(ours[2]) == list(theirs[2])
            for name, found in ours[2].items():
                np.testing.assert_allclose(found, theirs[2][name], rtol=1e-10, atol=1e-10, err_msg=f"{case}: {name}")


class Sum(torch.nn.Module):
    """Its gradients come from the last parameter to the first."""

    def __init__(self, sizes):
        super().__init__()
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(n)) for n in sizes])

    def forward(self, x):
        for part in self.parts:
            x = x + part.sum()
        return x


def same_buckets():
    """PyTorch's buckets from its second step on, when it knows the order of the gradients."""
    for sizes in ((10, 300_000, 20, 200_000, 100_000, 5), (300_000,) * 12, (4,)):
        for cap in (None, 0.01, 1, 2, 25, 100):
            options = {} if cap is None else {"bucket_cap_mb": cap}
            theirs = torch.nn.parallel.DistributedDataParallel(Sum(sizes), **options)
            for _ in range(3):
                theirs(torch.ones(1)).sum().backward()
            said = theirs._get_ddp_logging_data()
            members = [list(map(int, each.split())) for each in said["rebuilt_per_bucket_param_indices"].split(",")]
            parameters = [tm.nn.Parameter(tm.zeros(n, device="meta")) for n in sizes]
            assert in_buckets(parameters, cap) == members, (sizes, cap)
            assert [sum(4 * sizes[i] for i in each) for each in members] == list(
                map(int, said["rebuilt_bucket_sizes"].split(","))
            )
