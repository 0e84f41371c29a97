"""In-place activated batch norm: what it keeps, what it finds again, and what in-place activations alone do and do not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tinygrad_mem import memory, nn
from tinygrad_mem.errors import ArgumentError, GraphError, ShapeError
from tinygrad_mem.models import resnet
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.techniques import InPlaceABN, inplace_abn

SLOPE = 0.01


def pair(channels: int, inplace: bool = False, **options: Any) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(channels, **options), nn.LeakyReLU(SLOPE, inplace=inplace))


def block(norm: Callable[[int], nn.Module], channels: int = 8) -> nn.Module:
    """Three convolutions, each with a norm and an activation."""
    layers = [m for _ in range(3) for m in (nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm(channels))]
    return nn.Sequential(*layers)


@given(st.integers(1, 6), st.integers(2, 9), st.sampled_from(["float64", "float32"]), st.floats(0.05, 2.0), st.integers(0, 9))
@settings(max_examples=examples(40))
def test_equal_to_the_pair_within_rounding(channels: int, batch: int, dtype: str, slope: float, seed: int):
    """In float64 to 1e-9; in float32 by the rounding of an inverse. Statistics and outputs of training are bit for bit."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, channels, 3, 3)).astype(dtype)
    weight = rng.uniform(0.2, 2, channels) * rng.choice([-1, 1], channels)
    found = []
    for ours in (False, True):
        tm.manual_seed(0)
        if ours:
            layer: Any = InPlaceABN(channels, negative_slope=slope)
        else:
            layer = nn.Sequential(nn.BatchNorm2d(channels), nn.LeakyReLU(slope))
        layer = layer.to(getattr(tm, dtype))
        norm = layer if ours else layer[0]
        with tm.no_grad():
            norm.weight.copy_(tm.tensor(weight))
            norm.bias.copy_(tm.tensor(np.linspace(-1, 1, channels)))
        leaf = tm.tensor(x, requires_grad=True)
        y = layer(leaf * 1.0)
        exact = [
            y.detach().numpy().copy(),
            norm.running_mean.numpy(),
            norm.running_var.numpy(),
            norm.num_batches_tracked.numpy(),
        ]
        (y * tm.tensor(np.arange(y.numel()).reshape(y.shape) % 7 - 2.5).to(y.dtype)).sum().backward()
        close = [leaf.grad.numpy(), norm.weight.grad.numpy(), norm.bias.grad.numpy()]
        found.append((exact, close))
    training.assert_identical(found[1][0], found[0][0])
    tolerance = 1e-9 if dtype == "float64" else 3e-4
    for a, b in zip(found[1][1], found[0][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(np.abs(b).max())))


def test_evaluation_is_the_pair_with_given_statistics():
    layer, plain = InPlaceABN(3).double(), nn.BatchNorm2d(3).double()
    plain.load_state_dict(layer.state_dict())
    rng = np.random.default_rng(0)
    x = tm.tensor(rng.standard_normal((4, 3, 2, 2)))
    for mode in (layer, plain):
        mode.running_mean.copy_(tm.tensor([0.5, -1.0, 0.0]))
        mode.eval()
    expected = nn.functional.leaky_relu(plain(x), SLOPE)
    np.testing.assert_array_equal(layer(x.clone()).detach().numpy(), expected.detach().numpy())
    assert "negative_slope=0.01" in repr(layer)


def test_small_weights_are_bounded_so_that_they_can_be_inverted():
    """|weight| >= eps: a weight of 0 takes eps, with the sign that it has; its gradient lets it grow again."""
    x = tm.tensor(np.random.default_rng(0).standard_normal((8, 2)), requires_grad=True)
    weight = tm.tensor([0.0, -0.0], dtype=tm.float64, requires_grad=True)
    bias = tm.tensor([0.5, -0.5], dtype=tm.float64, requires_grad=True)
    y = inplace_abn(x * 1.0, None, None, weight, bias, True, eps=1e-3)
    expected = 1e-3 * (x - x.mean(0)) / (x.var(0, correction=0) + 1e-3).sqrt() * tm.tensor([1.0, -1.0]) + bias
    np.testing.assert_allclose(y.detach().numpy(), nn.functional.leaky_relu(expected, SLOPE).detach().numpy(), rtol=1e-12)
    (y * tm.arange(16, dtype=tm.float64).reshape(8, 2)).sum().backward()
    assert np.isfinite(x.grad.numpy()).all()
    assert (np.abs(weight.grad.numpy()) > 0.01).all()


