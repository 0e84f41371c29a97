"""This rank, in our group and in one of PyTorch's under gloo. The program has one argument: a file where its ranks meet."""

import os
import sys

import torch
import torch.distributed

import tinygrad_mem.distributed as dist

dist.init_process_group()
RANK, SIZE = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # nobody is asked for the name of this machine
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=SIZE)
