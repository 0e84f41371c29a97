"""tinygrad_mem: where the memory of deep-learning training goes, and what each memory-saving technique does about it."""

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
from .amp.autocast_mode import (
    autocast,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
)
from .amp.older_names import get_autocast_cpu_dtype, get_autocast_gpu_dtype, is_autocast_cpu_enabled
from .autograd import (
    Size,
    Tensor,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .backends.precision import get_float32_matmul_precision, set_float32_matmul_precision
from .devices import Generator, device
from .dtypes import (
    bfloat16,
    bool,
    cdouble,
    cfloat,
    complex64,
    complex128,
    double,
    dtype,
    finfo,
    float,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float16,
    float32,
    float64,
    get_default_dtype,
    half,
    iinfo,
    int,
    int8,
    int16,
    int32,
    int64,
    long,
    promote_types,
    set_default_dtype,
    short,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .errors import OutOfMemoryError
from .functional.creation import strided
from .functional.door import PUBLIC as _PUBLIC
from .functional.formats import channels_last, channels_last_3d, contiguous_format, preserve_format
from .functional.formats import contiguous_format as legacy_contiguous_format
from .functional.typed import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
    TensorType,
)
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
from .stand_ins.checks import (
    _assert_async,
    _check,
    _check_index,
    _check_tensor_all,
    _check_tensor_all_with,
    _check_type,
    _check_value,
    _check_with,
)
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
