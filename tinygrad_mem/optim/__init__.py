"""Optimizers and learning-rate schedules, with PyTorch's names, arguments and state dicts.

What an optimizer keeps, in bytes a parameter, of a large float32 matrix of n rows and m columns; that of small parameters is in
the classes' own words. A float16 or bfloat16 parameter has the same, and 4 bytes more with ``master_weights=True``; moments in
bfloat16 take what float16 ones do.

| optimizer | bytes a parameter |
|---|---|
| `SGD` | 0 |
| `SGD(momentum=0.9)`, `Adagrad`, `RMSprop` | 4 |
| `SGD(momentum=0.9, state_dtype=float16)` | 2 |
| `SGD8bit` | 1 + 4 / 2048 |
| `Adam`, `AdamW`, `Adamax`, `NAdam`, `RAdam`, `Adadelta`, `RMSprop(momentum=0.9)` | 8 |
| `Adam(state_dtype=float16)`, `AdamW(state_dtype=float16)` | 4 |
| `Adam8bit`, `AdamW8bit` | 2 + 8 / 2048 |
| `Adam(amsgrad=True)`, `RMSprop(momentum=0.9, centered=True)` | 12 |
| `Adafactor` | 4 * (n + m) / (n * m) |
"""

from .. import absent as _absent
from . import lr_scheduler as lr_scheduler
from .adafactor import Adafactor as Adafactor
from .adam import Adam as Adam
from .adam import Adamax as Adamax
from .adam import AdamW as AdamW
from .adam import NAdam as NAdam
from .adam import RAdam as RAdam
from .adam import SparseAdam as SparseAdam
from .adaptive import Adadelta as Adadelta
from .adaptive import Adagrad as Adagrad
from .adaptive import RMSprop as RMSprop
from .eight_bit import Adam8bit as Adam8bit
from .eight_bit import AdamW8bit as AdamW8bit
from .eight_bit import SGD8bit as SGD8bit
from .optimizer import Optimizer as Optimizer
from .sgd import SGD as SGD

__getattr__ = _absent.refuses("optim")
