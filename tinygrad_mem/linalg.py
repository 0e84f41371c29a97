"""``torch.linalg``: norms and products."""

from __future__ import annotations

from . import absent as _absent
from .functional.door import PUBLIC as _PUBLIC

globals().update(_PUBLIC["linalg"])
__getattr__ = _absent.refuses("linalg")
