"""The places where autograd writes in place, but not to tensors of a subclass, as fake tensors are.

- Gradients of one tensor are added to the first of them, if nothing else refers to it. Source:
  ``torch/csrc/autograd/input_buffer.cpp``.
- Some formulas write into zeros that they have just made. Source: ``torch/csrc/autograd/FunctionsManual.cpp``, wherever it asks
  ``areAnyTensorSubclassLike``.
- A linear layer whose input has gaps adds its bias to its product. Source: ``aten/src/ATen/native/Linear.cpp``, ``linear``.
- Attention by PyTorch's formula adds its mask to the scores. Source: ``transformers/attention.cpp``,
  ``_scaled_dot_product_attention_math``.

And the numbers that forward keeps as tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction

from ...interrupts import changed
from .dispatcher import decomposed, operator
from .kernels.call import dense
from .ledger import HeldBlock, Ledger, Place
from .places import Places

aten = torch.ops.aten


def _in_place(names: str) -> dict[Any, Any]:
    """Pairs of an op, and the op that writes to its first argument instead."""
    parts = [name.partition(".") for name in names.split()]
    return {operator(f"{name}{dot}{overload}"): operator(f"{name}_{dot}{overload}") for name, dot, overload in parts}


_FORMULAS = _in_place(
    "scatter_add scatter.src scatter.value masked_fill.Scalar masked_scatter index_add put index_fill.int_Scalar "
    "index_fill.int_Tensor"
)
_BY_NUMBERS = {aten.mul.Tensor, aten.div.Tensor}
_SAVES_NUMBERS = {*_BY_NUMBERS, aten.mul_.Tensor, aten.div_.Tensor}  # for the gradient of what they multiply
_NUMBERS = {bool: 1, int: 8, float: 8, complex: 16}  # bytes of a number as a tensor
_OUT_OF_PLACE = ("XlogyBackward", "SpecialXlog1PyBackward", "ScatterReduceBackward", "IndexReduceBackward")
"""Nodes whose formulas write to tensors of their own out of place. Source: ``derivatives.yaml``; ``FunctionsManual.cpp``."""
_ADD_THEMSELVES = {"Atan2Backward0", "CholeskySolveBackward0", "LinalgLstsqBackward0", "LinalgLuSolveBackward0"}
"""Nodes of several tensors whose formulas add what they have made."""
_LOGITS, _MASKS = _in_place("sub.Tensor mul.Tensor"), _in_place("logical_and logical_or")
_OF_NODE = {
    "BinaryCrossEntropyWithLogitsBackward0": _LOGITS,
    "BinaryCrossEntropyBackward0": _in_place("mul.Tensor"),
    **dict.fromkeys(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0", "ClampBackward0"), _MASKS),
}
"""Ops that only the formulas of these nodes run in place."""
_SOME = frozenset(op for table in _OF_NODE.values() for op in table)


class AutogradWrites:
    """Decides which op autograd would run for plain tensors.

    Args:
        born: the node of the graph in which a tensor's storage was made; ``None`` outside of backward.

    Attributes:
        adds: True within an op that adds to its own product, of plain tensors.
    """

    _alone = -1, -1  # references to a gradient that only autograd has, and to its storage; of all predictions

    def __init__(self, born: Callable[[torch.Tensor], Any]) -> None:
        self._born, self.adds = born, False

    def linear_layer(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``aten::linear``, which adds its bias in place; see :meth:`op`."""
        return self._adding(bias is not None and bias.dim() == 1 and bias, aten.linear.default, input, weight, bias)

    def attention_by_formula(self, query: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """``aten::_scaled_dot_product_attention_math``, which adds its mask in place."""
        return self._adding(query, aten._scaled_dot_product_attention_math.default, query, *args, **kwargs)

    def _adding(self, to: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        with changed(self, adds=isinstance(to, FakeTensor) and forward_ad._current_level < 0):
            return decomposed(op, args, kwargs)

    def calibrate(self) -> None:
        """Count the references to a gradient that only autograd has, once: the count differs between versions of PyTorch."""
        if AutogradWrites._alone == (-1, -1):
            with torch.inference_mode(False), torch.enable_grad():
                leaf = torch.empty(1, requires_grad=True)
                (leaf * 2 + leaf * 3).sum().backward()

    def op(self, func: Any, args: tuple) -> tuple[Any, tuple]:
        """The op that runs in place of ``func``, and its arguments."""
        if self.adds and func is aten.add.Tensor:
            return aten.add_.Tensor, args
        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            return func, args
        if not args or not isinstance(args[0], torch.Tensor):
            return func, args
        if func is aten.add.Tensor and self._adds_second(args):
            return aten.add_.Tensor, args
        if func is aten.index_put.default and self._fresh(args[0]):
            accumulate = args[3] if len(args) > 3 else False
            return aten._index_put_impl_.default, (*args[:3], accumulate, True)
        other = _FORMULAS.get(func) or _of_node(func)
        if other is not None and self._fresh(args[0]) and not node()[0].startswith(_OUT_OF_PLACE):
            return other, args
        return func, args

    def _adds_second(self, args: tuple) -> bool:
        """True if a second gradient of the same tensor is added to ``args[0]``, and nothing else refers to ``args[0]``."""
        first = args[0]
        counts = first._use_count(), torch._C._storage_Use_Count(first.untyped_storage()._cdata)
        if self._alone == (-1, -1):
            AutogradWrites._alone = counts
        if not isinstance(args[1], torch.Tensor) or args[1].shape != first.shape or args[1].dtype != first.dtype:
            return False
        if self._born(first) is None:
            return False
        if self._fresh(first) and not (self._fresh(args[1]) and _gives_twice()):
            return False  # the node's own formula adds
        return dense(first) and counts[0] <= self._alone[0] and counts[1] <= self._alone[1]

    def _fresh(self, tensor: torch.Tensor) -> bool:
        """True if the node that runs made the tensor's storage."""
        return self._born(tensor) == node()


def _gives_twice() -> bool:
    """True if the running node returns two gradients for one tensor, as in ``x * x``, and does not add them itself."""
    running: Any = torch._C._current_autograd_node()
    if isinstance(running, BackwardCFunction) or running.name() in _ADD_THEMSELVES:
        return False
    targets = [each for each in running.next_functions if each[0] is not None]
    return len(set(targets)) < len(targets)


def _of_node(func: Any) -> Any:
    running: Any = torch._C._current_autograd_node() if func in _SOME else None
    if running is None:
        return None
    table = _OF_NODE.get(running.name(), {})
    targets = running.next_functions[1:2] if table is _LOGITS else ()
    return None if any(above is not None for above, _ in targets) else table.get(func)  # targets' gradients are out of place


def node() -> Any:
    """An identity of the running node of the graph; ``None`` outside of backward."""
    running: Any = torch._C._current_autograd_node()
    return None if running is None else (running.name(), running._sequence_nr(), torch._C._current_graph_task_id())


class SavedNumbers:
    """Numbers that autograd has saved, such as 0.5 of ``x * 0.5``: tensors on the host. Between the op and the end of the call
    that it is a part of, such as ``F.gumbel_softmax``, the nodes that hold them cannot be seen.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._unseen: list[HeldBlock] = []

    def save(self, func: Any, args: tuple, place: Place) -> int:
        """Count the number that an op saves, before its result; the bytes."""
        if func not in _SAVES_NUMBERS or not (torch.is_grad_enabled() and args[0].requires_grad):
            return 0
        size = _NUMBERS.get(type(args[1]), 0)
        if size:
            self._unseen.append(self._ledger.malloc(size, place, "TEMPORARY"))
        return size

    def seen(self, size: int) -> HeldBlock | None:
        """The block of a number that a node holds; ``None``: the op was another one."""
        found = next((held for held in self._unseen if held.size == size), None)
        if found is not None:
            self._unseen.remove(found)
        return found

    def end(self, places: Places) -> None:
        """The call has returned: numbers that no node holds have ended within it."""
        while self._unseen:
            self._ledger.free(self._unseen.pop(), places.here())


def kept_number(func: Any, args: tuple) -> int:
    """The bytes of a number among the arguments that is a tensor kept from the forward, not one that the op makes now."""
    number = next((_NUMBERS[type(each)] for each in args if type(each) in _NUMBERS), 0) if func in _BY_NUMBERS else 0
    running: Any = torch._C._current_autograd_node() if number else None
    return number if running is not None and running.name() in ("MulBackward0", "DivBackward0") else 0
