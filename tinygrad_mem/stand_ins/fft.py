"""A stand-in for ``torch.fft``: published files import its functions, and seldom call them. Tensors are real here."""

from .. import absent as _absent
from .refused import refused

_NAMES = "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn fftfreq rfftfreq fftshift ifftshift"
_INSTEAD = (
    "tensors are real: without a gradient use `numpy.fft` on `tensor.detach().numpy()`; with one, real and imaginary part are "
    "products with matrices of cosines and sines: `x @ cos(2 * pi / n * outer(arange(n), arange(n)))`, and minus that of sin"
)
globals().update(refused("fft", _NAMES, _INSTEAD))
__getattr__ = _absent.refuses("fft")
