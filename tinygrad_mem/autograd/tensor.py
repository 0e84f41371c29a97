"""The tensor: an array of a device, and its place on the tape.

This class knows no op. The methods that compute (``t.add``, ``t.sum``, ``t + u``) are the functions of
``tinygrad_mem.functional``; the table in ``functional/methods.py`` puts them here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes, scope
from ..devices import device as Device
from ..errors import DeviceError, DTypeError, GraphError, ShapeError
from ..scope import local
from . import engine, saved, tape
from .formatting import format_tensor

if TYPE_CHECKING:
    from ..functional.methods import Methods as _Methods
else:
    _Methods = object


class Size(tuple):
    """A shape: a tuple of ints with ``numel()``."""

    __slots__ = ()

    def numel(self) -> int:
        """How many elements a tensor of this shape has."""
        count = 1
        for n in self:
            count *= n
        return count

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return Size(found) if isinstance(key, slice) else found

    def __add__(self, other: tuple) -> Size:
        return Size(tuple.__add__(self, tuple(other)))

    def __repr__(self) -> str:
        return f"Size({list(self)})"


class RemovableHandle:
    """What registering a hook returns; ``remove()`` takes the hook away, and so does leaving it as a context."""

    __slots__ = ("_hooks", "key")
    _next = 0

    def __init__(self, hooks: dict) -> None:
        self._hooks = hooks
        self.key = RemovableHandle._next
        RemovableHandle._next += 1

    def remove(self) -> None:
        """Take the hook away; a second time does nothing."""
        self._hooks.pop(self.key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


_new = object.__new__


class Tensor(_Methods):
    """A multi-dimensional array that can remember how it was made.

    ``Tensor([1.0, 2.0])`` and ``Tensor(2, 3)`` make float32 tensors as PyTorch's old constructor does; prefer ``tensor()``,
    ``zeros()`` and their family.

    Attributes:
        array: the raw ``numpy.ndarray`` or ``cupy.ndarray``. Writing to it goes past version counting and the tape.
        device: where it lives.
    """

    array: Any
    device: Device
    _grad: Tensor | None = None
    _requires_grad = False
    _node: tape.Node | None = None
    _index = 0
    _view: tape.View | None = None
    _storage: saved.Storage | None = None
    _hooks: dict | None = None
    _post_accumulate: dict | None = None
    _retains_grad = False
    _inference = False
    __array_priority__ = 1000
    __hash__ = object.__hash__  # type: ignore[assignment]  # tensors are keys by identity, though == compares values

    def __init__(self, *data: Any, device: Any = None) -> None:
        self.device = Device(device or local.default_device or "cpu")
        if data and all(isinstance(n, int) for n in data):
            self.array = self.device.empty(tuple(data), dtypes.get_default_dtype())
            return
        source = np.asarray(data[0] if len(data) == 1 else data, dtype=dtypes.get_default_dtype())
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
        """The device of results that no input decides."""
        return Device("cpu")

    # --- what it is -----------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """The sizes of the dimensions."""
        return Size(self.array.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        if dim is None:
            return Size(self.array.shape)
        return self.array.shape[normalize_dim(dim, self.array.ndim)]

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype of the elements."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return self.array.ndim

    def dim(self) -> int:
        """How many dimensions."""
        return self.array.ndim

    ndimension = dim

    def numel(self) -> int:
        """How many elements."""
        return int(self.array.size)

    nelement = numel

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.array.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.array.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements; a view counts what it shows, not what it keeps alive."""
        return int(self.array.nbytes)

    def stride(self, dim: int | None = None) -> Any:
        """Steps between neighbours of each dimension (or of one), in elements."""
        strides = tuple(s // self.array.itemsize for s in self.array.strides)
        return strides if dim is None else strides[normalize_dim(dim, self.ndim)]

    def storage_offset(self) -> int:
        """Elements between the start of the memory that is shared and the first element."""
        root = engine._root(self.array)
        return (self.data_ptr() - address_of(root)) // self.array.itemsize

    def data_ptr(self) -> int:
        """The address of the first element."""
        return address_of(self.array)

    def is_contiguous(self) -> bool:
        """Whether the elements lie in memory in row-major order without gaps."""
        return bool(self.array.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        """Whether the dtype is floating."""
        return self.array.dtype.kind == "f"

    def is_complex(self) -> bool:
        """Complex dtypes are not offered: always False."""
        return False

    @property
    def is_cuda(self) -> bool:
        """Whether it lives on a GPU."""
        return self.device.type == "cuda"

    @property
    def is_meta(self) -> bool:
        """Whether it has a shape only."""
        return self.device.type == "meta"

    @property
    def is_sparse(self) -> bool:
        """Dense tensors only: always False."""
        return False

    def get_device(self) -> int:
        """The GPU's index, -1 elsewhere."""
        return -1 if self.device.index is None else self.device.index

    @property
    def storage(self) -> saved.Storage:
        """The identity and version of the memory, shared by all views of it."""
        if self._storage is None:
            self._storage = saved.Storage()
        return self._storage

    @property
    def _version(self) -> int:
        return self.storage.version

    # --- the tape -------------------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on it are recorded. Only leaves can be set, and only floating ones to True.

        Raises:
            GraphError: setting it to False on a tensor that the tape made; ``detach()`` it instead.
            DTypeError: setting it on an integer or bool tensor.
        """
        if not self._requires_grad and self._view is not None:
            self.edge()
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not value and self._node is not None:
            raise GraphError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable "
                "in a subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            )
        if value and self.array.dtype.kind != "f":
            raise DTypeError(f"only Tensors of floating point dtype can require gradients, found {self.dtype}")
        if value and self._inference:
            raise GraphError("Setting requires_grad=True on inference tensor outside InferenceMode is not allowed; clone it.")
        self._requires_grad = bool(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set :attr:`requires_grad` and return self."""
        self.requires_grad = requires_grad
        return self

    def is_inference(self) -> bool:
        """Whether it was made in ``inference_mode``."""
        return self._inference

    @property
    def is_leaf(self) -> bool:
        """Whether the tape ends here: made by the user, or requiring no gradient."""
        return self.grad_fn is None

    @property
    def grad_fn(self) -> tape.Node | None:
        """The node that made it, ``None`` for a leaf."""
        if self._view is not None:
            self.edge()
        return self._node

    @property
    def output_nr(self) -> int:
        """Which output of :attr:`grad_fn` it is."""
        return self._index

    def _is_view(self) -> bool:
        return self._view is not None

    @property
    def _base(self) -> Tensor | None:
        return None if self._view is None else self._view.base

    def edge(self) -> tuple:
        """Where its gradient goes: ``(node, output index)``, or ``(self, 0)`` for a leaf.

        A view whose base was written in place since is connected again, through the base's new node.
        """
        view = self._view
        if view is not None and view.base._node is not view.root_node:
            fresh = view.base
            before, local.grad_enabled = local.grad_enabled, True
            try:
                for op, others, params in view.chain:
                    fresh = tape.apply(op, fresh, *others, **params)
            finally:
                local.grad_enabled = before
            self._node, self._index, self._requires_grad = fresh._node, fresh._index, fresh._requires_grad
            view.root_node = view.base._node
        if self._node is not None:
            return self._node, self._index
        return self, 0

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward left here: for leaves, and for tensors that called ``retain_grad()``."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Tensor):
                raise TypeError(f"grad: expected a Tensor or None, found {type(value).__name__}")
            if value is self:
                raise GraphError("can't assign Variable as its own grad")
            if value.array.shape != self.array.shape or value.device is not self.device:
                raise ShapeError(
                    f"assigned grad has data of a different size or device: expected {list(self.shape)} on {self.device}, "
                    f"found {list(value.shape)} on {value.device}"
                )
        self._grad = value
        for listener in scope.listeners:
            listener.role(None if value is None else value.array, "GRADIENT", self, self)

    def _take_grad(self, array: Any) -> None:
        self._grad = Tensor._wrap(array, self.device)
        for listener in scope.listeners:
            listener.role(array, "GRADIENT", self, self)

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add the gradient of this tensor to the ``grad`` of every leaf that it was made from.

        Args:
            gradient: the gradient of this tensor; may be left out for a tensor of one element.
            retain_graph: keep what the graph saved, so that backward can be called again.
            create_graph: not offered; see the error.
            inputs: accumulate into these only.

        Raises:
            GraphError: it requires no gradient, has several elements and no ``gradient``, was walked before, or second
                order was asked.
        """
        from .backward import backward

        try:
            backward(self, gradient, retain_graph, create_graph, inputs=inputs)
        except BaseException:
            del self, gradient  # the traceback refers to this frame: it must not keep the graph
            raise

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call ``hook(grad)`` whenever this tensor's gradient is known; what it returns, if anything, takes its place.

        Raises:
            GraphError: the tensor requires no gradient.
        """
        if not self.requires_grad:
            raise GraphError("cannot register a hook on a tensor that doesn't require gradient")
        target, index = self.edge()
        if target is self:
            if self._hooks is None:
                self._hooks = {}
            hooks = self._hooks
        else:
            if target.hooks is None:
                target.hooks = {}
            hooks = target.hooks.setdefault(index, {})
        handle = RemovableHandle(hooks)
        hooks[handle.key] = hook
        return handle

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call ``hook(leaf)`` each time backward has added to ``leaf.grad``: an optimizer may step here and free it.

        Raises:
            GraphError: the tensor is not a leaf.
        """
        if not self.requires_grad:
            raise GraphError("cannot register a hook on a tensor that doesn't require gradient")
        if not self.is_leaf:
            raise GraphError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        if self._post_accumulate is None:
            self._post_accumulate = {}
        handle = RemovableHandle(self._post_accumulate)
        self._post_accumulate[handle.key] = hook
        return handle

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf tensor in ``grad``.

        Raises:
            GraphError: it requires no gradient.
        """
        if not self.requires_grad:
            raise GraphError("can't retain_grad on Tensor that has requires_grad=False")
        if self.is_leaf or self._retains_grad:
            return
        self._retains_grad = True
        here = weakref.ref(self)

        def keep(grad: Tensor) -> None:
            tensor = here()
            if tensor is not None:
                tensor.grad = grad if tensor._grad is None else tensor._grad + grad  # type: ignore[operator]

        self.register_hook(keep)

    @property
    def retains_grad(self) -> bool:
        """Whether ``retain_grad()`` was called on this non-leaf."""
        return self._retains_grad

    def detach(self) -> Tensor:
        """The same memory, cut off the tape."""
        tensor = Tensor._wrap(self.array, self.device)
        tensor._storage = self.storage
        tensor._inference = self._inference
        return tensor

    def detach_(self) -> Tensor:
        """Cut this tensor off the tape: it becomes a leaf that requires no gradient."""
        if self._view is not None:
            raise GraphError("Can't detach views in-place. Use detach() instead.")
        self._node, self._index, self._requires_grad = None, 0, False
        return self

    @property
    def data(self) -> Tensor:
        """The same memory, cut off the tape, and with writes that no version counter sees. Prefer :meth:`detach`."""
        return Tensor._wrap(self.array, self.device)

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"data: expected a Tensor, found {type(value).__name__}")
        if self._requires_grad and value.array.dtype.kind != "f":
            raise DTypeError(f"data set to a tensor that requires gradients must be floating point, found {value.dtype}")
        self.array, self.device, self._storage = value.array, value.device, value.storage
        for listener in scope.listeners:
            listener.moved(self)

    # --- out of the engine ----------------------------------------------------------------------------------------------

    def _host(self) -> np.ndarray:
        """The values in host memory: the array itself on the cpu, a copy elsewhere."""
        if type(self.array) is np.ndarray and self.device.type == "cpu":
            return self.array
        out = np.empty(self.array.shape, self.array.dtype)
        self.device.download(self.array, out)
        return out

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values as a NumPy array that shares the memory of a cpu tensor.

        Args:
            force: detach and copy to the host first, whatever the tensor.

        Raises:
            GraphError: it requires grad; use ``detach().numpy()``.
            DeviceError: it is on a GPU; use ``cpu().numpy()``.
        """
        if not force:
            if self._requires_grad:
                raise GraphError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
            if self.device.type == "cuda":
                raise DeviceError("can't convert cuda device tensor to numpy. Use Tensor.cpu() to copy it to the host first.")
        return self._host()

    def item(self) -> Any:
        """The one element, as a Python number.

        Raises:
            ShapeError: there is not exactly one element.
            DataDependenceError: on device ``meta``.
        """
        if self.array.size != 1:
            raise ShapeError(f"a Tensor with {self.array.size} elements cannot be converted to Scalar")
        return self._host().item()

    def tolist(self) -> Any:
        """The values as (nested) lists of Python numbers."""
        return self._host().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    @property
    def __cuda_array_interface__(self) -> dict:
        if self.device.type != "cuda":
            raise AttributeError(f"__cuda_array_interface__: the tensor is on {self.device}, not on a GPU")
        if self._requires_grad:
            raise GraphError("Can't get __cuda_array_interface__ on Tensor that requires grad. Use tensor.detach() first.")
        return self.array.__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        if self._requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.is_meta:
            raise BufferError("a tensor on device meta has a shape and no memory: there is nothing to export")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple:
        return self.array.__dlpack_device__()

    def __len__(self) -> int:
        if not self.array.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self.array.shape[0]

    def __bool__(self) -> bool:
        if self.array.size != 1:
            what = "no values" if self.array.size == 0 else "more than one value"
            raise ShapeError(f"Boolean value of Tensor with {what} is ambiguous; use .any() or .all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self.array.dtype.kind not in "iub":
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __contains__(self, element: Any) -> bool:
        return bool((self._host() == (element._host() if isinstance(element, Tensor) else element)).any())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.array.ndim == 0 and not self._requires_grad else format(repr(self), spec)

    def __repr__(self) -> str:
        return format_tensor(self)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        if self._node is not None:
            raise GraphError(
                "Only Tensors created explicitly by the user (leaves) can be pickled or deep-copied; detach() first"
            )
        values = None if self.is_meta else np.array(self._host())
        shape = (tuple(self.shape), self.dtype.str)
        return _rebuild, (type(self), values, shape, str(self.device), self._requires_grad, dict(_extra(self)))

    def __deepcopy__(self, memo: dict) -> Tensor:
        if id(self) in memo:
            return memo[id(self)]
        rebuild, args = self.__reduce_ex__(4)
        copy = memo[id(self)] = rebuild(*args)
        if self._grad is not None:
            copy.grad = self._grad.__deepcopy__(memo)
        return copy


_CORE = {"array", "device", "_grad", "_requires_grad", "_node", "_index", "_view", "_storage", "_hooks", "_post_accumulate"}


def _extra(tensor: Tensor) -> dict:
    """Attributes that a user or a subclass put on the tensor."""
    return {name: value for name, value in tensor.__dict__.items() if name not in _CORE}


def _rebuild(cls: type, values: Any, shape: tuple, device: str, requires_grad: bool, extra: dict) -> Tensor:
    where = Device(device)
    tensor = _new(cls)
    tensor.device = where
    tensor.array = where.empty(shape[0], np.dtype(shape[1]))
    if values is not None:
        where.upload(values, tensor.array)
    tensor._requires_grad = requires_grad
    tensor.__dict__.update(extra)
    return tensor


def address_of(array: Any) -> int:
    """Where the array's first element lies."""
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0]
    return array.data.ptr


def normalize_dim(dim: int, ndim: int) -> int:
    """``dim`` counted from the front.

    Raises:
        DimensionError: it is outside of ``[-ndim, ndim - 1]`` (a 0-d tensor takes -1 and 0).
    """
    from ..errors import DimensionError

    bound = max(ndim, 1)
    if not -bound <= dim < bound:
        raise DimensionError(f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {dim})")
    return dim % bound


tape._Tensor = saved._Tensor = Tensor
