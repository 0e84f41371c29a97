"""``backward`` and ``grad``: what users call to walk the tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import scope
from ..devices import refuse_outside
from ..dtypes import FLOATING
from ..errors import ArgumentError, DeviceError, DTypeError, GraphError, NotOfferedError, ShapeError, clear_frames
from ..ops.base import RowsGradient
from . import core
from .core import accumulate
from .grad_mode import no_grad
from .gradients import SparseTensor, copy
from .tensor import Tensor


def _sequence(value: Any) -> list:
    return [] if value is None else [value] if isinstance(value, Tensor) else list(value)


def _roots(outputs: list, grads: list) -> list:
    """The outputs' edges and gradients. The engine may write into implicit gradients, and never into the user's."""
    if grads and len(grads) != len(outputs):
        raise GraphError(f"got {len(outputs)} tensors and {len(grads)} gradients: give one gradient (or None) for each tensor")
    roots = []
    for output, grad in zip(outputs, grads or [None] * len(outputs), strict=True):
        if not isinstance(output, Tensor):
            raise TypeError(f"backward: expected tensors, found {type(output).__name__}")
        refuse_outside(output.device, "backward")
        if not output.requires_grad:
            raise GraphError(
                "element 0 of tensors does not require grad and does not have a grad_fn: nothing was recorded on the way to "
                "it. Was it made under no_grad(), from detached tensors, or from parameters with requires_grad=False?"
            )
        if grad is None:
            if output.array.size != 1:
                raise GraphError(
                    f"grad can be implicitly created only for scalar outputs, found shape {list(output.shape)}; "
                    "pass gradient=, or reduce it with sum() or mean()"
                )
            with scope.phase("backward"):
                array = output.device.empty(output.array.shape, output.array.dtype)
                output.device.kernels.fill(1, out=array)
            roots.append((output.edge(), array, True))
            continue
        if grad.array.shape != output.array.shape:
            raise ShapeError(
                f"Mismatch in shape: grad_output has a shape of {list(grad.shape)} and output has a shape of "
                f"{list(output.shape)}."
            )
        if grad.array.dtype.kind not in FLOATING:
            raise DTypeError(f"backward: expected a gradient of a floating dtype, found {grad.dtype}")
        if grad.device is not output.device:
            raise DeviceError(
                f"backward: expected a gradient on {output.device}, found one on {grad.device}: move it with .to()"
            )
        roots.append((output.edge(), grad.array, False))
    return roots


def _no_second_order(create_graph: bool) -> None:
    if create_graph:
        raise GraphError(
            "create_graph=True is not offered: it asks for gradients that can be differentiated again. Backward runs on raw "
            "arrays here and records nothing, so that memory falls while it runs. Write the gradient as a forward "
            "expression, or use PyTorch for second order."
        )


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of ``tensors`` to the ``grad`` of the leaves that they were made from.

    Args:
        tensors: one or several outputs.
        grad_tensors: their gradients; ``None`` for tensors of one element.
        retain_graph, create_graph, inputs: as of :meth:`Tensor.backward`.

    Raises:
        GraphError, ShapeError, DTypeError: see :meth:`Tensor.backward`.
    """
    _no_second_order(create_graph)
    try:
        _backward(_sequence(tensors), _sequence(grad_tensors), bool(retain_graph), inputs)
    except BaseException as error:
        clear_frames(error)
        del tensors, grad_tensors  # the traceback refers to this frame: it must not keep the graph
        raise


