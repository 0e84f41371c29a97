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
from .collectives import all_gather as all_gather
from .collectives import all_gather_into_tensor as all_gather_into_tensor
from .collectives import all_reduce as all_reduce
from .collectives import all_to_all_single as all_to_all_single
from .collectives import barrier as barrier
from .collectives import broadcast as broadcast
from .collectives import irecv as irecv
from .collectives import isend as isend
from .collectives import recv as recv
from .collectives import reduce as reduce
from .collectives import reduce_scatter_tensor as reduce_scatter_tensor
from .collectives import send as send
from .data_parallel import DistributedDataParallel as _DistributedDataParallel
from .device_mesh import DeviceMesh as DeviceMesh
from .device_mesh import init_device_mesh as init_device_mesh
from .group import ProcessGroup as ProcessGroup
from .group import ReduceOp as ReduceOp
from .group import Work as Work
from .groups import GroupMember as GroupMember
from .groups import default_pg_timeout as default_pg_timeout
from .groups import destroy_process_group as destroy_process_group
from .groups import get_backend as get_backend
from .groups import get_global_rank as get_global_rank
from .groups import get_group_rank as get_group_rank
from .groups import get_process_group_ranks as get_process_group_ranks
from .groups import get_rank as get_rank
from .groups import get_world_size as get_world_size
from .groups import init_process_group as init_process_group
from .groups import is_available as is_available
from .groups import is_gloo_available as is_gloo_available
from .groups import is_initialized as is_initialized
from .groups import is_mpi_available as is_mpi_available
from .groups import is_nccl_available as is_nccl_available
from .groups import is_torchelastic_launched as is_torchelastic_launched
from .groups import new_group as new_group

__getattr__ = _absent.refuses("distributed")
