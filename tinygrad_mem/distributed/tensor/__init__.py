"""``torch.distributed.tensor``'s names for how a tensor is divided over ranks. A rank's part is an ordinary tensor here."""

from ... import absent as _absent
from . import parallel as parallel
from .placement import *

__getattr__ = _absent.refuses("distributed")
