"""The tensor: an array on a device, and its node on the tape.

This class imports no op. The methods that compute (``t.add``, ``t.sum``, ``t + u``) are functions of
``tinygrad_mem.functional``, which ``@public`` adds here; ``t.backward`` comes from ``backward.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes, scope
from ..absent import Explained as _Explained
from ..devices import device as Device
from ..devices import refuse_outside
from ..dtypes import FLOATING
from ..errors import DTypeError, GraphError, ShapeError
from ..interrupts import context
from ..scope import local
from .capsule import on_host
from .exchange import Exchange
from .hooks import RemovableHandle
from .storage import Storage

if TYPE_CHECKING:
    from ..functional import Methods as _Base  # for type checkers
else:
    _Base = _Explained

_new = object.__new__


class Tensor(Exchange, _Base):
    """A multi-dimensional array that can record how it was computed.

    ``Tensor([1.0, 2.0])`` and ``Tensor(2, 3)`` make float32 tensors as PyTorch's old constructor does; prefer ``tensor()``,
    ``zeros()`` and their family.

    Attributes:
        array: the raw ``numpy.ndarray`` or ``cupy.ndarray``. Writes to it are neither counted nor recorded.
        device: where it lives.
    """

    _grad: Tensor | None = None
    _grad_dtype: Any = ...  # the tensor's own
    _requires_grad = False
    _node: Any = None  # the node that made it: core.Node
    _index = 0
    _view: Any = None  # if it is a view: how it was made from its base: core.ViewHistory
    _storage: Storage | None = None
    _hooks: dict | None = None
    _post_accumulate: dict | None = None
    _stepped_in_backward: Any = None  # hooks of an optimizer that uses the gradient when it arrives, and leaves none
    _shard: Any = None  # of a parameter that is cut over ranks, and of its gradient: what knows the other ranks
    _replica: Any = None  # of a parameter that all ranks have and step alike: its number, the same on each
    _retains_grad = False
    _inference = False
    _twins: Any = None  # references to tensors over the same memory, whose graphs a write to this one would not reach
    _unseen = False  # what a tensor was before an in-place change of its shape: only the tensor refers to it
    _off_the_record: Any = None  # of a view made while nothing was recorded: the base, and its version then
    __array_priority__ = 1000
    layout = "strided"  # the only one
    __hash__ = object.__hash__  # type: ignore[assignment]  # tensors are keys by identity, though == compares values

    def __init__(self, *data: Any, device: Any = None) -> None:
        self.device = Device(device or local.default_device or "cpu")
        data = tuple(map(dtypes.size_or_data, data))
        if data and all(isinstance(n, int) for n in data):
            self.array = self.device.empty(tuple(data), dtypes.get_default_dtype())
            return
        source = on_host(data[0] if len(data) == 1 else data)
        if source.dtype.kind not in "biuf":  # NumPy would turn a date into a number of days
            dtypes.as_dtype(source.dtype)
        source = source.astype(dtypes.get_default_dtype(), copy=False)
        self.array = self.device.empty(source.shape, source.dtype)
        self.device.upload(source, self.array)

    @staticmethod
    def _wrap(array: Any, device: Device) -> Tensor:
        tensor = _new(Tensor)
        tensor.array = array
        tensor.device = device
        return tensor

    @staticmethod
    def cpu_device() -> Device:
        """The cpu, for results without an input."""
        return Device("cpu")

    @property
    def storage(self) -> Storage:
        """The identity and version of the memory, shared by all views of it."""
        return self._storage or Storage.of(self)

    @property
    def _version(self) -> int:
        return self.storage.version

    # --- the tape -------------------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """True if ops on it are recorded. It can be set on leaves only, and to True on floating ones only.

        As in PyTorch, it is also True of a view whose base requires grad, though the view was made before that, or while
        nothing was recorded; the base then gets no gradient through the view.

        Raises:
            GraphError: setting it to False on a tensor that is not a leaf; use ``detach()``.
            DTypeError: setting it on an integer or bool tensor.
        """
        if not self._requires_grad:
            if self._view is not None:
                self.edge()
                return self._requires_grad or self._view.base.requires_grad  # the base may have become a leaf that does
            base = self._off_the_record and self._off_the_record[0]()
            return base is not None and base.requires_grad and self.array.dtype.kind in FLOATING
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not value and self._node is not None:
            raise GraphError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable "
                "in a subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            )
        if value and self.array.dtype.kind not in FLOATING:
            raise DTypeError(f"only Tensors of floating point dtype can require gradients, found {self.dtype}")
        if value and self._inference and not local.inference:
            raise GraphError("Setting requires_grad=True on inference tensor outside InferenceMode is not allowed; clone it.")
        self._requires_grad = bool(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set :attr:`requires_grad` and return self."""
        self.requires_grad = requires_grad
        return self

    def is_inference(self) -> bool:
        """True if the tensor was made in ``inference_mode``."""
        return self._inference

    @property
    def is_leaf(self) -> bool:
        """True if no recorded op made it: the user made it, or it requires no gradient."""
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Any:
        """The node of the op that made it; ``None`` for a leaf."""
        self.edge()
        return self._node

    @property
    def output_nr(self) -> int:
        """The index of this tensor among the outputs of :attr:`grad_fn`."""
        return self._index

    def _is_view(self) -> bool:
        return self._view is not None

    @property
    def _base(self) -> Tensor | None:
        return None if self._view is None else self._view.base

    def _former(self) -> Tensor:
        """The base of views of this tensor: itself, or the tensor that it was before an in-place change of its shape."""
        former = self
        while former._view is not None:
            former = former._view.base
        return former

    def edge(self) -> tuple:
        """The place where its gradient goes: ``(node, output index)``, or ``(self, its shape)`` for a leaf.

        If the base of a view was written in place since, the view is first connected to the base's new node.

        Raises:
            GraphError: it is a view that was made while nothing was recorded, and its base was written since.
        """
        if self._view is not None:
            self._view.connect(self)
        elif (made := self._off_the_record) and made[1] != self._version and self.requires_grad and not self._requires_grad:
            raise GraphError(
                "A view was created in no_grad mode and its base or another view of its base has been modified inplace: it "
                "would get no gradient. Make the view and write in the same mode, or detach() the view."
            )
        if self._node is not None:
            return self._node, self._index
        return self, self.array.shape

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward computed, on leaves and on tensors with ``retain_grad()``; else ``None``."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                if hasattr(value, "become_grad_of"):  # a SparseTensor
                    value.become_grad_of(self)
                    return
                raise TypeError(f"grad: expected a Tensor or None, found {type(value).__name__}")
            if value is self:
                raise GraphError("can't assign Variable as its own grad")
            if value.array.shape != self.array.shape or value.device is not self.device:
                raise ShapeError(
                    f"assigned grad has data of a different size or device: expected {list(self.shape)} on {self.device}, "
                    f"found {list(value.shape)} on {value.device}"
                )
            wanted = self._dtype_of_grad(value.array)
            if value.array.dtype != wanted:
                raise DTypeError(
                    f"assigned grad has data of a different type: expected {wanted}, found {value.dtype}; "
                    "set grad_dtype of a leaf to allow another dtype"
                )
        self._grad = value
        if value is not None and self._shard is not None:
            value._shard = self._shard
        scope.report_role(None if value is None else value.array, "GRADIENT", self, self)

    @property
    def grad_dtype(self) -> np.dtype | None:
        """The dtype of a leaf's gradient; the leaf's own by default. ``None``: the gradient keeps the dtype that it has.

        Backward casts each gradient to it before adding: ``weight.grad_dtype = float32`` on a float16 leaf accumulates
        micro-batches in float32, for ``4 * numel`` bytes instead of ``2 * numel``.

        Raises:
            GraphError: it is not a leaf, or has a gradient of another dtype.
            DTypeError: set to something that is not a dtype.
        """
        self._leaf_alone("accessed")
        return self.array.dtype if self._grad_dtype is ... else self._grad_dtype

    @grad_dtype.setter
    def grad_dtype(self, value: Any) -> None:
        self._leaf_alone("set")
        if value is not None and not isinstance(value, np.dtype):
            raise DTypeError(f"grad_dtype must be a dtype such as tinygrad_mem.float32, or None, found {value!r}")
        if value is not None and self._grad is not None and self._grad.array.dtype != value:
            raise GraphError(
                f"Cannot set grad_dtype to {value} because there is already a gradient with dtype {self._grad.dtype}. "
                "Clear the gradient (.grad = None) first."
            )
        self._grad_dtype = value

    def _leaf_alone(self, what: str) -> None:
        if not self.is_leaf:
            raise GraphError(f"grad_dtype can only be {what} on leaf tensors: other gradients have their tensor's dtype")

    def _dtype_of_grad(self, grad: Any) -> np.dtype:
        """The dtype to which arriving gradients are cast."""
        kept = self._grad_dtype
        return self.array.dtype if kept is ... else grad.dtype if kept is None else kept

    def _take_grad(self, array: Any) -> None:
        self._grad = Tensor._wrap(array, self.device)
        if self._shard is not None:
            self._grad._shard = self._shard
        scope.report_role(array, "GRADIENT", self, self)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call ``hook(grad)`` when this tensor's gradient is computed. If the hook returns a tensor, it replaces the gradient.

        Raises:
            GraphError: the tensor requires no gradient.
        """
        if not self.requires_grad:
            raise GraphError("cannot register a hook on a tensor that doesn't require gradient")
        target, index = self.edge()
        if target is self:
            if self._hooks is None:
                self._hooks = {}
            return RemovableHandle(self._hooks, hook)
        return RemovableHandle(target.own_hooks().of_outputs.setdefault(index, {}), hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call ``hook(leaf)`` each time backward has added to ``leaf.grad``. An optimizer can step there and free the gradient.

        Raises:
            GraphError: the tensor is not a leaf.
        """
        if not self.requires_grad:
            raise GraphError("cannot register a hook on a tensor that doesn't require gradient")
        if not self.is_leaf:
            raise GraphError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        if self._post_accumulate is None:
            self._post_accumulate = {}
        return RemovableHandle(self._post_accumulate, hook)

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf tensor in ``grad``. Raises: GraphError: it requires no gradient."""
        if not self.requires_grad:
            raise GraphError("can't retain_grad on Tensor that has requires_grad=False")
        if self.is_leaf or self._retains_grad:
            return
        with self._retained_anew():
            self._retains_grad = True

    @context
    def _retained_anew(self) -> Iterator[None]:
        """Inside, the tensor may get another node. It retains the gradient of its newest value."""
        if self._retains_grad and self._node is not None and self._node.hooks is not None:
            self._node.hooks.retained.pop(self._index, None)
        yield
        if self._retains_grad and self._node is not None:
            self._node.own_hooks().retained[self._index] = weakref.ref(self)

    @property
    def retains_grad(self) -> bool:
        """True if ``retain_grad()`` was called on this non-leaf tensor."""
        return self._retains_grad

    def detach(self) -> Tensor:
        """A tensor with the same memory, which is not recorded."""
        tensor = Tensor._wrap(self.array, self.device)
        tensor._storage = self.storage
        tensor._inference = self._inference
        if self._shard is not None:
            tensor._shard = self._shard
        return tensor

    def detach_(self) -> Tensor:
        """Detach this tensor: it becomes a leaf that requires no gradient."""
        if self._view is not None or self._off_the_record is not None:
            raise GraphError("Can't detach views in-place. Use detach() instead.")
        self._node, self._index, self._requires_grad = None, 0, False
        return self

    @property
    def data(self) -> Tensor:
        """A detached tensor with the same memory. Writes to it are not counted as in-place writes. Prefer :meth:`detach`."""
        if self._storage is not None:
            self._storage.constant = None
        return Tensor._wrap(self.array, self.device)

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"data: expected a Tensor, found {type(value).__name__}")
        if self._requires_grad and value.array.dtype.kind not in FLOATING:
            raise DTypeError(f"data set to a tensor that requires gradients must be floating point, found {value.dtype}")
        refuse_outside(self.device, "data")
        self.array, self.device, self._storage = value.array, value.device, value.storage
        for listener in scope.listeners:
            listener.moved(self)
