"""``torch.distributed.tensor``'s names: how a tensor lies over ranks. A rank's part is an ordinary tensor here."""

from ... import absent as _absent
from . import parallel as parallel
from .placement import DTensor as DTensor
from .placement import Placement as Placement
from .placement import Replicate as Replicate
from .placement import Shard as Shard

__getattr__ = _absent.refuses("distributed")