# --- bytes


def saved_arrays(model: nn.Module, x: Any) -> list[int]:
    """Bytes of each storage of an activation's size that the graph keeps."""
    return sorted(size for size in training.saved_storages(model(x).sum()).values() if size >= x.nbytes)


def test_bytes_a_residual_block_keeps_three_arrays_instead_of_six():
    x = tm.ones(4, 8, 16, 16)
    own = training.rounded(x)
    x = (x.requires_grad_() * 1.0).detach().requires_grad_() * 1.0  # made by an op, as in the middle of a network
    for inplace in (False, True):
        kept = saved_arrays(training.Residual(block(functools.partial(pair, inplace=inplace))), x)
        assert kept == [own] * 7, "the block's input and, of each pair, the norm's input and the activation's output"
    assert saved_arrays(training.Residual(block(InPlaceABN)), x) == [own] * 4, "the block's input and each output"


def deep(norm: Callable[[], nn.Module], depth: int) -> None:
    model = nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(64, 64, bias=False), norm())])
    model(tm.ones(512, 64)).sum().backward()


def plain_pair() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(64), nn.LeakyReLU(SLOPE, inplace=True))


def test_peak_grows_with_depth_by_one_array_a_pair_less():
    """Forward and backward of 10 and of 30 pairs behind linear layers: meta and cpu, by formula."""
    a, mean = 512 * 64 * 4, 512
    plain, ours = (
        training.assert_predicted(lambda n=norm: deep(n, 30)).peak - training.assert_predicted(lambda n=norm: deep(n, 10)).peak
        for norm in (plain_pair, lambda: InPlaceABN(64))
    )
    assert plain - ours == 20 * (a + mean)
    weights = 64 * 64 * 4 + 4 * 512 + 512  # a linear layer's, a norm's two and its statistics, the count of batches
    assert ours == 20 * (a + weights + 512), "the output, 1 number a channel, and parameters"


def activated_in_place(model: nn.Module) -> nn.Module:
    """Each batch norm before a ReLU in a Sequential becomes the pair in place, the ReLU nothing."""
    for parent in model.modules():
        names = list(parent._modules)
        for first, second in itertools.pairwise(names):
            norm, relu = parent._modules[first], parent._modules[second]
            if isinstance(norm, nn.BatchNorm2d) and isinstance(relu, nn.ReLU):
                parent._modules[first], parent._modules[second] = InPlaceABN(norm.num_features), nn.Identity()
    return model


