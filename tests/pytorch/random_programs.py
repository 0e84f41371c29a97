"""Random training programs: what a seed names, made of statements that PyTorch's users write, in any order."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from tests.pytorch.random_modules import Net, net
from tests.pytorch.random_tensors import IN_PLACE, MAKERS, UNARY, VIEWS

MARK = 19
"""Bytes of the tensor that is made, and ended, after each statement: no other tensor of a program has so many."""
STATEMENTS: list[Callable[[State], None]] = []


@dataclass
class Trained:
    """A network, with the optimizer that trains it."""

    net: Net
    optimizer: torch.optim.Optimizer
    schedule: Any = None
    average: Any = None
    losses: list[torch.Tensor] = field(default_factory=list)


@dataclass
class State:
    """What a program holds.

    Attributes:
        pick: decides; it begins anew with each statement, so that one may be left out and the others stay as they are.
        refused: the statements that PyTorch refused, by number.
    """

    pick: random.Random = field(default_factory=random.Random)
    tensors: list[torch.Tensor] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def tensor(self) -> torch.Tensor:
        """One of the program's tensors; a new one if it has none."""
        if not self.tensors:
            make(self)
        return self.pick.choice(self.tensors)

    def model(self) -> Trained:
        """One of the program's networks; a new one if it has none."""
        if not self.trained:
            build(self)
        return self.pick.choice(self.trained)


class RandomProgram:
    """The program of a seed.

    Args:
        left_out: numbers of statements that do not run.
    """

    def __init__(self, seed: int, left_out: Collection[int] = ()) -> None:
        self.seed, self.left_out = seed, left_out
        pick = random.Random(seed)
        self.statements = [pick.choice(STATEMENTS) for _ in range(pick.randint(3, 9))]

    def __call__(self) -> State:
        state = State()
        for number, statement in enumerate(self.statements):
            if number not in self.left_out:
                self._run(number, statement, state)
            torch.empty(MARK, dtype=torch.uint8)
        return state

    def _run(self, number: int, statement: Callable[[State], None], state: State) -> None:
        state.pick = random.Random(f"{self.seed} {number}")
        try:
            statement(state)
        except (RuntimeError, ValueError, KeyError) as error:  # in place where autograd needs the old values, for example
            if type(error) not in (RuntimeError, ValueError, KeyError):
                raise
            state.refused.append(number)

    def __str__(self) -> str:
        names = [f"{n} {s.__name__}" for n, s in enumerate(self.statements) if n not in self.left_out]
        return f"RandomProgram({self.seed}, {set(self.left_out) or '()'}): {', '.join(names)}"


def statement(function: Callable[[State], None]) -> Callable[[State], None]:
    """Let random programs have this."""
    STATEMENTS.append(function)
    return function


# --- tensors --------------------------------------------------------------------------------------------------------------


@statement
def make(state: State) -> None:
    pick = state.pick
    state.tensors.append(pick.choice(MAKERS)(pick.choice([1, 2, 5, 8]), pick.choice([1, 3, 8])))


@statement
def compute(state: State) -> None:
    x = state.tensor()
    for _ in range(state.pick.randint(1, 4)):
        x = state.pick.choice(UNARY)(x, state.pick)
    state.tensors.append(x)


@statement
def view(state: State) -> None:
    state.tensors.append(state.pick.choice(VIEWS)(state.tensor(), state.pick))


@statement
def write(state: State) -> None:
    x = state.tensor()
    if 0 not in x.stride():
        with torch.set_grad_enabled(state.pick.random() < 0.5):
            state.pick.choice(IN_PLACE)(x)


@statement
def combine(state: State) -> None:
    a, b = state.tensor(), state.tensor()
    kind = state.pick.randrange(5)
    if kind == 0:
        state.tensors.append(a[:1, :1] * b)
    elif kind == 1:
        state.tensors.append(a @ b.to(a.dtype)[: a.shape[1], :].sum() if a.dim() == 1 else a * b.sum())
    elif kind == 2:
        state.tensors.append(torch.cat([a.reshape(-1, 1), b.reshape(-1, 1)]))
    elif kind == 3:
        state.tensors.append(torch.outer(a.reshape(-1)[:9], b.reshape(-1)[:7]))
    else:
        a.detach().reshape(-1)[:1].copy_(b.detach().reshape(-1)[:1].clone())


@statement
def delete(state: State) -> None:
    for _ in range(state.pick.randint(1, 3)):
        if state.tensors:
            state.tensors.pop(state.pick.randrange(len(state.tensors)))


