"""Devices: their arrays, kernels, pools and random numbers."""

from .base import device as device
from .base import opened as opened
from .cpu import CPU as CPU
from .cuda import CUDA as CUDA
from .cuda import cuda_problem as cuda_problem
from .dry import apart as apart
from .dry import dry_run as dry_run
from .dry import noted as noted
from .dry import refuse_outside as refuse_outside
from .meta import Meta as Meta
from .pool import Pool as Pool
from .pool import round_up as round_up
from .random import FIRST as FIRST
from .random import Draws as Draws
from .random import Generator as Generator
