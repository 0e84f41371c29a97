"""Four networks, made small, that either framework trains with a technique by the same lines; the source is the same too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

import tinygrad_mem as tm
from tests.networks import Workload, under_pytorch
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tinygrad_mem import memory, techniques

SMALL = {
    "vgg16": Workload("VGG16", "vgg", "CifarVGG", {}, (16, 3, 32, 32), True),
    "resnet50": Workload("ResNet-50", "resnet", "resnet50", {}, (8, 3, 64, 64), True),
    "unet": Workload("U-Net", "unet", "UNet", {"width": 16}, (4, 3, 128, 128), True),
    "gpt": Workload(
        "GPT",
        "gpt",
        "GPT",
        {"layers": 4, "heads": 4, "width": 64, "context": 64, "vocabulary": 500},
        (4, 64),
        True,
        tokens=500,
    ),
}
PARTS = 2  # micro-batches, where the batch is accumulated


class Training:
    """A network and its optimizer in one of the frameworks, and its step, of which a technique changes something."""

    def __init__(self, framework: Any, workload: Workload) -> None:
        self.framework, ours = framework, framework is tm
        models = import_module(f"tinygrad_mem.models.{workload.module}") if ours else under_pytorch(workload.module)
        self.model = getattr(models, workload.network)(**workload.arguments)
        self.optimizer = framework.optim.SGD(self.model.parameters(), lr=1e-4)
        size, shape = workload.tokens, workload.shape
        self.x = framework.randint(0, size, shape) if size else framework.randn(*shape)
        self.call: Callable[[Any], Any] = self.model

    def backward(self) -> None:
        self.call(self.x).square().mean().backward()

    def step(self) -> None:
        """Forward, backward, update; gradients are freed at once."""
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def wrap(self, chosen: Callable[[Any], bool], how: Callable[..., Any]) -> None:
        """Let every chosen module be called by ``how(module, x)``."""
        nn = self.framework.nn

        class Wrapped(nn.Module):
            def __init__(self, inner: Any) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Any) -> Any:
                return how(self.inner, x)

        for parent in list(self.model.modules()):
            for name, child in parent._modules.items():
                if chosen(child):
                    parent._modules[name] = Wrapped(child)


def plain(_: Training) -> None:
    """Nothing changes."""


def is_chain(module: Any) -> bool:
    return type(module).__name__ == "Sequential" and len(module) > 2


def is_block(module: Any) -> bool:
    if type(module).__name__ == "Sequential":
        return len(module) > 2 and type(module[0]).__name__ == "Conv2d"
    return type(module).__name__ in ("Bottleneck", "Block")


def every_block(it: Training) -> None:
    it.wrap(is_block, partial(it.framework.utils.checkpoint.checkpoint, use_reentrant=False))


def whole(it: Training) -> None:
    it.call = partial(it.framework.utils.checkpoint.checkpoint, it.model, use_reentrant=False)


def sequential(it: Training) -> None:
    tool = it.framework.utils.checkpoint
    it.wrap(is_chain, lambda chain, x: tool.checkpoint_sequential(chain, 2 if len(chain) == 6 else 3, x, use_reentrant=False))


def out_of_place(it: Training) -> None:
    for module in it.model.modules():
        if type(module).__name__ == "ReLU":
            module.inplace = False


def accumulated(it: Training) -> None:
    if it.framework is tm:
        window = techniques.accumulate(it.model, it.optimizer, PARTS)
        it.step = lambda: window.split(it.x, it.x, lambda y, _: y.square().mean())  # type: ignore[method-assign]
        return

    def step() -> None:
        for part in it.x.chunk(PARTS):
            (it.model(part).square().mean() / PARTS).backward()
        it.optimizer.step()
        it.optimizer.zero_grad()

    it.step = step  # type: ignore[method-assign]


def in_backward(it: Training) -> None:
    """PyTorch's recipe is an optimizer a parameter, stepped by a hook."""
    if it.framework is tm:
        techniques.optimizer_in_backward(it.optimizer)
    else:
        rules = {p: torch.optim.SGD([p], lr=1e-4) for p in it.model.parameters()}

        def hook(p: Any) -> None:
            rules[p].step()
            rules[p].zero_grad()

        for p in rules:
            p.register_post_accumulate_grad_hook(hook)
    it.step = it.backward  # type: ignore[method-assign]


def offloaded(it: Training) -> None:
    """Copies on the host count with the rest: PyTorch's ``save_on_cpu`` makes none of what is there, so it is told to."""
    copies = [lambda t: t.clone(), lambda t: t]
    around = techniques.save_on_cpu if it.framework is tm else partial(torch.autograd.graph.saved_tensors_hooks, *copies)

    def call(x: Any) -> Any:
        with around():
            return it.model(x).square()

    it.call = call


def peaks(network: str, technique: Callable[[Training], None], steps: int = 1) -> tuple[int, int]:
    """Ours and PyTorch's, in bytes asked for: from the model's making to the end of the last step."""
    hosts: list[Any] = []

    def run(framework: Any) -> Any:
        it = Training(framework, SMALL[network])
        technique(it)
        for _ in range(steps):
            it.step()
        if framework is tm:
            hosts.append(it.x.device.pool.host())
        return it

    def ours() -> None:
        run(tm)

    found = training.requested(memory.predict(ours)) + hosts[0].peak_used
    return found, pytorch_peak(lambda: run(torch))
