"""tinygrad_mem: where the memory of deep-learning training goes, and what each memory-saving technique does about it."""

# the public names, nothing else
from . import autograd as autograd
from . import functional as functional
from .autograd import Size as Size
from .autograd import Tensor as Tensor
from .autograd import enable_grad as enable_grad
from .autograd import inference_mode as inference_mode
from .autograd import is_grad_enabled as is_grad_enabled
from .autograd import no_grad as no_grad
from .autograd import set_grad_enabled as set_grad_enabled
from .devices import Generator as Generator
from .devices import device as device
from .dtypes import bool as bool
from .dtypes import double as double
from .dtypes import float as float
from .dtypes import float16 as float16
from .dtypes import float32 as float32
from .dtypes import float64 as float64
from .dtypes import get_default_dtype as get_default_dtype
from .dtypes import half as half
from .dtypes import int as int
from .dtypes import int8 as int8
from .dtypes import int16 as int16
from .dtypes import int32 as int32
from .dtypes import int64 as int64
from .dtypes import long as long
from .dtypes import promote_types as promote_types
from .dtypes import set_default_dtype as set_default_dtype
from .dtypes import short as short
from .dtypes import uint8 as uint8
from .errors import OutOfMemoryError as OutOfMemoryError

__version__ = "0.1.0"
# --- elementwise

# --- activation

# --- reduce, sort, scan

# --- linalg

# --- creation, random

# --- shape, join, index, convert

# --- conv, pool, norm, dropout, resize

# --- softmax, loss, embedding

# --- nn, optim, utils, io
from .functional.creation import tensor as tensor
