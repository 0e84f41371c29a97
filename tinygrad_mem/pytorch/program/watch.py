"""The dispatch mode under which a program runs: it sees each op, and each storage from its first tensor to its last."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import DeviceError, NotOfferedError, OutOfMemoryError
from ...interrupts import context, signal_safe
from ...memory.sizes import bytes_text
from . import recurrent
from .alone import Alone, as_made
from .attention import attention, whole_layers
from .by_values import products
from .composite import BELOW_AUTOGRAD, KERNELS, compared, made_of_others, max_pool1d
from .cuda import OTHER_STREAM
from .described import described
from .dispatcher import Kernel, decomposed, operator, written_in_python
from .fake import DEVICE, GpuTensorMode, fake_tensors, flat, on_gpu, seen_by_cpp, unwrapped
from .in_place import AutogradWrites, SavedNumbers, kept_number, node
from .kernels import NOTHING, Gpu, Kernels
from .ledger import HeldBlock, Ledger, Place
from .numbers import KnownNumbers
from .op_facts import FACTS, FILLS, RESIZES, WITHOUT_SHAPES, OpFacts, facts_of, op_name
from .places import OURS, TORCH, Places, release
from .shapes import Results

aten = torch.ops.aten
_ForceKeys: Any = torch._C._ForceDispatchKeyGuard
_NUMBER, _RESIZE = aten._local_scalar_dense.default, aten.resize_.default
_CHECKS = {_NUMBER, aten.equal.default}
_LIFT, _ZERO = aten.lift_fresh.default, aten._efficientzerotensor.default  # makes a real tensor, unseen; has no memory
_DENSE = "whose memory is not predicted. Use dense tensors, such as Embedding(sparse=False)"


class Watch(TorchDispatchMode):
    """Counts what each op asks for.

    Attributes:
        role: the category of what is asked for next, where a caller knows it.
        draws: how often ``trunc_normal_`` has drawn the numbers of its tensor.
        alarms: False while PyTorch itself checks values: the check finds nothing.
        lost: an error, such as Ctrl-C, that Python does not raise where it happened.
        keys: the dispatch keys that the program's own call has included, and excluded, in inference mode. There an op that is
            made of others gets here whole, where autograd and autocast are excluded, and its ops need both.
    """

    def __init__(self, fake: GpuTensorMode, ledger: Ledger, places: Places, device: torch.device, gpu: Gpu) -> None:
        super().__init__()
        self.fake, self.ledger, self.places, self.device = fake, ledger, places, device
        self.role, self.alarms, self.draws = "", True, 0
        self.keys: tuple[Any, Any] | None = None
        self.lost: BaseException | None = None
        self.notes: list[str] = []
        self.elsewhere = ""  # why what another thread does cannot be counted
        self.gpu, self._table = gpu, Kernels(gpu)
        self.unknown: dict[str, int] = {}
        self.in_place = AutogradWrites(self._born)
        self.kernels: dict[str, Kernel] = {"linear": self.in_place.linear_layer, "max_pool1d": max_pool1d}
        if device.type == "cuda":
            self.kernels = {
                **KERNELS,
                **recurrent.layers(gpu, self.bound),
                **whole_layers(gpu, self.bound),
                **products(self.bound, self.count),
                "scaled_dot_product_attention": partial(attention, gpu),
                "_scaled_dot_product_attention_math": self.in_place.attention_by_formula,
                "linear": self.in_place.linear_layer,
            }
        self.processes: Any = None  # of a program that is one of several
        self.wrappers: tuple[type, ...] = ()  # the types of its tensors of which each process holds a part
        below = BELOW_AUTOGRAD if device.type == "cuda" else {}
        self._composites = {operator(name): kernel for name, kernel in (self.kernels | below).items()}
        self.numbers, self.alone, self.saved_numbers = KnownNumbers(), Alone(), SavedNumbers(ledger)
        self._results = Results(fake)
        self._collections = gc.get_stats()
        self._without: set[int] = set()  # storages that the program made on ``meta``, by the same address
        self._held: dict[int, tuple[weakref.ref, HeldBlock | None]] = {}  # by the storage's address in C++
        self._nodes: dict[int, Any] = {}  # the nodes in whose backward storages were made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled while this runs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE:
            return seen_by_cpp(args[0])
        if self.lost is not None:
            self.raise_lost()
        if self.wrappers and any(issubclass(kind, self.wrappers) for kind in types):
            return NotImplemented  # PyTorch calls this again with what they wrap
        try:
            with torch._C.DisableTorchFunction():
                return self._run(func, args, dict(kwargs or {}))
        except BaseException as error:
            args = kwargs = None
            release(error, OURS, TORCH)
            raise

    def _run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if not self.alarms and func in _CHECKS and args[0].dtype is torch.bool:
            with self:
                compared(*args)
            return False
        if func is _NUMBER:
            in_backward = torch._C._current_graph_task_id() != -1
            if in_backward and args[0].dtype is torch.bool and torch.is_anomaly_check_nan_enabled():
                return False  # set_detect_anomaly asks for each gradient if it has a NaN
            return self.numbers.number(args[0])
        facts = FACTS.get(id(func)) or facts_of(func)
        if facts.fills and self.device.type != "cpu":
            self.numbers.written(args[0])
            return args[0]
        if facts.marks:
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs)
        if self.processes is not None and (made := self.processes.op(func, args, kwargs)) is not NotImplemented:
            return made
        if func in WITHOUT_SHAPES:
            return self.numbers.after(func, args, kwargs, None, None)
        if func is _LIFT and not isinstance(args[0], FakeTensor):
            fake = self.adopt(args[0])
            self.own(args[0], fake)
            args = (fake,)
        args = tuple([each if type(each) is FakeTensor else self._fake(each) for each in args])
        kwargs = {key: self._fake(value) for key, value in kwargs.items()} if kwargs else kwargs
        made: Any = NotImplemented
        if facts.composite:  # whole only in inference mode
            made = self._composite(func, args, kwargs)
        elif facts.python or (facts.of_others and self.device.type == "cuda" and on_gpu(args[0])):
            run = written_in_python(func) if facts.python else partial(made_of_others, func, self.gpu.version)
            with self:
                made = run(*args, **kwargs)
        if made is not NotImplemented:
            return made
        if facts.foreign and any(map(on_gpu, flat(args))):
            self.note(f"{func}: an op that PyTorch's tables do not have. What it takes beside its results is not counted")
        func, args = self.in_place.op(func, args)
        number = self.numbers.before(func, args, kwargs)
        made = self._alone(func, args, kwargs) if self.device.type == "cpu" else self._results.of(func, args, kwargs)
        self._resize(facts, args, kwargs)
        if facts.lists:  # so that autograd sees if it wanted the old values
            increment_version([each for each in args[0] if not each.is_inference()])
        self.count(func, args, kwargs, made)
        self.numbers.after(func, args, kwargs, made, number)
        return made

    def _composite(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an op that PyTorch makes of other ops; ``NotImplemented``: it does not."""
        here = on_gpu(args[0] if args else None) is (self.device.type == "cuda")
        ours = self._composites.get(func) if here else None
        with ExitStack() as stack:
            if self.keys is not None:
                stack.enter_context(_ForceKeys(*self.keys))
            stack.enter_context(self)
            return decomposed(func, args, kwargs) if ours is None else ours(*args, **kwargs)

    def raise_lost(self) -> None:
        """Raise the error of a storage's callback, if there was one."""
        lost, self.lost = self.lost, None
        if lost is not None:
            raise lost

    def note(self, text: str) -> None:
        """Add a note about what the prediction assumes, once."""
        if text not in self.notes:
            self.notes.append(text)

    def _alone(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an op with what its kernel takes beside its results; see :mod:`.alone`."""
        elsewhere = func in RESIZES or func is _ZERO or any(map(on_gpu, (*flat(args), *kwargs.values())))
        call = None if elsewhere else described(func, args, kwargs)
        if call is None:
            return self._results.of(func, args, kwargs)
        found = self.alone.first(call, args, kwargs)
        made = None if found is None else self._results.real(func, args, found.made)
        if found is None or made is None:
            made = args[0] if func in FILLS else self._results.of(func, args, kwargs)
            if any(each.layout is not torch.strided for each in fake_tensors(made)):
                return made
            found = self.alone.within(call, args, kwargs, made)
            made = as_made(made, found, args)
        if found.unknown:
            self.note(f"what {op_name(func)} takes beside its results is not known: {found.unknown}")
        if found.more:
            self.bound(found.more, f"what {op_name(func)} takes beside its results depends on values")
        within = found.peak - found.kept - kept_number(func, args)
        if within > 0:
            place = self.places.here(op_name(func))
            within -= self.saved_numbers.save(func, args, place)
        if within > 0:
            self._resize(FACTS.get(id(func)) or facts_of(func), args, kwargs)
            workspace = self.ledger.malloc(within, place, "WORKSPACE")
            self._see(func, args, made)
            self.ledger.free(workspace, place)
        return made

    @context
    def workspace(self, size: int) -> Iterator[None]:
        """A real call has taken so many bytes beside what it keeps, while its results are made."""
        place = self.places.here()
        held = self.ledger.malloc(size, place, "WORKSPACE") if size else None
        yield
        if held is not None:
            self.ledger.free(held, place)

    @context
    def as_role(self, role: str) -> Iterator[None]:
        """Inside, allocated blocks get the category ``role``."""
        before, self.role = self.role, role
        try:
            yield
        finally:
            self.role = before

    def end(self) -> None:
        """End the program: save what was learned about ops, and note what only Python's garbage collector would free."""
        self.alone.remembered.save()
        if not self.ledger.asked:
            why = "move its model and data there, or name another device"
            self.note(f"the program asked for no memory of {self.device}: {why}")
        before = sum(held.size for held in self.ledger.live.values())
        # what the program made is young, unless it has collected itself: PyTorch's own objects are many
        gc.collect(0 if gc.get_stats() == self._collections else 2)
        cycles = before - sum(held.size for held in self.ledger.live.values())
        if cycles:
            self.notes.append(
                f"reference cycles hold {bytes_text(cycles)} until Python's collector runs, which here it did not: a real run "
                "may peak lower. Break the cycles, or call gc.collect()"
            )

    # --- storages ---------------------------------------------------------------------------------------------------------

    def local(self, tensor: Any) -> Any:
        """The part of a tensor that this process holds, or the tensor that ``torch.func`` has wrapped."""
        while isinstance(tensor, self.wrappers):
            tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
        return unwrapped(tensor)

    def find(self, tensor: torch.Tensor) -> HeldBlock | None:
        """The block of a tensor; ``None``: it is on another device, or empty."""
        with torch._C.DisableTorchFunction():
            tensor = self.local(tensor)
            if type(tensor) is not FakeTensor and not isinstance(tensor, FakeTensor):
                return None
            entry = self._held.get(tensor.untyped_storage()._cdata)
        return entry[1] if entry is not None else None

    def without_memory(self, tensor: torch.Tensor, made: bool = False) -> bool:
        """True if the program itself made the tensor on ``meta``; ``made``: record that it does so now."""
        with torch._C.DisableTorchFunction():
            key = self.local(tensor).untyped_storage()._cdata
        if made:
            self._without.add(key)
        return key in self._without

    def found(self, values: Any) -> None:
        """Count the storages of tensors that were made while this mode was off."""
        with torch._C.DisableTorchFunction():
            self._see(aten.stack.default, (), tree_leaves(values))

    def count(self, func: Any, args: tuple, kwargs: dict[str, Any], made: Any) -> None:
        """Count the results of an op, and what its kernel asks for beside them, in order."""
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        if func.namespace == "prims" and forward_ad._current_level >= 0:
            return self._see(_ZERO, args, results)  # of shapes alone: C++ asks for it on ``meta``
        if self.device.type != "cuda" or not any(map(self._here, (*results, *args))):
            return self._see(func, args, results)
        thread = "main" if torch._C._current_graph_task_id() == -1 else "autograd"
        asked, blocks = self._table.beside(func, args, kwargs, made, thread), {}
        if asked is NOTHING:
            return self._see(func, args, results)
        for bound in asked.bounds:
            self.bound(bound.size, bound.why)
        for step in asked.events(len(results)):
            if step.kind == "result":
                self._see(func, args, results[step.block : step.block + 1])
            elif step.kind == "free":
                self.ledger.free(blocks.pop(step.block), self.places.here(op_name(func)))
            else:
                block = self._malloc(step.size, self.places.here(op_name(func)), step.role or "WORKSPACE")
                if step.kind == "ask":  # else the process keeps it
                    blocks[step.block] = block

    def _born(self, tensor: torch.Tensor) -> Any:
        return self._nodes.get(tensor.untyped_storage()._cdata)

    def _here(self, value: Any) -> bool:
        return isinstance(value, FakeTensor) and value.fake_device == self.device

    def bound(self, size: int, why: str) -> None:
        """Record that up to ``size`` bytes more may be allocated, and why."""
        self.unknown[why] = max(size, self.unknown.get(why, 0))

    def waits(self, tensor: torch.Tensor) -> None:
        """Record that another stream uses the tensor's block."""
        held = self.find(tensor)
        self.bound(held.birth[4] if held is not None else 0, OTHER_STREAM)

    def _malloc(self, size: int, place: Place, role: str) -> HeldBlock:
        if self.ledger.other_streams and self.ledger.allocator is not None:
            self.bound(self.ledger.allocator.settings.segment_size(size), OTHER_STREAM)
        try:
            return self.ledger.malloc(size, place, role)
        except OutOfMemoryError as error:
            raise torch.OutOfMemoryError(str(error)) from None

    def _see(self, func: Any, args: tuple, made: Any) -> None:
        """Count the storages that an op made."""
        new = [made] if isinstance(made, FakeTensor) else fake_tensors(made)
        for tensor in new:
            if tensor.layout is not torch.strided:
                raise NotOfferedError(f"{op_name(func)} makes a tensor of layout {tensor.layout}, {_DENSE}")
            storage = tensor.untyped_storage()
            if storage._cdata not in self._held:
                self._count(storage, tensor, func, args)

    def _count(self, storage: Any, tensor: FakeTensor, func: Any, args: tuple) -> None:
        size, held = storage.nbytes() if func is not _ZERO else 0, None
        if size and self._here(tensor):
            place = self.places.here(op_name(func))
            held = self._malloc(size, place, self.role or self._role(place.phase, args))
        self._hold(storage, held)
        if self._without and not on_gpu(tensor) and any(map(self.without_memory, fake_tensors(args))):
            self._without.add(storage._cdata)

    def _hold(self, storage: Any, held: HeldBlock | None) -> None:
        key = storage._cdata
        if torch._C._current_graph_task_id() != -1:
            self._nodes[key] = node()
        self._held[key] = weakref.ref(storage, partial(self._end, key)), held

    @signal_safe
    def _end(self, key: int, _: Any) -> None:
        """Record that a storage has ended. Python only prints errors of such callbacks, so the next op raises them."""
        try:
            _, held = self._held.pop(key, (None, None))
            self.numbers.forget(key)
            self._nodes.pop(key, None)
            self._without.discard(key)
            if held is not None:
                self.ledger.free(held, self.places.here())
        except BaseException as error:  # Ctrl-C
            self.lost = error

    def _role(self, phase: str, args: tuple) -> str:
        """The category of a new block: ``INPUT`` if it depends on nothing that is trained."""
        if phase not in ("user", "data"):
            return "TEMPORARY"
        held = map(self.find, fake_tensors(args))
        return "INPUT" if all(h is None or h.role == "INPUT" for h in held) else "TEMPORARY"

    def _resize(self, facts: OpFacts, args: tuple, kwargs: dict[str, Any]) -> None:
        for place in facts.resizes:
            for each in fake_tensors([args[place] if isinstance(place, int) else kwargs[place]]):
                self.resized(each.untyped_storage(), each)

    def resized(self, storage: Any, tensor: torch.Tensor | None = None) -> None:
        """Record the new block of a storage that has grown, or shrunk to nothing. ``tensor``: one that uses it."""
        reference, held = self._held.get(storage._cdata, (None, None))
        if reference is None:  # ``set_`` gave it a storage that was never seen, such as one of a file
            return self._see(_RESIZE, (), tensor)
        if (held.size if held else 0) == storage.nbytes() or not (tensor is None or self._here(tensor)):
            return
        place, new = self.places.here("resize_"), None
        if storage.nbytes():
            new = self._malloc(storage.nbytes(), place, self.role or (held.role if held else "TEMPORARY"))
        if held is not None:
            self.ledger.free(held, place)
        self._held[storage._cdata] = reference, new

    # --- tensors from outside ---------------------------------------------------------------------------------------------

    def _fake(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if isinstance(value, FakeTensor) else self.adopt(value)
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], (torch.Tensor, list, tuple, type(None))):
            return type(value)(map(self._index if self.device.type == "cuda" else self._fake, value))
        return value

    def _index(self, value: Any) -> Any:
        """One of several arguments: an index such as ``x[[1, 2]]``, a list of numbers, is one that C++ has made."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.device.type != "meta":
            return self._fake(value)
        made = self._results.made_of_list(value, self.device)
        self._see(_LIFT, (), made)
        return made

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the prediction for one that was made before it: its memory counts as older."""
        if tensor.requires_grad:
            raise DeviceError(
                f"a tensor of shape {tuple(tensor.shape)} that requires a gradient was made outside of the prediction. "
                "Make the model and the optimizer inside the function that is predicted"
            )
        fake = self.fake.from_tensor(tensor)
        if not isinstance(fake, FakeTensor):
            raise NotOfferedError(
                f"a {type(tensor).__name__}: what such tensors hold is not predicted. Use plain tensors, and one process"
            )
        if fake.layout is not torch.strided:
            raise NotOfferedError(f"a tensor of layout {fake.layout}, {_DENSE}")
        storage: Any = fake.untyped_storage()
        if storage._cdata not in self._held:
            older = fake.fake_device == self.device and self.device.type == "cuda"
            self._hold(storage, self._malloc(storage.nbytes(), Place(), "UNTRACKED") if older else None)
            if tensor.untyped_storage()._cdata in self._held:
                storage.read = tensor  # its memory lasts as long
            self.numbers.know(fake, tensor)
        return fake

    def own(self, tensor: torch.Tensor, seen: torch.Tensor | None = None, number: bool = False) -> None:
        """Count a real tensor that PyTorch made for the program, as long as ``seen`` lives, or it does. NumPy's memory is not
        PyTorch's. ``number``: autograd has saved it."""
        tensor = self.local(tensor)
        storage, seen = tensor.untyped_storage(), tensor if seen is None else seen
        if storage._cdata in self._held:
            return
        if tensor.device == self.device and storage.nbytes() and storage.resizable():
            place, size = self.places.here("tensor"), storage.nbytes()
            held = self.saved_numbers.seen(size) if number else None
            self._hold(seen.untyped_storage(), held or self.ledger.malloc(size, place, self._role(place.phase, ())))
