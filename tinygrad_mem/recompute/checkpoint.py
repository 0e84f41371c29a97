"""``checkpoint``: the activations of a function are not kept for backward, but computed again.

Source: Chen et al., *Training deep nets with sublinear memory cost*, 2016; Griewank, *Achieving logarithmic growth of temporal
and spatial complexity in reverse automatic differentiation*, 1992.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..autograd.graph import saved_tensors_hooks
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, pins_nothing
from ..nn import Sequential
from ..scope import local, setting
from .frame import Frame

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def noop_context_fn() -> Contexts:
    """Return two contexts that do nothing: the default of ``context_fn``."""
    return nullcontext(), nullcontext()


def set_checkpoint_early_stop(enable: bool) -> AbstractContextManager[None]:
    """``with set_checkpoint_early_stop(False):`` overrides the argument ``early_stop`` of checkpoints called inside."""
    return setting(early_stop=enable)


def set_checkpoint_debug_enabled(enabled: bool | None) -> AbstractContextManager[None]:
    """``with set_checkpoint_debug_enabled(True):`` overrides the argument ``debug`` of checkpoints called inside."""
    return setting(debug=enabled)


@pins_nothing
def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = False,
    context_fn: Callable[[], Contexts] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    preserve_rng_state: bool = True,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """Call ``function(*args, **kwargs)``, and keep only its inputs for backward, which calls the function again.

    Memory: between forward and backward, the tensors among the arguments (also in tuples, lists and dicts), each once. In
    backward, what the function saves, from its recomputation on; each array is freed when its node has used it.

    Price: the function's forward once more, up to the last op that saves something.

    Gradients, buffers and generators are the same as without it, bit for bit: random numbers are drawn again from the same
    counters, batch norm updates its statistics in the forward only, and autocast, grad mode, the default device and the
    module's path are those of the forward. Checkpoints may be nested. ``backward``, ``autograd.grad`` and ``retain_graph=True``
    work; with ``retain_graph=True`` each backward recomputes.

    Do not use when: the function saves little besides its inputs (see ``memory.print_saved``), or writes into its inputs in
        place.

    Args:
        use_reentrant: accepted, and without effect. Where PyTorch's re-entrant variant works, it gives the same gradients. It
            loses gradients of parameters if no input requires one, and supports neither keywords nor ``autograd.grad``.
        context_fn: returns two contexts, for the forward and for the recomputation: see
            :func:`create_selective_checkpoint_contexts`.
        determinism_check: ``"default"`` compares each saved array's op, name, shape and dtype with the forward's;
            ``"none"`` does not.
        debug: errors list everything that both runs saved, with source lines.
        preserve_rng_state: if False, the recomputation draws other random numbers than the forward, as in PyTorch.
        early_stop: if False, the recomputation runs to the end of the function.

    Returns:
        The result of the function.

    Raises:
        ArgumentError: ``determinism_check`` is neither of the two.
        CheckpointError: in backward, the function did not do the same as in the forward; the message says what differs.
        GraphError: in backward, an input was written in place since the forward.
    """
    if determinism_check not in ("default", "none"):
        raise ArgumentError(f"determinism_check should be one of ['default', 'none'], found {determinism_check!r}")
    if not local.grad_enabled:
        return function(*args, **kwargs)
    stop = early_stop if local.early_stop is None else local.early_stop
    debug = debug if local.debug is None else local.debug
    forward, again = context_fn()
    check = determinism_check == "default"
    frame = Frame(function, args, kwargs, again=again, rng=preserve_rng_state, stop=stop, check=check, debug=debug)
    with forward, frame.draws, saved_tensors_hooks(frame.note, frame.hand_out):
        frame.start = local.recorded[frame.depth]  # the context may have recorded ops
        try:
            return function(*args, **kwargs)
        finally:
            frame.ended = True


def checkpointed(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """:func:`checkpoint` as a decorator: ``@checkpointed``, or ``@checkpointed(early_stop=False)``."""
    if function is None:
        return functools.partial(checkpointed, **options)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(function, *args, **options, **kwargs)

    return wrapper


@pins_nothing
def checkpoint_sequential(
    functions: Sequential | Iterable[Callable[[Any], Any]],
    segments: int,
    input: Tensor,
    use_reentrant: bool | None = False,
    **kwargs: Any,
) -> Any:
    """Call ``functions`` one after another, in ``segments`` parts of equal length, all but the last of them checkpointed.

    Memory: between forward and backward, the inputs of the segments and what the last segment saves; in backward, what one
    segment saves. For n equal functions the peak is lowest near ``sqrt(n)`` segments.

    Price: the forward of all segments but the last, once more.

    Do not use when: the functions differ much in what they save or in time. ``recompute.profile`` and ``recompute.chain`` find
    better segments for a given budget.

    Args:
        functions: a Sequential, or modules or functions of one argument.
        segments: the number of parts; the last one gets the remainder.
        input: the input of the first function.
        use_reentrant, kwargs: as in :func:`checkpoint`.

    Raises:
        ArgumentError: fewer than one segment, or more than there are functions.
        TypeError: an argument that checkpoint does not take.
    """
    if not kwargs.keys() <= {"preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}:
        raise TypeError(f"checkpoint_sequential: unexpected keyword arguments {', '.join(kwargs)}")
    chain = list(functions)  # not children(), which lists a repeated module once
    if not 1 <= segments <= max(len(chain), 1):
        raise ArgumentError(f"checkpoint_sequential: expected 1 to {len(chain)} segments, found {segments}")
    length = len(chain) // segments
    cut = length * (segments - 1)
    for start in range(0, cut, length):
        part = functools.partial(_run, chain[start : start + length])
        input = checkpoint(part, input, use_reentrant=use_reentrant, **kwargs)
    return _run(chain[cut:], input)


def _run(functions: list, input: Any) -> Any:
    for function in functions:
        input = function(input)
    return input
