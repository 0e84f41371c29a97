"""Convolutions over one to three spatial axes, their transposes, and windows as columns.

One workspace is taken for the time of one kernel. Its size depends on shapes only: at most 1.75 MiB for few channels, whatever
the batch; where there are many, two slabs of up to 4 MiB and the weight once more, in another form (see the kernels).
"""

from ..dtypes import is_floating
from ..errors import DTypeError, ShapeError
from .base import Op


def _check(name, x, w, bias, channels, groups, out):
    """Raise for other dtypes than x's, channels of x that do not fit w, and a result ``out`` without elements."""
    if not is_floating(x.dtype):
        raise DTypeError(f"{name}: expected a floating input, found {x.dtype}: convert it with .float()")
    for what, a in (("weight", w), ("bias", bias)):
        if a is not None and a.dtype != x.dtype:
            raise DTypeError(
                f"{name}: Input type ({x.dtype}) and {what} type ({a.dtype}) should be the same: convert one with .to(dtype)"
            )
    wrong = ""
    if x.shape[1] != channels:
        wrong = f"expected input to have {channels} channels, but got {x.shape[1]} channels instead"
    elif bias is not None and (bias.ndim != 1 or bias.shape[0] != out[1]):
        wrong = f"expected bias of shape [{out[1]}], found {list(bias.shape)}"
    elif min(w.shape[2:]) < 1:
        wrong = "kernel sizes must be positive"
    elif min(out[2:]) < 1:
        wrong = f"Calculated output size {list(out[2:])} is too small: the kernel is larger than the padded input"
    if wrong:
        raise ShapeError(f"{name}: {wrong} (input {list(x.shape)}, weight {list(w.shape)}, groups {groups})")
    if w.shape[0] % groups:
        raise ShapeError(f"{name}: expected weight.shape[0] divisible by groups {groups}, found {list(w.shape)}")


def _workspace(ctx, kind, x, w, y, dtype):
    """The workspace of a kernel of ``kind`` for a convolution from shape x to shape y."""
    return ctx.workspace(ctx.kernels.conv_workspace(kind, x, w, y, *ctx.settings, dtype))


def _output(ctx, forward, x, weight, bias, shape, settings):
    """A new output, and what its gradients need is saved."""
    ctx.settings, ctx.x_shape, ctx.w_shape = settings, x.shape, weight.shape
    y = ctx.output(shape, x.dtype)
    ctx.save(x=x if ctx.needs[1] else None, weight=weight if ctx.needs[0] else None)
    _run(ctx, forward, x if forward else ctx.contiguous(x), weight, bias, y)
    return y


def _run(ctx, forward, x, weight, bias, out):
    """out = conv(x, weight) + bias if ``forward``, else what x gives to the input of such a convolution, + bias."""
    kernel = ctx.kernels.conv_forward if forward else ctx.kernels.conv_backward_input
    shapes = (x.shape, weight.shape, out.shape) if forward else (out.shape, weight.shape, x.shape)
    work = _workspace(ctx, "forward" if forward else "input", *shapes, x.dtype)
    kernel(x, ctx.contiguous(weight), ctx.contiguous(bias), *ctx.settings, work, out=out)


def _gradients(ctx, gy, transposed):
    """The gradients of x, weight and bias; a transposed convolution is one from gy to x."""
    gx = gw = gb = None
    gy = ctx.contiguous(gy)
    if ctx.needs[2]:
        gb = ctx.empty((gy.shape[1],), gy.dtype)
        ctx.kernels.conv_backward_bias(gy, out=gb)
    if ctx.needs[1]:
        x = ctx.take("x")
        read, made = (gy, ctx.contiguous(x)) if transposed else (x, gy)
        gw = ctx.empty(ctx.w_shape, gy.dtype)
        work = _workspace(ctx, "weight", read.shape, gw.shape, made.shape, gy.dtype)
        ctx.kernels.conv_backward_weight(made, read, *ctx.settings, work, out=gw)
        del x, read, made, work
    if ctx.needs[0]:
        gx = ctx.empty(ctx.x_shape, gy.dtype)
        _run(ctx, transposed, gy, ctx.take("weight"), None, gx)
    return gx, gw, gb