class BackwardMethod:
    """Has ``Tensor.backward``, whose name is also that of the function above."""

    def backward(
        self: Any,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add the gradient of this tensor to the ``grad`` of every leaf that it was made from.

        Args:
            gradient: the gradient of this tensor; may be left out for a tensor of one element.
            retain_graph: keep the saved tensors, so that backward can be called again.
            create_graph: True is an error: second-order gradients are not offered.
            inputs: accumulate into these only.

        Raises:
            GraphError: the tensor requires no gradient; or it has several elements and no ``gradient``; or its graph was freed
                by an earlier backward; or ``create_graph`` is True.
        """
        try:
            backward(self, gradient, retain_graph, create_graph, inputs=inputs)
        except BaseException:
            del self, gradient  # the traceback refers to this frame: it must not keep the graph
            raise


Tensor.backward = BackwardMethod.backward  # type: ignore[method-assign]


def _backward(tensors: list, grads: list, retain_graph: bool, inputs: Any) -> None:
    roots = _roots(tensors, grads)
    if inputs is None:
        core.run(roots, keep_graph=retain_graph)
        return
    chosen = list({id(t): t for t in _sequence(inputs)}.values())  # one that is named twice gets its gradient once
    if not chosen:
        raise GraphError("backward: inputs is empty; leave it out to accumulate into every leaf")
    edges = [_edge(t) for t in chosen]
    for tensor in chosen:
        tensor.retain_grad()  # as in PyTorch: a tensor that an op made has its gradient from the walk, also from later ones
    found = core.run(roots, keep_graph=retain_graph, inputs=edges)
    with no_grad():  # what hooks compute is not recorded
        for tensor, grad in zip(chosen, found, strict=True):
            if grad is not None and tensor.is_leaf:
                accumulate(tensor, grad, owned=False)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of ``outputs`` with respect to ``inputs``, as new tensors; no ``.grad`` is touched.

    Args:
        allow_unused: give ``None`` for an input that the outputs do not depend on, instead of raising.
        is_grads_batched: True is an error, not offered.
        materialize_grads: give zeros for such an input.

    Raises:
        GraphError: there are no inputs, or one requires no grad, or was not used.
        ArgumentError: ``materialize_grads`` and ``allow_unused=False`` at once.
    """
    _no_second_order(create_graph)
    if is_grads_batched:
        raise NotOfferedError("is_grads_batched=True is not offered: call grad() for the gradients one at a time")
    if materialize_grads and allow_unused is False:
        raise ArgumentError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    try:
        may_miss = bool(allow_unused) or materialize_grads
        found = _grad(_sequence(outputs), _sequence(inputs), _sequence(grad_outputs), bool(retain_graph), may_miss)
    except BaseException as error:
        clear_frames(error)
        del outputs, inputs, grad_outputs
        raise
    return tuple(map(_or_zeros, found, _sequence(inputs))) if materialize_grads else found


def _or_zeros(grad: Tensor | None, of: Tensor) -> Tensor:
    if grad is not None:
        return grad
    array = of.device.empty(of.array.shape, of._dtype_of_grad(of.array))
    of.device.kernels.fill(0, out=array)
    return Tensor._wrap(array, of.device)


def _grad(outputs: list, chosen: list, grads: list, retain_graph: bool, allow_unused: bool) -> tuple[Tensor | None, ...]:
    if not chosen:
        raise GraphError("`inputs` argument to `grad()` cannot be empty: name the tensors whose gradients are wanted")
    roots = _roots(outputs, grads)
    found = core.run(roots, keep_graph=retain_graph, inputs=[_edge(t) for t in chosen])
    if not allow_unused and any(g is None for g in found):
        raise GraphError(
            "One of the differentiated Tensors appears to not have been used in the graph. "
            "Set allow_unused=True if this is the desired behavior."
        )
    results: list[Tensor | None] = []
    for tensor, array in zip(chosen, found, strict=True):
        if type(array) is RowsGradient:
            results.append(SparseTensor(array, tensor.device))  # type: ignore[arg-type]
            continue
        if array is not None and any(isinstance(r, Tensor) and r.array is array for r in results):
            array = copy(tensor.device, array)  # the same input twice: two tensors never share one gradient
        results.append(None if array is None else Tensor._wrap(array, tensor.device))
    return tuple(results)


def _edge(tensor: Tensor) -> tuple:
    if not tensor.requires_grad:
        raise GraphError("One of the differentiated Tensors does not require grad")
    return tensor.edge()
