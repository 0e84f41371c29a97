"""Optimizers and learning-rate schedules, with PyTorch's names, arguments and state dicts.

The table shows the bytes of state per parameter, for a large float32 matrix of n rows and m columns. For small parameters see
the docstring of the class. For float16 and bfloat16 parameters the moments have the parameter's dtype, as in PyTorch: half of
the bytes. They are float32 with ``state_dtype=float32``, and with ``master_weights=True``, which takes 4 bytes more.
8-bit and 4-bit state, Adafactor's, AdaLomo's, GaLore's and APOLLO's are as large for every dtype, and so is Adam-mini's 4 / m.
``state_dtype=bfloat16`` takes the bytes of ``state_dtype=float16``.

| optimizer | bytes per parameter |
|---|---|
| `SGD`, `Lomo` | 0 |
| `SGD(momentum=0.9)`, `Adagrad`, `RMSprop`, `Lion`, `Muon` | 4 |
| `AdamMini` | 4 + 4 / m |
| `SGD(momentum=0.9, state_dtype=float16)`, `Lion(state_dtype=float16)` | 2 |
| `SGD8bit` | 1 + 4 / 2048 |
| `Adam`, `AdamW`, `Adamax`, `NAdam`, `RAdam`, `Adadelta`, `RMSprop(momentum=0.9)` | 8 |
| `Adam(state_dtype=float16)`, `AdamW(state_dtype=float16)` | 4 |
| `Adam8bit`, `AdamW8bit` | 2 + 8 / 2048 |
| `Adam4bit`, `AdamW4bit` | 1 + 4 / 128 + 4 * (n + m) / (n * m) |
| `Adam(amsgrad=True)`, `RMSprop(momentum=0.9, centered=True)` | 12 |
| `Adafactor`, `AdaLomo` | 4 * (n + m) / (n * m) |
| `GaLore(rank=128)` | 4 * 128 * (n + 2 * m) / (n * m), where n <= m |
| `APOLLO(rank=128)` | (8 * 128 * m + 512) / (n * m), where n <= m |
| `APOLLOMini` | (8 * m + 512) / (n * m), where n <= m |

The 512 of APOLLO are the pool's bytes for one number. `LBFGS` keeps ``8 * history_size + 8`` bytes per parameter: 808 with
PyTorch's history of 100. Its steps need a closure. ``docs/optimizers.md`` says how well those for little memory learn.
"""

from .. import absent as _absent
from . import lr_scheduler as lr_scheduler
from .adafactor import *
from .adam import *
from .adam_mini import *
from .adaptive import *
from .apollo import *
from .eight_bit import *
from .four_bit import *
from .galore import *
from .lbfgs import *
from .lion import *
from .lomo import *
from .muon import *
from .optimizer import *
from .sgd import *

__getattr__ = _absent.refuses("optim")
