"""Module: registration, walking, modes, dtypes and devices, text; the same class body run by both frameworks where possible."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem import memory, nn, scope
from tinygrad_mem.devices import device
from tinygrad_mem.errors import NotOfferedError


def network(framework: Any) -> Any:
    """A net with nesting, a shared child, buffers of both kinds, an unused name and a list."""
    n = framework.nn

    class Block(n.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = n.Linear(3, 3)
            self.register_buffer("kept", framework.ones(2))
            self.register_buffer("passing", framework.zeros(2), persistent=False)
            self.register_parameter("nothing", None)

        def forward(self, x: Any) -> Any:
            return self.fc(x).relu()

    class Net(n.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Block()
            self.again = self.first
            self.scale = n.Parameter(framework.ones(1))
            self.rest = n.ModuleList([n.Linear(3, 2), n.Sequential(n.ReLU(), n.Linear(2, 1))])
            self.gone = None

        def forward(self, x: Any) -> Any:
            return self.rest[1](self.rest[0](self.again(self.first(x)) * self.scale))

    return Net()


class Both:
    """The same question asked of both frameworks."""

    def __init__(self) -> None:
        self.mine, self.other = network(tm), network(torch)

    def same(self, ask: Any) -> None:
        found, expected = ask(self.mine), ask(self.other)
        assert found == expected


WALKS = {
    "named_modules": lambda m: [(n, type(x).__name__) for n, x in m.named_modules()],
    "named_modules again": lambda m: [n for n, _ in m.named_modules(prefix="a", remove_duplicate=False)],
    "modules": lambda m: [type(x).__name__ for x in m.modules()],
    "named_children": lambda m: [n for n, _ in m.named_children()],
    "children": lambda m: [type(x).__name__ for x in m.children()],
    "named_parameters": lambda m: [(n, tuple(p.shape)) for n, p in m.named_parameters()],
    "named_parameters again": lambda m: [n for n, _ in m.named_parameters("x", remove_duplicate=False)],
    "own parameters": lambda m: [n for n, _ in m.named_parameters(recurse=False)],
    "parameters": lambda m: [tuple(p.shape) for p in m.parameters()],
    "named_buffers": lambda m: [n for n, _ in m.named_buffers()],
    "own buffers": lambda m: len(list(m.buffers(recurse=False))),
    "state_dict": lambda m: [(k, tuple(v.shape)) for k, v in m.state_dict().items()],
    "prefixed state_dict": lambda m: list(m.state_dict(prefix="net.")),
    "metadata": lambda m: dict(m.state_dict()._metadata),
    "text": repr,
    "dir": lambda m: [n for n in dir(m) if n in ("first", "scale", "rest", "kept", "forward", "train")],
    "submodule": lambda m: repr(m.get_submodule("rest.1.1")),
    "self": lambda m: m.get_submodule("") is m,
    "parameter": lambda m: tuple(m.get_parameter("rest.0.weight").shape),
    "buffer": lambda m: m.get_buffer("first.kept").tolist(),
}


@pytest.mark.parametrize("ask", WALKS.values(), ids=WALKS)
def test_same_answer_as_pytorch(ask: Any):
    Both().same(ask)


def _names(order: list) -> Any:
    return lambda m: order.append(type(m).__name__)


def test_apply_calls_children_first():
    mine, other = [], []
    net = network(tm)
    assert net.apply(_names(mine)) is net
    network(torch).apply(_names(other))
    assert mine == other


def test_modes_reach_every_module():
    net = network(tm)
    assert net.eval() is net
    assert not any(m.training for m in net.modules())
    assert net.train() is net
    assert all(m.training for m in net.modules())
    with pytest.raises(ValueError, match="training mode is expected to be boolean"):
        net.train(1)  # type: ignore[arg-type]


def _registered(m: Any) -> tuple:
    return sorted(m._parameters), sorted(m._buffers), sorted(m._modules), sorted(k for k in ("a", "b") if k in m.__dict__)


@pytest.mark.parametrize("second", ["parameter", "module", "buffer", "number", "none"])
@pytest.mark.parametrize("first", ["parameter", "module", "buffer", "number"])
def test_assigning_over_another_kind(first: str, second: str):
    """Whatever PyTorch allows or refuses, so do we, with the same tables afterwards."""

    def run(framework: Any) -> Any:
        m = framework.nn.Module()
        make = {
            "parameter": lambda: framework.nn.Parameter(framework.ones(1)),
            "module": lambda: framework.nn.ReLU(),
            "buffer": lambda: framework.zeros(1),
            "number": lambda: 3,
            "none": lambda: None,
        }
        m.register_buffer("a", framework.ones(1)) if first == "buffer" else setattr(m, "a", make[first]())
        try:
            m.a = make[second]()
        except Exception as error:
            return isinstance(error, TypeError), _registered(m)
        return _registered(m)

    found, expected = run(tm), run(torch)
    assert found == expected


def test_deleting_attributes():
    net = network(tm)
    del net.scale, net.first, net.again.kept
    assert [n for n, _ in net.named_parameters()][:1] == ["again.fc.weight"]
    assert "kept" not in net.again._buffers
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'scale'"):
        _ = net.scale
    with pytest.raises(AttributeError):
        del net.scale


class _TooEarly(nn.Module):
    def __init__(self, value: Any) -> None:
        self.a = value


@pytest.mark.parametrize(
    ("value", "what"), [(nn.Parameter(), "parameters"), (nn.ReLU(), "module")], ids=["parameter", "module"]
)
def test_assigning_before_init(value: Any, what: str):
    with pytest.raises(AttributeError, match=rf"cannot assign {what} before Module.__init__\(\) call"):
        _TooEarly(value)


BAD = [
    (lambda m: m.register_parameter("a.b", None), KeyError, "parameter name can.*t contain"),
    (lambda m: m.register_parameter("", None), KeyError, "parameter name can.*t be empty string"),
    (lambda m: m.register_parameter("train", None), KeyError, "attribute 'train' already exists"),
    (lambda m: m.register_parameter(3, None), TypeError, "parameter name should be a string. Got int"),
    (lambda m: m.register_parameter("w", tm.ones(1)), TypeError, "cannot assign 'Tensor' object to parameter 'w'"),
    (lambda m: m.register_buffer("forward", None), KeyError, "attribute 'forward' already exists"),
    (lambda m: m.register_buffer("b", 3), TypeError, "cannot assign 'int' object to buffer 'b'"),
    (lambda m: m.add_module("m", 3), TypeError, "int is not a Module subclass"),
    (lambda m: m.add_module("m.n", None), KeyError, "module name can.*t contain"),
    (lambda m: setattr(m, "scale", tm.ones(1)), TypeError, "cannot assign 'Tensor' as parameter 'scale'"),
    (lambda m: setattr(m, "first", 3), TypeError, "cannot assign 'int' as child module 'first'"),
    (lambda m: setattr(m.first, "kept", 3), TypeError, "cannot assign 'int' as buffer 'kept'"),
    (lambda m: m.get_submodule("rest.7"), AttributeError, "ModuleList has no attribute `7`"),
    (lambda m: m.get_submodule("scale"), AttributeError, "`scale` is not an nn.Module"),
    (lambda m: m.get_parameter("first.kept"), AttributeError, "`kept` is not an nn.Parameter"),
    (lambda m: m.get_parameter("first.other"), AttributeError, "Block has no attribute `other`"),
    (lambda m: m.get_buffer("scale"), AttributeError, "`scale` is not a buffer"),
    (lambda m: nn.Module()(1), NotImplementedError, r"Module \[Module\] is missing the required \"forward\" function"),
    (lambda m: nn.Module(3), TypeError, "got unexpected arguments"),
    (lambda m: nn.Parameter([1.0]), TypeError, "expected a Tensor, found list"),
    (lambda m: m.to(tm.int64), TypeError, "only accepts floating point dtypes, but got desired dtype=int64"),
    (lambda m: m.set_submodule("", nn.ReLU()), ValueError, "Cannot set the submodule without a target name"),
    (lambda m: m.set_submodule("rest.9", nn.ReLU(), strict=True), AttributeError, "ModuleList has no attribute `9`"),
    (lambda m: m.set_submodule("first.kept", nn.ReLU()), AttributeError, "`kept` is not an nn.Module"),
    (lambda m: m.share_memory(), NotOfferedError, "share_memory is not offered"),
    (lambda m: m.register_backward_hook(print), NotOfferedError, "use register_full_backward_hook"),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), BAD, ids=[m[:40] for _, _, m in BAD])
def test_errors(wrong: Any, kind: Any, message: str):
    with pytest.raises(kind, match=message):
        wrong(network(tm))


def test_set_submodule():
    net = network(tm)
    net.set_submodule("rest.1.0", nn.Tanh())
    net.set_submodule("extra", nn.ReLU())
    assert repr(net.rest[1][0]) == "Tanh()"
    assert repr(net.extra) == "ReLU()"


def test_a_computed_tensor_is_no_parameter():
    p = nn.Parameter(tm.ones(2))
    p.detach_()
    computed = nn.Parameter(tm.ones(1))
    computed._node = (nn.Parameter(tm.ones(1)) * 2).grad_fn
    with pytest.raises(ValueError, match="Cannot assign non-leaf Tensor to parameter 'w'"):
        nn.Module().register_parameter("w", computed)


def test_parameters_share_what_they_are_made_of_and_are_leaves():
    data = tm.ones(3)
    p = nn.Parameter(data)
    assert p.requires_grad
    assert p.is_leaf
    assert p.array is data.array
    assert not nn.Parameter(tm.ones(2, dtype=tm.int64), requires_grad=False).requires_grad
    assert repr(p).startswith("Parameter containing:\ntensor(")
    assert nn.Parameter().shape == (0,)
    assert isinstance(p * 2, tm.Tensor)
    assert not isinstance(p * 2, nn.Parameter)


def _trained(net: Any) -> Any:
    net(tm.ones(2, 3, dtype=next(net.parameters()).dtype)).sum().backward()
    return net


@pytest.mark.parametrize("move", [lambda m: m.double(), lambda m: m.to(tm.float64), lambda m: m.to("cpu", "float64")])
def test_casting_keeps_the_objects_and_takes_gradients_along(move: Any):
    net = _trained(network(tm))
    before = list(net.parameters())
    gradients = [values(p.grad).astype("f8") for p in before]
    assert move(net) is net
    assert all(p is q for p, q in zip(net.parameters(), before, strict=True))
    assert {p.dtype for p in before} == {tm.float64}
    assert {b.dtype for b in net.buffers()} == {tm.float64}
    for p, g in zip(before, gradients, strict=True):
        np.testing.assert_array_equal(values(p.grad), g)
    _trained(net)


def test_casting_leaves_integers_unless_told():
    norm = nn.BatchNorm1d(2).half()
    assert norm.num_batches_tracked.dtype == tm.int64
    assert norm.float().running_mean.dtype == tm.float32
    norm.requires_grad_(False)
    assert {t.dtype for t in (*norm.type(tm.float64).parameters(), *norm.buffers())} == {tm.float64}


def test_casting_one_parameter_at_a_time():
    """A cast needs the old and the new memory of one parameter together, never of all."""
    net = nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(8)])
    one = 128 * 128 * 4
    gc.collect()
    with memory.track() as track:
        net.half()
    assert track.peak <= device("cpu").pool.used_bytes() + 8 * one // 2 + one


def test_to_meta_and_back():
    net = network(tm)
    pool = device("cpu").pool
    gc.collect()
    held = pool.used_bytes()
    net.to("meta")
    assert pool.used_bytes() < held
    assert all(t.is_meta for t in (*net.parameters(), *net.buffers()))
    net.to_empty(device="cpu")
    assert not any(t.is_meta for t in (*net.parameters(), *net.buffers()))
    net.load_state_dict(network(tm).state_dict())
    net.to_empty(device="meta", recurse=False)
    assert net.scale.is_meta
    assert not net.first.fc.weight.is_meta


def test_a_network_on_meta_takes_no_memory():
    pool = device("cpu").pool
    before = pool.used_bytes(), pool.total_bytes()
    with tm.device("meta"):
        net = nn.Sequential(nn.Linear(100_000, 100_000), nn.BatchNorm1d(100_000))
    assert sum(p.nbytes for p in net.parameters()) > 40e9
    assert (pool.used_bytes(), pool.total_bytes()) == before


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none: bool):
    net = _trained(network(tm))
    kept = [p.grad for p in net.parameters()]
    net.zero_grad(set_to_none)
    for p, grad in zip(net.parameters(), kept, strict=True):
        assert p.grad is (None if set_to_none else grad)
        assert set_to_none or not values(grad).any()


@pytest.mark.parametrize("of", [lambda net: net, lambda net: tm.optim.SGD(net.parameters())], ids=["module", "optimizer"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_frees_a_gradient_while_it_is_one(of: Any, set_to_none: bool):
    net = _trained(network(tm))
    who, count = of(net), len(list(net.parameters()))
    with memory.track() as track:
        track.mark("begin")
        who.zero_grad(set_to_none)
    kinds = [event.kind for event in track.log]
    kinds = kinds[kinds.index(memory.Kind.MARK) + 1 :]
    assert kinds == [memory.Kind.FREE, memory.Kind.LEAVE] * (count if set_to_none else 0)


def test_requires_grad_():
    net = network(tm).requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    assert not net(tm.ones(1, 3)).requires_grad


def test_shared_children_stay_shared_in_copies():
    net = nn.Sequential(nn.Linear(2, 2))
    net.append(net[0])
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin[0] is twin[1]
        assert twin[0] is not net[0]
        assert len(list(twin.parameters())) == 2


def test_nothing_is_left_of_a_deleted_network():
    pool = device("cpu").pool
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        net = network(tm)
        net.register_forward_hook(lambda *a: None)
        net.register_full_backward_hook(lambda *a: None)
        x = tm.ones(2, 3, requires_grad=True)
        loss = net(x).sum()
        loss.backward()
        copied = copy.deepcopy(net)
        net.double()
        del net, x, loss, copied
        assert pool.used_bytes() == before
    finally:
        gc.enable()


class _Paths(scope.Listener):
    """A listener that remembers where the network was at each allocation."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def malloc(self, *args: Any) -> None:
        if scope.local.module not in self.seen:
            self.seen.append(scope.local.module)


def test_listeners_know_the_module():
    net = network(tm)
    x = tm.ones(2, 3)
    heard = _Paths()
    scope.listen(heard)
    try:
        net(x)
    finally:
        scope.unlisten(heard)
    assert heard.seen == ["Net.first.fc", "Net.first", "Net", "Net.rest.0", "Net.rest.1.0", "Net.rest.1.1"]
    assert scope.local.module == ""


def test_the_module_is_forgotten_when_forward_fails():
    heard = _Paths()
    scope.listen(heard)
    try:
        with pytest.raises(RuntimeError):
            network(tm)(tm.ones(2, 4))
    finally:
        scope.unlisten(heard)
    assert scope.local.module == ""


def test_listeners_are_reported_what_is_a_parameter_and_a_buffer():
    with memory.track() as track:
        net = nn.BatchNorm1d(300)
        net.double()
    roles = {event.role for event in track.log if event.kind is memory.Kind.ENTER}
    assert roles == {"PARAMETER", "BUFFER"}
    held = track.timeline()[-1].by_category
    assert held[memory.Category.PARAMETER] == 2 * 2560
    assert held[memory.Category.BUFFER] == 2 * 2560 + 512
    del net
