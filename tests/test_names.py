"""Where published files import from, and what is said of names that are not there."""

from __future__ import annotations

import types

import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.absent import INSTEAD

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
import torch.backends.cudnn as cudnn
import torch.nn.functional as F
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


@pytest.mark.parametrize("name", INSTEAD)
def test_what_torch_has_and_we_have_not_says_what_to_do(name: str):
    assert hasattr(torch, name), "torch has it no longer"
    assert not hasattr(tm, name)
    with pytest.raises(AttributeError, match=f"{name} is not offered: "):
        getattr(tm, name)


def test_any_other_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        tm.nonsense  # noqa: B018
    assert isinstance(tm, types.ModuleType)
