"""A PyTorch network becomes ours: every layer, classes of the user's, shared memory; what cannot is said all at once."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tinygrad_mem as tm
from tests.case import flat
from tests.networks import under_pytorch
from tests.nn.rows import ROWS, Row
from tests.profiles import share_of_each
from tinygrad_mem import dtypes, from_torch, memory
from tinygrad_mem.errors import NotOfferedError


def outputs(result: Any) -> list[np.ndarray]:
    return [part.detach().numpy() for part in flat(result)]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # PyTorch, of layers that it made itself
@pytest.mark.parametrize("row", share_of_each(ROWS, 2, lambda row: row.name), ids=str)
def test_every_layer(row: Row):
    torch.manual_seed(0)
    theirs = row.make(nn, torch.tensor).double().eval()
    ours = from_torch(theirs)
    assert type(ours) is getattr(tm.nn, row.name)
    arrays = row.inputs(np.random.default_rng(0))
    found = outputs(ours(*map(tm.tensor, arrays)))
    for mine, other in zip(found, outputs(theirs(*map(torch.tensor, arrays))), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=row.tolerance)
    assert list(ours.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize(
    ("module", "name", "shape"),
    [("resnet", "resnet50", (2, 3, 64, 64)), ("densenet", "densenet121", (1, 3, 64, 64)), ("unet", "unet", (1, 3, 32, 32))],
)
def test_published_networks(module: str, name: str, shape: tuple):
    theirs = getattr(under_pytorch(module), name)().eval()
    ours = from_torch(theirs)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    np.testing.assert_allclose(outputs(ours(tm.tensor(x)))[0], outputs(theirs(torch.tensor(x)))[0], rtol=1e-3, atol=1e-4)
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert not ours.training


def doubled(x: torch.Tensor) -> torch.Tensor:
    """A helper of the module that calls itself, and PyTorch."""
    return x if x.ndim == 0 else torch.cat([x, F.relu(x)], 1)


class Base(nn.Module):
    scale = 3

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = nn.Parameter(torch.randn(5, 5))
        self.again = nn.Linear(5, 5)
        self.again.weight = self.tied.weight
        self.many = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.act = F.gelu
        self.sizes = {"a": [1, 2]}
        self.register_buffer("ramp", torch.arange(5.0), persistent=False)
        self.gain = nn.Parameter(torch.ones(5), requires_grad=False)

    @property
    def offset(self) -> torch.Tensor:
        return torch.full((5,), float(self.scale))

    @staticmethod
    def halve(x: torch.Tensor) -> torch.Tensor:
        return torch.div(x, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.first(x)) + self.ramp
        for layer in self.many:
            x = torch.tanh(layer(x)) * self.gain
        return self.again(self.tied(x))


class Net(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.halve(super().forward(x)) + self.offset.to(x.device)
        return sum(part.mean(dim=1) for part in torch.chunk(doubled(y), 2, dim=1))


def test_a_class_of_the_users_trains_alike():
    torch.manual_seed(0)
    theirs = Net().double()
    ours = from_torch(theirs)
    assert ours.tied.weight is ours.again.weight
    assert ours.sizes == {"a": [1, 2]}
    assert isinstance(ours, tm.nn.Module)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = np.random.default_rng(0).standard_normal((3, 4))
    np.testing.assert_allclose(outputs(ours(tm.tensor(x)))[0], outputs(theirs(torch.tensor(x)))[0], rtol=1e-10)
    ours(tm.tensor(x)).sum().backward()
    theirs(torch.tensor(x)).sum().backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert mine.requires_grad == other.requires_grad
        if other.grad is not None:
            np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


def test_memory_is_shared_on_the_cpu_and_absent_on_meta():
    theirs = nn.Linear(3, 2)
    ours = from_torch(theirs)
    with torch.no_grad():
        theirs.weight[0, 0] = 42.0
    assert ours.weight[0, 0].item() == 42.0
    assert from_torch(theirs, device="meta").weight.device.type == "meta"
    with torch.device("meta"):
        huge = nn.Linear(1 << 20, 1 << 20)
    assert from_torch(huge).weight.shape == (1 << 20, 1 << 20)


def test_shared_memory_is_counted_while_our_network_has_it():
    pool = tm.device("cpu").pool
    theirs = nn.Linear(300, 200)
    before = pool.used_bytes()
    ours = from_torch(theirs)
    assert pool.used_bytes() - before == -(-300 * 200 * 4 // 512) * 512 + 1024
    assert ours.weight.device.sizes(ours.weight.array)[0] == 300 * 200 * 4
    kept = ours.weight.detach().numpy()
    del ours
    assert pool.used_bytes() - before == -(-300 * 200 * 4 // 512) * 512, "an array of NumPy's keeps the block"
    del kept
    assert pool.used_bytes() == before
    again = tm.ones(200, 300)  # what is free is the pool's own
    again.zero_()
    assert theirs.weight.abs().sum().item() > 0


def test_tensors_of_every_dtype_are_converted():
    network = nn.Module()
    names = [dtype.name for dtype in dtypes.ALL]
    for name in names:
        network.register_buffer(f"in_{name}", torch.ones(2, dtype=getattr(torch, name)))
    assert [buffer.dtype.name for buffer in from_torch(network).buffers()] == names


def test_what_is_not_contiguous_is_copied():
    theirs = nn.Linear(3, 2)
    theirs.weight = nn.Parameter(theirs.weight.detach().t())
    theirs.register_buffer("wide", torch.arange(3.0).expand(4, 3))
    ours = from_torch(theirs)
    assert ours.weight.tolist() == theirs.weight.tolist()
    assert ours.wide.tolist() == theirs.wide.tolist()


def test_what_is_converted_is_left_as_it_was():
    theirs = nn.Transformer(4, 2, 1, 1, 8, batch_first=True)
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    from_torch(theirs)
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())


def test_a_pytorch_users_own_network_is_predicted():
    def run() -> None:
        with torch.device("meta"):
            theirs = under_pytorch("vgg").vgg16()
        model = from_torch(theirs)
        tm.nn.functional.cross_entropy(model(tm.randn(2, 3, 224, 224)), tm.randint(0, 1000, (2,))).backward()

    from tinygrad_mem.models.vgg import vgg16

    def ours() -> None:
        model = vgg16()
        tm.nn.functional.cross_entropy(model(tm.randn(2, 3, 224, 224)), tm.randint(0, 1000, (2,))).backward()

    assert memory.predict(run).peak == memory.predict(ours).peak


def test_all_that_cannot_be_converted_is_said_at_once():
    model = nn.Sequential(nn.LSTM(3, 3, proj_size=2), nn.Linear(3, 3), nn.Sequential(nn.MultiMarginLoss()))
    model[1].weight = nn.Parameter(model[1].weight.detach().to(torch.float8_e5m2), requires_grad=False)
    model[1].register_forward_hook(lambda *_: None)
    with pytest.raises(NotOfferedError) as caught:
        from_torch(model)
    text = str(caught.value)
    for line in (
        "0: its projections (proj_size): there are none here",
        "1: its hooks",
        "1.weight: there is no float8_e5m2 here",
        "2.0: there is no MultiMarginLoss",
    ):
        assert line in text


def test_a_layer_of_a_closure_that_cannot_be_converted_is_said_too():
    """It was a bare AssertionError."""
    layers = [nn.MultiMarginLoss()]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

    with pytest.raises(NotOfferedError, match=r"layers\.0: there is no MultiMarginLoss here"):
        from_torch(Net())


def test_refusals(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, found Linear"):
        from_torch(tm.nn.Linear(2, 2))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"from_torch needs torch, which is not installed: pip install torch"):
        from_torch(tm.nn.Linear(2, 2))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})
        self.me = [self]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(row * x for row in self.rows) + self.named["a"]


def test_lists_of_parameters_and_objects_that_refer_to_themselves():
    theirs = Listed()
    ours = from_torch(theirs)
    assert ours.me[0] is ours
    assert ours(tm.ones(3)).tolist() == theirs(torch.ones(3)).tolist() == [4.0, 4.0, 4.0]
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]


def test_a_network_made_again_by_its_own_code_is_ours():
    class Grown(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layer, self.width = nn.Linear(width, width), width

        def wider(self) -> nn.Module:
            return type(self)(2 * self.width)

    made = from_torch(Grown(2)).wider()
    assert isinstance(made, tm.nn.Module)
    assert made.layer.weight.shape == (4, 4)
    assert isinstance(made.layer.weight, tm.nn.Parameter)
