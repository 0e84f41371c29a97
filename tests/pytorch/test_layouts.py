"""Results of ops with operands that lie in memory in two ways: as PyTorch's kernels lay them out, which fake tensors do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tinygrad_mem import pytorch  # noqa: E402
from tinygrad_mem.memory import Kind  # noqa: E402

aten = torch.ops.aten
OPS: dict[str, Callable[..., Any]] = {
    "softplus": lambda g, x: aten.softplus_backward(g, x, 1.0, 20.0),
    "elu": lambda g, x: aten.elu_backward(g, 1.0, 1.0, 1.0, False, x),
    "hardswish": aten.hardswish_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1.0, 1.0),
    "logit": lambda g, x: aten.logit_backward(g, x, None),
    "mse": lambda g, x: aten.mse_loss_backward(g, x, g, 0),
    "smooth l1": lambda g, x: aten.smooth_l1_loss_backward(g, x, g, 0, 1.0),
    "huber": lambda g, x: aten.huber_loss_backward(g, x, g, 0, 1.0),
    "binary cross entropy": lambda g, x: aten.binary_cross_entropy_backward(g, x, g, None, 0),
    "log_softmax": lambda g, x: aten._log_softmax_backward_data(g, x, -1, torch.float32),
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "floor_divide": torch.floor_divide,
    "copysign": torch.copysign,
    "silu": aten.silu_backward,
    "add": torch.add,
}


@pytest.mark.parametrize("first", [False, True], ids=["rows first", "turned first"])
@pytest.mark.parametrize("name", OPS)
def test_a_result_lies_as_on_a_real_machine(name: str, first: bool):
    def run(device: str) -> tuple[int, ...]:
        operands = torch.rand(8, 3, 5, device=device), torch.rand(3, 8, 5, device=device).transpose(0, 1)
        return OPS[name](*(operands[::-1] if first else operands)).stride()

    found: list[tuple[int, ...]] = []
    for device in ("cpu", "cuda"):
        pytorch.predict(lambda device=device: found.append(run(device)), device=device)
    assert found == [run("cpu")] * 2


def test_the_gradient_of_softplus_is_copied_for_a_view():
    """``held/random 131`` of an H200: the gradient of a linear layer whose result was turned."""

    def run() -> None:
        x = torch.randn(3, 8, 5, device="cuda", requires_grad=True)
        made = F.softplus((x * 1).view(24, 5).view(3, 8, 5).transpose(0, 1))
        made.backward(torch.ones(8, 3, 5, device="cuda"))

    log = pytorch.predict(run, gpu="H100").log
    ops = [event.op for event in log if event.kind is Kind.MALLOC]
    assert ops[-3:] == ["softplus_backward", "clone", "mul_Tensor"]
