"""Several processes that train one model: ``torch.distributed``'s names.

``group.py`` says what a process group offers; ``mpi.py``, ``nccl.py`` and ``fake.py`` are the backends; ``groups.py`` and
``collectives.py`` have the public functions.
"""

from .. import absent as _absent
from . import checkpoint as checkpoint
from . import context_parallel as context_parallel
from . import fsdp as fsdp
from . import optim as optim
from . import pipelining as pipelining
from . import regions as regions
from . import tensor as tensor
from .collectives import *
from .data_parallel import DistributedDataParallel as _DistributedDataParallel
from .device_mesh import DeviceMesh as DeviceMesh
from .device_mesh import init_device_mesh as init_device_mesh
from .group import ProcessGroup as ProcessGroup
from .group import ReduceOp as ReduceOp
from .group import Work as Work
from .groups import *

__getattr__ = _absent.refuses("distributed")
