"""Each sample of PyTorch's table of modules, for each layer that is offered: results, gradients, buffers, refusals."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import assert_same, flat
from tests.profiles import every

from .differences import DIFFERENCES, about, excuse
from .said import NotOursError, Said, module_tables

CAP = 10
"""How many samples of a module are tried in training; in a usual run a fifth of them in evaluation."""
TOLERANCE = (1e-7, 1e-7)


@cache
def offered() -> dict[str, Any]:
    """The rows of PyTorch's table whose layer is offered, by name."""
    rows = {info.module_cls.__name__: info for info in module_tables.module_db}
    return {name: info for name, info in rows.items() if isinstance(getattr(tm.nn, name, None), type)}


def samples(info: Any, training: bool) -> Iterator[Any]:
    torch.manual_seed(0)
    drawn = list(info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training))
    tried = min(CAP // every(1 if training else 5), len(drawn))
    for i in range(tried):
        yield drawn[i * len(drawn) // tried]


def both(name: str, info: Any, sample: Any, training: bool) -> tuple[Any, Any, Said]:
    """PyTorch's module and ours, with equal parameters."""
    said = Said()
    torch.manual_seed(1)
    theirs = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).double().train(training)
    given = sample.constructor_input
    ours: Any = getattr(tm.nn, name)(*said(tuple(given.args)), **said(given.kwargs)).double().train(training)
    ours.load_state_dict({key: tm.from_numpy(value.numpy().copy()) for key, value in theirs.state_dict().items()})
    return theirs, ours, Said()


def failure(name: str, info: Any, sample: Any, training: bool) -> str | None:
    """What is wrong with our layer, in words; ``None`` where nothing is."""
    try:
        theirs, ours, said = both(name, info, sample, training)
        _compare(theirs, ours, said, sample.forward_input)
    except AssertionError as wrong:
        return " ".join(str(wrong).split())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _compare(theirs: Any, ours: Any, said: Said, given: Any) -> None:
    mine = ours(*said(tuple(given.args)), **said(given.kwargs))
    if _draws(theirs, given):
        wanted = flat(theirs(*given.args, **given.kwargs))
        assert [tuple(r.shape) for r in flat(mine)] == [tuple(e.shape) for e in wanted]
        return
    for leaf, _ in said.tensors:
        if leaf.requires_grad and not leaf.is_leaf:
            leaf.retain_grad()
    torch.manual_seed(2)
    wanted = flat(theirs(*given.args, **given.kwargs))
    assert len(flat(mine)) == len(wanted), f"{len(flat(mine))} results, PyTorch has {len(wanted)}"
    for i, (r, e) in enumerate(zip(flat(mine), wanted, strict=True)):
        assert r.requires_grad == e.requires_grad, f"result {i}: requires_grad {r.requires_grad}, PyTorch has {e.requires_grad}"
        assert_same(r, e, TOLERANCE, f"result {i}")
    pairs = [(r, e) for r, e in zip(flat(mine), wanted, strict=True) if e.requires_grad]
    if pairs:
        rng = np.random.default_rng(7)
        seeds = [np.asarray(rng.standard_normal(tuple(e.shape))) for _, e in pairs]
        tm.autograd.backward([r for r, _ in pairs], list(map(tm.tensor, seeds)))
        torch.autograd.backward([e for _, e in pairs], list(map(torch.from_numpy, seeds)))
    leaves = [(f"input {i}", mine, leaf) for i, (leaf, mine) in enumerate(said.tensors)]
    named = zip(ours.named_parameters(), theirs.parameters(), strict=True)
    leaves += [(path, mine, leaf) for (path, mine), leaf in named]
    for path, mine, leaf in leaves:
        assert (mine.grad is None) == (leaf.grad is None), f"gradient of {path}: {mine.grad}, PyTorch has {leaf.grad}"
        if leaf.grad is not None:
            assert_same(mine.grad, leaf.grad, TOLERANCE, f"gradient of {path}")
        leaf.grad = None
    for (path, mine), buffer in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        assert_same(mine, buffer, TOLERANCE, path)


def _draws(theirs: Any, given: Any) -> bool:
    """Whether the module's results are random."""
    results = []
    state = {key: value.clone() for key, value in theirs.state_dict().items()}
    for seed in (3, 4):
        torch.manual_seed(seed)
        with torch.no_grad():
            results.append(flat(theirs(*given.args, **given.kwargs)))
    theirs.load_state_dict(state)
    return not all(torch.equal(a, b) or bool(a.isnan().any()) for a, b in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("name", offered())
def test_samples_agree_with_pytorch(name: str, reliability: Callable[[str, int], None]):
    info, used, wrong, count = offered()[name], set(), {}, 0
    for training in (True, False):
        for sample in samples(info, training):
            count += 1
            found = failure(name, info, sample, training)
            excused = excuse("module", name, sample, found) if found else None
            if excused:
                used.add(excused)
            elif found:
                given = sample.constructor_input
                wrong.setdefault(found, f"{name}(*{given.args}, **{given.kwargs}), training={training}, {sample.desc}")
    reliability("samples of PyTorch's table of modules", count)
    assert not wrong, "\n" + "\n".join(f"{said}: {why}" for why, said in wrong.items())
    unused = about("module", name) - used
    assert not unused, f"these differences are none: {[each.why for each in unused]}"


def refused(name: str, info: Any, error: Any) -> str | None:
    """Of what PyTorch refuses: what we do instead of refusing; ``None`` where we refuse in words of our own."""
    try:
        sample = error.module_error_input
        said = Said()
        given = sample.constructor_input
        ours: Any = getattr(tm.nn, name)(*said(tuple(given.args)), **said(given.kwargs))
        if any(True for _ in ours.parameters()):
            ours.double()
        if sample.forward_input is not None:
            ours(*said(tuple(sample.forward_input.args)), **said(sample.forward_input.kwargs))
    except (tm.errors.TinygradMemError, error.error_type, NotOursError):
        return None
    except Exception as accident:
        return f"{type(accident).__name__}: {accident}"
    return f"not refused; PyTorch says {error.error_regex}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, info in offered().items() if info.module_error_inputs_func])
def test_what_pytorch_refuses_is_refused(name: str, reliability: Callable[[str, int], None]):
    info, wrong, count = offered()[name], {}, 0
    for training in (True, False):
        errors = info.module_error_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training)
        for error in errors:
            count += 1
            found = refused(name, info, error)
            if found and not excuse("module", name, error, found):
                wrong[found] = str(error.module_error_input.constructor_input.args)
    reliability("calls that PyTorch refuses", count)
    assert not wrong, "\n" + "\n".join(f"{said}: {why}" for why, said in wrong.items())


def test_the_list_names_what_is_in_the_table():
    named = {name for each in DIFFERENCES if each.kind == "module" for name in each.names.split()}
    assert named <= offered().keys()
    layers = {name for name, kind in vars(tm.nn).items() if inspect.isclass(kind) and issubclass(kind, tm.nn.Module)}
    assert len(offered()) > 0.5 * len(layers)