@statement
def differentiate(state: State) -> None:
    """Backward through whatever led to a tensor, once or twice; or gradients of gradients."""
    pick, x = state.pick, state.tensor()
    if not x.requires_grad:
        return
    kind = pick.randrange(5)
    if kind == 0:
        x.sum().backward()
    elif kind == 1:
        x.sum().backward(retain_graph=True)
        x.mean().backward()
    elif kind == 2:
        leaves = [t for t in state.tensors if t.is_leaf and t.requires_grad]
        found = torch.autograd.grad((x * x).sum(), leaves, create_graph=True, allow_unused=True)
        total: Any = sum(g.pow(2).sum() for g in found if g is not None)
        total.backward()
    elif kind == 3:
        x.retain_grad()
        x.register_hook(lambda g: g * 2)
        x.backward(torch.ones_like(x))
    else:
        made = checkpoint(lambda t: (t.sin() * t).exp(), x, use_reentrant=pick.random() < 0.5)
        made.sum().backward(retain_graph=True)


@statement
def functions(state: State) -> None:
    """``torch.func`` over a network's parameters."""
    held = state.model()
    weights = {name: p.detach() for name, p in held.net.named_parameters()}
    x = held.net.data(state.pick)
    if state.pick.random() < 0.5:
        state.tensors.append(functional_call(held.net, weights, (x,)).reshape(1, -1))
    else:
        found = grad(lambda w: functional_call(held.net, w, (x,)).float().square().mean())(weights)
        state.tensors.append(next(iter(found.values())).reshape(1, -1))


# --- training -------------------------------------------------------------------------------------------------------------

SGD = [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"maximize": True}]
ADAM = [{}, {"amsgrad": True}, {"weight_decay": 0.1}, {"foreach": False}]
OPTIMIZERS: list[tuple[str, Sequence[dict[str, Any]]]] = [
    ("SGD", [*SGD, {"fused": True}, {"momentum": 0.5, "foreach": True}]),
    ("Adam", [*ADAM, {"fused": True}, {"foreach": True}, {"maximize": True}]),
    ("AdamW", [*ADAM, {"fused": True, "amsgrad": True}, {"foreach": True}]),
    ("NAdam", [{}, {"foreach": True}]),
    ("RAdam", [{}, {"decoupled_weight_decay": True}, {"foreach": True}]),
    ("Adagrad", [{}, {"fused": True}, {"foreach": True, "weight_decay": 0.1}]),
    ("Adadelta", [{}, {"foreach": True}]),
    ("Adamax", [{}, {"foreach": True}]),
    ("RMSprop", [{}, {"centered": True, "momentum": 0.9}, {"foreach": True}]),
    ("Rprop", [{}, {"foreach": True}]),
    ("ASGD", [{}, {"foreach": True}]),
    ("Adafactor", [{}, {"foreach": True}]),
]
SCHEDULES: list[Callable[[Any], Any]] = [
    lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
    lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [1]
    ),
]


def optimizer(pick: random.Random, parameters: Any) -> torch.optim.Optimizer:
    name, kinds = pick.choice(OPTIMIZERS)
    lr = torch.tensor(0.01) if name in ("Adam", "AdamW") and pick.random() < 0.1 else 0.01
    return getattr(torch.optim, name)(parameters, lr=lr, **pick.choice(kinds))


@statement
def build(state: State) -> None:
    pick = state.pick
    made = net(pick)
    parameters = list(made.parameters())
    if pick.random() < 0.2:
        for p in parameters[: len(parameters) // 2]:
            p.requires_grad_(False)
        parameters = [p for p in parameters if p.requires_grad]
    if pick.random() < 0.2 and len(parameters) > 1:
        groups: Any = [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:]}]
    else:
        groups = parameters
    held = Trained(made, optimizer(pick, groups))
    if pick.random() < 0.3:
        held.schedule = pick.choice(SCHEDULES)(held.optimizer)
    if pick.random() < 0.2:
        held.average = torch.optim.swa_utils.AveragedModel(made)
    state.trained.append(held)


@statement
def step(state: State) -> None:
    for _ in range(state.pick.randint(1, 2)):
        one_step(state.model(), state.pick)


def one_step(held: Trained, pick: random.Random) -> None:
    """A step of training, as one of many writes it."""
    early, none = pick.random() < 0.5, pick.random() < 0.7
    if early:
        held.optimizer.zero_grad(set_to_none=none)
    for _ in range(pick.choice([1, 1, 1, 2, 3])):
        made = held.net(held.net.data(pick))
        loss = criterion(pick, made)
        if pick.random() < 0.5:
            del made
        loss.backward(retain_graph=pick.random() < 0.2)
    clipped = pick.randrange(5)
    if clipped == 0:
        clip_grad_norm_(held.net.parameters(), 1.0, foreach=pick.choice([None, True, False]))
    elif clipped == 1:
        clip_grad_value_(held.net.parameters(), 1.0)
    held.optimizer.step()
    if held.schedule is not None:
        held.schedule.step()
    if held.average is not None:
        held.average.update_parameters(held.net)
    logged = pick.randrange(4)
    if logged == 0:
        held.losses.append(loss.detach())
    elif logged == 1:
        held.losses.append(loss)  # with the graph: a mistake that many make
    elif logged == 2:
        loss.item()
    if not early:
        held.optimizer.zero_grad(set_to_none=none)


