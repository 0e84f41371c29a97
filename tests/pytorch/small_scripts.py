"""Short training scripts for :mod:`.test_scripts`, each with something that people do and that once was counted wrongly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.func import hessian, jacfwd, jvp
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from tests.pytorch.marks import Mark


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(F.dropout(x, 0.1))) * 2.0 / 3


def scaled_in_a_checkpoint(mark: Mark, device: str) -> Any:
    """No hook packs the numbers that autograd saves."""
    layers = nn.ModuleList([Lora(nn.Linear(32, 32)) for _ in range(3)]).to(device)
    for again in (False, True):
        x = torch.randn(8, 32, device=device, requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=again)
            mark()
        (x * 0.5).sum().backward()
        mark()
        with torch.autograd.graph.saved_tensors_hooks(lambda each: each.half(), lambda each: each.float()):
            loss = (layers[0](torch.randn(8, 32, device=device)) * 0.5 / 7).sum()
            mark()
        loss.backward()
        mark()
    return layers


def numbers_in_a_function(mark: Mark, device: str) -> Any:
    """``gumbel_softmax`` divides by a number, which lives from then on, and not from its return on."""
    layer = nn.Linear(32, 10).to(device)
    for hard in (True, False):
        made = F.gumbel_softmax(layer(torch.rand(16, 32, device=device)), tau=0.5, hard=hard)
        mark()
        made.square().mean().backward()
        mark()
        (layer.weight * True).sum().backward()
        mark()
    return layer


class Pictures(Dataset):
    def __init__(self) -> None:
        self.all = torch.randint(0, 256, (12, 20, 20, 3), dtype=torch.uint8)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        x = self.all[place].permute(2, 0, 1).float().div(255)
        x = F.interpolate(x[None], size=(16, 16), mode="bilinear", antialias=True)
        x = (x - torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / 0.25
        return F.conv2d(x, torch.ones(3, 1, 3, 3) / 9, padding=1, groups=3)[0], place % 3


def transforms_of_a_loader(mark: Mark, device: str) -> Any:
    """Ops on data that exists take memory inside, too; a sampler has weights."""
    sampler = WeightedRandomSampler([1.0 if each % 2 else 3.0 for each in range(12)], 8)
    loader = DataLoader(Pictures(), 4, sampler=sampler)
    layer = nn.Linear(768, 3).to(device)
    for _ in range(2):
        for x, y in loader:
            mark()
            F.cross_entropy(layer(x.to(device).flatten(1)), y.to(device)).backward()
            mark()
    for (x,) in DataLoader(TensorDataset(torch.arange(8)), 4, shuffle=True):
        mark()
        del x
    mark()
    return loader, layer


def views_of_known_numbers(mark: Mark, device: str) -> Any:
    order, three = torch.randperm(100), torch.tensor([1, 2, 3])
    kept: list[Any] = [order[place] for place in range(3)]
    mark()
    for each in (
        order.unbind(0),
        order.split(10),
        order.tolist(),
        list(three),
        three.view(3, 1)[1],
        order.view(10, 10)[3].sum(),
    ):
        kept.append(each)
        mark()
    return kept, order


def forward_mode(mark: Mark, device: str) -> Any:
    """Tangents that are zero have no memory until an op needs them."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 2)).to(device)
    x = torch.randn(3, device=device)
    kept: list[Any] = [jacfwd(model)(x)]
    mark()
    kept.append(hessian(lambda each: model(each).sum())(x))
    mark()
    both: Any = jvp(model, (x,), (torch.ones_like(x),))
    made, tangent = both
    mark()
    (made.sum() + tangent.sum()).backward()
    mark()
    return model, kept


def known_masks(mark: Mark, device: str) -> Any:
    """Masks whose values are known say how much they choose."""
    x = torch.rand(2, 8, 4, device=device, requires_grad=True)
    lengths, labels = torch.tensor([3, 1], device=device), torch.full((2, 8), -100, device=device)
    labels[0, 2], labels[1, 3:5] = 5, 7
    mask = torch.arange(8, device=device) < lengths[:, None]
    mark()
    kept: list[Any] = [x[mask], x[labels != -100], x[:, labels[1] == 7], mask.nonzero(), torch.where(mask)]
    mark()
    (kept[0].sum() + kept[1].sum() + kept[2].sum()).backward()
    mark()
    kept.append(torch.masked_select(x, mask[..., None]))
    mark()
    kept[-1].sum().backward()
    mark()
    kept += [torch.repeat_interleave(torch.arange(2, device=device), lengths), torch.equal(lengths, lengths.clone())]
    mark()
    y = torch.rand(2, 8, device=device)
    y[mask] = torch.rand(4, device=device)
    mark()
    y[mask] += 1
    mark()
    kept.append(y[torch.triu(torch.ones(2, 8, device=device, dtype=torch.bool), 1)])
    mark()
    return x, y, labels, mask, kept


def lazy_modules(mark: Mark, device: str) -> Any:
    """A first batch gives parameters and buffers their shapes."""
    features = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten()).to(device)
    head = nn.LazyLinear(10, device=device).double()
    mark()
    average = copy.deepcopy(head)
    with torch.no_grad():
        average(head(torch.zeros(1, 20, device=device, dtype=torch.float64)).new_zeros(1, 20))
    mark()
    average.load_state_dict(head.state_dict())
    optimizer = torch.optim.Adam(head.parameters())
    for _ in range(2):
        wide = features(torch.randn(4, 1, 8, 8, device=device))[:, :20]
        mark()
        head(wide.double()).square().mean().backward()
        mark()
        optimizer.step()
        mark()
    assert isinstance(head, nn.Linear)
    return features, head, average, optimizer


def packed_sequences(mark: Mark, device: str) -> Any:
    """Known lengths decide how much memory a batch without padding takes."""
    kept: list[Any] = []
    for kind, lengths, options in (
        (nn.LSTM, [5, 7, 1, 5], {"batch_first": True, "bidirectional": True, "proj_size": 8}),
        (nn.GRU, [7, 3, 3, 2], {"num_layers": 2, "dropout": 0.1}),
        (nn.RNN, [4, 4], {"batch_first": True}),
    ):
        layer: Any = kind(16, 32, **options).to(device)
        first = options.get("batch_first", False)
        rows = [torch.randn(length, 16, device=device) for length in lengths]
        batch = rnn.pad_sequence(rows, batch_first=first).requires_grad_()
        mark()
        packed = rnn.pack_padded_sequence(batch, torch.tensor(lengths), first, enforce_sorted=False)
        mark()
        out, states = layer(packed)
        mark()
        whole, _ = rnn.pad_packed_sequence(out, first, padding_value=-1, total_length=9)
        mark()
        whole.square().mean().backward()
        mark()
        kept += layer, states, batch, whole, packed
    kept.append(rnn.unpack_sequence(rnn.pack_sequence(rows)))
    mark()
    return kept


SCRIPTS = [
    known_masks,
    scaled_in_a_checkpoint,
    numbers_in_a_function,
    transforms_of_a_loader,
    views_of_known_numbers,
    forward_mode,
    lazy_modules,
    packed_sequences,
]
