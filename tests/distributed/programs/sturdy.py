"""One rank of several behaves badly, in a way that the first argument names."""

import os
import signal
import socket
import sys
import time
from datetime import timedelta

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.parallel import DistributedDataParallel

HOW = sys.argv[1]
if HOW == "late, elsewhere":  # each rank takes the others to be on other machines
    socket.gethostname = lambda: f"machine of process {os.getpid()}"
dist.init_process_group(timeout=timedelta(seconds=240))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
BAD = SIZE // 2
print(f"process {os.getpid()}", flush=True)
dist.barrier()
group = None if HOW == "early, of all" else dist.new_group(timeout=timedelta(seconds=3 if HOW.startswith("late") else 240))
model = DistributedDataParallel(tm.nn.Linear(4, 3), process_group=group)
began = time.monotonic()
for step in range(4):
    if step == 2:
        print(f"a round takes {(time.monotonic() - began) / 2}", flush=True)
    if step == 2 and RANK == BAD:
        print(f"fails at {time.monotonic()}", flush=True)
        if HOW == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif HOW == "raises":
            raise ValueError("my batch is broken")
        elif HOW == "memory":
            tm.device("cpu").pool.set_limit(1 << 20)
            tm.zeros(1 << 20)
        elif HOW == "other":
            dist.barrier()
        elif HOW == "shape":
            dist.all_reduce(tm.zeros(5))
        elif HOW == "dtype":
            dist.all_reduce(tm.zeros(3, dtype=tm.float64))
        elif HOW.startswith("early"):
            break
        elif HOW == "silent":
            os._exit(0)
        elif HOW.startswith("late"):
            time.sleep(600)
    if step == 2 and HOW in ("other", "shape", "dtype"):
        dist.all_reduce(tm.zeros(3))
    F.mse_loss(model(tm.ones(2, 4)), tm.zeros(2, 3)).backward()
print("the end")