class Conv(Op):
    """conv(x, weight) + bias. Saves x if weight needs a gradient, weight if x does."""

    saves = ("x", "weight")
    outputs = ()

    @staticmethod
    def forward(ctx, x, weight, bias, *, stride, padding, dilation, groups):
        name = f"conv{x.ndim - 2}d"
        spatial = tuple(
            (n + low + high - d * (k - 1) - 1) // s + 1
            for n, k, s, (low, high), d in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
        )
        shape = (x.shape[0], weight.shape[0], *spatial)
        _check(name, x, weight, bias, weight.shape[1] * groups, groups, shape)
        return _output(ctx, True, x, weight, bias, shape, (stride, tuple(low for low, _ in padding), dilation, groups))

    @staticmethod
    def backward(ctx, gy):
        return _gradients(ctx, gy, False)


class ConvTranspose(Op):
    """The gradient of a convolution as an op of its own. Saves x if weight needs a gradient, weight if x does."""

    saves = ("x", "weight")
    outputs = ()

    @staticmethod
    def forward(ctx, x, weight, bias, *, stride, padding, output_padding, groups, dilation):
        name = f"conv_transpose{x.ndim - 2}d"
        spatial = tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + 1 + extra
            for n, k, s, p, extra, d in zip(
                x.shape[2:], weight.shape[2:], stride, padding, output_padding, dilation, strict=True
            )
        )
        shape = (x.shape[0], weight.shape[1] * groups, *spatial)
        _check(name, x, weight, bias, weight.shape[0], groups, shape)
        return _output(ctx, False, x, weight, bias, shape, (stride, padding, dilation, groups))

    @staticmethod
    def backward(ctx, gy):
        return _gradients(ctx, gy, True)


class Unfold(Op):
    """Windows of x as columns (N, C * taps, blocks). Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, kernel, stride, padding, dilation):
        counts = window_counts("unfold", x.shape[2:], kernel, stride, padding, dilation)
        ctx.settings, ctx.x_shape = (kernel, stride, padding, dilation), x.shape
        ctx.windows = (*x.shape[:2], *kernel, *counts)
        y = ctx.output((x.shape[0], x.shape[1] * kernel[0] * kernel[1], counts[0] * counts[1]), x.dtype)
        ctx.kernels.unfold_windows(x, *ctx.settings, out=y.reshape(ctx.windows))
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.empty(ctx.x_shape, gy.dtype)
        ctx.kernels.fold_windows(ctx.contiguous(gy).reshape(ctx.windows), *ctx.settings, out=gx)
        return gx


class Fold(Op):
    """The sum of windows (N, C * taps, blocks), each added where unfold read it. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, size, kernel, stride, padding, dilation):
        counts = window_counts("fold", size, kernel, stride, padding, dilation)
        taps = kernel[0] * kernel[1]
        if x.shape[1] % taps:
            raise ShapeError(
                f"fold: Expected size of input's dimension 1 to be divisible by the product of kernel_size {list(kernel)}, "
                f"but got input.size(1)={x.shape[1]}"
            )
        if x.shape[2] != counts[0] * counts[1]:
            raise ShapeError(
                f"fold: Given output_size={tuple(size)} and kernel_size={tuple(kernel)}, expected input.size(2) to be "
                f"{counts[0]} * {counts[1]} = {counts[0] * counts[1]}, found {x.shape[2]}"
            )
        ctx.settings, ctx.x_shape = (kernel, stride, padding, dilation), x.shape
        ctx.windows = (x.shape[0], x.shape[1] // taps, *kernel, *counts)
        y = ctx.output((x.shape[0], x.shape[1] // taps, *size), x.dtype)
        ctx.kernels.fold_windows(ctx.contiguous(x).reshape(ctx.windows), *ctx.settings, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.empty(ctx.x_shape, gy.dtype)
        ctx.kernels.unfold_windows(gy, *ctx.settings, out=gx.reshape(ctx.windows))
        return gx


def window_counts(name, size, kernel, stride, padding, dilation):
    """The number of windows that fit along each axis. Raises: ShapeError: none does."""
    counts = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    if min(counts) < 1:
        raise ShapeError(
            f"{name}: no window fits: spatial size {list(size)}, kernel_size {list(kernel)}, stride {list(stride)}, padding "
            f"{list(padding)}, dilation {list(dilation)} give {list(counts)} blocks"
        )
    return counts
