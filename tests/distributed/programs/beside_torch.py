"""All that is compared with PyTorch's ranks, in one launch: to import PyTorch takes longer than each of them."""

import torch.distributed

from tests.distributed.programs.against_torch import same_buckets, same_numbers
from tests.distributed.programs.gloo import RANK
from tests.distributed.programs.pipelining_torch import same_pipelines
from tests.distributed.programs.zero_torch import same_stages

for check in (same_numbers, same_buckets, same_pipelines, same_stages):
    check()
    print(f"{check.__name__} on rank {RANK}\n", end="", flush=True)
torch.distributed.destroy_process_group()
