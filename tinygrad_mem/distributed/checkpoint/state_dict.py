"""State dicts for checkpoints: the state of an optimizer by the names of its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import NotOfferedError
from ...nn.module import Module
from ...optim.optimizer import Optimizer


def get_state_dict(model: Module, optimizers: Optimizer | Iterable[Optimizer]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of a model and of its optimizer, for ``checkpoint.save`` and ``checkpoint.load``.

    State arrays that the optimizer has not made yet are made, so that there is something to load into.

    Raises:
        NotOfferedError: several optimizers are given.
        KeyError: the optimizer has a parameter that the model has not.
    """
    optimizer = _one(optimizers)
    state = model.state_dict()
    name_of = {id(p): name for name, p in model.named_parameters()}
    due = [(group, p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    for p, made in optimizer._fresh(due).items():
        optimizer.state[p].update(made)
    given = optimizer.state_dict()
    every = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in given["param_groups"] for n in group["params"]]
    names = {number: name_of[id(p)] for number, p in zip(numbers, every, strict=True)}
    groups = [{**group, "params": [names[n] for n in group["params"]]} for group in given["param_groups"]]
    return state, {"state": {names[n]: values for n, values in given["state"].items()}, "param_groups": groups}


def set_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    model_state_dict: dict[str, Any],
    optim_state_dict: dict[str, Any],
) -> None:
    """Give a model and its optimizer the state that :func:`get_state_dict` made and ``checkpoint.load`` filled.

    Raises:
        StateDictError, ValueError: it does not fit.
    """
    optimizer = _one(optimizers)
    model.load_state_dict(model_state_dict)
    optimizer.load_state_dict(optim_state_dict)


def _one(optimizers: Any) -> Optimizer:
    every = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    if len(every) != 1:
        raise NotOfferedError(f"get_state_dict: {len(every)} optimizers are not offered: name each one's state yourself")
    return every[0]
