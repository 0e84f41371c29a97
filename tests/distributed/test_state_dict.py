"""``set_state_dict`` beside PyTorch's: parameters are matched by name, and what is refused changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import state_dict as theirs

import tinygrad_mem as tm
from tinygrad_mem.distributed.checkpoint import state_dict as ours

W, B, V, C = "0.weight", "0.bias", "1.weight", "1.bias"
Groups = list[tuple[list[str], dict[str, float]]]
SAVED: Groups = [([W, B], {"lr": 0.1}), ([V, C], {"lr": 0.2})]
RULES: list[tuple[str, dict]] = [
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("AdamW", {}), ("Adagrad", {}), ("RMSprop", {}),
    ("Adadelta", {}), ("NAdam", {}), ("RAdam", {}), ("Adamax", {}), ("Adafactor", {}),
]  # fmt: skip
every_rule = pytest.mark.parametrize(("rule", "options"), RULES, ids=[f"{i}-{name}" for i, (name, _) in enumerate(RULES)])
either = pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])


def made(lib: Any, rule: str, options: dict, groups: Groups, steps: int) -> tuple[Any, Any]:
    model = lib.nn.Sequential(lib.nn.Linear(3, 3), lib.nn.Linear(3, 3)).double()
    named = dict(model.named_parameters())
    with lib.no_grad():
        for i, p in enumerate(named.values()):
            p.fill_(0.1 * (i + 1))
    given = [{"params": [named[name] for name in names], **each} for names, each in groups]
    optimizer = getattr(lib.optim, rule)(given, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(lib.full((2, 3), 0.3, dtype=lib.float64)) ** 2).sum().backward()
        optimizer.step()
    return model, optimizer


def seen(model: Any, optimizer: Any) -> dict[str, Any]:
    """All numbers of both, by name."""
    found: dict[str, Any] = {}
    for name, p in model.named_parameters():
        found[name] = p.detach().numpy().copy()
        for key, value in optimizer.state.get(p, {}).items():
            if value is not None:
                found[f"{name} {key}"] = np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)
    for group in optimizer.param_groups:
        for name, p in model.named_parameters():
            if any(p is q for q in group["params"]):
                found[f"{name} lr"] = np.asarray(group["lr"])
    return found


def equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize(
    "target",
    [
        SAVED,
        [([V, C], {"lr": 0.5}), ([W, B], {"lr": 0.6})],
        [([B, W], {"lr": 0.5}), ([C, V], {"lr": 0.6})],
        [([W, B], {"lr": 0.5})],
    ],
    ids=["same", "groups swapped", "parameters swapped", "one group less"],
)
@either
@every_rule
def test_parameters_are_found_by_name(rule: str, options: dict, flat: bool, target: Groups):
    """Groups were matched by position: a swapped one got the rate and the state of the other."""
    found: list[dict[str, Any]] = []
    for lib, module in ((tm, ours), (torch, theirs)):
        if lib is torch and rule == "SGD" and "momentum" not in options and not flat:
            continue  # without any state PyTorch matches by position: it gives swapped groups each other's rates
        model, optimizer = made(lib, rule, options, SAVED, 2)
        flattened = module.StateDictOptions(flatten_optimizer_state_dict=flat)
        of_model, of_optimizer = module.get_state_dict(model, optimizer, options=flattened)
        again = made(lib, rule, options, target, 1)
        module.set_state_dict(*again, model_state_dict=of_model, optim_state_dict=of_optimizer, options=flattened)
        found.append(seen(*again))
        if lib is tm:
            source = seen(model, optimizer)
            here = {name for names, _ in target for name in names}
            equal({k: v for k, v in found[0].items() if k.split()[0] in here},
                  {k: v for k, v in source.items() if k.split()[0] in here})  # fmt: skip
    for name in found[0] if len(found) == 2 else ():
        if name.endswith(("weight", "bias", "lr")):
            np.testing.assert_allclose(found[0][name], found[1][name], 1e-6, err_msg=name)


def dropped(start: str) -> Callable:
    return lambda state: {key: value for key, value in state.items() if not key.startswith(start)}


@pytest.mark.parametrize(
    ("flat", "change", "error", "match"),
    [
        (True, dropped("state.0.weight."), RuntimeError, r"has no state of the parameter 0\.weight"),
        (True, dropped("param_groups.0.weight."), KeyError, r"the options of parameters: '0\.weight' is missing"),
        (True, lambda s: s | {"param_groups.0.bias.lr": 0.7}, RuntimeError, r"the same options of all of 0\.weight, 0\.bias"),
        (True, lambda s: s | {"state.1.bias.exp_avg": tm.zeros(5)}, ValueError, r"should have shape \[3\], found \[5\]"),
        (True, lambda s: s | {"state.1.bias.exp_avg": 1.0}, ValueError, "of another optimizer"),
        (True, dropped("state.1.bias.exp_avg_sq"), ValueError, "is of another optimizer, or of other options"),
        (False, lambda s: s | {"state": dropped(W)(s["state"])}, RuntimeError, r"has no state of the parameter 0\.weight"),
        (False, lambda s: s | {"param_groups": s["param_groups"][1:]}, KeyError, r"the options of parameters: '0\.weight' is"),
        (False, lambda s: {"state": s["state"]}, KeyError, "'param_groups' is missing"),
        (False, lambda s: s | {"param_groups": [3]}, TypeError, r"\['param_groups'\]: expected a dict, found int"),
        (False, lambda s: {}, KeyError, "'state' is missing, found nothing"),
        (False, lambda s: None, TypeError, "optim_state_dict: expected a dict, found NoneType"),
    ],
)
def test_what_is_refused_changes_neither(flat: bool, change: Callable, error: type, match: str):
    options = ours.StateDictOptions(flatten_optimizer_state_dict=flat)
    source = made(tm, "AdamW", {}, SAVED, 3)
    of_model, of_optimizer = ours.get_state_dict(*source, options=options)
    model, optimizer = made(tm, "AdamW", {}, SAVED, 1)
    before = seen(model, optimizer)
    with pytest.raises(error, match=match):
        ours.set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=change(of_optimizer))
    equal(seen(model, optimizer), before)
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"1\.bias\""):
        ours.set_state_dict(model, optimizer, model_state_dict=dropped(C)(of_model), optim_state_dict=of_optimizer)
    equal(seen(model, optimizer), before)
    ours.set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    equal(seen(model, optimizer), seen(*source))


@either
def test_a_group_without_parameters(flat: bool):
    """Flattened, PyTorch fails with an IndexError, as ours did. Nested, the one empty group is that of the dict."""
    options = ours.StateDictOptions(flatten_optimizer_state_dict=flat)
    source = made(tm, "AdamW", {}, [([], {"lr": 0.7}), *SAVED], 2)
    of_model, of_optimizer = ours.get_state_dict(*source, options=options)
    model, optimizer = made(tm, "AdamW", {}, [*SAVED, ([], {"lr": 0.3})], 0)
    ours.set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    equal(seen(model, optimizer), seen(*source))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2, 0.3 if flat else 0.7]
    if not flat:
        of_optimizer["param_groups"] = [group for group in of_optimizer["param_groups"] if group["params"]]
        with pytest.raises(ValueError, match="has no further group without parameters, and the optimizer has"):
            ours.set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    parts = made(tm, "AdamW", {}, SAVED, 3)
    ours.set_state_dict(  # with numbers in place of names, by position
        *parts, model_state_dict=parts[0].state_dict(), optim_state_dict=made(tm, "AdamW", {}, SAVED, 1)[1].state_dict()
    )
    assert all(parts[1].state[p]["step"] == 1 for p in parts[0].parameters())
