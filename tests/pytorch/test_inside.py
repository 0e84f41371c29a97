"""What PyTorch's kernels take inside an op: never silently nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.pytorch_memory import pytorch_peak
from tinygrad_mem.pytorch import predict
from tinygrad_mem.pytorch.program.kernels import NOTHING, ROWS, Kernels
from tinygrad_mem.pytorch.program.kernels.unread import RESULTS_ONLY

aten, N = torch.ops.aten, 1 << 16


def trained(make: Callable[[], nn.Module]) -> Any:
    x = torch.zeros(64, 1024, requires_grad=True)
    module = make()
    module(x).sum().backward()
    return x


def kept(change: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    x = torch.empty(100, requires_grad=True)
    return [change(x) for _ in range(30)]


def attended() -> torch.Tensor:
    x, mask = (torch.zeros(4, 64, size, dtype=torch.bfloat16, requires_grad=True) for size in (8, 64))
    return F.scaled_dot_product_attention(x, x, x, mask)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "silu": partial(trained, nn.SiLU),
    "mish": partial(trained, nn.Mish),
    "x * 3": partial(kept, lambda x: x * 3),
    "3 * x / 7": partial(kept, lambda x: 3 * x / 7),
    "1 / x": partial(kept, lambda x: 1 / x),
    "x.mul_(3)": partial(kept, lambda x: (x * 1).mul_(3)),
    "a trained mask, added in place": attended,
    "numbers in backward": lambda: [each.sum().backward() for each in kept(lambda x: 3 * x / 7)],
    "trunc_normal_": lambda: nn.init.trunc_normal_(torch.empty(N), std=0.02),
    "trunc_normal_ again": lambda: nn.init.trunc_normal_(torch.empty(N), std=1.5),
    "trunc_normal_ in a narrow place": lambda: nn.init.trunc_normal_(torch.empty(N), std=0.1, a=-0.1, b=0.1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_cpu_it_is_what_pytorch_takes(name: str):
    assert predict(PROGRAMS[name], device="cpu").peak == pytorch_peak(PROGRAMS[name])


def encoder(first: bool = False, layers: int = 0, device: str = "cpu") -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, norm_first=first, activation="gelu", device=device)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval() if layers else layer.eval()


def attention(weights: bool, device: str = "cpu") -> Callable[[torch.Tensor], Any]:
    layer = nn.MultiheadAttention(64, 4, batch_first=True, device=device).eval()
    return lambda x: layer(x, x, x, need_weights=weights)


LAYERS: dict[str, Callable[..., Any]] = {
    "encoder": encoder,
    "norm first": partial(encoder, first=True),
    "three layers": partial(encoder, layers=3),
    "attention": partial(attention, weights=False),
    "attention with weights": partial(attention, weights=True),
}


def evaluated(name: str, mode: Callable[[], Any] = torch.no_grad, device: str = "cpu") -> Any:
    layer = LAYERS[name](device=device)
    with mode():
        return layer, layer(torch.zeros(8, 100, 64, device=device))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", LAYERS)
def test_a_whole_layer_is_one_op_in_evaluation(name: str, mode: Callable[[], Any]):
    assert predict(evaluated, name, mode, device="cpu").peak == pytorch_peak(lambda: evaluated(name, mode))


def test_under_a_mode_for_functions_a_layer_is_made_of_its_parts():
    """Such as that of a default device: PyTorch does not take one op for the layer then."""

    def run() -> Any:
        with torch.device("cpu"):
            return evaluated("norm first")

    found = predict(run, device="cpu").peak
    assert found == pytorch_peak(run)
    assert found != predict(evaluated, "norm first", device="cpu").peak


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_on_a_gpu_a_whole_layer_is_made_of_its_parts(mode: Callable[[], Any]):
    """The widest moment: what the layer has added up so far, and both sides of the second linear layer of 256 features."""
    found = predict(evaluated, "encoder", mode, "cuda")
    log, x = found.log, 8 * 100 * 64 * 4
    assert {"addmm", "_addmm_activation", "native_layer_norm"} <= {log.texts[code] for code in log.column("op").tolist()}
    state = [3 * 64 * 64, 3 * 64, 64 * 64, 64, 256 * 64, 256, 256 * 64, 64, *[64] * 4]
    weights = sum(-(-4 * size // 512) * 512 for size in state)
    workspace = sum(event for event in log.column("requested").tolist() if event >= 1 << 20)
    assert found.peak - weights - workspace == (1 + 1 + 4 + 1) * x, "input, sum, 256 features, and their product"
    assert found.unknown == {}


def test_attention_that_is_not_fused_has_a_bound():
    ((why, _),) = predict(evaluated, "attention with weights", torch.no_grad, "cuda").unknown.items()
    assert why.startswith("what nn.MultiheadAttention takes in evaluation where no fused attention runs")


@pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 draws them once, between the bounds")
def test_it_is_said_when_numbers_are_drawn_again():
    drawn = lambda std: predict(lambda: nn.init.trunc_normal_(torch.empty(N), std=std), device="cpu").notes  # noqa: E731
    assert drawn(0.02) == []
    assert "draws numbers outside of its bounds again" in drawn(1.5)[0]


def gpu(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*shape, device="cuda", **options)


def test_ops_that_are_made_of_others_have_their_temporaries():
    """``ldexp`` makes 2 ** exponent first, and 2 is a number on the GPU; ``isinf`` the absolute values: 4 bytes an element."""
    x, exponent = partial(gpu, N), partial(gpu, N)
    assert predict(lambda: torch.ldexp(x(), exponent())).peak == 4 * 4 * N
    assert predict(lambda: x().ldexp_(exponent())).peak == 3 * 4 * N + 512
    assert predict(lambda: torch.isinf(x())).peak == (4 + 4 + 1) * N


def test_a_bilinear_layer_makes_products_of_its_inputs():
    """They are seen, as on the CPU."""

    def run() -> None:
        layer = nn.Bilinear(64, 64, 32, device="cuda")
        layer(gpu(256, 64), gpu(256, 64))

    log = predict(run).log
    assert "bmm" in {log.texts[code] for code in log.column("op").tolist()}


COPIES: dict[
    str, tuple[Callable[[], Any], int]
] = {  # and the bytes of the program's own tensors on the GPU, and of copies there
    "a view to the host": (lambda: gpu(512, 512)[:, :128].cpu(), 512 * 128),
    "a transposed tensor": (lambda: gpu(512, 512).t().cpu(), 0),
    "a transposed one into a plain one": (lambda: torch.zeros(512, 512).copy_(gpu(512, 512).t()), 512 * 512),
    "another dtype": (lambda: gpu(512, 512).to("cpu", torch.float16), 0),
    "another dtype later": (lambda: gpu(512, 512).to("cpu", torch.float16, non_blocking=True), 512 * 256),
    "a plain one": (lambda: gpu(512, 512).cpu(), 0),
    "into a part": (lambda: gpu(512, 512)[:, :128].copy_(torch.zeros(512, 128)), 512 * 128),
    "into another dtype": (lambda: gpu(512, 512).copy_(torch.zeros(512, 512, dtype=torch.float64)), 0),
    "into another dtype later": (
        lambda: gpu(512, 512).copy_(torch.zeros(512, 512, dtype=torch.float64), non_blocking=True),
        2 * 512 * 512,
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_between_host_and_gpu(name: str):
    run, inside = COPIES[name]
    found = predict(run)
    assert found.peak == 4 * (512 * 512 + inside)
    assert found.unknown == {}


def test_a_kernel_that_nobody_has_read_is_named_with_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(ROWS, "renorm", raising=False)  # as if it were one of those that nobody has read
    found = predict(lambda: gpu(512, 512).renorm(2, 0, 1.0))
    ((why, most),) = found.unknown.items()
    assert why.startswith("renorm is not in the table of kernels")
    assert most == 2 * 4 * 512 * 512, "a copy of its argument and of its result"


def test_an_op_that_turns_its_argument_into_a_view_takes_nothing():
    assert predict(lambda: torch.quantile(gpu(1000), 0.5).squeeze_()).unknown == {}


def test_an_op_in_place_has_the_row_of_the_other():
    args = torch.zeros(8, 8), torch.zeros(8, 8), torch.zeros(8, 8)
    asked = [Kernels().beside(op, args, {}, args[0]) for op in (aten.addmm.default, aten.addmm_.default)]
    assert asked[0] == asked[1] != NOTHING


def test_each_op_has_one_place():
    names = {name.partition(".")[0].removesuffix("_") for name in ROWS}
    assert sorted(RESULTS_ONLY & names) == []
    named = (name for name in RESULTS_ONLY if not name.startswith("_foreach_"))  # of which an older PyTorch has fewer
    assert sorted(name for name in named if not hasattr(aten, name) and not hasattr(aten, f"{name}_")) == []
