"""Optimizers and learning-rate schedules, with PyTorch's names, arguments and state dicts."""

from .adam import Adam as Adam
from .adam import AdamW as AdamW
from .optimizer import Optimizer as Optimizer
from .sgd import SGD as SGD
