"""Where published files import from, and what is said of names that are not there."""

from __future__ import annotations

import importlib
import pkgutil
import re
import types
from typing import Any

import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.absent import INSTEAD, PLACES

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


ROOTS = {
    "": (torch, tm),
    "Tensor": (torch.zeros(1), tm.zeros(1)),
    "optim": (torch.optim, tm.optim),
    "optim.lr_scheduler": (torch.optim.lr_scheduler, tm.optim.lr_scheduler),
    "nn.init": (torch.nn.init, tm.nn.init),
    "nn.utils": (torch.nn.utils, tm.nn.utils),
    "utils.data": (torch.utils.data, tm.utils.data),
}
OF_PYTHON = (
    "typing",
    "collections",
    "functools",
    "contextlib",
    "builtins",
    "enum",
    "warnings",
    "types",
    "weakref",
    "_collections_abc",
)


def offered(root: Any, name: str) -> bool:
    try:
        getattr(root, name)
    except AttributeError:
        return False
    except Exception:  # a property that refuses this tensor
        return True
    return True


def absent(place: str) -> list[str]:
    """Public names that PyTorch has there and we have not, without what its files happen to import from Python."""
    theirs, ours = ROOTS[place]
    names = []
    for name in dir(theirs):
        if name.startswith("_") or offered(ours, name):
            continue
        value = getattr(type(theirs) if place == "Tensor" else theirs, name, None)
        if isinstance(value, types.ModuleType) and not value.__name__.startswith("torch"):
            continue
        if (getattr(value, "__module__", None) or "").startswith(OF_PYTHON) and place != "Tensor":
            continue
        names.append(name)
    return names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ROOTS)
def test_what_torch_has_and_we_have_not_says_what_to_do(place: str):
    _, ours = ROOTS[place]
    silent, imported = [], {"TYPE_CHECKING", "Tensor", "inf", "torch", "EPOCH_DEPRECATION_WARNING"}
    for name in absent(place):
        with pytest.raises(AttributeError) as error:
            getattr(ours, name)
        said = re.fullmatch(r"(.+) is not offered: (\w.{3,})", str(error.value))
        known = place not in ("", "Tensor") and name in imported
        if not known and (said is None or not said[1].endswith(name)):
            silent.append(name)
        assert not hasattr(ours, name)
        assert getattr(ours, name, 7) == 7
    assert not silent, "these names of PyTorch are neither offered nor explained in absent.py"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("place", "name"), [*(("", n) for n in INSTEAD), *((p, n) for p in PLACES for n in PLACES[p])])
def test_only_names_of_torch_that_are_not_here_are_explained(place: str, name: str):
    theirs, ours = ROOTS[place]
    assert name in dir(theirs) or offered(theirs, name), "torch has it no longer"
    assert not offered(ours, name), "it is offered: take it out of absent.py"


def test_families_explain_nothing_that_is_not_of_torch():
    for name in ("copy", "Tensr", "is_finite", "sparsity", "gruff", "uint", "nonsense", "abss"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(tm, name)


def test_tensors_tell_of_a_misspelt_attribute_and_keep_their_own_words():
    x = tm.zeros(2)
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'nonsense'"):
        x.nonsense  # noqa: B018  # pyright: ignore
    with pytest.raises(AttributeError, match="the tensor is on cpu, not on a GPU"):
        x.__cuda_array_interface__  # noqa: B018
    assert not hasattr(x, "__array_struct__")
    assert not hasattr(tm.nn.Parameter(x), "is_vulkan")
    x.mine = 3  # pyright: ignore
    assert x.mine == 3  # pyright: ignore


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


WITH_SENTENCES = [
    found.name
    for found in pkgutil.walk_packages(tm.__path__, "tinygrad_mem.")
    if not found.name.endswith("__main__") and hasattr(importlib.import_module(found.name), "__getattr__")
]


@pytest.mark.parametrize("place", ["tinygrad_mem", *WITH_SENTENCES])
def test_an_import_says_what_asking_for_the_name_says(place: str):
    """``from MODULE import NAME`` drops an AttributeError and its sentence, so an import meets an ImportError."""
    names = ["vander", "nonsense"] if place == "tinygrad_mem" else ["nonsense"]
    for name in names:
        with pytest.raises(AttributeError) as asked:
            getattr(importlib.import_module(place), name)
        for line in (f"from {place} import {name}", f"from {place} import {name} as other"):
            with pytest.raises(ImportError) as imported:
                exec(line)
            assert str(imported.value) == str(asked.value)
            assert imported.value.name == name


def test_many_modules_have_sentences():
    assert len(WITH_SENTENCES) > 20


def test_any_other_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        tm.nonsense  # noqa: B018
    assert isinstance(tm, types.ModuleType)
