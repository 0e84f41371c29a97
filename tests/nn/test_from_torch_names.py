"""A name of PyTorch's becomes ours or refuses to be used, whatever way the network has it: none is kept."""

from __future__ import annotations

import enum
import functools
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tinygrad_mem as tm
from tinygrad_mem import from_torch
from tinygrad_mem.errors import NotOfferedError
from tinygrad_mem.utils.from_torch import _Conversion
from tinygrad_mem.utils.torch_names import Names, NotOffered, is_torchs

PLACES = (
    "torch",
    "torch.nn",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.nn.utils",
    "torch.utils.checkpoint",
    "torch.optim",
)
PLACES += (
    "torch.optim.lr_scheduler",
    "torch.autograd",
    "torch.linalg",
    "torch.special",
    "torch.fft",
    "torch.cuda",
    "torch.amp",
)
T = TypeVar("T")


@pytest.fixture(scope="module")
def conversion() -> _Conversion:
    return _Conversion(Names(torch), None)


def ways(module: types.ModuleType, name: str) -> dict[str, Any]:
    """Functions and objects that have ``module.name``, each in another way; called, they give it."""
    value = getattr(module, name)
    place = {"__name__": "user", "module": module, name: value, "alias": value, "inside": [{"key": (value,)}]}
    source = f"""
def by_name(): return {name}
def by_alias(): return alias
def by_module(): return module.{name}
def by_default(it={name}): return it
def by_keyword(*, it={name}): return it
def imported():
    from {module.__name__} import {name}
    return {name}
def of_a_list(): return inside[0]["key"][0]
def enclosing(it):
    def enclosed(): return it
    return enclosed
class Kind:
    it = {name}
    held = staticmethod({name}) if callable({name}) else {name}
def of_a_class(): return Kind.it
def of_a_static_method(): return Kind.held
def of_an_object(): return Kind().it
"""
    exec(source, place)
    place["by_closure"] = place["enclosing"](value)
    place["of_a_partial"] = functools.partial(place["by_default"], value)
    return {key: each for key, each in place.items() if key.startswith(("by_", "of_", "imported"))}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore")  # some names of PyTorch's warn that they are old
def test_no_name_is_kept_whatever_way_it_came(place: str, conversion: _Conversion):
    module = import_module(place)
    kept, count, said = [], 0, []
    for name in sorted(vars(module)):
        value = getattr(module, name)
        if name.startswith("_") or not is_torchs(value) or isinstance(value, types.ModuleType):
            continue
        for way, reach in ways(module, name).items():
            count += 1
            try:
                found = conversion.value(reach)()
            except (AttributeError, ImportError) as error:  # our module says so
                said.append(name in str(error))
                continue
            if isinstance(found, NotOffered):
                with pytest.raises(NotOfferedError, match="which has no counterpart here"):
                    found()
            elif is_torchs(found):
                kept.append((way, name))
    assert kept == []
    assert all(said)
    assert count > 20


def test_an_offered_name_is_ours_whatever_way_it_came(conversion: _Conversion):
    for module, ours, names in (
        (torch, tm, "cat relu Tensor float16 channels_last no_grad Size device Generator"),
        (F, tm.nn.functional, "gelu linear conv2d scaled_dot_product_attention"),
        (nn, tm.nn, "Linear Parameter Module Sequential"),
        (torch.optim, tm.optim, "AdamW"),
    ):
        for name in names.split():
            for way, reach in ways(module, name).items():
                found = conversion.value(reach)()
                assert getattr(found, "__func__", found) is getattr(ours, name), (way, name)


def test_a_name_that_only_sounds_alike_is_not_taken(conversion: _Conversion):
    """``clone`` is a function here, and the method of another class in PyTorch."""
    for value in (torch.no_grad().clone, torch.Generator().seed, torch.ops.aten.relu, torch.sparse.softmax):
        assert isinstance(conversion.value(value), (NotOffered, types.MethodType, types.BuiltinFunctionType))
        assert conversion.value(value) is not getattr(tm, getattr(value, "__name__", ""), None)


class Kind(enum.Enum):
    FIRST = 1


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Config:
    width: int = 6
    dtype: Any = torch.float32
    act: Any = F.silu
    kinds: list = field(default_factory=lambda: [Kind.FIRST])


class Output(OrderedDict):
    """As Hugging Face's: a dict whose items are attributes."""

    def __init_subclass__(cls) -> None:
        raise AssertionError("a class that is whole is not made again")

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Cache(Generic[T]):
    """A user's class that is no module, and reaches PyTorch."""

    __slots__ = ("__dict__", "rows")

    def __init__(self) -> None:
        self.rows: list = []
        self.scale = torch.full((1,), 2.0)

    def update(self, x: Any) -> Any:
        self.rows.append(x)
        return torch.cat(self.rows[-1:]) * self.scale


