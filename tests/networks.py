"""The five networks that we are compared on: the same source, run on our engine and on PyTorch."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tinygrad_mem as tm


def under_pytorch(module: str) -> types.ModuleType:
    """The source of ``tinygrad_mem.models.MODULE`` run with only its imports changed to PyTorch's."""
    spec = util.find_spec(f"tinygrad_mem.models.{module}")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    source = re.sub(r"^import tinygrad_mem as tm$", "import torch as tm", source, flags=re.M)
    source = re.sub(r"^from tinygrad_mem import", "from torch import", source, flags=re.M)
    source = re.sub(r"^from tinygrad_mem\.", "from torch.", source, flags=re.M)
    source = re.sub(r"^from \.\. import", "from torch import", source, flags=re.M)
    source = re.sub(r"^from \.\.(\w+)", r"from torch.\1", source, flags=re.M)
    found = types.ModuleType(f"pytorch_{module}")
    exec(compile(source, spec.origin, "exec"), found.__dict__)
    return found


@dataclass(frozen=True)
class Workload:
    """One training step: a network by module and name, its input, its batch, its optimizer.

    Attributes:
        published: PyTorch's peak for two such steps, in bytes, as measured on another machine; ours is measured again.
        tokens: inputs are whole numbers below this, and so is what each position should give.
    """

    name: str
    module: str
    network: str
    arguments: dict[str, Any]
    shape: tuple[int, ...]
    adam: bool
    published: int = 0
    tokens: int = 0

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        if self.tokens:
            return rng.integers(0, self.tokens, self.shape), rng.integers(0, self.tokens, self.shape)
        return rng.standard_normal(self.shape, dtype=np.float32), rng.integers(0, 10, self.shape[0])

    def build(self, framework: Any, device: str = "cpu") -> Step:
        """The model, its optimizer and one batch, made in the order in which PyTorch users make them."""
        models = under_pytorch(self.module) if framework is torch else import_module(f"tinygrad_mem.models.{self.module}")
        with framework.device(device):
            model = getattr(models, self.network)(**self.arguments)
        rule = framework.optim.Adam if self.adam else framework.optim.SGD
        optimizer = rule(model.parameters(), **({"lr": 1e-4} if self.adam else {"lr": 0.001, "momentum": 0.9}))
        x, y = self.data()
        return Step(framework, model, optimizer, framework.tensor(x, device=device), framework.tensor(y, device=device))


@dataclass
class Step:
    """A training step that can be called: zero the gradients, forward, backward, update."""

    framework: Any
    model: Any
    optimizer: Any
    x: Any
    y: Any

    def __call__(self) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss

    def loss(self) -> Any:
        """Forward."""
        output = self.model(self.x)
        if self.y.ndim == 2:  # a class for each token
            return self.framework.nn.functional.cross_entropy(output.flatten(0, 1), self.y.flatten())
        return self.framework.nn.functional.cross_entropy(output, self.y)

    def copy_weights_to(self, other: Step) -> None:
        """Give ``other`` (of any framework) this step's parameters and buffers."""
        state = {k: other.framework.tensor(v.detach().cpu().numpy()) for k, v in self.model.state_dict().items()}
        other.model.load_state_dict(state)


WORKLOADS = [
    Workload("MLP", "mlp", "MLP", {}, (256, 784), True, 39_016_648),
    Workload("LeNet", "lenet", "LeNet", {}, (128, 1, 28, 28), False, 9_997_416),
    Workload("ResNet-20", "resnet", "resnet20", {}, (64, 3, 32, 32), False, 106_045_992),
    Workload("VGG16-BN 32x32", "vgg", "CifarVGG", {}, (32, 3, 32, 32), False, 253_016_040),
    Workload("VGG16 224x224", "vgg", "vgg16", {}, (4, 3, 224, 224), False, 1_947_131_144),
]


MORE = [
    Workload("ResNet-50 224x224", "resnet", "resnet50", {}, (4, 3, 224, 224), False),
    Workload("ResNet-1001 32x32", "resnet", "resnet1001", {}, (4, 3, 32, 32), False),
    Workload("MobileNetV2 224x224", "mobilenet", "mobilenet_v2", {}, (4, 3, 224, 224), False),
    Workload("DenseNet-121 224x224", "densenet", "densenet121", {}, (4, 3, 224, 224), False),
    Workload("SqueezeNet 224x224", "squeezenet", "squeezenet", {}, (4, 3, 224, 224), False),
    Workload("LSTM of characters, 64 steps", "lstm", "LSTMLanguageModel", {}, (32, 64), True, tokens=128),
    Workload(
        "transformer of 2 layers, 128 tokens",
        "gpt",
        "GPT",
        {"layers": 2, "heads": 8, "width": 256, "context": 128, "vocabulary": 1000},
        (8, 128),
        True,
        tokens=1000,
    ),
    Workload("GPT-2 small, 256 tokens", "gpt", "gpt", {}, (2, 256), True, tokens=50257),
]
"""Networks whose bytes are compared too (``python -m tests.benchmarks --memory``); no goal was set for them."""


def our_peak(workload: Workload, device: str = "cpu", steps: int = 2) -> int:
    """Our peak in bytes over ``steps`` steps, from the model's construction on, each block rounded up to 512."""
    from tinygrad_mem import memory

    older = tm.device(device).pool.used_bytes()
    with memory.track(device) as track:
        step = workload.build(tm, device)
        for _ in range(steps):
            step()
    return track.peak - older


def run_under(framework: Any, workload: Workload, steps: int = 2) -> Callable[[], Any]:
    """A function that builds the workload and runs it, keeping the model alive."""

    def run() -> Any:
        step = workload.build(framework)
        for _ in range(steps):
            loss = step()
        return step, loss

    return run


SEVEN = [*WORKLOADS, *(each for each in MORE if each.module == "lstm" or each.network == "GPT")]
"""Networks whose times are compared (``python -m tests.benchmarks``)."""
