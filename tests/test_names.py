"""Where published files import from, and what is said of names that are not there."""

from __future__ import annotations

import pytest

import tinygrad_mem as tm

LINES = """
from torch import nn, optim, Tensor
from torch.nn import init, Parameter
from torch.nn.parameter import Parameter
from torch.nn.utils.clip_grad import clip_grad_norm_
from torch.autograd import Variable, Function
from torch.autograd.function import Function, once_differentiable
from torch.autograd.gradcheck import gradcheck
from torch.optim import Optimizer
from torch.optim.optimizer import Optimizer, required
from torch.optim.adam import Adam
from torch.optim.lr_scheduler import _LRScheduler, LRScheduler, StepLR
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.dataset import Dataset, Subset, TensorDataset
from torch.utils.data.sampler import RandomSampler, Sampler, SubsetRandomSampler
from torch.utils.data.dataloader import DataLoader, default_collate
from torch.utils.dlpack import from_dlpack, to_dlpack
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, noop_context_fn, set_checkpoint_early_stop
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch import amp, autocast
from torch.amp import autocast, GradScaler, custom_bwd, custom_fwd
from torch.cuda.amp import autocast, GradScaler
import torch.backends.cudnn as cudnn
import torch.nn.functional as F
from torch.nn.modules.utils import _single, _pair, _triple, _quadruple
from torch.nn.modules.batchnorm import _BatchNorm, BatchNorm2d
from torch.nn.modules.conv import _ConvNd, Conv2d
from torch.nn.modules.loss import _Loss, _WeightedLoss, CrossEntropyLoss
from torch.nn.modules.container import ModuleList, Sequential
from torch.nn.modules import Module, Linear, activation, dropout, padding, pooling
from torch.nn.common_types import _size_2_t, _size_1_t
from torch.nn.utils import weight_norm, remove_weight_norm, parametrizations
from torch.nn.utils.parametrizations import weight_norm
from torch.fx import wrap
from torch.distributed.fsdp import fully_shard, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, register_fsdp_forward_method
from torch.distributed.checkpoint import save, load
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.jit import is_scripting, unused, ignore, export
""".strip().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_published_imports_find_what_they_ask_for(line: str):
    spaces = {}
    for library in ("torch", "tinygrad_mem"):
        spaces[library] = {}
        exec(line.replace("torch", library, 1), spaces[library])
    names = spaces["torch"].keys() - {"__builtins__"}
    assert names <= spaces["tinygrad_mem"].keys()
    for name in names:
        assert isinstance(spaces["tinygrad_mem"][name], type) == isinstance(spaces["torch"][name], type), name


def test_a_schedule_of_ones_own():
    class Warmup(tm.optim.lr_scheduler._LRScheduler):
        def __init__(self, optimizer, steps):
            self.steps = steps
            super().__init__(optimizer)

        def get_lr(self):
            return [base * min(1.0, (self.last_epoch + 1) / self.steps) for base in self.base_lrs]

    optimizer = tm.optim.SGD([tm.nn.Parameter(tm.ones(2))], lr=1.0)
    schedule = Warmup(optimizer, 4)
    rates = []
    for _ in range(5):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_stand_ins():
    assert not tm.jit.is_scripting()
    assert not tm.jit.is_tracing()

    @tm.jit.ignore
    @tm.jit.ignore(drop=True)
    @tm.jit.unused
    @tm.jit.export
    @tm.jit.script
    def double(x):
        return 2 * x

    assert double(3) == 6
    assert tm.fx.wrap(double) is double
    assert tm.fx.wrap("len") == "len"
    tm._assert(True, "never")
    with pytest.raises(AssertionError, match="too short"):
        tm._assert(tm.zeros(1) > 0, "too short")
    for module, name in ((tm.jit, "trace"), (tm.fx, "symbolic_trace")):
        with pytest.raises(AttributeError, match=f"{name} is not offered: leave it out"):
            getattr(module, name)