def criterion(pick: random.Random, made: torch.Tensor) -> torch.Tensor:
    rows = made.reshape(made.shape[0], -1)
    kind = pick.randrange(7)
    if kind == 0:
        return F.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.long), label_smoothing=pick.choice([0.0, 0.1]))
    if kind == 1:
        return F.mse_loss(made, torch.zeros_like(made))
    if kind == 2:
        return F.binary_cross_entropy_with_logits(rows, torch.ones_like(rows))
    if kind == 3:
        return F.smooth_l1_loss(rows, torch.zeros(rows.shape, dtype=rows.dtype), reduction="sum")
    if kind == 4:
        return made.float().square().mean() + made.float().abs().sum() * 0.1
    if kind == 5:
        return F.nll_loss(rows.log_softmax(-1), torch.zeros(len(rows), dtype=torch.long))
    return made.sum()


@statement
def penalize(state: State) -> None:
    """A gradient's norm in the loss: gradients of gradients."""
    held = state.model()
    parameters = [p for p in held.net.parameters() if p.requires_grad]
    made = held.net(held.net.data(state.pick)).float().square().mean()
    found = torch.autograd.grad(made, parameters, create_graph=True, allow_unused=True)
    total: Any = sum(((g**2).sum() for g in found if g is not None), torch.zeros(()))
    total.backward()
    held.optimizer.step()
    held.optimizer.zero_grad()


@statement
def evaluate(state: State) -> None:
    held = state.model()
    held.net.eval()
    with state.pick.choice([torch.no_grad, torch.inference_mode])():
        made = held.net(held.net.data(state.pick))
    state.tensors.append(made.reshape(1, -1).clone())
    if state.pick.random() < 0.7:
        held.net.train()


@statement
def duplicate(state: State) -> None:
    held, pick = state.model(), state.pick
    kind = pick.randrange(5)
    if kind == 0:
        made = copy.deepcopy(held.net)
        state.trained.append(Trained(made, optimizer(pick, made.parameters())))
    elif kind == 1:
        held.net.load_state_dict(copy.deepcopy(held.net.state_dict()), assign=pick.random() < 0.3)
    elif kind == 2:
        held.optimizer.load_state_dict(held.optimizer.state_dict())
    elif kind == 3:
        state.tensors.extend(p.detach().clone().reshape(1, -1) for p in list(held.net.parameters())[:2])
    else:
        held.optimizer = optimizer(pick, held.net.parameters())


@statement
def drop(state: State) -> None:
    if len(state.trained) > 1:
        state.trained.pop(state.pick.randrange(len(state.trained)))
    elif state.trained:
        state.trained[0].losses.clear()


@statement
def rebuild(state: State) -> None:
    """Parametrizations, weights of another type, hooks, weights that two layers share."""
    held, pick = state.model(), state.pick
    layers = [m for m in held.net.modules() if isinstance(m, nn.Linear)]
    kind = pick.randrange(6)
    if kind == 0 and layers:
        layer = pick.choice(layers)
        if parametrize.is_parametrized(layer):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=pick.random() < 0.5)
        else:
            pick.choice([parametrizations.weight_norm, parametrizations.spectral_norm])(layer)
    elif kind == 1:
        held.net.to(torch.float64).to(torch.float32)
    elif kind == 2:
        pick.choice(list(held.net.modules())).register_full_backward_hook(lambda m, i, o: None)
    elif kind == 3:
        for p in held.net.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * 0.5))
    elif kind == 4 and len(layers) > 1:
        layers[0].weight = layers[-1].weight
    else:
        held.net.register_forward_hook(lambda _, __, made: torch.mul(made, 1.0))  # type: ignore[arg-type]


@statement
def ensemble(state: State) -> None:
    weight = torch.randn(state.pick.choice([1, 8]), 5)
    state.tensors.append(vmap(lambda row: torch.tanh(weight @ row))(torch.randn(state.pick.choice([1, 3]), 5)))


@statement
def fail(state: State) -> None:
    """An error in the middle of a step, which the program catches."""
    held = state.model()
    made = held.net(held.net.data(state.pick))
    try:
        torch.mm(made.reshape(1, -1), torch.ones(made.numel() + 1, 2))
    except RuntimeError:
        state.tensors.append(made.reshape(1, -1) if state.pick.random() < 0.5 else torch.zeros(1, 3))
