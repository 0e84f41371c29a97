"""Convolutions: cuDNN chooses an algorithm, and only cuDNN knows what that takes."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from .blas import handle
from .call import Gpu, KernelCall, row, up
from .reductions import summed

_CHANNELS = 8  # tensor cores take multiples of these
_ROWS, _COLUMNS, _PART = 128, 256, 16  # of results that a block makes, and of products that it adds at once
_BLOCK = 1 << 18  # bytes of partial sums for each multiprocessor: two such blocks of float32
_FEW, _PRODUCTS = 64, 1 << 27  # channels and products below which float32 is not copied into another layout
_TILE = 32  # side of the images that cuDNN transforms as a whole
_SMALL = 4096  # bytes: pointers, counters and what aligns them
_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}  # the axes of channels last, the fastest first


class Image(NamedTuple):
    """A tensor as a convolution sees it: one with a single axis beside channels gets another, of length 1."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Image:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        if len(shape) == 3:
            shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
        return cls(shape, strides, tensor.dtype)

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def last(self) -> bool:
        """True if its strides are those of channels last.

        Source: ``c10/core/MemoryFormat.h``, ``is_channels_last_strides_2d_s4``.
        """
        steps, least = self.strides, 0
        if 0 in steps[1:2]:
            return False
        for axis in _LAST.get(len(steps), ()):
            if self.shape[axis] == 0 or steps[axis] < least or (axis == 0 and least == steps[1]):
                return False
            least = steps[axis] * self.shape[axis]
        return least > 0

    def dense(self, last: bool) -> bool:
        """True if it is contiguous, in channels last or not."""
        return all(
            size == 1 or mine == theirs
            for size, mine, theirs in zip(self.shape, self.strides, strides(self.shape, last), strict=True)
        )

    def within(self, last: bool) -> Image:
        """It, or its copy, contiguous in channels last or not."""
        return self if self.dense(last) else self._replace(strides=strides(self.shape, last))


