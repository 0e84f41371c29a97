"""Matrix products on a GPU are cuBLAS's, in the precision of their operands; attention has one kernel."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

matmul = SimpleNamespace(allow_tf32=False, allow_fp16_reduced_precision_reduction=False)


def enable_flash_sdp(enabled: bool) -> None:
    """Do nothing: attention has one kernel, whose memory is linear in the tokens."""


enable_mem_efficient_sdp = enable_math_sdp = enable_cudnn_sdp = enable_flash_sdp


@contextlib.contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True, enable_cudnn: bool = True
) -> Iterator[None]:
    """Do nothing: attention has one kernel."""
    yield
