"""Optimizers and learning-rate schedules, with PyTorch's names, arguments and state dicts."""

from . import lr_scheduler as lr_scheduler
from .adafactor import Adafactor as Adafactor
from .adam import Adam as Adam
from .adam import Adamax as Adamax
from .adam import AdamW as AdamW
from .adam import NAdam as NAdam
from .adam import RAdam as RAdam
from .adaptive import Adadelta as Adadelta
from .adaptive import Adagrad as Adagrad
from .adaptive import RMSprop as RMSprop
from .eight_bit import Adam8bit as Adam8bit
from .eight_bit import AdamW8bit as AdamW8bit
from .eight_bit import SGD8bit as SGD8bit
from .optimizer import Optimizer as Optimizer
from .sgd import SGD as SGD
