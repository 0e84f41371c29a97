"""``torch.version``: what this was built with, for files that ask: no CUDA of its own (CuPy brings it), no ROCm."""

from __future__ import annotations

__version__ = "0.2.0"
git_version: str | None = None
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