def strides(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """The strides of a new tensor, in channels last or not."""
    found, step = [0] * len(shape), 1
    for axis in _LAST[len(shape)] if last else reversed(range(len(shape))):
        found[axis] = step
        step *= max(shape[axis], 1)
    return tuple(found)


def channels_last(first: Image, second: Image) -> bool:
    """True if cuDNN runs in channels last. Source: ``ATen/native/ConvUtils.h``, ``cudnn_conv_suggest_memory_format``."""
    return torch.float64 not in (first.dtype, second.dtype) and (first.last or second.last)


class Problem(NamedTuple):
    """A convolution as cuDNN gets it.

    Attributes:
        kind: what is computed: ``"result"``, or the gradient of the ``"input"`` or of the ``"weight"``.
        x, weight, out: of an ordinary convolution.
        last: they are in channels last.
        dense: the kernel visits each place: the stride is 1.
    """

    kind: str
    x: Image
    weight: Image
    out: Image
    groups: int
    last: bool
    dense: bool

    @property
    def taps(self) -> int:
        """Elements of a kernel."""
        return prod(self.weight.shape[2:])

    @property
    def even(self) -> bool:
        """True if tensor cores of 16 bits take the channels as they are."""
        return not any(channels % _CHANNELS for channels in self.weight.shape[:2])

    @property
    def turned(self) -> int:
        """Bytes of copies in channels last, with as many channels as tensor cores take."""
        x, weight, out = self.x.shape, self.weight.shape, self.out.shape
        images = sum(_round_channels(each[1]) * prod(each) // max(each[1], 1) for each in (x, out))
        kernels = _round_channels(weight[0]) * _round_channels(weight[1]) * self.taps
        return (images + kernels) * self.x.dtype.itemsize

    def likely(self, gpu: Gpu) -> int:
        """Bytes that are most usual: copies in channels last where the kernel has more than one element, else none.

        Of the workspaces of results and inputs' gradients that an H100 recorded with cuDNN 9.19, rounded to 512 bytes, it is
        right in 353 of 367 cases where it says copies, of 16 bits, and in 1,055 of 1,277 where it says none; of float32 in
        1,071 of 1,461. Of weights' gradients it is right in 134 of 189 and 169 of 652 cases, and 221 of 733: they add parts.
        """
        cores = {2: (7, 0), 4: (8, 0)}.get(self.x.dtype.itemsize, (99, 0))  # the first tensor cores for such numbers
        if self.last or not self.even or gpu.capability < cores or self._small:
            return 0
        if self.taps == 1:
            copies = 0 if self.dense or self.x.dtype.itemsize == 4 else self.x.size + self.out.size
        else:
            copies = self.x.size + self.weight.size + self.out.size
        return copies + 16 * (copies > 0)

    @property
    def _small(self) -> bool:
        """True if float32 is too little work for copies to pay, as an H100 recorded."""
        products = prod(self.weight.shape) * self.out.shape[0] * prod(self.out.shape[2:])
        few = self.kind == "result" and self.weight.shape[1] < _FEW
        return self.x.dtype == torch.float32 and self.kind != "weight" and (few or products < _PRODUCTS)

    def most(self, gpu: Gpu) -> int:
        """Bytes at most: copies in another layout, partial sums, and the input for each element of the kernel.

        All 4,682 workspaces that an H100 recorded with cuDNN 9.19 are below it; for other cards the partial sums follow the
        number of multiprocessors, which no recording has confirmed.
        """
        copies = 0 if self.last and self.even and self.x.dtype.itemsize == 2 else self.turned
        return copies + self._partial(gpu) + self._transformed() + _SMALL

    @property
    def measured(self) -> int:
        """Bytes at most of an algorithm that cuDNN measures: four times all images and kernels as complex numbers.

        Fourier transforms are squares whose side is a power of two, 32 at least, and holds an image and a kernel. On an H200
        with cuDNN 9.19, 182 convolutions with both gradients took 3.9 times at most.
        """
        (batch, ins), outs = self.x.shape[:2], self.out.shape[1]
        side = _TILE
        while side < max(*self.x.shape[2:], *self.out.shape[2:]) + max(self.weight.shape[2:]) - 1:
            side *= 2
        planes = batch * ins + ins * outs // self.groups + batch * outs
        return 4 * planes * side ** (len(self.x.shape) - 3) * (side // 2 + 1) * 8

    def _partial(self, gpu: Gpu) -> int:
        """Partial sums in float32: where there are fewer results than a GPU has room for, several blocks share each."""
        pixels = self.out.shape[0] * prod(self.out.shape[2:])
        outs, ins = self.weight.shape[:2]
        rows, columns, inner = {
            "result": (pixels, outs, ins * self.taps),
            "input": (self.x.shape[0] * prod(self.x.shape[2:]), ins * self.groups, outs * self.taps),
            "weight": (outs, ins * self.taps, pixels),
        }[self.kind]
        width = max(4, self.x.dtype.itemsize)
        tiles = up(rows, _ROWS) * _ROWS * up(columns, _COLUMNS) * _COLUMNS * up(inner, _PART)
        return min(gpu.processors * _BLOCK, max(tiles, rows * columns * inner) * width)

    def _transformed(self) -> int:
        """Winograd's and Fourier's transforms of float32: seen of small images, for a weight's gradient.

        And the partial sums of a depthwise weight's gradient in channels last: one for every second pixel.
        """
        if self.x.dtype != torch.float32 or self.taps == 1:
            return 0
        if self.kind == "weight" and self.last and self.groups == self.x.shape[1]:
            return self.taps * self.out.size // 2
        small = max(*self.x.shape[2:], *self.out.shape[2:]) <= _TILE
        chosen = self.kind == "weight" and small and self.dense and not self.last
        return self.taps * (self.x.size + self.out.size) if chosen else 0


def _round_channels(channels: int) -> int:
    return up(channels, _CHANNELS) * _CHANNELS


class Convolution:
    """The arguments of a convolution as PyTorch gives them to the library that runs it.

    Args:
        arguments: of the op, by name.

    Attributes:
        depthwise: PyTorch's own kernel runs, one channel a group.
        slow: PyTorch's own products of columns run; else, if not ``depthwise``, cuDNN.
        last: cuDNN runs in channels last.
        x, weight: input and weight.
    """

    def __init__(self, arguments: Any) -> None:
        tensor = arguments["input"]
        self.weight, self.groups, self.transposed = Image.of(arguments["weight"]), arguments["groups"], arguments["transposed"]
        single = tensor.dim() == 3
        self.turned = single and not tensor.is_contiguous()  # copied before its axis gets another beside it
        self.x = Image.of(tensor)
        if self.turned:
            self.x = self.x.within(False)
        stride, dilation = arguments["stride"], arguments["dilation"]
        self.depthwise = not self.transposed and self._own_kernel(stride, dilation)
        self.slow = not self.depthwise and not _for_cudnn(stride, dilation, arguments["output_padding"])
        self.last = not self.depthwise and not self.slow and channels_last(self.x, self.weight)

    def _own_kernel(self, stride: list[int], dilation: list[int]) -> bool:
        """Source: ``aten/src/ATen/native/Convolution.cpp``, ``is_depthwise``, ``use_cudnn_depthwise``."""
        channels, kernels = self.x.shape[1], self.weight.shape[0]
        if not (self.groups == channels > 1 and kernels % channels == 0):
            return False
        if not torch.backends.cudnn.enabled:
            return True
        large = max(prod(self.x.shape), prod(self.weight.shape)) >= 1 << 31
        if channels_last(self.x, self.weight) or large:
            return False
        half = self.x.dtype == torch.float16 and len(self.x.shape) == 4 and channels >= 32
        return not (half and set(dilation) == {1} and _cudnn_is_faster(self.x, self.weight, stride))

    def gradients(self, grad: torch.Tensor, trained: bool) -> tuple[Image, Image]:
        """The gradient and the input in the layouts in which cuDNN takes them for a backward; ``trained``: the weight is."""
        x = self.x.within(self.last) if trained else self.x
        found = Image.of(grad)
        return (found if found.last == x.last and not self.transposed else found.within(x.last)), x


def _for_cudnn(stride: list[int], dilation: list[int], output_padding: list[int]) -> bool:
    """Source: ``Convolution.cpp``, ``use_cudnn``."""
    same = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    large = any(padding >= step for padding, step in zip(output_padding, stride, strict=False))
    return torch.backends.cudnn.enabled and not large and not (same and max(dilation) > 1)


def _cudnn_is_faster(x: Image, weight: Image, stride: list[int]) -> bool:
    """Depthwise in float16. Source: ``Convolution.cpp``, ``check_cudnn_depthwise_workload_with_filter``."""
    (batch, channels, height, width), kernel, step = x.shape, weight.shape[3], stride[-1]
    if len(set(stride)) > 1 and height > 1:
        return False
    if height == 1 and step == 1:
        return True
    if weight.shape[2] != kernel or kernel not in (1, 3, 5) or width < 7 or step > 2:
        return False
    if step == 1:
        return True
    if kernel == 1:
        return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)


@row(
    "convolution _convolution",
    takes="until the op ends: before the result a copy of an input that is not in cuDNN's layout, after the result such a copy "
    "of the weight; then the workspace of the algorithm that cuDNN's heuristics choose, which is freed at once. Its size is an "
    "estimate: if tensor cores compute a kernel larger than 1 x 1, copies of input, weight and result in channels last, and 16 "
    "bytes; else 0",
    source="Convolution.cpp, _convolution; cudnn/ConvShared.cpp, cudnn_convolution; Conv_v8.cpp, run_conv_plan; cuDNN, "
    "cudnnBackendExecute",
    seen="cnn-small, h100 (cuDNN 9.19: 1,588 workspaces)",
)
def convolution(call: KernelCall) -> None:
    if prod(call["input"].shape) == 0:
        return
    found = Convolution(call)
    if found.slow:
        return _columns(call, found, call.outs[0])
    call.temporary(found.turned * found.x.size)
    _copy(call, found.x, found.last)
    call.result(0)
    _copy(call, found.weight, found.last)
    if not found.depthwise:
        kind = "input" if found.transposed else "result"
        _workspace(call, kind, found, found.x, Image.of(call.outs[0]), found.last)


@row(
    "convolution_backward",
    takes="for each gradient, as in the forward: copies, the result, and a workspace that is freed at once; the staging of the "
    "bias's sum",
    source="Convolution.cpp, convolution_backward; cudnn/ConvShared.cpp, cudnn_convolution_backward; cuda/DepthwiseConv2d.cu, "
    "conv_depthwise2d_backward_cuda_out",
    seen="cnn-small (the input's gradient), h100 (cuDNN 9.19: 3,094 workspaces)",
)
def convolution_backward(call: KernelCall) -> None:
    gradient, mask = call["grad_output"], call["output_mask"]
    if prod(call["input"].shape) == 0:
        return
    found = Convolution(call)
    if found.slow:
        return _columns(call, found, gradient)
    call.temporary(found.turned * found.x.size)
    with call.within():
        (_backward_of_pytorch if found.depthwise else _backward_of_cudnn)(call, found, mask)
    if mask[2]:
        call.result(2)
        summed(call, gradient, [0, *range(2, gradient.dim())])


def _columns(call: KernelCall, found: Convolution, out: torch.Tensor) -> None:
    """Ask for cuBLAS's workspace, and bound what products of unfolded columns allocate: copies, and each group's results."""
    handle(call)
    image = Image.of(out)
    fewer = found.x if found.transposed else image
    columns = prod(found.weight.shape[1:]) * prod(fewer.shape[2:]) * image.dtype.itemsize
    copies = 2 * (found.x.size + found.weight.size + image.size)
    call.bound(
        copies + columns + found.groups * _SMALL,
        "a convolution that cuDNN does not support is computed as products of unfolded columns",
    )


def _backward_of_pytorch(call: KernelCall, found: Convolution, mask: list[bool]) -> None:
    _copy(call, Image.of(call["grad_output"]), False)
    if mask[1]:
        call.result(1)
        call.free(_copy(call, found.x, False))
    if mask[0]:
        call.result(0)
        call.free(_copy(call, found.weight, False))


def _backward_of_cudnn(call: KernelCall, found: Convolution, mask: list[bool]) -> None:
    gradient, x = found.gradients(call["grad_output"], mask[1])
    for new, old in ((x, found.x), (gradient, Image.of(call["grad_output"]))):
        call.temporary((new.strides != old.strides) * new.size)
    if mask[0]:
        last = channels_last(gradient, found.weight)
        call.result(0)
        with call.within():
            _copy(call, found.weight, last)
            _copy(call, gradient, last)
            _workspace(call, "result" if found.transposed else "input", found, x, gradient, last)
    if mask[1]:
        last = channels_last(x, gradient)
        for each in (x, gradient) if found.transposed else (gradient, x):
            _copy(call, each, last)
        call.result(1)
        _workspace(call, "weight", found, x, gradient, last)


def _copy(call: KernelCall, image: Image, last: bool) -> int:
    return call.temporary(0 if image.dense(last) else image.size)


def _workspace(call: KernelCall, kind: str, found: Convolution, x: Image, out: Image, last: bool) -> None:
    """Ask for the workspace in which cuDNN computes the ``kind``: ``"result"``, ``"input"`` or ``"weight"``."""
    if found.transposed:
        x, out = out, x  # a transposed convolution's result is the input's gradient of an ordinary one
    problem = Problem(kind, x, found.weight, out, found.groups, last, max(call["stride"]) == 1)
    likely, most = problem.likely(call.gpu), problem.most(call.gpu)
    if call.gpu.benchmark:
        most += problem.measured
    call.once(likely)
    call.bound(max(likely, most - likely), _why(call))


def _why(call: KernelCall) -> str:
    how = "measures algorithms, of which some take much" if call.gpu.benchmark else "chooses an algorithm by heuristics"
    return f"cuDNN {how}: the workspace of a convolution is not known without the GPU"
