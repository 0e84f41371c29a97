"""Numbers of parameters: each network is made on ``meta``, and counted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tinygrad_mem as tm
from tinygrad_mem import nn

from ...models.gpt import gpt
from ...models.llama import llama
from ...models.published import PUBLISHED
from ...models.resnet import resnet50, resnet1202
from ...models.vgg import vgg16
from ..claim import Claim, Figure, Publication, paper


def count(make: Callable[[], nn.Module]) -> int:
    """The parameters of a network."""
    with tm.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


_GPT2 = Publication(
    "Radford et al., Language models are unsupervised multitask learners, 2019, table 2",
    "https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf",
)
COUNTED = "the network is made on meta, and its parameters are counted"


def _claim(name: str, source: Publication, says: str, stated: str, make: Callable[[], nn.Module], why: str = "") -> Claim:
    return Claim(name, source, says, Figure(stated), COUNTED, partial(count, make), why)


CLAIMS = [
    _claim(
        "gpt2-small-parameters", _GPT2, "The smallest GPT-2: 12 layers of width 768.", "117 million parameters", gpt,
        "The count is of 12 layers, 50,257 tokens and 1,024 positions, the output projection shared with the embedding.",
    ),
    _claim(
        "gpt2-xl-parameters", _GPT2, "The largest GPT-2: 48 layers of width 1,600.", "1,542 million parameters",
        partial(gpt, "gpt2-xl"),
        "The count is of 48 layers, 50,257 tokens and 1,024 positions, the output projection shared with the embedding.",
    ),
    _claim(
        "resnet1202-parameters", paper("1512.03385", "He et al., Deep residual learning for image recognition, 2016, table 6"),
        "A residual network of 1,202 layers for images of 32 x 32.", "19.4 million parameters", resnet1202,
    ),
    _claim(
        "resnet50-parameters", Publication("PyTorch, torchvision.models.resnet50",
        "https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.resnet50.html"),
        "ResNet-50 for a thousand classes.", "25,557,032 parameters", resnet50,
    ),
    _claim(
        "vgg16-parameters",
        Publication("CS231n, Convolutional neural networks, Stanford", "https://cs231n.github.io/convolutional-networks/"),
        "VGG16 for a thousand classes.", "138 million parameters", vgg16,
    ),
    _claim(
        "mixtral-parameters", paper("2401.04088", "Jiang et al., Mixtral of experts, 2024"),
        "A mixture of 8 experts, called 8x7B.", "47 billion parameters", lambda: llama(PUBLISHED["mixtral-8x7b"]),
        "Not the 56 billion that the name suggests: the experts share attention and embeddings. All of them must be in memory.",
    ),
    _claim(
        "llama-3-405b-parameters", paper("2407.21783", "Grattafiori et al., The Llama 3 herd of models, 2024"),
        "The largest Llama 3.1.", "405 billion parameters", lambda: llama(PUBLISHED["llama-3.1-405b"]),
    ),
]  # fmt: skip
