"""``GradScaler``: multiplies losses by a scale, so that small gradients do not underflow, and divides gradients by it."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterable
from enum import Enum
from numbers import Real
from typing import Any

import numpy as np

from .. import scope
from ..autograd.gradients import parts
from ..autograd.graph import leaves
from ..autograd.tensor import Tensor
from ..devices import cuda_problem
from ..dtypes import float16, float32, is_half
from ..errors import ArgumentError, GraphError, pins_nothing
from ..functional.creation import full
from ..interrupts import uninterrupted, uninterruptible
from ..optim.loading import like, mapping

_STATE = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")  # of a state dict
_STEPPED = "step() has already been called since the last update()."


class OptState(Enum):
    """The state of an optimizer's gradients since the last update."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


class _Window:
    """One optimizer since the last update: its stage, and a flag on each device that is 1 if a gradient was not finite."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer  # held, so that no other object gets its id
        self.stage = OptState.READY
        self.found: dict[Any, Any] = {}

    def unscale(self, grads: list[Tensor], inverse: float) -> None:
        """Multiply the gradients in place, and set the flags."""
        found: dict[Any, Any] = {}
        with scope.setting(phase="optimizer", op="GradScaler.unscale_"):
            for grad in (parts(grad)[-1] for grad in grads):  # for a sparse gradient its values
                device = grad.device
                with device.current():
                    if device not in found:
                        found[device] = device.empty((1,), float32)
                        device.kernels.fill(0, out=found[device])
                    scope.run(device.kernels.unscale, grad.array, inverse, found[device])
                grad.storage.written("unscale_")
            cut = [grad for grad in grads if grad._shard is not None]  # other ranks have its other rows
            for grad in {grad._shard.groups: grad for grad in cut}.values():
                grad._shard.any_rank(Tensor._wrap(found[grad.device], grad.device))
        self.found, self.stage = found, OptState.UNSCALED

    def close(self, scaler: GradScaler, made: bool) -> None:
        """Record that the step was made or skipped."""
        self.stage = OptState.STEPPED
        scaler._note(self.optimizer, made)

    def overflowed(self) -> bool:
        """True if a gradient was not finite. On a GPU this waits for the flags; on ``meta`` all count as finite."""
        flags = [Tensor._wrap(flag, device) for device, flag in self.found.items() if device.kind != "meta"]
        return any(flag.item() for flag in flags)


class GradScaler:
    """Multiplies losses by a scale, divides gradients by it, skips steps whose gradients overflowed, and adapts the scale.

    Call ``scaler.scale(loss).backward()``, then ``scaler.step(optimizer)`` for each optimizer, then ``scaler.update()`` once.
    An inf or nan in any micro-batch stays in the accumulated gradient, so the whole window is skipped. To clip gradients, first
    call ``scaler.unscale_(optimizer)``, once per window. ``scaler.stepped(optimizer)`` tells schedules and counters whether the
    last step was made.

    For a static scale, always call ``update(scale)`` with the same number; steps that overflow are still skipped.

    Memory: one number on each device on which an optimizer has gradients, from :meth:`unscale_` to :meth:`update`. Gradients
    are checked and unscaled in one pass, in place. In a prediction (on ``meta``) no gradient overflows: every step is made.

    Price: one pass over the gradients. On a GPU :meth:`step` waits for the flag, once per optimizer.

    Do not use when: gradients are computed in float32 or bfloat16, which do not underflow. With ``optimizer_in_backward``,
    which uses each gradient before all are known to be finite, :meth:`scale` raises: give the scaler to it.

    Args:
        device: ``"cuda"`` or ``"cpu"``. For ``"cuda"`` without a GPU, and not in a prediction, scaling is off, with a warning.
        init_scale, growth_factor, backoff_factor, growth_interval: the first scale (kept as a float32); the factor after
            ``growth_interval`` windows without an overflow; the factor after an overflow.
        enabled: if False, ``scale`` returns its argument, and ``step`` always makes the step.

    Raises:
        AssertionError: a growth factor of 1 or less, a backoff factor of 1 or more.

    Source: Micikevicius et al., *Mixed precision training*, 2018, section 3.2.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device, self._enabled = device, enabled
        if enabled and device == "cuda" and scope.local.dry is None and cuda_problem() is not None:
            warnings.warn(
                "GradScaler is enabled, but CUDA is not available. Disabling: give 'cpu' to scale there.", stacklevel=2
            )
            self._enabled = False
        self._steps: dict[int, tuple[weakref.ref, bool]] = {}
        if not self._enabled:
            return
        if growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._init_scale, self._init_growth_tracker = init_scale, 0
        self._scale: float | None = None  # set by the first call of scale(), and the tracker with it, as in PyTorch
        self._growth_factor, self._backoff_factor, self._growth_interval = growth_factor, backoff_factor, growth_interval
        self._windows: dict[int, _Window] = {}

    # --- a window -------------------------------------------------------------------------------------------------------

    @pins_nothing
    def scale(self, outputs: Any) -> Any:
        """``outputs``, a tensor or an iterable of them, times the scale. A float16 loss without dimensions becomes float32.

        Raises:
            ValueError: something is neither a tensor nor an iterable of tensors.
            GraphError: an optimizer in backward would use gradients that are not unscaled yet.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            _refuse_steps_in_backward(outputs)
            return self._scaled(outputs)
        if isinstance(outputs, Iterable):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled  # type: ignore[call-arg]
        raise ArgumentError(f"outputs must be a Tensor or an iterable of Tensors, found {type(outputs).__name__}")

    def _scaled(self, loss: Tensor) -> Tensor:
        if self._scale is None:
            self._scale, self._growth_tracker = _float32(self._init_scale), self._init_growth_tracker
        if is_half(loss.dtype):  # as a float16 number, the scale would be inf
            return loss * full((), self._scale, dtype=float32, device=loss.device)
        return loss * self._scale

    @pins_nothing
    def unscale_(self, optimizer: Any) -> None:
        """Divide the optimizer's gradients by the scale, in place, and check that they are finite. Call it before clipping.

        Raises:
            RuntimeError: it was called for this optimizer since the last update, or ``step`` was.
            ValueError: a gradient is float16, in which the quotient would underflow; nothing was changed.
        """
        if not self._enabled:
            return
        scale = self._begun("unscale_")
        window = self._window(optimizer)
        if window.stage is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if window.stage is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        uninterrupted(window.unscale, _gradients(optimizer), _float32(1 / scale) if scale else math.inf)

    @pins_nothing
    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """:meth:`unscale_` the gradients, unless that was done, and ``optimizer.step(*args, **kwargs)`` if all are finite.

        Returns:
            The result of ``optimizer.step``, or ``None`` if it was skipped. (It is usually ``None``; :meth:`stepped` tells.) An
            optimizer without gradients makes a step that changes nothing.

        Raises:
            RuntimeError: it was called for this optimizer since the last update, or is given a closure.
            ValueError: as :meth:`unscale_`.
        """
        if not self._enabled:
            result = optimizer.step(*args, **kwargs)
            self._note(optimizer, True)
            return result
        if "closure" in kwargs or any(callable(arg) for arg in args):
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._begun("step")
        window = self._window(optimizer)
        if window.stage is OptState.STEPPED:
            raise RuntimeError(_STEPPED)
        if window.stage is OptState.READY:
            self.unscale_(optimizer)
        skipped = window.overflowed()
        moves, result = getattr(optimizer, "_moves", 0), None
        try:
            if not skipped:
                result = optimizer.step(*args, **kwargs)
            uninterrupted(window.close, self, not skipped)
        except BaseException:  # the step was not made: the window stays as before, unless an interrupt came after the step
            if getattr(optimizer, "_moves", 0) != moves:
                uninterrupted(window.close, self, True)
            raise
        return result

    def stepped(self, optimizer: Any) -> bool:
        """True if the last :meth:`step` with this optimizer was made, False if it was skipped. PyTorch has no such method.

        Raises:
            ArgumentError: there was none.
        """
        reference, made = self._steps.get(id(optimizer), (None, False))
        if reference is None or reference() is not optimizer:
            raise ArgumentError("stepped: step() has not been called with this optimizer")
        return made

    @uninterruptible
    def update(self, new_scale: float | Tensor | None = None) -> None:
        """End the window: lower the scale after an overflow, raise it after ``growth_interval`` windows in a row without one.

        A window in which no optimizer had a gradient changes nothing.

        Args:
            new_scale: the next scale, a number or a tensor of one element.

        Raises:
            AssertionError: ``scale`` or ``step`` was not called before, or ``new_scale`` is not a valid scale.
        """
        if not self._enabled:
            return
        scale = self._begun("update")
        checked = [window for window in self._windows.values() if window.found]
        if new_scale is not None:
            self._scale = self._given(new_scale, scale)
        elif not self._windows:
            raise AssertionError("No inf checks were recorded prior to update.")
        elif any(window.overflowed() for window in checked):
            self._scale, self._growth_tracker = _float32(scale * self._backoff_factor), 0
        elif checked:
            self._grow(scale)
        self._windows = {}

    def _grow(self, scale: float) -> None:
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            grown = _float32(scale * self._growth_factor)
            self._scale, self._growth_tracker = grown if math.isfinite(grown) else scale, 0

    def _given(self, new_scale: Any, scale: float) -> float:
        if isinstance(new_scale, Real):
            return _float32(float(new_scale))
        if not isinstance(new_scale, Tensor) or new_scale.numel() != 1 or new_scale.requires_grad:
            raise AssertionError("new_scale should be a float or a 1-element tensor with requires_grad=False.")
        return scale if new_scale.device.kind == "meta" else _float32(float(new_scale.item()))

    def _begun(self, name: str) -> float:
        if self._scale is None:
            raise AssertionError(
                f"Attempted {name} but _scale is None.  "
                "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
            )
        return self._scale

    def _window(self, optimizer: Any) -> _Window:
        return self._windows.setdefault(id(optimizer), _Window(optimizer))

    def _fresh_window(self, optimizer: Any) -> _Window:
        """The window of an optimizer that unscales in backward. Raises: RuntimeError: it has stepped since the last update."""
        window = self._window(optimizer)
        if window.stage is not OptState.READY:
            raise RuntimeError(_STEPPED)
        return window

    def _note(self, optimizer: Any, made: bool) -> None:
        self._steps = {key: kept for key, kept in self._steps.items() if kept[0]() is not None}
        self._steps[id(optimizer)] = weakref.ref(optimizer), made

    # --- numbers --------------------------------------------------------------------------------------------------------

    def get_scale(self) -> float:
        """The scale; 1.0 if scaling is off. It is kept on the host, so this does not wait for a GPU."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else self._scale

    def get_growth_factor(self) -> float:
        """The factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor by which the scale shrinks after an overflow."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale shrinks after an overflow."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of windows in a row without an overflow after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of windows in a row without an overflow after which the scale grows."""
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        return self._init_growth_tracker if self._scale is None else self._growth_tracker

    def is_enabled(self) -> bool:
        """True if losses are scaled."""
        return self._enabled

    # --- state ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The scale, its factors, and the number of windows in a row without an overflow; ``{}`` if scaling is off."""
        if not self._enabled:
            return {}
        factors = self._growth_factor, self._backoff_factor, self._growth_interval
        return dict(zip(_STATE, (self.get_scale(), *factors, self._get_growth_tracker()), strict=True))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a dict of :meth:`state_dict`, ours or PyTorch's. If scaling is off, this does nothing.

        Raises:
            RuntimeError: the dict is empty, because scaling was off; or a key is missing. Nothing was changed.
            TypeError: it is not a dict, or a value is not a number. Nothing was changed.
        """
        if not self._enabled:
            return
        if state_dict == {}:
            raise ArgumentError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        mapping("GradScaler.load_state_dict", state_dict, _STATE)
        for name in _STATE:
            like(f"GradScaler.load_state_dict: {name!r}", state_dict[name], 0.0)
        found = [state_dict[name] for name in _STATE]
        scale, growth, backoff, interval, tracker = [x.item() if hasattr(x, "item") else x for x in found]
        rounded = _float32(scale)
        self._init_scale, self._init_growth_tracker = scale, tracker
        if self._scale is not None:
            self._scale, self._growth_tracker = rounded, tracker
        self._growth_factor, self._backoff_factor, self._growth_interval = growth, backoff, interval

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_steps": {}}
        if self._enabled:
            if self._windows:
                raise AssertionError(
                    "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after "
                    "scaler.update()."
                )
            state |= {"_init_scale": self.get_scale(), "_init_growth_tracker": self._get_growth_tracker()}
            state["_scale"] = None
        return state


def _float32(number: float) -> float:
    return float(scope.run_inside(np.float32, number))


def _refuse_steps_in_backward(loss: Tensor) -> None:
    """Refuse a loss whose backward steps an optimizer: it would use scaled gradients. Raises: GraphError."""
    if not scope.stepping_in_backward:
        return  # skip the walk below, whose time grows with the graph
    for leaf in leaves(loss):
        if leaf._stepped_in_backward:
            raise GraphError(
                f"scale: a parameter of shape {list(leaf.shape)} under this loss is updated in backward, with a gradient that "
                "cannot be unscaled first; give the scaler to optimizer_in_backward, and call backward(loss) of what it returns"
            )


def _gradients(optimizer: Any) -> list[Tensor]:
    """The gradients of the optimizer's parameters, each once. Raises: ValueError: one is float16."""
    found: dict[int, Tensor] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.dtype == float16:
                raise ArgumentError(
                    "Attempting to unscale FP16 gradients: small gradients would become 0 in float16 without the scale. "
                    "Keep the parameters in float32 and use autocast, or set grad_dtype = float32 on float16 parameters."
                )
            found[id(p.grad)] = p.grad
    return list(found.values())
