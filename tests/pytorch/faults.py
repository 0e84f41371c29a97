"""Programs with one fault each, as people's have them, to be named from their snapshots."""

from __future__ import annotations

from tinygrad_mem.errors import OutOfMemoryError

from .built import HOME, MIB, TORCH, Training


class LossesKept(Training):
    """``losses.append(loss)``: each loss lives on."""

    def after_backward(self) -> None:
        self.loss = 0


class GrowingList(Training):
    """``outputs.append(logits)``: each iteration's logits, copied, live on."""

    def end(self) -> None:
        with self.inside(f"{HOME}/train.py:30 main"):
            self.alloc(2 * MIB, "at::_ops::clone::call")


class RetainedGraph(Training):
    """``loss.backward(retain_graph=True)`` and a loss that is kept: all activations live on."""

    def let_go(self, number: int) -> None:
        self.activations.pop()

    def after_backward(self) -> None:
        self.loss = 0


class GrowingCache(Training):
    """``cache = torch.cat([cache, new])``: one block, each time a larger one."""

    cache = 0

    def end(self) -> None:
        with self.inside(f"{HOME}/cache.py:8 extend", f"{HOME}/train.py:31 main"):
            grown = self.alloc((self.step + 1) * 2 * MIB, "at::_ops::cat::call")
            if self.cache:
                self.free(self.cache)
            self.cache = grown


class Cycles(Training):
    """What an iteration makes hangs in a cycle of references: Python's garbage collector comes once in eight iterations."""

    hanging: tuple[int, ...] = ()

    def end(self) -> None:
        with self.inside(f"{HOME}/graph.py:14 __init__", f"{HOME}/train.py:32 main"):
            self.hanging += (self.alloc(3 * MIB, "at::_ops::zeros::call"),)
            if len(self.hanging) == 8:
                self.free(*self.hanging)
                self.hanging = ()


class NowAndThen(Training):
    """Every fourth iteration logs a picture, and keeps it."""

    def end(self) -> None:
        if self.step % 4 == 1:
            with self.inside(f"{HOME}/logs.py:77 picture", f"{HOME}/train.py:33 main"):
                self.alloc(5 * MIB, "at::_ops::clone::call")


class GrowingShapes(Training):
    """Each batch is longer than the one before: no free block is long enough, and the card is full of pieces."""

    layers = 6

    def layer(self, size: int) -> int:
        return super().layer(size + self.step * 777 * 1024)

    def run(self, steps: int) -> Training:
        try:
            return super().run(steps)
        except OutOfMemoryError:
            return self


class TooLarge(GrowingList):
    """Outputs are kept until the card is full."""

    def run(self, steps: int) -> Training:
        try:
            return super().run(steps)
        except OutOfMemoryError:
            return self


class LogitsSpike(Training):
    """The loss is taken of all logits in float32 at once: three times the logits, for a moment."""

    logits = 24 * MIB

    def forward(self) -> None:
        super().forward()
        with self.inside(f"{TORCH}/nn/functional.py:3479 cross_entropy", f"{HOME}/loss.py:9 loss", f"{HOME}/train.py:22 main"):
            spike = [self.alloc(self.logits, "at::_ops::_to_copy::call") for _ in range(3)]
            self.free(*spike)


class HookKeeps(Training):
    """A forward hook keeps an activation until the hook of the next iteration."""

    held = 0

    def let_go(self, number: int) -> None:
        if number != 4:
            return super().let_go(number)
        old, self.held = self.held, self.activations.pop()
        if old:
            with self.inside(f"{HOME}/hooks.py:12 keep", f"{HOME}/train.py:21 main"):
                self.free(old)
        return None


class LateZeroGrad(Training):
    """``zero_grad`` between forward and backward: gradients live while activations do."""

    def zero_grad(self) -> None:
        pass

    def forward(self) -> None:
        super().forward()
        super().zero_grad()


class SecondCopy(Training):
    """In the third iteration the model is copied, as for an average of its weights, and the copy stays."""

    def end(self) -> None:
        if self.step == 2:
            with self.inside(f"{HOME}/ema.py:5 copy", f"{HOME}/train.py:34 main"):
                for _ in self.weights:
                    self.alloc(self.size, "at::_ops::clone::call")
