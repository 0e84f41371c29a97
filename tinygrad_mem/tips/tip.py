"""A tip: a training step before it and after it, each a function of a few lines."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tinygrad_mem as tm

from .. import Tensor, nn
from ..models.names import Named, tensors
from ..models.resnet import resnet20
from ..models.vgg import CONVOLUTIONS


@dataclass(frozen=True)
class Scene:
    """The network and the batch size that a tip's steps run on."""

    network: Named
    batch_size: int

    def model(self) -> Any:
        return self.network.make()

    def data(self, batch_size: int | None = None) -> tuple[Tensor, Tensor]:
        """A batch of random samples, and the class (or the next token) of each."""
        size = batch_size or self.batch_size
        return self.network.batch(size), self.network.targets(size)

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """The network's: see :meth:`Named.loss`."""
        return self.network.loss(output, target)


@dataclass(frozen=True)
class Training:
    """One run: what is called again and again, what it trains, and how often it is called.

    Attributes:
        step: one training step (or what else the tip is about); its number is compared, a loss as a rule.
        model: whose parameters are compared when all is done; ``None`` where nothing is trained.
        steps: calls. The first has no optimizer state before it, the second has.
    """

    step: Callable[[], float]
    model: nn.Module | None = None
    steps: int = 2


Build = Callable[[Scene], Training]
Learner = Callable[[str], float]
"""Of a device: the share of held-out digits that are labelled rightly after training."""


@dataclass(frozen=True)
class Case:
    """One try of a tip.

    Attributes:
        before, after: without the tip and with it.
        when: under which condition, in a few words; "" where there is only one.
        ideal: for tips that promise better numbers: the run whose numbers they should have.
        learners: for tips that change numbers: how well handwritten digits are learned, before and after.
    """

    before: Build
    after: Build
    when: str = ""
    ideal: Build | None = None
    learners: tuple[Learner, Learner] | None = None

    def source(self) -> tuple[str, str]:
        """The code of both."""
        return _source(self.before), _source(self.after)


@dataclass(frozen=True)
class Tip:
    """The advice of a list, and what it is tried on.

    Attributes:
        name: by which ``--tip`` finds it; the row of ``techniques.TABLE`` that it measures lists it under ``tips``.
        says: the advice, in near words.
        cases: the conditions that it is tried under.
        scene: network and batch, unless the user names others.
        free: whether it is about any network, so that the user may name one.
    """

    name: str
    says: str
    cases: tuple[Case, ...]
    scene: Scene
    free: bool = False

    def on(self, network: Named | None, batch_size: int | None) -> Tip:
        """The same tip with the user's network, where it is about any, and the user's batch."""
        found = replace(self.scene, network=network) if self.free and network is not None else self.scene
        return replace(self, scene=replace(found, batch_size=batch_size or found.batch_size))


class SlimVGG(nn.Module):
    """VGG16 with a fraction of its channels, so that a laptop runs it: (N, 3, H, W) -> (N, 10); H and W are multiples of 32.

    Args:
        divide: channels are those of VGG16 divided by this.
        norm: made after each convolution, of its channels; ``None`` for no norm.
    """

    def __init__(self, divide: int = 4, norm: Callable[[int], nn.Module] | None = nn.BatchNorm2d) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in CONVOLUTIONS[16]:
            for width in (each // divide for each in stage):
                layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=norm is None))
                nn.init.kaiming_normal_(layers[-1].weight, mode="fan_out", nonlinearity="relu")
                layers += [nn.ReLU(inplace=True)] if norm is None else [norm(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


VGG = Scene(Named(SlimVGG, (3, 64, 64), 10), 16)
RESNET = Scene(Named(resnet20, (3, 32, 32), 10), 32)


def classify(
    scene: Scene, model: nn.Module | None = None, *, batch_size: int | None = None, optimizer: Any = None, data: Any = None
) -> Training:
    """The plain training step that most tips change: the scene's model and data, SGD with momentum, unless others are given.

    Args:
        optimizer: a function of the parameters.
        data: inputs and targets.
    """
    trained: Any = scene.model() if model is None else model
    x, y = data or scene.data(batch_size)
    rule = (optimizer or momentum)(trained.parameters())

    def step() -> float:
        rule.zero_grad()
        loss = scene.loss(trained(x), y)
        loss.backward()
        rule.step()
        return loss.item()

    return Training(step, trained)


def momentum(parameters: Any) -> Any:
    """The optimizer of every step that is not about optimizers."""
    return tm.optim.SGD(parameters, lr=0.01, momentum=0.9)


def plain(scene: Scene) -> Training:
    return classify(scene)


def inference(scene: Scene, model: nn.Module) -> Training:
    """One pass without gradients, in eval mode; its number is the mean of what comes out."""
    x, _ = scene.data()
    model.eval()

    @tm.no_grad()
    def step() -> float:
        return mean_of(model(x))

    return Training(step, model)


def mean_of(output: Any) -> float:
    """The mean of what a network gives; of several tensors, the sum of their means."""
    return sum(each.mean().item() for each in tensors(output) if each.is_floating_point())


def _source(build: Build) -> str:
    return textwrap.dedent(inspect.getsource(inspect.unwrap(build)))