class Activated(resnet.Bottleneck):
    """Whose first two norms are pairs; the third's ReLU comes after the shortcut."""

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        out = self.bn3(self.conv3(self.bn2(self.conv2(self.bn1(self.conv1(x))))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


def activated_resnet(model: Any) -> nn.Module:
    """The pairs of a ResNet's start and of its blocks."""
    model.bn1, model.relu = InPlaceABN(64), nn.Identity()
    for block in model.modules():
        if isinstance(block, resnet.Bottleneck):
            block.__class__ = Activated
            block.bn1, block.bn2 = (InPlaceABN(norm.num_features) for norm in (block.bn1, block.bn2))
    return model


def pairs_of(model: nn.Module, name: str) -> list[nn.Module]:
    """The norms that an activation follows."""
    chosen = [m for path, m in model.named_modules() if path.endswith(("bn1", "bn2"))]
    return chosen if name == "resnet50" else [m for m in model.modules() if isinstance(m, (nn.BatchNorm2d, InPlaceABN))]


@pytest.mark.parametrize("name", ["vgg16_bn", "unet", "resnet50"])
def test_bytes_of_the_big_networks(name: str):
    """What is saved falls by the inputs of all norms, to the byte; running statistics and a GPT without such pairs stay."""
    named, activated = NETWORKS[name], activated_resnet if name == "resnet50" else activated_in_place

    def run(change: Callable, found: list) -> None:
        model = change(named.make())
        sizes: list = []
        for m in pairs_of(model, name):
            m.register_forward_pre_hook(lambda _, x: sizes.append(training.rounded(x[0])))
        loss = model(tm.randn(8, *named.sample)).square().mean()
        found += [sum(training.saved_storages(loss).values()), sum(sizes), len(sizes)]
        loss.backward()

    plain: list = []
    ours: list = []
    before = memory.predict(run, lambda m: m, plain).peak
    after = memory.predict(run, activated, ours).peak
    means = ours[2] * 512  # of each pair, the mean is not saved either... and its channels fit one block or more
    assert plain[1] == ours[1]
    assert plain[0] - ours[0] >= plain[1] + means
    assert plain[0] - ours[0] <= plain[1] + 8 * means
    assert after < before


def test_in_place_activations_alone_save_transient_bytes_and_none_of_what_is_kept():
    """The tip "use inplace=True" measured: the array between norm and activation is gone sooner; it was never saved."""

    def run(inplace: bool, found: list) -> None:
        x = tm.ones(4, 8, 16, 16, requires_grad=True)
        y = pair(8, inplace)(x)
        found.append(sum(training.saved_storages(y.sum()).values()))

    for where in (False, True):
        kept: list = []
        ours, plain = (memory.predict(run, w, kept).peak for w in (where, False))
        assert kept[0] == kept[1]
        a = 4 * 8 * 16 * 16 * 4
        assert plain - ours == (a - 512 if where else 0), "the temporary array; at the new peak there is the sum"


@pytest.mark.parametrize("layer", [nn.ReLU, nn.LeakyReLU, nn.Dropout, nn.ELU])
def test_other_layers_in_place_save_one_transient_array(layer: type):
    """But for those that save what they write over (ELU its input): they keep a copy, and nothing is saved."""

    def run(inplace: bool, found: list) -> None:
        y = layer(inplace=inplace)(nn.Linear(64, 64)(tm.ones(128, 64)))
        found.append(sum(training.saved_storages(y.sum()).values()))

    kept: list = []
    plain, ours = (training.assert_predicted(lambda i=i: run(i, kept)).peak for i in (False, True))
    assert plain - ours == (0 if layer is nn.ELU else 128 * 64 * 4 - 512)
    assert len(set(kept)) == 1, "what is kept is the same"


def test_never_above_pytorch_with_the_same_technique():
    """PyTorch has no such pair: its own with an in-place activation is the bound."""

    def theirs() -> Any:
        make = torch.nn
        three = (lambda: make.Linear(64, 64, bias=False), lambda: make.BatchNorm1d(64), lambda: make.LeakyReLU(SLOPE, True))
        model = make.Sequential(*[m() for _ in range(3) for m in three])
        model(torch.ones(512, 64)).sum().backward()
        return model

    bound, found = pytorch_peak(theirs), training.requested(memory.predict(deep, lambda: InPlaceABN(64), 3))
    assert 0.3 * bound <= found <= 0.8 * bound, (found, bound)


# --- bad input


def test_values_that_somebody_needs_are_an_error_and_not_a_wrong_gradient():
    x = tm.ones(4, 3, requires_grad=True)
    y = inplace_abn((x * 2.0).exp(), None, None, training=True)
    with pytest.raises(GraphError, match=r"modified by an inplace operation: Exp saved .* InPlaceABN has written to it"):
        y.sum().backward()
    with pytest.raises(GraphError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        inplace_abn(x, None, None, training=True)


def test_other_bad_input():
    x = tm.ones(4, 3)
    for slope in (0.0, -0.1):
        with pytest.raises(ArgumentError, match="negative_slope must be above 0, so that its input can be found again"):
            inplace_abn(x, None, None, training=True, negative_slope=slope)
    with pytest.raises(ShapeError, match="inplace_abn: weight should contain 3 elements not 2"):
        inplace_abn(x, None, None, tm.ones(2), training=True)
    with pytest.raises(ShapeError, match="inplace_abn: expected at least 2 dimensions"):
        inplace_abn(tm.ones(3), None, None, training=True)
    with pytest.raises(ArgumentError, match="running_mean and running_var to be defined when training=False"):
        inplace_abn(x, None, None)
    assert x.tolist() == tm.ones(4, 3).tolist(), "what was refused has written nothing"
