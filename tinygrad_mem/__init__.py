"""tinygrad_mem: where the memory of deep-learning training goes, and what each memory-saving technique does about it."""

from . import starting as _starting  # isort: skip  # the first, for Ctrl-C during the other imports
from math import e, inf, nan, pi

from numpy import newaxis

from . import absent as _absent
from . import (
    accelerator,
    amp,
    autograd,
    backends,
    cuda,
    data,
    distributed,
    distributions,
    errors,
    functional,
    linalg,
    memory,
    nn,
    optim,
    plan,
    recompute,
    special,
    techniques,
    types,
    utils,
    version,
)
from . import stand_ins as _stand_ins
from .amp.autocast_mode import *
from .autograd import Size, Tensor
from .autograd.grad_mode import *
from .backends.precision import get_float32_matmul_precision, set_float32_matmul_precision
from .devices import Generator, device
from .dtypes import *
from .errors import OutOfMemoryError
from .functional.convert import channels_last, channels_last_3d, contiguous_format, preserve_format
from .functional.convert import contiguous_format as legacy_contiguous_format
from .functional.creation import strided
from .functional.door import PUBLIC as _PUBLIC
from .functional.typed import *
from .io import load, save
from .stand_ins import (
    _C,
    _dynamo,
    ao,
    compiler,
    fft,
    func,
    fx,
    hub,
    jit,
    library,
    multiprocessing,
    onnx,
    overrides,
    quantization,
)
from .stand_ins.checks import *
from .stand_ins.compiler import compile
from .stand_ins.cuda_streams import Event, Stream
from .stand_ins.foreach import FOREACH as _FOREACH
from .stand_ins.jit import _assert
from .utils.dlpack import from_dlpack
from .utils.from_torch import from_torch
from .version import __version__

globals().update(_FOREACH)
globals().update(_PUBLIC["torch"])  # the functions that say so in their @public; __init__.pyi lists them for type checkers
_stand_ins.install()
__getattr__ = _absent.refuses("")
