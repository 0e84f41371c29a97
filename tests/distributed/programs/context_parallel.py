"""Attention in a ring: the numbers of one process, and the bytes of the prediction."""

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tests.distributed.checks import STEPS, equal, exact, part, same
from tinygrad_mem import nn
from tinygrad_mem.distributed.context_parallel import ring_attention
from tinygrad_mem.nn import functional as F

dist.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GROUP = dist.init_device_mesh("cpu", (SIZE,)).get_group()
HEADS, KEYS, TOKENS, WIDTH = 4, 2, 8 * SIZE, 6


def attention_alone():
    """Each gradient, with and without the triangle, with heads that share keys, and values of another width."""
    rng = np.random.default_rng(1)
    for causal in (False, True):
        for dtype, near in ((tm.float64, 1e-10), (tm.float32, 2e-5), (tm.bfloat16, 4e-2), (tm.float16, 6e-3)):
            q, gy = (rng.standard_normal((2, HEADS, TOKENS, w)) for w in (WIDTH, WIDTH + 2))
            k, v = (rng.standard_normal((2, KEYS, TOKENS, w)) for w in (WIDTH, WIDTH + 2))
            whole = [tm.tensor(x, requires_grad=True) for x in (q, k, v)]
            y = F.scaled_dot_product_attention(*whole, is_causal=causal, enable_gqa=True)
            y.backward(tm.tensor(gy))
            mine = [tm.tensor(part(x, GROUP, 2), dtype=dtype, requires_grad=True) for x in (q, k, v)]
            found = ring_attention(*mine, GROUP, is_causal=causal)
            found.backward(tm.tensor(part(gy, GROUP, 2), dtype=dtype))
            pairs = [(found.detach(), y.detach()), *((a.grad, b.grad) for a, b in zip(mine, whole, strict=True))]
            for a, b in pairs:
                assert a.dtype == dtype
                np.testing.assert_allclose(a.double().numpy(), part(b.numpy(), GROUP, 2), rtol=near, atol=near * 4)


class Network(nn.Module):
    """A layer that attends, of tokens (batch, tokens, width)."""

    def __init__(self, group):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, HEADS * 4), nn.Linear(WIDTH, 2 * KEYS * 4)
        self.out = nn.Linear(HEADS * 4, WIDTH)
        self.group = group

    def forward(self, x):
        n, t, _ = x.shape
        q = self.q(x).view(n, t, HEADS, 4).transpose(1, 2)
        k, v = self.kv(x).view(n, t, 2, KEYS, 4).permute(2, 0, 3, 1, 4)
        if self.group is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            y = ring_attention(q, k, v, self.group, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(n, t, -1))


def trained(group):
    """The loss of all tokens, and the parameters: gradients of the ranks are averaged by hand."""
    tm.manual_seed(0)
    model = Network(group).double()
    optimizer = tm.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        x, y = np.random.default_rng(step).standard_normal((2, 3, TOKENS, WIDTH))
        if group is not None:
            x, y = part(x, group, 1), part(y, group, 1)
        optimizer.zero_grad()
        loss = F.mse_loss(model(tm.tensor(x)), tm.tensor(y))
        loss.backward()
        value = loss.detach()
        if group is not None:
            for p in model.parameters():
                dist.all_reduce(p.grad, dist.ReduceOp.AVG, group)
            dist.all_reduce(value, dist.ReduceOp.AVG, group)
        optimizer.step()
        losses.append(value.item())
    return [np.array(losses), *(p.detach().numpy().copy() for p in model.parameters())]


def same_as_one_process():
    found = trained(GROUP)
    equal(found, trained(None))
    same(found, trained(GROUP))


def all_exact():
    for dtype in (tm.float32, tm.bfloat16):

        def run(dtype=dtype):
            if not dist.is_initialized():
                dist.init_process_group()
            group = dist.init_device_mesh("cpu", (SIZE,)).get_group()
            model = nn.parallel.DistributedDataParallel(Network(group).to(dtype), process_group=group)
            optimizer = tm.optim.AdamW(model.parameters(), lr=0.01)
            for _ in range(2):
                model(tm.zeros(3, 8, WIDTH, dtype=dtype)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        exact(run)


if __name__ == "__main__":
    for check in (attention_alone, same_as_one_process, all_exact):
        check()
    print(f"rank {RANK} of {SIZE}: done\n", end="", flush=True)
