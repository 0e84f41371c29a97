"""Containers, against PyTorch's: the same script in both frameworks."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem import nn


def same(script: Any) -> None:
    """``script(nn, ones)`` returns the same in both frameworks, or raises an error of the same kind."""

    def run(framework: Any) -> Any:
        try:
            return script(framework.nn, framework.ones)
        except (TypeError, ValueError, IndexError, KeyError, RuntimeError) as error:
            return type(error).__name__

    assert run(tm) == run(torch)


def _net(n: Any, kind: str = "Sequential") -> Any:
    layers = [n.Linear(2, 3), n.ReLU(), n.Linear(3, 1)]
    return n.Sequential(*layers) if kind == "Sequential" else n.ModuleList(layers)


def _changed(n: Any, kind: str, change: Any) -> Any:
    net = _net(n, kind)
    result = change(net, n)
    return repr(net), repr(result) if isinstance(result, n.Module) else result, list(net.state_dict())


CHANGES = {
    "get": lambda net, n: net[-1],
    "get outside": lambda net, n: net[3],
    "slice": lambda net, n: net[1:],
    "step": lambda net, n: net[::2],
    "set": lambda net, n: net.__setitem__(1, n.Tanh()),
    "set outside": lambda net, n: net.__setitem__(9, n.Tanh()),
    "delete": lambda net, n: net.__delitem__(0),
    "delete slice": lambda net, n: net.__delitem__(slice(0, 2)),
    "length": lambda net, n: len(net),
    "iterate": lambda net, n: [type(m).__name__ for m in net],
    "append": lambda net, n: net.append(n.Tanh()) is net,
    "insert": lambda net, n: net.insert(1, n.Tanh()) and None,
    "extend": lambda net, n: net.extend(n.Sequential(n.Tanh(), n.Tanh())) is net,
    "extend wrong": lambda net, n: net.extend(3),
    "pop": lambda net, n: net.pop(0),
    "contains": lambda net, n: net[1] in net,
    "name": lambda net, n: getattr(net, "1"),
}


@pytest.mark.parametrize("kind", ["Sequential", "ModuleList"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_lists(change: Any, kind: str):
    same(lambda n, ones: _changed(n, kind, change))


SEQUENTIALS = {
    "named": lambda n, ones: repr(n.Sequential(OrderedDict(a=n.ReLU(), b=n.Sequential(n.Tanh())))),
    "named slice": lambda n, ones: repr(n.Sequential(OrderedDict(a=n.ReLU(), b=n.Tanh()))[1:]),
    "empty": lambda n, ones: (repr(n.Sequential()), n.Sequential()(ones(2)).tolist()),
    "add": lambda n, ones: repr(_net(n) + n.Sequential(n.Tanh())),
    "add wrong": lambda n, ones: _net(n) + 3,
    "times": lambda n, ones: repr(n.Sequential(n.ReLU()) * 2),
    "times wrong": lambda n, ones: n.Sequential(n.ReLU()) * 0,
    "times text": lambda n, ones: n.Sequential(n.ReLU()) * "a",
    "not a module": lambda n, ones: n.Sequential(3),
    "forward": lambda n, ones: tuple(_net(n)(ones(5, 2)).shape),
}
LISTS = {
    "empty": lambda n, ones: repr(n.ModuleList()),
    "runs": lambda n, ones: repr(n.ModuleList([n.ReLU(), n.ReLU(), n.Tanh(), n.Sequential(n.ReLU()), n.Sequential(n.ReLU())])),
    "add": lambda n, ones: repr(n.ModuleList([n.ReLU()]).__add__([n.Tanh()])),
    "generator": lambda n, ones: len(n.ModuleList(n.Linear(1, 1) for _ in range(12))),
    "twelve": lambda n, ones: list(n.ModuleList(n.Linear(1, 1, False) for _ in range(12)).state_dict()),
}


@pytest.mark.parametrize("script", [*SEQUENTIALS.values(), *LISTS.values()])
def test_more_of_lists(script: Any):
    same(script)


@pytest.mark.parametrize("kind", [nn.Sequential, nn.ModuleList])
def test_insert_counts_from_the_end_as_lists_do(kind: Any):
    net = kind([nn.ReLU(), nn.Sigmoid()]) if kind is nn.ModuleList else kind(nn.ReLU(), nn.Sigmoid())
    net.insert(-1, nn.Tanh())
    assert [type(m).__name__ for m in net] == ["ReLU", "Tanh", "Sigmoid"]
    with pytest.raises(IndexError, match="Index out of range: 9"):
        net.insert(9, nn.Tanh())
    with pytest.raises(TypeError, match="module should be of type"):
        net.insert(0, 3)


def test_a_list_cannot_be_called():
    with pytest.raises(NotImplementedError, match="Module \\[ModuleList\\] is missing the required"):
        nn.ModuleList([nn.ReLU()])(3)


def _dict(n: Any) -> Any:
    return n.ModuleDict({"a": n.ReLU(), "b": n.Linear(1, 2)})


DICTS = {
    "text": lambda n, ones: repr(_dict(n)),
    "empty": lambda n, ones: repr(n.ModuleDict()),
    "pairs": lambda n, ones: repr(n.ModuleDict([["x", n.Tanh()], ("y", n.ReLU())])),
    "keys": lambda n, ones: (list(_dict(n)), list(_dict(n).keys()), [k for k, _ in _dict(n).items()], len(_dict(n))),
    "values": lambda n, ones: [type(m).__name__ for m in _dict(n).values()],
    "state": lambda n, ones: list(_dict(n).state_dict()),
    "contains": lambda n, ones: ("a" in _dict(n), "c" in _dict(n)),
    "missing": lambda n, ones: _dict(n)["c"],
    "pop": lambda n, ones: repr(_dict(n).pop("a")),
    "not iterable": lambda n, ones: n.ModuleDict(3),
    "no pairs": lambda n, ones: n.ModuleDict([(1, 2, 3)]),
    "no module": lambda n, ones: n.ModuleDict({"a": 3}),
    "dotted": lambda n, ones: n.ModuleDict({"a.b": n.ReLU()}),
}


@pytest.mark.parametrize("script", DICTS.values(), ids=DICTS)
def test_dicts(script: Any):
    same(script)


def test_dicts_change():
    d = nn.ModuleDict({"a": nn.ReLU()})
    d["b"] = nn.Tanh()
    d.update(nn.ModuleDict({"a": nn.Tanh()}))
    assert repr(d["a"]) == "Tanh()"
    del d["b"]
    assert list(d) == ["a"]
    d.clear()
    assert not len(d)


def _text(module: Any) -> str:
    return repr(module).replace("torch.", "")


def _parameters(n: Any, ones: Any) -> Any:
    return n.ParameterList([n.Parameter(ones(2, 3)), ones(1), "text"])


PARAMETERS = {
    "list": lambda n, ones: _text(_parameters(n, ones)),
    "short list": lambda n, ones: _text(n.ParameterList([ones(2)])),
    "list state": lambda n, ones: list(_parameters(n, ones).state_dict()),
    "list of kinds": lambda n, ones: [type(p).__name__ for p in _parameters(n, ones)],
    "list length": lambda n, ones: len(_parameters(n, ones)),
    "list slice": lambda n, ones: _text(_parameters(n, ones)[1:]),
    "list item": lambda n, ones: tuple(_parameters(n, ones)[-3].shape),
    "list outside": lambda n, ones: _parameters(n, ones)[3],
    "list append": lambda n, ones: _text(_parameters(n, ones).append(ones(4))),
    "list extend": lambda n, ones: _text(_parameters(n, ones).extend([ones(4)])),
    "list extend tensor": lambda n, ones: _parameters(n, ones).extend(ones(4)),
    "list call": lambda n, ones: _parameters(n, ones)(3),
    "dict": lambda n, ones: _text(n.ParameterDict({"a": ones(2), "b": n.Parameter(ones(1)), "c": 3})),
    "dict state": lambda n, ones: list(n.ParameterDict({"a": ones(2), "b": ones(1)}).state_dict()),
    "dict keys": lambda n, ones: list(n.ParameterDict([("a", ones(2))]).keys()),
    "dict number": lambda n, ones: n.ParameterDict({3: ones(1)}),
    "dict or": lambda n, ones: list(n.ParameterDict({"a": ones(1)}) | n.ParameterDict({"b": ones(1)})),
    "dict get": lambda n, ones: (n.ParameterDict().get("a"), n.ParameterDict().get("a", 3)),
    "dict reversed": lambda n, ones: list(reversed(n.ParameterDict({"a": ones(1), "b": ones(1)}))),
    "dict call": lambda n, ones: n.ParameterDict()(3),
}


@pytest.mark.parametrize("script", PARAMETERS.values(), ids=PARAMETERS)
def test_parameter_containers(script: Any):
    same(script)


def test_parameter_containers_change():
    p = nn.ParameterList([tm.ones(1)])
    p[0] = tm.zeros(2)
    assert list(dict(p.named_parameters())) == ["0"]
    assert p[0].requires_grad
    d = nn.ParameterDict({"a": tm.ones(1)})
    assert d.setdefault("b", tm.ones(2)) is d["b"]
    d |= {"c": tm.ones(3)}
    assert [tuple(v.shape) for v in d.values()] == [(1,), (2,), (3,)]
    assert isinstance(d.pop("a"), nn.Parameter)
    d.clear()
    assert not list(d.parameters())
    assert "a" not in d
    with pytest.raises(KeyError, match="attribute 'train' already exists"):
        d["train"] = tm.ones(1)
    with pytest.raises(KeyError, match="missing"):
        d["missing"]


def test_a_dict_of_parameters_has_pytorchs_order():
    """An optimizer's state dict numbers parameters in this order."""

    def script(lib: Any) -> list:
        p = {name: lib.nn.Parameter(lib.ones(1)) for name in "abcxyz"}
        made = lib.nn.ParameterDict({name: p[name] for name in "ba"})
        made.update({name: p[name] for name in "zc"})
        made.update([(name, p[name]) for name in "yx"])
        other = lib.nn.ParameterDict(OrderedDict((name, p[name]) for name in "ba"))
        return [list(made), [name for name, _ in made.named_parameters()], list(other), made.popitem()[0], list(made)]

    assert script(tm) == script(torch)
    with pytest.raises(KeyError):
        tm.nn.ParameterDict().popitem()
