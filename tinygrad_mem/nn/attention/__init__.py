"""``torch.nn.attention``: attention of sequences without padding, and PyTorch's switch between kernels."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Any

from ... import absent as _absent
from . import varlen as varlen


class SDPBackend(enum.IntEnum):
    """PyTorch's names of attention kernels. Here there is one kernel."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextlib.contextmanager
def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[None]:
    """``with sdpa_kernel(SDPBackend.MATH):`` changes nothing: attention has one kernel, whose memory is linear in the tokens.

    Raises:
        TypeError: a backend is not an :class:`SDPBackend`.
    """
    for backend in [backends] if isinstance(backends, SDPBackend) else backends:
        if not isinstance(backend, SDPBackend):
            raise TypeError(f"sdpa_kernel: expected an SDPBackend or a list of them, found {backend!r}")
    yield


__getattr__ = _absent.refuses("nn.attention")
