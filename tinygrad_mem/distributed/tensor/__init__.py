"""``torch.distributed.tensor``'s names: how a tensor lies over ranks. A rank's part is an ordinary tensor here."""

from ... import absent as _absent
from . import parallel as parallel
from .placement import *

__getattr__ = _absent.refuses("distributed")
