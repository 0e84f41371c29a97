"""Programs of the kinds that people bring, each with the peak of PyTorch's own CPU allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal

from tests.pytorch_memory import pytorch_peak
from tinygrad_mem.errors import NotOfferedError
from tinygrad_mem.pytorch import predict


def updated(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def boxes_without_overlap() -> torch.Tensor:
    boxes, order, keep = torch.rand(30, 4), torch.rand(30).argsort(descending=True), []
    while order.numel() > 0:
        best, rest = order[0], order[1:]
        keep.append(best)
        order = rest[torch.minimum(boxes[best], boxes[rest]).prod(1) <= 2.0]
    return torch.stack(keep)


def beam_search() -> list[int]:
    table, cell, head = nn.Embedding(50, 32), nn.GRUCell(32, 32), nn.Linear(32, 50)
    state, token, scores, found = torch.zeros(1, 32), torch.zeros(1).long(), torch.zeros(1), torch.zeros(1, 1).long()
    with torch.no_grad():
        for _ in range(6):
            state = cell(table(token), state)
            scores, places = (head(state).log_softmax(-1) + scores[:, None]).view(-1).topk(4)
            beams, token = places // 50, places % 50
            state, found = state[beams], torch.cat([found[beams], token[:, None]], 1)
    return found[scores.argmax()].tolist()


def codes() -> None:
    """A layer of vector quantization, which counts the codes in use."""
    encode, table = nn.Linear(32, 16), nn.Embedding(64, 16)
    optimizer = torch.optim.Adam([*encode.parameters(), *table.parameters()])
    for _ in range(2):
        z = encode(torch.randn(20, 32))
        nearest = torch.cdist(z, table.weight).argmin(1)
        print(nearest.unique().numel())
        updated(optimizer, F.mse_loss(z + (table(nearest) - z).detach(), torch.ones(20, 16)))


def trained(model: nn.Module, inputs: int) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        updated(optimizer, model(torch.randn(8, inputs)).sum())
    return model


def quantization_aware() -> nn.Module:
    """An observer of each channel gets its size in its first call."""
    quantization = pytest.importorskip("torch.ao.quantization")
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    return trained(quantization.prepare_qat(model.train()), 16)


PROGRAMS = [boxes_without_overlap, beam_search, codes, quantization_aware]


@pytest.mark.filterwarnings("ignore")  # of torch.ao
@pytest.mark.parametrize("program", PROGRAMS)
def test_its_peak_is_that_of_the_cpu(program: Callable[[], Any]):
    assert predict(program, device="cpu").peak == pytorch_peak(program)


ORTHOGONAL = [
    *[lambda: orthogonal(nn.Linear(16, 16)), lambda: orthogonal(nn.Linear(24, 16))],
    lambda: orthogonal(nn.Linear(16, 16), orthogonal_map="cayley"),
]


@pytest.mark.parametrize("make", ORTHOGONAL)
def test_orthogonal_weights(make: Callable[[], nn.Linear]):
    def run() -> None:
        model = make()
        trained(model, model.in_features)

    track = predict(run, device="cpu")
    assert abs(track.peak - pytorch_peak(run)) <= sum(track.unknown.values())


@pytest.mark.parametrize("count", [2, 60])
def test_isin_on_a_gpu_has_its_masks_or_a_bound(count: int):
    """A few are compared with all; more are sorted."""
    track = predict(lambda: torch.isin(torch.zeros(4096, device="cuda"), torch.zeros(count, device="cuda")))
    few = 4096 * 4 + 512 + 4096 * (count + 2)
    assert track.peak + sum(track.unknown.values()) >= few
    assert (track.peak == few) == (not track.unknown) == (count == 2)


def test_a_default_device_around_the_prediction_holds_for_lists_too():
    """``torch.tensor`` stayed on the host, and then two devices were found."""
    with torch.device("cuda"):
        track = predict(lambda: torch.rand(3) * torch.tensor([1.0, 2.0, 3.0]))
    assert track.peak == 3 * 512


def test_a_sparse_tensor_of_the_gpu_is_refused_in_words():
    places = [[0, 1], [1, 0]]
    with pytest.raises(NotOfferedError, match=r"test_more_programs\.py:\d+ <lambda>: .*(real GPU|sparse_coo)"):
        predict(lambda: torch.sparse_coo_tensor(torch.tensor(places, device="cuda"), torch.ones(2, device="cuda"), (2, 2)))


MADE_OF_OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": torch.tensor,
    "new_tensor": lambda x: x.new_tensor(x),
    "asarray": torch.asarray,
    "asarray copy": lambda x: torch.asarray(x, copy=True),
    "as_tensor": torch.as_tensor,
    "tensor of an array": lambda x: torch.tensor(np.ones(1000), dtype=torch.float32, device=x.device),
    "as_tensor of an array": lambda x: torch.as_tensor(np.ones(1000), device=x.device),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "kaiser": lambda x: torch.kaiser_window(1000, device=x.device),
    "kaiser not periodic": lambda x: torch.kaiser_window(1000, periodic=False, device=x.device),
    "blackman": lambda x: torch.blackman_window(1000, device=x.device),
    "hann": lambda x: torch.hann_window(1000, device=x.device),
}
ON_A_GPU = {  # bytes of blocks, beside those of x
    **dict.fromkeys(("tensor", "new_tensor", "asarray copy", "tensor of an array"), 4096),
    **dict.fromkeys(("asarray", "as_tensor"), 0),
    "as_tensor of an array": 8192,
    "dropout of all": 4096 + 512,
    **dict.fromkeys(("kaiser", "kaiser not periodic"), 2 * 4096),
    "blackman": 5 * 4096,
    "hann": 4096,
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize("name", MADE_OF_OTHERS)
def test_what_is_made_of_others_is_a_copy_only_where_pytorch_makes_one(name: str):
    def run(device: str) -> Any:
        return MADE_OF_OTHERS[name](torch.ones(1000, device=device))

    assert predict(run, "cpu", device="cpu").peak == pytorch_peak(lambda: run("cpu"))
    assert predict(run, "cuda").peak == 4096 + ON_A_GPU[name]
