"""Snapshots that a test builds: programs that ask PyTorch's allocator for memory, with the stacks that PyTorch writes.

A :class:`Program` asks and frees. A :class:`Training` is a loop over batches: forward, loss, backward, optimizer, zero_grad,
each a method that a test may change to plant a fault.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.pytorch.allocator import CachingAllocator

from .recorded import LoggingDriver, segments

MIB = 1 << 20
TORCH = "/usr/lib/python3.11/site-packages/torch"
HOME = "/home/me"
ENGINE = ("torch::autograd::Engine::evaluate_function", "torch::autograd::Engine::thread_main", "execute_native_thread_routine")
"""The outer frames of what autograd's own thread asks for: it has no frame of Python."""


def frame(text: str) -> dict[str, Any]:
    """``"/home/me/train.py:12 step"`` is a frame of Python, any other text the name of a function of C++."""
    file, _, rest = text.partition(":")
    line, _, name = rest.partition(" ")
    if file.endswith(".py") and line.isdecimal():
        return {"filename": file, "line": int(line), "name": name}
    return {"filename": "??", "line": 0, "name": text}


class Program:
    """A program on one device.

    Args:
        settings, capacity: of the allocator.
        native: whether stacks have frames of C++ too, as those of ``stacks="all"`` do.
        stacks: whether there are stacks at all.
    """

    def __init__(self, settings: str = "", capacity: int | None = None, native: bool = True, stacks: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self.settings, self.native, self.stacks = settings, native, stacks
        self.allocator = CachingAllocator(settings, capacity, LoggingDriver(self.events, capacity))
        self.now = 0  # in microseconds
        self._outer: list[list[str]] = []  # the innermost last, each innermost frame first
        self._made: dict[int, list[dict[str, Any]]] = {}
        self._sizes: dict[int, int] = {}

    @contextmanager
    def inside(self, *frames: str) -> Iterator[None]:
        """What is asked for in here has these frames, the innermost first, outside of its own."""
        self._outer.append([*frames])
        try:
            yield
        finally:
            self._outer.pop()

    def alloc(self, size: int, *inner: str, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> int:
        """Ask for memory, as the functions ``inner``, the innermost first; the address.

        Raises:
            OutOfMemoryError: as PyTorch's; the event is recorded.
        """
        frames, before = self._frames(inner), len(self.events)
        try:
            address = self.allocator.malloc(size, stream, pool)
        except OutOfMemoryError:
            self._event("oom", "device_free", self.allocator.driver.available, size, stream)
            raise
        else:
            self._event("alloc", "addr", address, size, stream)
            self._made[address], self._sizes[address] = frames, size
            return address
        finally:
            self._fill(before, frames)
            for event in self.events[before:]:
                event["pool_id"] = pool

    def free(self, *addresses: int, late: bool = False) -> None:
        """Free blocks; ``late``: another stream uses them until :meth:`synchronize`."""
        before = len(self.events)
        for address in addresses:
            if late:
                self.allocator.record_stream(address, 7)
            self.allocator.free(address)
            self._event("free_requested", "addr", address, self._sizes[address], 0)
            if not late:
                self._event("free_completed", "addr", address, self._sizes[address], 0)
        self._fill(before, self._frames(()))

    def empty_cache(self) -> None:
        """Give back what is cached."""
        before = len(self.events)
        self.allocator.empty_cache()
        self._fill(before, self._frames((f"{TORCH}/cuda/memory.py:222 empty_cache",)))

    def record(self) -> None:
        """Begin to record here: what was before is not in the snapshot."""
        self.events.clear()

    def snapshot(self, **more: Any) -> dict[str, Any]:
        """What ``torch.cuda.memory._snapshot()`` returns."""
        held = segments(self.allocator)
        for block in (block for segment in held for block in segment["blocks"]):
            block["frames"] = self._made.get(block["address"], []) if block["state"] != "inactive" else []
        settings = {"PYTORCH_CUDA_ALLOC_CONF": self.settings}
        return {"segments": held, "device_traces": [self.events], "allocator_settings": settings, **more}

    def write(self, path: Path) -> Path:
        """The file that ``torch.cuda.memory._dump_snapshot`` writes."""
        path.write_bytes(pickle.dumps(self.snapshot(), 4))
        return path

    def _event(self, action: str, where: str, address: int, size: int, stream: int) -> None:
        self.events.append({"action": action, where: address, "size": size, "stream": stream})

    def _fill(self, first: int, frames: list[dict[str, Any]]) -> None:
        for event in self.events[first:]:
            self.now += 3
            event["frames"], event["time_us"] = frames, self.now

    def _frames(self, inner: tuple[str, ...]) -> list[dict[str, Any]]:
        if not self.stacks:
            return []
        texts = [*inner, *(text for part in reversed(self._outer) for text in part)]
        if self.native:
            allocator = "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc"
            return [frame(text) for text in (allocator, *texts)]
        return [found for found in map(frame, texts) if found["line"]]


class Training(Program):
    """A training loop of linear layers, ReLU, a head and a cross entropy, with Adam.

    Attributes:
        size: bytes of a layer's weight, of its gradient, and of each of its two moments.
        kept: bytes of a layer's activation.
        logits: bytes of the head's output.
    """

    size, kept, logits, layers = 4 * MIB, 3 * MIB, 6 * MIB, 4

    def __init__(self, settings: str = "", capacity: int | None = None, native: bool = True, stacks: bool = True) -> None:
        super().__init__(settings, capacity, native, stacks)
        self.weights: list[int] = []
        self.gradients: list[int] = []
        self.moments: list[int] = []
        self.activations: list[int] = []
        self.loss = 0
        self.step = 0

    def run(self, steps: int) -> Training:
        """Make the model, then train."""
        with self.inside(f"{HOME}/train.py:10 main"):
            self.model()
        for _ in range(steps):
            self.one_step()
        return self

    def one_step(self) -> None:
        batch = self.batch()
        self.forward()
        self.backward()
        self.update()
        self.zero_grad()
        with self.inside(f"{HOME}/train.py:20 main"):
            self.free(batch)
        self.end()
        self.step += 1

    def model(self) -> None:
        inner = f"{TORCH}/nn/modules/module.py:1160 convert", f"{TORCH}/nn/modules/module.py:930 _apply"
        with self.inside(f"{TORCH}/nn/modules/module.py:1174 to"):
            self.weights = [self.alloc(self.size, "at::_ops::_to_copy::call", *inner) for _ in range(self.layers)]

    def batch(self) -> int:
        with self.inside(f"{HOME}/train.py:20 main"):
            return self.alloc(MIB // 2, "at::_ops::_to_copy::call")

    def forward(self) -> None:
        with self.inside(f"{HOME}/train.py:21 main"):
            for _ in range(self.layers):
                self.activations.append(self.layer(self.kept))
            with self.inside(f"{HOME}/model.py:40 forward"):
                inner = f"{TORCH}/nn/modules/linear.py:125 forward"
                self.activations.append(self.alloc(self.logits, "at::_ops::addmm::call", inner))
        with self.inside(f"{HOME}/train.py:22 main"):
            inner = f"{TORCH}/nn/functional.py:3479 cross_entropy"
            self.activations.append(self.alloc(self.logits, "at::_ops::_log_softmax::call", inner))
            self.loss = self.alloc(4, "at::_ops::nll_loss_forward::call", inner)

    def layer(self, size: int) -> int:
        """One layer's activation."""
        with self.inside(f"{HOME}/model.py:31 forward"):
            return self.alloc(size, "at::_ops::addmm::call", f"{TORCH}/nn/modules/linear.py:125 forward")

    def backward(self) -> None:
        with self.inside(*ENGINE):
            upper = self.alloc(self.logits, "at::_ops::_log_softmax_backward_data::call")
            for number in range(self.layers + 2):
                self.let_go(number)
                below = self.alloc(self.kept, "at::_ops::mm::call")
                if number < self.layers:
                    self.gradients.append(self.alloc(self.size, "at::_ops::mm::call"))
                self.free(upper)
                upper = below
            self.free(upper)
        self.after_backward()

    def let_go(self, number: int) -> None:
        """The activation whose gradient was just found."""
        self.free(self.activations.pop())

    def after_backward(self) -> None:
        """The loss goes when its name is bound again."""
        with self.inside(f"{HOME}/train.py:23 main"):
            self.free(self.loss)

    def update(self) -> None:
        with self.inside(f"{TORCH}/optim/optimizer.py:516 wrapper", f"{HOME}/train.py:24 main"):
            if not self.moments:
                with self.inside(f"{TORCH}/optim/adamw.py:120 _init_group", f"{TORCH}/optim/adamw.py:200 step"):
                    self.moments = [self.alloc(self.size, "at::_ops::zeros_like::call") for _ in range(2 * self.layers)]
            with self.inside(f"{TORCH}/optim/adamw.py:600 _multi_tensor_adamw", f"{TORCH}/optim/adamw.py:210 step"):
                self.free(*[self.alloc(self.size, "at::_ops::_foreach_sqrt::call") for _ in range(self.layers)])

    def zero_grad(self) -> None:
        with self.inside(f"{TORCH}/optim/optimizer.py:1011 zero_grad", f"{HOME}/train.py:25 main"):
            self.free(*self.gradients)
            self.gradients = []

    def end(self) -> None:
        """After a step: where a test may keep something."""
