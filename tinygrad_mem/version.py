"""``torch.version``, for files that ask with what the library was built: without CUDA (CuPy brings it) and without ROCm."""

from __future__ import annotations

__version__ = "0.2.0"
git_version: str | None = None
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
