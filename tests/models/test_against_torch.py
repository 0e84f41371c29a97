"""The same source, with only its imports changed, in PyTorch: same keys, shapes, counts, and the same losses."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.networks import under_pytorch
from tests.profiles import examples, some
from tinygrad_mem.devices import device

NETWORKS = [("mlp", "MLP"), ("lenet", "LeNet"), ("digits", "DigitsCNN")]
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"resnet{6 * n + 2}": ("CifarResNet", {"blocks": n}) for n in (3, 5, 7, 9, 18, 200)},
    **{f"resnet{n}": ("resnet", {"depth": n}) for n in (18, 34, 50, 101, 152)},
    **{f"vgg{n}{bn}": ("VGG", {"depth": n, "batch_norm": bool(bn)}) for n in (11, 13, 16, 19) for bn in ("", "_bn")},
    **{f"vgg{n}_bn_cifar": ("CifarVGG", {"depth": n, "batch_norm": True}) for n in (11, 16)},
    "vgg16_cifar": ("CifarVGG", {"depth": 16, "batch_norm": False}),
}
"""Name -> the function that makes it, and its arguments."""
NETWORKS += [("vgg" if name.startswith("vgg") else "resnet", name) for name in SIZES]
NETWORKS += [("resnet", "resnet1001"), ("mobilenet", "mobilenet_v2"), ("squeezenet", "squeezenet")]
NETWORKS += [("densenet", "densenet121"), ("unet", "unet"), ("gpt", "gpt"), ("lstm", "LSTMLanguageModel"), ("bert", "bert")]
TRIED = [each for each in NETWORKS if each[1] != "resnet1202"]
COUNTS = {
    "mobilenet_v2": 3_504_872,
    "squeezenet": 1_235_496,
    "densenet121": 7_978_856,
    "unet": 31_037_698,
    "gpt": 124_439_808,
    "bert": 109_512_762,
    "MLP": 1_863_690,
    "LeNet": 61_706,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vgg11": 132_863_336,
    "vgg13_bn": 133_053_736,
    "vgg16": 138_357_544,
    "vgg16_bn": 138_365_992,
    "vgg19": 143_667_240,
    "vgg16_bn_cifar": 14_724_042,
    "resnet20": 272_474,
}


def both(module: str, name: str, **arguments: Any) -> tuple[Any, Any]:
    function, sizes = SIZES.get(name, (name, {}))
    frameworks = import_module(f"tinygrad_mem.models.{module}"), under_pytorch(module)
    ours, theirs = (getattr(each, function)(**sizes, **arguments) for each in frameworks)
    return ours, theirs


def on_meta(module: str, name: str) -> tuple[Any, Any]:
    with tm.device("meta"), torch.device("meta"):
        return both(module, name)


@pytest.mark.parametrize(("module", "name"), TRIED, ids=lambda n: n)
def test_same_keys_shapes_and_text(module: str, name: str):
    before = device("cpu").pool.used_bytes()
    mine, other = on_meta(module, name)
    found = {k: tuple(v.shape) for k, v in mine.state_dict().items()}
    assert found == {k: tuple(v.shape) for k, v in other.state_dict().items()}
    assert list(found) == list(other.state_dict())
    assert repr(mine) == repr(other)
    count = sum(p.numel() for p in mine.parameters())
    assert count == sum(p.numel() for p in other.parameters())
    assert count == COUNTS.get(name, count)
    assert device("cpu").pool.used_bytes() == before


def test_the_deepest():
    with tm.device("meta"):
        net = import_module("tinygrad_mem.models.resnet").resnet1202()
    assert sum(p.numel() for p in net.parameters()) == 19_424_026
    assert tuple(net(tm.empty(1, 3, 32, 32, device="meta")).shape) == (1, 10)


SHAPES = {
    "MLP": (784,),
    "LeNet": (1, 28, 28),
    "DigitsCNN": (1, 8, 8),
    "unet": (3, 64, 96),
    "gpt": (64,),
    "bert": (64,),
    "LSTMLanguageModel": (64,),
}
OUT = {"unet": (2, 64, 96), "gpt": (64, 50257), "bert": (64, 30522), "LSTMLanguageModel": (64, 128)}


@pytest.mark.parametrize(("module", "name"), some(TRIED, [n for n in TRIED if n[1] != "resnet1001"]), ids=lambda n: n)
def test_forward_and_backward_on_meta(module: str, name: str):
    small = name.endswith("_cifar") or name in ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110", "resnet1001")
    shape = SHAPES.get(name, (3, 32, 32) if small else (3, 224, 224))
    with tm.device("meta"), torch.device("meta"):
        net = both(module, name)[0]
        out = net(tm.zeros(2, *shape, dtype=tm.int64 if module in ("gpt", "bert", "lstm") else tm.float32))
    assert tuple(out.shape) == (2, *OUT.get(name, (10,) if small or name in SHAPES else (1000,)))
    out.sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in net.parameters())


TRAINED = [
    ("mlp", "MLP", {"sizes": (20, 30, 10)}, (8, 20)),
    ("lenet", "LeNet", {}, (8, 1, 28, 28)),
    ("digits", "DigitsCNN", {"width": 8}, (8, 1, 8, 8)),
    ("resnet", "resnet20", {}, (8, 3, 8, 8)),
    ("resnet", "CifarResNet", {"blocks": 1}, (4, 3, 32, 32)),
    ("vgg", "vgg11_bn_cifar", {}, (4, 3, 32, 32)),
    ("resnet", "PreActResNet", {"blocks": 1}, (4, 3, 16, 16)),
]


def losses(framework: Any, model: Any, x: np.ndarray, y: np.ndarray, steps: int) -> list[float]:
    """Of ``steps`` steps of SGD with momentum on one batch."""
    rule = framework.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    inputs, labels = framework.tensor(x), framework.tensor(y)
    found = []
    for _ in range(steps):
        loss = framework.nn.functional.cross_entropy(model(inputs), labels)
        rule.zero_grad()
        loss.backward()
        rule.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(
    ("module", "name", "arguments", "shape"), TRAINED, ids=[f"{n}{a or ''}".replace(" ", "") for _, n, a, _ in TRAINED]
)
def test_same_losses_over_several_steps(module: str, name: str, arguments: dict, shape: tuple):
    mine, other = both(module, name, **arguments)
    for net in (mine, other):
        net.double()
        for m in net.modules():
            if type(m).__name__ == "Dropout":
                m.p = 0.0
    other.load_state_dict({k: torch.tensor(v.detach().numpy()) for k, v in mine.state_dict().items()})
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(shape), rng.integers(0, 10, shape[0])
    steps = examples(5 if name != "vgg11_bn_cifar" else 2)
    found, expected = losses(tm, mine, x, y, steps), losses(torch, other, x, y, steps)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[-1] < found[0]
    for (key, a), b in zip(mine.state_dict().items(), other.state_dict().values(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-7, err_msg=key)


SMALL = [
    ("gpt", "GPT", {"layers": 2, "heads": 2, "width": 16, "context": 32, "vocabulary": 50}, (2, 20)),
    (
        "bert",
        "MaskedLanguageModel",
        {"layers": 2, "heads": 2, "width": 16, "context": 32, "vocabulary": 50, "dropout": 0.0},
        (2, 20),
    ),
    ("mobilenet", "MobileNetV2", {}, (2, 3, 64, 64)),
    ("squeezenet", "SqueezeNet", {}, (2, 3, 64, 64)),
    ("densenet", "DenseNet", {"layers": (2, 2)}, (2, 3, 64, 64)),
    ("unet", "UNet", {"width": 4, "depth": 2}, (2, 3, 16, 16)),
]


@pytest.mark.parametrize(("module", "name", "arguments", "shape"), SMALL, ids=[row[1] for row in SMALL])
def test_same_outputs_and_gradients(module: str, name: str, arguments: dict, shape: tuple):
    mine, other = both(module, name, **arguments)
    for net in (mine, other):
        net.double()
        for m in net.modules():
            if type(m).__name__ == "Dropout":
                m.p = 0.0
    other.load_state_dict({k: torch.tensor(v.detach().numpy()) for k, v in mine.state_dict().items()})
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, shape) if name in ("GPT", "MaskedLanguageModel") else rng.standard_normal(shape)
    found, expected = mine(tm.tensor(x)), other(torch.tensor(x))
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-8, atol=1e-10)
    found.square().mean().backward()
    expected.square().mean().backward()
    for (key, p), q in zip(mine.named_parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-6, atol=1e-8, err_msg=key)