def checked(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_tensor(args[1]):
            raise TypeError("expected a tensor")
        return function(*args, **kwargs)

    return call


@functools.cache
def ramp(n: int) -> Any:
    return torch.arange(n, dtype=torch.float32) / n


REGISTRY = {"gelu": functools.partial(F.gelu, approximate="tanh"), "silu": F.silu}


class Twice(nn.Linear):
    """A user's layer over PyTorch's."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self._times = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self._times


class Signed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * torch.sign(x)


class Model(nn.Module):
    registry = REGISTRY

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.layer = Twice(self.config.width)
        self.layer.note = "kept"
        self._cache = Cache[int]()
        self._pair = Pair(torch.ones(2), F.relu)
        self.free = torch.randn(self.config.width, requires_grad=True)

    @torch.no_grad()
    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean() * self.config.kinds[0].value

    @torch.compiler.disable
    def activated(self, x: torch.Tensor) -> torch.Tensor:
        return self.registry["gelu"](x) + self._pair.right(x) * self._pair.left.sum()

    @checked
    def forward(self, x: torch.Tensor) -> Output:
        import torch.nn.functional as inner
        from torch import einsum

        x = self.config.act(self.layer(x.to(self.config.dtype)))
        x = inner.dropout(einsum("ij,j->ij", x, ramp(x.shape[1])), 0.0) + self.free
        x = Signed.apply(self._cache.update(self.activated(x)))
        assert isinstance(x, torch.Tensor)
        return Output(y=x - self.mean(x), kind=self.config.kinds[0])


def test_code_of_many_kinds_trains_alike():
    torch.manual_seed(0)
    theirs = Model()
    ours = from_torch(theirs)
    x = np.random.default_rng(0).standard_normal((4, 6))
    mine, other = ours(tm.tensor(x)), theirs(torch.tensor(x))
    assert mine.kind is Kind.FIRST
    np.testing.assert_allclose(mine.y.detach().numpy(), other.y.detach().numpy(), rtol=1e-5, atol=1e-6)
    mine.y.sum().backward()
    other.y.sum().backward()
    for p, q in ((ours.layer.weight, theirs.layer.weight), (ours.layer.bias, theirs.layer.bias), (ours.free, theirs.free)):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-4, atol=1e-5)
    assert (ours.layer.note, ours.layer._times, ours._pair.left.tolist()) == ("kept", 2.0, [1.0, 1.0])
    assert len(theirs._cache.rows) == len(ours._cache.rows) == 1, "each has a cache of its own"
    assert type(ours._cache).__name__ == "Cache"
    assert ours.config.dtype is tm.float32
    assert theirs.config.dtype is torch.float32


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.way = torch.lobpcg

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.way(x)


def test_what_is_not_offered_is_said_when_it_is_used():
    ours = from_torch(Spectral())
    with pytest.raises(NotOfferedError, match=r"the network uses torch\.lobpcg, which has no counterpart here"):
        ours(tm.ones(4))
    with pytest.raises(NotOfferedError, match=r"torch\.lobpcg"):
        ours.way.out = 1
    assert not isinstance(1, ours.way)
    assert repr(ours.way) == "<torch.lobpcg, which has no counterpart here>"


def test_hooks_of_tensors_are_refused():
    layer = nn.Linear(2, 2)
    layer.weight.register_hook(lambda g: g)
    with pytest.raises(NotOfferedError, match=r"weight: its hooks are functions of PyTorch's"):
        from_torch(layer)


def test_a_module_of_pytorchs_is_read_once_and_again_when_it_has_more_names(monkeypatch: pytest.MonkeyPatch):
    before = Names(torch)
    read: list[str] = []
    names: Any = import_module("tinygrad_mem.utils.torch_names")
    own = names.place_of
    monkeypatch.setattr(names, "place_of", lambda place: read.append(place) or own(place))
    again = Names(torch)
    assert read == []
    assert (again.ours, again.absent) == (before.ours, before.absent)

    def later() -> None: ...

    later.__module__ = "torch.nn.utils"
    assert not again.knows(later)
    monkeypatch.setattr(nn.utils, "later", later, raising=False)
    found = Names(torch)
    assert read == ["torch.nn.utils"]
    assert found.knows(later)
    assert found.of(F.relu) is tm.nn.functional.relu
