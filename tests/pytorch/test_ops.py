"""Each op of PyTorch's own table, with its gradient: on the CPU its memory is predicted to the byte, bounded, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.profiles import examples, some
from tests.pytorch.op_samples import OPS, outcomes, real_peak
from tinygrad_mem.pytorch import predict

STAND_FOR_OTHERS = [
    *["clamp", "xlogy", "nn.functional.kl_div", "take", "trace", "scatter_reduce amax", "sgn", "to", "linalg.inv", "isin"],
    *["nn.functional.one_hot", "nn.functional.gaussian_nll_loss", "nn.functional.multi_margin_loss", "linalg.lu_solve"],
    *["multinomial", "prod", "max reduction_no_dim", "linalg.matrix_rank", "matrix_exp", "masked_fill", "masked_scatter"],
    *["nn.functional.embedding_bag", "nn.functional.ctc_loss", "nonzero", "tensor_split", "nn.functional.binary_cross_entropy"],
]
BY_VALUES = {
    *[
        "__getitem__",
        "allclose",
        "argwhere",
        "bincount",
        "combinations",
        "cov",
        "equal",
        "index_fill",
        "index_put",
        "linalg.lstsq",
    ],
    *["linalg.lstsq grad_oriented", "masked_select", "nonzero", "nn.functional.one_hot", "repeat_interleave"],
    *["tensor_split", "unique", "unique_consecutive"],
}
"""Refused: the sizes of their results are values, or they decide by values."""
WITHOUT_SHAPES = {"geqrf", "histogram", "histogramdd", "to_sparse", "sparse.sampled_addmm", "sparse.mm reduce"}
"""Refused: PyTorch has no formula for their results, or these are sparse."""
LATE_NUMBERS = {"nn.functional.multi_head_attention_forward": 8, "unravel_index": 8, "prod": 32}
"""Bytes that a prediction may lack: a number that a product keeps is seen only when a function of PyTorch's Python returns;
the product of no elements asks for some numbers first."""


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's samples of random ops keep the state of a GPU's numbers too: 16 bytes on the host, in the real run alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some([name for name in OPS if "jiterator" not in name], STAND_FOR_OTHERS))
def test_the_peak_of_an_op_and_its_gradient_is_pytorchs(name: str):
    for found in outcomes(OPS[name], examples(2)):
        if found.kind == "refused":
            assert name in BY_VALUES | WITHOUT_SHAPES, found.words
        else:
            assert found.kind in ("equal", "bounded") or abs(found.off) <= LATE_NUMBERS.get(name, 0), found.words


def test_the_lists_name_ops_of_the_table():
    assert sorted((BY_VALUES | WITHOUT_SHAPES | LATE_NUMBERS.keys() | set(STAND_FOR_OTHERS)) - OPS.keys()) == []


@pytest.mark.parametrize("weighted", [(), ("weight",), ("pos_weight",), ("weight", "pos_weight")])
def test_the_gradient_of_binary_cross_entropy_with_logits_is_written_in_place(weighted: tuple[str, ...]):
    def run() -> torch.Tensor:
        x = torch.randn(30, 10, requires_grad=True)
        given: Any = {name: torch.ones(10) for name in weighted}
        torch.nn.functional.binary_cross_entropy_with_logits(x, torch.zeros(30, 10), reduction="sum", **given).backward()
        return x

    assert predict(run, device="cpu").peak == real_peak(run)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_loss_that_keeps_all_losses_is_counted_with_them(reduction: str):
    """PyTorch shrinks its result, and not the result's memory. Later predictions know the op: as much again."""

    def run() -> Any:
        x = torch.full((50, 10), 0.5, requires_grad=True)
        loss = torch.nn.functional.binary_cross_entropy(x, torch.ones(50, 10), reduction=reduction)
        torch.autograd.backward(loss, torch.ones_like(loss))
        return x, loss

    assert [predict(run, device="cpu").peak for _ in range(3)] == [real_peak(run)] * 3
