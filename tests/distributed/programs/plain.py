"""Ranks that never meet, for tests of the launcher alone: the first argument says what they do."""

import os
import subprocess
import sys
import time

RANK = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])  # of MPICH, of Open MPI
how, *rest = sys.argv[1:]
if how == "prints":
    for _ in range(200):
        print(f"{RANK}" * 4000)
    print("é \x1b", rest, sep="")
    print("no end", end="", file=sys.stderr)
elif how == "ends":
    if RANK == 1:
        print("I end", file=sys.stderr)
        sys.exit(7)
elif how == "sleeps":
    child = subprocess.Popen(["sleep", "1000"])
    print(f"process {os.getpid()}\nprocess {child.pid}", flush=True)
    time.sleep(1000)
elif how == "before":
    if RANK == 1:
        raise ValueError("before it joins")
    import tinygrad_mem.distributed as dist  # the others start in a tenth of the time

    print(f"process {os.getpid()}", flush=True)
    dist.init_process_group()
