"""The base of every optimizer: parameter groups, state, and a step that either completes or changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from .. import scope
from ..autograd.grad_mode import enable_grad
from ..autograd.gradients import SparseTensor, clear_gradient
from ..autograd.hooks import RemovableHandle
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..devices import refuse_outside
from ..dtypes import arithmetic, as_dtype
from ..errors import GraphError, NotOfferedError, clear_frames, pins_nothing
from ..interrupts import LiveObjects, uninterrupted
from . import loading, rows
from . import state as states
from .state import MASTER, StateArray, has_master

__all__ = ("Optimizer",)


class _Required:
    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


class Optimizer:
    """Holds parameters in groups and updates them from their gradients.

    Optimizers take PyTorch's arguments; rates outside of their range raise ValueError. ``maximize`` follows the gradient
    upwards. ``foreach``, ``fused``, ``capturable`` change nothing: an update is one fused pass in any case.

    A subclass defines which arrays it keeps for each parameter (``arrays`` or :meth:`state_names`) and how it updates one
    parameter (:meth:`update`). State is made at the first step of a parameter, in the parameter's dtype, as PyTorch's. That of
    half-precision parameters is computed in float32 and rounded to nearest; in float16 the roots of mean squares are kept,
    because the square of a small gradient is 0 there. ``master_weights``, and ``state_dtype=float32`` where it is offered, keep
    float32. An update makes no temporaries of a parameter's size.

    **Master weights.** A group with ``master_weights=True`` (apex's name; any optimizer takes it) keeps a float32 copy of each
    of its half-precision parameters in its state, under ``"master_weight"``: 4 bytes per parameter. A step updates the copy in
    float32 and rounds it once into the parameter. So updates below half an ulp of the parameter add up instead of vanishing. If
    the parameter was written since the last step (``load_state_dict``, a clamp), the elements that changed are copied into the
    master first. Float32 and wider parameters have no copy. Gradients have the parameter's dtype, or float32 if
    ``parameter.grad_dtype`` says so.
    Memory: the state of the optimizer (see each subclass), and 4 bytes for each parameter that has a master weight.
    Price: one rounding of each parameter per step. Do not use when: parameters are float32: they have no copy.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or dicts with ``"params"`` and options of their own.
        defaults: option -> value, for groups that do not set the option.

    Attributes:
        param_groups: dicts of ``"params"`` and options. Options may be changed between steps.
        state: parameter -> dict of its state.

    Raises:
        TypeError: ``params`` is one tensor, or holds something that is not a tensor.
        ValueError: no parameters, a non-leaf tensor, a parameter in two groups.
    """

    needs_closure = False  # whether a step evaluates the loss itself
    half_state = False  # whether ``state_dtype`` is offered
    needs_whole = False  # whether a step needs all elements of a parameter, which so cannot be divided over ranks
    work: Any = None  # during a step: the workspace on the device of the parameter that is being updated
    arrays: tuple[str, ...] = ()  # the names of the arrays that the rule keeps of each parameter
    squares: tuple[str, ...] = ()  # the arrays that are means of squares: in float16 their roots are kept
    _moves = 0  # the number of steps that have changed parameters
    _opt_called = False  # PyTorch's name, read by schedules: whether a step was made
    _in_backward: Any = None  # the optimizer_in_backward that updates each parameter as its gradient arrives
    _living = LiveObjects()  # all optimizers; a new track asks them for their state

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor) or not isinstance(params, Iterable):
            hint = (
                ": give [tensor]" if isinstance(params, Tensor) else ": give its parameters()" * hasattr(params, "parameters")
            )
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                f"{type(params).__name__}{hint}"
            )
        if defaults.get("differentiable"):
            raise NotOfferedError("differentiable=True is not offered: steps are not recorded on the tape")
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        self._begin()
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(dict(group) if isinstance(group, dict) else group)

    def _begin(self) -> None:
        Optimizer._living.add(self)
        self._before: dict[int, Callable] = {}
        self._after: dict[int, Callable] = {}

    # --- what a subclass defines -----------------------------------------------------------------------------------------

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the arrays that the rule keeps of a parameter, if they depend on the group's options."""
        return self.arrays

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        """All state arrays of ``p``, by name. Override it if some of them have another shape, dtype or initial value."""
        names = self.state_names(group)
        if not names:
            return {}
        dtype = as_dtype(group.get("state_dtype") or (arithmetic(p.dtype) if has_master(group, p) else p.dtype))
        value = self.initial(group)
        return {name: StateArray(p.array.shape, dtype, value, name in self.squares) for name in names}

    def initial(self, group: dict[str, Any]) -> float:
        """The initial values of new state arrays."""
        return 0.0

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        """Update the array ``p`` by the gradient ``g``, without allocating; ``first``: whether ``state`` is new."""
        raise NotImplementedError

    def workspace(self, device: Device, group: dict[str, Any], p: Tensor) -> int:
        """Bytes of workspace that the update of ``p`` needs, in :attr:`work`. All parameters of a step share one workspace."""
        return 0

    # --- a step ---------------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. Returns the result of ``closure``, if given.

        Missing state is made before anything is written. So if memory runs out, parameters, state and step counts are
        unchanged. Ctrl-C during the step is handled when the step is complete. Only an exception that another thread sets in
        this one (``PyThreadState_SetAsyncExc``) can end a step halfway; then a note on the exception says so.

        Raises:
            OutOfMemoryError: there is no room for the state.
            GraphError: ``optimizer_in_backward`` is on, so no gradients are left for a step.
        """
        if self._in_backward is not None:
            self.refuse_in_backward(f"{type(self).__name__}.step()")
        args: tuple = (self,) if closure is None else (self, closure)
        kwargs: dict[str, Any] = {}
        for hook in list(self._before.values()) if self._before else ():
            answer = hook(self, args, kwargs)
            if answer is None:
                continue
            if not (isinstance(answer, tuple) and len(answer) == 2):
                raise RuntimeError(f"a step pre-hook must return None or a tuple of (new_args, new_kwargs), but got {answer}")
            args, kwargs = answer
        loss = self._move(*args[1:], **kwargs)
        for hook in list(self._after.values()) if self._after else ():
            hook(self, args, kwargs)
        return loss

    def _move(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluate ``closure``, if given, and update the parameters; returns its result."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        self._opt_called = True
        self._step([(group, p) for group in self.param_groups for p in group["params"] if p._grad is not None])
        return loss

    def refuse_in_backward(self, what: str) -> None:
        """Raise GraphError while :class:`~tinygrad_mem.techniques.optimizer_in_backward` is on: ``what`` needs gradients."""
        if self._in_backward is not None:
            raise GraphError(
                f"{what}: this optimizer updates each parameter in backward and frees its gradient there "
                "(optimizer_in_backward), so no gradient is left to step, clip, unscale or accumulate with. Remove this "
                "call, or call remove() on optimizer_in_backward. To clip or to scale the loss, give it max_norm or scaler."
            )

    def _step(self, due: list[tuple[dict[str, Any], Tensor]]) -> None:
        """Update the parameters in ``due``, given with their groups: all of them, or none if memory runs out."""
        rows.check(self, due)
        for _, p in due if scope.local.dry is not None else ():
            refuse_outside(p.device, f"{type(self).__name__}.step")
        if self.needs_whole:
            states.refuse_shards(type(self).__name__, [p for _, p in due])
        local = scope.local
        before = local.op, local.phase
        fresh: dict[Tensor, dict[str, Tensor]] = {}  # state that is not in self.state yet
        try:
            local.op, local.phase = f"{type(self).__name__}.step", "optimizer"
            self._make_missing(due, fresh)
            rooms = self._workspaces(due)
            uninterrupted(scope.run, self._write, due, fresh, rooms)
        except BaseException as error:
            fresh.clear()  # the exception's traceback holds this frame, and would hold the state that was made
            clear_frames(error)
            raise
        finally:
            self.work = None
            local.op, local.phase = before

    def _write(self, due: list[tuple[dict[str, Any], Tensor]], fresh: dict[Any, Any], rooms: dict[Any, Any]) -> None:
        """Write the step. Nothing is allocated here, and signals are handled afterwards, so that it does not end halfway."""
        written, op = 0, scope.local.op
        try:
            for p, made in fresh.items():
                self.state[p].update(made)
            for group, p in due:
                if rooms:
                    self.work = rooms.get(p.device)
                self._step_one(group, p, fresh.get(p, {}))
                p.storage.written(op)
                written += 1
            self._moves += 1
        except BaseException as error:
            error.add_note(
                f"{op} was ended after {written} of {len(due)} parameters: these are updated, the next one perhaps "
                "in part. Go on from a checkpoint."
            )
            raise

    def _workspaces(self, due: list[tuple[dict[str, Any], Tensor]]) -> dict[Any, Any]:
        """The workspace of each device, made before anything is written."""
        sizes: dict[Any, int] = {}
        for group, p in due:
            size = rows.workspace(p._grad) or self.workspace(p.device, group, p)
            if size:
                sizes[p.device] = max(sizes.get(p.device, 0), size)
        return {device: device.workspace(size) for device, size in sizes.items()}

    def _step_one(self, group: dict[str, Any], p: Tensor, fresh: dict[str, Tensor]) -> None:
        assert p._grad is not None
        state = self.state.get(p, {})
        if isinstance(p._grad, SparseTensor):
            rows.step(self, group, p, p._grad, state)
            return
        first = bool(fresh) and not fresh.keys().isdisjoint(self.state_names(group))
        arguments = (group, p, p._grad.array, state, first)
        if p.device.index:
            with p.device.current():
                self._update(*arguments)
        else:
            self._update(*arguments)
        if state and p not in self.state:
            self.state[p] = state

    def _update(self, group: dict[str, Any], p: Tensor, g: Any, state: dict[str, Any], first: bool) -> None:
        """Update one parameter. If it has a master weight, update that and round it into the parameter."""
        if not has_master(group, p):
            self.update(p.device, group, p.array, g, state, first)
            return
        master = state[MASTER].array
        p.device.kernels.renew_master(p.array, out=master)
        self.update(p.device, group, master, g, state, first)
        p.device.kernels.copy(master, out=p.array)  # rounds

    def _make_missing(self, due: list[tuple[dict[str, Any], Tensor]], fresh: dict[Tensor, dict[str, Tensor]]) -> None:
        """Make the missing state, in ``fresh``."""
        plain = type(self).kept is Optimizer.kept
        for group, p in due:
            present = self.state.get(p, {})
            missing = [name for name in self.state_names(group) if present.get(name) is None] if plain else True
            if not missing and not group.get("master_weights"):
                continue  # the usual case: nothing is missing
            for name, kept in self._kept(group, p).items() if p not in fresh else ():
                if present.get(name) is None:
                    fresh.setdefault(p, {})[name] = states.made(kept, p, name)

    def _kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        """The state arrays of ``p``, and its master weight."""
        kept = self.kept(group, p)
        if has_master(group, p):
            kept[MASTER] = StateArray(p.array.shape, arithmetic(p.dtype), None)
        return kept

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, which frees their memory at once. With ``set_to_none=False``, fill them with zeros instead."""
        for group in self.param_groups:
            for p in group["params"]:
                clear_gradient(p, set_to_none)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before every step; ``args[0]`` is the optimizer. It may return other ones."""
        return RemovableHandle(self._before, hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after every step."""
        return RemovableHandle(self._after, hook)

    # --- groups ---------------------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group: ``"params"`` and the options that differ from the defaults.

        Raises:
            TypeError, ValueError: as for the constructor.
            GraphError: ``optimizer_in_backward`` is on; it would not update the new parameters.
        """
        self.refuse_in_backward("add_param_group()")
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params, names = states.parameters(param_group["params"])
        param_group["params"] = params
        if names:
            param_group["param_names"] = names
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
            param_group.setdefault(name, default)
        self._check(param_group)
        states.check_beside(param_group, self.param_groups)
        self.param_groups.append(param_group)

    def _check(self, group: dict[str, Any]) -> None:
        """Check the options of a group, new or loaded."""
        states.check(group, self.half_state, type(self).__name__)

    # --- state dicts ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's format: ``"state"`` by parameter number, ``"param_groups"`` with numbers for parameters.

        The tensors in it are the optimizer's own, not copies; only mean squares whose roots are kept in float16 are float32.
        """
        numbers, groups = self._numbers(), []
        for group in self.param_groups:
            packed = {key: value for key, value in group.items() if key != "params"}
            groups.append(packed | {"params": [numbers[id(p)] for p in group["params"]]})
        keys = {p: numbers[id(p)] if isinstance(p, Tensor) else p for p in self.state}
        return {"state": {keys[p]: states.saved(s, self.squares) for p, s in self.state.items()}, "param_groups": groups}

    def _numbers(self) -> dict[int, int]:
        """The id of each parameter -> its number in state dicts."""
        numbers: dict[int, int] = {}
        for group in self.param_groups:
            for p in group["params"]:
                numbers.setdefault(id(p), len(numbers))
        return numbers

    @pins_nothing
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load options and state. Tensors of any framework are copied to the device of their parameter.

        A dict without master weights can be loaded too: they are made from the parameters at the next step. State is kept in
        the dtype that a new one would have, whatever the dict's is.

        Raises:
            ValueError: the groups or the shapes of the state do not match, or a key is missing; nothing was changed.
            TypeError: something has another type than in a dict of :meth:`state_dict`; nothing was changed.
        """
        defaults = self.defaults if loading.is_ours(self) else {}
        loading.of_optimizer(type(self).__name__, state_dict, self.param_groups, defaults)
        saved = state_dict["param_groups"]
        numbers = chain.from_iterable(group["params"] for group in saved)
        mine = dict(zip(numbers, chain.from_iterable(group["params"] for group in self.param_groups), strict=True))
        groups, group_of, rooted = [], {}, {}
        for group, new in zip(self.param_groups, saved, strict=True):
            groups.append(states.loaded_group(group, new, self.defaults))
            self._check(groups[-1])
            group_of.update(dict.fromkeys(group["params"], groups[-1]))
            rooted.update(dict.fromkeys(group["params"], new.get("state_dtype") == "float16"))
        state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for number, values in state_dict["state"].items():
            p = mine.get(number)
            if p is None:
                state[number] = values
                continue
            state[p] = self._loaded(values, p, group_of[p], rooted[p])
        self.state, self.param_groups = state, groups
        for p, values in state.items():
            for name, value in states.tensors(values) if isinstance(p, Tensor) else ():
                states.report_state(value, p, name)

    def _loaded(self, values: dict[str, Any], p: Tensor, group: dict[str, Any], roots: bool) -> dict[str, Any]:
        """The state of ``p`` from a state dict: see :func:`states.loaded`."""
        return states.all_loaded(values, p, self._kept(group, p), roots, loading.is_ours(self))

    def __getstate__(self) -> dict[str, Any]:
        hooks = ("_before", "_after", "_in_backward")  # not pickled, as in PyTorch
        return {name: value for name, value in self.__dict__.items() if name not in hooks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += [f"Parameter Group {i}", *[f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]]
        return "\n".join([*lines, ")"]) if self.param_groups else f"{lines[0]})"
