"""State dicts for checkpoints: the state of an optimizer by the names of its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ...autograd.tensor import Tensor
from ...errors import ArgumentError, MissingKeyError, NotOfferedError, StateDictError
from ...interrupts import all_or_nothing
from ...nn.module import Module
from ...optim.loading import group_options, mapping
from ...optim.optimizer import Optimizer


@dataclass(frozen=True)
class StateDictOptions:
    """Options of :func:`get_state_dict` and :func:`set_state_dict`, with PyTorch's names and defaults.

    Attributes:
        flatten_optimizer_state_dict: one level, with a key for each value of each parameter: ``state.NAME.exp_avg``,
            ``param_groups.NAME.lr``. Stages of a pipeline save this form, because each has other parameters.
        full_state_dict, cpu_offload, ignore_frozen_params, keep_submodule_prefixes, strict, broadcast_from_rank0: not offered,
            except their defaults.

    Raises:
        NotOfferedError: another option is set.
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False

    def __post_init__(self) -> None:
        given = self.full_state_dict, self.cpu_offload, self.ignore_frozen_params, self.broadcast_from_rank0
        if any(given) or not (self.keep_submodule_prefixes and self.strict):
            raise NotOfferedError("StateDictOptions: only flatten_optimizer_state_dict is offered")


def get_state_dict(
    model: Module, optimizers: Optimizer | Iterable[Optimizer], *, options: StateDictOptions | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of a model and of its optimizer, for ``checkpoint.save`` and ``checkpoint.load``.

    State arrays that the optimizer has not made yet are made, so that there is something to load into.

    Raises:
        NotOfferedError: several optimizers are given.
        KeyError: the optimizer has a parameter that is not in the model.
    """
    optimizer = _one(optimizers)
    names, state = _names(model, optimizer), model.state_dict()
    due = [(group, p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    missing: dict[Tensor, dict[str, Tensor]] = {}
    optimizer._make_missing(due, missing)
    for p, made in missing.items():
        optimizer.state[p].update(made)
    given = optimizer.state_dict()
    numbers = [group["params"] for group in given["param_groups"]]
    every = dict(zip(chain(*numbers), chain(*names), strict=True))
    groups = [{**group, "params": list(of)} for group, of in zip(given["param_groups"], names, strict=True)]
    found = {"state": {every[n]: values for n, values in given["state"].items()}, "param_groups": groups}
    return state, _flat(found) if options is not None and options.flatten_optimizer_state_dict else found


def set_state_dict(
    model: Module,
    optimizers: Optimizer | Iterable[Optimizer],
    *,
    model_state_dict: dict[str, Any],
    optim_state_dict: dict[str, Any],
    options: StateDictOptions | None = None,
) -> None:
    """Give a model and its optimizer the state that :func:`get_state_dict` made and ``checkpoint.load`` filled.

    Parameters are matched by their names: the optimizer may have them in another order, or in other groups if the options are
    the same. What belongs to other parameters is left out. Whether the state is flattened is seen from its keys. A flattened
    state has nothing of a group without parameters, which keeps its options. A state with numbers in place of names, that of
    ``optimizer.state_dict()``, is matched by position. If anything is refused, model and optimizer are as before.

    Raises:
        StateDictError, ValueError: it does not fit. KeyError: the options of a parameter are missing.
    """
    optimizer = _one(optimizers)
    fitted = _fitted(optim_state_dict, optimizer, _names(model, optimizer))
    wrapped = [each for each in vars(optimizer).values() if isinstance(each, Optimizer)]
    with all_or_nothing(optimizer, *wrapped):
        optimizer.load_state_dict(fitted)
        model.load_state_dict(model_state_dict)


def _names(model: Module, optimizer: Optimizer) -> list[list[str]]:
    """The names of the parameters of each group."""
    name_of = {id(p): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) not in name_of:
                raise MissingKeyError(
                    f"a parameter of shape {list(p.shape)} is the optimizer's and not the model's: give the model that it "
                    "trains"
                )
    return [[name_of[id(p)] for p in group["params"]] for group in optimizer.param_groups]


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    flat = {f"state.{name}.{key}": v for name, values in nested["state"].items() for key, v in values.items()}
    for group in nested["param_groups"]:
        options = [(key, value) for key, value in group.items() if key != "params"]
        flat |= {f"param_groups.{name}.{key}": value for name in group["params"] for key, value in options}
    return flat


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flattened state with one group for each parameter."""
    found: dict[str, dict[str, dict[str, Any]]] = {"state": {}, "param_groups": {}}
    for key, value in flat.items():
        path, _, last = key.rpartition(".")
        kind, _, name = path.partition(".")
        found.setdefault(kind, {}).setdefault(name, {})[last] = value
    groups = [{"params": [name], **options} for name, options in found["param_groups"].items()]
    return {"state": found["state"], "param_groups": groups}


def _fitted(given: Any, optimizer: Optimizer, names: list[list[str]]) -> Any:
    """Of a state with names of parameters, the part for these parameters, in their order; any other state unchanged."""
    what = "set_state_dict: optim_state_dict"
    mapping(what, given)
    flat = "state" not in given and bool(given)
    found = _nested(given) if flat else given
    mapping(what, found, ("state", "param_groups"))
    for group in found["param_groups"]:
        mapping(f"{what}['param_groups']", group, ("params",))
    saved = [(group["params"], group_options(group)) for group in found["param_groups"]]
    if not all(isinstance(name, str) for params, _ in saved for name in params):
        return given
    options = {name: each for params, each in saved for name in params}
    empty = iter([each for params, each in saved if not params])
    groups, state = [], found["state"]
    for group, of in zip(optimizer.param_groups, names, strict=True):
        chosen = _shared(options, of) if of else next(empty, group_options(group) if flat else None)
        if chosen is None:
            raise ArgumentError(f"{what} has no further group without parameters, and the optimizer has: load what it saved")
        groups.append({"params": of, **chosen})
        for p, name in zip(group["params"], of, strict=True):
            if name not in state and p.requires_grad and optimizer.kept({**group, **chosen}, p):
                raise StateDictError(f"{what} has no state of the parameter {name}: load what get_state_dict() returned")
    return {"state": {name: state[name] for of in names for name in of if name in state}, "param_groups": groups}


def _shared(options: dict[str, dict[str, Any]], of: list[str]) -> dict[str, Any]:
    """The options of one group: all its parameters must have the same."""
    mapping("set_state_dict: the options of parameters", options, of)
    if any(options[name] != options[of[0]] for name in of):
        found = [options[name] for name in of]
        raise StateDictError(f"set_state_dict: expected the same options of all of {', '.join(of)}, found {found}")
    return options[of[0]]


def _one(optimizers: Any) -> Optimizer:
    every = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    if len(every) != 1:
        raise NotOfferedError(f"get_state_dict: {len(every)} optimizers are not offered: name each one's state yourself")
    return every[0]
