"""``torch.special``: mathematical functions under their second names."""

from __future__ import annotations

from . import absent as _absent
from .functional.door import PUBLIC as _PUBLIC

globals().update(_PUBLIC["special"])
__getattr__ = _absent.refuses("special")
