"""``torch.version``: what this was built with, for files that ask: no CUDA of its own (CuPy brings it), no ROCm."""

from __future__ import annotations

from . import __version__ as __version__

git_version: str | None = None
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
