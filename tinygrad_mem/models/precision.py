"""The choices of ``--precision``: the dtypes of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tinygrad_mem as tm

from .. import nn
from ..interrupts import context
from ..techniques import checkpoints_on_cpu
from .names import Named


class Step:
    """A training step in one precision, on a device of the type ``device``.

    ``float32``, ``float64``, ``float16``, ``bfloat16``: all of it in that dtype; small gradients become 0 in float16, and
    small updates not bfloat16. ``autocast``: float32 parameters, products in float16, whose weights are cast in each step.
    ``half``: float16 parameters and activations, and a float32 copy of each parameter in the optimizer. These two scale the
    loss, and their gradients are float32, 4 bytes a parameter. With ``offload`` the inputs of checkpoints are kept on the host.
    """

    def __init__(self, precision: str, device: str, offload: bool = False) -> None:
        self.precision, self.device, self.offload = precision, device, offload
        mixed = precision in ("autocast", "half")
        self.dtype = {"half": tm.float16, "autocast": tm.float32}.get(precision) or getattr(tm, precision)
        self.options = {"master_weights": True} if precision == "half" else {}
        self.scaler = tm.amp.GradScaler(device, enabled=mixed)

    def make(self, network: Callable[[], nn.Module]) -> nn.Module:
        """The prepared model. ``network`` makes it directly in its dtype, so that there is never a float32 copy."""
        before = tm.get_default_dtype()
        tm.set_default_dtype(self.dtype)
        try:
            model = network()
        finally:
            tm.set_default_dtype(before)
        return self.prepare(model)

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model in its dtype; before the optimizer is made, with ``**step.options``."""
        model.to(self.dtype)
        if self.precision == "half":
            for parameter in model.parameters():
                parameter.grad_dtype = tm.float32
        return model

    @context
    def region(self) -> Iterator[None]:
        """The region in which forward and loss run."""
        on_host = checkpoints_on_cpu(pin_memory=True) if self.offload else nullcontext()
        with tm.autocast(self.device, dtype=tm.float16, enabled=self.precision == "autocast"), on_host:
            yield

    def forward(self, model: nn.Module, inputs: tm.Tensor) -> Any:
        """The model's output for ``inputs``; in ``half``, cast to float32, so that the loss is in float32."""
        output = model(inputs.to(self.dtype) if inputs.is_floating_point() else inputs)
        return output.float() if self.precision == "half" and isinstance(output, tm.Tensor) else output

    def backward(self, loss: tm.Tensor) -> None:
        """Gradients of the scaled loss."""
        self.scaler.scale(loss).backward()

    def update(self, optimizer: Any) -> None:
        """The optimizer's step, unless a gradient overflowed, or the step was made in backward."""
        if optimizer._in_backward is not None:
            return
        self.scaler.step(optimizer)
        self.scaler.update()

    def train(
        self,
        model: nn.Module,
        optimizer: Any,
        named: Named,
        batch_size: int,
        parts: int,
        alone: Callable[[], AbstractContextManager] = nullcontext,
    ) -> str:
        """Two steps of the network ``named``, each on a batch in ``parts``; what its loss is, in a few words.

        Args:
            alone: a region for all parts but the last: among several ranks, one in which they are not averaged.
        """
        name = ""
        for _ in range(2):
            optimizer.zero_grad()
            for part in range(parts):
                with nullcontext() if part == parts - 1 else alone():
                    with self.region():
                        output = self.forward(model, named.batch(batch_size // parts, self.dtype))
                        loss = named.loss(output) / parts
                        name = named.loss_name(output)
                        del output
                    self.backward(loss)
                    del loss
            self.update(optimizer)
        return name
