"""Networks by name, with what they are usually fed: for the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import nn
from . import bert, densenet, gpt, lenet, lstm, mobilenet, resnet, squeezenet, unet, vgg


@dataclass(frozen=True)
class Named:
    """A network: how it is made, the shape of one sample, and how many classes, or tokens, its outputs choose from."""

    make: Callable[[], nn.Module]
    sample: tuple[int, ...]
    classes: int
    tokens: bool = False  # a sample is whole numbers below ``classes``


_LARGE, _SMALL = (3, 224, 224), (3, 32, 32)
NETWORKS: dict[str, Named] = {
    "lenet": Named(lenet.LeNet, (1, 28, 28), 10),
    **{f"vgg{n}{bn}": Named(getattr(vgg, f"vgg{n}{bn}"), _LARGE, 1000) for n in (11, 13, 16, 19) for bn in ("", "_bn")},
    **{f"resnet{n}": Named(getattr(resnet, f"resnet{n}"), _LARGE, 1000) for n in (18, 34, 50, 101, 152)},
    **{f"resnet{n}": Named(getattr(resnet, f"resnet{n}"), _SMALL, 10) for n in (20, 32, 44, 56, 110, 1001, 1202)},
    "mobilenet_v2": Named(mobilenet.mobilenet_v2, _LARGE, 1000),
    "densenet121": Named(densenet.densenet121, _LARGE, 1000),
    "squeezenet": Named(squeezenet.squeezenet, _LARGE, 1000),
    "unet": Named(unet.unet, (3, 256, 256), 2),
    "lstm": Named(lstm.LSTMLanguageModel, (64,), 128, tokens=True),
    "lstm-tied": Named(lambda: lstm.LSTMLanguageModel(layers=2, tied=True), (64,), 128, tokens=True),
    **{size: Named(lambda size=size: gpt.gpt(size), (1024,), 50257, tokens=True) for size in gpt.SIZES},
    **{size: Named(lambda size=size: bert.bert(size), (512,), 30522, tokens=True) for size in bert.SIZES},
}
