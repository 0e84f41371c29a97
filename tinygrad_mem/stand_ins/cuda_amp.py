"""The names of ``torch.cuda.amp``, the older form of ``amp``. Each warns, as PyTorch's do, and names its replacement."""

from __future__ import annotations

import warnings
from typing import Any

from .. import amp
from ..dtypes import float16


def _deprecated(name: str, instead: str) -> None:
    message = f"`tinygrad_mem.cuda.amp.{name}(args...)` is deprecated. Please use `tinygrad_mem.amp.{name}({instead})` instead."
    warnings.warn(message, FutureWarning, stacklevel=3)


class autocast(amp.autocast):
    """``amp.autocast("cuda", ...)``."""

    def __init__(self, enabled: bool = True, dtype: Any = float16, cache_enabled: bool = True) -> None:
        _deprecated("autocast", "'cuda', args...")
        super().__init__("cuda", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(amp.GradScaler):
    """``amp.GradScaler("cuda", ...)``."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _deprecated("GradScaler", "'cuda', args...")
        super().__init__("cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd: Any = None, *, cast_inputs: Any = None) -> Any:
    """``amp.custom_fwd(..., device_type="cuda")``."""
    _deprecated("custom_fwd", "args..., device_type='cuda'")
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Any) -> Any:
    """``amp.custom_bwd(..., device_type="cuda")``."""
    _deprecated("custom_bwd", "args..., device_type='cuda'")
    return amp.custom_bwd(bwd, device_type="cuda")
