"""PyTorch's own errors: calls that its kernels refuse are refused in a prediction too, in PyTorch's words.

Formulas of shapes accept dtypes that kernels refuse, and their errors have other words. So PyTorch's CPU runs a doubtful call
once, on tensors that repeat one element: of the same shapes if the formula has refused them, of the smallest if dtypes differ.
What the call writes to has memory of its own. ``view`` looks at strides, so it runs on meta, with the tensor's own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from ...errors import DataDependenceError, NotOfferedError
from .dispatcher import operators
from .fake import fake_tensors, on_gpu, without_modes

_OURS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotOfferedError,
    DataDependenceError,
)
_INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_HALVES, _BYTES, _BOOLS = {torch.float16, torch.bfloat16}, {torch.uint8}, {torch.bool}
_OF_DTYPES = re.compile(r"dtype|scalar type|matching types|not implemented for '(Bool|Byte|Char|Short|Int|Long)'")
_MORE_ON_A_GPU = {*operators("abs histc trace")}  # whose kernels there take integers or bools that the CPU's do not
_NOT_ON_A_GPU: dict[Any, set[torch.dtype]] = {  # what the CPU's kernels take, and a GPU's do not; see test_refusing.py
    # no product of integers is in cuBLAS and cuDNN as PyTorch calls them
    **dict.fromkeys(operators("mm mv bmm addmm addmv addbmm baddbmm dot vdot convolution native_dropout_backward"), _INTEGERS),
    **dict.fromkeys(operators("max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d"), _INTEGERS),
    **dict.fromkeys(operators("upsample_bilinear2d upsample_bicubic2d"), _BYTES),
    **dict.fromkeys(operators("_upsample_bilinear2d_aa _upsample_bicubic2d_aa"), _BYTES),
    **dict.fromkeys(operators("angle histc igamma igamma_ igammac igammac_"), _HALVES),
    **dict.fromkeys(operators("scatter_reduce.two scatter_reduce_.two"), _BOOLS),
}
_OF_WHOLE = "aten::bitwise_", "aten::embedding"  # fractions are refused, which not each formula checks
_NOT_SAID = re.compile(r"^Could not run|single memory location")  # no CPU's op; of the tensors that ask
_OPAQUE = re.compile(r"backward|mkldnn|_rnn|_lstm|_gru|quantized|fbgemm|packed")  # made-up contents may end the process
_MOST, _SMALL = 1 << 26, 2  # elements of a call with its own shapes; of an axis of a call with small ones
_DIFFER = "Expected all tensors to be on the same device, but found at least two devices, {} and {}!"
_TWO_DEVICES = re.compile(r"two (?:different )?devices,? (\S+?),? (?:and )?(\S+?)!?$")  # in PyTorch 2.11, and from 2.13 on
MASK = "The shape of the mask {} at index {} does not match the shape of the indexed tensor {} at index {}"
_accepted: set[tuple] = set()  # calls, by their dtypes
_INDEXES = {*operators("index.Tensor index_put index_put_ _index_put_impl_")}
_ON_ONE_DEVICE = {*_INDEXES, *operators("convolution convolution_backward _cudnn_rnn")}  # formulas look at the first alone


def in_its_words(error: Exception, func: Any, args: tuple, kwargs: dict[str, Any]) -> Exception:
    """The error that PyTorch would raise where a formula has raised this one."""
    if differ := _TWO_DEVICES.search(str(error)):
        return RuntimeError(_DIFFER.format(*differ.groups()))
    tensors = fake_tensors([*args, *kwargs.values()])
    if isinstance(error, _OURS) or func.namespace != "aten" or sum(each.numel() for each in tensors) > _MOST:
        return error
    return _asked(func, args, kwargs, None) or error


def check(func: Any, args: tuple, kwargs: dict[str, Any], lists: bool) -> None:
    """Raise PyTorch's error if it refuses tensors of these dtypes, or on these devices, together.

    Args:
        lists: the op is one for each tensor of a list.
    """
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, FakeTensor)]
    if func in _ON_ONE_DEVICE:
        check_devices(fake_tensors([*args, *kwargs.values()]), func in _INDEXES)
    elif lists and func._schema.name != "aten::_foreach_copy_":
        for each in zip(*[each for each in args if isinstance(each, (list, tuple))], strict=False):
            check_devices(fake_tensors(each))
    dtypes = tuple([each.dtype for each in tensors])
    if dtypes and dtypes[0] in _NOT_ON_A_GPU.get(func, ()) and on_gpu(tensors[0]) and "sum" not in args[4:]:  # scatter_reduce's
        name = func._schema.name.removeprefix("aten::")
        raise NotImplementedError(f"{name}: PyTorch's kernel on a GPU is not implemented for {dtypes[0]}")
    fractions = len(set(dtypes)) == 1 and dtypes[0].is_floating_point
    if not dtypes or func.namespace != "aten" or (fractions and not func._schema.name.startswith(_OF_WHOLE)):
        return
    if func in _MORE_ON_A_GPU and on_gpu(tensors[0]):
        return
    call = func, dtypes, tuple([each.dim() for each in tensors])
    if call not in _accepted:
        error = _asked(func, args, kwargs, _SMALL)
        if error is not None and (fractions or _OF_DTYPES.search(str(error))):
            raise error
        _accepted.add(call)


def check_devices(tensors: Sequence[Any], index: bool = False) -> None:
    """Raise PyTorch's error if tensors are on two devices. One of a single number may be on the host, as an ``index`` may."""
    found = dict.fromkeys(str(each.fake_device) for each in tensors if each.dim())
    if index and len(found) > 1 and next(iter(found)) == "cpu":
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if not index and len(found) > 1:
        raise RuntimeError(_DIFFER.format(*found))


def _asked(func: Any, args: tuple, kwargs: dict[str, Any], most: int | None) -> Exception | None:
    """The error of PyTorch's CPU; ``most``: elements of an axis."""
    if _OPAQUE.search(func._schema.name):
        return None
    written = [each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    named = dict(zip([each.name for each in func._schema.arguments], args, strict=False)) | kwargs
    with without_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if func is torch.ops.aten.view.default:
            real = {name: _with_strides(value) for name, value in named.items()}
        else:
            real = {name: _real(value, most, name in written) for name, value in named.items()}
        given = [real.pop(each.name) for each in func._schema.arguments[: len(args)]]
        try:
            func(*given, **real)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            return None if _NOT_SAID.search(str(error)) else error.with_traceback(None)
    return None


def _real(value: Any, most: int | None, written: bool = False) -> Any:
    if isinstance(value, FakeTensor):
        shape = [size if most is None else min(size, most) for size in value.shape]
        made = torch.zeros((), dtype=value.dtype).expand(shape)
        return made.clone() if written else made
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return type(value)([_real(each, most, written) for each in value]) if type(value) in (list, tuple) else value


def _with_strides(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return value
