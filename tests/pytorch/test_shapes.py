"""Results of ops that are remembered: a prediction with them is the one without, event for event."""

from __future__ import annotations

import gc
from functools import partial
from itertools import groupby

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.networks import MORE, WORKLOADS  # noqa: E402
from tests.profiles import pairs  # noqa: E402
from tests.pytorch.cpu_steps import WAYS  # noqa: E402
from tinygrad_mem.memory.log import Kind  # noqa: E402
from tinygrad_mem.pytorch.predict import predict  # noqa: E402
from tinygrad_mem.pytorch.program.formulas import FORMULAS  # noqa: E402
from tinygrad_mem.pytorch.program.layouts import IN_LAYOUT  # noqa: E402
from tinygrad_mem.pytorch.program.shapes import Results  # noqa: E402

NETWORKS = {workload.name: workload for workload in [*WORKLOADS, *MORE]}


def events(program, device):
    """All events without their times. On the CPU, autocast's own cache ends in the order of a hash table."""
    runs = groupby(predict(program, device=device).log, key=lambda event: event.kind is Kind.FREE)
    found = [([(event.kind, *event[2:]) for event in run], frees) for frees, run in runs]
    return [event for run, frees in found for event in (sorted(run) if frees and device == "cpu" else run)]


def odd():
    """Calls that look alike, and are not: dtypes by default, modes, views, constants, several results, resizes."""
    x = torch.randn(4, 6, requires_grad=True)
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        torch.zeros(5), torch.arange(3.0), x.detach().flatten().contiguous()
    with torch.inference_mode():
        torch.einsum("ij,kj->ik", x, x), x.reshape(2, 12), torch.matmul(x, x.T)
    for t in (x, x.T, x[:, :3], x[1:], x.double()):
        a, b = t.sort(-1)[0], t.topk(2)[1]
        (a * 2 + t.exp_() if not t.requires_grad else a * t.exp()).sum().backward()
        del b
    counter = torch.tensor(0)
    for _ in range(3):
        counter += 1
        torch.zeros(counter.item())
    y = torch.empty(3).resize_(9)
    torch._foreach_add_([y, y.clone()], 1.0)
    torch._foreach_mul([y, y], 2.0)
    for part in (*x.T.chunk(3), *x.unbind(1), *x.split([1, 3])):
        (part * 2).sum().backward()
    nn.LSTM(6, 4, dtype=torch.float32)(torch.randn(3, 4, 6, dtype=torch.float32))[0].sum().backward()
    for dtype in (torch.float64, torch.bfloat16):  # a GPU has a kernel for the second, which returns lengths too
        q, k, v = [torch.randn(1, 2, 8, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
        F.scaled_dot_product_attention(q, k, v).sum().backward()


def told(self, func, args, kwargs):
    """Every call by its formula, and nothing remembered."""
    made = FORMULAS[func](*args, **kwargs) if func in FORMULAS else NotImplemented
    return IN_LAYOUT.get(func, func)(*args, **kwargs) if made is NotImplemented else made


NETS = [
    partial(WAYS["Adam"], NETWORKS["MLP"]),
    partial(WAYS["autocast"], NETWORKS["transformer of 2 layers, 128 tokens"]),
    partial(WAYS["checkpoint"], NETWORKS["LeNet"]),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("device", "program"), [("cpu", odd), ("cuda", odd), *pairs(["cpu", "cuda"], NETS)])
def test_what_is_remembered_is_what_pytorch_would_say(monkeypatch, program, device):
    def run():
        with torch.device(device):
            program()

    remembered = events(run, device)
    monkeypatch.setattr(Results, "of", told)
    assert events(run, device) == remembered
    assert len(remembered) > 20


@pytest.mark.parametrize("collects", [False, True])
def test_cycles_are_found_whether_or_not_the_program_collects(collects):
    def cycle():
        kept = [torch.ones(1000, device="cuda")]
        kept.append(kept)

    def program():
        cycle()
        if collects:
            gc.collect()
        held = torch.ones(500, device="cuda")
        cycle()
        del held

    (note,) = predict(program).notes
    assert note.startswith(f"reference cycles hold {'3.91' if collects else '7.81'} KiB")


def test_a_cycle_that_became_old_is_found_too():
    def program():
        kept = [torch.ones(1000, device="cuda")]
        kept.append(kept)
        gc.collect()  # alive, and old from now on

    (note,) = predict(program).notes
    assert note.startswith("reference cycles hold 3.91 KiB")
