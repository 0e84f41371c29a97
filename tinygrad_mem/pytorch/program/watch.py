"""The dispatch mode under which a program runs: it sees each op, and each storage from its first tensor to its last."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ...errors import NotOfferedError
from ...memory.sizes import bytes_text
from . import recurrent, refusing
from .alone import Alone, as_made, measured
from .attention import attention, whole_layers
from .by_values import ALL_CHOSEN, is_mask, longest, products
from .composite import BELOW_AUTOGRAD, KERNELS, compared, made_of_others, max_pool1d, observed
from .described import described
from .dispatcher import Kernel, decomposed, operator, operators, written_in_python
from .fake import DEVICE, GpuTensorMode, Uncompiled, fake_tensors, flat, on_gpu, seen_by_cpp, without_modes
from .in_place import AutogradWrites, kept_number
from .kernels import NOTHING, Gpu, Kernels
from .ledger import Ledger
from .numbers import RealCall
from .op_facts import FACTS, FILLS, RESIZES, WITHOUT_SHAPES, OpFacts, facts_of, op_name
from .packed import PACK, packed, padded
from .places import OURS, TORCH, Places, release
from .shapes import Results
from .storages import ZERO, Storages

aten = torch.ops.aten
_ForceKeys: Any = torch._C._ForceDispatchKeyGuard
_NUMBER = aten._local_scalar_dense.default
_CHECKS = {_NUMBER, aten.equal.default}
_INDEX = aten.index.Tensor
_CHOOSE = {_INDEX, *operators("index_put index_put_ _index_put_impl_")}
_FUNCTIONS = (
    "{} takes functions, which PyTorch compiles into kernels of their own: what they ask for is not predicted. Write it with "
    "plain functions, such as F.scaled_dot_product_attention for flex_attention"
)
_LIFT = aten.lift_fresh.default  # makes a real tensor, unseen


class Watch(Uncompiled, Storages, TorchDispatchMode):
    """Counts what each op asks for.

    Attributes:
        draws: how often ``trunc_normal_`` has drawn the numbers of its tensor.
        alarms: False while PyTorch itself checks values: the check finds nothing.
        supports_higher_order_operators: PyTorch calls this mode with them, too; they are refused with a reason.
        assumed: what was said of the last result that was counted at its longest.
        sure: the number of events before the first such result; ``None``: there is none.
        keys: the dispatch keys that the program's own call has included, and excluded, in inference mode. There an op that is
            made of others gets here whole, where autograd and autocast are excluded, and its ops need both.
    """

    supports_higher_order_operators = True

    def __init__(self, fake: GpuTensorMode, ledger: Ledger, places: Places, device: torch.device, gpu: Gpu) -> None:
        super().__init__(fake, ledger, places, device)
        self.alarms, self.draws = True, 0
        self.sized: tuple[Any, int] | None = None  # the code and the instruction that last took an unknown number for a size
        self.keys: tuple[Any, Any] | None = None
        self.assumed = ""
        self.sure: int | None = None
        self.elsewhere: NotOfferedError | None = None  # why what another thread does cannot be counted
        self.gpu, self._table = gpu, Kernels(gpu)
        self.in_place = AutogradWrites(self.born)
        self.kernels: dict[str, Kernel] = {"linear": self.in_place.linear_layer, "max_pool1d": max_pool1d}
        self.kernels["fused_moving_avg_obs_fake_quant"] = observed
        if device.type == "cuda":
            self.kernels = {
                **KERNELS,
                **recurrent.layers(gpu, self.bound),
                **whole_layers(gpu, self.bound),
                **products(self.bound, self.count),
                "scaled_dot_product_attention": partial(attention, gpu),
                "linear": self.in_place.linear_layer,
            }
        self.kernels["_scaled_dot_product_attention_math"] = self.in_place.attention_by_formula
        self.kernels["_pad_packed_sequence"] = partial(padded, self.own)
        self.processes: Any = None  # of a program that is one of several
        below = BELOW_AUTOGRAD if device.type == "cuda" else {}
        self._composites = {operator(name): kernel for name, kernel in (self.kernels | below).items()}
        self.alone = Alone()
        self._results = Results(fake)
        self._collections = gc.get_stats()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE:
            return seen_by_cpp(args[0])
        if isinstance(func, HigherOrderOperator):
            raise NotOfferedError(_FUNCTIONS.format(func))
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
        facts = FACTS.get(id(func)) or facts_of(func)
        made = self._answered(func, facts, args, kwargs)
        if made is not NotImplemented:
            return made
        if func is _LIFT and not isinstance(args[0], FakeTensor):
            fake = self.adopt(args[0], self._results.like_real(args[0], args[0].device))
            self.own(args[0], fake)
            args = (fake,)
        args = tuple([each if type(each) is FakeTensor else self._fake(each) for each in args])
        kwargs = {key: self._fake(value) for key, value in kwargs.items()} if kwargs else kwargs
        made = self._made_of_others(func, facts, args, kwargs)
        if made is not NotImplemented:
            return made
        if facts.foreign and any(map(on_gpu, flat(args))):
            self.note(f"{func}: an op that PyTorch's tables do not have. What it takes beside its results is not counted")
        func, args = self.in_place.op(func, args)
        if func in _CHOOSE and any(map(is_mask, args[1])) and (func is _INDEX or args[2].numel() > 1):
            args = args[0], self._places_of(args, None if func is _INDEX else args[2].shape), *args[2:]
        if func is PACK and (lengths := self.numbers.value(args[1])) is not None:
            with self:
                return packed(self.own, args[0], lengths, args[2])
        return self._counted(func, facts, args, kwargs)

    def _answered(self, func: Any, facts: OpFacts, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an op that takes no memory, or that runs between processes; ``NotImplemented``: of any other op."""
        if not self.alarms and func in _CHECKS and args[0].dtype is torch.bool:
            with self:
                compared(*args)
            return False
        if func is _NUMBER:
            in_backward = torch._C._current_graph_task_id() != -1
            if in_backward and args[0].dtype is torch.bool and torch.is_anomaly_check_nan_enabled():
                return False  # set_detect_anomaly asks for each gradient if it has a NaN
            if self.processes is not None and (assumed := self.processes.assumed(args[0])) is not None:
                return assumed
            return self.numbers.number(args[0])
        if facts.fills and self.device.type != "cpu":
            self.numbers.written(args[0])
            if args[0].numel() == 1:
                self.numbers.after(func, args, kwargs, args[0], None)
            return args[0]
        if facts.marks:
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs)
        if self.processes is not None and (made := self.processes.op(func, args, kwargs)) is not NotImplemented:
            return made
        return self.numbers.after(func, args, kwargs, None, None) if func in WITHOUT_SHAPES else NotImplemented

    def _made_of_others(self, func: Any, facts: OpFacts, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an op that PyTorch makes of other ops; ``NotImplemented``: it has a kernel."""
        if facts.composite:  # whole only in inference mode
            return self._composite(func, args, kwargs)
        if facts.python or (facts.of_others and self.device.type == "cuda" and on_gpu(args[0])):
            run = written_in_python(func) if facts.python else partial(made_of_others, func, self.gpu.version)
            with self:
                return run(*args, **kwargs)
        return NotImplemented

    def _counted(self, func: Any, facts: OpFacts, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an op with a kernel. Counts all that the kernel asks for."""
        number = self.numbers.before(func, args, kwargs)
        if facts.by_values and (real := self.numbers.whole(func, args, number)) is not None:
            return self._of_values(func, args, kwargs, real, known=number is not None)
        if facts.by_values and (real := longest(func, args, kwargs)) is not None:
            self.assumed = f"{self.places.line()}: {ALL_CHOSEN}"
            self.note(self.assumed)
            self.sure = self.ledger.count if self.sure is None else self.sure
            return self._of_values(func, args, kwargs, real, known=False)
        refusing.check(func, args, kwargs, facts.lists)
        try:
            made = self._alone(func, args, kwargs) if self.device.type == "cpu" else self._results.of(func, args, kwargs)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise refusing.in_its_words(error, func, args, kwargs) from None
        self.resize(facts, args, kwargs)
        if facts.lists:  # so that autograd sees if it needs the old values
            increment_version([each for each in args[0] if not each.is_inference()])
        self.count(func, args, kwargs, made)
        self.numbers.after(func, args, kwargs, made, number)
        return made

    def _of_values(self, func: Any, args: tuple, kwargs: dict[str, Any], real: RealCall, known: bool) -> Any:
        """The result of an op whose size follows from values. ``known``: so do its values."""
        with without_modes():
            found, within = measured(partial(func, *real[0], **real[1]))
        made = tree_map_only(torch.Tensor, lambda each: self._results.like_real(each, args[0].fake_device), found)
        with self.workspace(within):
            self.count(func, args, kwargs, made)
        if known:
            for fake, each in zip(fake_tensors(tree_leaves(made)), tree_leaves(found), strict=False):
                self.numbers.set(fake, each)
        return made

    def _places_of(self, args: tuple, values: tuple[int, ...] | None = None) -> list[Any]:
        """Indices with the places that masks choose. Source: ``IndexingUtils.h``, ``expandTensors``.

        Args:
            values: the shape of what is put there; unless it fits to all places, those of an unknown mask stay unknown.
        """
        places: list[Any] = []
        for index in args[1]:
            most = values is None or (is_mask(index) and index.numel() in values)
            if not is_mask(index) or not (most or self.numbers.value(index) is not None):
                places.append(index)
                continue
            axis = len(places)
            if index.shape != args[0].shape[axis : axis + index.dim()]:
                raise IndexError(refusing.MASK.format(list(index.shape), axis, list(args[0].shape), axis))
            with self:
                places += aten.nonzero(index).unbind(1)
        return places

    def _composite(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The result of an op that PyTorch makes of other ops; ``NotImplemented``: it does not."""
        here = on_gpu(args[0] if args else None) is (self.device.type == "cuda")
        ours = self._composites.get(func) if here else None
        with ExitStack() as stack:
            if self.keys is not None:
                stack.enter_context(_ForceKeys(*self.keys))
            stack.enter_context(self)
            return decomposed(func, args, kwargs) if ours is None else ours(*args, **kwargs)

    def _alone(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an op with what its kernel takes beside its results; see :mod:`.alone`."""
        elsewhere = func in RESIZES or func is ZERO or any(map(on_gpu, (*flat(args), *kwargs.values())))
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
        kept = kept_number(func, args)
        within = found.peak - found.kept - kept
        if within > 0:
            place = self.places.here(op_name(func))
            within -= 0 if kept else self.saved_numbers.save(func, args, place)
        if within > 0:
            self.resize(FACTS.get(id(func)) or facts_of(func), args, kwargs)
            workspace = self.ledger.malloc(within, place, "WORKSPACE")
            self.see(func, args, made)
            self.ledger.free(workspace, place)
        return made

    def end(self) -> None:
        """End the program: save what was learned about ops, and note what only Python's garbage collector would free."""
        self.alone.remembered.save()
        if not self.ledger.count:
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

    def count(self, func: Any, args: tuple, kwargs: dict[str, Any], made: Any) -> None:
        """Count the results of an op, and what its kernel asks for beside them, in order."""
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        if func.namespace == "prims" and forward_ad._current_level >= 0:
            return self.see(ZERO, args, results)  # of shapes alone: C++ asks for it on ``meta``
        if self.device.type != "cuda" or not any(map(self.here, (*results, *args))):
            return self.see(func, args, results)
        thread = "main" if torch._C._current_graph_task_id() == -1 else "autograd"
        if self.ledger.stream:
            thread = f"{thread} {self.ledger.stream}"
        asked, blocks = self._table.beside(func, args, kwargs, made, thread), {}
        if asked is NOTHING:
            return self.see(func, args, results)
        for bound in asked.bounds:
            self.bound(bound.size, bound.why)
        for step in asked.events(len(results)):
            if step.kind == "result":
                self.see(func, args, results[step.block : step.block + 1])
            elif step.kind == "free":
                self.ledger.free(blocks.pop(step.block), self.places.here(op_name(func)))
            else:
                block = self.malloc(step.size, self.places.here(op_name(func)), step.role or "WORKSPACE")
                if step.kind == "ask":  # else the process keeps it
                    blocks[step.block] = block

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
        self.see(_LIFT, (), made)
        return made
