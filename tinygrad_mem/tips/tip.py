"""A tip: a training step before and after, each a function of a few lines."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
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
    """One run of a training.

    Attributes:
        step: one training step (or another step that the tip is about). Its results are compared; usually they are losses.
        model: the model whose parameters are compared at the end; ``None`` if nothing is trained.
        steps: the number of calls of ``step``. The first makes the optimizer state.
    """

    step: Callable[[], float]
    model: nn.Module | None = None
    steps: int = 2


Build = Callable[[Scene], Training]
Learner = Callable[[str], float]
"""A function of a device: it trains, and returns the share of held-out digits that are classified correctly."""


@dataclass(frozen=True)
class Case:
    """One try of a tip.

    Attributes:
        before, after: without the tip, and with it.
        when: the condition, in a few words; "" if there is only one case.
        ideal: for tips that promise better numbers: the run with the right numbers.
        learners: for tips that change numbers: train on handwritten digits, before and after.
        ranks: the number of processes; of several, rank 0 is predicted, and nothing runs.
    """

    before: Build
    after: Build
    when: str = ""
    ideal: Build | None = None
    learners: tuple[Learner, Learner] | None = None
    ranks: int = 1

    def source(self) -> tuple[str, str]:
        """The code of both."""
        return _source(self.before), _source(self.after)


def varied(build: Callable[..., Training], when: str = "", **options: Any) -> Case:
    """A case of one function. Of an option that is a pair, the first value is the one before; other options do not change."""
    before, after = ({name: each[i] if type(each) is tuple else each for name, each in options.items()} for i in (0, 1))
    return Case(partial(build, **before), partial(build, **after), when)


@dataclass(frozen=True)
class Tip:
    """A piece of advice, and the steps that measure it.

    Attributes:
        name: its name for ``--tip``, and under ``tips`` in the row of ``techniques.TABLE`` that it measures.
        says: the advice.
        cases: the conditions under which it is tried.
        scene: the default network and batch size.
        free: whether it is about any network, so that the user may choose one.
    """

    name: str
    says: str
    cases: tuple[Case, ...]
    scene: Scene
    free: bool = False

    def on(self, network: Named | None, batch_size: int | None) -> Tip:
        """The same tip with the user's network (if the tip is about any network) and batch size."""
        found = replace(self.scene, network=network) if self.free and network is not None else self.scene
        return replace(self, scene=replace(found, batch_size=batch_size or found.batch_size))


class SlimVGG(nn.Module):
    """VGG16 with a fraction of its channels, so that a laptop runs it: (N, 3, H, W) -> (N, 10); H and W are multiples of 32.

    Args:
        divide: channels are those of VGG16 divided by this.
        norm: makes the norm after each convolution, given the channels; ``None`` for no norm.
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
    scene: Scene,
    model: nn.Module | None = None,
    *,
    batch_size: int | None = None,
    optimizer: Any = None,
    data: Any = None,
    region: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Training:
    """The plain training step that most tips change: the scene's model and data, and SGD with momentum by default.

    Args:
        optimizer: a function of the parameters.
        data: inputs and targets.
        region: what forward and loss run in.
    """
    trained: Any = scene.model() if model is None else model
    x, y = data or scene.data(batch_size)
    rule = (optimizer or momentum)(trained.parameters())

    def step() -> float:
        rule.zero_grad()
        with region():
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
    """One pass without gradients, in eval mode; it returns the mean of the output."""
    x, _ = scene.data()
    model.eval()

    @tm.no_grad()
    def step() -> float:
        return mean_of(model(x))

    return Training(step, model)


def mean_of(output: Any) -> float:
    """The mean of an output; for several tensors, the sum of their means."""
    return sum(each.mean().item() for each in tensors(output) if each.is_floating_point())


def _source(build: Any) -> str:
    """The code; of a partial, first the arguments with which it is called."""
    if not isinstance(build, partial):
        return textwrap.dedent(inspect.getsource(inspect.unwrap(build)))
    return f"# called with {_arguments_text(build)}\n{_source(build.func)}"


def _arguments_text(call: partial) -> str:
    return ", ".join(f"{name}={_value_text(value)}" for name, value in call.keywords.items())


def _value_text(value: Any) -> str:
    if isinstance(value, partial):
        return f"{value.func.__name__}({_arguments_text(value)})"
    return getattr(value, "__name__", None) or repr(value)
