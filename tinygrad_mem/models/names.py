"""Networks by name, with their usual inputs and loss, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .. import Tensor, nn, randint, randn
from ..errors import ArgumentError
from ..nesting import leaves
from ..nn import functional as F
from ..recompute import checkpoint_blocks
from . import bert, densenet, gpt, lenet, llama, lstm, mobilenet, resnet, squeezenet, unet, vgg
from .configuration import Configuration
from .published import PUBLISHED, published


@dataclass(frozen=True)
class Named:
    """A network, its inputs and its loss.

    Attributes:
        make: makes the network.
        sample: the shape of one sample.
        classes: the number of classes; 0 if it is not known, as for a user's network.
        tokens: the number of different tokens, for samples of token numbers; 0 for samples of floats.
        dense: whether each place of an image has its own class.
        tiles: whether it can compute some tokens at a time, its own loss too; see :meth:`with_own_loss`.
        few: makes the network with fewer layers, given their number; ``None`` if no layers repeat, or if a technique treats
            them differently for another number.
        depth: the number of layers, and the period after which their kinds repeat.
    """

    make: Callable[[], nn.Module]
    sample: tuple[int, ...]
    classes: int
    tokens: int = 0
    dense: bool = False
    tiles: bool = False
    few: Callable[[int], Any] | None = None
    depth: tuple[int, int] = (0, 0)

    def with_own_loss(self, tile: int | None = None) -> Named:
        """The same language model as a network that returns its loss; ``tile``: tokens that are computed at a time."""
        return replace(self._with_change(lambda model: WithLoss(model, tile)), classes=0)

    def recomputed(self, how: str) -> Named:
        """The same network with its chains of blocks recomputed in segments: "sqrt", "every-block" or their number."""
        found = self._with_change(lambda model: checkpoint_blocks(model, int(how) if how.isdecimal() else how))
        return found if how == "every-block" else replace(found, few=None)

    def _with_change(self, change: Callable[[Any], nn.Module]) -> Named:
        make, few = self.make, self.few
        return replace(self, make=lambda: change(make()), few=few and (lambda layers: change(few(layers))))

    def batch(self, size: int, dtype: Any = None) -> Tensor:
        """Random samples, (size, *sample)."""
        shape = (size, *self.sample)
        return randint(0, self.tokens, shape) if self.tokens else randn(*shape, dtype=dtype)

    def targets(self, size: int) -> Tensor:
        """The targets of a batch: a token, or a class, for each place or for each sample."""
        places = self.sample if self.tokens else self.sample[1:] if self.dense else ()
        return randint(0, self.classes or self.tokens or 1, (size, *places))

    def loss(self, output: Any, targets: Tensor | None = None) -> Tensor:
        """A number to run backward from: see :meth:`loss_name`. Without ``targets``, random ones are drawn for its shape.

        Args:
            output: a tensor, or a tuple, list or dict of such.

        Raises:
            ArgumentError: there is no tensor of floats in it.
        """
        found = _floats(output)
        if isinstance(output, Tensor) and not output.ndim and found:
            return output
        if not found:
            raise ArgumentError(f"the network returns {_describe(output)}, but a loss needs a floating tensor")
        scores = self._scores(found)
        if scores is None:
            means = [each.mean() for each in found]
            return sum(means[1:], means[0])
        if self.tokens:
            scores = scores.flatten(0, -2)
        if targets is None:
            targets = randint(0, self.classes or self.tokens, (scores.shape[0], *scores.shape[2:]))
        return F.cross_entropy(scores, targets.flatten() if self.tokens else targets)

    def loss_name(self, output: Any) -> str:
        """The loss that :meth:`loss` takes, in a few words."""
        found = _floats(output)
        if self._scores(found) is not None or (self.tiles and not found[0].ndim):
            return "cross-entropy"
        return "the mean of the output" if len(found) == 1 else f"the sum of the means of {len(found)} outputs"

    def _scores(self, found: list[Tensor]) -> Tensor | None:
        """The output that chooses among classes; of a user's network of tokens, the one with a score for each token."""
        if self.classes:
            return found[0]
        wanted = (len(self.sample) + 2, self.tokens)
        return next((each for each in found if (each.ndim, *each.shape[-1:]) == wanted), None) if self.tokens else None


class WithLoss(nn.Module):
    """A language model that returns its loss, for tokens (N, T) which are their own targets."""

    def __init__(self, model: llama.LanguageModel, tile: int | None) -> None:
        super().__init__()
        self.model = model.in_tiles(tile)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.loss(tokens, tokens)


def tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in an output, also in nested tuples, lists and dicts."""
    return (each for each in leaves(output) if isinstance(each, Tensor))


def _floats(output: Any) -> list[Tensor]:
    """The tensors of floats for a loss: those that need a gradient, if any does."""
    found = [each for each in tensors(output) if each.is_floating_point()]
    return [each for each in found if each.requires_grad] or found


def _describe(output: Any) -> str:
    found = [f"a tensor of {each.dtype}" for each in tensors(output)]
    kind = f"a {type(output).__name__}"
    return found[0] if isinstance(output, Tensor) else f"{kind} of {', '.join(found)}" if found else kind


def of_configuration(config: Configuration, tokens: int | None = None) -> Named:
    """The language model of a configuration, on sequences of ``tokens``; by default as long as 4,096 or as it can."""
    length = min(4096, config.max_position_embeddings) if tokens is None else tokens
    few, depth = (lambda layers: llama.llama(config.shrunk(layers))), (config.num_hidden_layers, config.period())
    words = config.vocab_size
    return Named(lambda: llama.llama(config), (length,), words, tokens=words, tiles=True, few=few, depth=depth)


_LARGE, _SMALL = (3, 224, 224), (3, 32, 32)
NETWORKS: dict[str, Named] = {
    "lenet": Named(lenet.LeNet, (1, 28, 28), 10),
    **{f"vgg{n}{bn}": Named(partial(vgg.VGG, n, bool(bn)), _LARGE, 1000) for n in vgg.CONVOLUTIONS for bn in ("", "_bn")},
    **{f"resnet{n}": Named(partial(resnet.resnet, n), _LARGE, 1000) for n in resnet.LAYERS},
    **{f"resnet{6 * n + 2}": Named(partial(resnet.CifarResNet, n), _SMALL, 10) for n in (3, 5, 7, 9, 18, 200)},
    "resnet1001": Named(resnet.resnet1001, _SMALL, 10),
    "mobilenet_v2": Named(mobilenet.mobilenet_v2, _LARGE, 1000),
    "densenet121": Named(densenet.densenet121, _LARGE, 1000),
    "squeezenet": Named(squeezenet.squeezenet, _LARGE, 1000),
    "unet": Named(unet.unet, (3, 256, 256), 2, dense=True),
    "lstm": Named(lstm.LSTMLanguageModel, (64,), 128, tokens=128),
    "lstm-tied": Named(lambda: lstm.LSTMLanguageModel(layers=2, tied=True), (64,), 128, tokens=128),
    **{size: Named(lambda size=size: gpt.gpt(size), (1024,), 50257, tokens=50257) for size in gpt.SIZES},
    **{size: Named(lambda size=size: bert.bert(size), (512,), 30522, tokens=30522) for size in bert.SIZES},
    **{name: of_configuration(published(name)) for name in PUBLISHED},
}
